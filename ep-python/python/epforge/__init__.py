"""Dispatch and combine for mixtures of experts, on arrays of any library.

A `Group` is the ranks, a `Buffer` has the kernels and the memory for one shape, and its calls move rows to
experts and back::

    import epforge

    group = epforge.Group.from_torch()  # a torch.distributed process group
    buffer = epforge.Buffer(group, tokens=4096, hidden=7168, topk=8, experts=256)
    received, handle = buffer.dispatch(x, topk_idx, topk_weights)
    sums = buffer.combine(experts(received.x), handle).x

Nothing here needs a GPU to be imported; a call that needs what is missing says so. `Group.on_host` runs the
same calls without a GPU, with every access checked.
"""

from __future__ import annotations

from ._core import (
    AllInUse,
    Capture,
    Compile,
    Disagreement,
    Driver,
    Emit,
    Error,
    GroupError,
    InternalError,
    Kernel,
    Launch,
    Mismatch,
    Missing,
    Network,
    OutputTooSmall,
    Plan,
    Silent,
    Tensor,
    Timeout,
    TooLarge,
    TooManyBlocks,
    UniqueId,
    Wrong,
    __version__,
    gpus,
)
from .buffer import Buffer
from .group import Group
from .low_latency import LowLatency, Packed, Sums
from .results import Combined, Handle, Offered, Received

__all__ = [
    "AllInUse",
    "Buffer",
    "Capture",
    "Combined",
    "Compile",
    "Disagreement",
    "Driver",
    "Emit",
    "Error",
    "Group",
    "GroupError",
    "Handle",
    "InternalError",
    "Kernel",
    "Launch",
    "LowLatency",
    "Mismatch",
    "Missing",
    "Network",
    "Offered",
    "OutputTooSmall",
    "Packed",
    "Plan",
    "Received",
    "Silent",
    "Sums",
    "Tensor",
    "Timeout",
    "TooLarge",
    "TooManyBlocks",
    "UniqueId",
    "Wrong",
    "__version__",
    "gpus",
]
