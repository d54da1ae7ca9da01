"""What has hurt callers of other libraries, and must not hurt here."""

from __future__ import annotations

import gc
import re
import unittest
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import epforge
from problems import Problem, problem
from test_calls import in_threads, made

#: As many layers as a model has, and more than others could give a buffer of their own.
LAYERS = 30


class LayersAtLength(unittest.TestCase):
    """Models have many layers."""

    def layer(self, own: Problem, buffer: epforge.Buffer, keep: list[Any]) -> None:
        pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(own.ranks)]
        back = [buffer.combine(received.x, handle) for received, handle in pairs]
        for rank, sums in enumerate(back):
            wanted = own.x[rank].astype(np.float32) * own.times(rank)
            np.testing.assert_array_equal(sums.x.astype(np.float32), wanted)
        keep.append([handle for _, handle in pairs])

    def test_all_layers_share_a_buffer(self) -> None:
        keep: list[Any] = []
        first = problem(2, tokens=[4, 4])
        buffer = made(epforge.Group.on_host(2), first, weights=False, handles=LAYERS)
        for seed in range(LAYERS):
            self.layer(problem(2, tokens=[seed % 5, 4], seed=seed), buffer, keep)
        # Backwards through all of them, in the other order.
        for seed, handles in reversed(list(enumerate(keep))):
            own = problem(2, tokens=[seed % 5, 4], seed=seed)
            again = [buffer.cached_dispatch(own.x[r], handles[r]) for r in range(2)]
            for rank, received in enumerate(again):
                np.testing.assert_array_equal(received.x, own.received(rank)[0])

    def test_every_layer_has_a_buffer(self) -> None:
        own, group = problem(2, tokens=[3, 4]), epforge.Group.on_host(2)
        buffers = [made(group, own, weights=False, cached=False) for _ in range(LAYERS)]
        keep: list[Any] = []
        for buffer in buffers:
            self.layer(own, buffer, keep)

    def test_batches_overlap_in_a_buffer(self) -> None:
        own, other = problem(2, tokens=[4, 2]), problem(2, tokens=[3, 4], seed=1)
        buffer = made(epforge.Group.on_host(2), own, weights=False)
        first = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        second = [buffer.dispatch(other.x[r], other.topk_idx[r], rank=r) for r in range(2)]
        for its, pairs in ((own, first), (other, second)):
            for rank, (received, _) in enumerate(pairs):
                np.testing.assert_array_equal(received.x, its.received(rank)[0])


class Results(unittest.TestCase):
    """Results belong to who has them."""

    def test_they_outlive_their_buffer_and_their_group(self) -> None:
        own = problem(2, tokens=[4, 3])
        group = epforge.Group.on_host(2)
        buffer = made(group, own)
        pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], own.topk_weights[r], rank=r) for r in range(2)]
        del buffer, group
        gc.collect()
        for rank, (received, handle) in enumerate(pairs):
            rows, ids, weights = own.received(rank)
            self.assertEqual(handle.counts()[0], len(rows))
            np.testing.assert_array_equal(received.x, rows)
            np.testing.assert_array_equal(received.topk_idx, ids)
            np.testing.assert_array_equal(received.topk_weights, weights)

    def test_an_out_that_does_not_fit_is_refused(self) -> None:
        own = problem(2, tokens=[4, 3])
        buffer = made(epforge.Group.on_host(2), own, weights=False)
        pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        rows = pairs[0][0].x
        whole = np.zeros((8, own.hidden), own.x[0].dtype)
        fixed = whole[4:].copy()
        fixed.flags.writeable = False
        for out, wanted in (
            (whole[:3], "`out` has extents [3, 128], and needs [4, 128]"),
            (whole[::2], "`out` has gaps between its rows: make it contiguous"),
            (whole[:4, :64], "`out` has extents [4, 64], and needs [4, 128]"),
            (fixed, "`out` is read-only, and sums are left in it"),
            (whole[:4].astype(np.float32), "`out` has elements of float32, and has to have bfloat16"),
        ):
            with self.assertRaises(epforge.Mismatch) as caught:
                buffer.combine(rows, pairs[0][1], out=out)
            self.assertEqual(str(caught.exception), wanted)
        # The combines that were refused have not begun.
        back = [buffer.combine(received.x, handle) for received, handle in pairs]
        np.testing.assert_array_equal(back[0].x.astype(np.float32), own.x[0].astype(np.float32) * own.times(0))


class ShapesAtLength(unittest.TestCase):
    """Shapes that other libraries have no row for in a table."""

    def test_any_top_k_hidden_size_and_number_of_experts(self) -> None:
        for ranks, shape in (
            (3, {"hidden": 2880, "topk": 4, "experts": 32}),
            (2, {"hidden": 16, "topk": 16, "experts": 17}),
            (4, {"hidden": 144, "topk": 1, "experts": 3}),
        ):
            with self.subTest(ranks=ranks, **shape):
                own = problem(ranks, tokens=[3, 0, 2, 1][:ranks], **shape)
                buffer = made(epforge.Group.on_host(ranks), own, weights=False)
                pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(ranks)]
                for rank, (received, _) in enumerate(pairs):
                    np.testing.assert_array_equal(received.x, own.received(rank)[0])

    def test_no_rank_has_a_token(self) -> None:
        own = problem(2, tokens=[0, 0])
        buffer = made(epforge.Group.on_host(2), own)
        for _ in range(2):
            pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], own.topk_weights[r], rank=r) for r in range(2)]
            back = [buffer.combine(received.x, handle) for received, handle in pairs]
            self.assertEqual([sums.x.shape for sums in back], [(0, own.hidden)] * 2)

    def test_a_token_names_an_expert_twice(self) -> None:
        own = problem(2, tokens=[4, 4])
        for ids in own.topk_idx:
            ids[:, 1] = ids[:, 0]
        buffer = made(epforge.Group.on_host(2), own, weights=False)
        pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        for rank, (received, _) in enumerate(pairs):
            np.testing.assert_array_equal(received.x, own.received(rank)[0])

    def test_all_tokens_go_to_one_rank(self) -> None:
        own = problem(3, tokens=[5, 4, 3], experts=9)
        for ids in own.topk_idx:
            ids[:] = np.arange(own.topk)
        buffer = made(epforge.Group.on_host(3), own, weights=False)
        found: dict[int, int] = {}

        def call(rank: int) -> None:
            received, handle = buffer.dispatch(own.x[rank], own.topk_idx[rank], rank=rank)
            found[rank] = received.rows
            buffer.combine(received.x, handle).x  # noqa: B018 looking is the call

        in_threads(3, call)
        self.assertEqual(found, {0: 12, 1: 0, 2: 0})


class Documents(unittest.TestCase):
    """What the page shows runs."""

    def test_the_program_without_a_gpu(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        whole = [block for block in blocks if block.startswith("import ml_dtypes")]
        self.assertEqual(len(whole), 1)
        self.assertLessEqual(len(whole[0].splitlines()), 30)
        exec(compile(whole[0], "docs/python.md", "exec"), {"ml_dtypes": ml_dtypes})


if __name__ == "__main__":
    unittest.main()
