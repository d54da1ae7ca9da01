"""Low-latency calls as they are made for tensors on a GPU, on a stand-in for one: what the host does of them.

Its tensors are on the host, and its kernels note what they are given. `python torch_host.py --times` says how long
calls take there, and looks at their results: what a call costs the host beside its launch.
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import epforge
from epforge import _core
from epforge.arrays import TORCH
from epforge.caller import Caller
from epforge.deep_ep import ElasticBuffer, engines, handles
from epforge.deep_ep.engines import Engines, Shape
from epforge.deep_ep.legacy import Buffer
from epforge.deep_ep.low_latency import LowLatencyCalls
from epforge.deep_ep.shortage import Shortages
from epforge.low_latency import LEAST_SMS, strides_of

RANKS, TOKENS, HIDDEN, TOPK, EXPERTS = 2, 8, 256, 3, 6
LOCAL, ROWS = EXPERTS // RANKS, RANKS * TOKENS

#: What torch calls the host among its devices.
HOST = -1


class Kernels:
    """Kernels of any class, which note their calls."""

    local_experts = LOCAL
    device_bytes = 0
    #: Scales of a row.
    blocks = HIDDEN // 128

    def __init__(self, group: Any, numbers: list[int], form: str, *more: Any) -> None:
        if form == "fp4":
            raise _core.Mismatch("payload `fp4` is none of bf16, fp8, fp8-packed")
        self.form = form
        dtype, shape = {"fp8": "float32", "fp8-packed": "uint8"}.get(form), [LOCAL, ROWS, self.blocks]
        strides = [math.prod(shape[1:]), 1, ROWS] if form == "fp8" else None
        begin = 0 if dtype is None else math.prod(shape)
        self.tables = [
            ("counts", "int32", begin, [LOCAL], None),
            ("src_info", "int32", begin + LOCAL, [LOCAL, ROWS], None),
            ("range_first", "int32", begin + LOCAL + LOCAL * ROWS, [LOCAL, RANKS], None),
            ("range_count", "int32", begin + LOCAL + LOCAL * ROWS + LOCAL * RANKS, [LOCAL, RANKS], None),
        ]
        if dtype is not None:
            self.tables.append(("scale", dtype, 0, shape, strides))
        self.calls: list[tuple[Any, ...]] = []

    def send(self, *given: Any) -> Any:
        self.calls.append(given)
        # The phases of a call per expert may be launched apart.
        return SimpleNamespace(recv=self.calls.append) if True in given else None

    def send_back(self, *given: Any) -> None:
        self.calls.append(given)

    def send_tensors(self, *given: Any) -> None:
        """Nothing, as for tensors of another kind: how those are looked at is what GPUs show."""

    send_back_tensors = send_tensors


class Silent(Kernels):
    """The same without notes, whose memory would be timed."""

    def send(self, *given: Any) -> None:
        pass

    send_back = send


class Tables:
    """A buffer's kernels, a handle and an output in one, of a dispatch whose counts are there at once."""

    rank, tokens, capacity, local_experts, is_cached = 0, TOKENS, ROWS, LOCAL, False
    memory = (0, 0, 0, 0, 0)

    def __init__(self, group: Any, options: dict[str, Any]) -> None:
        self.copied: list[tuple[Any, ...]] = []

    def counts(self) -> tuple[int, list[int]]:
        return TOKENS, [TOKENS // LOCAL] * LOCAL

    def dispatch_tensors(self, *given: Any) -> Any:
        return self, self

    def cached_dispatch(self, core: Any, sent: Any, call: Any) -> Any:
        return self

    def rank_prefix(self) -> Any:
        return torch.tensor([[0, 0], [5, 0], [TOKENS, 0]], dtype=torch.int32)

    def sources(self) -> Any:
        return SimpleNamespace(first=lambda rows: torch.arange(rows, dtype=torch.int32)[:, None])

    def copy_to(self, *given: Any) -> None:
        self.copied.append(given)
        if given[3]:
            # The first local expert in each entry.
            ctypes.memset(given[3], 0, 8 * given[0] * TOPK)


class StandIn:
    """The ranks of a group of which this process has the first one."""

    ranks, nodes, local, on_emulator, writes_to_cards = RANKS, 1, (0, 1), False, False

    def device(self, rank: int) -> int:
        return HOST

    def sms(self, rank: int) -> int:
        return 132

    def leave_out(self, rank: int, is_out: bool) -> None:
        pass


def made(**options: Any) -> epforge.LowLatency:
    """Calls of the stand-in."""
    shape = {"tokens": TOKENS, "hidden": HIDDEN, "topk": TOPK, "experts": EXPERTS}
    return epforge.LowLatency(epforge.Group(StandIn()), **shape, **options)


class Place:
    """Makes a program take the host for a GPU."""

    def __init__(self, kernels: type) -> None:
        names = ("LowLatencyDispatcher", "LowLatencyCombiner", "PerRankKernels")
        self.patches = [mock.patch.object(_core, name, kernels) for name in names]
        self.patches.append(mock.patch.dict(TORCH._places, {HOST: torch.device("cpu")}))
        self.patches.append(mock.patch.object(type(TORCH), "stream", lambda self, device: 0))
        self.patches.append(mock.patch.object(Caller, "_require_here", lambda self, rank, where, name: None))

    def __enter__(self) -> None:
        for patch in self.patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


class Facade(LowLatencyCalls):
    """The first API of deep_ep for such calls."""

    def __init__(self, payload: str, way: str = "per-expert") -> None:
        self.low = made(payload=payload, way=way)

    def _engines(self) -> Any:
        unit = torch.tensor([1 << 23], dtype=torch.int32)
        calls = {"low_latency": lambda *shape: self.low, "group": self.low.group, "exponent_unit": unit}
        return SimpleNamespace(**calls, nodes=1, shrinks=False)


def facade_of_rows() -> Buffer:
    """The first API of deep_ep for calls with rows of any number."""
    made, whole = Engines.__new__(Engines), Buffer.__new__(Buffer)
    made.rank, made.ranks, made.nodes, made.live = 0, RANKS, 1, 1
    made.group, made.gather, made.stream = epforge.Group(StandIn()), lambda value: [value] * RANKS, None
    made._shortages, made._counted, made._made = Shortages(memoryview(bytearray(8 * RANKS)).cast("Q"), 0), 0, {}
    whole.engines, whole.rank, whole.group_size, whole._rooms = made, 0, RANKS, {HIDDEN: TOKENS}
    return whole


def calls_in(call: Callable[[], Any]) -> int:
    """How many functions a call makes the interpreter enter, those in C too."""
    entered = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    # The last one ends the count.
    return entered - 1


class Kinds(TorchDispatchMode):
    """Notes the operations of torch that are more than another look at memory."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not call.is_view:
            self.launched.append(call.overloadpacket.__name__)
        return call(*args, **(kwargs or {}))


def drawn(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, experts and weights."""
    ids = torch.rand(tokens, EXPERTS).topk(TOPK, dim=1).indices
    return torch.randn(tokens, HIDDEN).to(torch.bfloat16), ids, torch.rand(tokens, TOPK)


class Calls(unittest.TestCase):
    """What kernels are given, and what becomes of it."""

    def setUp(self) -> None:
        place = Place(Kernels)
        place.__enter__()
        self.addCleanup(place.__exit__)

    def test_kernels_are_given_where_tensors_are(self) -> None:
        x, ids, weights = drawn(5)
        for payload, values in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)):
            low = made(payload=payload)
            packed = low.dispatch(x, ids)
            (sender,), (combiner,) = low._dispatchers[payload], low._combiner("bf16")
            rank, tokens, at, ids_at, rows_at, left_at, added, later, how = sender.calls[0]
            self.assertEqual((rank, tokens, at, ids_at), (0, 5, (x.data_ptr(), HIDDEN, 1), ids.data_ptr()))
            self.assertEqual((added, later, how), ((0, 0, 0, 0), False, (1, LEAST_SMS, None, 0, 0)))
            self.assertEqual((packed.x.shape, packed.x.dtype), ((LOCAL, ROWS, HIDDEN), values))
            self.assertEqual(rows_at, packed.x.data_ptr())
            self.assertEqual(packed.scale is None, payload == "bf16")
            for name, dtype, first, shape, strides in sender.tables:
                table = getattr(packed, name)
                self.assertEqual((list(table.shape), table.data_ptr()), (shape, left_at + 4 * first))
                self.assertEqual(
                    (table.dtype, list(table.stride())), (getattr(torch, dtype), strides or strides_of(shape))
                )
            tables = packed.counts.data_ptr()
            rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
            sums = low.combine(rows, packed, weights)
            given = (0, 5, rows.data_ptr(), ids.data_ptr(), weights.data_ptr(), sums.x.data_ptr(), tables, 0)
            self.assertEqual(combiner.calls[0][:-1], (*given, (0, 0, 1), False))
            self.assertEqual((sums.x.shape, sums.x.dtype), ((5, HIDDEN), torch.bfloat16))

    def test_per_rank(self) -> None:
        x, ids, weights = drawn(5)
        for ahead in (False, True):
            low = made(way="per-rank", weights_ahead=ahead)
            packed = low.dispatch(x, ids, weights if ahead else None)
            out = torch.zeros(5, HIDDEN, dtype=torch.bfloat16)
            rows = torch.zeros(packed.x.shape, dtype=torch.bfloat16)
            sums = low.combine(rows, packed, None if ahead else weights, out=out)
            there, back = low._whole["bf16"].calls
            places = ((x.data_ptr(), HIDDEN, 1), ids.data_ptr(), weights.data_ptr() if ahead else 0)
            self.assertEqual(there[:7], (0, 5, *places, packed.x.data_ptr(), packed.counts.data_ptr()))
            self.assertEqual(back[:5], (0, 5, rows.data_ptr(), 0 if ahead else weights.data_ptr(), out.data_ptr()))
            self.assertIs(sums.x, out)
            self.assertFalse(low._dispatchers or low._combiners)

    def test_the_facade(self) -> None:
        x, ids, weights = drawn(5)
        for payload in ("bf16", "fp8"):
            facade = Facade(payload)
            how = {"use_fp8": payload == "fp8"}
            came, counts, handle, _, _ = facade.low_latency_dispatch(x, ids.int(), TOKENS, EXPERTS, **how)
            (sender,), (combiner,) = facade.low._dispatchers[payload], facade.low._combiner("bf16")
            if payload == "fp8":
                other = facade.low_latency_dispatch(x, ids, TOKENS, EXPERTS)[0][1]
                self.assertNotEqual(other.data_ptr(), came[1].data_ptr())
                self.assertEqual(came[1].data_ptr(), sender.calls[0][5])
                self.assertEqual((came[1].shape, came[1].stride()), ((LOCAL, ROWS, 2), (2 * ROWS, 1, ROWS)))
                came = came[0]
            first = sender.tables[0][2]
            self.assertEqual((came.data_ptr(), counts.data_ptr() - 4 * first), sender.calls[0][4:6])
            rows, out = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16), torch.zeros_like(x)
            for given in (None, out):
                sums, _, hook = facade.low_latency_combine(
                    rows, ids, weights, handle, out=given, return_recv_hook=given is None
                )
                hook()
                self.assertEqual((sums.shape, sums.data_ptr()), ((5, HIDDEN), combiner.calls[-1 - (given is None)][5]))
            self.assertIs(sums, out)
            # Rows that are left in place are read where they are.
            left = handle.next_input = torch.zeros_like(rows)
            facade.low_latency_combine(rows, ids, weights, handle, zero_copy=True)
            self.assertEqual(combiner.calls[-1][2], left.data_ptr())

    @mock.patch.object(Kernels, "blocks", 4)
    def test_scales_that_are_powers_of_two_take_one_kernel(self) -> None:
        x, ids, _ = drawn(5)
        wide = x.repeat(1, 2)
        for packs, kind in ((False, torch.float32), (True, torch.int32)):
            facade = Facade("fp8-packed")
            facade.low.hidden = 2 * HIDDEN
            how = {"round_scale": True, "use_ue8m0": packs, "return_recv_hook": True}
            (_, scale), _, handle, _, hook = facade.low_latency_dispatch(wide, ids, TOKENS, EXPERTS, **how)
            exponents = handle.packed.arriving("scale")
            exponents.copy_(torch.randint(100, 150, exponents.shape, dtype=torch.uint8))
            with Kinds() as kinds:
                hook()
            self.assertEqual(kinds.launched, ["copy_" if packs else "mul"])
            wanted = exponents.view(torch.int32) if packs else torch.exp2(exponents.float() - 127)
            self.assertEqual((scale.dtype, scale.stride(1)), (kind, 1))
            self.assertTrue(torch.equal(scale, wanted))

    def test_statistics_and_waits(self) -> None:
        low = made()
        x, ids, weights = drawn(5)
        statistics, waits = torch.zeros(LOCAL, dtype=torch.int32), torch.zeros(RANKS, dtype=torch.int64)
        packed = low.dispatch(x, ids, statistics=statistics, waits=waits)
        low.dispatch(x, ids, waits=waits)
        rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
        low.combine(rows, packed, weights, waits=waits)
        both, one = (call[6][:2] for call in low._dispatchers["bf16"][0].calls)
        self.assertEqual((both, one), ((statistics.data_ptr(), waits.data_ptr()), (0, waits.data_ptr())))
        self.assertEqual(low._combiner("bf16")[0].calls[0][7], waits.data_ptr())

    def test_results_stay_while_somebody_has_them(self) -> None:
        low = made(payload="fp8")
        x, ids, weights = drawn(5)
        packed = low.dispatch(x, ids)
        views = [packed.x.view(torch.uint8)[1], packed.scale[2, 3:], packed.counts, packed.src_info[1:]]
        rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
        views.append(low.combine(rows, packed, weights).x[2:])
        for view in views:
            view.fill_(7)
        del packed
        for _ in range(4):
            later = low.dispatch(x, ids)
            sums = low.combine(rows, later, weights)
            for array in (later.x.view(torch.uint8), later.scale, later.counts, later.src_info, sums.x):
                array.fill_(3)
        self.assertTrue(all((view == 7).all() for view in views))

    def test_calls_of_other_payloads_and_numbers_of_tokens(self) -> None:
        for way in ("per-expert", "per-rank"):
            low = made(way=way)
            for tokens, payload in ((3, "bf16"), (0, "fp8"), (8, "fp8-packed"), (3, "fp8")):
                x, ids, weights = drawn(tokens)
                packed = low.dispatch(x, ids, payload=payload)
                rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
                self.assertEqual(low.combine(rows, packed, weights).x.shape, (tokens, HIDDEN))
                scales = {"bf16": None, "fp8": torch.float32, "fp8-packed": torch.uint8}[payload]
                self.assertEqual(None if packed.scale is None else packed.scale.dtype, scales)
            with self.assertRaisesRegex(epforge.Mismatch, "payload `fp4` is none of bf16, fp8, fp8-packed"):
                low.dispatch(x, ids, payload="fp4")

    def test_kernels_take_turns_until_a_rank_comes_back(self) -> None:
        low = made(between=2)
        x, ids, weights = drawn(5)
        rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
        senders, combiners = low._dispatchers["bf16"], low._combiner("bf16")

        def numbers() -> list[int]:
            return [len(kernel.calls) for kernel in (*senders, *combiners)]

        for wanted in ([1, 0, 1, 0], [1, 1, 1, 1], [2, 1, 2, 1]):
            low.combine(rows, low.dispatch(x, ids), weights)
            self.assertEqual(numbers(), wanted)
        low.group.leave_out(1)
        low.group.leave_out(1, is_out=False)
        low.combine(rows, low.dispatch(x, ids), weights)
        self.assertEqual(numbers(), [3, 1, 3, 1])

    def test_kernels_that_all_ranks_make_are_there_before_one_is_left_out(self) -> None:
        low = made(way="per-rank")
        x, ids, weights = drawn(5)
        packed = low.dispatch(x, ids)
        rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
        low.group.leave_out(1)
        said = "rank 1 is left out, and kernels are made by all ranks together: make such a call before that"
        for call in (lambda: low.combine(rows, packed, weights), lambda: low.dispatch(x, ids, payload="fp8")):
            with self.assertRaises(epforge.Mismatch) as caught:
                call()
            self.assertEqual(str(caught.exception), said)

    def test_what_nobody_received_comes_before_its_kernels_next_call(self) -> None:
        low = made()
        x, ids, _ = drawn(5)
        first = low.dispatch(x, ids, later=True)
        with self.assertRaisesRegex(epforge.Mismatch, "the rows are on their way: `receive` them first"):
            first.x  # noqa: B018 looking is the call
        second = low.dispatch(x, ids, later=True)
        self.assertTrue(first.is_here and not second.is_here)
        second.receive()
        self.assertTrue(second.is_here)
        self.assertEqual(len(low._dispatchers["bf16"][0].calls), 4)

    def test_what_does_not_fit_is_refused_in_words(self) -> None:
        low = made()
        x, ids, weights = drawn(4)
        packed = low.dispatch(x, ids)
        rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
        for wanted, call in (
            ("`x` has elements of float32, and has to have bfloat16", lambda: low.dispatch(x.float(), ids)),
            ("`x` is [4, 128], and has to have rows of 256", lambda: low.dispatch(x[:, :128], ids)),
            ("`topk_idx` has extents [3, 3], and needs [4, 3]", lambda: low.dispatch(x, ids[:3])),
            ("`topk_idx` has gaps between its rows: make it contiguous", lambda: low.dispatch(x, ids.T.contiguous().T)),
            ("`statistics` has extents [2], and needs [3]", lambda: low.dispatch(x, ids, statistics=ids.int()[0, :2])),
            (
                "`waits` has elements of int32, and has to have int64",
                lambda: low.dispatch(x, ids, waits=ids.int()[0, :2]),
            ),
            ("`topk_weights` have to come with the combine", lambda: low.combine(rows, packed)),
            (
                "`rows` has extents [3, 16, 128], and needs [3, 16, 256]",
                lambda: low.combine(rows[..., :128], packed, weights),
            ),
            ("`out` has extents [3, 256], and needs [4, 256]", lambda: low.combine(rows, packed, weights, out=x[:3])),
        ):
            with self.assertRaises(epforge.Mismatch) as caught:
                call()
            self.assertEqual(str(caught.exception), wanted)


