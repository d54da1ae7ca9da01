"""What calls leave: handles, outputs, combine inputs and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from .arrays import Library

if TYPE_CHECKING:
    from .buffer import Buffer

#: The type of a payload's values, and that of its scales.
PAYLOADS = {
    "bf16": ("bfloat16", None),
    "fp8": ("float8_e4m3fn", "float32"),
    "fp8-packed": ("float8_e4m3fn", "uint8"),
}

#: Address and strides of rows that are not there.
NOWHERE = (0, 0, 1)


class Handle:
    """The tables of one dispatch on one rank: its combine and its cached dispatches need them."""

    #: Those of all ranks, where a process makes the calls of all of them.
    _mirrored: Sequence[_core.Handle] = ()

    def __init__(self, buffer: Buffer, core: _core.Handle, library: Library | None) -> None:
        self.buffer = buffer
        self._core = core
        self._library = library

    @property
    def rank(self) -> int:
        """The rank."""
        return self._core.rank

    @property
    def tokens(self) -> int:
        """Tokens of the dispatch on this rank; the most there may be, if the device has their number."""
        return self._core.tokens

    def counts(self) -> tuple[int, list[int]]:
        """How many rows arrive, and how many for each local expert, rounded up to the buffer's alignment.

        Waits for the exchange of counts, and not for the rows.
        """
        self.buffer._settle(self.rank)
        return self._core.counts()

    @property
    def rank_prefix(self) -> Any:
        """``int32[ranks + 1, ranks]``: rows that come to each rank from all ranks before one; totals are last."""
        return self.buffer._shown(self._core.rank_prefix(), self._library)

    def sources(self, rows: int) -> Any:
        """``int32[rows]``: the token, on its own rank, of each of the first rows that arrived."""
        return self.buffer._shown(self._core.sources().first(rows), self._library)[:, 0]


class Received:
    """The output of one dispatch on one rank.

    `x`, `scale`, `topk_idx` and `topk_weights` are cut to the rows that have arrived, whose number they wait
    for; `whole` gives them with room for all that may arrive, and waits for nothing. On GPUs they view the
    window and keep their place until the last of them is gone; in the emulator they are copies. A cached
    dispatch brings rows and scales alone: the others are in the output of the dispatch before.
    """

    #: Those of all ranks, where a process makes the calls of all of them.
    _mirrored: Sequence[_core.Received] = ()

    def __init__(self, handle: Handle, core: _core.Received, library: Library | None) -> None:
        self.handle = handle
        self._core = core
        self._library = library

    @property
    def rows(self) -> int:
        """How many rows have arrived."""
        return self.handle.counts()[0]

    @property
    def x(self) -> Any:
        """The rows, in order of their rank and then of their token."""
        return self._cut(self._core.x())

    @property
    def scale(self) -> Any:
        """Their scales, for payloads that have any."""
        return self._cut(self._core.scale())

    @property
    def topk_idx(self) -> Any:
        """``int64``: the local number of each expert of a row, -1 for those of other ranks."""
        return self._cut(self._core.topk_idx())

    @property
    def topk_weights(self) -> Any:
        """``float32``: the weights of all experts of a row, for a buffer that moves weights."""
        return self._cut(self._core.topk_weights())

    def whole(self) -> tuple[Any, Any, Any, Any]:
        """All four with room for all that may arrive; ``topk_idx`` is -1 in rows that have not.

        Of a cached dispatch there are two, and None for the others.
        """
        return self._first(self.handle.buffer.capacity)

    def _first(self, rows: int) -> tuple[Any, Any, Any, Any]:
        core = self._core
        experts = (None, None) if core.is_cached else (core.topk_idx(), core.topk_weights())
        tensors = (core.x(), core.scale(), *experts)
        shown = self.handle.buffer._shown
        x, scale, idx, weights = (it if it is None else shown(it.first(rows), self._library) for it in tensors)
        return x, scale, idx, weights

    def copy(self, rows: int | None = None) -> tuple[Any, Any, Any, Any]:
        """The same in memory of their own, so that the output may be dropped."""
        count = self.rows if rows is None else rows
        buffer, rank = self.handle.buffer, self.handle._core.rank
        if buffer.group.on_emulator or self._library is None:
            return self._first(count)
        kinds = (*buffer._kinds[:2], None, None) if self._core.is_cached else buffer._kinds
        made = buffer._new_rows(rank, count, kinds, self._library)
        (x, x_at), (scale, scale_at), (idx, idx_at), (weights, weights_at) = made
        if count:
            factors = (scale_at, buffer.scales, 1) if scale_at else NOWHERE
            how = buffer._how(rank, self._library)
            self._core.copy_to(count, (x_at, buffer.hidden, 1), factors, idx_at, weights_at, how)
        return x, scale, idx, weights

    def _cut(self, tensor: _core.Tensor | None) -> Any:
        if tensor is None:
            return None
        return self.handle.buffer._shown(tensor.first(self.rows), self._library)


class Offered:
    """A combine input in the window, for experts on GPUs that leave their rows there."""

    def __init__(self, buffer: Buffer, core: _core.Offered, library: Library | None) -> None:
        self.buffer = buffer
        self._core = core
        self._library = library

    @property
    def x(self) -> Any:
        """``bfloat16`` rows, in the order in which the dispatch received theirs."""
        return self.buffer._shown(self._core.x(), self._library)

    @property
    def weights(self) -> Any:
        """``float32`` weights of the rows, for a buffer that moves weights."""
        tensor = self._core.weights()
        return None if tensor is None else self.buffer._shown(tensor, self._library)


class Combined:
    """What a combine leaves: in the emulator it is there, in ``out`` too, once it is looked at."""

    def __init__(self, buffer: Buffer, sums: Any, weights: Any, out: Any, library: Library | None) -> None:
        self.buffer = buffer
        self._sums, self._weights, self._out, self._library = sums, weights, out, library

    @property
    def x(self) -> Any:
        """``bfloat16[tokens, hidden]``: the sums."""
        if not self.buffer.group.on_emulator:
            return self._sums
        sums = self.buffer._shown(self._sums, self._library)
        if self._out is None:
            return sums
        self._out[...] = sums
        return self._out

    @property
    def weights(self) -> Any:
        """``float32[tokens, topk]``: the weights, summed over the ranks; None if the combine had none."""
        if self._weights is None or not self.buffer.group.on_emulator:
            return self._weights
        return self.buffer._shown(self._weights, self._library)
