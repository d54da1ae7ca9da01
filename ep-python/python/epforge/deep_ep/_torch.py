"""torch, if it is there: the facades can be looked at without it."""

from __future__ import annotations

from functools import cache
from typing import Any

from .._core import Missing


@cache
def require() -> Any:
    """torch, or a sentence."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise Missing("the calls of deep_ep take tensors of torch, which is not installed") from error
    return torch


def has_gpu() -> bool:
    """Whether tensors go to GPUs; if not, the calls run in the emulator."""
    return bool(require().cuda.is_available())
