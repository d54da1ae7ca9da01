"""`HybridEPBuffer`: dispatch and combine by maps of tokens and experts, with a row for each expert of a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core import Mismatch
from ..group import brought_by_all
from ._torch import own_experts, require
from .absent import absent
from .engines import Engines, FacadeHandle, Way, require_handle
from .expert import entries_of, expanded, folded, spread
from .handles import slots
from .knobs import tell_of_ignored
from .legacy import Buffer

if TYPE_CHECKING:
    import torch

BLOCKS = "rows are sorted by expert after they have come"

#: Room for experts of a token is made in steps of this many.
STEP = 8


def unsorted(name: str, instead: str) -> Any:
    """A method for a call without sorted rows: it raises one sentence."""

    def call(*_: Any, **__: Any) -> Any:
        absent(name, f"`{instead}` of `HybridEPBuffer` has rows sorted by expert, and `Buffer.{name}` does without")

    call.__name__ = name
    call.__doc__ = f"`{name}` of `HybridEPBuffer`, which is not there."
    return call


@dataclass
class HybridHandle:
    """Where the tokens of a dispatch went, for its combine and for other rows of the same tokens."""

    sent: FacadeHandle
    #: Rows that came, and rows for their experts, with those between the experts.
    rows: int
    total: int
    #: The place of each entry of a row that came among the rows for experts; -1 for those of other ranks.
    places: torch.Tensor
    #: The entry that each row for an expert is for; -1 for none.
    entries: torch.Tensor
    #: Rows of each expert, rounded up.
    counts: torch.Tensor

    def sorted(self, rows: torch.Tensor) -> torch.Tensor:
        """For each received row copies for its experts, and zeros between the experts."""
        made: torch.Tensor = expanded(rows, self.entries, self.places.shape[1], True)
        return made


class HybridEPBuffer:
    """Dispatch and combine of `deep_ep.HybridEPBuffer`, with rows sorted by expert, within one node and between nodes.

    The host waits for the counts of a dispatch. ``max_num_of_tokens_per_rank`` is what there is room for at first, and
    the buffers of all ranks grow when a call has more tokens.
    """

    def __init__(
        self,
        group: torch.distributed.ProcessGroup,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
    ) -> None:
        refuse_fp8(use_fp8)
        blocks = {
            "num_blocks_permute": (num_blocks_permute, None),
            "num_blocks_unpermute": (num_blocks_unpermute, None),
        }
        tell_of_ignored(BLOCKS, **blocks)
        self.group, self.hidden_dim, self.num_local_experts = group, hidden_dim, num_local_experts
        self.max_num_of_tokens_per_rank = max_num_of_tokens_per_rank
        self.engines = Engines(group, None, timeout=100.0)
        self.rank, self.group_size = self.engines.rank, self.engines.ranks
        self._sms = num_sms_dispatch_api or Buffer.num_sms, num_sms_combine_api or Buffer.num_sms
        #: Room for experts of a token, by the number of experts.
        self._widths: dict[int, int] = {}

    def dispatch_with_permute(
        self,
        *,
        hidden: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        scaling_factor: torch.Tensor | None = None,
        num_permuted_tokens: int | None = None,
        pad_multiple: int | None = None,
        handle: HybridHandle | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: int | None = None,
        use_host_meta: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, torch.Tensor, HybridHandle]:
        """Rows to the ranks of their experts: a row for each expert, their weights, no scales, counts, a handle.

        With a ``handle`` rows alone travel, to the places of an earlier dispatch.
        """
        refuse_fp8(bool(use_fp8) or scaling_factor is not None)
        if non_blocking or use_host_meta is False:
            absent("non_blocking", "the host waits for the number of rows: leave `num_permuted_tokens` out")
        if handle is not None:
            require_handle(handle, HybridHandle, "dispatch_with_permute")
            received, _, _ = handle.sent.send(hidden, None, None, self._sms[0])
            rows, *_ = received.copy(handle.rows)
            return handle.sorted(rows), None, None, handle.counts, handle
        if routing_map is not None:
            experts = int(routing_map.shape[1])
            ids, weights = self._choices(routing_map, probs)
        elif topk_idx is not None and num_of_experts is not None:
            experts, ids, weights = num_of_experts, own_experts(topk_idx), topk_weights
        else:
            raise Mismatch("a dispatch wants a `handle`, a `routing_map`, or `topk_idx` and `num_of_experts`")
        own = num_of_experts_per_rank or self.num_local_experts
        if own * self.group_size != experts:
            raise Mismatch(f"{self.group_size} ranks with {own} experts each have no {experts} experts")
        sent = FacadeHandle(self.engines, Way(ids, experts), hidden.shape[0], self.max_num_of_tokens_per_rank)
        received, tables, told = sent.send(hidden, None, weights, self._sms[0], is_counted=True)
        count, counts = told or tables.counts()
        rows, _, came, came_weights = received.copy(count)
        del received
        made = handle_of(sent, came, counts, pad_multiple or 1)
        # Each entry has a weight of its own.
        sorted_weights = (
            None if weights is None else expanded(came_weights.view(-1, 1), made.entries, 1, True).flatten()
        )
        return made.sorted(rows), sorted_weights, None, made.counts, made

    def combine_with_unpermute(
        self,
        *,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: HybridHandle | None = None,
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of experts back to their tokens, added up; their weights go to each token's place in the map."""
        require_handle(handle, HybridHandle, "dispatch_with_permute")
        assert handle is not None
        tables = handle.sent.handle(hidden.shape[1], probs is not None, 0)
        weights = None if probs is None else spread(probs, handle.places)
        sums = tables.buffer.combine(folded(hidden, handle.places), tables, weights, sms=self._sms[1])
        if weights is None:
            return sums.x, None
        torch, way = require(), handle.sent.way
        came = sums.weights
        every = came.new_zeros((came.shape[0], way.experts + 1))
        every.scatter_(1, torch.where(way.topk_idx < 0, way.experts, way.topk_idx), came)
        return sums.x, every[:, :-1].contiguous()

    dispatch = unsorted("dispatch", "dispatch_with_permute")
    combine = unsorted("combine", "combine_with_unpermute")

    def _choices(
        self, routing_map: torch.Tensor, probs: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The experts of each token in a map, in ascending order, and their weights."""
        torch = require()
        experts = routing_map.shape[1]
        width = self._width(experts, int(routing_map.sum(1).max()) if routing_map.shape[0] else 0)
        spot = torch.where(routing_map, torch.arange(experts, device=routing_map.device), experts)
        ids = spot.topk(width, dim=1, largest=False, sorted=True).values
        is_one = ids < experts
        weights = None
        if probs is not None:
            weights = torch.where(is_one, probs.gather(1, ids.clamp(max=experts - 1)), 0.0)
        return torch.where(is_one, ids, -1), weights

    def _width(self, experts: int, most: int) -> int:
        """Room for the experts of a token, which all ranks agree on in their first call."""
        width = self._widths.get(experts)
        if width is None:
            every = max(brought_by_all(self.engines.gather, "the experts of a token", most))
            width = self._widths[experts] = min(experts, -(-max(every, 1) // STEP) * STEP)
        if most > width:
            raise Mismatch(
                f"a token has {most} experts, and since the first call there is room for {width}: name them by "
                "`topk_idx`, or make a first call with such a token"
            )
        return width


def handle_of(sent: FacadeHandle, ids: torch.Tensor, counts: list[int], multiple: int) -> HybridHandle:
    """Sorts the rows that came by their local experts, whose rows begin at multiples of a number."""
    torch = require()
    padded = torch.tensor(counts, dtype=torch.int64, device="cpu")
    padded = (padded + multiple - 1) // multiple * multiple
    total = int(padded.sum())
    places = slots(ids, (padded.cumsum(0) - padded).to(ids.device))
    return HybridHandle(sent, ids.shape[0], total, places, entries_of(places, total), padded)


def refuse_fp8(is_asked: bool) -> None:
    """Fails for rows that are no bfloat16."""
    if is_asked:
        absent("HybridEPBuffer with FP8", "`Buffer.dispatch` sends rows of FP8 with their scales")
