"""What the calls of a group have in common: where arrays lie, on which stream a call runs, and when it has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import _core
from .arrays import (
    NUMPY,
    TORCH,
    Layout,
    Library,
    View,
    address_of,
    as_torch,
    is_read_only,
    library_of,
    portable,
    read,
    rows_of,
    view,
)
from .group import Group, brought_by_all
from .limits import MOST, check_count, check_seconds

#: The legacy default stream of the driver; 0 means the rank's own one.
LEGACY_STREAM = 1

#: Stream, SMs, timeout, event before and event behind of a call, as far as the caller names them.
How = tuple[int | None, int | None, float | None, int | None, int | None]
NO_CHOICE: How = (None, None, None, None, None)


def checked(how: How) -> How:
    """Checks the options of a call before any rank makes it."""
    _, sms, timeout, _, _ = how
    # Most calls name a number of SMs at most.
    if timeout is not None or not (sms is None or (type(sms) is int and 0 < sms <= MOST)):
        check_count("sms", sms, least=1)
        check_seconds("timeout", timeout)
    return how


Made = TypeVar("Made")


class Caller:
    """What makes calls in a group."""

    def __init__(self, group: Group, sms: int = 0) -> None:
        self.group = group
        #: SMs of a call that names none; 0: as many as each kernel takes by itself. The emulator takes a second for
        #: what a GPU does in a microsecond: few blocks go far there.
        self._sms = 4 if group.on_emulator else min(sms, group._core.sms(group.local.start))
        self._streams: dict[int, int] = {}

    def _rows(self, rank: int, array: Any, name: str, dtype: str, columns: int) -> tuple[int, _core.Rows, Any]:
        """How many rows an array has, where the kernels of a rank find them, and what keeps them."""
        found: Any = TORCH.looks and TORCH.looks.rows(array, dtype, columns, self.group._devices[rank])
        if found is not None:
            return *found, array
        where = self._place(rank, array, name, dtype, columns)
        return where.shape[0], rows_of(where), where

    def _dense(self, rank: int, array: Any, name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, Any]:
        """Where the kernels of a rank find an array of this shape, side by side, and what keeps it."""
        found: Any = TORCH.looks and TORCH.looks.dense(array, dtype, shape, self.group._devices[rank])
        if found is not None:
            return found, array
        where = self._place(rank, array, name, dtype)
        self._require_dense(where, name, shape)
        return where.address, where

    def _require_dense(self, where: View, name: str, shape: tuple[int, ...]) -> None:
        if tuple(where.shape) != shape:
            raise _core.Mismatch(f"`{name}` has extents {list(where.shape)}, and needs {list(shape)}")
        if not where.is_contiguous():
            raise _core.Mismatch(f"`{name}` has gaps between its rows: make it contiguous")

    def _require_out(self, rank: int, out: Any, shape: tuple[int, ...]) -> int:
        """Where an array lies that sums are left in."""
        found: Any = TORCH.looks and TORCH.looks.dense(out, "bfloat16", shape, self.group._devices[rank])
        if found is not None:
            return int(found)
        where = self._checked(view(out, "out"), "out", "bfloat16", None)
        if is_read_only(out):
            raise _core.Mismatch("`out` is read-only, and sums are left in it")
        self._require_dense(where, "out", shape)
        if not self.group.on_emulator:
            self._require_here(rank, where, "out")
        return where.address

    def _place(self, rank: int, array: Any, name: str, dtype: str, columns: int | None = None) -> View:
        """Where the kernels of a rank find an array; the emulator gets a copy."""
        where = self._checked(view(array, name), name, dtype, columns)
        if self.group.on_emulator:
            return self._copied(rank, where, array, name)
        self._require_here(rank, where, name)
        if where.stream is not None:
            self.group._core.follow(rank, max(where.stream, LEGACY_STREAM))
        return where

    def _require_here(self, rank: int, where: View, name: str) -> None:
        device = self.group._devices[rank]
        if where.device != device and where.device != -1:
            place = "in host memory" if where.device is None else f"on GPU {where.device}"
            raise _core.Mismatch(f"`{name}` is {place}, and rank {rank} on GPU {device}")

    def _copied(self, rank: int, where: View, array: Any, name: str) -> View:
        """A copy of an array in the memory of the emulator."""
        if where.device is not None and not isinstance(array, _core.Tensor):
            raise _core.Mismatch(f"`{name}` is on a GPU, and the group in the emulator")
        if not where.is_contiguous():
            where = view((library_of(array) or NUMPY).dense(array), name)
        copy = self.group._core.empty(rank, list(where.shape), where.dtype)
        copy.write(where.address, where.nbytes())
        return view(copy, name)

    def _checked(self, where: View, name: str, dtype: str, columns: int | None) -> View:
        # NumPy's own types have no float8, and DLPack seldom: bytes will do.
        if where.dtype != dtype and not (dtype == "float8_e4m3fn" and where.dtype == "uint8"):
            raise _core.Mismatch(f"`{name}` has elements of {where.dtype}, and has to have {dtype}")
        if columns is not None and (len(where.shape) != 2 or where.shape[1] != columns):
            raise _core.Mismatch(f"`{name}` is {list(where.shape)}, and has to have rows of {columns}")
        return where

    def _how(self, rank: int, library: Library | None, how: How = NO_CHOICE) -> _core.Call:
        """How a call runs: behind all that the stream of the call before it holds."""
        stream, sms, timeout, after, done = how
        if self.group.on_emulator:
            return (0, sms or self._sms, None, 0, 0)
        last = self._streams.get(rank)
        if stream is None:
            stream = (TORCH.stream(self.group._devices[rank]) or LEGACY_STREAM) if library is TORCH else last or 0
        if last != stream:
            if last is not None:
                self.group._core.follow(rank, last)
            self._streams[rank] = stream
        return (stream, sms or self._sms, timeout, after or 0, done or 0)

    def _new(self, rank: int, layout: Layout, library: Library | None) -> list[tuple[Any, int]]:
        """Memory for the arrays that a call leaves, and where each lies."""
        device = self.group._devices[rank]
        if library is TORCH and not self.group.on_emulator:
            return layout.in_torch(device)
        if self.group.on_emulator or library is None:
            made = [self.group._core.empty(rank, list(shape), dtype) for dtype, shape in layout.arrays]
        else:
            made = [library.empty(shape, dtype, device) for dtype, shape in layout.arrays]
        return [(array, address_of(array)) for array in made]

    def _new_rows(
        self, rank: int, count: int, kinds: Iterable[tuple[int, str] | None], library: Library
    ) -> list[tuple[Any, int]]:
        """Memory for arrays of so many rows, and where each lies; nothing at 0 for None."""
        device = self.group._devices[rank]
        if library is TORCH:
            return TORCH.rows(count, kinds, device)
        arrays = [kind and library.empty((count, kind[0]), kind[1], device) for kind in kinds]
        return [(it, 0) if it is None else (it, view(it, "the copy").address) for it in arrays]

    def _sums(self, rank: int, layout: Layout, out: Any, library: Library | None) -> tuple[Any, int]:
        """Memory for the one array of what a combine leaves, which may be the caller's, and its address."""
        if out is not None:
            address = self._require_out(rank, out, layout.arrays[0][1])
            if not self.group.on_emulator:
                return out, address
        return self._new(rank, layout, library)[0]

    def _shown(self, tensor: _core.Tensor, library: Library | None) -> Any:
        """A tensor of the window as the caller's library has it."""
        if self.group.on_emulator:
            self._settle(tensor.rank)
            return read(tensor, library or NUMPY)
        return as_torch(tensor) if library is TORCH else tensor

    def _settle(self, rank: int) -> None:
        if self.group._turns:
            self.group._turns.settle(rank)

    def _made(self, rank: int, phases: int = 1) -> None:
        if self.group._turns:
            for _ in range(phases):
                self.group._turns.made(rank)

    def _gather(self, call: str, arrays: tuple[Any, ...]) -> dict[int, tuple[Any, ...]]:
        """What each rank brings to a call, where each process makes those of all."""
        mirror, own = self.group._mirror, tuple(portable(array) for array in arrays)
        return dict(enumerate(brought_by_all(mirror[1], f"a {call}", own))) if mirror else {}

    def _of_each(self, own: int, make: Callable[[int, Any], Made], every: dict[int, Any]) -> dict[int, Made]:
        """What is made of the arrays of each rank before any call is queued: one that is refused leaves none behind."""
        made = {}
        for rank, arrays in every.items():
            try:
                made[rank] = make(rank, arrays)
            except _core.Mismatch as error:
                if rank == own:
                    raise
                raise _core.Mismatch(f"rank {rank} is refused its call: {error}") from error
        return made
