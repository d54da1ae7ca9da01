"""What callers of deep_ep's first API may do between calls, and what they hear of calls that do not fit."""

from __future__ import annotations

import logging
import os
import unittest
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import epforge
import numpy_torch
from epforge import deep_ep
from epforge.deep_ep import engines, knobs, shortage
from epforge.deep_ep.utils.event import EventOverlap
from problems import Problem, problem
from processes import Gather, fails_with, run_ranks
from test_nodes import same_bits


def facade(rank: int, ranks: int, gather: Gather) -> deep_ep.Buffer:
    """A buffer of deep_ep in this process."""
    numpy_torch.import_as_torch()
    return deep_ep.Buffer(numpy_torch.ProcessGroup(rank, ranks, gather), 1 << 20)


def given(own: Problem, rank: int, buffer: deep_ep.Buffer) -> dict[str, Any]:
    """What a dispatch wants to know of its tokens, without their weights."""
    ids = numpy_torch.as_tensor(own.topk_idx[rank].copy())
    _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, own.experts)
    return {"topk_idx": ids, "num_tokens_per_expert": per_expert, "is_token_in_rank": in_rank}


def reused(rank: int, ranks: int, gather: Gather) -> None:
    """A handle goes where its dispatch went, whatever the caller's tensors hold since."""
    own, buffer = problem(ranks, tokens=[5, 4]), facade(rank, ranks, gather)
    x, way = numpy_torch.as_tensor(own.x[rank]), given(own, rank, buffer)
    came, _, _, _, handle, _ = buffer.dispatch(x, **way)
    way["topk_idx"][...] = -1
    # No buffer for weights was there: the handle's tables are made again.
    weights = numpy_torch.as_tensor(np.ones((len(came), own.topk), np.float32))
    sums, _, _ = buffer.combine(came, handle, topk_weights=weights)
    same_bits(sums, (own.x[rank].astype(np.float32) * own.times(rank)).astype(ml_dtypes.bfloat16))
    # The bytes that were asked for, of rows alone, are all that they take.
    made = next(it for it in buffer._engines()._made.values() if it.weights)
    memory = made.memory
    told = deep_ep.Buffer.bytes(ranks, made.tokens, own.hidden, own.topk, own.experts)
    assert told == sum(memory.values()) - memory["host"], (told, memory)
    assert (made.capacity * 2 * own.hidden, memory["combine_inputs"]) == (buffer.num_nvl_bytes, 0), memory
    buffer.num_nvl_bytes <<= 20
    assert buffer._room(own.hidden) == 8192


def unlike(rank: int, ranks: int, gather: Gather) -> None:
    """Ranks that ask for different buffers hear of it, and can go on."""
    buffer, lengths = facade(rank, ranks, gather), (128, 256)
    own = problem(ranks, tokens=[5, 4])
    other = problem(ranks, tokens=[5, 4], hidden=lengths[rank])
    try:
        buffer.dispatch(numpy_torch.as_tensor(other.x[rank]), **given(own, rank, buffer))
    except epforge.Disagreement as error:
        said = str(error)
        assert said.startswith(f"rank {1 - rank} makes a buffer for Shape(hidden={lengths[1 - rank]}, "), said
        assert f"and this one for Shape(hidden={lengths[rank]}, " in said, said
    else:
        raise AssertionError("the ranks went on")
    x = numpy_torch.as_tensor(own.x[rank])
    came, *_ = buffer.dispatch(x, **given(own, rank, buffer))
    same_bits(came, own.received(rank)[0])


def laid_out(rank: int, ranks: int, gather: Gather, nodes: int) -> None:
    """A kernel of one rank lays out a dispatch: no other rank makes the call, and torch computes nothing."""
    buffer, (tokens, topk, experts) = facade(rank, ranks, gather), (300, 3, 10)
    if rank != 1:
        gather(None)
        return
    computed = AssertionError("torch computes a layout")
    for kind in (np.int64, np.int32):
        # Ranks have three or two experts; some numbers are those of none.
        ids = np.random.default_rng(4).integers(-3, experts + 3, (tokens, topk)).astype(kind)
        own = Problem(ranks, 0, topk, experts, [], [np.where(ids < experts, ids, -1)], [])
        to = [own.ranks_of(0, token) for token in range(tokens)]
        in_rank = np.array([[each in its for each in range(ranks)] for its in to], np.bool_)
        on_node = in_rank.reshape(tokens, nodes, -1).any(2)
        wanted = [
            in_rank.sum(0, dtype=np.int32),
            on_node.sum(0, dtype=np.int32) if nodes > 1 else None,
            np.bincount(own.topk_idx[0][own.topk_idx[0] >= 0], minlength=experts).astype(np.int32),
            in_rank,
        ]
        with mock.patch.object(numpy_torch, "zeros", side_effect=computed):
            *made, _ = buffer.get_dispatch_layout(numpy_torch.as_tensor(ids), experts)
        for one, other in zip(made, wanted, strict=True):
            if one is None or other is None:
                assert one is other
            else:
                same_bits(one, other)
        *none, _ = buffer.get_dispatch_layout(numpy_torch.as_tensor(ids[:0]), experts)
        assert [it if it is None else (it.shape, int(it.sum())) for it in none] == [
            ((ranks,), 0),
            ((nodes,), 0) if nodes > 1 else None,
            ((experts,), 0),
            ((0, ranks), 0),
        ], none
    gather(None)


