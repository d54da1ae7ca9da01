"""torch in the emulator: tensors on the host, process groups, gradients, and the facades as their users test them."""

from __future__ import annotations

import os
import socket
import tempfile
import unittest
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import epforge
from epforge import autograd, deep_ep
from epforge.deep_ep.utils.math import calc_diff, per_token_cast_back, per_token_cast_to_fp8

HIDDEN, TOPK, EXPERTS = 256, 3, 8

#: Values of a row whose scales fill words.
WIDE = 512

#: Where the tensors are: a run on GPUs says so.
PLACE = os.environ.get("EPFORGE_TEST_PLACE", "cpu")


def ranks_in_processes(ranks: int, place: str, test: Callable[..., None], *arguments: Any, nodes: int = 1) -> None:
    """Runs a test in a process for each rank, with tensors on the host or on GPUs, which are shared if need be."""
    with tempfile.TemporaryDirectory() as folder:
        # The first one that fails ends the others, and its error is raised here.
        mp.spawn(_process, (ranks, nodes, place, folder, test, arguments), nprocs=ranks)


def _process(
    rank: int, ranks: int, nodes: int, place: str, folder: str, test: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    # As torchrun says it.
    os.environ["GROUP_RANK"] = str(rank * nodes // ranks)
    if nodes > 1:
        # On GPUs each host is a node.
        name = f"{socket.gethostname()}, node {rank * nodes // ranks}"
        socket.gethostname = lambda: name
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.set_num_threads(1)
    backend = "gloo"
    if place == "cuda":
        count = torch.cuda.device_count()
        torch.cuda.set_device(rank % count)
        # NCCL wants a GPU for each rank.
        backend = "cpu:gloo,cuda:nccl" if ranks <= count else backend
    torch.set_default_device(torch.device(place, torch.cuda.current_device()) if place == "cuda" else place)
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    test(rank, ranks, *arguments)
    dist.destroy_process_group()


def routed(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of some tokens; a few entries name none."""
    scores = torch.rand(tokens, EXPERTS)
    ids = scores.topk(TOPK, dim=1).indices
    ids[torch.rand(tokens, TOPK) < 0.1] = -1
    return ids, torch.randint(1, 9, (tokens, TOPK)).float() / 8


def whole(tokens: int) -> torch.Tensor:
    """Rows of small whole numbers, whose sums are not rounded."""
    return torch.randint(-8, 8, (tokens, HIDDEN)).to(torch.bfloat16)


def times(ids: torch.Tensor, ranks: int) -> torch.Tensor:
    """How many ranks each token goes to."""
    owners = torch.where(ids < 0, ranks, ids // (EXPERTS // ranks))
    return torch.stack([(owners == rank).any(1) for rank in range(ranks)], 1).sum(1, keepdim=True)


def gathered(own: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks."""
    brought: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(brought, own.cpu())
    return [tensor.to(own.device) for tensor in brought]


def arrivals(x: torch.Tensor, ids: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """The rows that arrive at a rank, in order."""
    local = EXPERTS // ranks
    rows = [x[((ids >= 0) & (ids // local == rank)).any(1)] for x, ids in zip(gathered(x), gathered(ids), strict=True)]
    return torch.cat(rows)


def layer_in_processes(rank: int, ranks: int, nodes: int = 1) -> None:
    group = epforge.Group.from_torch(device=torch.get_default_device())
    assert group.nodes == nodes
    buffer = epforge.Buffer(group, tokens=8, hidden=HIDDEN, topk=TOPK, experts=EXPERTS)
    tokens = [5, 0, 7, 4][rank]
    x, (ids, weights) = whole(tokens), routed(tokens)
    received, handle = buffer.dispatch(x, ids, weights)
    assert isinstance(received.x, torch.Tensor) and received.x.dtype == torch.bfloat16
    assert torch.equal(received.x, arrivals(x, ids, rank, ranks))
    out = torch.empty_like(x)
    sums = buffer.combine(received.x, handle, received.topk_weights, out=out)
    assert sums.x is out
    assert torch.equal(out.float(), x.float() * times(ids, ranks))
    assert torch.equal(sums.weights, torch.where(ids >= 0, weights, 0))


def gradients_in_processes(rank: int, ranks: int) -> None:
    """A layer with experts on all ranks, against the same layer with all experts here."""
    group = epforge.Group.from_torch(device=torch.get_default_device())
    buffer = epforge.Buffer(group, tokens=8, hidden=HIDDEN, topk=TOPK, experts=EXPERTS, handles=4)
    local, tokens = EXPERTS // ranks, 6
    factors = torch.arange(1, EXPERTS + 1).float()
    x, (ids, weights) = whole(tokens), routed(tokens)

    def mine() -> list[torch.Tensor]:
        own, factor = x.clone().requires_grad_(), weights.clone().requires_grad_()
        for _ in range(2):  # Two layers share the buffer.
            rows, experts, scales, handle = autograd.dispatch(buffer, own, ids, factor)
            spread = torch.where(experts >= 0, factors[rank * local + experts.clamp(min=0)] * scales, 0.0)
            sums = autograd.combine((rows.float() * spread.sum(1, keepdim=True)).to(torch.bfloat16), handle)
        (sums.float() * torch.arange(HIDDEN).remainder(3)).sum().backward()
        return [sums, own.grad, factor.grad]

    def alone() -> list[torch.Tensor]:
        own, factor = x.clone().requires_grad_(), weights.clone().requires_grad_()
        spread = torch.where(ids >= 0, factors[ids.clamp(min=0)] * factor, 0.0)
        sums = torch.zeros(tokens, HIDDEN)
        for other in range(ranks):
            here = torch.where(ids // local == other, spread, 0.0).sum(1, keepdim=True)
            sums = sums + (own.float() * here).to(torch.bfloat16).float()
        sums = sums.to(torch.bfloat16)
        (sums.float() * torch.arange(HIDDEN).remainder(3)).sum().backward()
        return [sums, own.grad, factor.grad]

    (sums, x_grad, weights_grad), (wanted, wanted_x, wanted_weights) = mine(), alone()
    assert torch.equal(sums, wanted)
    torch.testing.assert_close(x_grad, wanted_x, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(weights_grad, wanted_weights, rtol=2e-2, atol=1e-1)


def cast_back(x: Any) -> torch.Tensor:
    """bfloat16 rows, of what a dispatch of either type gives."""
    return per_token_cast_back(*x) if isinstance(x, tuple) else x


def legacy_in_processes(rank: int, ranks: int, nodes: int = 1) -> None:
    """The first API: rows with and without experts, FP8, events, cached, worst case, biases."""
    group = dist.group.WORLD
    # Early versions of the API destroy any buffer, and have no word for it.
    buffer = deep_ep.Buffer(group)
    tokens = [9, 4, 0, 7][rank]
    x, (ids, weights) = whole(tokens), routed(tokens)
    ids[:, 1] = torch.where(ids[:, 1] == ids[:, 0], -1, ids[:, 1])
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    assert torch.equal(in_rank.sum(1, keepdim=True), times(ids, ranks))
    if nodes == 1:
        assert per_node is None
    else:
        on_node = in_rank.unflatten(1, (nodes, ranks // nodes)).any(2)
        assert per_node.dtype == torch.int32 and torch.equal(per_node, on_node.sum(0).int())
    assert per_expert.tolist() == [(ids == expert).sum().item() for expert in range(EXPERTS)]
    assert torch.equal(per_rank, in_rank.sum(0).int())
    arrived = arrivals(x, ids, rank, ranks)
    own = slice(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
    totals = sum(gathered(per_expert))[own].tolist()
    layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
    layout["num_tokens_per_rdma_rank"] = per_node
    every = list(product((x, per_token_cast_to_fp8(x)), (False, True), (False, True)))
    # Between nodes a call takes the emulator seconds.
    for rows, with_topk, previous in every if nodes == 1 else (every[2], every[5]):
        more = {"topk_idx": ids, "topk_weights": weights} if with_topk else {}
        if previous:
            more.update(previous_event=buffer.capture(), async_finish=True)
        came, came_ids, came_weights, counts, handle, event = buffer.dispatch(rows, **layout, **more)
        if previous:
            event.current_stream_wait()
        assert counts == totals, (counts, totals)
        assert calc_diff(cast_back(came), arrived) < (1e-3 if rows is not x else 1e-12)
        assert (came_ids is None) == (came_weights is None) == (not with_topk)
        ends = (handle[0][:, rank] if nodes == 1 else handle[-4]).tolist()
        assert torch.equal(handle[4 if nodes == 1 else 0], in_rank)
        assert ends[-1] == arrived.shape[0] and sorted(ends) == ends
        if with_topk:
            assert [(came_ids == e).sum().item() for e in range(EXPERTS // ranks)] == totals
            assert not came_weights[came_ids < 0].any()
        # The same tokens once more, and rows of the other type.
        for again in (rows, x):
            second = buffer.dispatch(again, handle=handle)
            assert torch.equal(
                cast_back(second[0]).view(torch.int16),
                (cast_back(came) if again is rows else arrived).view(torch.int16),
            )
            assert second[1:5] == (None, None, None, None)
        sums, sum_weights, _ = buffer.combine(arrived, handle, came_weights)
        assert torch.equal(sums.float(), x.float() * times(ids, ranks))
        if with_topk:
            assert torch.equal(sum_weights, torch.where(ids >= 0, weights, 0))
    bias = (torch.full_like(x, 2), torch.full_like(x, 3))
    sums, _, _ = buffer.combine(arrived, handle, bias=bias)
    assert torch.equal(sums.float(), x.float() * times(ids, ranks) + 5)
    worst = 40
    came, came_ids, _, counts, handle, _ = buffer.dispatch(
        x, **layout, topk_idx=ids, topk_weights=weights, num_worst_tokens=worst
    )
    assert came.shape[0] == came_ids.shape[0] == worst and counts == []
    assert torch.equal(came[: arrived.shape[0]], arrived) and (came_ids[arrived.shape[0] :] == -1).all()
    sums, _, _ = buffer.combine(came, handle)
    assert torch.equal(sums.float(), x.float() * times(ids, ranks))
    aligned = buffer.dispatch(x, **layout, topk_idx=ids, topk_weights=weights, expert_alignment=16)[3]
    assert aligned == [-(-total // 16) * 16 for total in totals]
    buffer.destroy()


def rows_as_sent(packed: Any, handle: Any, every: list[Any], every_ids: list[Any], most: int) -> Any:
    """The packed rows, each where the handle says that it is, or off by no more than its cast."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = packed if torch.is_tensor(packed) else unpacked(packed)
    src_info, layout_range, *numbers = handle
    assert numbers == [most, WIDE, EXPERTS]
    for expert in range(EXPERTS // ranks):
        for source in range(ranks):
            begin, count = (int(it) for it in (layout_range[expert, source] >> 32, layout_range[expert, source]))
            count &= 0xFFFFFFFF
            came = src_info[expert, begin : begin + count]
            sent = (every_ids[source] == rank * EXPERTS // ranks + expert).any(1).nonzero().flatten()
            assert torch.equal(came.sort().values.long(), sent)
            ours, theirs = rows[expert, begin : begin + count], every[source][came.long()]
            assert torch.equal(ours, theirs) if rows is packed else calc_diff(ours, theirs) < 1e-3
    return rows


def low_latency_per_rank(rank: int, ranks: int) -> None:
    """The same where a row travels once for each rank: every cast, with and without hook, statistics, zero copy."""
    most = 12
    buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, explicitly_destroy=True)
    buffer.low_latency_way = "per-rank"
    local, first = EXPERTS // ranks, rank * EXPERTS // ranks
    tokens = [7, 0, 12, 5][rank]
    x, (ids, weights) = torch.randn(tokens, WIDE).to(torch.bfloat16), routed(tokens)
    every, every_ids = gathered(x), gathered(ids)
    statistics = torch.zeros(local, dtype=torch.int32)
    wanted = torch.tensor([sum((ids == first + e).sum().item() for ids in every_ids) for e in range(local)])
    turn = 0
    for cast in ({"use_fp8": False}, {}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}):
        for hooked in (False, True):
            turn += 1
            how = {"async_finish": not hooked, "return_recv_hook": hooked}
            packed, counts, handle, event, hook = buffer.low_latency_dispatch(
                x, ids, most, EXPERTS, cumulative_local_expert_recv_stats=statistics, **how, **cast
            )
            hook() if hooked else event.current_stream_wait()
            assert torch.equal(counts, wanted.int()) and torch.equal(statistics, wanted.int() * turn)
            rows = rows_as_sent(packed, handle, every, every_ids, most)
            given = torch.zeros_like(rows) if hooked else rows
            if hooked:
                buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = rows
            out = torch.empty_like(x)
            sums, event, hook = buffer.low_latency_combine(
                given, ids, weights, handle, zero_copy=hooked, out=out, **how
            )  # fmt: skip
            hook() if hooked else event.current_stream_wait()
            factor = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)
            assert sums is out and (not tokens or calc_diff(sums, x.float() * factor) < 1e-3)
    # What the combines of this way do not do, those of the other one do: ten bits a value, and other experts.
    factor = torch.where(ids >= 0, weights, 0)
    sums = buffer.low_latency_combine(rows, ids, weights, handle, use_logfmt=True)[0]
    assert not tokens or calc_diff(sums, x.float() * factor.sum(1, keepdim=True)) < 1e-3
    fewer = torch.where(torch.arange(TOPK) == 0, -1, ids)
    sums = buffer.low_latency_combine(rows, fewer, weights, handle)[0]
    assert not tokens or calc_diff(sums, x.float() * factor[:, 1:].sum(1, keepdim=True)) < 1e-3
    buffer.destroy()


def low_latency_in_processes(rank: int, ranks: int) -> None:
    """The first API for few tokens: every cast, with and without hook, statistics, zero copy, LogFMT, masks."""
    group, most = dist.group.WORLD, 12
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(most, WIDE, ranks, EXPERTS)
    buffer = deep_ep.Buffer(group, num_rdma_bytes=hint, low_latency_mode=True, explicitly_destroy=True)
    buffer.clean_low_latency_buffer(most, WIDE, EXPERTS)
    local, first = EXPERTS // ranks, rank * EXPERTS // ranks
    tokens = [7, 0, 12, 5][rank]
    x, (ids, weights) = torch.randn(tokens, WIDE).to(torch.bfloat16), routed(tokens)
    every, every_ids = gathered(x), gathered(ids)
    statistics = torch.zeros(local, dtype=torch.int32)
    wanted = torch.tensor([sum((ids == first + e).sum().item() for ids in every_ids) for e in range(local)])
    turn, waits = 0, [torch.zeros(ranks, dtype=torch.int64) for _ in range(2)]
    for cast in ({"use_fp8": False}, {}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}):
        for hooked in (False, True):
            turn += 1
            packed, counts, handle, event, hook = buffer.low_latency_dispatch(
                x, ids, most, EXPERTS, cumulative_local_expert_recv_stats=statistics,
                dispatch_wait_recv_cost_stats=waits[0],
                async_finish=not hooked, return_recv_hook=hooked, **cast,
            )  # fmt: skip
            hook() if hooked else event.current_stream_wait()
            assert torch.equal(counts, wanted.int()) and torch.equal(statistics, wanted.int() * turn)
            rows = rows_as_sent(packed, handle, every, every_ids, most)
            if not torch.is_tensor(packed):
                assert packed[1].stride(1) == 1, "products of FP8 read scales by columns"
            for zero_copy, use_logfmt in ((False, False), (True, False), (False, True)):
                if zero_copy:
                    buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = rows
                out = torch.empty_like(x)
                given = torch.zeros_like(rows) if zero_copy else rows
                sums, event, hook = buffer.low_latency_combine(
                    given, ids, weights, handle, zero_copy=zero_copy, use_logfmt=use_logfmt, out=out,
                    combine_wait_recv_cost_stats=waits[1],
                    async_finish=not hooked, return_recv_hook=hooked,
                )  # fmt: skip
                hook() if hooked else event.current_stream_wait()
                factor = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)
                assert sums is out and (not tokens or calc_diff(sums, x.float() * factor) < 1e-3)
    assert (torch.stack(waits) >= 0).all()
    batches_overlap(buffer, most)
    says(buffer, x, ids, weights, handle, rows)
    status = torch.full((ranks,), 7, dtype=torch.int32)
    buffer.low_latency_update_mask_buffer(ranks - 1, True)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * (ranks - 1) + [1]
    try:
        _, counts, *_ = buffer.low_latency_dispatch(x, ids, most, EXPERTS, use_fp8=False)
        wanted = [sum((ids == first + e).sum().item() for ids in every_ids[:-1]) for e in range(local)]
        assert rank < ranks - 1 and counts.tolist() == wanted
    except epforge.Mismatch as error:
        assert rank == ranks - 1 and str(error) == f"rank {rank} is left out, and makes no calls"
    buffer.low_latency_clean_mask_buffer()
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * ranks
    buffer.destroy()


def batches_overlap(buffer: deep_ep.Buffer, most: int) -> None:
    """Two batches in turn, each between its phases while the other one is."""
    batches = [(torch.full((tokens, WIDE), 1.0 + tokens).to(torch.bfloat16), *routed(tokens)) for tokens in (3, 5)]
    sent = [
        buffer.low_latency_dispatch(*batch[:2], most, EXPERTS, use_fp8=False, return_recv_hook=True)
        for batch in batches
    ]
    back = []
    for (rows, _, handle, _, hook), (_, ids, weights) in zip(sent, batches, strict=True):
        hook()
        back.append(buffer.low_latency_combine(rows, ids, weights, handle, return_recv_hook=True))
    for (sums, _, hook), (x, ids, weights) in zip(back, batches, strict=True):
        hook()
        hook()
        assert calc_diff(sums, x.float() * torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)) < 1e-5


def refused(call: Callable[[], Any], wanted: str, kind: type[epforge.Error] = epforge.Error) -> None:
    """Fails unless a call is refused in these words, among others."""
    try:
        call()
    except kind as error:
        assert wanted in str(error), str(error)
    else:
        raise AssertionError(wanted)


def says(buffer: deep_ep.Buffer, x: Any, ids: Any, weights: Any, handle: Any, rows: Any) -> None:
    """What the facade does not have is named, and what does not fit is refused."""
    waits = torch.zeros(dist.get_world_size(), dtype=torch.int32)
    back = (rows, ids, weights, handle)
    for call, wanted in (
        (
            lambda: buffer.low_latency_combine(*back, combine_wait_recv_cost_stats=waits),
            "`waits` has elements of int32",
        ),
        (lambda: buffer.low_latency_combine(*back, zero_copy=True), "`get_next_low_latency_combine_buffer`"),
        (
            lambda: buffer.low_latency_dispatch(x, ids, 12, EXPERTS, dispatch_wait_recv_cost_stats=waits),
            "`waits` has elements of int32",
        ),
        (lambda: buffer.low_latency_dispatch(x, ids, 12, EXPERTS, use_ue8m0=True), "it needs `round_scale`"),
        (
            lambda: buffer.low_latency_dispatch(x, ids, 12, EXPERTS, async_finish=True, return_recv_hook=True),
            "`async_finish` is for calls without",
        ),
    ):
        refused(call, wanted)


def unpacked(packed: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """bfloat16 rows of all experts from codes and scales."""
    rows, scales = packed
    turned = scales.contiguous()
    return per_token_cast_back(rows.view(-1, rows.shape[-1]), turned.view(-1, turned.shape[-1])).view(rows.shape)


def later_in_processes(rank: int, ranks: int, name: str) -> None:
    """The second and third API: plain, cached, expanded, and what they leave."""
    buffer = getattr(deep_ep, name)(dist.group.WORLD, num_max_tokens_per_rank=16, hidden=HIDDEN, num_topk=TOPK)
    tokens, local = [9, 4][rank], EXPERTS // ranks
    x, (ids, weights) = whole(tokens), routed(tokens)
    arrived, first = arrivals(x, ids, rank, ranks), rank * local
    for alignment in (1, 4):
        asked = {"topk_idx": ids, "topk_weights": weights, "num_experts": EXPERTS, "expert_alignment": alignment}
        came, came_ids, came_weights, handle, _ = buffer.dispatch(x, **asked)
        assert torch.equal(came, arrived)
        count = came.shape[0]
        assert handle.psum_num_recv_tokens_per_scaleup_rank[-1] == count == handle.num_recv_tokens
        unaligned = [(came_ids == expert).sum().item() for expert in range(local)]
        assert handle.num_recv_tokens_per_expert_list == [-(-n // alignment) * alignment for n in unaligned]
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == unaligned
        assert handle.psum_num_recv_tokens_per_expert[-1] == sum(handle.num_recv_tokens_per_expert_list)
        # Each row says where it comes from.
        every = gathered(x)
        sources = [divmod(int(at), 16) for at in handle.recv_src_metadata[:, 0]]
        assert all(torch.equal(every[at][token], row) for (at, token), row in zip(sources, came, strict=True))
        assert torch.equal(buffer.dispatch(x, handle=handle)[0], arrived)
        for call, wanted in (
            (partial(buffer.dispatch, x, handle=handle, num_experts=8 * EXPERTS), "`num_experts` is"),
            (partial(buffer.dispatch, x, handle=handle, expert_alignment=64), "`expert_alignment` is 64, and"),
            (partial(buffer.dispatch, whole(17), **{**asked, "topk_idx": routed(17)[0]}), "17 tokens, and"),
            (partial(buffer.combine, x, x), "the handle is a Tensor, and"),
        ):
            refused(call, wanted, epforge.Mismatch)
        sums, sum_weights, _ = buffer.combine(came, handle, came_weights)
        assert torch.equal(sums.float(), x.float() * times(ids, ranks))
        assert torch.equal(sum_weights, torch.where(ids >= 0, weights, 0))
        whole_x, whole_ids, _, unsynced, _ = buffer.dispatch(x, **asked, do_cpu_sync=False)
        assert whole_x.shape[0] == 16 * ranks and torch.equal(whole_x[:count], arrived)
        assert (whole_ids[count:] == -1).all() and unsynced.num_recv_tokens_per_expert_list == []

        spread, none, factors, expanded, _ = buffer.dispatch(x, **asked, do_expand=True, do_zero_padding=True)
        assert none is None
        begin = 0
        for expert in range(local):
            sent = [(ids == first + expert) for ids in gathered(ids)]
            wanted = torch.cat([x[its.any(1)] for x, its in zip(every, sent, strict=True)])
            end = begin + wanted.shape[0]
            assert torch.equal(spread[begin:end], wanted)
            assert torch.equal(
                factors[begin:end], torch.cat([w[its] for w, its in zip(gathered(weights), sent, strict=True)])
            )
            assert expanded.psum_num_recv_tokens_per_expert[expert] == end
            begin = -(-end // alignment) * alignment
            assert not spread[end:begin].any()
        assert spread.shape[0] == begin == expanded.num_expanded_tokens
        assert torch.equal(buffer.dispatch(x, handle=expanded, do_expand=True, do_zero_padding=True)[0], spread)
        sums, sum_weights, _ = buffer.combine(spread, expanded, factors)
        assert torch.equal(sums.float(), x.float() * (ids >= 0).sum(1, keepdim=True))
        assert torch.equal(sum_weights, torch.where(ids >= 0, weights, 0))
    rows, scale = per_token_cast_to_fp8(x)
    (came, came_scale), *_ = buffer.dispatch((rows, scale), **asked, use_tma_aligned_col_major_sf=True)
    assert came_scale.stride(0) == 1 and came_scale.stride(1) % 4 == 0
    assert calc_diff(cast_back((came, came_scale)), arrived) < 1e-3
    if name == "EPBuffer":
        event = buffer.dispatch(x, **asked, defer_epilogue=True, async_with_compute_stream=True)
        came, _, came_weights, handle = event.current_stream_wait()
        assert torch.equal(came, arrived)
        event = buffer.combine(came, handle, defer_epilogue=True, async_with_compute_stream=True)
        assert torch.equal(event.current_stream_wait()[0].float(), x.float() * times(ids, ranks))


class Torch(unittest.TestCase):
    """Each in processes of a gloo group."""

    def test_a_layer_on_tensors(self) -> None:
        ranks_in_processes(2, PLACE, layer_in_processes)

    def test_a_layer_between_nodes(self) -> None:
        ranks_in_processes(4, "cpu", layer_in_processes, 2, nodes=2)

    def test_gradients(self) -> None:
        ranks_in_processes(2, PLACE, gradients_in_processes)

    def test_the_first_api(self) -> None:
        ranks_in_processes(2, PLACE, legacy_in_processes)

    def test_the_first_api_between_nodes(self) -> None:
        ranks_in_processes(4, "cpu", legacy_in_processes, 2, nodes=2)

    def test_the_first_api_for_few_tokens(self) -> None:
        ranks_in_processes(2, PLACE, low_latency_in_processes)

    def test_the_first_api_for_few_tokens_per_rank(self) -> None:
        ranks_in_processes(2, PLACE, low_latency_per_rank)

    def test_the_first_api_for_few_tokens_between_nodes(self) -> None:
        ranks_in_processes(4, "cpu", low_latency_in_processes, nodes=2)

    def test_the_second_api(self) -> None:
        ranks_in_processes(2, PLACE, later_in_processes, "ElasticBuffer")

    def test_the_third_api(self) -> None:
        ranks_in_processes(2, PLACE, later_in_processes, "EPBuffer")


if __name__ == "__main__":
    unittest.main()
