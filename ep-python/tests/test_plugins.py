"""The plug-ins for vLLM and SGLang, on stand-ins; `torch_frameworks.py` runs them on the frameworks themselves."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import logging
import re
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import epforge
import epforge_sglang
import epforge_vllm
from epforge import deep_ep
from epforge.deep_ep import served
from stand_ins import DISPATCHERS, LAYERS, SGLANG, VLLM, put_in_place

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "integrations" / "vllm"
TABLE: dict[str, dict[str, dict[str, str]]] = json.loads((HERE / "frameworks.json").read_text())


def arguments_in(text: str, path: str) -> str:
    """The arguments of a function of a source, without their types."""
    body = ast.parse(text).body
    for name in path.split("."):
        (found,) = [it for it in body if getattr(it, "name", None) == name]
        body = getattr(found, "body", [])
    assert isinstance(found, ast.FunctionDef)
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    return ast.unparse(found.args)


def compare(test: unittest.TestCase, framework: str, source: Callable[[str], str]) -> None:
    """Compares functions in the sources of a framework with the table."""
    for module, calls in next(it for name, it in TABLE.items() if name.startswith(framework)).items():
        for path, arguments in calls.items():
            with test.subTest(module=module, call=path):
                test.assertEqual(arguments_in(source(module), path), arguments)


class Notes:
    """A buffer of deep_ep that notes what it is asked to prepare; arguments have to fit the facade's."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind, self.heard = kind, []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            given = inspect.signature(getattr(self.kind, name)).bind(None, *arguments, **options)
            given.apply_defaults()
            self.heard.append((name, {key: value for key, value in given.arguments.items() if key != "self"}))

        return call


class Entries(list[int]):
    """What the plug-in needs of a tensor of experts."""

    def __lt__(self, bound: Any) -> Any:
        return [it < bound for it in self]

    def masked_fill_(self, mask: list[bool], value: int) -> Entries:
        self[:] = [value if there else it for it, there in zip(self, mask, strict=True)]
        return self


