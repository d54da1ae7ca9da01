"""Low latency in the emulator, every access checked, against what NumPy alone makes of the same inputs."""

from __future__ import annotations

import gc
import unittest
from typing import Any

import ml_dtypes
import numpy as np

import epforge
from problems import Problem, problem
from test_calls import in_threads

#: Rows whose last block of 128 values is short.
HIDDEN = 272


def made(own: Problem, ranks: int, **options: Any) -> epforge.LowLatency:
    """The kernels for a problem, with room for more tokens than it has."""
    tokens = max(1, *(len(x) for x in own.x)) + 2
    shape = {"tokens": tokens, "hidden": own.hidden, "topk": own.topk, "experts": own.experts}
    of_group = {name: options.pop(name) for name in ("nodes", "patience") if name in options}
    return epforge.LowLatency(epforge.Group.on_host(ranks, **of_group), **shape, **options)


def drawn(ranks: int, tokens: list[int], **shape: Any) -> Problem:
    """A problem whose rows are no whole numbers, so that every rounding shows."""
    own = problem(ranks, tokens=tokens[:ranks], **{"hidden": HIDDEN, "experts": 2 * ranks + 1, **shape})
    random = np.random.default_rng(7)
    own.x = [random.normal(0, 3, x.shape).astype(ml_dtypes.bfloat16) for x in own.x]
    own.topk_weights = [random.random(weights.shape, np.float32) for weights in own.topk_weights]
    # A block of zeros has a scale, too.
    own.x[0][:1, :128] = 0
    return own


def arrivals(own: Problem, rank: int, expert: int) -> list[list[int]]:
    """The tokens of each rank that name a local expert."""
    number = own.begin(rank) + expert
    if number >= own.begin(rank + 1):
        return [[] for _ in range(own.ranks)]
    return [[t for t in range(len(ids)) if number in ids[t]] for ids in own.topk_idx]


def cast(rows: Any, payload: str) -> tuple[Any, Any]:
    """Rows as codes and a scale for each block."""
    blocks = -(-rows.shape[1] // 128)
    values = np.zeros((len(rows), blocks * 128), np.float32)
    values[:, : rows.shape[1]] = rows
    values = values.reshape(len(rows), blocks, 128)
    scale = np.maximum(np.abs(values).max(axis=2), np.float32(1e-10)) / np.float32(448)
    kept = scale
    if payload == "fp8-packed":
        bits = scale.view(np.uint32)
        kept = ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).astype(np.uint8)
        scale = (kept.astype(np.uint32) << 23).view(np.float32)
    codes = (values / scale[..., None]).astype(ml_dtypes.float8_e4m3fn).reshape(len(rows), blocks * 128)
    return codes[:, : rows.shape[1]], kept


