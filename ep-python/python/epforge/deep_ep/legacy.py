"""The first API of deep_ep: `Buffer`, within one node and between nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .._core import Mismatch
from ..arrays import Found
from ..results import Handle
from ._torch import own_experts, require
from .engines import (
    Engines,
    FacadeHandle,
    Shape,
    Way,
    as_sent,
    biases_of,
    bytes_of,
    network_bytes_of,
    nodes_of,
    payload_of,
    require_handle,
)
from .knobs import CHUNKS, NODES, net_with_queues, tell_of_ignored, tell_once
from .low_latency import LowLatencyCalls
from .utils.event import EventHandle, EventOverlap

if TYPE_CHECKING:
    import torch

#: Tokens that size hints are for.
HINTED_TOKENS = 4096

#: Tokens of a rank that a buffer has room for at first, at most: bytes for many narrow rows would make large tables.
MOST_AT_FIRST = 8192


@dataclass(frozen=True)
class Config:
    """How a call runs. Only the number of SMs has a meaning here; the log names each other number that is set, once."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        chunks = [it for it in fields(self) if "chunked" in it.name]
        tell_of_ignored(CHUNKS, **{it.name: (getattr(self, it.name), it.default) for it in chunks})

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for the rows of 4096 tokens on each rank: those that come, and those that go back.

        Within a node both are in one place. More than 8 ranks are on nodes of 8.
        """
        return HINTED_TOKENS * num_ranks * hidden_bytes * (1 if nodes_of(num_ranks) == 1 else 2)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the rows that pass through the network, beside those bytes; none within a node.

        The plan of dispatch and combine says how many: for top-8 of 8 experts on each rank.
        """
        nodes = nodes_of(num_ranks)
        if nodes == 1:
            return 0
        shape = Shape(-(-hidden_bytes // 32) * 16, 8, 8 * num_ranks, payload_of(False, False), weights=True)
        return network_bytes_of(num_ranks, nodes, shape, HINTED_TOKENS)


class DispatchHandle:
    """What `Buffer.dispatch` leaves, in the form of the tuple that others read it as."""

    def __init__(self, sent: FacadeHandle, tables: Handle, in_rank: torch.Tensor, rows: int) -> None:
        self.sent, self.tables, self.in_rank, self.rows = sent, tables, in_rank, rows
        self._is_far = sent.engines.nodes > 1
        # Where deep_ep has what programs read; the other entries are tables of its kernels.
        self._length, self._in_rank_at, self._ends_at = (10, 0, 6) if self._is_far else (6, 4, 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int) -> Any:
        at = range(self._length)[operator.index(at)]
        if at == self._in_rank_at:
            return self.in_rank
        if at != self._ends_at:
            return None
        # Where the rows of each rank end: on all ranks, or between nodes on this one.
        ends = self.tables.rank_prefix[1:]
        return ends[:, self.tables.rank] if self._is_far else ends

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(self._length))


class Buffer(LowLatencyCalls):
    """Dispatch and combine of `deep_ep.Buffer`: any hidden size, top-k, number of experts, ranks and tokens.

    Results are tensors of their own, not views, so that layers may share a buffer and keep what they want.
    ``num_nvl_bytes`` is what the rows of a shape may take at first. When a call has more tokens than fit, the buffers
    of all ranks grow.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: torch.distributed.ProcessGroup | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        net = net_with_queues(num_qps_per_rank)
        nvlink = (allow_nvlink_for_low_latency_mode, True)
        fabrics = {"allow_mnnvl": (allow_mnnvl, False), "use_fabric": (use_fabric, False)}
        tell_of_ignored(NODES, allow_nvlink_for_low_latency_mode=nvlink, **fabrics)
        self.engines: Engines | None = Engines(group, comm, timeout=100.0, shrinks=enable_shrink, net=net)
        self.rank, self.group_size = self.engines.rank, self.engines.ranks
        self.group = group if group is not None else comm
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self.enable_shrink = enable_shrink
        #: Tokens of a rank for which the bytes suffice, by the values in a row.
        self._rooms: dict[int, int] = Found(self._room)
        #: What `get_local_buffer_tensor` gives, once it was called.
        self._plain: dict[bool, torch.Tensor] = {}

    @staticmethod
    def bytes(
        num_ranks: int, num_tokens: int, hidden: int, num_topk: int, num_experts: int, use_fp8: bool = False
    ) -> int:
        """Bytes of GPU memory that dispatch and combine take for so many tokens a rank, before a buffer is made.

        This is for rows of one type; those of another type take memory of their own when they are first sent.
        """
        return bytes_of(num_ranks, num_tokens, hidden, num_topk, num_experts, use_fp8, live=1)

    def prepare(
        self,
        num_tokens: int,
        hidden: int,
        num_topk: int,
        num_experts: int,
        use_fp8: bool = False,
        use_ue8m0: bool = False,
        expert_alignment: int = 1,
    ) -> None:
        """Makes the kernels and the memory for dispatch and combine of a shape, so that the first call does not.

        Only dispatches with weights use what is prepared. There is room for ``num_tokens`` tokens of each rank, and for
        more if `num_nvl_bytes` suffice. All ranks make this call with the same numbers, before they capture a graph or
        measure free memory.
        """
        payload = payload_of(use_fp8, use_ue8m0)
        shape = Shape(hidden, num_topk, num_experts, payload, weights=True, alignment=expert_alignment)
        self._engines().engine(shape, num_tokens, max(num_tokens, self._rooms[hidden]))
        self._engines().layout(num_topk, num_experts)

    def destroy(self) -> None:
        """Gives the memory back, whether or not the buffer was made to be destroyed."""
        if self.engines is not None:
            self.engines.drop()
        self.engines = None
        self._plain.clear()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether kernels use what sm_90 has: they are compiled for the GPU that is there."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """How many SMs calls take that are not told by a `Config`."""
        if new_num_sms < 1:
            raise Mismatch(f"a call cannot take {new_num_sms} SMs")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event at the end of the current stream."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream on which calls with `async_finish` run."""
        stream = self._engines().stream
        if stream is None:
            raise Mismatch("the emulator has no streams")
        return stream

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: torch.Size | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """Plain memory of as many bytes as the buffer was made with, zero at first, which no call here uses.

        All of it from byte ``offset`` on, or the first elements in a shape.
        """
        torch = require()
        if use_rdma_buffer not in self._plain:
            count = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            told = f"`get_local_buffer_tensor` makes a tensor of {count} bytes, which no dispatch and no combine reads"
            tell_once("get_local_buffer_tensor", told)
            device = self._engines().group.device()
            place = "cpu" if device is None else f"cuda:{device}"
            self._plain[use_rdma_buffer] = torch.zeros(count, dtype=torch.uint8, device=place)
        plain = self._plain[use_rdma_buffer][offset:]
        whole = plain[: len(plain) // dtype.itemsize * dtype.itemsize].view(dtype)
        if size is None:
            return whole
        count = math.prod(size)
        if count > len(whole):
            raise Mismatch(
                f"{list(size)} elements of {dtype} from byte {offset} on are more than the {len(whole)} there"
            )
        return whole[:count].view(*size)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """As many SMs as `set_num_sms` says, for any number of ranks."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """As many SMs as `set_num_sms` says, for any number of ranks."""
        return Config(Buffer.num_sms)

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Tokens for each rank and each node, entries for each expert, which token goes to which rank, and an event.

        Within one node there are no tokens for each node, but None.
        """
        engines = self._engines()
        with engines.beside(previous_event, async_finish, topk_idx) as calls:
            made = calls.outputs = engines.layout(topk_idx.shape[1], num_experts).of(topk_idx)
        per_rank, per_node, per_expert, in_rank = made
        return per_rank, per_node if engines.nodes > 1 else None, per_expert, in_rank, calls.done

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: DispatchHandle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, list[int] | None, DispatchHandle | None, EventOverlap]:
        """Rows to the ranks of their experts: what came, its experts and weights, counts, a handle, an event."""
        engines, sms = self._engines(), config.num_sms if config else Buffer.num_sms
        rows, scale = x if isinstance(x, tuple) else (x, None)
        if handle is None:
            if is_token_in_rank is None or num_tokens_per_expert is None:
                raise Mismatch("a dispatch without a `handle` wants `is_token_in_rank` and `num_tokens_per_expert`")
            if topk_weights is not None and topk_idx is None:
                raise Mismatch("`topk_weights` come with `topk_idx`")
            if engines.nodes > 1:
                self._check_nodes(num_tokens_per_rdma_rank)
        else:
            require_handle(handle, DispatchHandle, "dispatch")
            if topk_idx is not None or topk_weights is not None:
                raise Mismatch(
                    "a dispatch with a `handle` sends rows alone: it has no `topk_idx` and no `topk_weights`"
                )
        # Where there are experts, a call reads nothing else of a layout.
        layout = () if topk_idx is not None else (is_token_in_rank, num_tokens_per_expert)
        with engines.beside(previous_event, async_finish, rows, scale, topk_idx, topk_weights, *layout) as calls:
            made, counts = None, None
            if handle is None:
                way = self._way(topk_idx, is_token_in_rank, num_tokens_per_expert, expert_alignment)
                # A call that says how many rows may come has room for the tokens that make them.
                most = -(-num_worst_tokens // engines.ranks) if num_worst_tokens else self._rooms[rows.shape[1]]
                sent = FacadeHandle(engines, way, rows.shape[0], most)
            else:
                sent = handle.sent
            is_counted = handle is None and not num_worst_tokens
            received, tables, told = sent.send(rows, scale, topk_weights, sms, is_counted)
            arriving, entries = (told or tables.counts()) if is_counted else (0, [])
            count = num_worst_tokens or (handle.rows if handle else arriving)
            came, came_scale, ids, weights = received.copy(count)
            # An error below may outlive this call, and the next one needs the place.
            del received
            arrived = tables._core.arriving() if num_worst_tokens else None
            if arrived is not None and arrived > count:
                raise Mismatch(f"{arrived} rows arrived, and `num_worst_tokens` is {count}")
            if handle is None:
                made = DispatchHandle(sent, tables, is_token_in_rank, count)
                counts = entries
                if is_counted and topk_idx is None:
                    counts = self._counts(num_tokens_per_expert, expert_alignment)
            calls.outputs += [came, came_scale, ids, weights, sent.way.topk_idx]
        came = came if scale is None else (came, as_sent(came_scale, scale))
        has_idx, has_weights = topk_idx is not None, topk_weights is not None
        return came, ids if has_idx else None, weights if has_weights else None, counts, made, calls.done

    def combine(
        self,
        x: torch.Tensor,
        handle: DispatchHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Rows back to their tokens, added up without weights: the sums, the weights' sums, an event."""
        engines, sms = self._engines(), config.num_sms if config else Buffer.num_sms
        require_handle(handle, DispatchHandle, "dispatch")
        biases = biases_of(bias)
        inputs = (x, topk_weights, *biases, handle.sent.way.topk_idx)
        with engines.beside(previous_event, async_finish, *inputs) as calls:
            tables = handle.sent.handle(x.shape[1], topk_weights is not None, len(biases))
            sums = tables.buffer.combine(x, tables, topk_weights, biases=biases, sms=sms)
            combined, weights = sums.x, sums.weights
            calls.outputs += [combined, weights]
        return combined, weights, calls.done

    def _engines(self) -> Engines:
        if self.engines is None:
            raise Mismatch("the buffer was destroyed")
        return self.engines

    def _check_nodes(self, per_node: torch.Tensor | None) -> None:
        """Refuses a layout without a count for each of them, such as that of another group."""
        nodes = self._engines().nodes
        if per_node is None or tuple(per_node.shape) != (nodes,):
            has = "absent" if per_node is None else list(per_node.shape)
            raise Mismatch(f"`num_tokens_per_rdma_rank` has extents {has}, and needs [{nodes}]")

    def _way(
        self, topk_idx: torch.Tensor | None, in_rank: torch.Tensor, per_expert: torch.Tensor, alignment: int
    ) -> Way:
        """Where tokens go. Without experts each rank is one, so that nobody needs to know them."""
        torch = require()
        if topk_idx is not None:
            return Way(own_experts(topk_idx), per_expert.numel(), alignment)
        ranks = torch.arange(self.group_size, device=in_rank.device)
        return Way(torch.where(in_rank, ranks, -1).contiguous(), self.group_size)

    def _room(self, hidden: int) -> int:
        # Rows go back as bfloat16, whatever they were when they came; between nodes, from places of their own.
        places = 1 if self._engines().nodes == 1 else 2
        return min(self.num_nvl_bytes // (2 * hidden * self.group_size * places), MOST_AT_FIRST)

    def _counts(self, per_expert: torch.Tensor, alignment: int) -> list[int]:
        """How many entries of all ranks name each expert here, where a dispatch does not know the experts."""
        totals = self._engines().sum_over_ranks(per_expert)
        each, more = divmod(len(totals), self.group_size)
        first = self.rank * each + min(self.rank, more)
        own = totals[first : first + each + (self.rank < more)]
        return [-(-count // alignment) * alignment for count in own]
