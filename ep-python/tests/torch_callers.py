"""The calls that frameworks make, in their order and with their arguments, and the programs of docs/python.md."""

from __future__ import annotations

import re
import unittest
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import epforge
from epforge import deep_ep
from epforge.deep_ep import engines
from epforge.deep_ep.utils import EventHandle, EventOverlap
from epforge.deep_ep.utils.math import calc_diff, per_token_cast_back, per_token_cast_to_fp8
from torch_calls import (
    EXPERTS,
    HIDDEN,
    PLACE,
    TOPK,
    arrivals,
    gathered,
    ranks_in_processes,
    refused,
    routed,
    times,
    whole,
)


def trainer(rank: int, ranks: int) -> None:
    """There and back in both directions, every call on the other stream: Megatron's."""
    hint = deep_ep.Buffer.get_dispatch_config(ranks).get_nvl_buffer_size_hint(HIDDEN * 2, ranks)
    buffer = deep_ep.Buffer(dist.group.WORLD, hint, 0)
    deep_ep.Buffer.set_num_sms(8)
    x, (ids, weights) = whole(6), routed(6)
    beside = {"async_finish": True, "allocate_on_comm_stream": True}
    handles = []
    for _ in range(3):
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            ids, EXPERTS, previous_event=EventOverlap(EventHandle()), **beside
        )
        rows, came_ids, came_weights, counts, handle, event = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, previous_event=event, **beside,
        )  # fmt: skip
        event.current_stream_wait()
        assert torch.equal(rows, arrivals(x, ids, rank, ranks)) and isinstance(counts, list)
        assert came_ids.dtype == torch.int64 and came_weights.dtype == torch.float32
        # It gives their memory back while the experts that all tokens share run.
        assert all(it._base is None for it in (rows, came_ids, came_weights))
        handles.append((handle, rows, came_weights))
    # Backwards, the last layer first.
    for handle, rows, came_weights in reversed(handles):
        sums, sum_weights, event = buffer.combine(
            rows.contiguous(), handle, topk_weights=came_weights.float(),
            previous_event=EventOverlap(EventHandle()), **beside,
        )  # fmt: skip
        event.current_stream_wait()
        assert torch.equal(sums.float(), x.float() * times(ids, ranks)) and sums._base is None
        assert torch.equal(sum_weights, torch.where(ids >= 0, weights, 0))
        back, none, *_, event = buffer.dispatch(x, handle=handle, previous_event=EventOverlap(EventHandle()), **beside)
        event.current_stream_wait()
        assert none is None and torch.equal(back, rows)


def server(rank: int, ranks: int) -> None:
    """Prefill by counts and decode by slots in one buffer: vLLM's and SGLang's."""
    most = 8
    config = deep_ep.Config(num_sms=4)
    nvl = config.get_nvl_buffer_size_hint(HIDDEN * 2, ranks)
    rdma = deep_ep.Buffer.get_low_latency_rdma_size_hint(most, HIDDEN, ranks, EXPERTS)
    buffer = deep_ep.Buffer(
        dist.group.WORLD, nvl, rdma, low_latency_mode=True, num_qps_per_rank=EXPERTS // ranks,
        allow_nvlink_for_low_latency_mode=True, allow_mnnvl=True, explicitly_destroy=True,
    )  # fmt: skip
    assert (buffer.group_size, buffer.num_nvl_bytes, buffer.low_latency_mode) == (ranks, nvl, True)
    for tokens in (8, 3):
        x, (ids, weights) = whole(tokens), routed(tokens)
        event = buffer.capture()
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            topk_idx=ids, num_experts=EXPERTS, previous_event=event, async_finish=False, allocate_on_comm_stream=False
        )
        rows, _, _, counts, handle, event = buffer.dispatch(
            x=x, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights,
            expert_alignment=4, config=config, previous_event=None, async_finish=True, allocate_on_comm_stream=False,
        )  # fmt: skip
        assert event.event is not None
        event.current_stream_wait()
        assert all(count % 4 == 0 for count in counts)
        sums, _, event = buffer.combine(
            x=rows, handle=handle, topk_weights=None, config=config, previous_event=buffer.capture(),
            async_finish=False, allocate_on_comm_stream=False,
        )  # fmt: skip
        assert torch.equal(sums.float(), x.float() * times(ids, ranks))
        buffer.clean_low_latency_buffer(most, HIDDEN, EXPERTS)
        decode(buffer, most, 5 * min(rank, 1), tokens)
    buffer.destroy()


