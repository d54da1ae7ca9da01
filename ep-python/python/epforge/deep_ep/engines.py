"""The buffers below a facade: one for each shape that is called, made by all ranks when it is first used.

A facade's own buffer has no shape, and its handles go with rows of any type. So a handle here knows where
the tokens go, and is made anew on another buffer when rows of another type go its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from .. import buffer as calls
from .._core import Capture, Disagreement, Mismatch, TooLarge
from ..group import Group, brought_by_all
from ..low_latency import MOST_TOKENS, LowLatency
from ..results import Handle, Received
from ._torch import current_stream, has_gpu, require
from .knobs import LOG
from .layout import LocalLayout
from .shortage import Shortages
from .spread import SpreadBack
from .utils.event import EventHandle, EventOverlap

if TYPE_CHECKING:
    import torch

#: Ranks of a node, as size hints suppose.
NODE_RANKS = 8

#: Handles that a buffer has: layers of a model keep theirs until they go back.
HANDLES = 256

#: Low-latency calls of a kind that may be between their phases at once: two batches overlap.
BETWEEN = 2

#: Tokens that a buffer is made for at least, where nobody has said how many there are.
LEAST_TOKENS = 1024


class Shape(NamedTuple):
    """What a buffer is made for, but for the number of tokens."""

    hidden: int
    topk: int
    experts: int
    payload: str
    weights: bool
    biases: int = 0
    alignment: int = 1


#: What a dispatch leaves: the rows, the tables, and the counts if the host has waited for them.
Sent = tuple[Received, Handle, tuple[int, list[int]] | None]


@dataclass
class Way:
    """Where the tokens of a dispatch go: by experts, or by ranks alone, each an expert of its own."""

    topk_idx: torch.Tensor
    experts: int
    alignment: int = 1


class Engines:
    """The buffers of one facade, and the stream beside the caller's on which it may run."""

    def __init__(
        self, group: Any, comm: Any, timeout: float, shrinks: bool = False, live: int = 1, net: str | None = None
    ) -> None:
        distributed = require().distributed
        if group is not None:
            self.rank, self.ranks = group.rank(), group.size()

            def gather(value: Any) -> list[Any]:
                brought: list[Any] = [None] * self.ranks
                distributed.all_gather_object(brought, value, group=group)
                return brought
        elif comm is not None:
            self.rank, self.ranks, gather = comm.Get_rank(), comm.Get_size(), comm.allgather
        else:
            raise Mismatch("a buffer wants the `group` of its ranks, or an MPI `comm`")
        self.gather: Callable[[Any], list[Any]] = gather
        cuda = require().cuda
        device = cuda.current_device() if has_gpu() else None
        self.group = Group.from_gather(
            self.rank, gather=gather, device=device, net=net, timeout=timeout, leaves_out_absent=shrinks
        )
        self.nodes = self.group.nodes
        self.shrinks, self.live = shrinks, live
        self.stream = None if device is None else cuda.Stream()
        #: What an exponent of float32 counts, as a tensor: a call makes none, which a graph could hold.
        place = "cpu" if device is None else f"cuda:{device}"
        self.exponent_unit = require().tensor([1 << 23], device=place).to(require().int32)
        #: The numbers of the ranks.
        self.numbers = require().arange(self.ranks, device=place)
        self._made: dict[Shape, calls.Buffer] = {}
        # Between nodes, ranks share no memory.
        self._shortages = Shortages.of_node(gather, self.rank, self.ranks) if self.nodes == 1 else None
        #: Dispatches so far whose counts the host has waited for: as many on all ranks.
        self._counted = 0
        self._spread: WeakKeyDictionary[calls.Buffer, SpreadBack | None] = WeakKeyDictionary()
        self._low: dict[tuple[int, int, int, int, str], LowLatency] = {}
        self._layouts: dict[tuple[int, int], LocalLayout] = {}
        self._ends: dict[tuple[int, Any], torch.Tensor] = {}

    def sum_over_ranks(self, numbers: torch.Tensor) -> list[int]:
        """The sums over all ranks of a few numbers, on the host."""
        brought = brought_by_all(self.gather, "a layout", numbers.tolist())
        return [sum(column) for column in zip(*brought, strict=True)]

    def engine(self, shape: Shape, tokens: int, most: int) -> calls.Buffer:
        """The buffer for a shape, with room for ``most`` tokens. All ranks come here with the same shape and ``most``.

        If nobody says how many tokens there may be, it gets room for those that any rank has when it is made.
        """
        made = self._made.get(shape)
        if made is None:
            refuse_capture()
            brought = brought_by_all(self.gather, "a buffer for a new shape", (shape, tokens))
            for rank, (other, _) in enumerate(brought):
                if other != shape:
                    raise Disagreement(f"rank {rank} makes a buffer for {other}, and this one for {shape}")
            self._make(shape, max(most or LEAST_TOKENS, *(tokens for _, tokens in brought)))
        elif made.tokens < most:
            del made
            self._grow(shape, most)
        return self._made[shape]

    def dispatch(self, shape: Shape, tokens: int, most: int, arrays: tuple[Any, ...], sms: int | None) -> Sent:
        """A dispatch of rows, experts, weights and scales, whose counts the host waits for, of any number of tokens.

        If a rank has more tokens than the buffer holds, the buffers of all ranks grow before the rows are sent.
        """
        buffer = self.engine(shape, tokens, most)
        if self._shortages is None:
            need = max(self._numbers_of_all(tokens))
            if need <= buffer.tokens:
                return sent_by(buffer, arrays, sms)
        else:
            call, given = self._counted + 1, arrays
            if tokens > buffer.tokens:
                self._shortages.tell(call)
                # The others wait for this rank: it takes part in the call with no tokens.
                given = tuple(it if it is None else it[:0] for it in arrays)
            received, handle, _ = sent_by(buffer, given, sms)
            counts = handle.counts()
            self._counted = call
            if not self._shortages.any_in(call):
                return received, handle, counts
            del received, handle
            need = max(self._numbers_of_all(tokens))
        del buffer
        self._grow(shape, need)
        return sent_by(self._made[shape], arrays, sms)

    def _numbers_of_all(self, tokens: int) -> list[int]:
        """The tokens of each rank in a call."""
        if self.group.on_emulator:
            return brought_by_all(self.gather, "the tokens of a dispatch", tokens)
        return self.group._core.gather("agree on the tokens of a dispatch", tokens)

    def _grow(self, shape: Shape, need: int) -> None:
        """Makes a larger buffer for a shape. All ranks come here with the same numbers.

        Handles of earlier dispatches keep the smaller one.
        """
        refuse_capture()
        have = self._made[shape].tokens
        # A call that grows the buffer costs as much as thousands of others: some room is left for the next one.
        with_room = max(need, have + have // 4)
        del self._made[shape]
        self._make(shape, need, with_room)
        if self.rank == 0:
            made = self._made[shape]
            size = (sum(made.memory.values()) - made.memory["host"]) / 2**20
            LOG.warning(
                f"deep_ep: the buffer for {shape.payload} rows of {shape.hidden} values has grown from {have} to "
                f"{made.tokens} tokens a rank, and takes {size:.0f} MiB: a call had {need}"
            )

    def _make(self, shape: Shape, need: int, wanted: int = 0) -> None:
        """Makes the buffer for a shape, for ``wanted`` tokens if all ranks have memory for them, else for ``need``."""
        tokens = wanted or need
        lack = self._lack(shape, tokens)
        if lack and tokens > need:
            tokens = need
            lack = self._lack(shape, tokens)
        if lack:
            raise lack
        self._made[shape] = calls.Buffer(self.group, **options_of(shape, tokens, self.live))

    def _lack(self, shape: Shape, tokens: int) -> TooLarge | None:
        """What to raise if some rank has too little memory for a buffer. All ranks come here with the same numbers."""
        usage = calls.Buffer.bytes(self.ranks, nodes=self.nodes, **options_of(shape, tokens, self.live))
        need = sum(usage.values()) - usage["host"]
        left = self._least_left(need)
        if left is None or left[0] >= need:
            return None
        have, rank = left
        error = TooLarge(
            f"a buffer for {tokens} tokens a rank of {shape.hidden} values takes {need >> 20} MiB of each GPU, and "
            f"rank {rank} has {have >> 20} MiB left"
        )
        error.need, error.have = need, have
        return error

    def _least_left(self, need: int) -> tuple[int, int] | None:
        """The least memory that any GPU has left, and its rank; None in the emulator. All ranks come here together."""
        if self.group.on_emulator:
            return None
        every = self.group._core.gather("look for memory", free_memory(need))
        have = min(every)
        return have, every.index(have)

    def layout(self, topk: int, experts: int) -> LocalLayout:
        """What counts the tokens of this rank. No other rank takes part."""
        made = self._layouts.get((topk, experts))
        if made is None:
            refuse_capture()
            made = self._layouts[topk, experts] = LocalLayout(self.group, topk, experts)
        return made

    def spread_back(self, buffer: calls.Buffer) -> SpreadBack | None:
        """Combines of a row for each expert, by handles of a buffer; None if they take more than there is.

        All ranks come here with the same buffer.
        """
        if buffer not in self._spread:
            refuse_capture()
            need = SpreadBack.bytes(self.ranks, buffer.tokens, buffer.hidden, buffer.topk, buffer.experts)
            left = self._least_left(need) if buffer.tokens <= MOST_TOKENS else (0, 0)
            fits = left is None or left[0] >= need
            self._spread[buffer] = SpreadBack(buffer) if fits else None
            if not fits and self.rank == 0:
                LOG.warning(
                    f"deep_ep: sums that are rounded once come back by {buffer.topk} combines: one takes "
                    f"{need >> 20} MiB, for {MOST_TOKENS} tokens a rank at most"
                )
        return self._spread[buffer]

    def low_latency(self, tokens: int, hidden: int, topk: int, experts: int, payload: str, way: str) -> LowLatency:
        """The low-latency kernels for a shape and a way. All ranks come here with the same ones."""
        shape = (tokens, hidden, topk, experts, way)
        made = self._low.get(shape)
        if made is None:
            made = self._low[shape] = LowLatency(
                self.group,
                tokens=tokens,
                hidden=hidden,
                topk=topk,
                experts=experts,
                payload=payload,
                between=BETWEEN,
                way=way,
            )
        return made

    def drop(self) -> None:
        """Forgets all buffers, so that their memory goes with the last handle."""
        self._made.clear()
        self._layouts.clear()
        self._low.clear()
        self._spread.clear()

    def ends(self, experts: int, device: Any) -> torch.Tensor:
        """The expert behind the last one of each rank: the first ranks have one more where they are uneven."""
        made = self._ends.get((experts, device))
        if made is None:
            each, more = divmod(experts, self.ranks)
            ends = [(rank + 1) * each + min(rank + 1, more) for rank in range(self.ranks)]
            made = self._ends[experts, device] = require().tensor(ends, device=device)
        return made

    def ranks_of(self, experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank of each expert, and for each token whether a rank has one of its own; ``count`` is no expert."""
        # No expert is behind all ranks.
        owner = require().bucketize(experts, self.ends(count, experts.device), right=True)
        return owner, (owner[:, :, None] == self.numbers).any(1)

    def beside(self, previous: Any, is_async: bool, *inputs: Any) -> Beside:
        """Runs calls behind an event, on the stream beside the caller's where they may overlap with it."""
        if not is_async and previous is None:
            return Beside()
        event = previous.event if isinstance(previous, EventOverlap) else previous
        if self.stream is None or not (is_async or event):
            return Beside(is_async)
        return OnStream(self.stream, event, is_async, inputs)


def payload_of(use_fp8: bool, is_packed: bool) -> str:
    """The type of rows: bfloat16, or FP8 with a float32 or a power of two in a byte for each 128 values."""
    if not use_fp8:
        return "bf16"
    return "fp8-packed" if is_packed else "fp8"


def is_capturing() -> bool:
    """Whether torch captures a graph on the current stream."""
    return has_gpu() and bool(require().cuda.is_current_stream_capturing())


def refuse_capture() -> None:
    """Fails where torch captures a graph: memory and kernels are made outside of it."""
    if is_capturing():
        raise Capture(
            "the first call of a shape makes its buffer, which a graph cannot hold: make the call once before"
        )


def options_of(shape: Shape, tokens: int, live: int) -> dict[str, Any]:
    """The options of the buffer for a shape and so many tokens, of whose places for rows so many are in use at once.

    Rows are copied out before the call returns, and in as it begins, so that they need no places of their own.
    """
    more = {"tokens": tokens, "live": live, "handles": HANDLES, "shared_rows": True, "graphs_keep": False}
    return {**shape._asdict(), **more}


def bytes_of(ranks: int, tokens: int, hidden: int, topk: int, experts: int, use_fp8: bool, live: int) -> int:
    """Bytes of GPU memory of the buffer for a shape, on each of so many ranks."""
    shape = Shape(hidden, topk, experts, payload_of(use_fp8, False), weights=True)
    usage = calls.Buffer.bytes(ranks, **options_of(shape, tokens, live))
    return sum(usage.values()) - usage["host"]


def nodes_of(ranks: int) -> int:
    """On how many nodes of 8 so many ranks are, as size hints suppose."""
    return 1 if ranks <= NODE_RANKS or ranks % NODE_RANKS else ranks // NODE_RANKS


def network_bytes_of(ranks: int, nodes: int, shape: Shape, tokens: int) -> int:
    """Bytes of the rows of a shape's buffer that pass through a network, on each of so many ranks."""
    return calls.Buffer.network_bytes(ranks, nodes=nodes, **options_of(shape, tokens, live=1))


def sent_by(buffer: calls.Buffer, arrays: tuple[Any, ...], sms: int | None) -> Sent:
    """A dispatch of rows, experts, weights and scales."""
    x, ids, weights, scale = arrays
    return *buffer.dispatch(x, ids, weights, scale=scale, sms=sms), None


def free_memory(need: int) -> int:
    """Bytes of this process' GPU that are free; what torch keeps for later is given back if it is needed."""
    cuda = require().cuda
    if cuda.mem_get_info()[0] < need:
        cuda.empty_cache()
    return int(cuda.mem_get_info()[0])


class Beside:
    """Calls on the caller's stream: what they have made there, and their event when they are over, if it is wanted."""

    def __init__(self, is_async: bool = False) -> None:
        self.outputs: list[Any] = []
        self.done = EventOverlap()
        self._is_async = is_async

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_async and kind is None:
            self.done = EventOverlap(EventHandle())


class OnStream(Beside):
    """Calls on another stream than the caller's, behind an event or else behind the caller's."""

    def __init__(self, stream: Any, event: EventHandle | None, is_async: bool, inputs: tuple[Any, ...]) -> None:
        super().__init__(is_async)
        self._stream, self._event, self._inputs = stream, event, inputs
        self._caller: Any = None

    def __enter__(self) -> Beside:
        self._caller = current_stream()
        if self._event is not None and self._event.event is not None:
            self._stream.wait_event(self._event.event)
        else:
            self._stream.wait_stream(self._caller)
        require().cuda.set_stream(self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        done = EventHandle() if kind is None else None
        require().cuda.set_stream(self._caller)
        if done is None:
            return
        # Their memory is given to nobody else before both streams are done with it.
        for tensors, stream in ((self._inputs, self._stream), (self.outputs, self._caller)):
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(stream)
        if self._is_async:
            self.done = EventOverlap(done)
        else:
            done.current_stream_wait()


class FacadeHandle:
    """A dispatch on one rank, for buffers of any type of rows."""

    def __init__(self, engines: Engines, way: Way, tokens: int, most: int) -> None:
        self.engines, self.way, self.tokens, self.most = engines, way, tokens, most
        self._made: dict[Shape, Handle] = {}

    def send(self, x: Any, scale: Any, weights: Any, sms: int | None, is_counted: bool = False) -> Sent:
        """Sends rows this way; rows without weights go by the tables of an earlier dispatch, if there was one.

        If ``is_counted``, on all ranks, the host waits for the counts, and a rank may have more tokens than it said.
        """
        torch = require()
        payload = "bf16" if scale is None else "fp8"
        if scale is not None and scale.dtype == torch.int32:
            # Four powers of two in each word. A single column has any stride, which a view of bytes does not take.
            powers = scale.reshape(-1).view(torch.uint8)
            payload, scale = "fp8-packed", powers.view(scale.shape[0], 4 * scale.shape[1])
        for shape, handle in self._made.items():
            if weights is None and (shape.hidden, shape.payload) == (x.shape[1], payload):
                return handle.buffer.cached_dispatch(x, handle, scale=scale, sms=sms or None), handle, None
        shape, arrays = self._shape(x.shape[1], payload, weights is not None), (x, self.way.topk_idx, weights, scale)
        if is_counted:
            received, handle, counts = self.engines.dispatch(shape, self.tokens, self.most, arrays, sms or None)
            # Later calls with this handle need as much room, which all ranks know now.
            if self.most < handle.buffer.tokens:
                self.most = handle.buffer.tokens
        else:
            buffer = self.engines.engine(shape, self.tokens, self.most)
            received, handle, counts = sent_by(buffer, arrays, sms or None)
        self._made[shape] = handle
        return received, handle, counts

    def rows_there(self) -> torch.Tensor:
        """``int32[tokens, topk]``: the row of an entry's token in the output of its expert's rank; -1 for none."""
        torch = require()
        spot = torch.where(self.way.topk_idx < 0, self.way.experts, self.way.topk_idx)
        owner, in_rank = self.engines.ranks_of(spot, self.way.experts)
        before = in_rank.cumsum(0) - in_rank.long()
        # Tables of any buffer say the same of this way.
        first = next(iter(self._made.values())).rank_prefix[self.engines.rank]
        rows = (first + before).gather(1, owner.clamp(max=self.engines.ranks - 1))
        return torch.where(spot < self.way.experts, rows, -1).to(torch.int32)

    def handle(self, hidden: int, weights: bool, biases: int) -> Handle:
        """Tables for a combine: those of a dispatch if its rows had the same length, else new ones."""
        for shape, handle in self._made.items():
            if shape.hidden == hidden and shape.biases == biases and (shape.weights or not weights):
                return handle
        torch = require()
        shape = self._shape(hidden, "bf16", weights, biases)
        buffer = self.engines.engine(shape, self.tokens, self.most)
        device = self.way.topk_idx.device
        x = torch.zeros((self.tokens, hidden), dtype=torch.bfloat16, device=device)
        factors = torch.zeros(self.way.topk_idx.shape, dtype=torch.float32, device=device) if weights else None
        _, handle = buffer.dispatch(x, self.way.topk_idx, factors)
        self._made[shape] = handle
        return handle

    def _shape(self, hidden: int, payload: str, weights: bool, biases: int = 0) -> Shape:
        topk = self.way.topk_idx.shape[1]
        return Shape(hidden, topk, self.way.experts, payload, weights, biases, self.way.alignment)


def require_handle(handle: Any, kind: type, call: str) -> None:
    """Refuses what a call did not give as its handle."""
    if not isinstance(handle, kind):
        raise Mismatch(f"the handle is a {type(handle).__name__}, and no result of `{call}`")


def biases_of(bias: Any) -> tuple[Any, ...]:
    """None, one or several tensors as a tuple."""
    return () if bias is None else tuple(bias) if isinstance(bias, (tuple, list)) else (bias,)


def as_sent(came: Any, sent: Any) -> Any:
    """Scales that came in the type of those that were sent: four bytes are a word of the caller's."""
    return came if came is None or came.dtype == sent.dtype else came.view(sent.dtype)
