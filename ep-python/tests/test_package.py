"""The package around the calls: what it refuses and how, lifetimes, other libraries' arrays, the command line."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import unittest
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import epforge
from epforge import _core
from epforge.arrays import NUMPY, read, view
from epforge.caller import Caller
from problems import Problem, problem
from test_calls import made


def sent(own: Problem, buffer: epforge.Buffer) -> list[tuple[epforge.Received, epforge.Handle]]:
    """A dispatch of all ranks."""
    return [buffer.dispatch(own.x[r], own.topk_idx[r], rank=r) for r in range(own.ranks)]


class OnlyDlpack:
    """An array of a library that speaks nothing else."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class OnCuda:
    """An array that says it is on a GPU."""

    def __init__(self, array: np.ndarray[Any, Any], strides: tuple[int, ...] | None = None) -> None:
        interface = dict(array.__array_interface__)
        interface.update(version=3, strides=strides, stream=7)
        self.__cuda_array_interface__ = interface
        self.dtype = array.dtype


class Refusals(unittest.TestCase):
    """Bad input is one sentence with names and numbers, before anything is launched."""

    def setUp(self) -> None:
        self.own = problem(2, tokens=[4, 4])
        self.group = epforge.Group.on_host(2)
        self.buffer = made(self.group, self.own, weights=False)

    def refused(self, wanted: str, *arrays: Any, rank: int | None = 0, **options: Any) -> None:
        with self.assertRaises(epforge.Mismatch) as caught:
            self.buffer.dispatch(*arrays, rank=rank, **options)
        self.assertEqual(str(caught.exception), wanted)

    def test_a_tune_by_a_wrong_name_says_what_was_meant(self) -> None:
        def buffer(pipeline: str, name: str, value: str) -> epforge.Buffer:
            return made(self.group, self.own, settings=[(pipeline, name, value)])

        with self.assertRaisesRegex(epforge.Mismatch, "has no tune `stagse`.*did you mean `stages`"):
            buffer("nvl-dispatch", "stagse", "3")
        with self.assertRaisesRegex(epforge.Mismatch, "did you mean `nvl-dispatch`"):
            buffer("nvl_dispatch", "stages", "3")
        with self.assertRaisesRegex(epforge.Mismatch, "`stages` of nvl-dispatch takes a number, not `many`"):
            buffer("nvl-dispatch", "stages", "many")
        with self.assertRaisesRegex(epforge.Plan, "`stages` is 5, it takes"):
            buffer("nvl-dispatch", "stages", "5")

    def test_arrays_that_do_not_fit(self) -> None:
        x, ids = self.own.x[0], self.own.topk_idx[0]
        self.refused("`x` has elements of float32, and has to have bfloat16", x.astype(np.float32), ids)
        self.refused("`x` is [4, 64], and has to have rows of 128", x[:, :64], ids)
        self.refused("`x` is [4, 128, 1], and has to have rows of 128", x[..., None], ids)
        self.refused("`topk_idx` has elements of int32, and has to have int64", x, ids.astype(np.int32))
        self.refused("`topk_idx` has extents [4, 2], and needs [4, 3]", x, ids[:, :2])
        self.refused("`topk_idx` has extents [3, 3], and needs [4, 3]", x, ids[:3])
        self.refused("`x` is a list, which is no array that can be read", [1], ids)
        self.refused("`x` is on a GPU, and the group in the emulator", OnCuda(x), ids)
        self.refused(
            "`x` has elements of complex64, and has to have bfloat16",
            x.astype(np.complex64),
            ids,
        )
        self.refused("`x` has elements of >f4, and has to have bfloat16", x.astype(">f4"), ids)
        self.refused(
            "`x` has elements of datetime64[ns], and has to have bfloat16", np.zeros((4, 128), "datetime64[ns]"), ids
        )
        self.refused("the dispatch has a `scale`, and rows of bf16 have none", x, ids, scale=x)
        self.refused("this process drives 2 ranks: name one, as in `rank=0`", x, ids, rank=None)
        self.refused("rank 2 is not local: this process drives 0 to 1", x, ids, rank=2)
        with self.assertRaisesRegex(epforge.Error, "5 tokens, and the maximum is 4"):
            self.buffer.dispatch(np.zeros((5, 128), x.dtype), np.zeros((5, 3), np.int64), rank=0)

    def test_numbers_of_a_call_that_are_out_of_range(self) -> None:
        x, ids = self.own.x[0], self.own.topk_idx[0]
        for sms in (0, -1, 2**40):
            self.refused(f"`sms` is {sms}, and it takes 1 to 2147483647", x, ids, sms=sms)
        for timeout in (0, -1, math.nan, math.inf, 1e300):
            wanted = f"`timeout` is {timeout}, and it takes more than 0 and at most 1000000 seconds"
            self.refused(wanted, x, ids, timeout=timeout)

    def test_numbers_of_a_group_that_are_out_of_range(self) -> None:
        unique_id = epforge.UniqueId.local()
        on_host, join, over = epforge.Group.on_host, epforge.Group.join, epforge.Group.over_network
        for ranks in (-1, 0, 1025, 2**31):
            with self.assertRaisesRegex(epforge.Mismatch, f"`ranks` is {ranks}, and it takes 1 to 1024"):
                on_host(ranks)
        for make, name in (
            (lambda: on_host(2, nodes=0), "nodes"),
            (lambda: on_host(2, patience=math.nan), "patience"),
            (lambda: epforge.Group.on_gpus(timeout=-1), "timeout"),
            (lambda: join(unique_id, 0, 2**31), "ranks"),
            (lambda: join(unique_id, 0, 2, deadline=1e18), "deadline"),
            (lambda: over(unique_id, 0, 2, ranks=2**40), "ranks"),
            (lambda: over(unique_id, 0, 2, deadline=-1), "deadline"),
        ):
            with self.assertRaisesRegex(epforge.Mismatch, f"`{name}` is .* and it takes"):
                make()

    def test_a_group_that_was_refused_goes_on(self) -> None:
        with self.assertRaises(epforge.Mismatch):
            self.buffer.dispatch(self.own.x[0], None, rank=0)
        for rank, (received, _) in enumerate(sent(self.own, self.buffer)):
            np.testing.assert_array_equal(received.x, self.own.received(rank)[0])

    def test_options_that_do_not_fit(self) -> None:
        for options, wanted in (
            ({"payload": "fp4"}, "payload `fp4` is none of bf16, fp8, fp8-packed"),
            ({"via": "mail"}, "via `mail` is none of direct, ring"),
            ({"live": 0}, "a buffer with 0 live outputs cannot make a call"),
            ({"placement": [0, 9]}, "a placement of 8 experts on 2 ranks needs 3 ascending numbers from 0 to 8"),
            ({"biases": -1}, "`biases` is -1, and it takes 0 to 2147483647"),
            ({"capacity": 2**40}, "`capacity` is 1099511627776, and it takes 0 to 2147483647"),
            ({"alignment": -1}, "`alignment` is -1, and it takes 0 to 2147483647"),
        ):
            with self.assertRaises(epforge.Error) as caught:
                made(self.group, self.own, **options)
            self.assertEqual(str(caught.exception), wanted)

    def test_combines_that_do_not_fit(self) -> None:
        (received, handle), (_, other) = sent(self.own, self.buffer)
        rows = received.x
        for wanted, arguments in (
            ("`rows` is [3, 64], and has to have rows of 128", (rows[:3, :64], handle)),
            ("the combine has weights, but the buffer was made without `weights`", (rows, handle, rows)),
            ("the combine input and the handle belong to different ranks", (received, other)),
            (f"`rows` has {len(rows) - 1} rows, and {len(rows)} arrived", (rows[:-1], handle)),
            (
                "the handle is a Received: `dispatch` gives what was received, and then the handle",
                (rows, received),
            ),
        ):
            with self.assertRaises(epforge.Mismatch) as caught:
                self.buffer.combine(*arguments)
            self.assertEqual(str(caught.exception), wanted)
        added = made(self.group, self.own, weights=False, biases=1)
        (received, handle), _ = sent(self.own, added)
        for rows in (3, 5):
            with self.assertRaisesRegex(
                epforge.Mismatch, f"`biases.0.` has {rows} rows, and the dispatch had 4 tokens"
            ):
                added.combine(received.x, handle, biases=[np.zeros((rows, 128), received.x.dtype)])
        with self.assertRaisesRegex(epforge.Mismatch, "the handle belongs to another buffer"):
            made(self.group, self.own, weights=False).combine(rows, handle)

    def test_a_call_that_names_no_sms_leaves_them_to_its_kernels(self) -> None:
        core = SimpleNamespace(sms=lambda rank: 132)
        gpu: Any = SimpleNamespace(on_emulator=False, _core=core, local=range(1), _devices={0: 0})
        for least, asked, wanted in ((0, None, 0), (0, 8, 8), (64, None, 64), (200, None, 132)):
            how = Caller(gpu, least)._how(0, None, (None, asked, None, None, None))
            self.assertEqual(how, (0, wanted, None, 0, 0))

    def test_what_is_missing_is_said(self) -> None:
        with self.assertRaises(epforge.Missing) as caught:
            epforge.Group.on_gpus()
        self.assertIn("driver", str(caught.exception))
        with self.assertRaisesRegex(epforge.GroupError, "an id is an address and 32 hexadecimal digits"):
            epforge.Group.join("nowhere", 0, 2)
        self.assertTrue(issubclass(epforge.Missing, epforge.Error))


