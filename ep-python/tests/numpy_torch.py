"""As much of torch as the first API of deep_ep calls in the emulator, over NumPy: its tests run without torch.

`import_as_torch` gives it torch's name, for the process that calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

bool = np.dtype(np.bool_)
uint8, int32, int64, float32 = (np.dtype(name) for name in ("uint8", "int32", "int64", "float32"))
bfloat16, float8_e4m3fn = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)

#: There is no GPU.
cuda = SimpleNamespace(is_available=lambda: False)


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods that tensors have."""

    def data_ptr(self) -> int:
        return int(self.ctypes.data)

    def get_device(self) -> int:
        return -1

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.itemsize for step in self.strides)

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return self.itemsize

    def detach(self) -> Tensor:
        return self

    def untyped_storage(self) -> Any:
        # What would have no memory keeps its own here.
        return SimpleNamespace(resize_=lambda size: None)

    def contiguous(self) -> Tensor:
        return self if self.flags.c_contiguous else as_tensor(np.ascontiguousarray(self))

    def clone(self) -> Tensor:
        return as_tensor(self.copy())

    def is_floating_point(self) -> Any:
        return self.dtype.kind == "f"

    def view(self, *to: Any) -> Any:
        return self.reshape(to) if isinstance(to[0], int) else super().view(*to)

    def to(self, dtype: Any) -> Tensor:
        return self if self.dtype == dtype else as_tensor(self.astype(dtype))

    def long(self) -> Tensor:
        return self.to(int64)

    def transpose(self, *axes: Any) -> Any:
        return self.swapaxes(*axes)

    def sum(self, dim: Any = None, dtype: Any = None, axis: Any = None, **more: Any) -> Any:
        return super().sum(axis=dim if axis is None else axis, dtype=dtype, **more)

    def copy_(self, other: Any) -> Tensor:
        self[...] = other
        return self


def as_tensor(array: Any) -> Tensor:
    """The same memory as a tensor."""
    return np.asarray(array).view(Tensor)


def tensor(values: Any, device: Any = None) -> Tensor:
    return as_tensor(np.array(values))


def empty(shape: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    # Nothing may count on what is in there.
    return as_tensor(np.frombuffer(b"\xa5" * (int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy())


def empty_like(like: Tensor) -> Tensor:
    # Elements lie in the same order; nothing may count on what they are.
    return as_tensor(np.full_like(like, 77))


def zeros(shape: Any, dtype: Any = float32, device: Any = None) -> Tensor:
    return as_tensor(np.zeros(shape, dtype))


def arange(end: int, device: Any = None) -> Tensor:
    return as_tensor(np.arange(end))


def where(condition: Any, one: Any, other: Any) -> Tensor:
    return as_tensor(np.where(condition, one, other))


class ProcessGroup:
    """What `torch.distributed` calls a group."""

    def __init__(self, own: int, ranks: int, gather: Callable[[Any], list[Any]]) -> None:
        self.own, self.ranks, self.gather = own, ranks, gather

    def rank(self) -> int:
        return self.own

    def size(self) -> int:
        return self.ranks


def all_gather_object(brought: list[Any], value: Any, group: ProcessGroup) -> None:
    brought[:] = group.gather(value)


distributed = SimpleNamespace(all_gather_object=all_gather_object)


def device(name: str) -> str:
    return name


def import_as_torch() -> None:
    """Gives this module torch's name."""
    sys.modules["torch"] = sys.modules[__name__]
