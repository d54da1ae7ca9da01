"""Dispatch and combine of few tokens in two phases, between which other work runs: rows by expert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import _core
from .arrays import Library, address_of, library_of, view
from .caller import Caller
from .group import Group
from .results import PAYLOADS

#: SMs of a call with fewer tokens than these: with fewer, calls of 8 tokens take a third longer.
LEAST_SMS = 64

#: How rows may travel: once for each of their experts, or once for each rank.
WAYS = ("per-expert", "per-rank")

#: Stream, SMs, timeout, event before and event behind of a call.
How = tuple[int | None, int | None, float | None, int | None, int | None]


class LowLatency(Caller):
    """Kernels for calls of few tokens, made by all ranks of the group together.

    A row travels once for each of its experts, straight to its place, and no counts go ahead. ``tokens`` is the
    most of any rank in a call. Rows are given as bfloat16; ``payload`` is what travels and arrives: ``"bf16"``,
    or ``"fp8"`` with a ``float32`` scale for each 128 values, or ``"fp8-packed"`` with a power of two as a byte,
    cast on the way. ``between`` calls of a kind may be between their phases at once.

    With ``way="per-rank"`` a row travels once for each rank that has any of its experts, and one sum comes back from
    each: fewer bytes, and the same rows by expert. Such calls run in one go, within a node, and need every rank. With
    ``weights_ahead`` their weights come with the dispatch, which spares the combine a way between ranks.
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
        between: int = 1,
        placement: Sequence[int] | None = None,
        way: str = "per-expert",
        weights_ahead: bool = False,
    ) -> None:
        # The warps of a block work on a message each.
        super().__init__(group, max(tokens, LEAST_SMS))
        if between < 1:
            raise _core.Mismatch(f"{between} calls between their phases are too few to make one")
        if way not in WAYS:
            raise _core.Mismatch(f"way `{way}` is none of {', '.join(WAYS)}")
        if weights_ahead and way != "per-rank":
            raise _core.Mismatch(f"`weights_ahead` is for way `per-rank`: rows that travel {way} need no weights")
        self.tokens, self.hidden, self.topk, self.experts = tokens, hidden, topk, experts
        self.payload, self.between = payload, between
        self.way, self.weights_ahead = way, weights_ahead
        self._placement = None if placement is None else list(placement)
        self._dispatchers: dict[str, list[_core.LowLatencyDispatcher]] = {}
        self._combiners: dict[str, list[_core.LowLatencyCombiner]] = {}
        self._whole: dict[str, _core.PerRankKernels] = {}
        self.local_experts: int = self._prepare(payload).local_experts
        if way == "per-expert":
            self._combiner("bf16")
        # They lie one behind another: each allocation costs a call a microsecond.
        ranks = group.ranks
        shapes = {"counts": (), "src_info": (ranks * tokens,), "range_first": (ranks,), "range_count": (ranks,)}
        self._tables: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._words = 0
        for name, more in shapes.items():
            shape = (self.local_experts, *more)
            self._tables[name] = (self._words, shape)
            self._words += math.prod(shape)
        #: Bytes from the first of them to each.
        self._begins = [4 * begin for begin, _ in self._tables.values()]
        if way == "per-rank":
            # Those of the combine lie behind.
            self._more, self._words = self._words, self._words + self._per_rank(payload).table_words
        #: How many calls of a kind each rank has made, and those that are between their phases.
        self._sent: dict[tuple[str, int], int] = {}
        self._open: dict[tuple[str, int, int], Launched] = {}
        #: The returns of ranks that these belong to: after one, all ranks begin again with the first kernels.
        self._returns = group.returns

    def _make(self, kind: Any, payload: str, *more: Any) -> Any:
        numbers = [self.tokens, self.hidden, self.topk, self.experts]
        return kind(self.group._core, numbers, payload, self._placement, *more)

    def _per_rank(self, payload: str) -> _core.PerRankKernels:
        """The kernels of both calls of a payload, made by all ranks together when the first call has it."""
        if payload not in self._whole:
            self._whole[payload] = self._make(_core.PerRankKernels, payload, self.weights_ahead)
        return self._whole[payload]

    def _prepare(self, payload: str) -> Any:
        """Makes the kernels that send a payload, unless they are there; one of them."""
        return self._per_rank(payload) if self.way == "per-rank" else self._dispatcher(payload)[0]

    def _dispatcher(self, payload: str) -> list[_core.LowLatencyDispatcher]:
        """The kernels of a payload, made by all ranks together when the first call has it."""
        if payload not in self._dispatchers:
            made = [self._make(_core.LowLatencyDispatcher, payload) for _ in range(self.between)]
            self._dispatchers[payload] = made
        return self._dispatchers[payload]

    def _combiner(self, wire: str) -> list[_core.LowLatencyCombiner]:
        """The kernels for rows that come back this way, made by all ranks together when the first call has it."""
        if wire not in self._combiners:
            self._combiners[wire] = [self._make(_core.LowLatencyCombiner, wire) for _ in range(self.between)]
        return self._combiners[wire]

    @property
    def window_bytes(self) -> int:
        """Bytes that the kernels made so far take on each rank; outputs are arrays of the caller's library."""
        packing = sum(kernel.window_bytes for own in self._dispatchers.values() for kernel in own)
        whole = sum(kernels.window_bytes for kernels in self._whole.values())
        return whole + packing + sum(kernel.window_bytes for own in self._combiners.values() for kernel in own)

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any = None,
        *,
        payload: str | None = None,
        statistics: Any = None,
        waits: Any = None,
        later: bool = False,
        rank: int | None = None,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> Packed:
        """Sends each row of ``x`` to each of its experts; with ``later`` they arrive with `Packed.receive`.

        ``x`` is ``bfloat16[tokens, hidden]`` and ``topk_idx`` ``int64[tokens, topk]``, -1 for none and no expert
        twice. ``payload`` differs from that of the first calls at will. What arrives for each local expert is
        added to ``statistics``, an ``int32[local_experts]``, and the longest wait for each rank in ns to ``waits``, an
        ``int64[ranks]``; in the emulator, once a result is looked at. ``topk_weights`` are those of the combine, where
        they come ahead.
        """
        rank = self.group.rank(rank)
        self._check_weights(topk_weights, self.weights_ahead, "dispatch")
        self._refuse_waits(waits)
        library = library_of(x)
        how = (stream, sms, timeout, after, done)
        self._check_sums(statistics, "statistics", "int32", self.local_experts)
        self._check_sums(waits, "waits", "int64", self.group.ranks)
        sums = {"statistics": statistics, "waits": waits}
        every = self._every(rank, (x, topk_idx, topk_weights))
        self._settle(rank)
        name = payload or self.payload
        self._prepare(name)
        sent = {
            each: self._send_rows(each, name, brought, library, sums, how, later) for each, brought in every.items()
        }
        return Packed(self, sent, rank, sums)

    def _send_rows(
        self,
        rank: int,
        payload: str,
        arrays: tuple[Any, ...],
        library: Library | None,
        sums: dict[str, Any],
        how: How,
        later: bool,
    ) -> Launched:
        tokens, x, kept = self._rows(rank, arrays[0], "x", "bfloat16", self.hidden)
        ids = self._dense(rank, arrays[1], "topk_idx", "int64", (tokens, self.topk))
        weights = self._weights(rank, arrays[2], tokens)
        values, scales = PAYLOADS[payload]
        rows = (self.local_experts, self.group.ranks * self.tokens)
        packed, packed_at = self._new(rank, (*rows, self.hidden), values, library)
        scale, scale_at = None, 0
        if scales is not None:
            scale, scale_at = self._new(rank, (*rows, -(-self.hidden // 128)), scales, library)
        tables, first = self._new(rank, (self._words,), "int32", library)
        counts, src_info, range_first, range_count = self._begins
        left = (first + src_info, first + range_first, first + range_count)
        outputs = (packed_at, scale_at, first + counts, left)
        made = {"x": packed, "scale": scale, "tables": tables}
        statistics = self._sums_of(rank, "statistics", sums["statistics"], made)
        waits = self._sums_of(rank, "waits", sums["waits"], made)
        launched = Launched(rank, library, tokens, made, left, (ids, kept, weights))

        def send(turn: int, call: _core.Call) -> _core.Pending | None:
            if self.way == "per-rank":
                whole = self._per_rank(payload)
                places = (x, ids[0], weights[0], *outputs, first + 4 * self._more, statistics)
                launched.whole = whole, whole.send(rank, tokens, *places, call)
                return None
            kernel = self._dispatcher(payload)[turn]
            return kernel.send(rank, tokens, x, ids[0], *outputs, statistics, waits, later, call)

        self._launch(launched, payload, send, how)
        return launched

    def combine(
        self,
        rows: Any,
        packed: Packed,
        topk_weights: Any = None,
        *,
        topk_idx: Any = None,
        out: Any = None,
        wire: str = "bf16",
        waits: Any = None,
        later: bool = False,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> Sums:
        """Brings a row of each expert back to its token, and adds them up with weights in order of the top-k.

        ``rows`` are ``bfloat16[local_experts, ranks * tokens, hidden]``, each where `Packed.x` has the one that it
        was made of; ``topk_weights`` are ``float32[tokens, topk]``. ``topk_idx`` is that of the dispatch unless it
        is given. The sums are left in ``out`` if it is there; with ``later`` they come with `Sums.receive`.
        ``waits`` are as those of `dispatch`.

        With ``wire="logfmt"`` rows travel in 10 bits a value, of the logarithm of its magnitude between the least and
        the greatest of 128: a value is off by 2.2 % of itself at most, by 0.6 % where those are a factor of 256 apart.
        Rows have to be finite then.
        """
        if packed._owner is not self:
            raise _core.Mismatch("the packed rows belong to another `LowLatency`")
        packed._require_received()
        self._check_weights(topk_weights, not self.weights_ahead, "combine")
        self._refuse_waits(waits)
        self._refuse_per_rank(topk_idx is not None, "add up what the dispatch sent: `topk_idx` is")
        self._refuse_per_rank(wire != "bf16", f"come back as bf16: `wire={wire}` is")
        own = packed._own
        if out is not None and self.group.on_emulator:
            self._require_out(packed.rank, out, (own.tokens, self.hidden))
        self._check_sums(waits, "waits", "int64", self.group.ranks)
        how = (stream, sms, timeout, after, done)
        every = self._every(packed.rank, (rows, topk_weights, topk_idx))
        self._settle(packed.rank)
        if self.way == "per-expert":
            self._combiner(wire)
        sent = {}
        for rank, brought in every.items():
            target = None if self.group.on_emulator else out
            sent[rank] = self._send_back(packed._sent[rank], wire, brought, target, waits, how, later)
        return Sums(self, sent, packed.rank, out, {"waits": waits})

    def _send_back(
        self,
        of: Launched,
        wire: str,
        arrays: tuple[Any, ...],
        out: Any,
        waits: Any,
        how: How,
        later: bool,
    ) -> Launched:
        rank, tokens = of.rank, of.tokens
        shape = (self.local_experts, self.group.ranks * self.tokens, self.hidden)
        rows = self._dense(rank, arrays[0], "rows", "bfloat16", shape)
        weights = self._weights(rank, arrays[1], tokens)
        ids = of.inputs[0]
        if arrays[2] is not None:
            ids = self._dense(rank, arrays[2], "topk_idx", "int64", (tokens, self.topk))
        if out is None:
            sums, sums_at = self._new(rank, (tokens, self.hidden), "bfloat16", of.library)
        else:
            sums, sums_at = out, self._require_out(rank, out, (tokens, self.hidden))
        made = {"x": sums}
        waits_at = self._sums_of(rank, "waits", waits, made)
        launched = Launched(rank, of.library, tokens, made, of.tables, (ids, rows, weights, of))

        def send(turn: int, call: _core.Call) -> _core.Pending | None:
            if of.whole is not None:
                whole, sent = of.whole
                whole.send_back(rank, tokens, rows[0], weights[0], sums_at, sent, call)
                return None
            places = (rows[0], ids[0], weights[0], sums_at)
            return self._combiner(wire)[turn].send(rank, tokens, *places, of.tables, waits_at, later, call)

        self._launch(launched, f"combine {wire}", send, how)
        return launched

    def _weights(self, rank: int, array: Any, tokens: int) -> tuple[int, Any]:
        """Where the kernels of a rank find weights, 0 if the other call brings them."""
        return (0, None) if array is None else self._dense(rank, array, "topk_weights", "float32", (tokens, self.topk))

    def _check_weights(self, array: Any, are_due: bool, call: str) -> None:
        if (array is not None) != are_due:
            raise _core.Mismatch(f"`topk_weights` {'have to' if are_due else 'do not'} come with the {call}")

    def _refuse_per_rank(self, is_asked: bool, what: str) -> None:
        if is_asked and self.way == "per-rank":
            raise _core.Mismatch(f"calls per rank {what} for way `per-expert`")

    def _refuse_waits(self, waits: Any) -> None:
        self._refuse_per_rank(waits is not None, "do not tell how long ranks were waited for: `waits` are")

    def _check_sums(self, array: Any, name: str, dtype: str, count: int) -> None:
        """Refuses what cannot take so many numbers that a call adds to."""
        if array is not None:
            where = self._checked(view(array, name), name, dtype, None)
            self._require_dense(where, name, (count,))

    def _sums_of(self, rank: int, name: str, array: Any, made: dict[str, Any]) -> int:
        """Where the kernels of a rank add to an array, 0 if nobody asks; the emulator has memory of its own."""
        if array is None:
            return 0
        where = view(array, name)
        if self.group.on_emulator:
            made[name] = self.group._core.zeros(rank, list(where.shape), where.dtype)
            return address_of(made[name])
        self._require_here(rank, where, name)
        made[name] = array
        return where.address

    def _launch(self, launched: Launched, kind: str, send: Any, how: How) -> None:
        """Launches a call on the kernels whose turn it is."""
        rank = launched.rank
        if self._returns != self.group.returns:
            self._returns = self.group.returns
            self._sent.clear()
            self._open.clear()
        count = self._sent.get((kind, rank), 0)
        key = (kind, count % self.between, rank)
        if key in self._open:
            # Somebody gave up between the phases: what is on its way comes first.
            self._receive(self._open[key])
        call = self._how(rank, launched.library, *how)
        self._settle(rank)
        launched.pending = send(key[1], call)
        self._sent[kind, rank] = count + 1
        self._made(rank, launched)
        if launched.pending is None:
            # A turn for each phase, as on a rank that launches them apart.
            self._made(rank, launched)
        else:
            launched.key = key
            self._open[key] = launched

    def _receive(self, launched: Launched, how: How = (None, None, None, None, None)) -> None:
        """Launches the second phase of a call, unless it is launched."""
        if launched.pending is None:
            return
        call = self._how(launched.rank, launched.library, *how)
        self._settle(launched.rank)
        launched.pending.recv(call)
        launched.pending = None
        self._open.pop(launched.key, None)
        self._made(launched.rank, launched)

    def _every(self, rank: int, arrays: tuple[Any, ...]) -> dict[int, tuple[Any, ...]]:
        """The arrays of the ranks whose calls this process makes."""
        every = dict(enumerate(self._gather(arrays))) if self.group._mirror else {rank: arrays}
        if not self.group.left_out:
            return every
        if rank in self.group.left_out:
            raise _core.Mismatch(f"rank {rank} is left out, and makes no calls")
        return {each: brought for each, brought in every.items() if each not in self.group.left_out}


class Launched:
    """A call of one rank: its inputs and what it leaves, and the second phase while that is not launched."""

    def __init__(
        self,
        rank: int,
        library: Library | None,
        tokens: int,
        made: dict[str, Any],
        tables: tuple[int, int, int],
        inputs: tuple[Any, ...],
    ) -> None:
        self.rank, self.library, self.tokens = rank, library, tokens
        self.made, self.tables, self.inputs = made, tables, inputs
        self.pending: _core.Pending | None = None
        self.key = ("", 0, 0)
        #: Of a dispatch per rank: its kernels, and what their combine goes by.
        self.whole: tuple[_core.PerRankKernels, _core.PerRankSent] | None = None


class Phased:
    """A call that may be between its phases."""

    def __init__(self, owner: LowLatency, sent: dict[int, Launched], rank: int, sums: dict[str, Any]) -> None:
        self._owner, self._sent, self.rank = owner, sent, rank
        #: What the emulator has added up, and is to be added to arrays of the caller.
        self._sums = sums if owner.group.on_emulator else {}
        self._own = sent[rank]

    @property
    def is_here(self) -> bool:
        """Whether the second phase is launched."""
        return self._own.pending is None

    def receive(
        self,
        *,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> None:
        """Launches the second phase, on any stream; what comes behind it there finds the results."""
        if self.is_here:
            return
        for launched in self._sent.values():
            self._owner._receive(launched, (stream, sms, timeout, after, done))

    def _require_received(self) -> None:
        if not self.is_here:
            raise _core.Mismatch("the rows are on their way: `receive` them first")

    def arriving(self, name: str) -> Any:
        """The array of a result, whether the second phase is launched or not."""
        made = self._own.made
        if name in made:
            return made[name]
        first, shape = self._owner._tables[name]
        tables = made["tables"]
        if isinstance(tables, _core.Tensor):
            return tables.part(first, list(shape))
        return tables[first : first + math.prod(shape)].view(shape)

    def _array(self, name: str) -> Any:
        """What the call has left, in the caller's library."""
        self._require_received()
        array = self.arriving(name)
        if array is None or not self._owner.group.on_emulator:
            return array
        shown = self._owner._shown(array, self._own.library)
        sums, self._sums = self._sums, {}
        for what, into in sums.items():
            if into is not None:
                into += self._owner._shown(self._own.made[what], library_of(into))
        return shown


class Packed(Phased):
    """The output of one dispatch on one rank: rows by local expert, those of each rank side by side."""

    @property
    def x(self) -> Any:
        """``[local_experts, ranks * tokens, hidden]``: what is in the first `counts` rows of each expert."""
        return self._array("x")

    @property
    def scale(self) -> Any:
        """``[local_experts, ranks * tokens, blocks]``: a scale for each 128 values, for payloads that have any."""
        return self._array("scale")

    @property
    def counts(self) -> Any:
        """``int32[local_experts]``: how many rows each expert has."""
        return self._array("counts")

    @property
    def src_info(self) -> Any:
        """``int32[local_experts, ranks * tokens]``: the token of each row, on its own rank."""
        return self._array("src_info")

    @property
    def range_first(self) -> Any:
        """``int32[local_experts, ranks]``: where the rows of each rank begin."""
        return self._array("range_first")

    @property
    def range_count(self) -> Any:
        """``int32[local_experts, ranks]``: how many rows came from each rank."""
        return self._array("range_count")


class Sums(Phased):
    """What a combine leaves; in the emulator it is in ``out`` once it is looked at."""

    def __init__(self, owner: LowLatency, sent: dict[int, Launched], rank: int, out: Any, sums: dict[str, Any]) -> None:
        self._out = out
        super().__init__(owner, sent, rank, sums)

    @property
    def x(self) -> Any:
        """``bfloat16[tokens, hidden]``: the sums."""
        sums = self._array("x")
        if self._out is None:
            return sums
        if self._owner.group.on_emulator:
            self._out[...] = sums
        return self._out
