"""The calls for people in the emulator, every access checked: ranks in a loop, as threads and as processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import unittest
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import epforge
from problems import Problem, problem
from processes import Gather, fails_with, run_ranks


def made(group: epforge.Group, own: Problem, **options: Any) -> epforge.Buffer:
    """A buffer for a problem."""
    tokens = max(1, *(len(x) for x in own.x))
    return epforge.Buffer(group, tokens=tokens, hidden=own.hidden, topk=own.topk, experts=own.experts, **options)


def rank_by_rank(own: Problem, buffer: epforge.Buffer, rank: int) -> None:
    """A whole layer as one rank of several sees it, and its rows once more."""
    received, handle = buffer.dispatch(own.x[rank], own.topk_idx[rank], own.topk_weights[rank], rank=rank)
    rows, ids, weights = own.received(rank)
    np.testing.assert_array_equal(received.x, rows)
    np.testing.assert_array_equal(received.topk_idx, ids)
    np.testing.assert_array_equal(received.topk_weights, weights)
    sums = buffer.combine(received.x, handle, received.topk_weights)
    again = buffer.cached_dispatch(own.x[rank], handle)
    np.testing.assert_array_equal(again.x, rows)
    in_place = buffer.combine(again, handle)
    wanted = own.x[rank].astype(np.float32) * own.times(rank)
    np.testing.assert_array_equal(sums.x.astype(np.float32), wanted)
    np.testing.assert_array_equal(sums.weights, np.where(own.topk_idx[rank] >= 0, own.topk_weights[rank], 0))
    np.testing.assert_array_equal(in_place.x.astype(np.float32), wanted)
    assert in_place.weights is None


class Loop(unittest.TestCase):
    """One thread that makes the calls of all ranks in turn."""

    def test_rows_come_and_go_back(self) -> None:
        for ranks, nodes in ((1, 1), (2, 1), (4, 1), (4, 2)):
            own = problem(ranks, tokens=[7, 0, 4, 9][:ranks], experts=10, seed=ranks)
            buffer = made(epforge.Group.on_host(ranks, nodes=nodes), own)
            sent = [buffer.dispatch(own.x[r], own.topk_idx[r], own.topk_weights[r], rank=r) for r in range(ranks)]
            for rank, (received, handle) in enumerate(sent):
                rows, ids, weights = own.received(rank)
                self.assertEqual(
                    handle.counts(), (len(rows), [int((ids == e).sum()) for e in range(buffer.local_experts)])
                )
                np.testing.assert_array_equal(received.x, rows)
                np.testing.assert_array_equal(received.topk_idx, ids)
                np.testing.assert_array_equal(received.topk_weights, weights)
                # Beyond the rows that have come there is no expert.
                self.assertTrue((received.whole()[2][len(rows) :] == -1).all())
                self.assertEqual(handle.rank_prefix[-1][rank], len(rows))
            back = [buffer.combine(received.x, handle) for received, handle in sent]
            for rank, sums in enumerate(back):
                wanted = own.x[rank].astype(np.float32) * own.times(rank)
                np.testing.assert_array_equal(sums.x.astype(np.float32), wanted)

    def test_rows_of_fp8_travel_with_their_scales(self) -> None:
        for payload, dtype in (("fp8", np.float32), ("fp8-packed", np.uint8)):
            own = problem(2, tokens=[5, 6], hidden=256)
            buffer = made(epforge.Group.on_host(2), own, payload=payload, weights=False)
            random = np.random.default_rng(1)
            x = [rows.astype(ml_dtypes.float8_e4m3fn) for rows in own.x]
            scales = [random.integers(1, 100, (len(rows), 2)).astype(dtype) for rows in x]
            # Scales may lie by columns.
            scales[1] = np.asfortranarray(scales[1])
            sent = [buffer.dispatch(x[r], own.topk_idx[r], scale=scales[r], rank=r) for r in range(2)]
            for rank, (received, _) in enumerate(sent):
                arrivals = own.arrivals(rank)
                rows = np.array([x[source][token].view(np.uint8) for source, token in arrivals])
                np.testing.assert_array_equal(received.x.view(np.uint8), rows)
                np.testing.assert_array_equal(received.scale, [scales[source][token] for source, token in arrivals])
                self.assertIsNone(received.topk_weights)

    def test_rows_beyond_a_small_output_are_refused_on_every_rank(self) -> None:
        own = problem(2, tokens=[6, 6])
        most = max(len(own.arrivals(rank)) for rank in range(2))
        group = epforge.Group.on_host(2)
        for capacity in (most - 1, most):
            buffer = made(group, own, capacity=capacity, weights=False)
            found: dict[int, Any] = {}

            def call(rank: int, buffer: epforge.Buffer = buffer, found: dict[int, Any] = found) -> None:
                try:
                    found[rank] = buffer.dispatch(own.x[rank], own.topk_idx[rank], rank=rank)
                except epforge.OutputTooSmall as refused:
                    found[rank] = refused

            in_threads(2, call)
            if capacity == most:
                for rank, (received, _) in found.items():
                    np.testing.assert_array_equal(received.x, own.received(rank)[0])
                continue
            for error in found.values():
                self.assertEqual((error.need, error.have), (most, capacity))
                self.assertEqual(
                    str(error), f"rank {error.rank} would receive {most} rows, and its output holds {capacity}"
                )

    def test_biases_are_added_and_out_is_filled(self) -> None:
        own = problem(2, tokens=[3, 4])
        buffer = made(epforge.Group.on_host(2), own, biases=2, weights=False)
        sent = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
        out = [np.zeros_like(x) for x in own.x]
        bias = [np.full_like(x, 3) for x in own.x]
        back = [buffer.combine(*sent[r], biases=(bias[r], bias[r]), out=out[r]) for r in range(2)]
        for rank, sums in enumerate(back):
            wanted = own.x[rank].astype(np.float32) * own.times(rank) + 6
            self.assertIs(sums.x, out[rank])
            np.testing.assert_array_equal(out[rank].astype(np.float32), wanted)

    def test_results_of_before_may_go_between_the_calls_of_two_ranks(self) -> None:
        own = problem(2, tokens=[3, 4])
        buffer = made(epforge.Group.on_host(2, patience=0.1), own, weights=False)
        back: list[Any] = [None, None]
        for _ in range(3):
            sent = [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(2)]
            rows = [received.x for received, _ in sent]
            for rank in range(2):
                back[rank] = buffer.combine(rows[rank], sent[rank][1])
            for rank, sums in enumerate(back):
                wanted = own.x[rank].astype(np.float32) * own.times(rank)
                np.testing.assert_array_equal(sums.x.astype(np.float32), wanted)

    def test_a_cached_dispatch_has_no_experts_of_others(self) -> None:
        own, other = problem(2, tokens=[3, 4]), problem(2, tokens=[4, 2], seed=7)
        buffer = made(epforge.Group.on_host(2), own, live=1, handles=2)
        handles = []
        for each in (own, other):
            sent = [buffer.dispatch(each.x[r], each.topk_idx[r], each.topk_weights[r], rank=r) for r in range(2)]
            handles.append([handle for _, handle in sent])
            self.assertIsNotNone(sent[0][0].topk_idx)
            del sent
        for rank, received in enumerate([buffer.cached_dispatch(own.x[r], handles[0][r]) for r in range(2)]):
            wanted = own.received(rank)[0]
            np.testing.assert_array_equal(received.x, wanted)
            for rows, *more in (received.copy(), received.whole()):
                np.testing.assert_array_equal(rows[: len(wanted)], wanted)
                self.assertEqual(more, [None] * 3)
            for look in (lambda it=received: it.topk_idx, lambda it=received: it.topk_weights):
                with self.assertRaisesRegex(epforge.Mismatch, "are in the output of the first dispatch"):
                    look()


def in_threads(ranks: int, call: Callable[[int], None]) -> None:
    """Runs a call of each rank in a thread of its own; the first error is the caller's."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            call(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Threads(unittest.TestCase):
    """A thread for each rank."""

    def test_rows_come_and_go_back(self) -> None:
        for ranks in range(1, 5):
            own = problem(ranks, tokens=[5, 0, 6, 1][:ranks], seed=ranks)
            buffer = made(epforge.Group.on_host(ranks), own)
            in_threads(ranks, lambda rank, own=own, buffer=buffer: rank_by_rank(own, buffer, rank))

    def test_a_rank_that_does_not_come_is_named(self) -> None:
        own = problem(2, tokens=[3, 3])
        group = epforge.Group.on_host(2, patience=0.1)
        buffer = made(group, own, weights=False)
        received, _ = buffer.dispatch(own.x[0], own.topk_idx[0], rank=0)
        with self.assertRaisesRegex(epforge.Timeout, "rank 0.*rank 1"):
            received.rows  # noqa: B018 looking is the call
        with self.assertRaises(epforge.Timeout):
            group.sync()


