"""Dispatch, cached dispatch and combine for one shape, on arrays of any library."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from . import _core
from .arrays import TORCH, Found, Layout, Library, library_of
from .caller import Caller, How, checked
from .group import Group
from .limits import check_count
from .results import NOWHERE, PAYLOADS, Combined, Handle, Offered, Received

#: What a combine reads: how it runs, the output in place, the combine input, the biases, and what keeps them.
Brought = tuple[Any, Any, Any, list[Any], list[Any]]

#: The parts of a buffer's memory.
MEMORY = ("control", "outputs", "combine_inputs", "tables", "host")


class Buffer(Caller):
    """Kernels and memory for one shape, made by all ranks of the group together.

    ``tokens`` is the most of any rank in a call. ``payload`` is ``"bf16"``, ``"fp8"`` with a ``float32`` scale
    for each 128 values, or ``"fp8-packed"`` with a power of two as a byte; what comes back is always bfloat16.
    ``capacity`` is how many rows an output holds: all tokens of all ranks unless it is given. ``live`` outputs
    and as many combine inputs may be in use at once, and ``handles`` handles. A graph keeps those of its calls, unless
    ``graphs_keep`` is off: graphs share them then, as they do a pool of torch. ``one_launch`` is whether a dispatch is
    one kernel, for few tokens; without it the number of tokens decides. ``docs/calls.md`` has the others.
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
        shared_rows: bool = False,
        graphs_keep: bool = True,
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
        options: dict[str, Any] = {
            "tokens": tokens,
            "hidden": hidden,
            "topk": topk,
            "experts": experts,
            "payload": payload,
            "via": via,
            "capacity": capacity,
            "live": live,
            "handles": handles,
            "shared_rows": shared_rows,
            "graphs_keep": graphs_keep,
            "weights": weights,
            "biases": biases,
            "cached": cached,
            "one_launch": one_launch,
            "push_combine": push_combine,
            "alignment": alignment,
            "placement": None if placement is None else list(placement),
            "settings": list(settings),
        }
        for name in ("tokens", "hidden", "topk", "experts", "capacity", "live", "handles", "biases", "alignment"):
            check_count(name, options[name])
        group._agree("a buffer", options)
        self._core = _core.Buffer(group._core, options)
        self.scales = 0 if payload == "bf16" else -(-hidden // 128)
        values, scales = PAYLOADS[payload]
        #: Columns and types of an output: rows, scales, experts and weights.
        self._kinds = (
            (hidden, values),
            (self.scales, scales) if scales else None,
            (topk, "int64"),
            (topk, "float32") if weights else None,
        )
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
        return dict(zip(MEMORY, self._core.memory, strict=True))

    @staticmethod
    def bytes(ranks: int, *, nodes: int = 1, **options: Any) -> dict[str, int]:
        """What `memory` would say of a buffer with these options on each of so many ranks. Allocates nothing."""
        return dict(zip(MEMORY, _core.Buffer.memory_of(ranks, nodes, with_defaults(options)), strict=True))

    @staticmethod
    def network_bytes(ranks: int, *, nodes: int, **options: Any) -> int:
        """Bytes on each rank of the rows that pass through a network between nodes.

        `bytes` counts them as ``host``, but they are in GPU memory if cards reach that.
        """
        return _core.Buffer.network_of(ranks, nodes, with_defaults(options))

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
        how = checked((stream, sms, timeout, after, done))
        library = library_of(x)
        if library is TORCH and tokens_from is None:
            sent_tensors = self._dispatch_tensors(rank, (x, scale, topk_idx, topk_weights), how)
            if sent_tensors is not None:
                return sent_tensors
        arrays = (x, scale, topk_idx, topk_weights, tokens_from)
        if not self.group._mirror:
            handle, received = self._dispatch(rank, self._input(rank, *arrays), how, library)
        else:
            every = self._gather("dispatch", arrays)
            sent = self._of_each(rank, lambda each, brought: self._input(each, *brought), every)
            pairs = [self._dispatch(each, given, how, library) for each, given in sent.items()]
            handle, received = pairs[rank]
            handle._mirrored = [one._core for one, _ in pairs]
            received._mirrored = [one._core for _, one in pairs]
        return received, handle

    def _dispatch_tensors(
        self, rank: int, tensors: tuple[Any, Any, Any, Any], how: How
    ) -> tuple[Received, Handle] | None:
        """`_dispatch` of tensors of torch on a GPU, in one call; none of any others."""
        looks, group = TORCH.looks, self.group
        if group.on_emulator or not isinstance(looks, _core.Looks):
            return None
        place = rank, group._devices[rank]
        made = self._core.dispatch_tensors(looks, place, tensors, self._how(rank, TORCH, how))
        if made is None:
            return None
        handle = Handle(self, made[0], TORCH)
        return Received(handle, made[1], TORCH), handle

    def _dispatch(
        self, rank: int, given: tuple[_core.Input, list[Any]], how: How, library: Library | None
    ) -> tuple[Handle, Received]:
        sent, _ = given
        call = self._how(rank, library, how)
        if self.group._turns is None:
            core, received = self._core.dispatch(rank, sent, call)
        else:
            core, received = self._in_turns(rank, sent, call)
        handle = Handle(self, core, library)
        return handle, Received(handle, received, library)

    def _in_turns(self, rank: int, sent: _core.Input, call: _core.Call) -> tuple[_core.Handle, _core.Received]:
        """A dispatch in the emulator, whose counts come with the calls of all ranks."""
        self._settle(rank)
        if self._core.holds_worst_case:
            pair = self._core.dispatch(rank, sent, call)
            self._made(rank)
            return pair
        core = self._core.exchange_counts(rank, sent, call)
        self._made(rank)
        self._settle(rank)
        received = self._core.dispatch_counted(core, sent, call)
        self._made(rank)
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
        how = checked((stream, sms, timeout, after, done))
        library = library_of(x)

        def given(rank: int, arrays: tuple[Any, Any]) -> tuple[_core.Input, list[Any]]:
            return self._input(rank, *arrays, None, None, None)

        def one(rank: int, core: _core.Handle, given: tuple[_core.Input, list[Any]]) -> _core.Received:
            sent, _ = given
            call = self._how(rank, library, how)
            self._settle(rank)
            received = self._core.cached_dispatch(core, sent, call)
            self._made(rank)
            return received

        if not self.group._mirror:
            return Received(handle, one(handle.rank, handle._core, given(handle.rank, (x, scale))), library)
        every = self._of_each(handle.rank, given, self._gather("cached dispatch", (x, scale)))
        all_received = [one(rank, handle._mirrored[rank], sent) for rank, sent in every.items()]
        received = Received(handle, all_received[handle.rank], library)
        received._mirrored = all_received
        return received

    def offer(self, handle: Handle) -> Offered:
        """A combine input in the window, in which the experts may leave their rows, for `combine`."""
        if self.group.on_emulator:
            raise _core.Mismatch("in the emulator pass the rows themselves to `combine`, which copies them")
        self._own(handle)
        stream = self._how(handle.rank, handle._library)[0]
        return Offered(self, self._core.offer(handle.rank, stream), handle._library)

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
        how = checked((stream, sms, timeout, after, done))
        if not biases and out is None and handle._library is TORCH:
            combined = self._combine_tensors(handle, rows, weights, how)
            if combined is not None:
                return combined
        arrays = (rows, weights, tuple(biases))
        if not self.group._mirror:
            given = self._brought(handle, handle._core, arrays, how)
            return self._combine(handle, handle._core, given, weights is not None, out)
        # Before others make a call that this rank does not.
        if out is not None:
            self._require_out(handle.rank, out, (handle.tokens, self.hidden))
        mine = None if isinstance(rows, Received) else rows

        def brought(rank: int, arrays: tuple[Any, Any, Any]) -> Brought:
            source = rows._mirrored[rank] if isinstance(rows, Received) else arrays[0]
            return self._brought(handle, handle._mirrored[rank], (source, *arrays[1:]), how)

        every = self._of_each(handle.rank, brought, self._gather("combine", (mine, *arrays[1:])))
        made = []
        for rank, given in every.items():
            own = out if rank == handle.rank else None
            made.append(self._combine(handle, handle._mirrored[rank], given, weights is not None, own))
        return made[handle.rank]

    def _combine_tensors(self, handle: Handle, rows: Any, weights: Any, how: How) -> Combined | None:
        """`_combine` of tensors of torch on a GPU, in one call; none of any others."""
        looks, group, core = TORCH.looks, self.group, handle._core
        if group.on_emulator or not isinstance(looks, _core.Looks) or (weights is not None and not self.weights):
            return None
        rank, tokens = core.rank, core.tokens
        device = group._devices[rank]
        (like,) = self._summed[tokens].likes(device)
        likes = like, self._weighed[tokens].likes(device)[0] if self.weights else None
        options = self._how(rank, TORCH, how)
        made = self._core.combine_tensors(looks, device, core, rows, weights, likes, options)
        if made is None:
            return None
        sums, came = made
        return Combined(self, sums, None if weights is None else came, None, TORCH)

    def _brought(self, handle: Handle, core: _core.Handle, arrays: tuple[Any, Any, Any], how: How) -> Brought:
        """What the combine of a rank reads."""
        (rows, weights, biases), rank, tokens = arrays, core.rank, core.tokens
        call = self._how(rank, handle._library, how)
        self._settle(rank)
        in_place, offered, keep = self._combine_input(core, rows, weights, call[0])
        added = []
        for at, bias in enumerate(biases):
            count, where, kept = self._rows(rank, bias, f"biases[{at}]", "bfloat16", self.hidden)
            if count != tokens:
                raise _core.Mismatch(f"`biases[{at}]` has {count} rows, and the dispatch had {tokens} tokens")
            added.append(where)
            keep.append(kept)
        return call, in_place, offered, added, keep

    def _combine(self, handle: Handle, core: _core.Handle, given: Brought, is_weighed: bool, out: Any) -> Combined:
        (call, in_place, offered, added, _), rank, tokens = given, core.rank, core.tokens
        sums, sums_at = self._sums(rank, self._summed[tokens], out, handle._library)
        came, came_at = None, 0
        if self.weights:
            came, came_at = self._sums(rank, self._weighed[tokens], None, handle._library)
        self._core.combine(core, in_place, offered, added, sums_at, came_at, call)
        self._made(rank)
        return Combined(self, sums, came if is_weighed else None, out, handle._library)

    def _combine_input(self, core: _core.Handle, rows: Any, weights: Any, stream: int) -> tuple[Any, Any, list[Any]]:
        """The output that is combined in place, the combine input, and what is copied there."""
        rank = core.rank
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
            arrived = core.arriving()
            if arrived is not None and count < arrived:
                raise _core.Mismatch(f"`rows` has {count} rows, and {arrived} arrived")
        if weights is not None:
            more, factors, kept = self._rows(rank, weights, "weights", "float32", self.topk)
            keep.append(kept)
            if is_array and more != count:
                raise _core.Mismatch(f"`rows` has {count} rows, and `weights` {more}")
            count = more
        if offered is None and (in_place is None or self.weights):
            offered = self._core.offer(rank, stream)
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
        if scale is not None and scales is None:
            raise _core.Mismatch(f"the dispatch has a `scale`, and rows of {self.payload} have none")
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
            if not self.weights:
                raise _core.Mismatch("the dispatch has `topk_weights`, but the buffer was made without `weights`")
            weights, kept = self._dense(rank, topk_weights, "topk_weights", "float32", (tokens, self.topk))
            keep.append(kept)
        if tokens_from is not None:
            keep.append(self._place(rank, tokens_from, "tokens_from", "int32"))
            count = keep[-1].address
        return (tokens, count, rows, factors, ids, weights), keep

    def _own(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            gives = "`dispatch` gives what was received, and then the handle"
            raise _core.Mismatch(f"the handle is a {type(handle).__name__}: {gives}")
        if handle.buffer is not self:
            raise _core.Mismatch("the handle belongs to another buffer")


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a buffer, with the defaults of those that are not given."""
    given = inspect.signature(Buffer.__init__).bind(None, None, **options)
    given.apply_defaults()
    return given.arguments
