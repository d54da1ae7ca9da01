"""Rows that travel once for each rank in the emulator, every access checked, against what NumPy makes of the same."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import unittest
import unittest.mock
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import epforge
import numpy_torch
import test_low_latency as others
import test_nodes
from epforge import deep_ep
from problems import Problem, problem
from processes import Gather, fails_with, run_ranks
from test_low_latency import drawn, made, made_by_experts

PAYLOADS = ("bf16", "fp8", "fp8-packed")

#: Prints the way of a process that names none.
WAY = "from epforge.deep_ep.low_latency import LowLatencyCalls as calls; print(calls.low_latency_way)"


def dispatched(own: Problem, low: epforge.LowLatency, **options: Any) -> list[epforge.Packed]:
    """A dispatch on all ranks, with the weights if they come ahead."""
    weights = own.topk_weights if low.weights_ahead else [None] * own.ranks
    return [low.dispatch(own.x[r], own.topk_idx[r], weights[r], rank=r, **options) for r in range(own.ranks)]


def few_tokens(rank: int, ranks: int, gather: Gather) -> None:
    own, most = drawn(ranks, [5, 0, 3, 6], hidden=256, experts=9), 8
    numpy_torch.import_as_torch()
    buffer = deep_ep.Buffer(numpy_torch.ProcessGroup(rank, ranks, gather), low_latency_mode=True)
    buffer.low_latency_way = "per-rank"
    ids, weights = (numpy_torch.as_tensor(it[rank]) for it in (own.topk_idx, own.topk_weights))
    for use_fp8, hooked in ((True, False), (False, True)):
        how = {"use_fp8": use_fp8, "async_finish": not hooked, "return_recv_hook": hooked}
        came, handle = test_nodes.packs(own, rank, buffer, most, **how)
    combined, _, hook = buffer.low_latency_combine(came, ids, weights, handle, return_recv_hook=True)
    hook()
    test_nodes.same_bits(combined, PerRankAtLength().expected(own, rank, octaves=1))
    # Experts that are not the dispatch's own tensor: equal ones, in another order, fewer; on a rank without tokens too.
    turned = [it[:, ::-1].clone() for it in (ids, weights)]
    for others_ids, factors in ((ids.clone(), weights), turned):
        combined, *_ = buffer.low_latency_combine(came, others_ids, factors, handle)
        test_nodes.same_bits(combined, PerRankAtLength().expected(own, rank, octaves=1))
    fewer, own.topk_idx = ids.clone(), [it.copy() for it in own.topk_idx]
    for it in (fewer, own.topk_idx[rank]):
        it[:, 1] = -1
    combined, *_ = buffer.low_latency_combine(came, fewer, weights, handle)
    test_nodes.same_bits(combined, PerRankAtLength().expected(own, rank, octaves=1))
    assert handle.low._combiners == {}, "the sums came the slower way"
    wrong = partial(buffer.low_latency_combine, came, ids[:, :2].clone(), weights, handle)
    fails_with(f"`topk_idx` has extents [{len(ids)}, 2], and needs [{len(ids)}, 3]", wrong)


def chosen(rank: int, ranks: int, gather: Gather) -> None:
    own = drawn(ranks, [5, 3], hidden=256, experts=8)
    numpy_torch.import_as_torch()
    group = numpy_torch.ProcessGroup(rank, ranks, gather)
    x, ids = (numpy_torch.as_tensor(it[rank]) for it in (own.x, own.topk_idx))
    waits = numpy_torch.zeros((ranks,), dtype=numpy_torch.int64)
    for options, told, ways in (
        ({}, None, ["per-rank"]),
        ({}, waits, ["per-expert"]),
        ({"enable_shrink": True}, None, ["per-expert"]),
    ):
        buffer = deep_ep.Buffer(group, low_latency_mode=True, **options)
        buffer.low_latency_dispatch(x, ids, 8, 8, dispatch_wait_recv_cost_stats=told)
        assert buffer.engines is not None
        made = [way for *_, way in buffer.engines._low]
        assert made == ways, (options, made)


def beside(rank: int, ranks: int, gather: Gather) -> None:
    """What a combine on a stream of its own reads is kept until that stream is done with it."""
    own = drawn(ranks, [5, 3], hidden=256, experts=8)
    numpy_torch.import_as_torch()
    for way in ("per-rank", "per-expert"):
        buffer = deep_ep.Buffer(numpy_torch.ProcessGroup(rank, ranks, gather), low_latency_mode=True)
        buffer.low_latency_way = way
        x, ids, weights = (numpy_torch.as_tensor(it[rank]) for it in (own.x, own.topk_idx, own.topk_weights))
        (came, _), _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 8, 8)
        engines, rows = buffer._engines(), came.to(numpy_torch.bfloat16)
        with unittest.mock.patch.object(engines, "beside", wraps=engines.beside) as seen:
            buffer.low_latency_combine(rows, ids, weights, handle, async_finish=True)
        kept = [id(it) for it in seen.call_args.args]
        for name, it in (("rows", rows), ("weights", weights), ("experts", ids), ("tables", handle.packed._words)):
            assert id(it) in kept, f"{name}, {way}"


class Facade(unittest.TestCase):
    """The first API of deep_ep with rows that travel once for each rank."""

    def test_memory_of_a_combine_stays_while_it_runs(self) -> None:
        self.assertEqual(run_ranks(2, beside), [])

    def test_the_way_is_one_that_there_is(self) -> None:
        asked = {"EPFORGE_LOW_LATENCY_WAY": ""}
        said = subprocess.run(
            [sys.executable, "-c", WAY], capture_output=True, text=True, check=False, env={**os.environ, **asked}
        )
        self.assertEqual(said.stdout, "auto\n", said.stderr)
        calls = deep_ep.low_latency.LowLatencyCalls()
        calls.low_latency_way = "Auto"
        with self.assertRaises(epforge.Mismatch) as caught:
            calls._way_of_rows(unittest.mock.Mock(), tells_waits=False)
        self.assertEqual(
            str(caught.exception), "`low_latency_way` is `Auto`, which is none of auto, per-expert, per-rank"
        )

    def test_few_tokens(self) -> None:
        self.assertEqual(run_ranks(3, few_tokens), [])

    def test_the_quicker_way_is_taken_where_it_does_what_is_asked(self) -> None:
        self.assertEqual(run_ranks(2, chosen), [])


class PerRankAtLength(unittest.TestCase):
    """A row goes to each rank of its experts; a sum comes back from each, or a row for each expert."""

    def expected(self, own: Problem, rank: int, octaves: int = 3, weights_ahead: bool = False) -> Any:
        """The sums, where experts multiply rows by one of so many powers of two: of what each rank adds up, if it
        has the weights."""
        if not weights_ahead:
            return others.Combines().expected(own, rank, lambda ids: np.exp2(ids % octaves).astype(np.float32))
        x, ids = own.x[rank].astype(np.float32), own.topk_idx[rank]
        sums = np.zeros(x.shape, np.float32)
        for peer in range(own.ranks):
            part = np.zeros(x.shape, np.float32)
            is_here = (ids >= own.begin(peer)) & (ids < own.begin(peer + 1))
            for choice in range(own.topk):
                rows = x * np.exp2(ids[:, choice] % octaves).astype(np.float32)[:, None]
                term = own.topk_weights[rank][:, choice, None] * rows
                part = np.where(is_here[:, choice, None], part + term, part)
            sums += part.astype(ml_dtypes.bfloat16).astype(np.float32)
        return sums.astype(ml_dtypes.bfloat16)

    def back(self, own: Problem, low: epforge.LowLatency, sent: list[epforge.Packed]) -> list[Any]:
        """A combine of what the experts of each rank make."""
        rows = made_by_experts(own, low, sent)
        weights = [None] * own.ranks if low.weights_ahead else own.topk_weights
        return [low.combine(rows[r], packed, weights[r]) for r, packed in enumerate(sent)]

    def test_rows_of_every_payload_are_packed_by_expert(self) -> None:
        for ranks in (1, 2, 3, 4):
            own = drawn(ranks, [7, 0, 4, 9])
            for payload in PAYLOADS:
                with self.subTest(ranks=ranks, payload=payload):
                    low = made(own, ranks, payload=payload, way="per-rank")
                    for _ in range(2):
                        for rank, packed in enumerate(dispatched(own, low)):
                            others.PacksAtLength().hold(own, packed, rank, payload)

    def test_sums_are_those_of_numpy(self) -> None:
        for ranks in (1, 2, 3, 4):
            own = drawn(ranks, [6, 3, 0, 5])
            for weights_ahead in (False, True):
                with self.subTest(ranks=ranks, weights_ahead=weights_ahead):
                    low = made(own, ranks, way="per-rank", weights_ahead=weights_ahead)
                    # The second dispatch comes before the combine of the first.
                    first, second = dispatched(own, low), dispatched(own, low)
                    for sent in (first, second):
                        for rank, sums in enumerate(self.back(own, low, sent)):
                            wanted = self.expected(own, rank, weights_ahead=weights_ahead)
                            np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))

    def test_a_combine_that_asks_for_more_sends_rows_per_expert(self) -> None:
        own = drawn(3, [6, 3, 5])
        low = made(own, 3, way="per-rank")
        sent = dispatched(own, low)
        rows = made_by_experts(own, low, sent)
        fewer = [np.where(np.arange(own.topk) == 0, -1, ids) for ids in own.topk_idx]
        words = np.ones(low.local_experts, np.int32)
        waits = [np.zeros(3, np.int64) for _ in range(3)]
        for name, options in (
            ("waits", [{"waits": its} for its in waits]),
            ("words", [{"expert_done": words}] * 3),
            ("logfmt", [{"wire": "logfmt"}] * 3),
            ("later", [{"waits": its, "later": True} for its in waits]),
            ("other experts", [{"topk_idx": its} for its in fewer]),
        ):
            back = [low.combine(rows[r], sent[r], own.topk_weights[r], **options[r]) for r in range(3)]
            for rank, sums in enumerate(back):
                with self.subTest(name=name, rank=rank):
                    sums.receive()
                    known = own
                    if name == "other experts":
                        known = copy.copy(own)
                        known.topk_idx = fewer
                    wanted = self.expected(known, rank)
                    if name == "logfmt":
                        off = np.abs(sums.x.astype(np.float64) - wanted.astype(np.float64))
                        self.assertLess(off.max(), 0.03 * np.abs(wanted.astype(np.float64)).max())
                        continue
                    np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))
        self.assertTrue(all((its > 0).any() for its in waits))
        low.group.leave_out(1)
        known = copy.copy(own)
        known.topk_idx = [np.where((ids >= own.begin(1)) & (ids < own.begin(2)), -1, ids) for ids in own.topk_idx]
        back = [low.combine(rows[r], sent[r], own.topk_weights[r]) for r in (0, 2)]
        for rank, sums in zip((0, 2), back, strict=True):
            np.testing.assert_array_equal(sums.x.view(np.uint16), self.expected(known, rank).view(np.uint16))

    def test_the_payload_of_a_call_may_differ(self) -> None:
        own = drawn(2, [5, 6])
        low = made(own, 2, way="per-rank")
        before = low.memory
        for payload in PAYLOADS:
            for rank, packed in enumerate(dispatched(own, low, payload=payload)):
                others.PacksAtLength().hold(own, packed, rank, payload)
        self.assertGreater(low.memory, before)

    def test_statistics_count_on(self) -> None:
        own = drawn(2, [5, 6])
        low = made(own, 2, way="per-rank")
        statistics = [np.full(low.local_experts, 10, np.int32) for _ in range(2)]
        for turn in (1, 2):
            sent = [low.dispatch(own.x[r], own.topk_idx[r], statistics=statistics[r], rank=r) for r in range(2)]
            for rank, packed in enumerate(sent):
                np.testing.assert_array_equal(statistics[rank], 10 + turn * packed.counts)

    def test_a_placement_of_experts(self) -> None:
        own = drawn(2, [5, 6], experts=5)
        low = made(own, 2, placement=[0, 2, 5], way="per-rank")
        counts = [packed.counts[:have] for packed, have in zip(dispatched(own, low), (2, 3), strict=True)]
        ids = np.concatenate(own.topk_idx)
        np.testing.assert_array_equal(np.concatenate(counts), [(ids == expert).sum() for expert in range(5)])

    def test_calls_are_one_phase(self) -> None:
        own = drawn(2, [5, 6])
        low = made(own, 2, way="per-rank")
        sent = dispatched(own, low, later=True)
        self.assertTrue(all(packed.is_here for packed in sent))
        for rank, packed in enumerate(sent):
            packed.receive()
            others.PacksAtLength().hold(own, packed, rank, "bf16")

    def test_the_ways_are_as_far_from_the_exact_sums(self) -> None:
        own = drawn(3, [6, 3, 5])
        worst = {}

        def factor(ids: Any) -> Any:
            return np.exp2(ids % 3).astype(np.float32)

        for way in ({"way": "per-expert"}, {"way": "per-rank"}, {"way": "per-rank", "weights_ahead": True}):
            low = made(own, 3, **way)
            back = self.back(own, low, dispatched(own, low))
            exact = [others.Combines().expected(own, r, factor) for r in range(3)]
            off = [np.abs(sums.x.astype(np.float64) - exact[r].astype(np.float64)) for r, sums in enumerate(back)]
            scale = max(np.abs(rows.astype(np.float64)).max() for rows in exact)
            worst[len(way), way["way"]] = max(each.max() for each in off) / scale
        self.assertEqual((worst[1, "per-expert"], worst[1, "per-rank"]), (0, 0))
        # One rounding more for each rank.
        self.assertLess(worst[2, "per-rank"], 3 * 2.0**-8)
        self.assertGreater(worst[2, "per-rank"], 0)

    def test_as_many_tokens_as_a_chunk_of_a_prompt(self) -> None:
        own = problem(2, tokens=[1100, 3], hidden=16, topk=1, experts=2)
        for way in ("per-expert", "per-rank"):
            with self.subTest(way=way):
                low = epforge.LowLatency(epforge.Group.on_host(2), tokens=2048, hidden=16, topk=1, experts=2, way=way)
                sent = dispatched(own, low)
                rows = [packed.x for packed in sent]
                back = [low.combine(rows[r], sent[r], own.topk_weights[r]) for r in range(2)]
                for ids, x, weights, sums in zip(own.topk_idx, own.x, own.topk_weights, back, strict=True):
                    factor = np.where(ids >= 0, weights, 0)
                    np.testing.assert_array_equal(sums.x.astype(np.float32), x.astype(np.float32) * factor)


class Refused(unittest.TestCase):
    """What calls per rank do not do, they say."""

    def refused(self, wanted: str, call: Any) -> None:
        with self.assertRaises(epforge.Mismatch) as caught:
            call()
        self.assertEqual(str(caught.exception), wanted)

    def test_calls_that_are_for_the_other_way(self) -> None:
        own = drawn(2, [4, 5])
        low = made(own, 2, way="per-rank")
        x, ids, weights = own.x[0], own.topk_idx[0], own.topk_weights[0]
        sent = dispatched(own, low)
        rows = [packed.x for packed in sent]
        waits = np.zeros(2, np.int64)
        words = np.zeros(low.local_experts, np.int32)
        for wanted, call in (
            (
                "dispatches per rank do not report rows while they run: words are for way `per-expert`",
                lambda: low.dispatch(x, ids, arrived_parts=words, rank=0),
            ),
            (
                "dispatches per rank do not report how long they waited for ranks: `waits` are for way `per-expert`",
                lambda: low.dispatch(x, ids, waits=waits, rank=0),
            ),
            ("`topk_weights` do not come with the dispatch", lambda: low.dispatch(x, ids, weights, rank=0)),
            ("`topk_weights` have to come with the combine", lambda: low.combine(rows[0], sent[0])),
            (
                "`rows` has extents [3, 14, 256], and needs [3, 14, 272]",
                lambda: low.combine(rows[0][..., :256], sent[0], weights),
            ),
        ):
            self.refused(wanted, call)
        # Nothing of these was launched, so that the others still go together.
        for rank, sums in enumerate(PerRankAtLength().back(own, low, sent)):
            wanted = PerRankAtLength().expected(own, rank)
            np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))

    def test_weights_that_come_ahead(self) -> None:
        own = drawn(2, [4, 5])
        low = made(own, 2, way="per-rank", weights_ahead=True)
        self.refused(
            "`topk_weights` have to come with the dispatch", lambda: low.dispatch(own.x[0], own.topk_idx[0], rank=0)
        )
        sent = dispatched(own, low)
        rows = sent[0].x
        self.refused(
            "`topk_weights` do not come with the combine", lambda: low.combine(rows, sent[0], own.topk_weights[0])
        )
        waits, words = np.zeros(2, np.int64), np.zeros(low.local_experts, np.int32)
        for name, options in (
            ("with `waits`", {"waits": waits}),
            ("with `topk_idx`", {"topk_idx": own.topk_idx[0].copy()}),
            ("with `expert_done`", {"expert_done": words}),
            ("with `wire=logfmt`", {"wire": "logfmt"}),
            ("without rank 1, which is left out,", {}),
        ):
            low.group.leave_out(1, is_out=options == {})
            self.refused(
                f"a combine {name} brings rows back per expert, and `weights_ahead` is for sums of ranks",
                lambda options=options: low.combine(rows, sent[0], **options),
            )

    def test_the_experts_of_the_dispatch_are_no_others(self) -> None:
        own = drawn(2, [4, 5])
        for weights_ahead, nodes in ((False, 1), (True, 1), (False, 2), (True, 2)):
            low = made(own, 2, nodes=nodes, way="per-rank", weights_ahead=weights_ahead)
            sent = dispatched(own, low)
            rows = made_by_experts(own, low, sent)
            weights = [None, None] if weights_ahead else own.topk_weights
            back = [low.combine(rows[r], sent[r], weights[r], topk_idx=own.topk_idx[r]) for r in range(2)]
            for rank, sums in enumerate(back):
                wanted = PerRankAtLength().expected(own, rank, weights_ahead=weights_ahead or nodes > 1)
                np.testing.assert_array_equal(sums.x.view(np.uint16), wanted.view(np.uint16))
            self.assertEqual(low._combiners, {})

    def test_ranks_that_are_left_out(self) -> None:
        own = drawn(3, [4, 5, 3])
        low = made(own, 3, way="per-rank")
        low.group.leave_out(1)
        with self.assertRaisesRegex(epforge.Mismatch, "waits for every rank, and rank 1 is left out"):
            low.dispatch(own.x[0], own.topk_idx[0], rank=0)

    def test_groups_and_ways_that_do_not_fit(self) -> None:
        own = drawn(4, [4, 5, 3, 2])
        self.refused("way `per-token` is none of per-expert, per-rank", lambda: made(own, 4, way="per-token"))
        self.refused(
            "`weights_ahead` is for way `per-rank`: rows that travel per-expert need no weights",
            lambda: made(own, 4, weights_ahead=True),
        )