def decode(buffer: deep_ep.Buffer, most: int, tokens: int, seed: int) -> None:
    """A step of few tokens, of none on a rank, with an event and with a hook."""
    torch.manual_seed(seed + dist.get_rank())
    x, (ids, weights) = whole(tokens), routed(tokens)
    out = torch.empty_like(x)
    for hooked in (True, False):
        rows, counts, handle, event, hook = buffer.low_latency_dispatch(
            x, ids, most, EXPERTS, use_fp8=False, async_finish=not hooked, return_recv_hook=hooked
        )
        hook() if hooked else event.current_stream_wait()
        assert int(counts.sum()) == sum(int((ids // (EXPERTS // dist.get_world_size()) == dist.get_rank()).sum())
                                        for ids in gathered(ids))  # fmt: skip
        _, event, hook = buffer.low_latency_combine(
            rows, ids, weights, handle, async_finish=not hooked, zero_copy=False, return_recv_hook=hooked, out=out
        )
        hook() if hooked else event.current_stream_wait()
        factor = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)
        assert torch.equal(out.float(), x.float() * factor)


def longer_prompt(rank: int, ranks: int) -> None:
    """A prefill of one rank that is longer than the warm-up, of both types of rows, and shorter ones after it."""
    buffer = deep_ep.Buffer(dist.group.WORLD, 2 * HIDDEN * ranks * 16)
    for tokens in (8, 16, (40, 3)[rank % 2], (5, 60)[rank % 2], 9):
        x, (ids, weights) = whole(tokens), routed(tokens)
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        for rows in (x, per_token_cast_to_fp8(x)):
            came, _, came_weights, _, handle, _ = buffer.dispatch(
                rows, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights,
            )  # fmt: skip
            wanted = arrivals(x, ids, rank, ranks)
            assert torch.equal(came, wanted) if rows is x else calc_diff(per_token_cast_back(*came), wanted) < 1e-3
            sums, sum_weights, _ = buffer.combine(wanted, handle, came_weights)
            assert torch.equal(sums.float(), x.float() * times(ids, ranks))
            assert torch.equal(sum_weights, torch.where(ids >= 0, weights, 0))


def warmed_up(rank: int, ranks: int) -> None:
    """A short first call, and then as many tokens as the buffer was made for: its memory is there from the start."""
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=16)
    with unittest.TestCase().assertNoLogs("epforge"):
        for tokens, most in ((3, 4), (16, None)):
            x, (ids, _) = whole(tokens), routed(tokens)
            rows, *_ = buffer.dispatch(x, ids, num_experts=EXPERTS, num_max_tokens_per_rank=most)
            assert torch.equal(rows, arrivals(x, ids, rank, ranks))


def prepared(rank: int, ranks: int) -> None:
    """The first calls of a buffer that was prepared make nothing, also where each expanded row comes back by itself."""
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=16, allow_multiple_reduction=False)
    buffer.prepare(HIDDEN, TOPK, EXPERTS, do_expand=True)
    x, (ids, weights) = whole(5 + rank), routed(5 + rank)
    made_now = AssertionError("the first call makes what was prepared")
    with (
        mock.patch.object(engines.calls, "Buffer", side_effect=made_now),
        mock.patch.object(engines, "SpreadBack", side_effect=made_now),
    ):
        rows, _, _, handle, _ = buffer.dispatch(x, ids, weights, num_experts=EXPERTS, do_expand=True)
        sums, _, _ = buffer.combine(rows, handle)
    assert torch.equal(sums.float(), x.float() * (ids >= 0).sum(1, keepdim=True))


