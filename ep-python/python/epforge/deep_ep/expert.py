"""What `ElasticBuffer` and `EPBuffer` have in common: dispatch with and without expanding, and combine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core import Mismatch
from ..group import brought_by_all
from ..results import Handle, Received
from ._torch import own_experts, require, whole_words
from .absent import OTHER_KIND, NotThereYet, absent
from .engines import (
    Beside,
    Engines,
    FacadeHandle,
    Shape,
    Way,
    as_sent,
    biases_of,
    bytes_of,
    payload_of,
    require_handle,
)
from .handles import EPHandle
from .spread import SpreadBack
from .utils.event import EventHandle

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Ask:
    """What a dispatch is asked for besides its rows."""

    experts: int
    most: int
    alignment: int
    sms: int
    sync: bool
    expand: bool
    zero_padding: bool
    by_columns: bool
    copy: bool


class ExpertBuffer:
    """Dispatch and combine of both buffers, within one node."""

    #: Whether rows of one token are added up, and rounded, on each rank of its experts.
    allow_multiple_reduction: bool

    #: Dispatches whose rows may wait in the buffer, and combines, at once.
    live = 1

    def __init__(self, group: Any, most: int, timeout: float, deterministic: bool, explicitly_destroy: bool) -> None:
        self.engines: Engines | None = Engines(group, None, timeout, live=self.live)
        if self.engines.nodes > 1:
            name, nodes = type(self).__name__, self.engines.nodes
            raise NotThereYet(f"`{name}` is for one node, and the group has {nodes}: `deep_ep.Buffer` goes there")
        self.group, self.rank_idx, self.num_ranks = group, self.engines.rank, self.engines.ranks
        self.num_max_tokens_per_rank = most
        # Rows come in order of their rank and token, and sums are made in order of the ranks, always.
        self.deterministic = deterministic
        self.explicitly_destroy = explicitly_destroy
        self.num_scaleout_ranks, self.num_scaleup_ranks = 1, self.num_ranks
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = 1, self.num_ranks
        self.num_allocated_qps = 0

    @classmethod
    def bytes(
        cls,
        num_ranks: int,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
        num_experts: int,
        use_fp8: bool = False,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes of GPU memory that dispatch and combine take for so many tokens a rank, before a buffer is made.

        This is for rows of one type; those of another type take memory of their own when they are first sent. Without
        ``allow_multiple_reduction``, combines of expanded rows have memory of their own.
        """
        shape = (num_ranks, num_max_tokens_per_rank, hidden, num_topk, num_experts)
        own = bytes_of(*shape, use_fp8, cls.live)
        return own if allow_multiple_reduction else own + SpreadBack.bytes(*shape)

    def prepare(
        self,
        hidden: int,
        num_topk: int,
        num_experts: int,
        use_fp8: bool = False,
        use_ue8m0: bool = False,
        expert_alignment: int = 1,
        do_expand: bool = False,
    ) -> None:
        """Makes the kernels and the memory for dispatch and combine of a shape, so that the first call does not.

        Only dispatches with weights use what is prepared. All ranks make this call with the same numbers, before they
        capture a graph or measure free memory.
        """
        if not self.num_max_tokens_per_rank:
            raise Mismatch("`prepare` wants a buffer that was made with `num_max_tokens_per_rank`")
        engines, payload = self._engines(), payload_of(use_fp8, use_ue8m0)
        shape = Shape(hidden, num_topk, num_experts, payload, weights=True, alignment=expert_alignment)
        buffer = engines.engine(shape, 0, self.num_max_tokens_per_rank)
        if do_expand and not self.allow_multiple_reduction:
            engines.spread_back(buffer)

    def destroy(self) -> None:
        """Gives the memory back, whether or not the buffer was made to be destroyed."""
        if self.engines is not None:
            self.engines.drop()
        self.engines = None

    @staticmethod
    def capture() -> EventHandle:
        """An event at the end of the current stream."""
        return EventHandle()

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream on which calls that overlap with the caller's run."""
        stream = self._engines().stream
        if stream is None:
            raise Mismatch("the emulator has no streams")
        return stream

    def get_physical_domain_size(self) -> tuple[int, int]:
        """One node, and all ranks in it."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """One node, and all ranks in it."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 0,
        sm_write_gbs: float = 0,
    ) -> int:
        """0: each call takes the fewest SMs with which the link is its limit."""
        return 0

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """0: there are none within a node."""
        return 0

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits on the host until all ranks have come here and have nothing to do."""
        engines = self._engines()
        engines.group.sync()
        brought_by_all(engines.gather, "a barrier", None)

    def _engines(self) -> Engines:
        if self.engines is None:
            raise Mismatch("the buffer was destroyed")
        return self.engines

    def _send(
        self, calls: Beside, x: Any, topk_idx: Any, weights: Any, ask: Ask, handle: EPHandle | None
    ) -> Callable[[], tuple[Any, ...]]:
        """Sends the rows; what it gives makes the outputs, once the rows are there for the current stream."""
        rows, scale = x if isinstance(x, tuple) else (x, None)
        if rows.shape[0] > ask.most:
            raise Mismatch(f"`x` has {rows.shape[0]} tokens, and `num_max_tokens_per_rank` is {ask.most}")
        if handle is None:
            if topk_idx is None:
                raise Mismatch("a dispatch wants `topk_idx` or the `handle` of an earlier one")
            experts = own_experts(topk_idx) if ask.copy else whole_words(topk_idx).contiguous()
            calls.outputs.append(experts)
            most = max(ask.most, self.num_max_tokens_per_rank)
            sent = FacadeHandle(self._engines(), Way(experts, ask.experts, ask.alignment), rows.shape[0], most)
        elif topk_idx is not None:
            raise Mismatch("a dispatch with a `handle` has no `topk_idx`: the tokens go where they went before")
        else:
            sent = handle.sent
        received, tables, _ = sent.send(rows, scale, weights, ask.sms)
        return lambda: self._receive(received, tables, sent, (scale, weights), ask, handle)

    def _receive(
        self,
        received: Received,
        tables: Handle,
        sent: FacadeHandle,
        with_rows: tuple[Any, Any],
        ask: Ask,
        handle: EPHandle | None,
    ) -> tuple[Any, Any, Any, EPHandle]:
        counts: list[int] = []
        if handle is not None:
            count = handle.num_recv_tokens
        elif ask.sync:
            count, counts = tables.counts()
        else:
            count = self.num_ranks * ask.most
        x, scale, ids, weights = received.copy(count)
        if handle is None:
            handle = self._handle(tables, sent, ids, count, counts, ask)
        else:
            # A cached dispatch moves rows alone: the experts are those of the first one.
            ids = handle.ids
        scale, weights = as_sent(scale, with_rows[0]), None if with_rows[1] is None else weights
        if handle.do_expand:
            entries = entries_of(handle.places, handle.num_expanded_tokens)
            x, scale = (expanded(it, entries, ids.shape[1], ask.zero_padding) for it in (x, scale))
            weights = None if weights is None else expanded(weights.view(-1, 1), entries, 1, True).flatten()
        if scale is not None and ask.by_columns:
            scale = by_columns(scale)
        return x if scale is None else (x, scale), None if handle.do_expand else ids, weights, handle

    def _handle(
        self, tables: Handle, sent: FacadeHandle, ids: Any, count: int, counts: list[int], ask: Ask
    ) -> EPHandle:
        # Where the host does not know the counts, there may be a gap behind the rows of each expert.
        most = count * ids.shape[1] + tables.buffer.local_experts * (ask.alignment - 1)
        return EPHandle(
            do_expand=ask.expand,
            num_experts=ask.experts,
            expert_alignment=ask.alignment,
            num_max_tokens_per_rank=ask.most,
            num_sms=ask.sms,
            topk_idx=sent.way.topk_idx,
            num_recv_tokens=count,
            num_expanded_tokens=(sum(counts) if ask.sync else most) if ask.expand else 0,
            num_recv_tokens_per_expert_list=counts,
            sent=sent,
            tables=tables,
            ids=ids,
        )

    def _combine(
        self, x: Any, handle: EPHandle, weights: Any, bias: Any, sms: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        require_handle(handle, EPHandle, "dispatch")
        biases = biases_of(bias)
        tables, sms = handle.sent.handle(x.shape[1], weights is not None, 0), sms or handle.num_sms
        apart = handle.do_expand and not self.allow_multiple_reduction
        if handle.do_expand:
            weights = None if weights is None else spread(weights, handle.places)
            x = x if apart else folded(x, handle.places)
        if apart and not biases and (back := self._engines().spread_back(tables.buffer)):
            places = handle.recv_src_metadata[:, 2:]
            total = back.combine(x, places, tables, handle.sent.way.topk_idx, sms or None)
            summed = None
            if weights is not None:
                # The rows are any: their sums are not looked at.
                summed = tables.buffer.combine(x[: handle.num_recv_tokens], tables, weights, sms=sms or None).weights
            return total, summed
        if apart or biases:
            parts = each_choice(x, handle) if apart else at_last_choice(x, handle)
            return added(parts, handle, tables, biases, weights, sms or None)
        sums = tables.buffer.combine(x, tables, weights, sms=sms or None)
        return sums.x, sums.weights

    def _ask(
        self,
        handle: EPHandle | None,
        experts: int | None,
        most: int | None,
        alignment: int | None,
        sms: int,
        **how: Any,
    ) -> Ask:
        if handle is not None:
            own = (handle.num_experts, handle.num_max_tokens_per_rank, handle.expert_alignment)
            names = ("num_experts", "num_max_tokens_per_rank", "expert_alignment")
            for name, given, its in zip(names, (experts, most, alignment), own, strict=True):
                if given not in (None, its):
                    raise Mismatch(f"`{name}` is {given}, and that of the handle {its}")
            experts, most, alignment = own
        if experts is None:
            raise Mismatch("a dispatch without a `handle` wants `num_experts`")
        most = most or self.num_max_tokens_per_rank
        if not most:
            raise Mismatch("a dispatch wants `num_max_tokens_per_rank`, here or where the buffer is made")
        sync = how.pop("sync")
        return Ask(experts, most, alignment or 1, sms, handle is None if sync is None else sync, **how)


def entries_of(places: torch.Tensor, count: int) -> torch.Tensor:
    """The entry of the top-k that each of ``count`` expanded rows is for, numbered over all received rows; -1 for none.

    ``places`` has the place of each entry, and -1 for those without one.
    """
    torch = require()
    places = places.flatten()
    made = places.new_full((count + 1,), -1)
    # What has no place goes behind the last row.
    spot = torch.where(places < 0, count, places)
    made[spot] = torch.arange(places.shape[0], device=places.device)
    return made[:-1]


def expanded(rows: Any, entries: torch.Tensor, topk: int, zero_padding: bool) -> Any:
    """For each entry a copy of its row, which it shares with ``topk`` others; for none of them zeros, or any row."""
    if rows is None:
        return None
    torch = require()
    plain = rows.view(torch.uint8) if rows.dtype == torch.float8_e4m3fn else rows
    made = plain[entries.clamp(min=0) // topk]
    if zero_padding:
        made.masked_fill_((entries < 0)[:, None], 0)
    return made.view(rows.dtype)


def folded(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The rows of each token's experts added up in order of its top-k, as float32, and rounded once."""
    torch = require()
    sums = torch.zeros((places.shape[0], rows.shape[1]), dtype=torch.float32, device=rows.device)
    for k in range(places.shape[1]):
        has = places[:, k] >= 0
        sums += torch.where(has[:, None], rows[places[:, k].clamp(min=0)].float(), 0.0)
    return sums.to(rows.dtype)