def unfit(rank: int, ranks: int, gather: Gather) -> None:
    """What does not fit is refused before anything is sent."""
    own, buffer = problem(ranks, tokens=[5, 4]), facade(rank, ranks, gather)
    x, way = numpy_torch.as_tensor(own.x[rank]), given(own, rank, buffer)
    weights = numpy_torch.as_tensor(own.topk_weights[rank])
    alone = {**way, "topk_idx": None, "topk_weights": weights}
    fails_with("`topk_weights` come with `topk_idx`", partial(buffer.dispatch, x, **alone))
    halves = {**way, "topk_idx": way["topk_idx"].to(numpy_torch.float32)}
    fails_with(
        "`topk_idx` has elements of float32, and has to have whole numbers", partial(buffer.dispatch, x, **halves)
    )
    no_handle = "the handle is a Tensor, and no result of `dispatch`"
    fails_with(no_handle, partial(buffer.dispatch, x, handle=x))
    fails_with(no_handle, partial(buffer.combine, x, x))
    low_latency = "the handle is a Tensor, and no result of `low_latency_dispatch`"
    fails_with(low_latency, partial(buffer.low_latency_combine, x, way["topk_idx"], weights, x))
    few = partial(buffer.low_latency_dispatch, x, way["topk_idx"], num_experts=own.experts)
    too_many = (
        "`num_max_dispatch_tokens_per_rank` is 8193, and low-latency calls take 1 to 8192 tokens a rank: serve smaller "
        "batches, or call `dispatch` for more"
    )
    fails_with(too_many, partial(few, num_max_dispatch_tokens_per_rank=8193))
    four_bits = (
        "`use_nvfp4` is not there yet: dispatch rows in BF16 or FP8 (vLLM: VLLM_DEEPEPLL_NVFP4_DISPATCH=0, SGLang: "
        "--deepep-dispatcher-output-dtype bf16), and cast them where they arrive"
    )
    for asked in ({"use_nvfp4": True}, {"x_global_scale": weights}):
        fails_with(four_bits, partial(few, num_max_dispatch_tokens_per_rank=8, **asked))
    more_than_said = f"`x` has {len(x)} tokens, and `num_max_dispatch_tokens_per_rank` is 3"
    fails_with(more_than_said, partial(few, num_max_dispatch_tokens_per_rank=3))
    came, *_ = buffer.dispatch(x, **way)
    same_bits(came, own.received(rank)[0])
    arrived = len(came)
    fails_with(
        f"{arrived} rows arrived, and `num_worst_tokens` is {arrived - 1}",
        partial(buffer.dispatch, x, **way, num_worst_tokens=arrived - 1),
    )


