"""The second and third API of deep_ep against its references, bit for bit, as its own tests compare them."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import epforge
from epforge import deep_ep
from epforge.deep_ep.utils import refs
from epforge.deep_ep.utils.envs import get_global_seed, init_seed
from epforge.deep_ep.utils.gate import get_unbalanced_scores
from epforge.deep_ep.utils.math import (
    create_grouped_scores,
    hash_tensor,
    hash_tensors,
    inplace_unique,
    per_token_cast_to_fp8,
)
from torch_calls import EXPERTS, HIDDEN, PLACE, TOPK, WIDE, gathered, ranks_in_processes, routed

#: Tokens that a rank may have.
MOST = 16

#: The combine of a buffer, which tests count.
COMBINE = epforge.Buffer.combine


def same(ours: Any, theirs: Any) -> None:
    """Equal bit for bit, for pairs and for float8 too."""
    if isinstance(theirs, tuple):
        for mine, wanted in zip(ours, theirs, strict=True):
            same(mine, wanted)
        return
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (ours.dtype, ours.shape, theirs.shape)
    # A single column has any stride, which a view of bytes does not take.
    assert torch.equal(*(it.clone(memory_format=torch.contiguous_format).view(torch.uint8) for it in (ours, theirs)))


def drawn(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that are no whole numbers, experts and weights."""
    return torch.randn(tokens, HIDDEN).to(torch.bfloat16), *routed(tokens)


def arriving(rank: int, ranks: int, name: str) -> None:
    """Plain, cached and expanded rows of both types, with and without the host's wait."""
    buffer = getattr(deep_ep, name)(dist.group.WORLD, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOPK)
    x, ids, weights = drawn([9, 4][rank])
    asked = {"topk_idx": ids, "topk_weights": weights, "num_experts": EXPERTS}
    for copies in (True, False):
        handle = buffer.dispatch(x, **asked, do_handle_copy=copies)[3]
        assert torch.equal(handle.topk_idx, ids) and (handle.topk_idx is ids) != copies
    for sent in (x, per_token_cast_to_fp8(x)):
        wanted, wanted_ids, wanted_weights, numbers, counts = refs.dispatch(sent, ids, weights, MOST, EXPERTS)
        # The reference has all weights of a token.
        wanted_weights = wanted_weights.masked_fill(wanted_ids < 0, 0)
        for sync in (True, False):
            came, came_ids, came_weights, handle, _ = buffer.dispatch(sent, **asked, do_cpu_sync=sync)
            rows = int(counts.sum())
            cut = tuple(part[:rows] for part in came) if isinstance(came, tuple) else came[:rows]
            same((cut, came_ids[:rows], came_weights[:rows]), (wanted, wanted_ids, wanted_weights))
            same(handle.recv_src_metadata[:rows, 0], numbers)
            assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == counts.cumsum(0).tolist()
            slots_lead_there(handle, ids, rank, ranks)
            spread, _, factors, expanded, _ = buffer.dispatch(
                sent, **asked, do_cpu_sync=sync, do_expand=True, do_zero_padding=True
            )
            places = expanded.recv_src_metadata[:rows, 2:].long()
            assert torch.equal(places >= 0, wanted_ids >= 0)
            row, choice = (places >= 0).nonzero(as_tuple=True)
            spots = places[row, choice]
            parts = (spread, wanted) if isinstance(spread, tuple) else ((spread,), (wanted,))
            for ours, theirs in zip(*parts, strict=True):
                same(ours.view(torch.uint8)[spots], theirs.view(torch.uint8)[row])
            same(factors[spots], wanted_weights[row, choice])
            others = torch.ones(factors.shape[0], dtype=torch.bool).scatter(0, spots, False)
            for ours in (*parts[0], factors):
                assert not ours.view(torch.uint8)[others.repeat_interleave(4) if ours is factors else others].any()


def slots_lead_there(handle: Any, ids: torch.Tensor, rank: int, ranks: int) -> None:
    """Each entry's slot is the row of its token on the rank of its expert."""
    slots = handle.dst_buffer_slot_idx
    assert slots.dtype == torch.int32 and torch.equal(slots < 0, ids < 0)
    came = gathered(handle.recv_src_metadata[:, 0])
    for token, choice in (ids >= 0).nonzero().tolist():
        owner = int(ids[token, choice]) // (EXPERTS // ranks)
        assert came[owner][slots[token, choice]] == rank * MOST + token


