"""What buffers say of their memory before they are made, and the table of the page."""

from __future__ import annotations

import unittest
from pathlib import Path

import epforge
import memory_table
from epforge import deep_ep
from epforge.deep_ep import spread

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SHAPE = {"tokens": 10, "hidden": 256, "topk": 3, "experts": 6}


class Bytes(unittest.TestCase):
    """The numbers equal what is taken; tests of the run time compare the latter with what the emulator allocates."""

    def test_low_latency_kernels(self) -> None:
        for more in (
            {"payload": "fp8", "between": 2},
            {"way": "per-rank", "payload": "fp8"},
            {"way": "per-rank", "weights_ahead": True},
        ):
            with self.subTest(**more):
                made = epforge.LowLatency(epforge.Group.on_host(2), **SHAPE, **more)
                self.assertEqual(epforge.LowLatency.bytes(2, **SHAPE, **more), made.memory)

    def test_sums_that_are_rounded_once(self) -> None:
        group = epforge.Group.on_host(2)
        own = spread.SpreadBack(epforge.Buffer(group, **SHAPE))
        one, two = (
            deep_ep.ElasticBuffer.bytes(2, *SHAPE.values(), allow_multiple_reduction=it) for it in (True, False)
        )
        self.assertEqual(two - one, own._core.device_bytes)

    def test_numbers_out_of_range_are_refused_without_a_group(self) -> None:
        for way in ("per-expert", "per-rank"):
            with self.assertRaisesRegex(epforge.Plan, "`hidden` is 100, it takes"):
                epforge.LowLatency.bytes(2, **{**SHAPE, "hidden": 100}, way=way)

    @unittest.skipUnless(PAGE.exists(), "the page is not here")
    def test_the_table_of_the_page(self) -> None:
        page = PAGE.read_text().splitlines()
        table = list(memory_table.lines())
        begin = page.index(table[0])
        self.assertEqual(page[begin : begin + len(table) + 1], [*table, ""])


if __name__ == "__main__":
    unittest.main()
