"""Arrays of any library, as calls see them: an address, a shape, strides and a type.

torch, NumPy with ml_dtypes, what has ``__cuda_array_interface__`` (CuPy), and what speaks DLPack (JAX) go
in; results come back in the library of the input.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import _core

if TYPE_CHECKING:
    import torch

BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float32": 4, "int64": 8, "int32": 4, "uint8": 1}


class View(NamedTuple):
    """Where an array lies; strides are in elements, of any type. ``device`` is the ordinal of a GPU, -1 for an unnamed
    one, or None for host memory."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None
    #: Stream behind which the array is ready, if its library says so.
    stream: int | None
    #: What keeps the memory alive.
    keep: Any

    def is_contiguous(self) -> bool:
        """Whether its elements lie side by side in row-major order."""
        if len(self.shape) == 2 and self.strides == (self.shape[1], 1):
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return 0 in self.shape
            expected *= extent
        return True

    def nbytes(self) -> int:
        """Bytes of its elements."""
        count = BYTES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


def rows_of(where: View) -> tuple[int, int, int]:
    """Address and strides, for what has two axes."""
    return (where.address, where.strides[0], where.strides[1])


#: torch's class of tensors, once a program has torch: nobody else imports it for the question.
_TENSORS: list[type] = []


def is_torch(array: Any) -> bool:
    """Whether it is a tensor of torch."""
    if not _TENSORS:
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        _TENSORS.append(torch.Tensor)
        TORCH.looks = _core.Looks.at(torch.Tensor, torch.empty_like) or Methods(TORCH._named)
    return isinstance(array, _TENSORS[0])


def address_of(array: Any) -> int:
    """Where an array of torch lies, or one of ours."""
    return int(array.data_ptr() if is_torch(array) else array.address)