class PacksAtLength(unittest.TestCase):
    """What is packed is what NumPy packs, bit for bit."""

    def hold(self, own: Problem, packed: epforge.Packed, rank: int, payload: str) -> None:
        local, most = packed.counts.shape[0], packed.src_info.shape[1] // own.ranks
        self.assertEqual(packed.x.shape, (local, own.ranks * most, own.hidden))
        for expert in range(local):
            sent = arrivals(own, rank, expert)
            counts = [len(tokens) for tokens in sent]
            self.assertEqual(packed.range_count[expert].tolist(), counts)
            self.assertEqual(packed.range_first[expert].tolist(), np.cumsum([0, *counts])[:-1].tolist())
            self.assertEqual(packed.counts[expert], sum(counts))
            for source, tokens in enumerate(sent):
                first = packed.range_first[expert, source]
                # Rows of one rank come in any order of their tokens.
                got = packed.src_info[expert, first : first + len(tokens)]
                self.assertEqual(sorted(got.tolist()), tokens)
                rows = own.x[source][got]
                where = slice(first, first + len(tokens))
                if payload == "bf16":
                    np.testing.assert_array_equal(packed.x[expert, where].view(np.uint16), rows.view(np.uint16))
                    self.assertIsNone(packed.scale)
                    continue
                codes, scale = cast(rows, payload)
                np.testing.assert_array_equal(packed.x[expert, where].view(np.uint8), codes.view(np.uint8))
                np.testing.assert_array_equal(packed.scale[expert, where], scale)

    def test_rows_of_every_payload_are_packed_by_expert(self) -> None:
        for ranks in (1, 2, 3, 4):
            own = drawn(ranks, [7, 0, 4, 9])
            for payload in ("bf16", "fp8", "fp8-packed"):
                with self.subTest(ranks=ranks, payload=payload):
                    low = made(own, ranks, payload=payload)
                    for _ in range(3):
                        sent = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(ranks)]
                        for rank, packed in enumerate(sent):
                            self.hold(own, packed, rank, payload)

    def test_statistics_count_on(self) -> None:
        own = drawn(2, [5, 6])
        low = made(own, 2)
        statistics = [np.full(low.local_experts, 10, np.int32) for _ in range(2)]
        for turn in (1, 2):
            args = {"later": turn == 2}
            sent = [low.dispatch(own.x[r], own.topk_idx[r], statistics=statistics[r], rank=r, **args) for r in range(2)]
            for packed in sent:
                packed.receive()
            for rank, packed in enumerate(sent):
                counts = packed.counts
                np.testing.assert_array_equal(statistics[rank], 10 + turn * counts)

    def test_waits_are_added_up(self) -> None:
        own = drawn(2, [5, 6])
        low = made(own, 2)
        waits = [[np.full(2, start, np.int64) for _ in range(2)] for start in (10, 20)]
        for turn in (1, 2):
            before = np.array(waits)
            args = {"later": turn == 2}
            sent = [low.dispatch(own.x[r], own.topk_idx[r], waits=waits[0][r], rank=r, **args) for r in range(2)]
            for packed in sent:
                packed.receive()
            rows = [packed.x for packed in sent]
            back = [low.combine(rows[r], sent[r], own.topk_weights[r], waits=waits[1][r], **args) for r in range(2)]
            for sums in back:
                sums.receive()
            for sums in back:
                self.assertIsNotNone(sums.x)
            self.assertTrue((np.array(waits) >= before).all(), f"{before}, then {waits}")
        # Some warp has looked for what had not come yet.
        self.assertTrue((np.array(waits) > 20).any(), f"{waits}")
        with self.assertRaisesRegex(epforge.Mismatch, r"`waits` has extents \[3\], and needs \[2\]"):
            low.dispatch(own.x[0], own.topk_idx[0], waits=np.zeros(3, np.int64), rank=0)
        with self.assertRaisesRegex(epforge.Mismatch, "`waits` has elements of int32, and has to have int64"):
            low.dispatch(own.x[0], own.topk_idx[0], waits=np.zeros(2, np.int32), rank=0)

    def test_a_placement_of_experts(self) -> None:
        own = drawn(2, [5, 6], experts=5)
        low = made(own, 2, placement=[0, 2, 5])
        sent = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        counts = np.concatenate([packed.counts[:have] for packed, have in zip(sent, (2, 3), strict=True)])
        ids = np.concatenate(own.topk_idx)
        np.testing.assert_array_equal(counts, [(ids == expert).sum() for expert in range(5)])


def made_by_experts(own: Problem, low: epforge.LowLatency, sent: list[epforge.Packed]) -> list[Any]:
    """What the experts of each rank make of its rows: they multiply them by a power of two."""
    every = []
    for rank, packed in enumerate(sent):
        experts = own.begin(rank) + np.arange(low.local_experts)
        rows = (packed.x.astype(np.float32) * np.exp2(experts % 3)[:, None, None]).astype(ml_dtypes.bfloat16)
        # What lies between the rows of experts must not matter.
        for expert, count in enumerate(packed.counts):
            rows[expert, count:] = np.nan
        every.append(rows)
    return every