class Rows(unittest.TestCase):
    """What a dispatch of the first API costs the host."""

    def setUp(self) -> None:
        place = Place(Kernels)
        place.patches.append(mock.patch.object(_core, "Buffer", Tables))
        place.patches.append(mock.patch.object(Engines, "_lack", lambda *_: None))
        place.__enter__()
        self.addCleanup(place.__exit__)
        self.facade = facade_of_rows()

    def test_a_dispatch_enters_few_functions(self) -> None:
        x, ids, weights = drawn(TOKENS)
        config, layout = Buffer.get_dispatch_config(RANKS), (torch.ones(TOKENS, RANKS).bool(), torch.zeros(EXPERTS))

        def fresh() -> Any:
            return self.facade.dispatch(x, None, None, None, *layout, ids, weights, config=config)

        handle = fresh()[4]
        cached = {"x": x, "handle": handle, "config": config}
        with Kinds() as kinds:
            came, its_ids, its_weights, counts, _, _ = fresh()
        self.assertEqual(kinds.launched, ["clone", "empty", "empty", "empty"])
        self.assertEqual((came.shape, came.dtype), ((TOKENS, HIDDEN), torch.bfloat16))
        self.assertEqual((its_ids.dtype, its_weights.dtype, counts), (torch.int64, torch.float32, [2, 2, 2]))
        places = ((came.data_ptr(), HIDDEN, 1), (0, 0, 1), its_ids.data_ptr(), its_weights.data_ptr())
        made = next(iter(self.facade._engines()._made.values()))
        self.assertEqual(made._core.copied[-1][:-1], (TOKENS, *places))
        self.assertLess(calls_in(fresh), 62)
        self.assertLess(calls_in(lambda: self.facade.dispatch(**cached)), 52)

    def test_a_handle_of_the_second_api_makes_what_is_read(self) -> None:
        buffer = ElasticBuffer.__new__(ElasticBuffer)
        buffer.engines, buffer.num_ranks, buffer.rank_idx = self.facade.engines, RANKS, 0
        buffer.num_max_tokens_per_rank, buffer.allow_multiple_reduction = TOKENS, True
        x, ids, weights = drawn(TOKENS)
        shown = mock.patch.object(Caller, "_shown", lambda self, tensor, library: tensor)

        def handle() -> Any:
            return buffer.dispatch(x, ids, weights, num_experts=EXPERTS, do_cpu_sync=False)[3]

        handle()
        with shown, Kinds() as kinds:
            made = handle()
            self.assertEqual(kinds.launched, ["clone", "empty", "empty", "empty"])
            self.assertEqual(made.psum_num_recv_tokens_per_scaleup_rank.tolist(), [5, TOKENS])
        self.assertLess(len(kinds.launched), 8)
        with shown:
            self.assertIs(made.recv_src_metadata, made.recv_src_metadata)
            with mock.patch.object(handles, "is_capturing", lambda: True):
                made = handle()
                inside = made.psum_num_recv_tokens_per_expert
            # The next replay changes what was read inside, and not what is read here.
            self.assertIs(made.psum_num_recv_tokens_per_expert, inside)
            self.assertIsNot(made.recv_src_metadata, made.recv_src_metadata)


