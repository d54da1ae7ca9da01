"""Range checks of numbers from callers, made before anything is allocated."""

from __future__ import annotations

import operator
from typing import Any

from . import _core

#: Most ranks of a group, and the most that counts of rows, tokens and SMs come to.
MOST_RANKS = 1024
MOST = 2**31 - 1

#: The longest wait, in seconds.
LONGEST = 1_000_000.0


def check_count(name: str, value: Any, least: int = 0, most: int = MOST) -> None:
    """Raises `Mismatch` unless a count is in its range; None means that the caller gave none."""
    if value is not None and not least <= operator.index(value) <= most:
        raise _core.Mismatch(f"`{name}` is {value}, and it takes {least} to {most}")


def check_seconds(name: str, value: Any) -> None:
    """Raises `Mismatch` unless a time is in its range; None means that the caller gave none."""
    if value is not None and not 0 < float(value) <= LONGEST:
        raise _core.Mismatch(f"`{name}` is {value}, and it takes more than 0 and at most {LONGEST:.0f} seconds")