class Combines(unittest.TestCase):
    """Rows come back to their tokens, weighted and added up in order of the top-k."""

    def expected(self, own: Problem, rank: int, factor: Any) -> Any:
        """The sums, where each expert multiplies rows by a power of two."""
        sums = np.zeros((len(own.x[rank]), own.hidden), np.float32)
        for choice in range(own.topk):
            ids = own.topk_idx[rank][:, choice]
            rows = own.x[rank].astype(np.float32) * factor(ids)[:, None]
            term = own.topk_weights[rank][:, choice, None] * rows
            sums = np.where((ids >= 0)[:, None], sums + term, sums)
        return sums.astype(ml_dtypes.bfloat16)

    def back(self, own: Problem, low: epforge.LowLatency, sent: list[epforge.Packed], **options: Any) -> list[Any]:
        rows = made_by_experts(own, low, sent)
        weights = own.topk_weights
        return [low.combine(rows[r], packed, weights[r], **options) for r, packed in enumerate(sent)]

    def test_sums_are_those_of_numpy(self) -> None:
        for ranks, nodes in ((1, 1), (2, 1), (3, 1), (4, 1), (4, 2)):
            own = drawn(ranks, [6, 3, 0, 5])
            low = made(own, ranks, nodes=nodes)
            for _ in range(3):
                sent = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(ranks)]
                for rank, sums in enumerate(self.back(own, low, sent)):
                    wanted = self.expected(own, rank, lambda ids: np.exp2(ids % 3).astype(np.float32))
                    np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))

    def test_ten_bits_a_value_stay_within_their_bound(self) -> None:
        for ranks in (1, 2, 3):
            own = drawn(ranks, [6, 3, 5])
            # Blocks that span few octaves, and all that there are.
            own.x[0][1] = (np.exp2(np.linspace(-60, 2, own.hidden)) * (-1) ** np.arange(own.hidden)).astype(
                own.x[0].dtype
            )
            own.x[0][2] = 3
            low = made(own, ranks)
            for turn in range(2):
                sent = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(ranks)]
                back = self.back(own, low, sent, wire="logfmt", later=turn == 1)
                for sums in back:
                    sums.receive()
                for rank, sums in enumerate(back):
                    exact, off = self.bounded(own, rank)
                    found = sums.x.astype(np.float64)
                    self.assertLess(np.max(np.abs(found - exact) / np.maximum(off, 1e-300)), 1, f"{ranks} ranks")
                    # A bound that everything is within says nothing.
                    self.assertGreater(np.count_nonzero(found != exact), found.size // 4)

    def bounded(self, own: Problem, rank: int) -> tuple[Any, Any]:
        """The sums in float64, and how far those of ten bits a value may be off."""
        x = own.x[rank].astype(np.float64)
        blocks = -(-own.hidden // 128)
        padded = np.zeros((len(x), blocks * 128))
        padded[:, : own.hidden] = np.abs(x)
        padded = padded.reshape(len(x), blocks, 128)
        peak = padded.max(axis=2)
        least = np.where(padded > 0, padded, np.inf).min(axis=2)
        octaves = np.where(peak > 0, np.minimum(32, np.log2(np.maximum(peak, 1e-300) / np.minimum(least, 1e300))), 0)
        # Half a step of 510, and what the logarithms are off; what lies lower comes up to the least code.
        part = np.exp2(np.clip(octaves, 0, 32) / 1020) - 1 + 1e-5
        each = padded * part[..., None] + (peak * 2.0**-32 * 1.001)[..., None]
        each = each.reshape(len(x), blocks * 128)[:, : own.hidden]
        exact, off = np.zeros_like(x), np.zeros_like(x)
        for choice in range(own.topk):
            ids = own.topk_idx[rank][:, choice]
            weight = np.where(ids >= 0, own.topk_weights[rank][:, choice] * np.exp2(self.expert_factor(own, ids)), 0)
            exact += weight[:, None] * x
            off += np.abs(weight)[:, None] * each
        # The sum is rounded to bfloat16, and to float32 on the way.
        return exact, off + (np.abs(exact) + off) * (2.0**-8 + 2.0**-20)

    def expert_factor(self, own: Problem, ids: Any) -> Any:
        """The power of two that `back` multiplies rows of an expert by."""
        return np.where(ids >= 0, ids, 0) % 3

    def test_out_is_filled_and_other_experts_may_be_named(self) -> None:
        own = drawn(2, [4, 5])
        low = made(own, 2)
        sent = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        rows = [packed.x for packed in sent]
        out = [np.zeros_like(x) for x in own.x]
        # A choice that is dropped on the way back is not added.
        fewer = [np.where(np.arange(own.topk) == 0, -1, ids) for ids in own.topk_idx]
        back = [
            low.combine(rows[r], sent[r], own.topk_weights[r], topk_idx=fewer[r], out=out[r], later=True)
            for r in range(2)
        ]
        for sums in back:
            sums.receive()
        own.topk_idx = fewer
        for rank, sums in enumerate(back):
            self.assertIs(sums.x, out[rank])
            wanted = self.expected(own, rank, lambda ids: np.ones(len(ids), np.float32))
            np.testing.assert_array_equal(out[rank].view(np.uint16), wanted.view(np.uint16))


class Phases(unittest.TestCase):
    """Between the phases of a call other work runs."""

    def setUp(self) -> None:
        self.own = drawn(2, [5, 6])

    def send(self, low: epforge.LowLatency, **options: Any) -> list[epforge.Packed]:
        return [low.dispatch(self.own.x[r], self.own.topk_idx[r], rank=r, later=True, **options) for r in range(2)]

    def hold(self, sent: list[epforge.Packed], payload: str = "bf16") -> None:
        for rank, packed in enumerate(sent):
            PacksAtLength().hold(self.own, packed, rank, payload)

    def test_words_tell_of_rows_and_hold_them_back(self) -> None:
        own = drawn(2, [70, 66], experts=4)
        low = made(own, 2)
        self.assertEqual((low.tiles, low.parts % 2), (-(-2 * low.tokens // 64), 0))
        rows = [np.zeros((low.local_experts, low.tiles), np.int32) for _ in range(2)]
        parts = [np.full(low.local_experts, 5, np.int32) for _ in range(2)]
        sent = []
        for r in range(2):
            words = {"arrived_rows": rows[r], "arrived_parts": parts[r]}
            sent.append(low.dispatch(own.x[r], own.topk_idx[r], rank=r, later=r == 1, **words))
        sent[1].receive()
        for rank, packed in enumerate(sent):
            counts = packed.counts[:, None]
            here = np.clip(counts - 64 * np.arange(low.tiles), 0, 64)
            np.testing.assert_array_equal(rows[rank], here)
            np.testing.assert_array_equal(parts[rank], np.full(low.local_experts, 5 + low.parts))
        expert = np.full(low.local_experts, 3, np.int32)
        tile = np.full((low.local_experts, low.tiles), 3, np.int32)
        for words in ({"expert_done": expert}, {"tile_done": tile}, {"expert_done": expert, "tile_done": tile}):
            back = [
                low.combine(packed.x, packed, own.topk_weights[r], done_at=3, **words) for r, packed in enumerate(sent)
            ]
            plain = [low.combine(packed.x, packed, own.topk_weights[r]) for r, packed in enumerate(sent)]
            for one, other in zip(back, plain, strict=True):
                np.testing.assert_array_equal(one.x.view(np.uint16), other.x.view(np.uint16))
        with self.assertRaisesRegex(epforge.Mismatch, r"`tile_done` has extents \[2\], and needs \[2, 3\]"):
            low.combine(sent[0].x, sent[0], own.topk_weights[0], tile_done=expert)

    def test_a_word_that_nobody_raises_is_named(self) -> None:
        own = drawn(2, [3, 3])
        low = made(own, 2)
        sent = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        expert = np.full(low.local_experts, 2, np.int32)
        with self.assertRaisesRegex(epforge.Timeout, "waits for another kernel to raise a word of ExpertDone"):
            back = [
                low.combine(packed.x, packed, own.topk_weights[r], done_at=3, expert_done=expert)
                for r, packed in enumerate(sent)
            ]
            for sums in back:
                self.assertIsNotNone(sums.x)

    def test_rows_are_refused_until_they_are_received(self) -> None:
        low = made(self.own, 2)
        sent = self.send(low)
        for look in (lambda: sent[0].x, lambda: sent[0].counts, lambda: low.combine(None, sent[0], None)):
            with self.assertRaisesRegex(epforge.Mismatch, "the rows are on their way: `receive` them first"):
                look()
        for packed in reversed(sent):
            packed.receive()
            packed.receive()
        self.hold(sent)

    def test_two_calls_are_between_their_phases_at_once(self) -> None:
        # Rank 0 is turns ahead, for which the emulator waits.
        low = made(self.own, 2, between=2, patience=0.5)
        first, second = self.send(low), self.send(low, payload="fp8")
        third = self.send(low, payload="fp8")
        # In another order than they were sent, and on one rank earlier than on the other.
        for packed in (second[0], third[0], first[0], first[1], third[1], second[1]):
            packed.receive()
        self.hold(first)
        self.hold(second, "fp8")
        self.hold(third, "fp8")

    def test_a_call_that_nobody_receives_does_not_stand_in_the_way(self) -> None:
        low = made(self.own, 2)
        for _ in range(3):
            with self.assertRaisesRegex(ValueError, "an expert"):
                self.failing(low)
            gc.collect()
        sent = self.send(low)
        for packed in sent:
            packed.receive()
        self.hold(sent)

    def failing(self, low: epforge.LowLatency) -> None:
        sent = self.send(low)
        # One rank came further than the other.
        sent[1].receive()
        message = "an expert"
        raise ValueError(message)

    def test_results_outlive_their_kernels(self) -> None:
        low = made(self.own, 2)
        sent = self.send(low)
        for packed in sent:
            packed.receive()
        del low
        gc.collect()
        self.hold(sent)

    def test_ranks_are_threads(self) -> None:
        own = drawn(3, [3, 0, 6])
        low = made(own, 3, between=2)

        def rank_by_rank(rank: int) -> None:
            packed = low.dispatch(own.x[rank], own.topk_idx[rank], rank=rank, later=rank == 1)
            packed.receive()
            PacksAtLength().hold(own, packed, rank, "bf16")
            sums = low.combine(packed.x, packed, own.topk_weights[rank], later=rank != 1)
            sums.receive()
            wanted = Combines().expected(own, rank, lambda ids: np.ones(len(ids), np.float32))
            np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))

        in_threads(3, rank_by_rank)


class LeftOutAtLength(unittest.TestCase):
    """Ranks that take no part."""

    def test_nobody_waits_for_a_rank_that_is_left_out(self) -> None:
        own = drawn(3, [4, 5, 3])
        low = made(own, 3)
        low.group.leave_out(1)
        self.assertEqual(low.group.left_out, {1})
        gone = range(own.begin(1), own.begin(2))
        kept = problem(3, tokens=[4, 0, 3], hidden=own.hidden, experts=own.experts)
        kept.x = [own.x[0], own.x[1][:0], own.x[2]]
        kept.topk_idx = [np.where(np.isin(ids, gone), -1, ids) for ids in own.topk_idx]
        kept.topk_idx[1] = kept.topk_idx[1][:0]
        kept.topk_weights = own.topk_weights
        sent = {r: low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in (0, 2)}
        for rank, packed in sent.items():
            PacksAtLength().hold(kept, packed, rank, "bf16")
        back = {r: low.combine(packed.x, packed, own.topk_weights[r]) for r, packed in sent.items()}
        for rank, sums in back.items():
            wanted = Combines().expected(kept, rank, lambda ids: np.ones(len(ids), np.float32))
            np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))
        with self.assertRaisesRegex(epforge.Mismatch, "rank 1 is left out, and makes no calls"):
            low.dispatch(own.x[1], own.topk_idx[1], rank=1)
        with self.assertRaisesRegex(epforge.Mismatch, "rank 3 is not one of the first 64 of 3 ranks"):
            low.group.leave_out(3)

    def test_a_rank_comes_back(self) -> None:
        own = drawn(3, [4, 5, 3])
        low = made(own, 3, between=2)
        for missed in (1, 2):
            low.group.leave_out(1)
            for _ in range(missed):
                sent = {r: low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in (0, 2)}
                back = {r: low.combine(packed.x, packed, own.topk_weights[r]) for r, packed in sent.items()}
            stale = low.dispatch(own.x[0], own.topk_idx[0], rank=0, later=True)
            self.assertEqual(len(back), 2)
            low.group.leave_out(1, is_out=False)
            with self.assertRaisesRegex(epforge.Mismatch, "low_latency_dispatch_send is next"):
                stale.receive()
            for _ in range(3):
                everyone = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(3)]
                for rank, packed in enumerate(everyone):
                    PacksAtLength().hold(own, packed, rank, "bf16")
                sums = [low.combine(packed.x, packed, own.topk_weights[r]) for r, packed in enumerate(everyone)]
                for rank, summed in enumerate(sums):
                    wanted = Combines().expected(own, rank, lambda ids: np.ones(len(ids), np.float32))
                    np.testing.assert_array_equal(summed.x.view(np.uint16), wanted.view(np.uint16))

    def test_calls_go_on_without_a_rank_that_does_not_answer(self) -> None:
        own = drawn(3, [4, 5, 3])
        group = epforge.Group.on_host(3, patience=0.1, leaves_out_absent=True)
        low = epforge.LowLatency(group, tokens=8, hidden=own.hidden, topk=own.topk, experts=own.experts)
        for _ in range(2):
            sent = {r: low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in (0, 2)}
            self.assertEqual([group.absent(r) for r in range(3)], [{1}, set(), {1}])
            gone = range(own.begin(1), own.begin(2))
            for rank, packed in sent.items():
                # Nothing of the absent rank, and all of the others.
                begin = own.begin(rank)
                for local, count in enumerate(np.asarray(packed.counts)):
                    wanted = sum(int((own.topk_idx[r] == begin + local).sum()) for r in (0, 2))
                    self.assertEqual(int(count), wanted if begin + local < own.begin(rank + 1) else 0)
            back = {r: low.combine(packed.x, packed, own.topk_weights[r]) for r, packed in sent.items()}
            for rank, sums in back.items():
                kept = np.isin(own.topk_idx[rank], gone, invert=True) & (own.topk_idx[rank] >= 0)
                self.assertTrue((np.asarray(sums.x, np.float32)[~kept.any(1)] == 0).all())
        group.leave_out(1, is_out=False)
        everyone = [low.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(3)]
        for rank, packed in enumerate(everyone):
            PacksAtLength().hold(own, packed, rank, "bf16")
        self.assertEqual([group.absent(r) for r in range(3)], [set()] * 3)

    def test_a_buffer_needs_every_rank(self) -> None:
        own = drawn(2, [4, 4])
        group = epforge.Group.on_host(2)
        buffer = epforge.Buffer(group, tokens=4, hidden=own.hidden, topk=own.topk, experts=own.experts, weights=False)
        group.leave_out(1)
        with self.assertRaisesRegex(epforge.Mismatch, "waits for every rank, and rank 1 is left out"):
            buffer.dispatch(own.x[0], own.topk_idx[0], rank=0)
        group.leave_out(1, is_out=False)
        self.assertEqual(group.left_out, set())
        sent = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r)[0] for r in range(2)]
        for rank, received in enumerate(sent):
            np.testing.assert_array_equal(received.x.view(np.uint16), own.received(rank)[0].view(np.uint16))


