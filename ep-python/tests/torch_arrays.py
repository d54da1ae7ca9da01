"""What calls make of tensors of torch, and what they see of them. On the host: where they are makes no difference."""

from __future__ import annotations

import unittest
from typing import Any

import torch

from epforge.arrays import TORCH, Layout, Methods, is_torch


class Layouts(unittest.TestCase):
    """Tensors that are made again and again."""

    def setUp(self) -> None:
        self.layout = Layout(("bfloat16", (3, 16)), ("float32", (0, 4)), ("int32", (5,)))

    def test_they_are_what_the_layout_says(self) -> None:
        kinds = [((3, 16), torch.bfloat16), ((0, 4), torch.float32), ((5,), torch.int32)]
        for _ in range(2):
            made = self.layout.in_torch(None)
            self.assertEqual([(tensor.shape, tensor.dtype) for tensor, _ in made], kinds)
            self.assertEqual([at for _, at in made], [tensor.data_ptr() for tensor, _ in made])
            self.assertTrue(all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor, _ in made))

    def test_what_they_are_like_takes_no_memory(self) -> None:
        self.layout.in_torch(None)
        (likes,) = self.layout._likes.values()
        self.assertEqual([like.untyped_storage().nbytes() for like in likes], [0, 0, 0])

    def test_a_change_of_one_is_none_of_the_next(self) -> None:
        first = self.layout.in_torch(None)[0][0]
        first.fill_(7).unsqueeze_(0).requires_grad_()
        second = self.layout.in_torch(None)[0][0].fill_(3)
        self.assertEqual((second.shape, second.requires_grad), ((3, 16), False))
        self.assertTrue((first == 7).all())

    def test_they_are_of_the_mode_of_their_call(self) -> None:
        with torch.inference_mode():
            self.assertTrue(self.layout.in_torch(None)[0][0].is_inference())
        self.assertFalse(self.layout.in_torch(None)[0][0].is_inference())


class Looks(unittest.TestCase):
    """torch's C functions and its methods see the same of a tensor; -1 is the host among its devices."""

    def setUp(self) -> None:
        self.assertTrue(is_torch(torch.zeros(1)))
        self.assertIsNotNone(TORCH.looks)
        self.ways = (TORCH.looks, Methods(TORCH._named))

    def same(self, call: Any) -> Any:
        one, other = (call(way) for way in self.ways)
        self.assertEqual(one, other)
        return one

    def test_rows(self) -> None:
        x = torch.zeros(6, 32, dtype=torch.bfloat16)
        for rows, wanted in (
            (x, (6, (x.data_ptr(), 32, 1))),
            (x[1::2], (3, (x.data_ptr() + 64, 64, 1))),
            (x[:0], (0, (0, 32, 1))),
            (torch.nn.Parameter(x), (6, (x.data_ptr(), 32, 1))),
            (x[:, :16], None),
            (x[0], None),
            (x.float(), None),
            ("rows", None),
        ):
            self.assertEqual(self.same(lambda way, rows=rows: way.rows(rows, "bfloat16", 32, -1)), wanted)
        self.assertEqual(self.same(lambda way: way.rows(x.T, "bfloat16", 6, -1)), (32, (x.data_ptr(), 1, 32)))
        for device in (None, 0):
            self.assertIsNone(self.same(lambda way, device=device: way.rows(x, "bfloat16", 32, device)))

    def test_what_lies_side_by_side(self) -> None:
        ids = torch.zeros(4, 3, dtype=torch.int64)
        for array, shape, fits in (
            (ids, (4, 3), True),
            (ids, (3, 4), False),
            (ids[1:], (3, 3), True),
            (ids[:, :2], (4, 2), False),
            (ids.T, (3, 4), False),
            (ids[:1].T, (3, 1), True),
            (ids[:0, :2], (0, 2), True),
            (ids.int(), (4, 3), False),
            ([[0]], (1, 1), False),
        ):
            found = self.same(lambda way, it=(array, shape): way.dense(it[0], "int64", it[1], -1))
            self.assertEqual(found, array.data_ptr() if fits else None)

    def test_types(self) -> None:
        for name in ("bfloat16", "float8_e4m3fn", "float32", "int64", "int32", "uint8"):
            tensor = torch.zeros(2, 2).to(getattr(torch, name))
            found = self.same(lambda way, it=(tensor, name): way.dense(it[0], it[1], (2, 2), -1))
            self.assertEqual(found, tensor.data_ptr())
            other = "int64" if name != "int64" else "uint8"
            self.assertIsNone(self.same(lambda way, it=(tensor, other): way.dense(it[0], it[1], (2, 2), -1)))


if __name__ == "__main__":
    unittest.main()