def padding(rank: int, ranks: int) -> None:
    """What expanded weights have between the experts and behind them is zero, also if nobody asked."""
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST)
    x, ids, weights = drawn(5)
    # Memory that nobody writes is NaN then.
    torch.use_deterministic_algorithms(True, warn_only=True)
    for alignment in (1, 4):
        for sync in (True, False):
            _, _, factors, handle, _ = buffer.dispatch(
                x, ids, weights, num_experts=EXPERTS, expert_alignment=alignment, do_expand=True, do_cpu_sync=sync
            )
            spots = handle.recv_src_metadata[:, 2:].long()
            used = torch.zeros(factors.shape[0] + 1, dtype=torch.bool)
            used[spots.flatten()] = True
            assert (factors[~used[:-1]] == 0).all()
    torch.use_deterministic_algorithms(False)


def as_many_scales(rank: int, ranks: int) -> None:
    """Scales that have the shape of weights are expanded as scales."""
    topk = HIDDEN // 128
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST)
    x, ids, weights = drawn(6)
    sent, ids, weights = per_token_cast_to_fp8(x), ids[:, :topk].contiguous(), weights[:, :topk].contiguous()
    (_, wanted), wanted_ids, *_ = refs.dispatch(sent, ids, None, MOST, EXPERTS)
    (spread, scales), _, factors, handle, _ = buffer.dispatch(sent, ids, weights, num_experts=EXPERTS, do_expand=True)
    assert scales.shape == (spread.shape[0], topk) and factors.shape == spread.shape[:1]
    row, choice = (wanted_ids >= 0).nonzero(as_tuple=True)
    same(scales[handle.recv_src_metadata[row, 2 + choice].long()], wanted[row])


def scales_in_words(rank: int, ranks: int) -> None:
    """Four powers of two in each word come as words, plain and expanded, by columns too."""
    x, ids, weights = torch.randint(0, 100, (6, WIDE), dtype=torch.uint8), *routed(6)
    sent = (x.view(torch.float8_e4m3fn), torch.randint(100, 140, (6, WIDE // 128), dtype=torch.uint8).view(torch.int32))
    wanted, wanted_ids, *_ = refs.dispatch(sent, ids, weights, MOST, EXPERTS)
    buffer = deep_ep.Buffer(dist.group.WORLD)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
    same(buffer.dispatch(sent, **layout, topk_idx=ids, topk_weights=weights)[0], wanted)
    later = deep_ep.EPBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST)
    asked = {"num_experts": EXPERTS, "use_tma_aligned_col_major_sf": True}
    same(later.dispatch(sent, ids, weights, **asked)[0], wanted)
    (_, scales), _, _, handle, _ = later.dispatch(sent, ids, weights, **asked, do_expand=True)
    row, choice = (wanted_ids >= 0).nonzero(as_tuple=True)
    same(scales[handle.recv_src_metadata[row, 2 + choice].long()], wanted[1][row])


def going_back(rank: int, ranks: int, name: str) -> None:
    """Sums with and without biases, added up on the ranks of the experts or not, against the reference."""
    init_seed(3)
    assert get_global_seed() == 3
    for reduces in (True, False):
        buffer = getattr(deep_ep, name)(
            dist.group.WORLD, num_max_tokens_per_rank=MOST, allow_multiple_reduction=reduces
        )
        x, ids, weights = drawn([7, 5][rank])
        for expands in (False, True):
            came = buffer.dispatch(x, ids, weights, num_experts=EXPERTS, do_expand=expands)
            _, came_ids, came_weights, handle, _ = came
            parts = refs.generate_pre_combine_data(handle.recv_src_metadata[:, 0], MOST, TOPK, HIDDEN)
            rows = torch.full((handle.num_expanded_tokens + 1, HIDDEN), float("nan")).to(torch.bfloat16)
            if expands:
                rows[handle.recv_src_metadata[:, 2:].flatten().long()] = parts.flatten(0, 1)
                rows = rows[:-1]
            else:
                rows = refs.ordered_accumulate(parts.masked_fill((came_ids < 0)[..., None], 0))
            own = rank * MOST + torch.arange(x.shape[0])
            y = refs.generate_pre_combine_data(own, MOST, TOPK, HIDDEN).masked_fill((ids < 0)[..., None], 0)
            biases = [torch.randn(x.shape).to(torch.bfloat16) for _ in range(2)]
            for bias in (None, biases[0], tuple(biases)):
                with mock.patch.object(epforge.Buffer, "combine", autospec=True, side_effect=COMBINE) as one:
                    sums, sum_weights, _ = buffer.combine(rows, handle, came_weights, bias)
                local = reduces or not expands
                # What is rounded once comes back by a kernel of its own, and the weights by this one.
                assert bias is not None or one.call_count == 1
                wanted = refs.combine(y, ids, 1, ranks, EXPERTS, bias, local, False)
                assert torch.equal(sums, wanted), (name, reduces, expands, bias is None)
                assert torch.equal(sum_weights, torch.where(ids < 0, 0, weights))


def in_order(rank: int, ranks: int) -> None:
    """Sums whose order shows: a bias is added first, and the parts follow in order of the top-k."""
    tiny, own = 2.0**-30, EXPERTS // ranks
    # What is next to the great ones is lost, unless they have gone.
    here, there = torch.tensor([[0, own], [own, 0]]).unbind(0)
    ids = torch.stack([here, there])
    great = ids == 0
    for reduces in (True, False):
        buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST, allow_multiple_reduction=reduces)
        x = torch.ones(2, HIDDEN, dtype=torch.bfloat16)
        for expands in (False, True):
            rows, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=EXPERTS, do_expand=expands)
            made = torch.full_like(rows, 1.0 if rank == 0 else tiny)
            sums, _, _ = buffer.combine(made, handle, bias=torch.full_like(x, -1.0))
            # -1 + 1 + tiny, and -1 + tiny + 1.
            wanted = torch.where(great[:, :1], tiny, 0.0).to(torch.bfloat16).expand_as(sums)
            assert torch.equal(sums, wanted), (reduces, expands, sums[:, 0])
    # On one rank 1 + 2^-8 is rounded to 1: what the other one adds comes too late, or not.
    ids = torch.tensor([[0, 1, own]])
    for reduces, total in ((True, 1.0), (False, 1 + 2.0**-7)):
        buffer = deep_ep.EPBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST, allow_multiple_reduction=reduces)
        rows, _, _, handle, _ = buffer.dispatch(x[:1], ids, num_experts=EXPERTS, do_expand=True)
        made = torch.full_like(rows, 2.0**-8)
        if rank == 0:
            made[: handle.psum_num_recv_tokens_per_expert[0]] = 1
        sums, _, _ = buffer.combine(made, handle)
        assert (sums.float() == total).all(), (reduces, sums[0, 0])
    try:
        buffer.combine(made, handle, bias=x[:1, :8])
    except epforge.Mismatch as error:
        assert str(error) == f"a `bias` has extents [1, 8], and needs [1, {HIDDEN}]"
    else:
        raise AssertionError("a bias of another shape was taken")