def map_of(ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts each token names, and their weights, with a column for each expert."""
    spot = torch.where(ids < 0, EXPERTS, ids)
    probs = torch.zeros(ids.shape[0], EXPERTS + 1).scatter_(1, spot, weights)[:, :EXPERTS].contiguous()
    named = torch.zeros(ids.shape[0], EXPERTS + 1, dtype=torch.bool).scatter_(1, spot, True)[:, :EXPERTS].contiguous()
    return named, probs


def trainer_by_maps(rank: int, ranks: int) -> None:
    """A layer with rows sorted by expert, forwards and backwards: Megatron's backend `hybridep`."""
    local, tokens = EXPERTS // ranks, [6, 0, 3, 9][rank]
    buffer = deep_ep.HybridEPBuffer(
        group=dist.group.WORLD, hidden_dim=HIDDEN, max_num_of_tokens_per_rank=4, num_local_experts=local, use_fp8=False,
        num_sms_dispatch_api=4, num_sms_combine_api=4, num_sms_preprocessing_api=108,
    )  # fmt: skip
    for multiple in (None, 4):
        x, (ids, weights) = whole(tokens), routed(tokens)
        named, probs = map_of(ids, weights)
        asked = {"num_of_experts_per_rank": local, "pad_multiple": multiple}
        rows, factors, scales, counts, handle = buffer.dispatch_with_permute(
            hidden=x, routing_map=named, probs=probs, scaling_factor=None, num_permuted_tokens=None, non_blocking=False,
            **asked,
        )  # fmt: skip
        every, maps, all_probs = gathered(x), gathered(named), gathered(probs)
        wanted, wanted_factors = [], []
        for expert, count in zip(range(rank * local, (rank + 1) * local), counts.tolist(), strict=True):
            its = torch.cat([it[has[:, expert]] for it, has in zip(every, maps, strict=True)])
            its_factors = torch.cat([it[has[:, expert], expert] for it, has in zip(all_probs, maps, strict=True)])
            gap = count - its.shape[0]
            assert count % (multiple or 1) == 0 and 0 <= gap < (multiple or 1), (count, its.shape)
            wanted += [its, its.new_zeros(gap, HIDDEN)]
            wanted_factors += [its_factors, its_factors.new_zeros(gap)]
        assert scales is None and counts.dtype == torch.int64 and counts.device.type == "cpu"
        assert torch.equal(rows, torch.cat(wanted)) and torch.equal(factors, torch.cat(wanted_factors))
        copies = named.sum(1, keepdim=True)
        sums, none = buffer.combine_with_unpermute(hidden=rows, handle=handle, pad_multiple=multiple)
        assert none is None and torch.equal(sums.float(), x.float() * copies)
        # The gradient of the sums goes the way of the rows, and that of the rows and weights back to their tokens.
        slope = whole(tokens)
        back, none, *_ = buffer.dispatch_with_permute(
            hidden=slope, scaling_factor=None, handle=handle, pad_multiple=multiple, num_permuted_tokens=counts.sum()
        )
        again, sum_probs = buffer.combine_with_unpermute(hidden=back, probs=factors, handle=handle)
        assert none is None and torch.equal(again.float(), slope.float() * copies)
        assert torch.equal(sum_probs, torch.where(named, probs, 0))
    by_number = buffer.dispatch_with_permute(hidden=x, topk_idx=ids, topk_weights=weights, num_of_experts=EXPERTS)
    assert torch.equal(by_number[0].float().sum(), torch.cat(wanted).float().sum()), by_number[0].shape
    for call, said in (
        (
            partial(buffer.dispatch_with_permute, hidden=x, routing_map=named, non_blocking=True),
            "`non_blocking` is not",
        ),
        (partial(buffer.dispatch_with_permute, hidden=x), "a dispatch wants a `handle`, a `routing_map`, or"),
        (partial(buffer.dispatch_with_permute, hidden=x, routing_map=named[:, 1:]), "no 7 experts"),
        (partial(buffer.combine_with_unpermute, hidden=x), "the handle is a NoneType"),
        (buffer.dispatch, "`dispatch` is not there yet"),
    ):
        refused(call, said)


def documented(rank: int, ranks: int) -> None:
    """The programs of the page, with smaller numbers."""
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    layer, few = (block for block in blocks if "dispatch(x, topk_idx" in block)
    x, (ids, weights) = whole(5), routed(5)

    def plain(rows: Any, experts: Any, factors: Any) -> Any:
        scale = torch.where(experts >= 0, factors, 0).sum(1, keepdim=True)
        return (rows.float() * scale).to(torch.bfloat16)

    def grouped(rows: Any, scale: Any, counts: Any) -> Any:
        blocks = rows.float().unflatten(2, (-1, 128)) * scale[..., None]
        return blocks.flatten(2).to(torch.bfloat16)

    names = {
        "x": x, "topk_idx": ids, "topk_weights": weights,
        "my_experts": plain, "my_grouped_experts": grouped, "my_shared_expert": torch.zeros_like,
    }  # fmt: skip
    for block in (layer, few):
        smaller = block.replace("4096", "8").replace("tokens=128", "tokens=8").replace("7168", str(HIDDEN))
        smaller = smaller.replace("topk=8", f"topk={TOPK}").replace("experts=256", f"experts={EXPERTS}")
        exec(smaller.replace("from_torch()", f"from_torch(device={torch.get_default_device().type!r})"), names)
        factor = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)
        assert calc_diff(names["y"], x.float() * factor) < 1e-3


class Callers(unittest.TestCase):
    """Each in processes of a gloo group."""

    def test_a_trainer(self) -> None:
        ranks_in_processes(2, PLACE, trainer)

    def test_a_trainer_between_nodes(self) -> None:
        ranks_in_processes(4, "cpu", trainer, nodes=2)

    def test_a_trainer_by_maps(self) -> None:
        ranks_in_processes(2, PLACE, trainer_by_maps)

    def test_a_trainer_by_maps_between_nodes(self) -> None:
        ranks_in_processes(4, "cpu", trainer_by_maps, nodes=2)

    def test_a_server(self) -> None:
        ranks_in_processes(2, PLACE, server)

    def test_a_longer_prompt_than_all_before(self) -> None:
        ranks_in_processes(2, PLACE, longer_prompt)

    def test_a_short_first_call(self) -> None:
        ranks_in_processes(2, PLACE, warmed_up)

    def test_a_buffer_that_was_prepared(self) -> None:
        ranks_in_processes(2, PLACE, prepared)

    def test_the_programs_of_the_page(self) -> None:
        ranks_in_processes(2, PLACE, documented)

    def test_a_facade_takes_no_group_that_is_none(self) -> None:
        with self.assertRaisesRegex(epforge.Mismatch, "wants the `group` of its ranks"):
            deep_ep.Buffer(None)


if __name__ == "__main__":
    unittest.main()
