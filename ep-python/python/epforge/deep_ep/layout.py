"""The layout of a dispatch: one kernel, which a rank launches without the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from ..arrays import TORCH, Found, Layout, is_torch
from ..caller import Caller
from ..group import Group
from ._torch import require, whole_words

if TYPE_CHECKING:
    import torch


class LocalLayout(Caller):
    """Counts the tokens of this rank for tokens of one top-k and number of experts."""

    def __init__(self, group: Group, topk: int, experts: int) -> None:
        super().__init__(group)
        self.topk, self._core = topk, _core.LayoutKernel(group._core, topk, experts)
        #: What a call of so many tokens leaves; the emulator has bytes for truth values.
        flags, words = "uint8" if group.on_emulator else "bool", (group.ranks, group.nodes, experts)
        counts = [("int32", (count,)) for count in words]
        self._left: dict[int, Layout] = Found(lambda tokens: Layout(*counts, (flags, (tokens, group.ranks))))

    def of(self, topk_idx: torch.Tensor) -> list[torch.Tensor]:
        """Tokens for each rank and for each node, entries for each expert, and which token goes to which rank."""
        rank, left = self.group.local.start, self._left[topk_idx.shape[0]]
        how, device = self._how(rank, TORCH), self.group._devices[rank]
        if not self.group.on_emulator and is_torch(topk_idx) and isinstance(TORCH.looks, _core.Looks):
            likes = left.likes(device)
            made = self._core.send_tensors(TORCH.looks, (rank, device), topk_idx, likes, how)
            if made is not None:
                return made
        ids = whole_words(topk_idx).contiguous()
        where, kept = self._dense(rank, ids, "topk_idx", "int64", (ids.shape[0], self.topk))
        places: Any = self._new(rank, left, TORCH)
        self._core.send(rank, ids.shape[0], where, [at for _, at in places], how)
        if not self.group.on_emulator:
            return [tensor for tensor, _ in places]
        *counts, flags = (self._shown(tensor, TORCH) for tensor, _ in places)
        del kept
        return [*counts, flags.view(require().bool)]