class Captures(unittest.TestCase):
    """What a graph cannot hold."""

    def test_a_buffer_is_made_before_a_capture(self) -> None:
        made = Engines.__new__(Engines)
        made._made = {}
        shape = Shape(HIDDEN, TOPK, EXPERTS, "bf16", weights=True)
        captured = mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True)
        refused = self.assertRaisesRegex(epforge.Capture, "which a graph cannot hold: make the call once before")
        with mock.patch.object(engines, "has_gpu", lambda: True), captured, refused:
            made.engine(shape, TOKENS, TOKENS)


def microseconds(call: Callable[[], Any]) -> float:
    """The least mean of many calls one after another, each with the end of what the one before it left."""
    least, count = float("inf"), 500
    for _ in range(60):
        begun = time.perf_counter()
        for _ in range(count):
            call()
        least = min(least, (time.perf_counter() - begun) * 1e6 / count)
    return least


def say_times() -> None:
    torch.set_num_threads(1)
    x, ids, weights = drawn(TOKENS)
    rows = torch.zeros(LOCAL, ROWS, HIDDEN, dtype=torch.bfloat16)
    with Place(Silent):
        for way in ("per-expert", "per-rank"):
            for payload in ("bf16", "fp8"):
                low = made(way=way, payload=payload)
                packed = low.dispatch(x, ids)
                facade, how = Facade(payload, way), {"use_fp8": payload == "fp8"}
                handle = facade.low_latency_dispatch(x, ids, TOKENS, EXPERTS, **how)[2]
                calls = {
                    "dispatch": lambda low=low: low.dispatch(x, ids),
                    "combine": lambda low=low, packed=packed: low.combine(rows, packed, weights),
                    "x": lambda packed=packed: packed.x,
                    "counts": lambda packed=packed: packed.counts,
                    "facade dispatch": lambda it=facade, how=how: it.low_latency_dispatch(
                        x, ids, TOKENS, EXPERTS, **how
                    ),
                    "facade combine": lambda it=facade, handle=handle: it.low_latency_combine(
                        rows, ids, weights, handle
                    ),
                }
                times = ", ".join(f"{name} {microseconds(call):.2f}" for name, call in calls.items())
                print(f"{way} {payload} in us: {times}", flush=True)


if __name__ == "__main__":
    if "--times" in sys.argv:
        say_times()
    else:
        unittest.main()