class Heard(logging.Handler):
    """What a process says in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("epforge").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def larger(rank: int, ranks: int, gather: Gather, shares_memory: bool) -> None:
    """One rank has more tokens than any rank before: the buffers of all ranks grow, and say so once."""
    with mock.patch.object(shortage, "SHARED", shortage.SHARED if shares_memory else Path("/nowhere")):
        buffer = facade(rank, ranks, gather)
    heard, kept = Heard(), []
    buffer.num_nvl_bytes = 0
    with mock.patch.object(engines, "LEAST_TOKENS", 8):
        for turn, tokens in enumerate(([5, 4], [4, 11], [10, 0], [40, 13])):
            own = problem(ranks, tokens=tokens, seed=turn)
            x, way = numpy_torch.as_tensor(own.x[rank]), given(own, rank, buffer)
            came, *_, handle, _ = buffer.dispatch(x, **way)
            same_bits(came, own.received(rank)[0])
            kept.append((own, came, handle))
    # Handles from before go on.
    for own, came, handle in kept:
        sums, _, _ = buffer.combine(came, handle)
        same_bits(sums, (own.x[rank].astype(np.float32) * own.times(rank)).astype(ml_dtypes.bfloat16))
    said = "the buffer for bf16 rows of 128 values has grown from {} to {} tokens a rank"
    wanted = [said.format(8, 11), said.format(11, 40)] if rank == 0 else []
    assert len(heard.lines) == len(wanted), heard.lines
    assert all(it in line for it, line in zip(wanted, heard.lines, strict=True)), heard.lines


def prepared(rank: int, ranks: int, gather: Gather) -> None:
    """What was prepared is there: the first calls make no buffers and no kernels."""
    own, buffer = problem(ranks, tokens=[5, 4]), facade(rank, ranks, gather)
    buffer.prepare(5, own.hidden, own.topk, own.experts)
    buffer.low_latency_prepare(8, own.hidden, own.topk, own.experts, use_fp8=False)
    x, way = numpy_torch.as_tensor(own.x[rank]), given(own, rank, buffer)
    weights = numpy_torch.as_tensor(own.topk_weights[rank])
    made_now = AssertionError("the first call makes what was prepared")
    with (
        mock.patch.object(engines.calls, "Buffer", side_effect=made_now),
        mock.patch.object(epforge.LowLatency, "_make", side_effect=made_now),
    ):
        came, *_, handle, _ = buffer.dispatch(x, topk_weights=weights, **way)
        same_bits(came, own.received(rank)[0])
        buffer.combine(came, handle)
        rows, _, handle, *_ = buffer.low_latency_dispatch(x, way["topk_idx"], 8, own.experts, use_fp8=False)
        buffer.low_latency_combine(rows, way["topk_idx"], weights, handle)
    (low,) = buffer._engines()._low.values()
    assert low.memory == buffer.low_latency_bytes(ranks, 8, own.hidden, own.topk, own.experts, use_fp8=False)
    # What a buffer holds follows from its bytes, or from the tokens that are named.
    (first,) = buffer._engines()._made.values()
    assert first.tokens == buffer._room(own.hidden) == (1 << 20) // (2 * own.hidden * ranks), first.tokens
    buffer.prepare(first.tokens + 1, own.hidden, own.topk, own.experts)
    (larger,) = buffer._engines()._made.values()
    assert larger.tokens > first.tokens, larger.tokens


def with_knobs(rank: int, ranks: int, gather: Gather) -> None:
    """Arguments that change nothing are named, once each; the memory of a buffer is there for who asks for it."""
    numpy_torch.import_as_torch()
    heard, group = Heard(), numpy_torch.ProcessGroup(rank, ranks, gather)
    deep_ep.Buffer(group, num_qps_per_rank=24)
    deep_ep.Config(8)
    assert heard.lines == [], heard.lines
    for _ in range(2):
        buffer = deep_ep.Buffer(group, 1000, 64, num_qps_per_rank=16, allow_mnnvl=True)
        deep_ep.Config(8, num_max_nvl_chunked_recv_tokens=512)
    assert [line.partition(" changes nothing: ")[0] for line in heard.lines] == [
        "deep_ep: `num_qps_per_rank=16`",
        "deep_ep: `allow_mnnvl=True`",
        "deep_ep: `num_max_nvl_chunked_recv_tokens=512`",
    ], heard.lines
    heard.lines.clear()
    plain = buffer.get_local_buffer_tensor(numpy_torch.float32, offset=200)
    plain[...] = 7
    few = buffer.get_local_buffer_tensor(numpy_torch.float32, (2, 3), 196)
    assert plain.shape == (200,) and few.tolist() == [[0, 7, 7], [7, 7, 7]], (plain.shape, few)
    assert buffer.get_local_buffer_tensor(numpy_torch.uint8, use_rdma_buffer=True).shape == (64,)
    told = "deep_ep: `get_local_buffer_tensor` makes a tensor of 1000 bytes, which no dispatch and no combine reads"
    assert heard.lines == [told], heard.lines
    fails_with(
        "[201] elements of float32 from byte 200 on are more than the 200 there",
        partial(buffer.get_local_buffer_tensor, numpy_torch.float32, (201,), 200),
    )


class Streams:
    """What a call asks of torch's streams, in order. Streams are names; the caller's is current at first."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.current = self.stream("caller")

    def stream(self, name: str) -> Any:
        def wait(kind: str) -> Any:
            return lambda other: self.asked.append((name, kind, getattr(other, "name", other)))

        return SimpleNamespace(name=name, wait_stream=wait("behind"), wait_event=wait("behind"))

    def set_stream(self, stream: Any) -> None:
        self.current = stream
        self.asked.append(("on", stream.name))

    def event(self) -> Any:
        return SimpleNamespace(record=lambda stream: self.asked.append(("event", stream.name)))

    def tensor(self, name: str) -> Any:
        return SimpleNamespace(record_stream=lambda stream: self.asked.append((name, stream.name)))


