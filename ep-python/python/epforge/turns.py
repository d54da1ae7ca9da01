"""When kernels of the emulator run: a call of all ranks at a time.

A launch there only queues, and whoever waits first runs what all ranks have queued. So a rank makes its
next call, or looks at a result, when every rank has made as many calls as it has. Ranks may be threads, or
turns of a loop.
"""

from __future__ import annotations

import threading

from . import _core


class Turns:
    """How many calls each rank of this process has made, and how many have run on all of them."""

    def __init__(self, core: _core.Group, patience: float) -> None:
        self._core = core
        self._patience = patience
        self._made = dict.fromkeys(range(*core.local), 0)
        self._out: set[int] = set()
        self._ran = 0
        self._changed = threading.Condition()

    def settle(self, rank: int) -> None:
        """Returns when all calls of the rank have run.

        Ranks that do not come are waited for no longer than the patience; then the emulator says who waits
        for whom.
        """
        with self._changed:
            mine = self._made[rank]
            self._changed.wait_for(lambda: self._least() >= mine or self._ran >= mine, self._patience)
            if self._ran >= mine:
                return
            for each in self._made:
                self._core.sync(each)
            self._ran = mine

    def _least(self) -> int:
        """Calls that every rank has made which takes part."""
        return min((made for rank, made in self._made.items() if rank not in self._out), default=0)

    def leave_out(self, rank: int) -> None:
        """Waits for no calls of a rank."""
        with self._changed:
            self._out.add(rank)
            self._changed.notify_all()

    def take_back(self, out: frozenset[int]) -> None:
        """Begins anew with all ranks but these: the calls so far have run, or are dropped."""
        with self._changed:
            self._ran = max(self._made.values(), default=0)
            self._made = dict.fromkeys(self._made, self._ran)
            self._out &= out
            self._changed.notify_all()

    def made(self, rank: int) -> None:
        """Notes that a call is queued."""
        with self._changed:
            self._made[rank] += 1
            self._changed.notify_all()
