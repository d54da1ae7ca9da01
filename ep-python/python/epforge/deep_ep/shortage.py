"""Tells the ranks of a node that a rank lacks room for its tokens in a call, without a collective of the host."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Where a file is memory that the processes of a host share.
SHARED = Path("/dev/shm")

#: Bytes of a word.
WORD = 8


class Shortages:
    """A word for each rank of a node, which holds the number of the last call that the rank lacked room for.

    A rank writes its word before it launches a call without its tokens. Each other rank reads all words once it has the
    counts of the call. The counts depend on the launch, so a rank that has them sees the word.
    """

    def __init__(self, words: memoryview, rank: int) -> None:
        self._words, self._rank = words, rank

    @classmethod
    def of_node(cls, gather: Callable[[Any], list[Any]], rank: int, ranks: int) -> Shortages | None:
        """The words of all ranks, which come here together; None if any of them cannot reach the memory."""
        path = _new_file(ranks) if rank == 0 else None
        path = gather(path)[0]
        words = None if path is None else _words_in(path)
        is_open = all(gather(words is not None))
        if rank == 0 and path is not None:
            Path(path).unlink()
        return cls(words, rank) if is_open and words is not None else None

    def tell(self, call: int) -> None:
        """Notes that this rank lacks room for a call."""
        self._words[self._rank] = call

    def any_in(self, call: int) -> bool:
        """Whether any rank lacks room for a call, once its counts are here."""
        return call in self._words


def _new_file(ranks: int) -> str | None:
    """A file of zeros that only this user reads; None if there can be none."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="epforge-", dir=SHARED)
    except OSError:
        return None
    os.truncate(descriptor, WORD * ranks)
    os.close(descriptor)
    return path


def _words_in(path: str) -> memoryview | None:
    """The words of a file; None if it is not there, as in another container."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return memoryview(mmap.mmap(descriptor, 0)).cast("Q")
    finally:
        os.close(descriptor)
