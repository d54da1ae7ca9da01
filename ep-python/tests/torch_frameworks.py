"""The plug-ins on vLLM and SGLang themselves, and the calls of deep_ep in their sources. `--full` runs this."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from epforge import deep_ep
from stand_ins import DISPATCHERS, LAYERS
from test_plugins import compare, moe
from torch_calls import ranks_in_processes

#: Arguments that are passed for forms of rows that EPForge does not have, or to other libraries.
ELSEWHERE = {"use_mxfp4", "use_mxfp8", "topk_ids", "quant_mode"}


def installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def setUpModule() -> None:
    """Says which frameworks are missing: their tests are skipped."""
    for framework in ("megatron", "sglang", "vllm"):
        if not installed(framework):
            print(f"skipped: {framework} is not installed here", file=sys.stderr)


def source(module: str) -> str:
    """The source of a module, which need not be importable here."""
    root, _, rest = module.partition(".")
    spec = importlib.util.find_spec(root)
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], *rest.split(".")).with_suffix(".py").read_text()


def calls_in(text: str, facade: type, variable: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of a source that make a facade, or are made on one that a variable holds."""
    # The class of another library may have the same name.
    makes = {f"deep_ep.{facade.__name__}"} | ({facade.__name__} if "from deep_ep import" in text else set())
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        if called in makes:
            yield "__init__", node
        elif owner.split(".")[-1].lower() == variable and hasattr(facade, name):
            yield name, node


def unknown(call: ast.Call, facade: type, name: str) -> set[str]:
    """Arguments of a call that a facade does not have."""
    known = inspect.signature(getattr(facade, name)).parameters
    return {it.arg for it in call.keywords if it.arg} - set(known) - ELSEWHERE


class Sources(unittest.TestCase):
    """The facade has every argument that the frameworks pass by name."""

    def check(self, least: int, module: str, facade: type, variable: str = "buffer") -> None:
        found = list(calls_in(source(module), facade, variable))
        for name, call in found:
            with self.subTest(module=module, call=name, line=call.lineno):
                self.assertEqual(unknown(call, facade, name), set())
        self.assertGreaterEqual(len(found), least, f"{module} makes {[name for name, _ in found]}")

    @unittest.skipUnless(installed("vllm"), "vllm is not installed here")
    def test_calls_of_vllm(self) -> None:
        self.check(4, f"{LAYERS}.prepare_finalize.deepep_ht", deep_ep.Buffer)
        self.check(2, f"{LAYERS}.prepare_finalize.deepep_ll", deep_ep.Buffer)
        self.check(2, f"{LAYERS}.prepare_finalize.deepep_v2", deep_ep.ElasticBuffer)
        managers = "vllm.distributed.device_communicators.all2all"
        self.check(2, managers, deep_ep.Buffer)
        # vLLM's managers make a buffer of the arguments in a dictionary.
        classes = [it for it in ast.parse(source(managers)).body if isinstance(it, ast.ClassDef)]
        for manager in [it for it in classes if it.name.startswith("DeepEP") and "Base" not in it.name]:
            facade = deep_ep.ElasticBuffer if "V2" in manager.name else deep_ep.Buffer
            calls = [it for it in ast.walk(manager) if isinstance(it, ast.Call)]
            (made,) = [it for it in calls if ast.unparse(it.func) == "dict" and it.keywords]
            with self.subTest(manager=manager.name):
                self.assertEqual(unknown(made, facade, "__init__"), set())

    @unittest.skipUnless(installed("sglang"), "sglang is not installed here")
    def test_calls_of_sglang(self) -> None:
        self.check(9, f"{DISPATCHERS}.deepep", deep_ep.Buffer)
        self.check(3, f"{DISPATCHERS}.deepep_v2", deep_ep.ElasticBuffer)

    @unittest.skipUnless(installed("megatron"), "megatron-core is not installed here")
    def test_calls_of_megatron(self) -> None:
        self.check(6, "megatron.core.transformer.moe.fused_a2a", deep_ep.Buffer)
        self.check(5, "megatron.core.transformer.moe.fused_a2a", deep_ep.HybridEPBuffer, "_hybrid_ep_buffer")


