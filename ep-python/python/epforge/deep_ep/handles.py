"""Handles of the second and third API: their tensors are made when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..results import Handle
from ._torch import require
from .engines import FacadeHandle, is_capturing

if TYPE_CHECKING:
    import torch


class Later:
    """A tensor of a handle that is made when it is first read: a decode step would launch twenty small kernels for all.

    Until then nobody changes the experts that the dispatch has returned. What is read behind the capture of a graph is
    made anew each time, since the next replay changes it.
    """

    def __init__(self, make: Callable[[Any], torch.Tensor]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, handle: Any, owner: type) -> Any:
        if handle is None:
            return self
        made = self._make(handle)
        if not handle.is_captured or is_capturing():
            vars(handle)[self._name] = made
        return made


#: What a handle makes when it is first read.
LATER = (
    "psum_num_recv_tokens_per_scaleup_rank",
    "psum_num_recv_tokens_per_expert",
    "num_unaligned_recv_tokens_per_expert",
    "recv_src_metadata",
)


@dataclass
class EPHandle:
    """Where the tokens of a dispatch went, for its combine and for other rows of the same tokens."""

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: torch.Tensor
    #: Rows that came; as many as may come, where the host does not know.
    num_recv_tokens: int
    #: Rows of the expanded output, with those between the experts.
    num_expanded_tokens: int
    #: Entries of each local expert, rounded up; empty where the host does not know.
    num_recv_tokens_per_expert_list: list[int]
    sent: FacadeHandle = field(repr=False)
    tables: Handle = field(repr=False)
    #: Local experts of each row.
    ids: torch.Tensor = field(repr=False)
    #: Whether a graph was captured when it was made.
    is_captured: bool = field(default_factory=lambda: is_capturing(), repr=False)
    # Tables of deep_ep's kernels between nodes, which callers copy from handle to handle.
    token_metadata_at_forward: torch.Tensor | None = None
    channel_linked_list: torch.Tensor | None = None

    @cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """``int32[tokens, topk]``: the row of a token in the output of its expert's rank; -1 for no expert.

        It is made when it is first read: no call here needs it.
        """
        return self.sent.rows_there()

    @Later
    def _prefix(self) -> torch.Tensor:
        """Rows from all ranks before each one, and from all."""
        prefix: torch.Tensor = self.tables.rank_prefix[:, self.tables.rank]
        return prefix

    @Later
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """``int32[ranks]``: where the rows of each rank end."""
        return self._prefix[1:].to(require().int32).contiguous()

    @Later
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor:
        """``int32[local experts]``: entries of each local expert."""
        torch, local = require(), self.tables.buffer.local_experts
        ones = torch.ones_like(self.ids).flatten()
        made = self.ids.new_zeros(local + 1).scatter_add_(0, torch.where(self.ids < 0, local, self.ids).flatten(), ones)
        return made[:local].to(torch.int32)

    @Later
    def _aligned(self) -> torch.Tensor:
        """Entries of each local expert, rounded up."""
        count, step = self.num_unaligned_recv_tokens_per_expert.long(), self.expert_alignment
        return (count + step - 1) // step * step

    @Later
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        """``int32[local experts]``: where the rows of each expert end, and rounded up if they are not expanded."""
        ends = self._aligned.cumsum(0)
        if self.do_expand:
            ends = ends - self._aligned + self.num_unaligned_recv_tokens_per_expert
        return ends.to(require().int32)

    @Later
    def recv_src_metadata(self) -> torch.Tensor:
        """For each row its token among all ranks, its place, and if expanded, the place of each of its experts."""
        torch, count, ranks = require(), self.num_recv_tokens, self.sent.engines.ranks
        row = torch.arange(count, device=self.ids.device)
        source = torch.bucketize(row, self._prefix[1:].contiguous(), right=True).clamp_(max=ranks - 1)
        token = source * self.num_max_tokens_per_rank + self.tables.sources(count)
        begin = self._aligned.cumsum(0) - self._aligned
        places = slots(self.ids, begin) if self.do_expand else self.ids.new_empty((count, 0))
        return torch.cat([token[:, None], row[:, None], places], dim=1).to(torch.int32)

    def complete(self) -> None:
        """Makes all that is read later, on the current stream: a caller of another stream may read it early."""
        for name in LATER:
            getattr(self, name)

    @property
    def places(self) -> torch.Tensor:
        """The place of each entry of a received row among the expanded rows; -1 for those of other ranks."""
        return self.recv_src_metadata[:, 2:].long()

    def tensors(self) -> list[torch.Tensor]:
        """Those that calls with this handle read, as far as they are there."""
        made = [vars(self)[name] for name in LATER if name in vars(self)]
        return [self.topk_idx, self.sent.way.topk_idx, self.ids, *made]


def slots(ids: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
    """The place of each entry among the rows of its expert, which are in order of the received rows; -1 for none."""
    torch = require()
    local = begin.shape[0]
    flat = torch.where(ids < 0, local, ids).flatten()
    order = torch.sort(flat, stable=True).indices
    experts = flat[order]
    first = torch.searchsorted(experts, torch.arange(local + 1, device=ids.device))
    rank = torch.arange(flat.shape[0], device=ids.device) - first[experts]
    starts = torch.cat([begin, begin.new_zeros(1)])
    places = torch.empty_like(flat)
    places[order] = torch.where(experts < local, starts[experts] + rank, -1)
    return places.view(ids.shape)


def tensors_of(*values: Any) -> list[torch.Tensor]:
    """The tensors among values, in tuples and of handles: what a call reads or leaves on another stream."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, EPHandle):
            found += value.tensors()
        elif isinstance(value, tuple):
            found += tensors_of(*value)
        elif value is not None:
            found.append(value)
    return found
