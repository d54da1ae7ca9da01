"""torch, if it is there: the facades can be looked at without it."""

from __future__ import annotations

from functools import cache
from typing import Any

from .._core import Mismatch, Missing


@cache
def require() -> Any:
    """torch, or a sentence."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise Missing("the calls of deep_ep take tensors of torch, which is not installed") from error
    return torch


def whole_words(topk_idx: Any) -> Any:
    """Experts in the type that calls take."""
    wanted = require().int64
    if topk_idx.dtype == wanted:
        return topk_idx
    if topk_idx.is_floating_point():
        raise Mismatch(f"`topk_idx` has elements of {topk_idx.dtype}, and has to have whole numbers")
    return topk_idx.to(wanted)


def own_experts(topk_idx: Any) -> Any:
    """The same in memory of their own: the caller's may hold others when a handle goes their way again."""
    torch = require()
    if topk_idx.dtype != torch.int64:
        return whole_words(topk_idx).contiguous()
    experts = topk_idx.contiguous()
    return experts.clone() if experts is topk_idx else experts


@cache
def has_gpu() -> bool:
    """Whether tensors go to GPUs; if not, the calls run in the emulator. torch asks the driver each time."""
    return bool(require().cuda.is_available())


def current_stream() -> Any:
    """torch's current stream. Without a device, torch asks NVML for GPUs, which takes longer than a launch."""
    cuda = require().cuda
    return cuda.current_stream(cuda.current_device())