class Lifetimes(unittest.TestCase):
    """Places are taken by what is held, and come back when it goes."""

    def test_handles_outlive_outputs(self) -> None:
        own = problem(2, tokens=[4, 4])
        buffer = made(epforge.Group.on_host(2), own, weights=False, live=1, handles=40)
        handles = []
        # More layers than there are outputs: each keeps its way back.
        for _ in range(40):
            handles.append([handle for _, handle in sent(own, buffer)])
        with self.assertRaisesRegex(epforge.AllInUse, "all 40 handles are in use") as caught:
            sent(own, buffer)
        self.assertEqual((caught.exception.rank, caught.exception.live), (0, 40))
        back = [buffer.combine(own.received(r)[0], handles[7][r]) for r in range(2)]
        for rank, sums in enumerate(back):
            np.testing.assert_array_equal(sums.x.astype(np.float32), own.x[rank].astype(np.float32) * own.times(rank))

    def test_an_exception_between_dispatch_and_combine_gives_the_places_back(self) -> None:
        own = problem(2, tokens=[4, 4])
        buffer = made(epforge.Group.on_host(2), own, weights=False, live=1)
        for _ in range(3):
            with self.assertRaisesRegex(ValueError, "an expert"):
                self.failing(own, buffer)
            gc.collect()
        for rank, (received, _) in enumerate(sent(own, buffer)):
            np.testing.assert_array_equal(received.x, own.received(rank)[0])

    @staticmethod
    def failing(own: Problem, buffer: epforge.Buffer) -> None:
        pairs = sent(own, buffer)
        assert pairs[0][0].rows >= 0
        message = "an expert"
        raise ValueError(message)

    def test_memory_is_known_before_a_buffer_is_made(self) -> None:
        own = problem(2, tokens=[4, 4])
        shape = {"tokens": 4, "hidden": own.hidden, "topk": own.topk, "experts": own.experts}
        for options in ({"weights": False, "live": 1}, {"payload": "fp8", "handles": 7}):
            told = epforge.Buffer.bytes(2, **shape, **options)
            self.assertEqual(told, made(epforge.Group.on_host(2), own, **options).memory)
        # Two outputs of 32768 rows of 14336 bytes, and as many rows to combine; or one place for both.
        shape = {"tokens": 4096, "hidden": 7168, "topk": 8, "experts": 256}
        for options, places in (({}, (2, 2)), ({"live": 1, "shared_rows": True, "payload": "fp8"}, (1, 0))):
            told = epforge.Buffer.bytes(8, **shape, **options)
            found = (told["outputs"] // (32768 * 14336), told["combine_inputs"] // (32768 * 14336))
            self.assertEqual(found, places)
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'tokns'"):
            epforge.Buffer.bytes(8, tokns=4096, **shape)

    def test_a_place_for_rows_is_an_output_or_a_combine_input(self) -> None:
        own = problem(2, tokens=[4, 4])
        few = {"push_combine": False, "one_launch": False, "handles": 4}
        buffer = made(epforge.Group.on_host(2), own, weights=False, live=1, shared_rows=True, **few)
        self.assertEqual(buffer.memory["combine_inputs"], 0)
        for _ in range(2):
            pairs = sent(own, buffer)
            rows, handles = [received.x for received, _ in pairs], [handle for _, handle in pairs]
            with self.assertRaisesRegex(epforge.AllInUse, "rank 0: all 1 outputs are in use"):
                buffer.combine(rows[0], handles[0])
            del pairs
            back = [buffer.combine(rows[r], handles[r]) for r in range(2)]
            for rank, sums in enumerate(back):
                wanted = own.x[rank].astype(np.float32) * own.times(rank)
                np.testing.assert_array_equal(sums.x.astype(np.float32), wanted)

    def test_two_buffers_share_a_group(self) -> None:
        own, other = problem(2, tokens=[4, 2]), problem(2, tokens=[3, 5], hidden=192, topk=2, experts=5)
        group = epforge.Group.on_host(2)
        both = [(own, made(group, own, weights=False)), (other, made(group, other, weights=False))]
        results = [(its, sent(its, buffer)) for its, buffer in both]
        for its, pairs in results:
            for rank, (received, _) in enumerate(pairs):
                np.testing.assert_array_equal(received.x, its.received(rank)[0])


class Arrays(unittest.TestCase):
    """Arrays of other libraries, and slices."""

    def test_arrays_by_dlpack_and_slices(self) -> None:
        own = problem(2, tokens=[6, 6])
        buffer = made(epforge.Group.on_host(2), own)
        # Every second row, and experts of a library that speaks DLPack alone.
        x = [np.repeat(rows, 2, axis=0)[::2] for rows in own.x]
        pairs = [
            buffer.dispatch(x[r], OnlyDlpack(own.topk_idx[r]), OnlyDlpack(own.topk_weights[r]), rank=r)
            for r in range(2)
        ]
        for rank, (received, _) in enumerate(pairs):
            np.testing.assert_array_equal(received.x, own.received(rank)[0])
            np.testing.assert_array_equal(received.topk_weights, own.received(rank)[2])

    def test_results_are_no_views(self) -> None:
        # Rows lie apart in the window, as they are no whole lines.
        own = problem(2, tokens=[6, 6], hidden=144)
        buffer = made(epforge.Group.on_host(2), own)
        pairs = [buffer.dispatch(own.x[r], own.topk_idx[r], own.topk_weights[r], rank=r) for r in range(2)]
        sums = [buffer.combine(received.x, handle, received.topk_weights) for received, handle in pairs]
        for (received, _), combined in zip(pairs, sums, strict=True):
            for array in (*received.copy(), combined.x, combined.weights):
                self.assertTrue(array is None or array.flags.owndata)

    def test_where_arrays_lie(self) -> None:
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        for it in (array, OnlyDlpack(array)):
            seen = view(it, "x")
            self.assertEqual((seen.address, seen.shape, seen.strides), (array.ctypes.data, (3, 4), (4, 1)))
            self.assertEqual((seen.dtype, seen.device), ("float32", None))
            self.assertTrue(seen.is_contiguous())
        turned = view(array.T, "x")
        self.assertEqual((turned.strides, turned.is_contiguous()), ((1, 4), False))
        seen = view(OnCuda(array, (32, 4)), "x")
        self.assertEqual((seen.strides, seen.device, seen.stream), ((8, 1), -1, 7))
        self.assertEqual(view(array.astype(ml_dtypes.bfloat16), "x").dtype, "bfloat16")

    def test_parts_of_a_tensor_stay_within_it(self) -> None:
        group = epforge.Group.on_host(1)
        whole = group._core.zeros(0, [12], "int32")
        values = np.arange(12, dtype=np.int32)
        whole.write(values.ctypes.data, values.nbytes)
        part = whole.part("int32", 4, [2, 3])
        self.assertEqual((part.shape, part.strides, part.address), ([2, 3], [3, 1], whole.address + 16))
        del whole
        np.testing.assert_array_equal(read(part, NUMPY), [[4, 5, 6], [7, 8, 9]])
        self.assertEqual(part.part("int32", 6, [0, 3]).shape, [0, 3])
        for first, shape in ((4, [1, 3]), (-1, [2]), (1, [2, 3]), (1 << 62, [4])):
            with self.assertRaisesRegex(epforge.Mismatch, "lie outside a tensor of 24"):
                part.part("int32", first, shape)

    def test_parts_of_a_tensor_may_be_of_another_type(self) -> None:
        group = epforge.Group.on_host(1)
        whole = group._core.zeros(0, [6], "int32")
        values = np.arange(24, dtype=np.uint8)
        whole.write(values.ctypes.data, values.nbytes)
        bytes_of = whole.part("uint8", 5, [3])
        self.assertEqual((bytes_of.dtype, bytes_of.address), ("uint8", whole.address + 5))
        np.testing.assert_array_equal(read(bytes_of, NUMPY), [5, 6, 7])
        np.testing.assert_array_equal(read(whole.part("int64", 1, [2]), NUMPY), values[8:].view(np.int64))
        with self.assertRaisesRegex(epforge.Mismatch, "no int64 begins at address"):
            whole.part("int32", 1, [2]).part("int64", 0, [1])
        with self.assertRaisesRegex(epforge.Mismatch, "32 bytes lie outside a tensor of 24"):
            whole.part("int64", 0, [4])
        turned = whole.part("uint8", 0, [2, 3, 4], [12, 1, 3])
        np.testing.assert_array_equal(read(turned, NUMPY), values.reshape(2, 4, 3).swapaxes(1, 2))
        for strides in ([12, 2, 3], [12, 4], [24, 4, 1], [4, 8, 1]):
            with self.assertRaisesRegex(epforge.Mismatch, "do not lie side by side with strides"):
                whole.part("uint8", 0, [2, 3, 4], strides)
        with self.assertRaisesRegex(epforge.Mismatch, "there are no tensors of int4"):
            whole.part("int4", 0, [4])

    def test_a_foreign_tensor_is_given_back_once(self) -> None:
        array = np.zeros(4, np.float32)
        before = sys.getrefcount(array)
        taken = _core.take_dlpack(array.__dlpack__())
        self.assertGreater(sys.getrefcount(array), before)
        del taken
        self.assertEqual(sys.getrefcount(array), before)
        capsule = array.__dlpack__()
        kept = _core.take_dlpack(capsule)
        with self.assertRaises(ValueError):
            _core.take_dlpack(capsule)
        del kept, capsule
        self.assertEqual(sys.getrefcount(array), before)


class CommandLine(unittest.TestCase):
    """`python -m epforge`."""

    @staticmethod
    def run_it(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "epforge", *words], capture_output=True, text=True, timeout=120)

    def test_commands_run(self) -> None:
        done = self.run_it("list")
        self.assertEqual(done.returncode, 0)
        self.assertIn("nvl-dispatch", done.stdout)
        done = self.run_it("explain", "nvl-dispatch", "--ranks", "3")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.run_it("nothing")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unrecognized subcommand 'nothing'", done.stderr)


if __name__ == "__main__":
    unittest.main()