class References(unittest.TestCase):
    """Each in processes of a gloo group."""

    def test_rows_of_the_second_api(self) -> None:
        ranks_in_processes(2, PLACE, arriving, "ElasticBuffer")

    def test_rows_of_the_third_api(self) -> None:
        ranks_in_processes(2, PLACE, arriving, "EPBuffer")

    def test_padding_is_zero(self) -> None:
        ranks_in_processes(2, PLACE, padding)

    def test_as_many_scales_as_experts_of_a_token(self) -> None:
        ranks_in_processes(2, PLACE, as_many_scales)

    def test_scales_in_words(self) -> None:
        ranks_in_processes(2, PLACE, scales_in_words)

    def test_sums_of_the_second_api(self) -> None:
        ranks_in_processes(2, PLACE, going_back, "ElasticBuffer")

    def test_sums_of_the_third_api(self) -> None:
        ranks_in_processes(2, PLACE, going_back, "EPBuffer")

    def test_the_order_of_sums(self) -> None:
        ranks_in_processes(2, PLACE, in_order)

    def test_scores_prefer_the_first_rank(self) -> None:
        tokens, experts, ranks, topk = 2000, 16, 4, 2
        for precise in (False, True):
            for ratio in (1.0, 1.5, 2.5):
                with self.subTest(precise=precise, ratio=ratio):
                    torch.manual_seed(1)
                    scores = get_unbalanced_scores(tokens, experts, ranks, topk, ratio, precise)
                    self.assertEqual((scores.dtype, scores.shape), (torch.float32, (tokens, experts)))
                    owners = scores.topk(topk, dim=1).indices // (experts // ranks)
                    counts = [int((owners == rank).any(1).sum()) for rank in range(ranks)]
                    found = counts[0] * (ranks - 1) / sum(counts[1:])
                    self.assertAlmostEqual(found, ratio, delta=0.005 if precise and ratio > 1 else 0.1)

    def test_what_scripts_draw_and_compare_with(self) -> None:
        ranks = torch.tensor([[2, 0, 2, -1], [1, 1, 1, 1], [-1, -1, -1, -1]])
        inplace_unique(ranks, 3)
        self.assertEqual(ranks.tolist(), [[2, 0, -1, -1], [1, -1, -1, -1], [-1, -1, -1, -1]])
        scores = create_grouped_scores(torch.full((2, 6), 3.0), torch.tensor([[0, 2], [1, 1]]), 3)
        self.assertEqual(scores.tolist(), [[3, 3, 0, 0, 3, 3], [0, 0, 3, 3, 0, 0]])
        words = torch.tensor([3, -4, 9], dtype=torch.int32)
        self.assertEqual(hash_tensor(words.view(torch.bfloat16)), 8)
        self.assertEqual(hash_tensors(words, None, (words, words[:1])), 8 ^ 8 ^ 3)


if __name__ == "__main__":
    unittest.main()
