"""Rows that experts left for each entry of a top-k, back to their tokens in one call, and rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from ..arrays import TORCH, Found, Layout
from ..buffer import Buffer
from ..caller import Caller
from ..low_latency import MOST_TOKENS
from ..results import Handle
from ._torch import require

if TYPE_CHECKING:
    import torch

#: Rows, the place of each entry's row, experts, and weights.
Arrays = tuple[Any, Any, Any, Any]


class SpreadBack(Caller):
    """Combines for the handles of a buffer, with a row for each entry of the top-k that is here.

    The rows go back one by one, and the rank of their token adds them up in order of its top-k. `Buffer.combine` takes
    one row for each received row, in which those of several experts are rounded together.
    """

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer.group)
        self.hidden, self.topk, self.tokens = buffer.hidden, buffer.topk, buffer.tokens
        numbers = [buffer.tokens, buffer.hidden, buffer.topk, buffer.experts]
        buffer.group._agree("a combine of each expert", {"numbers": numbers})
        self._core = _core.SpreadKernel(buffer.group._core, numbers)
        self._summed: dict[int, Layout] = Found(lambda tokens: Layout(("bfloat16", (tokens, self.hidden))))
        self._ones: torch.Tensor | None = None

    @staticmethod
    def bytes(ranks: int, tokens: int, hidden: int, topk: int, experts: int) -> int:
        """What it takes on each rank, for as many of the tokens as it may have."""
        return _core.SpreadKernel.bytes_of(ranks, [min(tokens, MOST_TOKENS), hidden, topk, experts])

    def combine(
        self, rows: torch.Tensor, places: torch.Tensor, handle: Handle, topk_idx: torch.Tensor, sms: int | None
    ) -> torch.Tensor:
        """The sums of ``rows``, of which ``int32[received, topk]`` names the one of each entry; -1 for other ranks."""
        if self._ones is None:
            kind = require().float32
            self._ones = require().ones((self.tokens, self.topk), dtype=kind, device=rows.device)
        if not rows.shape[0]:
            # Kernels take no tensor without an address, also where no row is read.
            rows, places = rows.new_empty((1, self.hidden)), places.new_full((1, self.topk), -1)
        arrays = (rows.contiguous(), places.contiguous(), topk_idx, self._ones[: handle.tokens])
        if not self.group._mirror:
            return self._send(handle._core, self._given(handle._core, arrays), sms)
        cores = handle._mirrored
        every = self._gather("combine of each expert", arrays)
        given = self._of_each(handle.rank, lambda rank, brought: self._given(cores[rank], brought), every)
        made = [self._send(cores[rank], its, sms) for rank, its in given.items()]
        sums: torch.Tensor = self._shown(made[handle.rank], TORCH)
        return sums

    def _given(self, core: _core.Handle, arrays: Arrays) -> tuple[list[int], int, list[Any]]:
        """Where the kernel of a rank finds rows, experts, weights, and the places of rows, and what keeps them."""
        rank, (rows, places, ids, ones) = core.rank, arrays
        entries = (core.tokens, self.topk)
        x, kept = self._dense(rank, rows, "x", "bfloat16", (rows.shape[0], self.hidden))
        spots, kept_places = self._dense(rank, places, "places", "int32", (places.shape[0], self.topk))
        experts, kept_ids = self._dense(rank, ids, "topk_idx", "int64", entries)
        weights, kept_ones = self._dense(rank, ones, "topk_weights", "float32", entries)
        return [x, experts, weights], spots, [kept, kept_places, kept_ids, kept_ones]

    def _send(self, core: _core.Handle, given: tuple[list[int], int, list[Any]], sms: int | None) -> Any:
        (addresses, places, _), rank = given, core.rank
        how = self._how(rank, TORCH, (None, sms, None, None, None))
        self._settle(rank)
        ((sums, sums_at),) = self._new(rank, self._summed[core.tokens], TORCH)
        tables = [core.rank_prefix().address, core.sources().address, places]
        self._core.send(rank, core.tokens, addresses, tables, sums_at, how)
        self._made(rank)
        return sums
