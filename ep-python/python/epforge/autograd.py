"""Dispatch and combine that torch differentiates: each is the other's way back.

The rows are in memory of their own, so that a model may keep those of all its layers; each call keeps a
handle until its graph is gone, and `Buffer` has to be made with as many ``handles``.
"""

from __future__ import annotations

from typing import Any

import torch

from .buffer import Buffer
from .results import Handle


class _Dispatch(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Any, topk_weights: Any, buffer: Buffer, topk_idx: Any, call: dict[str, Any]
    ) -> tuple[Any, ...]:
        received, handle = buffer.dispatch(x, topk_idx, topk_weights, **call)
        rows, _, ids, weights = received.copy()
        ctx.handle, ctx.ids = handle, None if topk_weights is None else ids
        ctx.mark_non_differentiable(ids)
        return rows, ids, weights, handle

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        rows, _, weights, _ = gradients
        # Those of experts elsewhere are 0 here, whatever was sent.
        weights = None if ctx.ids is None else torch.where(ctx.ids >= 0, weights, 0.0)
        sums = ctx.handle.buffer.combine(rows.contiguous(), ctx.handle, weights)
        return sums.x, sums.weights, None, None, None


class _Combine(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, handle: Handle) -> torch.Tensor:
        ctx.handle = handle
        sums: torch.Tensor = handle.buffer.combine(rows.contiguous(), handle).x
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        received = ctx.handle.buffer.cached_dispatch(gradients[0].contiguous(), ctx.handle)
        return received.copy()[0], None


def dispatch(
    buffer: Buffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    rank: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Handle]:
    """Rows, local experts and weights of the tokens that arrive, and the handle; `Buffer.dispatch` with a gradient.

    The weights of experts on other ranks are 0 here, and get their gradients there.
    """
    rows, ids, weights, handle = _Dispatch.apply(x, topk_weights, buffer, topk_idx, {"rank": rank})
    return rows, ids, weights, handle


def combine(rows: torch.Tensor, handle: Handle) -> torch.Tensor:
    """The rows of each token added up; `Buffer.combine` with a gradient."""
    sums: torch.Tensor = _Combine.apply(rows, handle)
    return sums