def each_choice(rows: torch.Tensor, handle: EPHandle) -> Iterable[torch.Tensor]:
    """For each entry of the top-k its expanded rows, with zeros where another rank has the expert."""
    for places in handle.places.unbind(1):
        yield rows[places.clamp(min=0)].masked_fill((places < 0)[:, None], 0)


def at_last_choice(rows: torch.Tensor, handle: EPHandle) -> Iterable[torch.Tensor]:
    """For each entry of the top-k the rows whose last expert here it is, with zeros for the others."""
    torch = require()
    ids = handle.ids[: rows.shape[0]]
    topk = ids.shape[1]
    last = torch.where(ids < 0, -1, torch.arange(topk, device=ids.device)).amax(1)
    for choice in range(topk):
        yield rows.masked_fill((last != choice)[:, None], 0)


def added(
    parts: Iterable[torch.Tensor], handle: EPHandle, tables: Handle, biases: Any, weights: Any, sms: int | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sums as deep_ep's kernels make them: the biases, then the parts in order of the top-k, rounded once.

    Our kernels add in order of the ranks, so each part comes back by a combine of its own.
    """
    torch = require()
    shape = (handle.sent.tokens, tables.buffer.hidden)
    total = torch.zeros(shape, dtype=torch.float32, device=handle.topk_idx.device)
    for bias in biases:
        if tuple(bias.shape) != shape:
            raise Mismatch(f"a `bias` has extents {list(bias.shape)}, and needs {list(shape)}")
        total += bias
    summed: list[Any] = []
    for part in parts:
        # The weights come with the first one.
        sums = tables.buffer.combine(part, tables, None if summed else weights, sms=sms)
        total += sums.x
        summed.append(sums.weights)
    return total.to(torch.bfloat16), summed[0]


def spread(weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The weight of each expanded row where the token that it belongs to has it."""
    torch = require()
    return torch.where(places >= 0, weights[places.clamp(min=0)], 0.0)


def by_columns(scale: torch.Tensor) -> torch.Tensor:
    """The same scales, one column behind another at multiples of 16 bytes."""
    torch = require()
    rows, columns = scale.shape
    per_line = 16 // scale.element_size()
    made = torch.empty((columns, -(-rows // per_line) * per_line), dtype=scale.dtype, device=scale.device)
    turned = made.T[:rows]
    turned.copy_(scale)
    return turned


def other_kind(name: str) -> Any:
    """A method for a call of pipelines of other kinds: it raises one sentence."""

    def call(*_: Any, **__: Any) -> Any:
        absent(name, OTHER_KIND)

    call.__name__ = name
    call.__doc__ = f"`{name}` of deep_ep, which is not there."
    return call
