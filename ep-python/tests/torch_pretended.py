"""The calls of deep_ep as they are made on a GPU, without one: tensors of torch lie in memory of the emulator."""

from __future__ import annotations

import ctypes
import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from epforge import _core, deep_ep
from epforge.arrays import TORCH, is_torch

TOKENS, HIDDEN, TOPK, EXPERTS = 5, 256, 3, 8

#: What DLPack calls the host.
HOST = -1


#: A communicator of one rank.
ALONE = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1, allgather=lambda value: [value])


class Pretended:
    """A buffer of one rank in the emulator whose Python code takes its memory for that of a GPU."""

    def __init__(self) -> None:
        # From here on the package knows torch, and what looks at its tensors.
        assert is_torch(torch.empty(0))
        self.buffer = deep_ep.Buffer(None, comm=ALONE)
        engines = self.buffer.engines
        assert engines is not None
        self.buffer.prepare(TOKENS, HIDDEN, TOPK, EXPERTS)
        engines._layouts.clear()
        self.group = engines.group
        self.group.on_emulator, self.group._mirror, self.group._turns = False, None, None
        self.group._devices[0] = HOST
        #: The memory that tensors lie in.
        self.kept: list[Any] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = max(torch.empty(shape, dtype=dtype, device="meta").nbytes, 1)
        memory = self.group._core.empty(0, [count], "uint8")
        self.kept.append(memory)
        plain = torch.frombuffer((ctypes.c_char * count).from_address(memory.address), dtype=torch.uint8)
        return plain[: torch.empty(shape, dtype=dtype, device="meta").nbytes].view(dtype).view(shape)

    def put(self, values: torch.Tensor) -> torch.Tensor:
        return self.empty(tuple(values.shape), values.dtype).copy_(values)

    def rows(self, count: int, kinds: Any, device: Any) -> list[tuple[Any, int]]:
        made = [kind and self.empty((count, kind[0]), getattr(torch, kind[1])) for kind in kinds]
        return [(it, 0 if it is None else it.data_ptr()) for it in made]

    @contextmanager
    def here(self) -> Iterator[None]:
        """The package makes its tensors in this memory, and on a host without streams."""
        looks = _core.Looks.at(torch.Tensor, lambda like: self.empty(tuple(like.shape), like.dtype))
        with (
            mock.patch.object(TORCH, "looks", looks),
            mock.patch.object(TORCH, "rows", self.rows),
            mock.patch.object(TORCH, "stream", lambda device: 0),
            mock.patch.dict(TORCH._places, {HOST: torch.device("cpu")}),
            mock.patch("epforge.deep_ep.legacy.own_experts", self.put),
        ):
            yield


def asked(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call gives, and the functions of the extension module that it calls, in order."""
    found: list[str] = []

    def heard(frame: Any, event: str, what: Any) -> None:
        if event == "c_call" and type(getattr(what, "__self__", None)).__module__ == "epforge._core":
            found.append(what.__name__)

    sys.setprofile(heard)
    try:
        given = call()
    finally:
        sys.setprofile(None)
    return given, [name for name in found if name != "empty"]


class HostTime(unittest.TestCase):
    """Calls into the extension module cost time, most of all those that let other threads run."""

    def test_a_layer_asks_for_each_call_once(self) -> None:
        torch.manual_seed(0)
        gpu = Pretended()
        x = gpu.put(torch.randint(-8, 8, (TOKENS, HIDDEN)).to(torch.bfloat16))
        ids = gpu.put(torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(TOKENS)]))
        ids[0, 1] = -1
        weights = gpu.put(torch.rand(TOKENS, TOPK))
        buffer = gpu.buffer
        with gpu.here():
            buffer.get_dispatch_layout(ids, EXPERTS)
            (per_rank, _, per_expert, in_rank, _), names = asked(lambda: buffer.get_dispatch_layout(ids, EXPERTS))
            self.assertEqual(names, ["send_tensors"])
            gpu.group._core.sync(0)
            self.assertEqual((per_rank.tolist(), in_rank.tolist()), ([TOKENS], [[True]] * TOKENS))
            self.assertEqual(per_expert.tolist(), torch.bincount(ids[ids >= 0], minlength=EXPERTS).tolist())

            way = {"topk_idx": ids, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
            given, names = asked(lambda: buffer.dispatch(x, topk_weights=weights, **way))
            self.assertEqual(names, ["dispatch_tensors", "counts", "copy_to"])
            came, came_ids, came_weights, counts, handle, _ = given
            gpu.group._core.sync(0)
            self.assertTrue(torch.equal(came, x) and torch.equal(came_ids, ids))
            self.assertEqual(counts, per_expert.tolist())

            (sums, back, _), names = asked(lambda: buffer.combine(came, handle, came_weights))
            self.assertEqual(names, ["combine_tensors"])
            gpu.group._core.sync(0)
            self.assertTrue(torch.equal(sums, x))
            self.assertTrue(torch.equal(back, torch.where(ids < 0, 0, weights)))
            # A tensor that does not fit raises the same error as on the slower path.
            with self.assertRaisesRegex(_core.Mismatch, f"`rows` has 1 rows, and {TOKENS} arrived"):
                buffer.combine(came[:1], handle)
