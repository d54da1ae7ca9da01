"""Numbers that callers name: each is in its range before anything is made of it."""

from __future__ import annotations

import operator
from typing import Any

from . import _core

#: Most ranks of a group, and the most that counts of rows, tokens and SMs come to.
MOST_RANKS = 64
MOST = 2**31 - 1

#: The longest wait, in seconds.
LONGEST = 1_000_000.0


def check_count(name: str, value: Any, least: int = 0, most: int = MOST) -> None:
    """Refuses a number outside of a range; None is a number that nobody names."""
    if value is not None and not least <= operator.index(value) <= most:
        raise _core.Mismatch(f"`{name}` is {value}, and it takes {least} to {most}")


def check_seconds(name: str, value: Any) -> None:
    """Refuses what is no time to wait for; None is a time that nobody names."""
    if value is not None and not 0 < float(value) <= LONGEST:
        raise _core.Mismatch(f"`{name}` is {value}, and it takes more than 0 and at most {LONGEST:.0f} seconds")