class Beside(unittest.TestCase):
    """Calls on the stream beside the caller's."""

    def test_the_order_of_streams(self) -> None:
        numpy_torch.import_as_torch()
        streams = Streams()
        # Without a device, torch would ask NVML.
        cuda = SimpleNamespace(
            current_device=lambda: 0,
            current_stream=lambda device: streams.current,
            set_stream=streams.set_stream,
            Event=streams.event,
        )
        there = object.__new__(engines.Engines)
        there.stream = streams.stream("beside")
        read, left = streams.tensor("read"), streams.tensor("left")
        begin, end = [("beside", "behind", "caller"), ("on", "beside")], [("event", "beside"), ("on", "caller")]
        kept = [("read", "beside"), ("left", "caller")]
        with (
            mock.patch.object(numpy_torch, "cuda", cuda),
            mock.patch("epforge.deep_ep.utils.event.has_gpu", lambda: True),
        ):
            with there.beside(None, True, read, None) as calls:
                calls.outputs += [left, None]
            self.assertEqual(streams.asked, [*begin, *end, *kept])
            self.assertIsNotNone(calls.done.event)
            # A call that fails leaves the caller on its own stream.
            streams.asked.clear()
            with self.assertRaises(KeyError), there.beside(None, True, read):
                raise KeyError
            self.assertEqual(streams.asked, [*begin, end[1]])
            # Behind an event, and the caller behind the call.
            streams.asked.clear()
            before = EventOverlap(SimpleNamespace(event="before"))
            with there.beside(before, False) as calls:
                pass
            self.assertEqual([it[:2] for it in streams.asked[-1:]], [("caller", "behind")])
            self.assertEqual(streams.asked[0], ("beside", "behind", "before"))
            self.assertIsNone(calls.done.event)
            # Nothing is asked for a call that is not to overlap.
            streams.asked.clear()
            with there.beside(None, False, read):
                pass
            self.assertEqual(streams.asked, [])


class Queues(unittest.TestCase):
    """`num_qps_per_rank` sets the queue pairs of network cards."""

    def said(self, net: str, *counts: int) -> tuple[list[str | None], list[str]]:
        """The networks of buffers that ask for so many queue pairs, and the lines in the log."""
        heard = Heard()
        with mock.patch.dict(os.environ, {"EPFORGE_NET": net}), mock.patch.object(knobs, "_TOLD", set()):
            nets = [knobs.net_with_queues(count) for count in counts]
        logging.getLogger("epforge").removeHandler(heard)
        return nets, heard.lines

    def test_the_network_of_a_buffer(self) -> None:
        self.assertEqual(self.said("ibgda", 24, 4, 1), ([None, "ibgda:queues=4", "ibgda:queues=1"], []))
        self.assertEqual(self.said("ibgda:mlx5_0,sl=3", 8), (["ibgda:mlx5_0,sl=3,queues=8"], []))
        line = "deep_ep: `num_qps_per_rank=36` becomes 8: a card has 1 to 8 for each peer"
        self.assertEqual(self.said("ibgda", 36, 36), (["ibgda:queues=8"] * 2, [line]))
        for net, why in (("ibgda:queues=2", knobs.NAMED), ("card", knobs.KERNEL), ("tcp", knobs.QUEUES)):
            line = f"deep_ep: `num_qps_per_rank=4` changes nothing: {why}"
            self.assertEqual(self.said(net, 24, 4, 4), ([None] * 3, [line]))


class Facade(unittest.TestCase):
    """`deep_ep.Buffer` of two ranks."""

    def test_a_handle_keeps_its_way(self) -> None:
        self.assertEqual(run_ranks(2, reused), [])

    def test_a_layout_is_a_kernel_of_one_rank(self) -> None:
        for ranks, nodes in ((3, 1), (4, 2)):
            with self.subTest(nodes=nodes):
                self.assertEqual(run_ranks(ranks, laid_out, nodes, nodes=nodes), [])

    def test_ranks_that_make_different_buffers(self) -> None:
        self.assertEqual(run_ranks(2, unlike), [])

    def test_calls_that_do_not_fit(self) -> None:
        self.assertEqual(run_ranks(2, unfit), [])

    def test_what_is_prepared_is_not_made_by_a_call(self) -> None:
        self.assertEqual(run_ranks(2, prepared), [])

    def test_arguments_that_change_nothing(self) -> None:
        self.assertEqual(run_ranks(2, with_knobs), [])

    def test_a_larger_batch_than_all_before(self) -> None:
        for shares_memory in (True, False):
            with self.subTest(shares_memory=shares_memory):
                self.assertEqual(run_ranks(2, larger, shares_memory), [])