class Refusals(unittest.TestCase):
    """Bad input is one sentence with names and numbers, and the next call is as if nothing had been."""

    def setUp(self) -> None:
        self.own = drawn(2, [4, 4], experts=4)
        self.low = made(self.own, 2)

    def refused(self, wanted: str, call: Any) -> None:
        with self.assertRaises(epforge.Error) as caught:
            call()
        self.assertEqual(str(caught.exception), wanted)

    def test_calls_that_do_not_fit(self) -> None:
        low, (x, ids, weights) = self.low, (self.own.x[0], self.own.topk_idx[0], self.own.topk_weights[0])
        for wanted, arrays, options in (
            ("`x` has elements of float32, and has to have bfloat16", (x.astype(np.float32), ids), {}),
            ("`x` is [4, 144], and has to have rows of 272", (x[:, :144], ids), {}),
            ("`topk_idx` has elements of int32, and has to have int64", (x, ids.astype(np.int32)), {}),
            ("`topk_idx` has extents [3, 3], and needs [4, 3]", (x, ids[:3]), {}),
            ("payload `fp4` is none of bf16, fp8, fp8-packed", (x, ids), {"payload": "fp4"}),
            ("`statistics` has extents [3], and needs [2]", (x, ids), {"statistics": np.zeros(3, np.int32)}),
            ("7 tokens, and the maximum is 6", (np.zeros((7, HIDDEN), x.dtype), np.zeros((7, 3), np.int64)), {}),
        ):
            self.refused(wanted, lambda arrays=arrays, options=options: low.dispatch(*arrays, rank=0, **options))
        sent = [low.dispatch(self.own.x[r], self.own.topk_idx[r], rank=r) for r in range(2)]
        rows = sent[0].x
        for wanted, arguments, options in (
            ("`rows` has extents [2, 12, 256], and needs [2, 12, 272]", (rows[..., :256], sent[0], weights), {}),
            ("`rows` has extents [12, 272], and needs [2, 12, 272]", (rows[0], sent[0], weights), {}),
            ("`topk_weights` has extents [3, 3], and needs [4, 3]", (rows, sent[0], weights[:3]), {}),
            ("`out` has extents [3, 272], and needs [4, 272]", (rows, sent[0], weights), {"out": x[:3]}),
        ):
            self.refused(wanted, lambda given=arguments, options=options: low.combine(*given, **options))
        other = made(self.own, 2)
        self.refused("the packed rows belong to another `LowLatency`", lambda: other.combine(rows, sent[0], weights))
        for rank, packed in enumerate(sent):
            PacksAtLength().hold(self.own, packed, rank, "bf16")

    def test_shapes_that_do_not_fit(self) -> None:
        group, shape = epforge.Group.on_host(2), {"tokens": 4, "hidden": 128, "topk": 2, "experts": 4}
        for options, wanted in (
            ({"between": 0}, "`between` is 0, and it takes 1 to 64"),
            ({"payload": "fp4"}, "payload `fp4` is none of bf16, fp8, fp8-packed"),
            (
                {"placement": [0, 3, 4]},
                "a placement of 4 experts on 2 ranks needs 3 ascending numbers from 0 to 4, 2 apart at most",
            ),
        ):
            self.refused(wanted, lambda options=options: epforge.LowLatency(group, **{**shape, **options}))
        with self.assertRaisesRegex(epforge.Plan, "max_tokens.*8193.*1..=8192"):
            epforge.LowLatency(group, **{**shape, "tokens": 8193})
        with self.assertRaisesRegex(epforge.Plan, "hidden.*100"):
            epforge.LowLatency(group, **{**shape, "hidden": 100})

    def test_arrays_with_gaps_are_copied_or_named(self) -> None:
        own = self.own
        x = [np.repeat(rows, 2, axis=0)[::2] for rows in own.x]
        ids = [np.asfortranarray(ids) for ids in own.topk_idx]
        sent = [self.low.dispatch(x[r], ids[r], rank=r) for r in range(2)]
        for rank, packed in enumerate(sent):
            PacksAtLength().hold(own, packed, rank, "bf16")


if __name__ == "__main__":
    unittest.main()