def in_vllm(rank: int, ranks: int) -> None:
    """vLLM's own classes for prefill, decode and the second API: to the experts and back."""
    import epforge_vllm

    epforge_vllm.register()
    found = {name: importlib.import_module(f"{LAYERS}.prepare_finalize.deepep_{name}") for name in ("ht", "ll", "v2")}
    reduce = importlib.import_module(f"{LAYERS}.topk_weight_and_reduce")
    config = importlib.import_module(f"{LAYERS}.config").FUSED_MOE_UNQUANTIZED_CONFIG
    # DeepEP's kernels take no such rows.
    hidden, topk, experts, most = 272, 3, 8, 8
    tokens, local = (5, 8)[rank], experts // ranks
    x = torch.randint(-8, 8, (tokens, hidden)).to(torch.bfloat16)
    ids = torch.rand(tokens, experts).topk(topk).indices
    weights = torch.randint(1, 9, (tokens, topk)).float() / 8
    wanted = x.float() * (weights * 2.0 ** (ids % 3)).sum(1, keepdim=True)
    group, numbers = dist.group.WORLD, (ranks, ranks, rank * local)
    buffer, elastic = deep_ep.Buffer(group, 1 << 20), deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=most)
    for kind, layer in (
        ("ht", found["ht"].DeepEPHTPrepareAndFinalize(buffer, *numbers)),
        ("ll", found["ll"].DeepEPLLPrepareAndFinalize(buffer, most, ranks)),
        ("v2", found["v2"].DeepEPV2PrepareAndFinalize(elastic, *numbers, experts, topk)),
    ):
        epforge_vllm.prepare(moe(kind, None, most, hidden, topk, experts), config, layer)
        rows, _, _, its_ids, its_weights = layer.prepare(x, weights, ids, experts, None, False, config)
        own = torch.arange(rank * local, (rank + 1) * local)
        if kind == "ll":
            made, weigh = rows.float() * (2.0 ** (own % 3))[:, None, None], reduce.TopKWeightAndReduceDelegate()
        else:
            here = (its_ids >= own[0]) & (its_ids <= own[-1])
            factor = torch.where(here, its_weights * 2.0 ** (its_ids % 3), 0.0).sum(1, keepdim=True)
            made, weigh = rows.float() * factor, reduce.TopKWeightAndReduceNoOP()
        sums = torch.empty_like(x)
        layer.finalize(sums, made.to(torch.bfloat16), weights, ids, False, weigh)
        error = (sums.float() - wanted).norm() / wanted.norm()
        assert error < 0.01, f"{kind}: {error}"


class Plugins(unittest.TestCase):
    """What the plug-ins change is there, and is changed."""

    @unittest.skipUnless(installed("sglang"), "sglang is not installed here")
    def test_the_names_and_arguments_of_sglang(self) -> None:
        compare(self, "sglang", source)

    @unittest.skipUnless(installed("sglang"), "sglang is not installed here")
    def test_hooks_of_sglang(self) -> None:
        import epforge_sglang

        try:
            importlib.import_module(f"{DISPATCHERS}.deepep")
        except (ImportError, RuntimeError) as error:
            self.skipTest(f"sglang cannot be imported here: {error}")
        registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
        epforge_sglang.register()
        with self.assertNoLogs("sglang.srt.plugins.hook_registry", "ERROR"):
            registry.apply_hooks()
        names = ("deepep._DeepEPDispatcherImplBase", "deepep.DeepEPDispatcher", "deepep_v2.DeepEPv2Dispatcher")
        self.assertEqual(registry._patched, {f"{DISPATCHERS}.{name}.__init__" for name in names})

    @unittest.skipUnless(installed("vllm"), "vllm is not installed here")
    def test_the_names_and_arguments_of_vllm(self) -> None:
        compare(self, "vllm", source)

    @unittest.skipUnless(installed("vllm"), "vllm is not installed here")
    def test_changes_of_vllm(self) -> None:
        import epforge_vllm

        epforge_vllm.register()
        with self.assertNoLogs("vllm.epforge"):
            (changes,) = (it for it in sys.meta_path if isinstance(it, epforge_vllm.Changes))
            modules = {name.rpartition(".")[2]: importlib.import_module(name) for name in changes.changes}
        self.assertTrue(modules["import_utils"].has_deep_ep() and modules["import_utils"].has_deep_ep_v2())
        low = modules["deepep_ll"].DeepEPLLPrepareAndFinalize
        self.assertEqual([low.maybe_roundup_layer_hidden_size(it) for it in (2880, 16384)], [2880, 16384])
        for name, layer in (("deepep_ht", "DeepEPHTPrepareAndFinalize"), ("deepep_v2", "DeepEPV2PrepareAndFinalize")):
            self.assertEqual(getattr(modules[name], layer).maybe_roundup_layer_hidden_size(2880, None), 2880)
        made = modules["all2all_utils"].maybe_make_prepare_finalize
        self.assertEqual(made.__wrapped__.__module__, f"{LAYERS}.all2all_utils")

    @unittest.skipUnless(installed("vllm"), "vllm is not installed here")
    def test_layers_of_vllm_in_the_emulator(self) -> None:
        ranks_in_processes(2, "cpu", in_vllm)


class Scripts(unittest.TestCase):
    """The scripts of `integrations` that run without a GPU."""

    def compare(self, framework: str, cases: int, *options: str) -> None:
        script = Path(__file__).parents[1] / "integrations" / framework / "compare.py"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script), *options]
        on_cpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        ran = subprocess.run(command, env=on_cpu, capture_output=True, text=True, timeout=900)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr[-3000:])
        self.assertEqual(ran.stdout.count("| agrees |"), cases, ran.stdout)

    @unittest.skipUnless(installed("megatron"), "megatron-core is not installed here")
    def test_layers_of_megatron_agree_with_those_of_its_own_dispatcher(self) -> None:
        for backend in ("deepep", "hybridep"):
            with self.subTest(backend):
                self.compare("megatron", 6, "--backend", backend)

    @unittest.skipUnless(installed("sglang"), "sglang is not installed here")
    def test_dispatchers_of_sglang_give_the_right_sums(self) -> None:
        try:
            importlib.import_module(f"{DISPATCHERS}.deepep")
        except (ImportError, RuntimeError) as error:
            self.skipTest(f"sglang cannot be imported here: {error}")
        self.compare("sglang", 9)


if __name__ == "__main__":
    unittest.main()
