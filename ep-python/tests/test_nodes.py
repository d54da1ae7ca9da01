"""The first API of deep_ep between nodes, against NumPy, bit for bit: a process for each rank, without torch."""

from __future__ import annotations

import os
import socket
import unittest
from functools import partial
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import epforge
import numpy_torch
from epforge import deep_ep
from epforge.deep_ep import knobs
from epforge.group import count_nodes, node_name, own_address
from problems import Problem, problem
from processes import Gather, fails_with, run_ranks
from test_low_latency import arrivals, cast, drawn

RANKS, NODES = 4, 2
EACH = RANKS // NODES


def facade(rank: int, ranks: int, gather: Gather, **options: Any) -> deep_ep.Buffer:
    """A buffer of deep_ep in this process."""
    numpy_torch.import_as_torch()
    buffer = deep_ep.Buffer(numpy_torch.ProcessGroup(rank, ranks, gather), 1 << 20, 1 << 20, **options)
    assert buffer.engines is not None and buffer.engines.group.nodes == NODES
    return buffer


def layout(own: Problem, rank: int) -> dict[str, Any]:
    """What a layout has to be, by the names that a dispatch has for it."""
    tokens = range(len(own.x[rank]))
    in_rank = np.array([[to in own.ranks_of(rank, token) for to in range(RANKS)] for token in tokens], np.bool_)
    in_rank = in_rank.reshape(-1, RANKS)
    return {
        "num_tokens_per_rank": in_rank.sum(0).astype(np.int32),
        "num_tokens_per_rdma_rank": in_rank.reshape(-1, NODES, EACH).any(2).sum(0).astype(np.int32),
        "num_tokens_per_expert": np.array([(own.topk_idx[rank] == e).sum() for e in range(own.experts)], np.int32),
        "is_token_in_rank": in_rank,
    }


def given(own: Problem, rank: int, with_topk: bool = True) -> dict[str, Any]:
    """The same as tensors, with experts and weights if they are wanted."""
    made = layout(own, rank)
    if with_topk:
        made.update(topk_idx=own.topk_idx[rank], topk_weights=own.topk_weights[rank])
    return {name: numpy_torch.as_tensor(array) for name, array in made.items()}


