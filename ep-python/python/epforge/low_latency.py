"""Dispatch and combine of few tokens in two phases, between which other work runs: rows by expert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from . import _core
from .arrays import BYTES, TORCH, Found, Layout, Library, library_of, view
from .caller import NO_CHOICE, Caller, How, checked
from .group import Group
from .limits import check_count
from .results import PAYLOADS

#: SMs of a call with fewer tokens than these: with fewer, calls of 8 tokens take a third longer.
LEAST_SMS = 64

#: Most calls of a kind between their phases: each has kernels of its own.
MOST_BETWEEN = 64

#: The most tokens of a rank in a call.
MOST_TOKENS = 8192

#: How rows may travel: once for each of their experts, or once for each rank.
WAYS = ("per-expert", "per-rank")

#: The most ranks of a group whose rows travel once for each rank if nobody chooses a way.
MOST_PER_RANK = 64

#: Arrays that a call adds to: statistics, waits, and words of what has arrived for each tile and each expert.
Adding = tuple[Any, Any, Any, Any]
NOTHING: Adding = (None, None, None, None)
NOWHERE = (0, 0, 0, 0)

#: Words that a combine waits for, of each expert and of each tile, and what they come to.
Words = tuple[Any, Any, int]
NO_WORDS: Words = (None, None, 1)

#: What the kernels of a rank read: tokens, rows, experts, weights, and what keeps them.
Given = tuple[int, Any, int, int, tuple[Any, ...]]

#: Rows of an expert that share a word.
TILE = 64


class LowLatency(Caller):
    """Kernels for calls of few tokens, made by all ranks of the group together.

    A row travels once for each of its experts, straight to its place, and no counts go ahead. ``tokens`` is the
    most of any rank in a call. Rows are given as bfloat16; ``payload`` is what travels and arrives: ``"bf16"``,
    or ``"fp8"`` with a ``float32`` scale for each 128 values, or ``"fp8-packed"`` with a power of two as a byte,
    cast on the way. ``between`` calls of a kind may be between their phases at once.

    With ``way="per-rank"`` a row travels once for each rank that has any of its experts, and one sum comes back from
    each: fewer bytes, and the same rows by expert. Such calls run in one go and need every rank. A combine that asks
    for more sends its rows per expert. With ``weights_ahead`` their weights come with the dispatch, which spares the
    combine a way between ranks. ``tiles`` is how many words an expert has for each 64 of its rows.
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
        for name, value in (("tokens", tokens), ("hidden", hidden), ("topk", topk), ("experts", experts)):
            check_count(name, value, least=1)
        check_count("between", between, least=1, most=MOST_BETWEEN)
        # The warps of a block work on a message each.
        super().__init__(group, max(tokens, LEAST_SMS))
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
        #: Those that send, by what they send.
        self._sending: dict[str, Any] = self._whole if way == "per-rank" else self._dispatchers
        first = self._prepare(payload)
        self.local_experts: int = first.local_experts
        if way == "per-expert":
            self._combiner("bf16")
        self._packed_shape = (self.local_experts, group.ranks * tokens, hidden)
        #: What a dispatch of each payload leaves.
        self._left: dict[str, Left] = Found(self._what_is_left)
        self.tiles = -(-group.ranks * tokens // TILE)
        #: What calls may add to.
        self._added = (
            ("statistics", "int32", (self.local_experts,)),
            ("waits", "int64", (group.ranks,)),
            ("arrived_rows", "int32", (self.local_experts, self.tiles)),
            ("arrived_parts", "int32", (self.local_experts,)),
        )
        #: What a combine of so many tokens leaves.
        self._summed: dict[int, Layout] = Found(lambda tokens: Layout(("bfloat16", (tokens, hidden))))
        #: Kernels that take turns, by their call, by the form in which rows travel, and by rank.
        self._rounds: dict[tuple[str, str, int], Round] = Found(self._round)
        #: The returns of ranks that these belong to: after one, all ranks begin again with the first kernels.
        self._returns = group.returns

    def _make(self, kind: Any, payload: str, *more: Any) -> Any:
        group = self.group
        if group.left_out and len(range(*group._core.local)) < group.ranks:
            out = min(group.left_out)
            raise _core.Mismatch(
                f"rank {out} is left out, and kernels are made by all ranks together: make such a call before that"
            )
        sizes = {"tokens": self.tokens, "hidden": self.hidden, "topk": self.topk, "experts": self.experts}
        kinds = {"kind": kind.__name__, "payload": payload, "weights_ahead": self.weights_ahead}
        group._agree("low-latency kernels", {**sizes, **kinds, "placement": self._placement})
        return kind(group._core, list(sizes.values()), payload, self._placement, *more)

    def _what_is_left(self, payload: str) -> Left:
        """What a dispatch of a payload leaves, whose kernels are there."""
        values, _ = PAYLOADS[payload]
        return Left(self._prepare(payload).tables, (values, self._packed_shape))

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

    def _round(self, key: tuple[str, str, int]) -> Round:
        """The kernels for dispatches of a payload on a rank, or for combines of a wire."""
        call, kind, _ = key
        return Round(self._dispatcher(kind) if call == "dispatch" else self._combiner(kind))

    @property
    def parts(self) -> int:
        """What the word of an expert comes to in ``arrived_parts`` when all of its rows have arrived."""
        return self._dispatcher(self.payload)[0].parts

    @property
    def memory(self) -> int:
        """Bytes of GPU memory that the kernels made so far take on each rank; outputs are arrays of the caller's."""
        packing = sum(kernel.device_bytes for own in self._dispatchers.values() for kernel in own)
        whole = sum(kernels.device_bytes for kernels in self._whole.values())
        return whole + packing + sum(kernel.device_bytes for own in self._combiners.values() for kernel in own)

    @staticmethod
    def bytes(
        ranks: int,
        *,
        nodes: int = 1,
        tokens: int,
        hidden: int,
        topk: int,
        experts: int,
        payload: str = "bf16",
        between: int = 1,
        way: str = "per-expert",
        weights_ahead: bool = False,
    ) -> int:
        """What `memory` would say of new kernels with these options on each of so many ranks. Allocates nothing."""
        numbers = [tokens, hidden, topk, experts]
        if way == "per-rank":
            return _core.PerRankKernels.bytes_of(ranks, nodes, numbers, payload, weights_ahead)[0]
        return between * bytes_per_expert(ranks, nodes, numbers, payload)[0]

    @staticmethod
    def network_bytes(
        ranks: int,
        *,
        nodes: int,
        tokens: int,
        hidden: int,
        topk: int,
        experts: int,
        payload: str = "bf16",
        between: int = 1,
        way: str = "per-expert",
        weights_ahead: bool = False,
    ) -> int:
        """Bytes on each rank of rows that pass through a network, beside those of `bytes`.

        They are in GPU memory if cards reach that, and otherwise in host memory.
        """
        numbers = [tokens, hidden, topk, experts]
        if way == "per-rank":
            return _core.PerRankKernels.bytes_of(ranks, nodes, numbers, payload, weights_ahead)[1]
        return between * bytes_per_expert(ranks, nodes, numbers, payload)[1]

    def dispatch(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any = None,
        *,
        payload: str | None = None,
        statistics: Any = None,
        waits: Any = None,
        arrived_rows: Any = None,
        arrived_parts: Any = None,
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

        A kernel that runs beside the call hears of rows by words, ``int32``, which the caller clears:
        ``arrived_rows[local_experts, tiles]`` counts those of each 64 rows that are there, and
        ``arrived_parts[local_experts]`` comes to `parts` when all of an expert's are, and its count is.
        """
        group = self.group
        rank = group.rank(rank)
        if topk_weights is not None or waits is not None or self.weights_ahead:
            self._check_weights(topk_weights, self.weights_ahead, "dispatch")
            self._refuse_per_rank(waits is not None, "do not report how long they waited for ranks: `waits` are")
        words = arrived_rows is not None or arrived_parts is not None
        adding = NOTHING
        if words or statistics is not None or waits is not None:
            self._refuse_per_rank(words, "do not report rows while they run: words are")
            adding = (statistics, waits, arrived_rows, arrived_parts)
        how = checked((stream, sms, timeout, after, done))
        library, payload = library_of(x), payload or self.payload
        if group._turns is None and not group.left_out:
            if payload not in self._sending:
                self._prepare(payload)
            packed = None
            if library is TORCH and adding is NOTHING and topk_weights is None:
                packed = self._send_tensors(rank, payload, x, topk_idx, how, later)
            if packed is None:
                given = self._given(rank, (x, topk_idx, topk_weights))
                packed = self._send_rows(rank, payload, given, library, adding, how, later)
        else:
            self._check_adding(adding)
            every = self._every(rank, "low-latency dispatch", (x, topk_idx, topk_weights))
            self._settle(rank)
            sent = self._of_each(rank, self._given, every)
            self._prepare(payload)
            calls = [self._send_rows(each, payload, it, library, adding, how, later) for each, it in sent.items()]
            packed = of_rank(rank, calls)
        packed._topk_idx = topk_idx
        return packed

    def _send_tensors(self, rank: int, payload: str, x: Any, topk_idx: Any, how: How, later: bool) -> Packed | None:
        """`_send_rows` of tensors of torch that need nothing else, in two thirds of the time; none of any others."""
        looks, device, turn = TORCH.looks, self.group._devices[rank], None
        if not isinstance(looks, _core.Looks):
            return None
        left = self._left[payload]
        likes, options = left.layout.likes(device), self._how(rank, TORCH, how)
        if self.way == "per-rank":
            sent = self._whole[payload].send_tensors(looks, (rank, device), x, topk_idx, likes, options)
        elif turn := self._turn("dispatch", payload, rank):
            kernel = turn[0].kernels[turn[1]]
            sent = kernel.send_tensors(looks, (rank, device), x, topk_idx, likes, later, options)
        else:
            return None
        if sent is None:
            return None
        after: Any
        tokens, ids, left_at, (words, rows), after = sent
        packed = Packed(self, rank, TORCH, tokens, (x, topk_idx))
        packed.leave(left, words, left_at, rows, ids)
        if turn is None:
            packed._whole = self._whole[payload], after
        else:
            self._launched(packed, turn, after)
        return packed

    def _given(self, rank: int, arrays: tuple[Any, Any, Any]) -> Given:
        """Where the kernels of a rank find what a dispatch sends."""
        tokens, x, kept = self._rows(rank, arrays[0], "x", "bfloat16", self.hidden)
        ids, kept_ids = self._dense(rank, arrays[1], "topk_idx", "int64", (tokens, self.topk))
        weights, kept_weights = 0, None
        if arrays[2] is not None:
            weights, kept_weights = self._dense(rank, arrays[2], "topk_weights", "float32", (tokens, self.topk))
        return tokens, x, ids, weights, (kept, kept_ids, kept_weights)

    def _send_rows(
        self,
        rank: int,
        payload: str,
        given: Given,
        library: Library | None,
        adding: Adding,
        how: How,
        later: bool,
    ) -> Packed:
        tokens, x, ids, weights, kept = given
        packed = Packed(self, rank, library, tokens, kept)
        left = self._left[payload]
        (words, left_at), (packed_x, packed_at) = self._new(rank, left.layout, library)
        packed.leave(left, words, left_at, packed_x, ids)
        added = NOWHERE if adding is NOTHING else self._adding_to(packed, adding)
        if self.way == "per-expert":
            places = (x, ids, packed_at, left_at, added)
            self._launch(packed, ("dispatch", payload, rank), places, how, later)
            return packed
        options = self._how(rank, library, how)
        self._settle(rank)
        kernels = self._whole[payload]
        whole = (x, ids, weights, packed_at, left_at, added[0])
        packed._whole = kernels, kernels.send(rank, tokens, *whole, options)
        self._made(rank, phases=2)
        return packed

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
        expert_done: Any = None,
        tile_done: Any = None,
        done_at: int = 1,
        later: bool = False,
        stream: int | None = None,
        sms: int | None = None,
        timeout: float | None = None,
        after: int | None = None,
        done: int | None = None,
    ) -> Sums:
        """Brings a row of each expert back to its token, and adds them up with weights in order of the top-k.

        ``rows`` are ``bfloat16[local_experts, ranks * tokens, hidden]``, each where `Packed.x` has the one that it
        was made of; ``topk_weights`` are ``float32[tokens, topk]``. ``topk_idx`` is that of the dispatch unless
        another array is given: choices that are dropped on the way back go into one of their own. The sums are left
        in ``out`` if it is there; with ``later`` they come with `Sums.receive`. ``waits`` are as those of `dispatch`.

        With ``wire="logfmt"`` rows travel in 10 bits a value, of the logarithm of its magnitude between the least and
        the greatest of 128: a value is off by 2.2 % of itself at most, by 0.6 % where those are a factor of 256 apart,
        and what is below 2^-32 of the greatest comes back as that. Rows have to be finite then.

        With ``expert_done``, an ``int32[local_experts]``, or ``tile_done``, one of ``[local_experts, tiles]``, rows are
        sent while others are still being made: those of an expert, or of each 64 of its rows, once their word has come
        to ``done_at``. Who makes them raises it at GPU scope, and clears it between calls.
        """
        if not isinstance(packed, Packed):
            raise _core.Mismatch(f"the packed rows are a {type(packed).__name__}, and no result of `dispatch`")
        if packed._owner is not self:
            raise _core.Mismatch("the packed rows belong to another `LowLatency`")
        packed._require_received()
        group, rank = self.group, packed.rank
        # Not by its memory: that of a rank without tokens is nowhere, and all ranks have to find the same.
        if topk_idx is packed._topk_idx:
            topk_idx = None
        if (topk_weights is None) != self.weights_ahead:
            self._check_weights(topk_weights, not self.weights_ahead, "combine")
        adding = NOTHING if waits is None else (None, waits, None, None)
        words = NO_WORDS
        if expert_done is not None or tile_done is not None:
            words = (expert_done, tile_done, done_at)
        is_plain = adding is NOTHING and words is NO_WORDS and topk_idx is None
        #: The form in which rows of each expert travel; None: one sum of each rank does.
        back: str | None = wire
        if self.way == "per-rank":
            if is_plain and wire == "bf16" and not group.left_out:
                back = None
            else:
                # Kernels of the other way find rows that travelled once for each rank where they look for them.
                self._refuse_ahead(wire, waits=waits, topk_idx=topk_idx, expert_done=expert_done, tile_done=tile_done)
        how = checked((stream, sms, timeout, after, done))
        if group._turns is None and not group.left_out:
            sums = None
            if is_plain and topk_weights is not None and packed._library is TORCH:
                sums = self._sum_tensors(packed, back, rows, topk_weights, out, how, later)
            if sums is None:
                given = self._given_back(packed, (rows, topk_weights, topk_idx))
                sums = self._send_back(packed, back, given, out, adding, words, how, later)
            return sums
        # Before others make a call that this rank does not.
        self._check_adding(adding)
        if out is not None:
            self._require_out(rank, out, (packed._tokens, self.hidden))
        every = self._every(rank, "low-latency combine", (rows, topk_weights, topk_idx))
        self._settle(rank)
        sent = {of.rank: of for of in (packed, *packed._others)}
        for each in every.keys() - sent.keys():
            raise _core.Mismatch(f"rank {each} was left out of the dispatch, and is not of its combine")
        brought = self._of_each(rank, lambda each, arrays: self._given_back(sent[each], arrays), every)
        if back is not None:
            self._combiner(back)
        calls = []
        for each, given in brought.items():
            own = out if each == rank else None
            calls.append(self._send_back(sent[each], back, given, own, adding, words, how, later))
        return of_rank(rank, calls)

    def _sum_tensors(
        self, of: Packed, back: str | None, rows: Any, topk_weights: Any, out: Any, how: How, later: bool
    ) -> Sums | None:
        """`_send_back` of tensors of torch, as `_send_tensors`."""
        rank, tokens, looks = of.rank, of._tokens, TORCH.looks
        device, turn, pending = self.group._devices[rank], None, None
        if not isinstance(looks, _core.Looks):
            return None
        left = TORCH.empty_like()(self._summed[tokens].likes(device)[0]) if out is None else out
        options = self._how(rank, TORCH, how)
        if back is None:
            whole, sent = of._whole
            tensors = (rows, topk_weights, left)
            if not whole.send_back_tensors(looks, device, *tensors, (rank, tokens), sent, options):
                return None
        elif turn := self._turn("combine", back, rank):
            kernel, about = turn[0].kernels[turn[1]], (tokens, of._ids, of._tables_at)
            launched = kernel.send_tensors(looks, (rank, device), rows, topk_weights, left, about, later, options)
            if launched is None:
                return None
            (pending,) = launched
        else:
            return None
        sums = Sums(self, rank, TORCH, tokens, (rows, topk_weights, of))
        sums._x, sums._out = left, out
        if turn is not None:
            self._launched(sums, turn, pending)
        return sums

    def _given_back(self, of: Packed, arrays: tuple[Any, Any, Any]) -> Given:
        """Where the kernels of a rank find what a combine reads."""
        rank, tokens = of.rank, of._tokens
        rows, kept = self._dense(rank, arrays[0], "rows", "bfloat16", self._packed_shape)
        weights, ids, kept_weights, kept_ids = 0, of._ids, None, None
        if arrays[1] is not None:
            weights, kept_weights = self._dense(rank, arrays[1], "topk_weights", "float32", (tokens, self.topk))
        if arrays[2] is not None:
            ids, kept_ids = self._dense(rank, arrays[2], "topk_idx", "int64", (tokens, self.topk))
        return tokens, rows, ids, weights, (kept, kept_weights, kept_ids, of)

    def _send_back(
        self,
        of: Packed,
        back: str | None,
        given: Given,
        out: Any,
        adding: Adding,
        words: Words,
        how: How,
        later: bool,
    ) -> Sums:
        (tokens, rows, ids, weights, kept), rank, library = given, of.rank, of._library
        sums = Sums(self, rank, library, tokens, kept)
        sums._out = out
        sums._x, sums_at = self._sums(rank, self._summed[tokens], out, library)
        waits = 0 if adding is NOTHING else self._adding_to(sums, adding)[1]
        if back is not None:
            heard = (0, 0, 1) if words is NO_WORDS else self._words_at(sums, words)
            places = (rows, ids, weights, sums_at, of._tables_at, waits, heard)
            self._launch(sums, ("combine", back, rank), places, how, later)
            return sums
        options = self._how(rank, library, how)
        self._settle(rank)
        whole, sent = of._whole
        whole.send_back(rank, tokens, rows, weights, sums_at, sent, options)
        self._made(rank, phases=2)
        return sums

    def _words_at(self, sums: Sums, words: Words) -> tuple[int, int, int]:
        """Where the kernels of a rank find the words that they wait for, 0 where there are none."""
        expert_done, tile_done, done_at = words
        places, experts = [0, 0], self.local_experts
        named = (("expert_done", expert_done, (experts,)), ("tile_done", tile_done, (experts, self.tiles)))
        for index, (name, array, shape) in enumerate(named):
            if array is not None:
                places[index], kept = self._dense(sums.rank, array, name, "int32", shape)
                sums._inputs += (kept,)
        return places[0], places[1], done_at

    def _check_weights(self, array: Any, are_due: bool, call: str) -> None:
        if (array is not None) != are_due:
            raise _core.Mismatch(f"`topk_weights` {'have to' if are_due else 'do not'} come with the {call}")

    def _refuse_per_rank(self, is_asked: bool, what: str) -> None:
        if is_asked and self.way == "per-rank":
            raise _core.Mismatch(f"dispatches per rank {what} for way `per-expert`")

    def _refuse_ahead(self, wire: str, **given: Any) -> None:
        """Refuses what brings rows back per expert where the weights were for sums of each rank."""
        if not self.weights_ahead:
            return
        asked = [f"with `{name}`" for name, array in given.items() if array is not None]
        asked += [f"with `wire={wire}`"] * (wire != "bf16")
        asked += [f"without rank {rank}, which is left out," for rank in sorted(self.group.left_out)]
        ahead = "`weights_ahead` is for sums of ranks"
        raise _core.Mismatch(f"a combine {asked[0]} brings rows back per expert, and {ahead}")

    def _check_adding(self, adding: Adding) -> None:
        """Refuses arrays that cannot take what a call adds to them."""
        for array, (name, dtype, shape) in zip(adding, self._added, strict=True):
            if array is not None:
                where = self._checked(view(array, name), name, dtype, None)
                self._require_dense(where, name, shape)

    def _adding_to(self, call: Phased, adding: Adding) -> tuple[int, ...]:
        """Where the kernels of a rank add to arrays, 0 if nobody asks; the emulator has memory of its own."""
        places = []
        for array, (name, dtype, shape) in zip(adding, self._added, strict=True):
            at = 0
            if array is not None and self.group.on_emulator:
                added = self.group._core.zeros(call.rank, list(shape), dtype)
                call._adding.append((array, added))
                at = added.address
            elif array is not None:
                at, kept = self._dense(call.rank, array, name, dtype, shape)
                call._adding.append((array, kept))
            places.append(at)
        return tuple(places)

    def _turn(self, call: str, kind: str, rank: int) -> Turn | None:
        """The kernels whose turn it is, of those for dispatches of a payload on a rank, or for combines of a wire; none
        while they are in use by a call that is between its phases."""
        if self._returns != self.group.returns:
            self._returns = self.group.returns
            for each in self._rounds.values():
                each.begin_again()
        round = self._rounds[call, kind, rank]
        at = round.count % self.between
        return None if at in round.open else (round, at)

    def _launch(
        self, call: Phased, kernels: tuple[str, str, int], places: tuple[Any, ...], how: How, later: bool
    ) -> None:
        """Launches a call on the kernels whose turn it is."""
        turn, rank = self._turn(*kernels), call.rank
        while turn is None:
            # Somebody gave up between the phases: what is on its way comes first.
            round = self._rounds[kernels]
            self._receive(round.open[round.count % self.between])
            turn = self._turn(*kernels)
        options = self._how(rank, call._library, how)
        self._settle(rank)
        pending = turn[0].kernels[turn[1]].send(rank, call._tokens, *places, later, options)
        self._launched(call, turn, pending)

    def _launched(self, call: Phased, turn: Turn, pending: _core.Pending | None) -> None:
        """Notes a call that took its turn, and what is to be launched later."""
        round, at = turn
        round.count += 1
        call._pending = pending
        if pending is None:
            # As many turns of the emulator as on a rank that launches the phases apart.
            self._made(call.rank, phases=2)
            return
        self._made(call.rank)
        call._turn, round.open[at] = turn, call

    def _receive(self, call: Phased, how: How = NO_CHOICE) -> None:
        """Launches the second phase of a call, unless it is launched."""
        if call._pending is None:
            return
        options = self._how(call.rank, call._library, how)
        self._settle(call.rank)
        call._pending.recv(options)
        call._pending = None
        round, at = call._turn
        round.open.pop(at, None)
        self._made(call.rank)

    def _every(self, rank: int, call: str, arrays: tuple[Any, ...]) -> dict[int, tuple[Any, ...]]:
        """The arrays of the ranks whose calls this process makes."""
        every = self._gather(call, arrays) if self.group._mirror else {rank: arrays}
        if not self.group.left_out:
            return every
        if rank in self.group.left_out:
            raise _core.Mismatch(f"rank {rank} is left out, and makes no calls")
        return {each: brought for each, brought in every.items() if each not in self.group.left_out}


class Left:
    """What a dispatch leaves: its rows, and in words beside them scales, if they have any, and tables."""

    def __init__(self, tables: list[_core.Table], rows: tuple[str, tuple[int, ...]]) -> None:
        #: Type, first element, extents and strides of each. What a combine alone reads is behind the others.
        self.tables = {
            name: (dtype, first, tuple(shape), tuple(strides or strides_of(shape)))
            for name, dtype, first, shape, strides in tables
        }
        ends = ((first + math.prod(shape)) * BYTES[dtype] for dtype, first, shape, _ in self.tables.values())
        self.layout = Layout(("int32", (-(-max(ends) // BYTES["int32"]),)), rows)
        #: The byte at which tables begin.
        self.begin = self.tables["counts"][1] * BYTES["int32"]


class Round:
    """Kernels that calls of a rank take in turn, and the calls that are between their phases, by their kernels."""

    def __init__(self, kernels: list[Any]) -> None:
        self.kernels = kernels
        self.open: dict[int, Phased] = {}
        self.count = 0

    def begin_again(self) -> None:
        """Begins with the first kernels; what was between its phases is dropped."""
        self.open.clear()
        self.count = 0


#: Kernels that take turns, and which of them a call gets.
Turn = tuple[Round, int]


class Phased:
    """A call of one rank, which may be between its phases."""

    #: The second phase while it is not launched, and whose turn it is until then.
    _pending: _core.Pending | None = None
    _turn: Turn
    #: The same call of the other ranks that this process makes for it.
    _others: Sequence[Any] = ()

    def __init__(
        self, owner: LowLatency, rank: int, library: Library | None, tokens: int, inputs: tuple[Any, ...]
    ) -> None:
        self._owner, self.rank, self._library, self._tokens, self._inputs = owner, rank, library, tokens, inputs
        #: Arrays that it adds to, each with what its kernels add to: the emulator's are still to be added.
        self._adding: list[tuple[Any, Any]] = []

    @property
    def is_here(self) -> bool:
        """Whether the second phase is launched."""
        return self._pending is None

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
        how = checked((stream, sms, timeout, after, done))
        if self.is_here:
            return
        for call in (self, *self._others):
            self._owner._receive(call, how)

    def _require_received(self) -> None:
        if not self.is_here:
            raise _core.Mismatch("the rows are on their way: `receive` them first")

    def _shown(self, tensor: _core.Tensor) -> Any:
        """What the emulator has left in the caller's library, with what the call adds to arrays of the caller."""
        shown = self._owner._shown(tensor, self._library)
        adding, self._adding = self._adding, []
        for array, added in adding:
            array += self._owner._shown(added, library_of(array))
        return shown


class Packed(Phased):
    """The output of one dispatch on one rank: rows by local expert, those of each rank side by side."""

    #: What the kernels leave: rows and words, and what is in these; where their tables begin, and the `topk_idx`.
    _x: Any
    _words: Any
    _left: Left
    _tables_at: int
    _ids: int
    #: Of rows that travel once for each rank: the kernels, and what their combine goes by.
    _whole: tuple[_core.PerRankKernels, _core.PerRankSent]
    #: The `topk_idx` as the caller gave it.
    _topk_idx: Any

    def leave(self, left: Left, words: Any, words_at: int, rows: Any, ids: int) -> None:
        """Notes the arrays that the call leaves, and the address of its ``topk_idx``."""
        self._left, self._words, self._x, self._ids = left, words, rows, ids
        self._tables_at = words_at + left.begin

    @property
    def topk_idx(self) -> Any:
        """``int64[tokens, topk]``: the experts, as the dispatch was given them."""
        return self._topk_idx

    @property
    def read_by_combine(self) -> tuple[Any, Any]:
        """What a combine reads of it: its tables, and the ``topk_idx`` of the dispatch unless another one is given."""
        return self._words, self._topk_idx

    def arriving(self, name: str) -> Any:
        """The array of a result, whether the second phase is launched or not."""
        if name == "x":
            return self._x
        dtype, first, shape, strides = self._left.tables[name]
        if isinstance(self._words, _core.Tensor):
            return self._words.part(dtype, first, shape, strides)
        return TORCH.part(self._words, dtype, first, shape, strides)

    def _array(self, name: str) -> Any:
        """What the call has left, in the caller's library."""
        self._require_received()
        array = self.arriving(name)
        return self._shown(array) if self._owner.group.on_emulator else array

    @property
    def x(self) -> Any:
        """``[local_experts, ranks * tokens, hidden]``: what is in the first `counts` rows of each expert."""
        return self._array("x")

    @property
    def scale(self) -> Any:
        """``[local_experts, ranks * tokens, blocks]``: a scale for each 128 values, for payloads that have any.

        Those of ``"fp8"`` lie column by column for each expert, as grouped products of FP8 read them.
        """
        return self._array("scale") if "scale" in self._left.tables else None

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

    #: The sums where the kernels leave them, and the caller's array for them.
    _x: Any
    _out: Any

    def arriving(self) -> Any:
        """The array of the sums, whether the second phase is launched or not."""
        return self._x

    @property
    def x(self) -> Any:
        """``bfloat16[tokens, hidden]``: the sums."""
        self._require_received()
        if not self._owner.group.on_emulator:
            return self._x
        sums = self._shown(self._x)
        if self._out is None:
            return sums
        self._out[...] = sums
        return self._out


def bytes_per_expert(ranks: int, nodes: int, numbers: list[int], payload: str) -> tuple[int, int]:
    """Bytes of a dispatch and a combine per expert: their own, and those of rows that pass through a network."""
    send = _core.LowLatencyDispatcher.bytes_of(ranks, nodes, numbers, payload)
    back = _core.LowLatencyCombiner.bytes_of(ranks, nodes, numbers, "bf16")
    return send[0] + back[0], send[1] + back[1]


def strides_of(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next of each extent, where they lie side by side."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


Call = TypeVar("Call", bound=Phased)


def of_rank(rank: int, calls: list[Call]) -> Call:
    """The call of a rank, which goes on together with the others."""
    own = next(call for call in calls if call.rank == rank)
    own._others = [call for call in calls if call is not own]
    return own