def process(rank: int, ranks: int, gather: Gather) -> None:
    """A rank that is a process."""
    own = problem(ranks, tokens=[5, 0, 6, 1][:ranks], seed=ranks)
    rank_by_rank(own, made(epforge.Group.from_gather(rank, gather=gather), own), rank)


def one_refused(rank: int, ranks: int, gather: Gather) -> None:
    """All ranks hear of a call that one of them is refused, and go on."""
    own = problem(ranks, tokens=[5, 4], seed=ranks)
    buffer = made(epforge.Group.from_gather(rank, gather=gather), own)
    x, ids, weights = own.x[rank], own.topk_idx[rank], own.topk_weights[rank]

    def refused(wanted: str, call: Callable[[], Any]) -> None:
        fails_with(f"rank 1 is refused its call: {wanted}" if rank == 0 else wanted, call, epforge.Mismatch)

    wrong = x.astype(np.float16) if rank == 1 else x
    refused("`x` has elements of float16, and has to have bfloat16", lambda: buffer.dispatch(wrong, ids, weights))
    received, handle = buffer.dispatch(x, ids, weights)
    rows = received.x
    short, arrived = (rows[:-1] if rank == 1 else rows), len(own.received(1)[0])
    refused(f"`rows` has {arrived - 1} rows, and {arrived} arrived", lambda: buffer.combine(short, handle))
    refused("`x` has elements of float16, and has to have bfloat16", lambda: buffer.cached_dispatch(wrong, handle))
    if rank == 1:
        # The others wait for the call that it makes instead.
        short_out = f"`out` has extents [1, {own.hidden}], and needs {list(x.shape)}"
        fails_with(short_out, lambda: buffer.combine(rows, handle, out=x[:1]), epforge.Mismatch)
    assert buffer.combine(rows, handle).x.shape == x.shape
    low = epforge.LowLatency(buffer.group, tokens=8, hidden=own.hidden, topk=own.topk, experts=own.experts)
    refused("`x` has elements of float16, and has to have bfloat16", lambda: low.dispatch(wrong, ids))
    packed = low.dispatch(x, ids)
    made_rows = packed.x
    wrong = made_rows[:, :1] if rank == 1 else made_rows
    shape = list(made_rows.shape)
    fewer = [shape[0], 1, shape[2]]
    refused(f"`rows` has extents {fewer}, and needs {shape}", lambda: low.combine(wrong, packed, weights))
    calls = (lambda: buffer.combine(rows, handle)), (lambda: low.dispatch(x, ids))
    names = ("combine", "low-latency dispatch")
    unlike = f"rank {1 - rank} makes a {names[1 - rank]} where this one makes a {names[rank]}"
    fails_with(unlike, calls[rank], epforge.Disagreement)
    hidden = (128, 256)
    other, its = f"hidden={hidden[1 - rank]}", f"hidden={hidden[rank]}"
    fails_with(
        f"rank {1 - rank} makes a buffer with {other}, and this one with {its}",
        lambda: made(buffer.group, problem(ranks, tokens=[5, 4], hidden=hidden[rank])),
        epforge.Disagreement,
    )
    sums = low.combine(made_rows, packed, weights).x
    assert sums.shape == x.shape
    del received
    rank_by_rank(own, buffer, rank)


