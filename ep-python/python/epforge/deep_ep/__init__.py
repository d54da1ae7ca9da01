"""deep_ep's classes and calls over `epforge`: docs/python.md says what is the same and what is not.

``import epforge.deep_ep as deep_ep`` is enough; the distribution ``epforge-deep-ep`` gives it the name
``deep_ep`` for programs that cannot be changed.
"""

from __future__ import annotations

from typing import Any

from .absent import NotThereYet
from .elastic import ElasticBuffer
from .ep import EPBuffer
from .handles import EPHandle
from .hybrid import HybridEPBuffer
from .legacy import Buffer, Config
from .utils import EventHandle, EventOverlap

__all__ = [
    "Buffer",
    "Config",
    "EPBuffer",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "NotThereYet",
    "topk_idx_t",
]


def __getattr__(name: str) -> Any:
    if name == "topk_idx_t":
        from ._torch import require

        return require().int64
    raise AttributeError(f"deep_ep has no `{name}`")
