"""The facades' names, arguments and defaults, against a table of those of deep_ep's releases. Without torch."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import epforge
from epforge import deep_ep
from epforge.deep_ep.utils import testing

TABLE = json.loads((Path(__file__).parent / "signatures.json").read_text())


def found(path: str) -> Any:
    """What the facade has under a name such as `Buffer.dispatch`."""
    place: Any = deep_ep
    for name in path.split("."):
        place = getattr(place, name)
    return place


def written(call: Any) -> str:
    """The arguments of a call as the table writes them."""
    all_of_them = inspect.signature(call).parameters.values()
    more = TABLE["more"].get(call.__qualname__.split(".")[-1], [])
    parameters = [it for it in all_of_them if it.name not in more]
    shown = [it.name if it.default is it.empty else f"{it.name}={it.default!r}" for it in parameters]
    return ", ".join(shown[1:] if shown[:1] == ["self"] else shown)


class Signatures(unittest.TestCase):
    """Who calls by position or by name calls the same thing."""

    def test_every_call_has_the_arguments_of_the_original(self) -> None:
        for release, calls in TABLE["signatures"].items():
            for path, arguments in calls.items():
                with self.subTest(release=release, call=path):
                    self.assertEqual(written(found(path)), arguments)

    def test_what_is_absent_says_so_in_one_sentence(self) -> None:
        for owner, names in TABLE["absent"].items():
            for name in names:
                with self.subTest(call=f"{owner}.{name}"):
                    with self.assertRaises(NotImplementedError) as caught:
                        found(f"{owner}.{name}")()
                    self.assertRegex(str(caught.exception), f"^`{name}` is not there yet: .+[^.]$")

    def test_a_facade_can_be_looked_at_without_torch(self) -> None:
        self.assertNotIn("torch", sys.modules)
        with self.assertRaisesRegex(epforge.Missing, "tensors of torch, which is not installed"):
            deep_ep.Buffer(None)
        self.assertEqual(deep_ep.Config(24).get_nvl_buffer_size_hint(14336, 8), 4096 * 8 * 14336)
        self.assertEqual(deep_ep.Buffer.get_dispatch_config(7).num_sms, deep_ep.Buffer.num_sms)

    def test_size_hints_are_the_bytes_of_the_plans(self) -> None:
        config, shape = deep_ep.Config(24), {"hidden": 7168, "topk": 8}
        # Between nodes, rows that go back have places of their own.
        self.assertEqual(config.get_nvl_buffer_size_hint(14336, 16), 2 * 4096 * 16 * 14336)
        self.assertEqual(config.get_rdma_buffer_size_hint(14336, 8), 0)
        network = epforge.Buffer.network_bytes(16, nodes=2, tokens=4096, experts=128, **shape)
        self.assertGreater(network, 16 << 20)
        self.assertEqual(config.get_rdma_buffer_size_hint(14336, 16), network)
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
        plan = {"tokens": 128, "experts": 256, "between": 2, **shape}
        near = epforge.LowLatency.bytes(8, way="per-rank", **plan)
        self.assertEqual(hint(128, 7168, 8, 256), near)
        far = epforge.LowLatency.bytes(16, nodes=2, way="per-rank", **plan)
        rows = epforge.LowLatency.network_bytes(16, nodes=2, way="per-rank", **plan)
        self.assertGreater(rows, 128 * 16 * 14336)
        self.assertEqual(hint(128, 7168, 16, 256), far + rows)


class Utilities(unittest.TestCase):
    """What tests of deep_ep import, as far as it needs no torch."""

    def test_times_of_kernels_are_found_by_a_part_of_their_names(self) -> None:
        def event(key: str, total: float, count: int) -> SimpleNamespace:
            return SimpleNamespace(key=key, self_device_time_total=total, count=count)

        # Microseconds, of two kernels and what the host did.
        events = [event("nvl_dispatch", 60.0, 30), event("nvl_dispatch_tail", 8.0, 2), event("cudaLaunchKernel", 0, 60)]
        found = testing.seconds_of(events, ("dispatch", "tail"))
        self.assertEqual([round(seconds * 1e9) for seconds in found], [6000, 4000])
        with self.assertRaises(epforge.Mismatch) as caught:
            testing.seconds_of(events, ("tail", "Launch"))
        there = "no kernel that ran has a name with `Launch`: there were nvl_dispatch, nvl_dispatch_tail"
        self.assertEqual(str(caught.exception), there)

    def test_times_of_kernels_that_each_call_runs_in_turn_are_apart(self) -> None:
        def kernel(name: str, us: float) -> SimpleNamespace:
            return SimpleNamespace(name=name, self_device_time_total=us)

        events = [kernel("dispatch", 6.0), kernel("dispatch", 2.0), kernel("zero", 1.0)] * 2
        ((send, receive),) = testing.seconds_in_turn(events, ("dispatch",), 2)
        self.assertEqual((round(send * 1e6), round(receive * 1e6)), (6, 2))
        with self.assertRaises(epforge.Mismatch) as caught:
            testing.seconds_in_turn(events, ("dispatch",), 3)
        there = "4 kernels that ran have names with `dispatch`, not 3 in each call"
        self.assertEqual(str(caught.exception), there)


class OtherName(unittest.TestCase):
    """The distribution that gives the facade the original's name."""

    def test_both_names_are_one(self) -> None:
        script = (
            "import deep_ep, deep_ep.utils, epforge.deep_ep as ours\n"
            "from deep_ep import Buffer, Config, EventOverlap\n"
            "from deep_ep.utils import EventHandle, EventOverlap as again\n"
            "from deep_ep.utils import envs, gate, refs, testing\n"
            "from deep_ep.utils.math import align\n"
            "assert deep_ep.Buffer is ours.Buffer is Buffer and again is EventOverlap and align(5, 4) == 8\n"
            "from epforge.deep_ep.utils import envs as same\n"
            "assert envs is same and envs.get_global_seed() == 0\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


if __name__ == "__main__":
    unittest.main()
