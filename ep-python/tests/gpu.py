"""What only GPUs can show, with torch on 2 of them: `python tests/gpu.py`, with `--help` for other numbers.

Where there is one, both ranks share it, and its times say nothing.

It runs the tests of `torch_calls`, `torch_callers` and `torch_refs` there, and then: rows at full size, graphs whose
token counts change, streams and events, times of kernels, few tokens by phases, in a graph of many layers and beside
who makes their rows, a server whose batches change, a layer that is trained, a rank that dies, buffers that come and
go, what calls cost the host and take in a row, and 4 ranks on 2 nodes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import statistics
import time
import unittest
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import epforge
import torch_callers
import torch_calls
import torch_refs
from epforge import autograd, deep_ep
from epforge.deep_ep.utils.math import calc_diff, per_token_cast_to_fp8
from epforge.deep_ep.utils.testing import bench, bench_kineto
from torch_calls import gathered, ranks_in_processes

TOKENS, HIDDEN, TOPK, EXPERTS = 4096, 7168, 8, 256


def made(tokens: int = TOKENS, **options: Any) -> epforge.Buffer:
    """A buffer of the processes of this run."""
    shape = {"tokens": tokens, "hidden": HIDDEN, "topk": TOPK, "experts": EXPERTS}
    return epforge.Buffer(epforge.Group.from_torch(timeout=10), **shape, **options)


def drawn(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random rows, experts and weights."""
    ids = torch.rand(tokens, EXPERTS).topk(TOPK, dim=1).indices
    return torch.randn(tokens, HIDDEN).to(torch.bfloat16), ids, torch.rand(tokens, TOPK)


