"""Small problems and what their calls must give, computed by NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass
class Problem:
    """The inputs of all ranks. Rows are small whole numbers, so that no sum is rounded."""

    ranks: int
    hidden: int
    topk: int
    experts: int
    x: list[np.ndarray[Any, Any]]
    topk_idx: list[np.ndarray[Any, Any]]
    topk_weights: list[np.ndarray[Any, Any]]

    def owner(self, expert: int) -> int:
        """The rank of an expert: as even as possible, the first ranks have one more."""
        each, more = divmod(self.experts, self.ranks)
        return (
            min(expert // (each + 1), more)
            if expert < more * (each + 1)
            else more + (expert - more * (each + 1)) // each
        )

    def begin(self, rank: int) -> int:
        """The first expert of a rank."""
        each, more = divmod(self.experts, self.ranks)
        return rank * each + min(rank, more)

    def ranks_of(self, rank: int, token: int) -> list[int]:
        """The ranks that a token goes to."""
        return sorted({self.owner(int(expert)) for expert in self.topk_idx[rank][token] if expert >= 0})

    def arrivals(self, to: int) -> list[tuple[int, int]]:
        """Rank and token of each row that a rank receives, in order."""
        return [
            (rank, token)
            for rank in range(self.ranks)
            for token in range(len(self.x[rank]))
            if to in self.ranks_of(rank, token)
        ]

    def received(self, to: int) -> tuple[Any, Any, Any]:
        """Rows, local experts and their weights that arrive at a rank."""
        arrivals = self.arrivals(to)
        rows = np.array([self.x[rank][token] for rank, token in arrivals], self.x[0].dtype).reshape(-1, self.hidden)
        ids = np.full((len(arrivals), self.topk), -1, np.int64)
        weights = np.zeros((len(arrivals), self.topk), np.float32)
        for row, (rank, token) in enumerate(arrivals):
            for k, expert in enumerate(self.topk_idx[rank][token]):
                if expert >= 0 and self.owner(int(expert)) == to:
                    ids[row, k] = expert - self.begin(to)
                    weights[row, k] = self.topk_weights[rank][token][k]
        return rows, ids, weights

    def times(self, rank: int) -> Any:
        """How many ranks each token goes to."""
        return np.array([len(self.ranks_of(rank, token)) for token in range(len(self.x[rank]))], np.float32)[:, None]


def problem(
    ranks: int, *, tokens: list[int], hidden: int = 128, topk: int = 3, experts: int = 8, seed: int = 0
) -> Problem:
    """A random one: some entries name no expert, and ranks may have no tokens."""
    random = np.random.default_rng(seed)
    x = [random.integers(-8, 8, (count, hidden)).astype(ml_dtypes.bfloat16) for count in tokens]
    ids = [np.argsort(random.random((count, experts)), axis=1)[:, :topk].astype(np.int64) for count in tokens]
    for own in ids:
        own[random.random(own.shape) < 0.15] = -1
    weights = [random.integers(1, 9, (count, topk)).astype(np.float32) / 8 for count in tokens]
    return Problem(ranks, hidden, topk, experts, x, ids, weights)