def lines(test: unittest.TestCase, name: str) -> list[str]:
    """What a log says in the rest of a test."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger(name)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    test.addCleanup(log.removeHandler, handler)
    served.tell.cache_clear()
    versions = mock.patch.object(served.importlib.metadata, "version", {"vllm": "0.26.0", "sglang": "0.5.23"}.get)
    versions.start()
    test.addCleanup(versions.stop)
    return said


def moe(
    kind: str, buffer: Any, tokens: int = 64, hidden: int = 2880, topk: int = 4, experts: int = 128
) -> SimpleNamespace:
    """What vLLM knows of a layer."""
    uses = {f"use_deepep_{it}_kernels": it == kind for it in ("ht", "ll", "v2")}
    shape = {"hidden_dim": hidden, "experts_per_token": topk, "num_experts": experts}
    return SimpleNamespace(buffer=buffer, max_num_tokens=tokens, **shape, **uses)


class Vllm(unittest.TestCase):
    """What the plug-in changes in vLLM."""

    def setUp(self) -> None:
        put_in_place(self, VLLM)
        self.said = lines(self, "vllm.epforge")

    def changed(self, name: str) -> Any:
        """A module of vLLM, in a process with the plug-in."""
        epforge_vllm.register()
        return importlib.import_module(name)

    def test_the_stand_in_has_the_arguments_of_vllm(self) -> None:
        compare(self, "vllm", VLLM.__getitem__)

    def test_hidden_sizes_stay_as_they_are(self) -> None:
        for name, layer, more in (
            ("deepep_ht", "DeepEPHTPrepareAndFinalize", (None,)),
            ("deepep_v2", "DeepEPV2PrepareAndFinalize", (None,)),
            ("deepep_ll", "DeepEPLLPrepareAndFinalize", ()),
        ):
            rounded = getattr(self.changed(f"{LAYERS}.prepare_finalize.{name}"), layer).maybe_roundup_layer_hidden_size
            self.assertEqual([rounded(hidden, *more) for hidden in (2880, 2881, 7168)], [2880, 2896, 7168], name)

    def test_entries_without_a_local_expert_get_one_of_another_rank(self) -> None:
        globalize = self.changed(f"{LAYERS}.prepare_finalize.deepep_v2")._globalize_recv_topk_idx
        for rank, ranks, wanted in ((0, 2, [3, 7, 0, 7]), (1, 2, [3, 0, 0, 0]), (0, 1, [3, -1, 0, -1])):
            made = globalize(Entries([3, -1, 0, -1]), [0] * ranks, 4 * rank, 8)
            self.assertEqual(made, wanted, f"rank {rank} of {ranks}")

    def test_neither_nccl_nor_gin_is_asked_for(self) -> None:
        self.assertTrue(self.changed("vllm.utils.import_utils").has_deep_ep_v2())
        manager = self.changed("vllm.distributed.device_communicators.all2all").DeepEPV2All2AllManager()
        self.assertEqual(manager.get_handle({}), "a buffer")

    def test_modules_that_were_imported_before_are_changed_as_well(self) -> None:
        utils = importlib.import_module(f"{LAYERS}.all2all_utils")
        early = SimpleNamespace(maybe_make_prepare_finalize=utils.maybe_make_prepare_finalize)
        sys.modules["vllm.early"] = early  # type: ignore[assignment]
        epforge_vllm.register()
        self.assertEqual(utils.DeepEPHTPrepareAndFinalize.maybe_roundup_layer_hidden_size(2880, None), 2880)
        notes = Notes(deep_ep.ElasticBuffer)
        early.maybe_make_prepare_finalize(moe("v2", notes), None)
        self.assertEqual([name for name, _ in notes.heard], ["prepare"])

    def test_layers_are_prepared_and_the_log_says_by_whom(self) -> None:
        make = self.changed(f"{LAYERS}.all2all_utils").maybe_make_prepare_finalize
        shape = {"hidden": 2880, "num_topk": 4, "num_experts": 128}
        block = SimpleNamespace(is_block_quantized=True)
        own = {"use_fp8": True, "use_ue8m0": False, "expert_alignment": 1}
        for kind, facade, quantized, wanted in (
            ("ht", deep_ep.Buffer, block, ("prepare", {"num_tokens": 64, **shape, **own})),
            ("ht", deep_ep.Buffer, None, ("prepare", {"num_tokens": 64, **shape, **own, "use_fp8": False})),
            (
                "ll", deep_ep.Buffer, block,
                ("low_latency_prepare", {"num_max_dispatch_tokens_per_rank": 64, **shape, "use_fp8": True,
                                         "round_scale": False}),
            ),
            ("v2", deep_ep.ElasticBuffer, block, ("prepare", {**shape, **own, "use_fp8": False, "do_expand": True})),
        ):  # fmt: skip
            notes = Notes(facade)
            for _ in range(2):
                make(moe(kind, notes), quantized)
            self.assertEqual(notes.heard, [wanted, wanted], kind)
        self.assertIsNone(make(moe("none", None), None))
        backends = ("deepep_high_throughput", "deepep_low_latency", "deepep_v2")
        said = f"EPForge {epforge.__version__} serves `{{}}` of vllm 0.26.0"
        self.assertEqual(self.said, [said.format(it) for it in backends])

    def test_a_vllm_without_what_is_changed_is_named(self) -> None:
        module = f"{LAYERS}.prepare_finalize.deepep_ll"
        put_in_place(self, {**VLLM, module: "class DeepEPLLPrepareAndFinalize: ..."})
        self.changed(module)
        (said,) = self.said
        self.assertRegex(said, f"^EPForge does not know this vLLM, and leaves `{module}` as it is: .*SUPPORTED_HIDDEN")


class Sglang(unittest.TestCase):
    """What the plug-in changes in SGLang."""

    def setUp(self) -> None:
        put_in_place(self, SGLANG)
        self.said = lines(self, "epforge_sglang")
        epforge_sglang.register()
        importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
        self.deepep = importlib.import_module(f"{DISPATCHERS}.deepep")

    def test_the_stand_in_has_the_arguments_of_sglang(self) -> None:
        compare(self, "sglang", SGLANG.__getitem__)

    def test_dispatchers_are_prepared_and_the_log_says_by_whom(self) -> None:
        shape = {"hidden": 2880, "num_topk": 4, "num_experts": 128}
        fp8 = {"use_fp8": True, "use_ue8m0": False, "expert_alignment": 128}
        low = {"num_max_dispatch_tokens_per_rank": 128, **shape, "use_fp8": True, "round_scale": False}
        notes = Notes(deep_ep.Buffer)
        self.deepep.DeepEPDispatcher(notes, 4, num_experts=128, hidden_size=2880)
        self.assertEqual(notes.heard, [("low_latency_prepare", low), ("prepare", {"num_tokens": 1, **shape, **fp8})])
        notes = Notes(deep_ep.ElasticBuffer)
        importlib.import_module(f"{DISPATCHERS}.deepep_v2").DeepEPv2Dispatcher(notes, 4, 128, 64, 2880, None, True)
        self.assertEqual(notes.heard, [("prepare", {**shape, **fp8, "do_expand": False})])
        said = f"EPForge {epforge.__version__} serves `{{}}` of sglang 0.5.23"
        self.assertEqual(self.said, [said.format(it) for it in ("deepep", "deepep_v2")])

    def test_low_latency_calls_have_more_tokens_than_those_of_deepep(self) -> None:
        self.deepep.Number.value = 4096
        mode = self.deepep.DeepEPMode.LOW_LATENCY
        made = self.deepep.DeepEPDispatcher(Notes(deep_ep.Buffer), 4, num_experts=8, hidden_size=64, deepep_mode=mode)
        self.assertEqual(made._low_latency_dispatcher.num_max_dispatch_tokens_per_rank, 4096)
        self.assertEqual(self.deepep.Number().get(), 4096)


class Packages(unittest.TestCase):
    """How the frameworks find the plug-ins, and what the plug-ins find under the name `deep_ep`."""

    @unittest.skipUnless((HERE.parent / "epforge-vllm").exists(), "the sources are not here")
    def test_entry_points_name_a_function_that_is_there(self) -> None:
        for plugin, group in ((epforge_vllm, "vllm.general_plugins"), (epforge_sglang, "sglang.srt.plugins")):
            folder = HERE.parent / plugin.__name__.replace("_", "-")
            text = (folder / "pyproject.toml").read_text()
            (found,) = re.findall(rf'\[project\.entry-points\."{group}"\]\nepforge = "(\w+):(\w+)"', text)
            self.assertEqual((found[0], callable(getattr(plugin, found[1]))), (plugin.__name__, True))

    def test_another_deep_ep_is_refused_by_its_place(self) -> None:
        script = (
            "import sys, types, epforge\n"
            "from epforge.deep_ep.served import check_name\n"
            "check_name()\n"
            "other = types.ModuleType('deep_ep')\n"
            "other.__file__ = '/there/deep_ep/__init__.py'\n"
            "sys.modules['deep_ep'] = other\n"
            "try:\n    check_name()\n"
            "except epforge.Missing as error:\n    print(error)\n"
        )
        said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        self.assertRegex(said, "^`deep_ep` is /there/deep_ep/__init__.py, and not EPForge's: uninstall `deep_ep`")


def script(name: str) -> Any:
    """A script for vLLM, as a module."""
    with mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]):
        return importlib.import_module(name)


@unittest.skipUnless(SCRIPTS.exists(), "the sources are not here")
class Scripts(unittest.TestCase):
    """The scripts that run vLLM, without vLLM."""

    def test_times_are_those_of_steps_with_a_token_for_each_sequence(self) -> None:
        finished = [[False], [False, False], [False, False], [True, True]]
        steps = iter([[SimpleNamespace(finished=it) for it in step] for step in finished])
        engine = SimpleNamespace(llm_engine=SimpleNamespace(add_request=mock.Mock(), step=lambda: next(steps)))
        with mock.patch.dict(sys.modules, vllm=SimpleNamespace(SamplingParams=dict)):
            times = script("serve").stamps(engine, 2, 16, 3)
        self.assertEqual((len(times), engine.llm_engine.add_request.call_count), (4, 2))


if __name__ == "__main__":
    unittest.main()