def arriving(x: torch.Tensor, ids: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """The rows that arrive at a rank, in order."""
    own = [((ids // (EXPERTS // ranks)) == rank).any(1) for ids in gathered(ids)]
    return torch.cat([x[its] for x, its in zip(gathered(x), own, strict=True)])


def added(x: torch.Tensor, ids: torch.Tensor, ranks: int) -> torch.Tensor:
    """The sums of a combine whose experts leave the rows as they are: once for each rank, and rounded once."""
    owners = ids // (EXPERTS // ranks)
    times = torch.stack([(owners == rank).any(1) for rank in range(ranks)], 1).sum(1, keepdim=True)
    return (x.float() * times).to(torch.bfloat16)


def full_size(rank: int, ranks: int) -> None:
    """Rows of both types at full size, as views of the window and on a stream beside torch's."""
    buffer = made(live=2)
    x, ids, weights = drawn(TOKENS - rank)
    received, handle = buffer.dispatch(x, ids, weights)
    wanted = arriving(x, ids, rank, ranks)
    rows = received.x
    assert rows.data_ptr() != 0 and torch.equal(rows, wanted)
    sums = buffer.combine(rows, handle, received.topk_weights)
    assert torch.equal(sums.x, added(x, ids, ranks))
    # A view keeps its place, whatever became of the output.
    del received, sums
    others = [buffer.dispatch(torch.zeros_like(x), ids, weights) for _ in range(1)]
    assert torch.equal(rows, wanted)
    try:
        buffer.dispatch(x, ids, weights)
    except epforge.AllInUse as error:
        assert "2 " in str(error)
    else:
        raise AssertionError("a third output was given")
    del rows, others
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        received, handle = buffer.dispatch(x, ids, weights)
        sums = buffer.combine(received, handle)
    torch.cuda.current_stream().wait_stream(beside)
    assert torch.equal(sums.x, added(x, ids, ranks))
    del received
    fp8 = made(payload="fp8", weights=False)
    values, scale = per_token_cast_to_fp8(x)
    received, handle = fp8.dispatch(values, ids, scale=scale)
    wanted = arriving(values.view(torch.uint8), ids, rank, ranks)
    assert torch.equal(received.x.view(torch.uint8), wanted)
    assert torch.equal(received.scale, arriving(scale, ids, rank, ranks))


def offered(rank: int, ranks: int) -> None:
    """Weights that were left in a combine input, beside rows in the same one, in place, and in an array."""
    buffer = made(128, live=2)
    x, ids, weights = drawn(128)
    received, handle = buffer.dispatch(x, ids, weights)
    left = buffer.offer(handle)
    left.x[: received.rows] = received.x
    there = torch.stack([(ids // (EXPERTS // ranks) == rank).any(1) for rank in range(ranks)], 1).sum(1, keepdim=True)
    for factor, rows in enumerate((left, received, received.x), start=1):
        left.weights[:] = factor
        combined = buffer.combine(rows, handle, left)
        assert torch.equal(combined.x, added(x, ids, ranks)), factor
        assert torch.equal(combined.weights, (factor * there).expand(-1, TOPK).float()), factor
    try:
        buffer.combine(buffer.offer(handle), handle, left)
    except epforge.Mismatch as error:
        assert "two combine inputs" in str(error)
    else:
        raise AssertionError("rows and weights of two combine inputs were taken")


def graphs(rank: int, ranks: int) -> None:
    """Dispatch and combine in a graph of torch, replayed with other numbers of tokens."""
    buffer = made(128, weights=False)
    most, ids, _ = drawn(128)
    count = torch.tensor([128], dtype=torch.int32)
    out = torch.empty_like(most)
    graph = torch.cuda.CUDAGraph()

    def call() -> None:
        received, handle = buffer.dispatch(most, ids, tokens_from=count)
        buffer.combine(received, handle, out=out)

    call()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.graph(graph):
        call()
    for tokens in (128, 1, 0, 77, 128):
        x, others, _ = drawn(tokens)
        most[:tokens], ids[:tokens] = x, others
        count.fill_(tokens)
        with buffer.group.around(torch.cuda.current_stream().cuda_stream or 1):
            graph.replay()
        buffer.group.sync()
        torch.cuda.synchronize()
        assert torch.equal(out[:tokens], added(x, others, ranks)), tokens
    times = []
    for _ in range(20):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        with buffer.group.around(torch.cuda.current_stream().cuda_stream or 1):
            graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(begun.elapsed_time(ended) * 1e3)
    if rank == 0:
        print(f"graph of dispatch and combine, 128 tokens: {statistics.median(times):.1f} us", flush=True)


def elastic_graphs(rank: int, ranks: int) -> None:
    """vLLM's decode with the second API: the layers of a model in a graph for each size of a batch, replayed in any
    order beside eager calls. One graph has more layers than a buffer has handles."""
    buffer = deep_ep.ElasticBuffer(
        dist.group.WORLD, num_max_tokens_per_rank=2048, hidden=HIDDEN, num_topk=TOPK, allow_multiple_reduction=False
    )

    def layer(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, beside: bool) -> torch.Tensor:
        rows, came, factors, handle, _ = buffer.dispatch(
            x, ids, weights, num_experts=EXPERTS, num_max_tokens_per_rank=x.shape[0], do_cpu_sync=False
        )
        factor = torch.where(came >= 0, factors, 0).sum(1, keepdim=True)
        made = (rows.float() * factor).to(torch.bfloat16)
        sums, _, event = buffer.combine(made, handle, async_with_compute_stream=beside)
        if beside:
            event.current_stream_wait()
        return sums

    graphs = {}
    for tokens, layers in ((128, 300), (32, 4), (1, 4), (512, 4)):
        given = [it.contiguous() for it in drawn(tokens)]
        out = torch.empty_like(given[0])

        def call(given: Any = given, out: torch.Tensor = out, layers: int = layers) -> None:
            x = given[0]
            for number in range(layers):
                x = layer(x, *given[1:], beside=number % 2 == 1)
            out.copy_(x)

        layer(*given, beside=True)
        torch.cuda.synchronize()
        dist.barrier()
        graphs[tokens] = (captured(f"{layers} layers of {tokens} tokens", call), given, out)
    together = random.Random(3)
    for turn in range(40):
        tokens = together.choice(list(graphs))
        graph, given, out = graphs[tokens]
        x, ids, weights = drawn(tokens)
        weights = weights.softmax(1)
        for it, fresh in zip(given, (x, ids, weights), strict=True):
            it.copy_(fresh)
        graph.replay()
        if turn % 3 == 0:
            assert calc_diff(layer(x, ids, weights, beside=False), x) < 1e-4, turn
        # Each layer rounds a few times.
        assert calc_diff(out, x) < 1e-2, (turn, tokens)


def captured(what: str, call: Any) -> torch.cuda.CUDAGraph:
    """A graph of a call. If it fails, the first error says why: torch raises another one as it ends the capture."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        raise AssertionError(f"{what} cannot be captured: {first!r}") from first
    return graph


def gone_in_a_capture(rank: int, ranks: int) -> None:
    """A buffer and low-latency calls that go while torch captures: as its collector of garbage may have them go."""
    buffer, others = made(128, weights=False), [made(128, weights=False)]
    x, ids, factors = drawn(128)
    out = torch.empty_like(x)

    def call(it: epforge.Buffer) -> None:
        received, handle = it.dispatch(x, ids)
        it.combine(received, handle, out=out)

    shape = {"tokens": 128, "hidden": HIDDEN, "topk": TOPK, "experts": EXPERTS}
    low = epforge.LowLatency(others[0].group, **shape)
    packed = low.dispatch(x, ids)
    low.combine(packed.x, packed, factors)
    call(others[0])
    call(buffer)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(buffer)
        others.clear()
        del packed, low
        gc.collect()
        call(buffer)
    for _ in range(3):
        out.zero_()
        with buffer.group.around(torch.cuda.current_stream().cuda_stream or 1):
            graph.replay()
        buffer.group.sync()
        torch.cuda.synchronize()
        assert torch.equal(out, added(x, ids, ranks))


def behind_an_event(rank: int, ranks: int) -> None:
    """Calls behind an event wait for nothing that the caller's stream does after it, and read nothing that it makes."""
    x, ids, weights = drawn(TOKENS - rank)
    wanted = arriving(x, ids, rank, ranks)
    in_rank = torch.stack([(ids // (EXPERTS // ranks) == to).any(1) for to in range(ranks)], 1)
    per_expert = torch.bincount(ids.flatten(), minlength=EXPERTS).int()
    first = deep_ep.Buffer(dist.group.WORLD)
    layout = {"num_tokens_per_rank": in_rank.sum(0).int(), "is_token_in_rank": in_rank}
    later = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=TOKENS)
    calls = (
        lambda event: first.dispatch(
            x, **layout, num_tokens_per_expert=per_expert, previous_event=event, async_finish=True
        ),
        lambda event: later.dispatch(
            x, ids, weights, num_experts=EXPERTS, previous_event=event.event, async_with_compute_stream=True
        ),
    )
    for call in calls:
        # The first call makes the buffer; the second one is on the same stream, and so waits for the event alone.
        for busy in (False, True):
            event = deep_ep.Buffer.capture()
            if busy:
                # Half a second, in which a copy on this stream would not be made.
                torch.cuda._sleep(1_000_000_000)
            came, *_, handle, done = call(event)
            done.current_stream_wait()
            assert torch.equal(came, wanted), busy
    assert torch.equal(handle.topk_idx, ids)


def kernel_times(rank: int, ranks: int) -> None:
    """Times of kernels by their names, as tests of deep_ep ask for them; a name of none is refused."""
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=TOKENS)
    x, ids, weights = drawn(TOKENS)

    def there_and_back() -> None:
        rows, _, factors, handle, _ = buffer.dispatch(x, ids, weights, num_experts=EXPERTS)
        buffer.combine(rows, handle, factors)

    together = {"barrier_comm_profiling": True, "barrier": buffer.barrier}
    there, back = bench_kineto(there_and_back, kernel_names=("nvl_dispatch", "nvl_combine"), **together)
    assert 1e-6 < there < 0.1 and 1e-6 < back < 0.1, (there, back)
    (backs,) = bench_kineto(lambda: (there_and_back(), there_and_back()), ("nvl_combine",), 5, num_kernels_per_period=2)
    assert len(backs) == 2 and all(1e-6 < time < 0.1 for time in backs), backs
    mean, least, most = bench(there_and_back, num_warmups=2, num_tests=5)
    assert there < least <= mean <= most, (there, least, mean, most)
    try:
        bench_kineto(there_and_back, "no_such_kernel", num_tests=1)
    except epforge.Mismatch as error:
        assert "no kernel that ran has a name with `no_such_kernel`" in str(error) and "nvl_combine" in str(error)
    else:
        raise AssertionError("a kernel was found that is not there")
    if rank == 0:
        print(f"kernels of the facade: dispatch {there * 1e6:.1f} us, combine {back * 1e6:.1f} us", flush=True)


def few_tokens(rank: int, ranks: int) -> None:
    """Low latency at full size: every cast by phases, on two streams, and all layers of a model in one graph."""
    tokens, layers = 128, 61
    low = epforge.LowLatency(
        epforge.Group.from_torch(timeout=10), tokens=tokens, hidden=HIDDEN, topk=TOPK, experts=EXPERTS, between=2
    )
    x, ids, weights = drawn(tokens - rank)
    wanted = x.float() * weights.sum(1, keepdim=True)
    beside = torch.cuda.Stream()
    for payload in ("bf16", "fp8", "fp8-packed"):
        statistics = torch.zeros(low.local_experts, dtype=torch.int32)
        packed = low.dispatch(x, ids, payload=payload, later=True, statistics=statistics)
        other = low.dispatch(x, ids, payload=payload, later=True)
        packed.receive()
        assert torch.equal(statistics, packed.counts)
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            other.receive()
            torch.testing.assert_close(other.counts, packed.counts, rtol=0, atol=0)
        torch.cuda.current_stream().wait_stream(beside)
        if payload == "bf16":
            sums = low.combine(packed.x, packed, weights, later=True)
            sums.receive()
            assert calc_diff(sums.x, wanted) < 1e-5
    most, ids, weights = drawn(tokens)
    out = [torch.empty_like(most) for _ in range(layers)]

    def call() -> None:
        for layer in range(layers):
            packed = low.dispatch(most, ids)
            low.combine(packed.x, packed, weights, out=out[layer])

    call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for used in (tokens, 1, 0, 77):
        x, others, factors = drawn(tokens)
        most.copy_(x)
        ids.copy_(others)
        # What is not used names no expert.
        ids[used:] = -1
        weights.copy_(factors)
        with low.group.around(torch.cuda.current_stream().cuda_stream or 1):
            graph.replay()
        low.group.sync()
        wanted = (x.float() * factors.sum(1, keepdim=True))[:used]
        for layer in (0, layers - 1):
            assert not used or calc_diff(out[layer][:used], wanted) < 1e-5, (used, layer)


def serving(rank: int, ranks: int, seconds: float) -> None:
    """A server decodes for a while: a graph of several layers for each size of a batch, filled anew at each step."""
    sizes, layers, hidden, experts = (1, 8, 32, 128), 4, 2048, 64
    low = epforge.LowLatency(
        epforge.Group.from_torch(timeout=10), tokens=128, hidden=hidden, topk=TOPK, experts=experts, way="per-rank",
        weights_ahead=True, payload="bf16",
    )  # fmt: skip
    gains = torch.linspace(0.5, 1.5, experts)
    own = gains.view(ranks, -1)[rank].to(torch.bfloat16).view(-1, 1, 1)
    batches = {}
    for size in sizes:
        ids, weights = torch.full((size, TOPK), -1), torch.zeros(size, TOPK)
        batches[size] = (torch.zeros(size, hidden, dtype=torch.bfloat16), ids, weights)

    def layer(size: int, x: torch.Tensor) -> torch.Tensor:
        _, ids, weights = batches[size]
        packed = low.dispatch(x, ids, weights)
        return low.combine(packed.x * own, packed).x

    def step(size: int) -> torch.Tensor:
        x = batches[size][0]
        for _ in range(layers):
            x = layer(size, x)
        return x

    decoded = {}
    for size in sizes:
        step(size)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step(size)
        decoded[size] = (graph, out)
    together, begun, steps, goes_on = random.Random(7), time.monotonic(), 0, torch.ones(1)
    while goes_on.item():
        for _ in range(50):
            size = together.choice(sizes)
            used = int(torch.randint(0, size + 1, (1,)).item())
            x, ids, weights = batches[size]
            x.copy_(torch.randn(size, hidden))
            ids.copy_(torch.rand(size, experts).topk(TOPK, dim=1).indices)
            ids[used:] = -1
            weights.copy_(torch.rand(size, TOPK).softmax(1))
            graph, out = decoded[size]
            with low.group.around(torch.cuda.current_stream().cuda_stream or 1):
                graph.replay()
            low.group.sync()
            factor = (weights * gains[ids.clamp(min=0)]).sum(1, keepdim=True) ** layers
            assert not used or calc_diff(out[:used], (x.float() * factor)[:used]) < 1e-4, (steps, size, used)
            steps += 1
        goes_on.fill_(time.monotonic() - begun < seconds)
        dist.broadcast(goes_on, 0)
    if rank == 0:
        print(f"{steps} steps of {layers} layers in {time.monotonic() - begun:.0f} s, all sums right", flush=True)


def words(rank: int, ranks: int) -> None:
    """Rows that a combine sends while another stream still makes others, and words of what a dispatch has packed."""
    low = epforge.LowLatency(
        epforge.Group.from_torch(timeout=10), tokens=128, hidden=HIDDEN, topk=TOPK, experts=EXPERTS
    )
    beside, current = torch.cuda.Stream(), torch.cuda.current_stream()
    for turn in range(24):
        x, ids, weights = drawn(128 - turn - rank)
        tiles = torch.zeros(low.local_experts, low.tiles, dtype=torch.int32)
        parts = torch.zeros(low.local_experts, dtype=torch.int32)
        packed = low.dispatch(x, ids, arrived_rows=tiles, arrived_parts=parts)
        assert torch.equal(tiles.sum(1), packed.counts) and (parts == low.parts).all()
        name, done = ("expert_done", parts) if turn % 2 else ("tile_done", tiles)
        rows = torch.full_like(packed.x, float("nan"))
        beside.wait_stream(current)
        # Kernels are loaded by their first launch, which waits for all that run.
        made_beside(beside, rows, packed.x, done)
        current.wait_stream(beside)
        rows.fill_(float("nan"))
        done.zero_()
        beside.wait_stream(current)
        sums = low.combine(rows, packed, weights, sms=4, done_at=2, **{name: done})
        made_beside(beside, rows, packed.x, done)
        current.wait_stream(beside)
        assert calc_diff(sums.x, x.float() * weights.sum(1, keepdim=True)) < 1e-5, (turn, name)
    low.group.sync()


def made_beside(stream: torch.cuda.Stream, rows: torch.Tensor, of: torch.Tensor, done: torch.Tensor) -> None:
    """Rows of one expert after another on another stream, each of which it tells by raising words twice."""
    with torch.cuda.stream(stream):
        done += 1
        torch.cuda._sleep(100_000)
        for expert in torch.randperm(len(rows), device="cpu").tolist():
            rows[expert] = of[expert]
            done[expert] += 1


def in_a_row(rank: int, ranks: int) -> None:
    """Calls of 128 tokens one after another: what they take from Python, whatever binds them, with as many SMs as the
    other system had, and with as many as kernels take by themselves."""
    buffer = made(128, weights=False)
    x, ids, _ = drawn(128)

    def time_of(call: Any, calls: int = 400) -> float:
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / calls * 1e6

    for sms in (24, None):
        torch.set_default_device(None)
        there = time_of(lambda sms=sms: buffer.dispatch(x, ids, sms=sms))
        received, handle = buffer.dispatch(x, ids)
        in_place = time_of(lambda sms=sms, it=(received, handle): buffer.combine(*it, sms=sms))
        rows = received.x.clone()
        del received
        back = time_of(lambda sms=sms, it=(rows, handle): buffer.combine(*it, sms=sms))
        torch.set_default_device(x.device)
        assert torch.equal(buffer.combine(rows, handle, sms=sms).x, added(x, ids, ranks))
        if rank == 0:
            parts = f"dispatch {there:.1f} us, combine in place {in_place:.1f} us, of an array {back:.1f} us"
            print(f"128 tokens in a row, {sms or 'all'} SMs: {parts}", flush=True)


def graph_times(rank: int, ranks: int) -> None:
    """A dispatch and a combine of what it left, 40 times a graph, as `epforge bench --op both --graph 40` does it."""
    calls, replays = 40, 221
    # A graph keeps the outputs of its calls.
    buffer = made(128, live=calls + 1, handles=calls + 1)
    x, _, weights = drawn(128)
    # Routed evenly, as there.
    ids = (2 * torch.arange(128)[:, None] + EXPERTS // TOPK * torch.arange(TOPK)) % EXPERTS
    out = torch.empty_like(x)

    # What goes back is left in one place for all of them.
    left = buffer.offer(buffer.dispatch(x, ids, weights)[1])
    left.weights[:] = 1

    def pair() -> None:
        received, handle = buffer.dispatch(x, ids, weights, sms=24)
        buffer.combine(received, handle, left, out=out, sms=24)

    pair()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            pair()
    # As the bench: from the end of each replay to that of the next, and the median of that over all and over the ranks.
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(replays)]
    dist.barrier()
    with buffer.group.around(torch.cuda.current_stream().cuda_stream or 1):
        for end in ends:
            graph.replay()
            end.record()
    torch.cuda.synchronize()
    periods = [one.elapsed_time(other) / calls * 1e3 for one, other in itertools.pairwise(ends[20:])]
    times = gathered(torch.tensor([statistics.median(periods)], dtype=torch.float64))
    assert torch.equal(out, added(x, ids, ranks))
    if rank == 0:
        time = statistics.median(torch.cat(list(times)).tolist())
        print(f"graphs of {calls} pairs, 128 tokens: {time:.2f} us a pair", flush=True)


def host_time(rank: int, ranks: int) -> None:
    """What a call costs the host, while the GPU has other work."""
    buffer = made(128, weights=False)
    x, ids, factors = drawn(128)
    facade = deep_ep.Buffer(dist.group.WORLD)
    layout = facade.get_dispatch_layout(ids, EXPERTS)
    # A default device is a mode of torch that each of its functions asks, at a microsecond or more.
    torch.set_default_device(None)
    times = Times()
    for _ in range(Times.calls):
        received, handle = times.of("dispatch", lambda: buffer.dispatch(x, ids))
        times.of("combine", lambda received=received, handle=handle: buffer.combine(received, handle))
        rows = torch.zeros(128 * ranks, HIDDEN, dtype=torch.bfloat16, device=x.device)
        times.of("combine of an array", lambda rows=rows, handle=handle: buffer.combine(rows, handle))
        del received, handle
        torch.cuda.synchronize()
    named = {"num_tokens_per_rank": layout[0], "is_token_in_rank": layout[3], "num_tokens_per_expert": layout[2]}
    for _ in range(Times.calls):
        # All may come, so that nobody waits for the counts.
        whole = {"topk_idx": ids, "num_worst_tokens": 128 * ranks}
        sent = times.of("facade dispatch", lambda whole=whole: facade.dispatch(x, **named, **whole))
        times.of("facade combine", lambda sent=sent: facade.combine(sent[0], sent[4]))
        times.of("facade layout", lambda: facade.get_dispatch_layout(ids, EXPERTS))
        # As vLLM makes it.
        sent = times.of(
            "facade dispatch, async", lambda whole=whole: facade.dispatch(x, **named, **whole, async_finish=True)
        )
        sent[5].current_stream_wait()
        facade.combine(sent[0], sent[4])
        torch.cuda.synchronize()
    for way in ("per-expert", "per-rank"):
        for payload in ("bf16", "fp8"):
            few_host_times(times, way, payload, buffer.group, (x, ids, factors))
    torch.set_default_device(x.device)
    if rank == 0:
        print(f"host time of a call in us, median: {times}", flush=True)


def few_host_times(times: Times, way: str, payload: str, group: epforge.Group, inputs: tuple[Any, Any, Any]) -> None:
    """The same of low-latency calls of a way and a payload, and of the facade's."""
    (x, ids, factors), name = inputs, f"{way} {payload}"
    low = epforge.LowLatency(group, tokens=128, hidden=HIDDEN, topk=TOPK, experts=EXPERTS, payload=payload, way=way)
    facade = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True)
    facade.low_latency_way = way
    rows = torch.zeros(low.local_experts, group.ranks * 128, HIDDEN, dtype=torch.bfloat16, device=x.device)
    for _ in range(Times.calls):
        packed = times.of(f"few {name}", lambda: low.dispatch(x, ids))
        times.of(f"its results {name}", lambda packed=packed: (packed.x, packed.scale, packed.counts))
        times.of(f"few back {name}", lambda packed=packed: low.combine(rows, packed, factors))
        torch.cuda.synchronize()
    # Whatever is quick, these are the kernels of the way.
    assert [bool(low._dispatchers), bool(low._whole)] == [way == "per-expert", way == "per-rank"]
    for _ in range(Times.calls):
        fp8 = payload == "fp8"
        sent = times.of(
            f"facade few {name}", lambda fp8=fp8: facade.low_latency_dispatch(x, ids, 128, EXPERTS, use_fp8=fp8)
        )
        times.of(f"facade few back {name}", lambda sent=sent: facade.low_latency_combine(rows, ids, factors, sent[2]))
        torch.cuda.synchronize()


class Times:
    """Microseconds of calls by their names."""

    calls = 100

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def of(self, name: str, call: Any) -> Any:
        """What a call gives, whose time is noted."""
        begun = time.perf_counter()
        made = call()
        self.spent.setdefault(name, []).append((time.perf_counter() - begun) * 1e6)
        return made

    def __str__(self) -> str:
        # The first ones compile and load.
        return ", ".join(f"{name} {statistics.median(all_[20:]):.1f}" for name, all_ in self.spent.items())


def training(rank: int, ranks: int, steps: int) -> None:
    """A layer whose experts are on all ranks, beside one that has all of them: the same sums, bit for bit."""
    tokens, hidden, experts, topk = 64, 128, 8, 2
    local = experts // ranks
    buffer = epforge.Buffer(
        epforge.Group.from_torch(), tokens=tokens, hidden=hidden, topk=topk, experts=experts, weights=False, handles=4
    )
    torch.manual_seed(1)
    every = [torch.randn(experts, hidden) * 0.02 + 1 for _ in range(2)]
    mine = every[0][rank * local : (rank + 1) * local].clone().requires_grad_()
    whole = every[0].clone().requires_grad_()
    ours, theirs = torch.optim.SGD([mine], 0.05), torch.optim.SGD([whole], 0.05)
    torch.manual_seed(2 + rank)
    target, losses = every[1], [0.0, 0.0]
    for _ in range(steps):
        x = torch.randn(tokens, hidden).to(torch.bfloat16)
        ids = torch.rand(tokens, experts).topk(topk, dim=1).indices
        wanted = (x.float() * target[ids].sum(1)).detach()
        rows, came, _, handle = autograd.dispatch(buffer, x.requires_grad_(), ids)
        factors = torch.where(came[..., None] >= 0, mine[came.clamp(min=0)], 0).sum(1)
        sums = autograd.combine((rows.float() * factors).to(torch.bfloat16), handle)
        plain = torch.zeros(tokens, hidden)
        for other in range(ranks):
            here = (ids // local == other)[..., None]
            plain = plain + (x.float() * torch.where(here, whole[ids], 0).sum(1)).to(torch.bfloat16).float()
        plain = plain.to(torch.bfloat16)
        # Each rank trains the same experts from its own tokens: their gradients come together below.
        losses = [((made.float() - wanted) ** 2).mean() for made in (sums, plain)]
        for optimizer, loss in zip((ours, theirs), losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        dist.all_reduce(whole.grad)
        assert torch.equal(sums, plain)
        theirs.step()
        ours.step()
        # What the layers learn may differ in the last bits of its sums: forward is compared on the same experts.
        own = whole.detach()[rank * local : (rank + 1) * local]
        torch.testing.assert_close(mine.detach(), own, rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            mine.copy_(own)
    if rank == 0:
        print(f"{steps} steps: loss {losses[0].item():.6f} with expert parallelism, {losses[1].item():.6f} without")


def dead_rank(rank: int, ranks: int) -> None:
    """A rank that ends is an error of the others, within the timeout."""
    group = epforge.Group.from_torch(timeout=2)
    buffer = epforge.Buffer(group, tokens=128, hidden=HIDDEN, topk=TOPK, experts=EXPERTS, weights=False)
    x, ids, _ = drawn(128)
    buffer.dispatch(x, ids)[0].x.sum().item()
    dist.barrier()
    if rank == ranks - 1:
        # As if it were killed: nothing is given back.
        os._exit(0)
    begun = time.monotonic()
    try:
        buffer.dispatch(x, ids)
        group.sync()
    except epforge.Timeout as error:
        took = time.monotonic() - begun
        assert f"rank {ranks - 1}" in str(error) and took < 6, (took, str(error))
    else:
        raise AssertionError("nobody missed the rank")
    # There is nobody left to say goodbye to.
    os._exit(0)


def come_and_go(rank: int, ranks: int, buffers: int) -> None:
    """Buffers that are made and dropped leave no memory behind."""
    group = epforge.Group.from_torch()
    left = []
    for turn in range(buffers):
        buffer = epforge.Buffer(group, tokens=64, hidden=512, topk=4, experts=16, weights=False)
        x, ids = torch.ones(64, 512, dtype=torch.bfloat16), torch.zeros(64, 4, dtype=torch.int64)
        received, handle = buffer.dispatch(x, ids)
        buffer.combine(received, handle)
        group.sync()
        del received, handle, buffer
        if turn in (buffers // 4, buffers - 1):
            dist.barrier()
            left.append(torch.cuda.mem_get_info()[0])
    assert left[1] >= left[0] - (16 << 20), left


def one_after_another(rank: int, ranks: int, steps: int, buffers: int, seconds: float, only: str) -> None:
    """All parts that leave their ranks alive, in the same processes."""
    parts: list[tuple[Any, ...]] = [
        (torch_calls.layer_in_processes,),
        (full_size,),
        (offered,),
        (graphs,),
        (elastic_graphs,),
        (gone_in_a_capture,),
        (behind_an_event,),
        (kernel_times,),
        (few_tokens,),
        (serving, seconds),
        (words,),
        (in_a_row,),
        (graph_times,),
        (host_time,),
        (torch_calls.legacy_in_processes,),
        (torch_calls.low_latency_in_processes,),
        (torch_calls.low_latency_per_rank,),
        (torch_callers.trainer,),
        (torch_callers.server,),
        (torch_callers.warmed_up,),
        (torch_callers.longer_prompt,),
        (torch_callers.documented,),
        (torch_calls.later_in_processes, "ElasticBuffer"),
        (torch_calls.later_in_processes, "EPBuffer"),
        (torch_refs.arriving, "ElasticBuffer"),
        (torch_refs.arriving, "EPBuffer"),
        (torch_refs.padding,),
        (torch_refs.as_many_scales,),
        (torch_refs.scales_in_words,),
        (torch_refs.going_back, "ElasticBuffer"),
        (torch_refs.going_back, "EPBuffer"),
        (torch_refs.in_order,),
        (torch_calls.gradients_in_processes,),
        (training, steps),
        (come_and_go, buffers),
    ]
    for part, *arguments in parts:
        if only not in part.__name__:
            continue
        begun = time.monotonic()
        torch.manual_seed(rank)
        part(rank, ranks, *arguments)
        dist.barrier()
        if rank == 0:
            print(f"{part.__name__} {arguments}: {time.monotonic() - begun:.1f} s", flush=True)


def between_nodes(rank: int, ranks: int, only: str) -> None:
    """Calls of ranks on two nodes, with a process for each of them and a network between."""
    parts: list[tuple[Any, ...]] = [
        (torch_calls.layer_in_processes, 2),
        (torch_calls.legacy_in_processes, 2),
        (torch_calls.low_latency_in_processes,),
        (torch_callers.trainer,),
    ]
    for part, *arguments in parts:
        if only not in part.__name__:
            continue
        begun = time.monotonic()
        torch.manual_seed(rank)
        part(rank, ranks, *arguments)
        dist.barrier()
        if rank == 0:
            net = os.environ["EPFORGE_NET"]
            print(f"{part.__name__} on 2 nodes over {net}: {time.monotonic() - begun:.1f} s", flush=True)


class Gpus(unittest.TestCase):
    """In processes with a GPU each, if there are enough."""

    ranks, steps, buffers, seconds, only = 2, 200, 1000, 10.0, ""

    def test_calls(self) -> None:
        parts = (self.steps, self.buffers, self.seconds, self.only)
        ranks_in_processes(self.ranks, "cuda", one_after_another, *parts)

    def test_dead_rank(self) -> None:
        ranks_in_processes(self.ranks, "cuda", dead_rank)

    def test_nodes(self) -> None:
        for net in ("shm", "tcp"):
            with mock.patch.dict(os.environ, {"EPFORGE_NET": net}):
                ranks_in_processes(4, "cuda", between_nodes, self.only, nodes=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=Gpus.ranks, help="processes within a node")
    parser.add_argument("--steps", type=int, default=Gpus.steps, help="steps of the training")
    parser.add_argument("--buffers", type=int, default=Gpus.buffers, help="buffers that come and go")
    parser.add_argument("--seconds", type=float, default=Gpus.seconds, help="how long the server decodes")
    parser.add_argument("--only", default=Gpus.only, help="a part of the name of the parts that run")
    known, rest = parser.parse_known_args()
    for name, value in vars(known).items():
        setattr(Gpus, name, value)
    unittest.main(argv=["gpu.py", *rest])
