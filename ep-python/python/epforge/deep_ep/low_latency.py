"""The low-latency half of the first API of deep_ep."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from .._core import Mismatch
from ..low_latency import MOST_PER_RANK, MOST_TOKENS, TILE, WAYS, LowLatency, Packed, Sums
from ._torch import require, whole_words
from .absent import absent
from .engines import BETWEEN, Engines, nodes_of, payload_of, require_handle
from .knobs import SLOTS, tell_of_ignored
from .utils.event import EventOverlap

if TYPE_CHECKING:
    import torch

#: What to do where rows of four bits are asked for.
FOUR_BITS = (
    "dispatch rows in BF16 or FP8 (vLLM: VLLM_DEEPEPLL_NVFP4_DISPATCH=0, SGLang: --deepep-dispatcher-output-dtype "
    "bf16), and cast them where they arrive"
)


class LowLatencyHandle:
    """What a low-latency dispatch leaves, in the form of the tuple that others read it as, once it has arrived."""

    def __init__(self, packed: Packed, low: LowLatency, topk_idx: torch.Tensor) -> None:
        self.packed, self.low = packed, low
        #: As the dispatch was given it.
        self.topk_idx = topk_idx
        #: What `get_next_low_latency_combine_buffer` has given, until a combine reads it.
        self.next_input: torch.Tensor | None = None

    @property
    def layout_range(self) -> torch.Tensor:
        """``int64[local_experts, ranks]``: where the rows of a rank begin, and in the lower half how many they are."""
        first: torch.Tensor = self.packed.range_first
        return first.long() << 32 | self.packed.range_count

    def __len__(self) -> int:
        return 5

    def __getitem__(self, at: int) -> Any:
        if at not in range(5):
            raise IndexError(at)
        if at == 0:
            return self.packed.src_info
        return self.layout_range if at == 1 else (self.low.tokens, self.low.hidden, self.low.experts)[at - 2]

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(5))


class LowLatencyCalls:
    """The low-latency calls of `Buffer`: any hidden size, top-k, number of experts, and up to 8192 tokens.

    What they give are tensors of their own, as many as the caller keeps. Two dispatches and two combines may be
    between their phases at once. ``low_latency_way`` is the ``way`` of `LowLatency`, on all ranks the same: ``"auto"``
    is ``per-rank``, the quicker one, between at most 64 ranks for dispatches that neither publish waits nor leave ranks
    out.
    """

    low_latency_way: str = os.environ.get("EPFORGE_LOW_LATENCY_WAY") or "auto"
    engines: Engines | None
    group_size: int

    def _engines(self) -> Engines:
        raise NotImplementedError

    def _way_of_rows(self, engines: Engines, tells_waits: bool) -> str:
        """How the rows of a dispatch travel: a choice that all ranks make alike."""
        way = self.low_latency_way
        if way not in ("auto", *WAYS):
            raise Mismatch(f"`low_latency_way` is `{way}`, which is none of auto, {', '.join(WAYS)}")
        if way != "auto":
            return way
        leaves_out = engines.shrinks or bool(engines.group.left_out)
        is_large = engines.ranks > MOST_PER_RANK
        return "per-expert" if is_large or leaves_out or tells_waits else "per-rank"

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that the plan of the calls takes for top-8 and BF16 rows both ways, on nodes of 8 ranks.

        Between nodes they include the rows that pass through the network.
        """
        nodes = nodes_of(num_ranks)
        shape: dict[str, Any] = {
            "tokens": checked_most(num_max_dispatch_tokens_per_rank),
            "hidden": hidden,
            "topk": min(8, num_experts),
            "experts": num_experts,
            "between": BETWEEN,
        }
        shape["way"] = "per-rank" if num_ranks <= MOST_PER_RANK else "per-expert"
        own = LowLatency.bytes(num_ranks, nodes=nodes, **shape)
        return own if nodes == 1 else own + LowLatency.network_bytes(num_ranks, nodes=nodes, **shape)

    @staticmethod
    def low_latency_bytes(
        num_ranks: int,
        num_max_dispatch_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
        num_experts: int,
        use_fp8: bool = True,
        way: str = "per-rank",
    ) -> int:
        """Bytes of GPU memory that low-latency calls take within a node, before a buffer is made.

        This is for rows of one type and one way; those of another take memory of their own when they are first sent.
        """
        return LowLatency.bytes(
            num_ranks,
            tokens=checked_most(num_max_dispatch_tokens_per_rank),
            hidden=hidden,
            topk=num_topk,
            experts=num_experts,
            payload=payload_of(use_fp8, False),
            between=BETWEEN,
            way=way,
        )

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing: no call here leaves anything that another one has to find cleared."""

    def low_latency_prepare(
        self,
        num_max_dispatch_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
        num_experts: int,
        use_fp8: bool = True,
        round_scale: bool = False,
    ) -> None:
        """Makes the kernels and the memory of calls with these numbers, so that the first call does not.

        All ranks make this call with the same numbers, before they capture a graph or measure free memory.
        """
        engines, most = self._engines(), checked_most(num_max_dispatch_tokens_per_rank)
        payload, way = payload_of(use_fp8, round_scale), self._way_of_rows(engines, False)
        engines.low_latency(most, hidden, num_topk, num_experts, payload, way)._prepare(payload)

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        use_nvfp4: bool = False,
        x_global_scale: torch.Tensor | None = None,
    ) -> tuple[Any, torch.Tensor, LowLatencyHandle, EventOverlap, Callable[[], None]]:
        """A row for each expert of a token: what came, how many, a handle, an event, and what receives it."""
        if use_nvfp4 or x_global_scale is not None:
            absent("use_nvfp4", FOUR_BITS)
        if use_ue8m0 and not round_scale:
            raise Mismatch("`use_ue8m0` packs powers of two: it needs `round_scale`")
        if use_ue8m0 and x.shape[1] % 512:
            raise Mismatch(f"`use_ue8m0` packs four scales of 128 values into a word, and rows have {x.shape[1]}")
        payload = payload_of(use_fp8, round_scale)
        engines, ids = self._engines(), whole_words(topk_idx)
        way = self._way_of_rows(engines, dispatch_wait_recv_cost_stats is not None)
        most = checked_most(num_max_dispatch_tokens_per_rank)
        if x.shape[0] > most:
            raise Mismatch(f"`x` has {x.shape[0]} tokens, and `num_max_dispatch_tokens_per_rank` is {most}")
        low = engines.low_latency(most, x.shape[1], topk_idx.shape[1], num_experts, payload, way)

        def launch(later: bool) -> Packed:
            statistics, waits = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
            return low.dispatch(x, ids, payload=payload, statistics=statistics, waits=waits, later=later)

        def results(packed: Packed) -> tuple[Any, ...]:
            handle = LowLatencyHandle(packed, low, topk_idx)
            return received(handle, payload, use_ue8m0, x.device, engines.exponent_unit)

        inputs = (x, ids, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats)
        made, event, hook = phases(engines, launch, results, async_finish, return_recv_hook, *inputs)
        return *made[:3], event, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        *,
        overlap: bool = False,
        packed_recv_count: torch.Tensor | None = None,
        comp_signal: torch.Tensor | None = None,
        block_m: int = 64,
        threshold: int = 0,
        src_signals: torch.Tensor | None = None,
        src_signal_expect_value: int = 0,
        num_sms: int | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None]]:
        """Rows of each expert back to their tokens, with weights: the sums, an event, and what receives them.

        With ``zero_copy`` the rows are those of `get_next_low_latency_combine_buffer`, and not ``x``. Kernels read both
        where they lie. With ``use_logfmt`` rows travel in 10 bits a value.

        With ``overlap`` rows go while the experts still make others, in either form that SGLang's kernels tell it:
        once the word of their 64 rows in ``comp_signal`` has come to ``threshold``, or the one of their expert in
        ``src_signals`` to ``src_signal_expect_value``. The call takes ``num_sms`` then.
        """
        require_handle(handle, LowLatencyHandle, "low_latency_dispatch")
        words = signals(handle.low, comp_signal, block_m, threshold, src_signals, src_signal_expect_value)
        if overlap == (words == {}):
            raise Mismatch("`overlap` comes with either `comp_signal` or `src_signals`")
        rows = x
        if zero_copy:
            if handle.next_input is None:
                raise Mismatch("`zero_copy` wants its rows in what `get_next_low_latency_combine_buffer` gives")
            rows, handle.next_input = handle.next_input, None
            if handle.low.group.nodes > 1:
                tell_of_ignored(SLOTS, zero_copy=(zero_copy, False))
        low = handle.low
        ids = None if topk_idx is handle.topk_idx else whole_words(topk_idx)
        if ids is not None and low.way == "per-rank":
            # Ranks cannot tell alike whether experts are those of the dispatch, as one without tokens has none. So its
            # own experts go to the kernel, of every rank.
            topk_weights, ids = weights_as_sent(topk_weights, ids, handle.packed.topk_idx), None
        if out is None and low.group.on_emulator:
            out = require().empty((handle.packed._tokens, low.hidden), dtype=require().bfloat16, device=x.device)

        def launch(later: bool) -> Sums:
            wire = "logfmt" if use_logfmt else "bf16"
            waits = combine_wait_recv_cost_stats
            return low.combine(
                rows,
                handle.packed,
                topk_weights,
                topk_idx=ids,
                out=out,
                wire=wire,
                waits=waits,
                later=later,
                sms=num_sms if overlap else None,
                **words,
            )

        def results(sums: Sums) -> tuple[Any, ...]:
            # In the emulator `out` is filled when it is looked at.
            return sums.arriving() if out is None else out, lambda: sums.x

        told = (combine_wait_recv_cost_stats, comp_signal, src_signals)
        inputs = (rows, ids, topk_weights, out, *told, *handle.packed.read_by_combine)
        made, event, hook = phases(self._engines(), launch, results, async_finish, return_recv_hook, *inputs)
        return made[0], event, hook

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """Where the next combine of a handle reads its rows, if it has ``zero_copy``."""
        if handle.next_input is None:
            low, torch = handle.low, require()
            shape = (low.local_experts, low.group.ranks * low.tokens, low.hidden)
            device = low.group.device()
            place = "cpu" if device is None else f"cuda:{device}"
            handle.next_input = torch.empty(shape, dtype=torch.bfloat16, device=place)
        return handle.next_input

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out of later low-latency calls, or takes it back in; all other ranks do the same."""
        self._engines().group.leave_out(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes a 1 for each rank that is left out or was found absent, and 0 for others."""
        group = self._engines().group
        out = group.left_out | group.absent()
        if mask_status.shape != (self.group_size,):
            raise Mismatch(f"`mask_status` has extents {list(mask_status.shape)}, and needs [{self.group_size}]")
        mask_status.copy_(require().tensor([rank in out for rank in range(self.group_size)]))

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks back in; every rank says so."""
        engines = self._engines()
        # Whoever comes back, those that were found absent do as well.
        for rank in sorted(engines.group.left_out) or [0] * engines.shrinks:
            engines.group.leave_out(rank, False)


def checked_most(most: int) -> int:
    """The most tokens of a rank in calls with these kernels, unless it is out of range."""
    if not 1 <= most <= MOST_TOKENS:
        raise Mismatch(
            f"`num_max_dispatch_tokens_per_rank` is {most}, and low-latency calls take 1 to {MOST_TOKENS} tokens a "
            "rank: serve smaller batches, or call `dispatch` for more"
        )
    return most


def signals(
    low: LowLatency,
    comp_signal: torch.Tensor | None,
    block_m: int,
    threshold: int,
    src_signals: torch.Tensor | None,
    src_signal_expect_value: int,
) -> dict[str, Any]:
    """The words that a combine waits for; empty where it waits for none."""
    torch = require()
    if comp_signal is not None and src_signals is not None:
        raise Mismatch("`comp_signal` has a word for 64 rows and `src_signals` one for an expert: give one of them")
    if comp_signal is not None:
        if block_m != TILE:
            raise Mismatch(f"`comp_signal` has a word for {block_m} rows (`block_m`), and {TILE} can be waited for")
        tiles = comp_signal.view(torch.int32).reshape(low.local_experts, -1)
        return {"tile_done": tiles, "done_at": threshold}
    if src_signals is not None:
        return {"expert_done": src_signals.view(torch.int32), "done_at": src_signal_expect_value}
    return {}


def weights_as_sent(weights: torch.Tensor, ids: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """The weights of a combine for the experts as its dispatch had them: 0 for those that the combine leaves out."""
    if ids.shape != sent.shape:
        raise Mismatch(f"`topk_idx` has extents {list(ids.shape)}, and needs {list(sent.shape)}")
    is_same = (ids.data_ptr(), ids.stride()) == (sent.data_ptr(), sent.stride())
    if is_same or weights.shape != ids.shape:
        return weights
    found: torch.Tensor = ((sent[:, :, None] == ids[:, None, :]) * weights[:, None, :]).sum(2)
    return found


@cache
def scales_like(experts: int, rows: int, columns: int, kind: torch.dtype, device: Any) -> torch.Tensor:
    """A tensor without memory, to make scales like it: one column behind another, as products of FP8 read them."""
    like: torch.Tensor = require().empty((experts, columns, rows), dtype=kind, device=device).transpose(1, 2)
    like.untyped_storage().resize_(0)
    return like


def received(
    handle: LowLatencyHandle, payload: str, use_ue8m0: bool, device: Any, exponent_unit: Any
) -> tuple[Any, torch.Tensor, LowLatencyHandle, Callable[[], None]]:
    """The results of a dispatch as tensors, and what fills them behind its second phase."""
    torch, packed, low = require(), handle.packed, handle.low
    on_emulator = low.group.on_emulator
    lead = (low.local_experts, low.group.ranks * low.tokens)
    blocks = -(-low.hidden // 128)
    turned = None
    if not on_emulator:
        x, counts = packed.arriving("x"), packed.arriving("counts")
        if payload == "fp8":
            return (x, packed.arriving("scale")), counts, handle, lambda: None
    else:
        values = torch.bfloat16 if payload == "bf16" else torch.float8_e4m3fn
        x = torch.empty((*lead, low.hidden), dtype=values, device=device)
        counts = torch.zeros(low.local_experts, dtype=torch.int32, device=device)
    if payload != "bf16":
        columns, kind = (blocks // 4, torch.int32) if use_ue8m0 else (blocks, torch.float32)
        turned = torch.empty_like(scales_like(*lead, columns, kind, device))

    def fill() -> None:
        if on_emulator:
            x.copy_(packed.x)
            counts.copy_(packed.counts)
        if turned is None:
            return
        if payload == "fp8-packed" and not use_ue8m0:
            # The bytes are exponents: one kernel makes floats of them and puts them in columns.
            torch.mul(packed.scale, exponent_unit, out=turned.view(torch.int32))
        else:
            turned.copy_(packed.scale.view(turned.dtype))

    return x if turned is None else (x, turned), counts, handle, fill


def phases(
    engines: Engines,
    launch: Callable[[bool], Any],
    results: Callable[[Any], tuple[Any, ...]],
    async_finish: bool,
    return_recv_hook: bool,
    *inputs: Any,
) -> tuple[tuple[Any, ...], EventOverlap, Callable[[], None]]:
    """Both phases of a call, or the first one and a hook that launches the second; the last result fills the others."""
    if async_finish and return_recv_hook:
        raise Mismatch("a call with `return_recv_hook` has no event: `async_finish` is for calls without")
    if return_recv_hook:
        call = launch(True)
        made = results(call)
        fills = [made[-1]]

        def hook() -> None:
            call.receive()
            while fills:
                fills.pop()()

        return made, EventOverlap(), hook
    if not async_finish:
        made = results(launch(False))
        made[-1]()
        return made, EventOverlap(), lambda: None
    with engines.beside(None, async_finish, *inputs) as beside:
        made = results(launch(False))
        made[-1]()
        for it in made[:-1]:
            tensors = it if isinstance(it, tuple) else (it,)
            beside.outputs += [tensor for tensor in tensors if not isinstance(tensor, LowLatencyHandle)]
    return made, beside.done, lambda: None
