"""Scores of experts for tests of deep_ep: even, or with more tokens for the first rank than for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._torch import require

if TYPE_CHECKING:
    import torch

#: Halvings of a range, after which what is sought does not change any more.
HALVINGS = 20


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool
) -> torch.Tensor:
    """``float32[tokens, experts]``, whose top-k sends the first rank ``ratio`` times the mean of the others.

    The first rank's scores are drawn from a distribution that prefers them; if ``precise``, as many tokens as it
    takes are made to have one of its experts, and the others to have none.
    """
    torch = require()
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    even = torch.rand((num_tokens, num_experts), dtype=torch.float32, device=device)
    if ratio == 1 or num_ranks == 1:
        return even
    own = num_experts // num_ranks

    def is_within(scores: Any) -> bool:
        ranks = scores.topk(num_topk, dim=1).indices // own
        counts = torch.stack([(ranks == rank).any(1).sum() for rank in range(num_ranks)]).tolist()
        return bool(counts[0] * (num_ranks - 1) <= ratio * sum(counts[1:]))

    def preferred(strength: float) -> Any:
        scores = even.clone()
        # The greatest of so many draws.
        scores[:, :own] **= 1 / strength
        return scores

    def chosen(count: float) -> Any:
        scores = even.clone()
        first = scores[:, :own]
        first -= 1
        # Tokens are alike: the first ones are as good as any.
        first[: int(count)].scatter_(1, even[: int(count), :own].argmax(1, keepdim=True), 1.0)
        return scores

    return greatest(chosen, is_within, 0, num_tokens + 1) if precise else greatest(preferred, is_within, 1, 1000)


def greatest(
    scores: Callable[[float], torch.Tensor], is_within: Callable[[torch.Tensor], bool], low: float, high: float
) -> torch.Tensor:
    """The scores for the greatest number of a range that are within bounds."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(scores(middle)) else (low, middle)
    return scores(low)
