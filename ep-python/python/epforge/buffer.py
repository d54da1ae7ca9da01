"""Dispatch, cached dispatch and combine for one shape, on arrays of any library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core
from .arrays import Found, Layout, Library, library_of
from .caller import Caller, How
from .group import Group
from .results import NOWHERE, PAYLOADS, Combined, Handle, Offered, Received


class Buffer(Caller):
    """Kernels and memory for one shape, made by all ranks of the group together.

    ``tokens`` is the most of any rank in a call. ``payload`` is ``"bf16"``, ``"fp8"`` with a ``float32`` scale
    for each 128 values, or ``"fp8-packed"`` with a power of two as a byte; what comes back is always bfloat16.
    ``capacity`` is how many rows an output holds: all tokens of all ranks unless it is given. ``live`` outputs
    and as many combine inputs may be in use at once, and ``handles`` handles. ``one_launch`` is whether a
    dispatch is one kernel, for few tokens; without it the machine's rates decide. ``docs/calls.md`` has the others.
    """

    def __init__(
        self,
        group: Group,
        *,
        tokens: int,
        hidden: int,
        topk: int,
        experts: int,
        payload: str = "bf16",
        via: str = "direct",
        capacity: int | None = None,
        live: int = 2,
        handles: int | None = None,
        weights: bool = True,
        biases: int = 0,
        cached: bool = True,
        one_launch: bool | None = None,
        push_combine: bool | None = None,
        alignment: int = 1,
        placement: Sequence[int] | None = None,
        settings: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        self.hidden, self.topk, self.experts, self.tokens = hidden, topk, experts, tokens
        self.payload, self.weights, self.biases = payload, weights, biases
        options = {
            "tokens": tokens,
            "hidden": hidden,
            "topk": topk,
            "experts": experts,
            "payload": payload,
            "via": via,
            "capacity": capacity,
            "live": live,
            "handles": handles,
            "weights": weights,
            "biases": biases,
            "cached": cached,
            "one_launch": one_launch,
            "push_combine": push_combine,
            "alignment": alignment,
            "placement": None if placement is None else list(placement),
            "settings": list(settings),
        }
        self._core = _core.Buffer(group._core, options)
        self.scales = 0 if payload == "bf16" else -(-hidden // 128)
        #: What a combine of so many tokens leaves.
        self._summed: dict[int, Layout] = Found(lambda tokens: Layout(("bfloat16", (tokens, hidden))))
        self._weighed: dict[int, Layout] = Found(lambda tokens: Layout(("float32", (tokens, topk))))
        super().__init__(group)

    @property
    def capacity(self) -> int:
        """Rows that an output holds."""
        return self._core.capacity

    @property
    def local_experts(self) -> int:
        """Most experts of any rank."""
        return self._core.local_experts

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that it takes on each rank."""
        names = ("control", "outputs", "combine_inputs", "tables", "host")
        return dict(zip(names, self._core.memory, strict=True))

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any = None,
        *,
        scale: Any = None,
        tokens_from: Any = None,
        rank: int | None = None,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> tuple[Received, Handle]:
        """Sends each row of ``x`` to the ranks that own the experts of its token.

        ``topk_idx`` is ``int64[tokens, topk]``, -1 for none. ``tokens_from``, an ``int32`` on the device, says how
        many tokens there are where the host does not know it, as when a graph replays the call. ``stream``,
        and the events ``after`` and ``done``, are handles of the driver; torch's current stream is taken for
        its tensors. Returns when the work is in the stream.
        """
        rank = self.group.rank(rank)
        how = (stream, sms, timeout, after, done)
        library = library_of(x)
        arrays = (x, scale, topk_idx, topk_weights, tokens_from)
        if not self.group._mirror:
            handle, received = self._dispatch(rank, arrays, how, library)
        else:
            every = self._gather(arrays)
            pairs = [self._dispatch(each, brought, how, library) for each, brought in enumerate(every)]
            handle, received = pairs[rank]
            handle._mirrored = [one._core for one, _ in pairs]
            received._mirrored = [one._core for _, one in pairs]
        return received, handle

    def _dispatch(
        self, rank: int, arrays: tuple[Any, ...], how: How, library: Library | None
    ) -> tuple[Handle, Received]:
        sent, keep = self._input(rank, *arrays)
        call = self._how(rank, library, how)
        if self.group._turns is None:
            core, received = self._core.dispatch(rank, sent, call)
        else:
            core, received = self._in_turns(rank, sent, call, keep)
        handle = Handle(self, core, library)
        return handle, Received(handle, received, library)

    def _in_turns(
        self, rank: int, sent: _core.Input, call: _core.Call, keep: list[Any]
    ) -> tuple[_core.Handle, _core.Received]:
        """A dispatch in the emulator, whose counts come with the calls of all ranks."""
        self._settle(rank)
        if self._core.holds_worst_case:
            pair = self._core.dispatch(rank, sent, call)
            self._made(rank, keep)
            return pair
        core = self._core.exchange_counts(rank, sent, call)
        self._made(rank, keep)
        self._settle(rank)
        received = self._core.dispatch_counted(core, sent, call)
        self._made(rank, keep)
        return core, received

    def cached_dispatch(
        self,
        x: Any,
        handle: Handle,
        *,
        scale: Any = None,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> Received:
        """Sends other rows of the same tokens to the same places; only rows and scales travel."""
        self._own(handle)
        how = (stream, sms, timeout, after, done)
        library = library_of(x)

        def one(rank: int, core: _core.Handle, arrays: tuple[Any, Any]) -> _core.Received:
            sent, keep = self._input(rank, arrays[0], arrays[1], None, None, None)
            call = self._how(rank, library, how)
            self._settle(rank)
            received = self._core.cached_dispatch(core, sent, call)
            self._made(rank, keep)
            return received

        if not self.group._mirror:
            return Received(handle, one(handle.rank, handle._core, (x, scale)), library)
        every = self._gather((x, scale))
        all_received = [one(rank, handle._mirrored[rank], brought) for rank, brought in enumerate(every)]
        received = Received(handle, all_received[handle.rank], library)
        received._mirrored = all_received
        return received

    def offer(self, handle: Handle) -> Offered:
        """A combine input in the window, in which the experts may leave their rows, for `combine`."""
        if self.group.on_emulator:
            raise _core.Mismatch("in the emulator pass the rows themselves to `combine`, which copies them")
        self._own(handle)
        return Offered(self, self._core.offer(handle.rank), handle._library)

    def combine(
        self,
        rows: Any,
        handle: Handle,
        weights: Any = None,
        *,
        biases: Sequence[Any] = (),
        out: Any = None,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> Combined:
        """Brings a row for each row that arrived back to its token, and adds them up.

        ``rows`` are already weighted and added up over the local experts: an array, which is copied into the
        window; an `Offered`; or the `Received` of the dispatch, whose BF16 rows the experts have worked on in
        place. ``weights`` come back summed over the ranks: an array, which is copied, or an `Offered` in which they
        were left. The sums are left in ``out`` if it is there.
        """
        self._own(handle)
        how = (stream, sms, timeout, after, done)
        if not self.group._mirror:
            return self._combine(handle.rank, handle, handle._core, (rows, weights, tuple(biases), out), how)
        mine = None if isinstance(rows, Received) else rows
        every = self._gather((mine, weights, tuple(biases)))
        made = []
        for rank, (brought, *more) in enumerate(every):
            source = rows._mirrored[rank] if isinstance(rows, Received) else brought
            own = out if rank == handle.rank else None
            made.append(self._combine(rank, handle, handle._mirrored[rank], (source, *more, own), how))
        return made[handle.rank]

    def _combine(self, rank: int, handle: Handle, core: _core.Handle, arrays: tuple[Any, ...], how: How) -> Combined:
        rows, weights, biases, out = arrays
        call = self._how(rank, handle._library, how)
        self._settle(rank)
        in_place, offered, keep = self._combine_input(rank, rows, weights, call[0])
        added = []
        for at, bias in enumerate(biases):
            _, where, kept = self._rows(rank, bias, f"biases[{at}]", "bfloat16", self.hidden)
            added.append(where)
            keep.append(kept)
        tokens = core.tokens
        sums, sums_at = self._sums(rank, self._summed[tokens], out, handle._library)
        came, came_at = None, 0
        if self.weights:
            came, came_at = self._sums(rank, self._weighed[tokens], None, handle._library)
        self._core.combine(core, in_place, offered, added, sums_at, came_at, call)
        if self.group._turns:
            self._made(rank, [keep, sums, came, offered, in_place])
        return Combined(self, sums, came if weights is not None else None, out, handle._library)

    def _combine_input(self, rank: int, rows: Any, weights: Any, stream: int) -> tuple[Any, Any, list[Any]]:
        """The output that is combined in place, the combine input, and what is copied there."""
        in_place, offered = None, None
        if isinstance(rows, Received):
            in_place = rows._core
        elif isinstance(rows, _core.Received):
            in_place = rows
        elif isinstance(rows, Offered):
            offered = rows._core
        if weights is not None and not self.weights:
            raise _core.Mismatch("the combine has weights, but the buffer was made without `weights`")
        if isinstance(weights, Offered):
            if offered is not None and offered is not weights._core:
                raise _core.Mismatch("`rows` and `weights` were left in two combine inputs: a combine reads one")
            offered, weights = weights._core, None
        count, where, factors, keep = 0, NOWHERE, NOWHERE, []
        is_array = in_place is None and not isinstance(rows, Offered)
        if is_array:
            count, where, kept = self._rows(rank, rows, "rows", "bfloat16", self.hidden)
            keep.append(kept)
        if weights is not None:
            more, factors, kept = self._rows(rank, weights, "weights", "float32", self.topk)
            keep.append(kept)
            if is_array and more != count:
                raise _core.Mismatch(f"`rows` has {count} rows, and `weights` {more}")
            count = more
        if offered is None and (in_place is None or self.weights):
            offered = self._core.offer(rank)
        if offered is not None and count:
            offered.fill(count, where, factors, stream)
        return in_place, offered, keep

    def _input(
        self, rank: int, x: Any, scale: Any, topk_idx: Any, topk_weights: Any, tokens_from: Any
    ) -> tuple[_core.Input, list[Any]]:
        values, scales = PAYLOADS[self.payload]
        tokens, rows, kept = self._rows(rank, x, "x", values, self.hidden)
        factors, ids, weights, count = NOWHERE, 0, 0, 0
        keep = [kept]
        if scales is not None:
            if scale is None:
                raise _core.Mismatch(f"`scale` is absent, and rows of {self.payload} have {scales} scales")
            more, factors, kept = self._rows(rank, scale, "scale", scales, self.scales)
            keep.append(kept)
            if more != tokens:
                raise _core.Mismatch(f"`x` has {tokens} rows, and `scale` {more}")
        if topk_idx is not None:
            ids, kept = self._dense(rank, topk_idx, "topk_idx", "int64", (tokens, self.topk))
            keep.append(kept)
        if topk_weights is not None:
            weights, kept = self._dense(rank, topk_weights, "topk_weights", "float32", (tokens, self.topk))
            keep.append(kept)
        if tokens_from is not None:
            keep.append(self._place(rank, tokens_from, "tokens_from", "int32"))
            count = keep[-1].address
        return (tokens, count, rows, factors, ids, weights), keep

    def _own(self, handle: Handle) -> None:
        if handle.buffer is not self:
            raise _core.Mismatch("the handle belongs to another buffer")
