"""What dispatch and combine of deep_ep have to give, by collective calls of torch and one operation at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._torch import require
from .envs import get_global_seed

if TYPE_CHECKING:
    import torch


def dispatch(
    x: Any, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, num_max_tokens_per_rank: int, num_experts: int
) -> tuple[Any, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """What comes to this rank, in order of ranks and tokens.

    Rows, with scales if they have any; local experts, -1 for those of other ranks; all weights of their tokens;
    ``int32`` numbers of the tokens among all ranks; and on the host how many come from each rank.
    """
    torch = require()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    own = num_experts // ranks
    owner = torch.where(topk_idx < 0, -1, topk_idx // own)
    tokens = [(owner == to).any(1).nonzero().flatten() for to in range(ranks)]
    sent = [its.shape[0] for its in tokens]
    order = torch.cat(tokens)
    counts = exchanged(torch.tensor(sent, dtype=torch.int32, device=topk_idx.device)[:, None], [1] * ranks, [1] * ranks)
    came = [int(count) for count in counts.flatten().tolist()]

    def brought(rows: Any) -> Any:
        return exchanged(rows[order], sent, came)

    rows = tuple(brought(part) for part in x) if isinstance(x, tuple) else brought(x)
    ids = brought(topk_idx) - rank * own
    ids = torch.where((ids < 0) | (ids >= own), -1, ids)
    weights = None if topk_weights is None else brought(topk_weights)
    numbers = torch.arange(topk_idx.shape[0], dtype=torch.int32, device=topk_idx.device)[:, None]
    numbers = brought(numbers + rank * num_max_tokens_per_rank).flatten()
    return rows, ids, weights, numbers, torch.tensor(came, dtype=torch.int32, device="cpu")


def exchanged(rows: torch.Tensor, sent: list[int], came: list[int]) -> torch.Tensor:
    """Rows of any type, as bytes: so many to each rank and from each rank."""
    torch = require()
    made = torch.empty((sum(came), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    torch.distributed.all_to_all_single(made.view(torch.uint8), rows.contiguous().view(torch.uint8), came, sent)
    return made


def generate_pre_combine_data(
    src_token_global_idx: torch.Tensor, num_max_tokens_per_rank: int, num_topk: int, hidden: int
) -> torch.Tensor:
    """``bfloat16[tokens, topk, hidden]``: what experts might give; whoever knows a token's number can tell it.

    A wave for each token and entry of its top-k, so that values have all magnitudes and sums are rounded.
    """
    torch = require()
    place = {"device": src_token_global_idx.device}
    entry = src_token_global_idx.long()[:, None] * num_topk + torch.arange(num_topk, **place)
    # Neighbors differ, and no two entries of up to 2^31 are the same.
    frequency = (entry * 48271 % 2147483647).double() / 2147483647
    column = torch.arange(hidden, **place).float() + 0.5
    return torch.cos(frequency.float()[..., None] * column + get_global_seed()).to(torch.bfloat16)


def ordered_accumulate(data: torch.Tensor, initial_value: torch.Tensor | None = None) -> torch.Tensor:
    """The sums of ``[tokens, topk, hidden]`` in order of the top-k, from a value on, as float32 and rounded once."""
    torch = require()
    total = torch.zeros_like(data[:, 0], dtype=torch.float32)
    if initial_value is not None:
        total += initial_value
    for part in data.unbind(1):
        total += part
    return total.to(data.dtype)


def combine(
    y: torch.Tensor,
    topk_idx: torch.Tensor,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None,
    reduce_in_local: bool,
    reduce_in_scaleup: bool,
) -> torch.Tensor:
    """The sums of ``y[tokens, topk, hidden]``: the biases, then the parts in order of the top-k, rounded once.

    What is added up before within a rank, and then within a node, is a part in the place of its last entry.
    """
    own = num_experts // (num_scaleout_ranks * num_scaleup_ranks)
    if reduce_in_local:
        y = added_within(y, topk_idx // own)
    if reduce_in_scaleup:
        y = added_within(y, topk_idx // (own * num_scaleup_ranks))
    start = bias
    if isinstance(bias, tuple):
        start = bias[0].float() + bias[1].float()
    return ordered_accumulate(y, start)


def added_within(y: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """The sum of each group of a token's entries in the place of its last one, rounded, and zeros in the others."""
    torch = require()
    made = torch.zeros_like(y)
    for last in range(y.shape[1]):
        same = groups[:, : last + 1] == groups[:, last, None]
        total = ordered_accumulate(y[:, : last + 1].masked_fill(~same[..., None], 0))
        is_last = (groups[:, last + 1 :] != groups[:, last, None]).all(1)
        made[:, last] = total.masked_fill(~is_last[:, None], 0)
    return made