def view(array: Any, name: str) -> View:
    """Where ``array`` lies; ``name`` is what a message calls it."""
    if is_torch(array):
        return _view_of_torch(array)
    if isinstance(array, _core.Tensor):
        return View(array.address, tuple(array.shape), tuple(array.strides), array.dtype, array.device, None, array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _view_of_interface(array, interface, device=_ordinal(array))
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        return _view_of_interface(array, interface, device=None)
    if hasattr(array, "__dlpack__"):
        taken = _core.take_dlpack(array.__dlpack__())
        return View(
            taken.address,
            tuple(taken.shape),
            tuple(taken.strides),
            taken.dtype,
            taken.device,
            None,
            taken,
        )
    raise _core.Mismatch(f"`{name}` is a {type(array).__name__}, which is no array that can be read")


def is_read_only(array: Any) -> bool:
    """Whether an array is marked read-only."""
    interfaces = (getattr(array, f"__{kind}_interface__", None) for kind in ("cuda_array", "array"))
    found = next((interface for interface in interfaces if interface is not None), None)
    return found is not None and bool(found["data"][1])


def _ordinal(array: Any) -> int:
    """The GPU of an array that says so; the interface has no word for it."""
    device = getattr(array, "device", None)
    return getattr(device, "id", -1)


#: Names of the types of torch that have been seen.
_TORCH_NAMES: dict[Any, str] = {}


def _view_of_torch(tensor: torch.Tensor) -> View:
    dtype = _TORCH_NAMES.get(tensor.dtype)
    if dtype is None:
        dtype = _TORCH_NAMES[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
    device = tensor.get_device()
    # The shape is a tuple, and a copy of it would cost as much as all the rest.
    return View(tensor.data_ptr(), tensor.shape, tensor.stride(), dtype, device if device >= 0 else None, None, tensor)


def _view_of_interface(array: Any, interface: dict[str, Any], device: int | None) -> View:
    shape, kind = tuple(interface["shape"]), interface["typestr"]
    dtype = str(getattr(array, "dtype", kind))
    size = int(kind[2:].partition("[")[0])
    strides, step = interface.get("strides"), 1
    if strides is None:
        dense = []
        for extent in reversed(shape):
            dense.append(step)
            step *= extent
        strides = tuple(reversed(dense))
    else:
        strides = tuple(stride // size for stride in strides)
    return View(interface["data"][0], shape, strides, dtype, device, interface.get("stream"), array)


class Library(Protocol):
    """A library that results are made in."""

    def empty(self, shape: tuple[int, ...], dtype: str, device: int | None) -> Any:
        """An array with any content."""

    def dense(self, array: Any) -> Any:
        """The same values side by side, without a copy if they are so."""

    def cast(self, array: Any, dtype: str) -> Any:
        """The same values with another type."""


class Numpy:
    """Arrays of NumPy, on the host."""

    @staticmethod
    def type_of(dtype: str) -> Any:
        """The type by its name; ml_dtypes has those that NumPy lacks."""
        import numpy

        if dtype in ("bfloat16", "float8_e4m3fn"):
            import ml_dtypes

            return numpy.dtype(getattr(ml_dtypes, dtype))
        return numpy.dtype(dtype)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int | None) -> Any:
        import numpy

        return numpy.empty(shape, self.type_of(dtype))

    def dense(self, array: Any) -> Any:
        import numpy

        return numpy.ascontiguousarray(array)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.astype(self.type_of(dtype))


class Found(dict[Any, Any]):
    """What is looked up once for each key: a call has no time to do it again."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: Any) -> Any:
        found = self[key] = self._find(key)
        return found


class Torch:
    """Tensors of torch, on the host or on GPUs."""

    def __init__(self) -> None:
        #: What the module has under a name, and GPUs by their ordinals or None for the host.
        self._named: dict[str, Any] = Found(lambda name: getattr(importlib.import_module("torch"), name))
        self._places: dict[int | None, torch.device] = Found(self._place)
        #: What looks at tensors; nothing before a call has been given one.
        self.looks: _core.Looks | Methods | None = None

    def _place(self, device: int | None) -> torch.device:
        place: torch.device = self._named["device"]("cpu" if device is None else f"cuda:{device}")
        return place

    def empty(self, shape: tuple[int, ...], dtype: str, device: int | None) -> Any:
        named = self._named
        return named["empty"](shape, dtype=named[dtype], device=self._places[device])

    def rows(
        self, count: int, kinds: Iterable[tuple[int, str] | None], device: int | None
    ) -> list[tuple[torch.Tensor, int] | tuple[None, int]]:
        """New tensors of so many rows with any content, and where each lies; nothing at 0 for None."""
        named, place = self._named, self._places[device]
        empty = named["empty"]
        made = [kind and empty((count, kind[0]), dtype=named[kind[1]], device=place) for kind in kinds]
        return [(None, 0) if it is None else (it, it.data_ptr()) for it in made]

    def stream(self, device: int | None) -> int:
        """The current stream of a GPU, 0 for the default one."""
        # What torch's own compiler asks: the public way makes an object for it.
        stream: int = self._named["_C"]._cuda_getCurrentRawStream(device)
        return stream

    def dense(self, array: Any) -> Any:
        return array.contiguous()

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(self._named[dtype])

    def part(
        self, words: torch.Tensor, dtype: str, first: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> torch.Tensor:
        """What lies in a tensor of words from an element of this type on."""
        typed = words if dtype == "int32" else words.view(self._named[dtype])
        return self._view(typed, shape, strides, first)

    @cached_property
    def _view(self) -> Callable[..., torch.Tensor]:
        """What makes a view of a shape, with strides, from an element on."""
        # What the code of torch's own compiler calls, in half the time of the public way.
        guards = getattr(getattr(self._named["_C"], "_dynamo", None), "guards", None)
        view: Callable[..., torch.Tensor] = getattr(guards, "_reinterpret_tensor", as_strided)
        return view

    def empty_like(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes a tensor of the same type and shape as another, with any content."""
        make: Callable[[torch.Tensor], torch.Tensor] = self._named["empty_like"]
        return make


def as_strided(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], first: int) -> torch.Tensor:
    """A view of a shape, with strides, from an element on."""
    return tensor.as_strided(shape, strides, first)


class Layout:
    """Types and shapes of arrays that are made again and again."""

    def __init__(self, *arrays: tuple[str, tuple[int, ...]]) -> None:
        self.arrays = arrays
        #: For each GPU, tensors without memory to make others like them: that takes a third of saying what they are.
        self._likes: dict[int | None, list[torch.Tensor]] = {}

    def likes(self, device: int | None) -> list[torch.Tensor]:
        """What `torch.empty_like` makes the tensors of."""
        likes = self._likes.get(device)
        if likes is None:
            likes = self._likes[device] = [TORCH.empty(shape, dtype, device) for dtype, shape in self.arrays]
            for like in likes:
                like.untyped_storage().resize_(0)
        return likes

    def in_torch(self, device: int | None) -> list[tuple[torch.Tensor, int]]:
        """New tensors with any content, and where each lies."""
        make, made = TORCH.empty_like(), []
        for like in self.likes(device):
            tensor = make(like)
            made.append((tensor, tensor.data_ptr()))
        return made


class Methods:
    """Looks at tensors as `_core.Looks` does, for a torch without C functions for that."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def rows(self, array: Any, dtype: str, columns: int, device: int | None) -> tuple[int, tuple[int, int, int]] | None:
        if not is_torch(array) or array.dtype is not self._named[dtype] or array.get_device() != device:
            return None
        shape = array.shape
        if len(shape) != 2 or shape[1] != columns:
            return None
        return shape[0], (array.data_ptr(), *array.stride())

    def dense(self, array: Any, dtype: str, shape: tuple[int, ...], device: int | None) -> int | None:
        if not is_torch(array) or array.dtype is not self._named[dtype] or array.get_device() != device:
            return None
        return array.data_ptr() if array.shape == shape and array.is_contiguous() else None


NUMPY, TORCH = Numpy(), Torch()


def library_of(array: Any) -> Library | None:
    """The library of an array; none for those whose results are `epforge.Tensor`."""
    if is_torch(array):
        return TORCH
    return NUMPY if type(array).__module__.partition(".")[0] == "numpy" else None


def as_torch(tensor: _core.Tensor) -> torch.Tensor:
    """A tensor of torch that views memory of a GPU, and keeps its place there."""
    import torch

    viewed = torch.from_dlpack(tensor)
    return viewed.view(torch.float8_e4m3fn) if tensor.dtype == "float8_e4m3fn" else viewed


def portable(value: Any) -> Any:
    """An array as another process can have it: torch cannot pickle its float8, and bytes will do."""
    if isinstance(value, tuple):
        return tuple(portable(each) for each in value)
    if not is_torch(value):
        return value
    import torch

    plain = value.detach()
    return plain.view(torch.uint8) if plain.dtype == torch.float8_e4m3fn else plain


def read(tensor: _core.Tensor, library: Library) -> Any:
    """A copy on the host of a tensor whose rows may lie apart: of its first axis, if it has more than two, of which
    the other two may be turned.

    It is no view, unless they are: callers give the memory of results back.
    """
    rows, *others = tensor.shape
    columns = math.prod(others)
    step = tensor.strides[0]
    is_turned = len(others) == 2 and tensor.strides[1] < tensor.strides[2]
    is_dense = step == columns and not is_turned
    span = library.empty(tuple(tensor.shape) if is_dense else (rows, step), tensor.dtype, None)
    if rows:
        where = view(span, "the copy")
        tensor.read(where.address, where.nbytes())
    if is_dense:
        return span
    if is_turned:
        return library.dense(span[:, :columns]).reshape(rows, *reversed(others)).swapaxes(1, 2)
    made = library.empty(tuple(tensor.shape), tensor.dtype, None)
    made.reshape(rows, columns)[...] = span[:, :columns]
    return made