def entries(own: Problem, rank: int, alignment: int = 1) -> list[int]:
    """How many entries of all tokens name each expert of a rank, rounded up."""
    ids = np.concatenate(own.topk_idx)
    counts = [int((ids == expert).sum()) for expert in range(own.begin(rank), own.begin(rank + 1))]
    return [-(-count // alignment) * alignment for count in counts]


def sums(own: Problem, rank: int, rows: list[Any], biases: int = 0) -> Any:
    """Rows of each rank's experts added up by NumPy: rounded on each node, and over the nodes once more."""
    made = np.zeros((len(own.x[rank]), own.hidden), ml_dtypes.bfloat16)
    for token in range(len(made)):
        total = np.full(own.hidden, 2.5 * biases, np.float32)
        for node in range(NODES):
            part = np.zeros(own.hidden, np.float32)
            for to in own.ranks_of(rank, token):
                if to // EACH == node:
                    part += rows[to][own.arrivals(to).index((rank, token))].astype(np.float32)
            total += part.astype(ml_dtypes.bfloat16).astype(np.float32)
        made[token] = total
    return made


def same_bits(one: Any, other: Any) -> None:
    """Fails unless two arrays have the same type, shape and bytes."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype, (one.dtype, other.dtype)
    plain = np.dtype(f"u{one.itemsize}")
    np.testing.assert_array_equal(one.view(plain), other.view(plain))


def experts_of(own: Problem) -> list[Any]:
    """What the experts of each rank make of the rows that arrive there: no whole numbers."""
    random = np.random.default_rng(3)
    return [random.normal(0, 3, own.received(rank)[0].shape).astype(ml_dtypes.bfloat16) for rank in range(RANKS)]


def rows_with_experts(rank: int, ranks: int, gather: Gather) -> None:
    own = drawn(ranks, [5, 0, 3, 6], hidden=256, experts=8)
    buffer = facade(rank, ranks, gather)
    x, found = numpy_torch.as_tensor(own.x[rank]), given(own, rank)
    *counted, event = buffer.get_dispatch_layout(
        found["topk_idx"], own.experts, previous_event=buffer.capture(), async_finish=True
    )
    event.current_stream_wait()
    for wanted, made in zip(layout(own, rank).values(), counted, strict=True):
        same_bits(made, wanted)
    came, ids, weights, counts, handle, event = buffer.dispatch(
        x, **found, expert_alignment=4, previous_event=event, async_finish=True
    )
    event.current_stream_wait()
    for wanted, made in zip(own.received(rank), (came, ids, weights), strict=True):
        same_bits(made, wanted)
    assert counts == entries(own, rank, 4), counts
    holds_ends(own, rank, handle)
    # The same tokens with other rows.
    again, *nothing, _ = buffer.dispatch(x + x, handle=handle)
    same_bits(again, own.received(rank)[0] + own.received(rank)[0])
    assert nothing == [None] * 4
    made = experts_of(own)
    rows = numpy_torch.as_tensor(made[rank])
    combined, back, event = buffer.combine(rows, handle, weights, previous_event=event, async_finish=True)
    event.current_stream_wait()
    same_bits(combined, sums(own, rank, made))
    same_bits(back, np.where(own.topk_idx[rank] >= 0, own.topk_weights[rank], np.float32(0)))
    bias = numpy_torch.as_tensor(np.full(x.shape, 2.5, ml_dtypes.bfloat16))
    combined, none, _ = buffer.combine(rows, handle, bias=(bias, bias))
    same_bits(combined, sums(own, rank, made, biases=2))
    assert none is None


def holds_ends(own: Problem, rank: int, handle: Any) -> None:
    """The handle has the form of deep_ep's between nodes, where programs look into it."""
    sources = [source for source, _ in own.arrivals(rank)]
    ends = [sum(source <= last for source in sources) for last in range(RANKS)]
    parts = list(handle)
    assert len(handle) == len(parts) == 10
    same_bits(parts[0], layout(own, rank)["is_token_in_rank"])
    same_bits(handle[-4], np.array(ends, np.int32))
    assert [at for at, part in enumerate(parts) if part is not None] == [0, 6]
    for outside in (10, -11):
        try:
            handle[outside]
        except IndexError:
            continue
        raise AssertionError(outside)


def rows_of_fp8(rank: int, ranks: int, gather: Gather) -> None:
    own = problem(ranks, tokens=[5, 0, 3, 6], hidden=256, experts=8)
    buffer, (values, scale) = facade(rank, ranks, gather), cast(own.x[rank].astype(np.float32), "fp8")
    pair = (numpy_torch.as_tensor(values), numpy_torch.as_tensor(scale))
    plain, ids, weights = own.received(rank)
    wanted = cast(plain.astype(np.float32), "fp8")
    for with_topk in (True, False):
        found = given(own, rank, with_topk)
        came, came_ids, came_weights, counts, handle, _ = buffer.dispatch(pair, **found, expert_alignment=2)
        for part, of_wanted in zip(came, wanted, strict=True):
            same_bits(part, of_wanted)
        assert counts == entries(own, rank, 2), counts
        if with_topk:
            # The same tokens once more.
            again, *_ = buffer.dispatch(pair, handle=handle)
            for part, of_wanted in zip(again, wanted, strict=True):
                same_bits(part, of_wanted)
            same_bits(came_ids, ids)
            same_bits(came_weights, weights)
        else:
            assert came_ids is None and came_weights is None
    # Rows of another type than the first ones.
    same_bits(buffer.dispatch(numpy_torch.as_tensor(own.x[rank]), handle=handle)[0], plain)
    combined, *_ = buffer.combine(numpy_torch.as_tensor(plain), handle)
    same_bits(combined, (own.x[rank].astype(np.float32) * own.times(rank)).astype(ml_dtypes.bfloat16))


def worst_case(rank: int, ranks: int, gather: Gather) -> None:
    own, worst = problem(ranks, tokens=[5, 0, 3, 6], experts=8), 24
    buffer, found = facade(rank, ranks, gather), given(own, rank)
    rows, ids, _ = own.received(rank)
    x = numpy_torch.as_tensor(own.x[rank])
    came, came_ids, came_weights, counts, handle, _ = buffer.dispatch(x, **found, num_worst_tokens=worst)
    assert came.shape == (worst, own.hidden) and came_weights.shape == came_ids.shape and counts == []
    same_bits(came[: len(rows)], rows)
    same_bits(came_ids, np.concatenate([ids, np.full((worst - len(rows), own.topk), -1)]))
    combined, *_ = buffer.combine(came, handle)
    same_bits(combined, (own.x[rank].astype(np.float32) * own.times(rank)).astype(ml_dtypes.bfloat16))


def packs(own: Problem, rank: int, buffer: deep_ep.Buffer, most: int, **options: Any) -> tuple[Any, Any]:
    """A low-latency dispatch that leaves each row where it has to be, bit for bit; the rows, and the handle."""
    x, ids = (numpy_torch.as_tensor(it[rank]) for it in (own.x, own.topk_idx))
    came, counts, handle, event, hook = buffer.low_latency_dispatch(x, ids, most, own.experts, **options)
    hook() if options["return_recv_hook"] else event.current_stream_wait()
    source, ranges, *numbers = handle
    assert numbers == [most, own.hidden, own.experts]
    for expert in range(own.experts // own.ranks):
        sent = arrivals(own, rank, expert)
        assert counts[expert] == sum(len(tokens) for tokens in sent)
        for other, tokens in enumerate(sent):
            first, count = int(ranges[expert, other]) >> 32, int(ranges[expert, other]) & 0xFFFFFFFF
            where = slice(first, first + count)
            got = source[expert, where]
            assert sorted(got.tolist()) == tokens
            rows = own.x[other][np.asarray(got)]
            if not options["use_fp8"]:
                same_bits(came[expert, where], rows)
                continue
            for made, wanted in zip(came, cast(rows, "fp8"), strict=True):
                same_bits(np.ascontiguousarray(made[expert, where]), wanted)
    return came, handle


def few_tokens(rank: int, ranks: int, gather: Gather) -> None:
    own, most = drawn(ranks, [5, 0, 3, 6], hidden=256, experts=8), 8
    buffer = facade(rank, ranks, gather, low_latency_mode=True, num_qps_per_rank=2)
    ids, weights = (numpy_torch.as_tensor(it[rank]) for it in (own.topk_idx, own.topk_weights))
    wait = numpy_torch.zeros((ranks,), dtype=numpy_torch.int64)
    for use_fp8, hooked in ((True, False), (False, True)):
        how = {"use_fp8": use_fp8, "async_finish": not hooked, "return_recv_hook": hooked}
        came, handle = packs(own, rank, buffer, most, dispatch_wait_recv_cost_stats=wait, **how)
    buffer.get_next_low_latency_combine_buffer(handle)[...] = came
    how = {"zero_copy": True, "return_recv_hook": True}
    with mock.patch.object(knobs.LOG, "warning") as told:
        combined, _, hook = buffer.low_latency_combine(numpy_torch.zeros((0,)), ids, weights, handle, **how)
    told.assert_called_once_with(f"deep_ep: `zero_copy=True` changes nothing: {knobs.SLOTS}")
    hook()
    total = np.zeros(own.x[rank].shape, np.float32)
    for k in range(own.topk):
        factor = np.where(own.topk_idx[rank][:, k : k + 1] >= 0, own.topk_weights[rank][:, k : k + 1], np.float32(0))
        total += own.x[rank].astype(np.float32) * factor
    same_bits(combined, total.astype(ml_dtypes.bfloat16))


def over_cards(rank: int, ranks: int, gather: Gather, task: Any) -> None:
    buffer = facade(rank, ranks, gather)
    assert buffer.engines is not None and buffer.engines.group.writes_to_cards
    task(rank, ranks, gather)


def refusals(rank: int, ranks: int, gather: Gather) -> None:
    own = problem(ranks, tokens=[1] * ranks)
    buffer, found = facade(rank, ranks, gather), given(own, rank)
    x = numpy_torch.as_tensor(own.x[rank])
    for wrong, shown in ((None, "absent"), (found["num_tokens_per_rank"], "[4]")):
        found["num_tokens_per_rdma_rank"] = wrong
        sentence = f"`num_tokens_per_rdma_rank` has extents {shown}, and needs [2]"
        fails_with(sentence, partial(buffer.dispatch, x, **found))
    for name in ("ElasticBuffer", "EPBuffer"):
        sentence = f"`{name}` is for one node, and the group has 2: `deep_ep.Buffer` goes there"
        fails_with(sentence, partial(getattr(deep_ep, name), buffer.group))
    sentence = "ranks of 2 nodes wait for one another: `leaves_out_absent` is for one node"
    fails_with(sentence, partial(facade, rank, ranks, gather, enable_shrink=True))


class Facade(unittest.TestCase):
    """`deep_ep.Buffer` of four ranks on two nodes, as torchrun says them."""

    def hold(self, task: Any) -> None:
        self.assertEqual(run_ranks(RANKS, task, nodes=NODES), [])

    def test_rows_with_experts(self) -> None:
        self.hold(rows_with_experts)

    def test_few_tokens(self) -> None:
        self.hold(few_tokens)

    def test_few_tokens_over_cards(self) -> None:
        with mock.patch.dict(os.environ, {"EPFORGE_NET": "ibgda"}):
            self.assertEqual(run_ranks(RANKS, over_cards, few_tokens, nodes=NODES), [])

    def test_what_does_not_fit_is_refused(self) -> None:
        self.hold(refusals)


class FacadeAtLength(unittest.TestCase):
    """Further calls of `deep_ep.Buffer` of four ranks on two nodes."""

    def test_rows_of_fp8(self) -> None:
        self.assertEqual(run_ranks(RANKS, rows_of_fp8, nodes=NODES), [])

    def test_rows_over_cards(self) -> None:
        with mock.patch.dict(os.environ, {"EPFORGE_NET": "card:50GB/s,3us"}):
            self.assertEqual(run_ranks(RANKS, over_cards, rows_with_experts, nodes=NODES), [])

    def test_worst_case(self) -> None:
        self.assertEqual(run_ranks(RANKS, worst_case, nodes=NODES), [])


class Nodes(unittest.TestCase):
    """Which ranks are on one node."""

    def test_nodes_are_counted_by_their_names(self) -> None:
        for names, nodes in (("a", 1), ("aaaa", 1), ("aabb", 2), ("abcd", 4), ("bbbaaa", 2)):
            self.assertEqual(count_nodes(names), nodes)
        rule = "they are numbered node by node, equally many on each"
        for names, sentence in (
            ("abab", f"a has ranks [0, 2] of 4 on 2 nodes, and has to have [0, 1]: {rule}"),
            ("aaab", f"a has ranks [0, 1, 2] of 4 on 2 nodes, and has to have [0, 1]: {rule}"),
            ("aabbb", f"b has ranks [2, 3, 4] of 5 on 2 nodes, and has to have [2, 3]: {rule}"),
        ):
            with self.assertRaises(epforge.Mismatch) as caught:
                count_nodes(names)
            self.assertEqual(str(caught.exception), sentence)

    def test_a_node_is_a_host_and_in_the_emulator_an_agent(self) -> None:
        with mock.patch("socket.gethostname", return_value="here"):
            with mock.patch.dict(os.environ, {"GROUP_RANK": "3"}):
                self.assertEqual(node_name(on_emulator=False), "here")
                self.assertEqual(node_name(on_emulator=True), "here, torchrun's agent 3")
            with mock.patch.dict(os.environ):
                os.environ.pop("GROUP_RANK", None)
                self.assertEqual(node_name(on_emulator=True), "here")

    def test_a_group_has_the_nodes_of_its_processes(self) -> None:
        def gather(value: Any) -> list[Any]:
            return [value, value, value + " too", value + " too"]

        self.assertEqual(epforge.Group.from_gather(0, gather=gather).nodes, 2)
        self.assertEqual(epforge.Group.from_gather(0, gather=gather, nodes=4).nodes, 4)
        self.assertEqual(epforge.Group.on_host(2).nodes, 1)

    def test_processes_of_a_gpu_each_join_over_a_network(self) -> None:
        here = mock.patch("socket.gethostname", return_value="here")
        for hosts, nodes, address in ((1, None, "127.0.0.1"), (1, 2, "127.0.0.1"), (2, None, "127.0.0.2")):

            def gather(value: Any, hosts: int = hosts) -> list[Any]:
                # What rank 0 brings, or a name of a host.
                return [value] * 4 if value != "here" else [f"{value} {rank * hosts // 4}" for rank in range(4)]

            reached = mock.patch("epforge.group.own_address", return_value="127.0.0.2")
            with here, reached, mock.patch.object(epforge.Group, "join") as join:
                epforge.Group.from_gather(0, gather=gather, device=7, nodes=nodes, net="shm", deadline=9)
            (own, rank, ranks), named = join.call_args
            self.assertEqual((rank, ranks, own.text().split(":")[0]), (0, 4, address))
            wanted = {"device": 7, "nodes": nodes or hosts, "net": "shm", "deadline": 9}
            self.assertEqual({name: named[name] for name in wanted}, wanted)
            # Another rank joins with the text that rank 0 brings.
            with here, mock.patch.object(epforge.Group, "join") as join:
                epforge.Group.from_gather(
                    3, gather=lambda value, own=own: gather(value or own.text()), device=0, nodes=nodes
                )
            self.assertEqual(join.call_args.args, (own.text(), 3, 4))
            self.assertIsNone(join.call_args.kwargs["net"])

    def test_a_rank_0_that_nobody_reaches_is_named_on_all(self) -> None:
        def gather(value: Any) -> list[Any]:
            return [value, value] if value is None else [value, value + " too"]

        nowhere = mock.patch("epforge.group.own_address", side_effect=epforge.GroupError("nowhere"))
        for rank, sentence in ((0, "nowhere"), (1, "rank 0 has no address at which the others could reach it")):
            with nowhere, self.assertRaises(epforge.GroupError) as caught:
                epforge.Group.from_gather(rank, gather=gather, device=0)
            self.assertEqual(str(caught.exception), sentence)

    def test_a_process_that_comes_alone_says_who_is_missing(self) -> None:
        own = epforge.UniqueId.local()
        with self.assertRaisesRegex(epforge.Mismatch, "connects processes of one rank each"):
            epforge.Group.over_network(own, 0, 2, net="card")
        with self.assertRaisesRegex(epforge.GroupError, r"ranks 1, 2, 3 did not join within 100ms"):
            epforge.Group.join(own, 0, 4, device=0, nodes=2, net="tcp", deadline=0.1)
        with self.assertRaisesRegex(epforge.Mismatch, "the network `carrier` does not exist"):
            epforge.Group.join(own, 0, 4, device=0, nodes=2, net="carrier")
        named = mock.patch.dict(os.environ, {"EPFORGE_NET": "pigeon"})
        with named, self.assertRaisesRegex(epforge.Mismatch, "EPFORGE_NET: the network `pigeon` does not exist"):
            epforge.Group.join(own, 0, 4, device=0, nodes=2)
        with self.assertRaisesRegex(epforge.Mismatch, "`here` is no address of an interface"):
            epforge.UniqueId.at("here")

    def test_a_launcher_says_how_many_ranks_a_node_has(self) -> None:
        variables = {"EPFORGE_ID": epforge.UniqueId.local().text(), "RANK": "5", "WORLD_SIZE": "6"}
        for each, nodes in (("2", 3), ("6", 1), (None, 1)):
            more = {} if each is None else {"LOCAL_WORLD_SIZE": each}
            with (
                mock.patch.dict(os.environ, variables | more),
                mock.patch.object(epforge.Group, "join") as join,
            ):
                epforge.Group.from_environment(net="efa")
            self.assertEqual(join.call_args.args[1:], (5, 6))
            self.assertEqual((join.call_args.kwargs["nodes"], join.call_args.kwargs["net"]), (nodes, "efa"))
        with (
            mock.patch.dict(os.environ, variables | {"LOCAL_WORLD_SIZE": "4"}),
            self.assertRaisesRegex(epforge.GroupError, "LOCAL_WORLD_SIZE is 4, and the number of ranks, 6, is not"),
        ):
            epforge.Group.from_environment()

    def test_the_own_address_is_one_that_others_reach(self) -> None:
        def towards(master: str, *interfaces: str) -> str:
            variables = mock.patch.dict(os.environ, {"MASTER_ADDR": master} if master else {})
            if not master:
                os.environ.pop("MASTER_ADDR", None)

            def found(name: str, port: int, **kind: Any) -> list[Any]:
                place = name if name[0].isdecimal() else "127.0.1.1"
                return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (place, port))]

            probe = mock.MagicMock()
            probe.__enter__.return_value.getsockname.side_effect = [(own, 1) for own in interfaces]
            opened = mock.patch("socket.socket", return_value=probe)
            with variables, opened, mock.patch("socket.getaddrinfo", side_effect=found):
                return own_address()

        self.assertEqual(towards("10.0.0.3", "10.0.0.4"), "10.0.0.4")
        self.assertEqual(towards("127.0.0.3", "127.0.0.1"), "127.0.0.1")
        self.assertEqual(towards("localhost", "127.0.0.1"), "127.0.0.1")
        # A host's own name, as some systems know it; then the next try.
        self.assertEqual(towards("node-0", "127.0.0.1", "10.0.0.5"), "10.0.0.5")
        self.assertEqual(towards("", "10.0.0.6"), "10.0.0.6")
        with self.assertRaisesRegex(epforge.GroupError, "no address that others reach: name one in MASTER_ADDR"):
            towards("node-0", "127.0.0.1", "127.0.0.1")
        self.assertRegex(own_address(), r"[.:]")


if __name__ == "__main__":
    unittest.main()