class Processes(unittest.TestCase):
    """A process for each rank."""

    def test_a_call_that_one_rank_is_refused_leaves_the_group_usable(self) -> None:
        self.assertEqual(run_ranks(2, one_refused), [])

    def test_rows_come_and_go_back(self) -> None:
        for ranks in (1, 4):
            self.assertEqual(run_ranks(ranks, process), [])


def node(number: int, text: str, failed: Any) -> None:
    """A node of two ranks, which share no memory with those of the other one."""
    try:
        own = problem(4, tokens=[7, 0, 4, 9], experts=10, seed=5)
        buffer = made(epforge.Group.over_network(text, number, 2, ranks=2), own)
        for _ in range(2):
            sent = [buffer.dispatch(own.x[r], own.topk_idx[r], own.topk_weights[r], rank=r) for r in buffer.group.local]
            back = [buffer.combine(received.x, handle) for received, handle in sent]
            for rank, (received, _), sums in zip(buffer.group.local, sent, back, strict=True):
                np.testing.assert_array_equal(received.x, own.received(rank)[0])
                wanted = own.x[rank].astype(np.float32) * own.times(rank)
                np.testing.assert_array_equal(sums.x.astype(np.float32), wanted)
    except epforge.Network as error:
        failed.put(f"no network: {error}")
    except BaseException as error:
        failed.put(f"node {number}: {error}")
        raise


class Nodes(unittest.TestCase):
    """A process for each node."""

    def test_rows_come_and_go_back(self) -> None:
        context = multiprocessing.get_context("spawn")
        failed, text = context.Queue(), epforge.UniqueId.local().text()
        running = [context.Process(target=node, args=(number, text, failed)) for number in range(2)]
        for each in running:
            each.start()
        for each in running:
            each.join(120)
        said = failed.get() if not failed.empty() else ""
        if said.startswith("no network: ") and os.environ.get("EPFORGE_REQUIRE_LIBFABRIC") != "1":
            self.skipTest(said)
        self.assertEqual(([each.exitcode for each in running], said), ([0, 0], ""))

    def test_a_node_that_is_none_is_refused(self) -> None:
        own = epforge.UniqueId.local()
        with self.assertRaisesRegex(epforge.Mismatch, "node 2 does not exist: there are 2 nodes of 3 ranks"):
            epforge.Group.over_network(own, 2, 2, ranks=3)
        with self.assertRaisesRegex(epforge.Mismatch, "`carrier`"):
            epforge.Group.over_network(own, 0, 2, net="carrier")
        with self.assertRaisesRegex(epforge.Mismatch, "3 ranks, but 2 devices"):
            epforge.Group.over_network(own, 0, 2, ranks=3, devices=[0, 1])
        with self.assertRaisesRegex(epforge.Mismatch, "do not form 3 nodes with the same number of ranks"):
            epforge.Group.on_host(4, nodes=3)


if __name__ == "__main__":
    unittest.main()
