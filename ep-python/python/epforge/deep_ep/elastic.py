"""The second API of deep_ep: `ElasticBuffer`, within one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .expert import ExpertBuffer, other_kind
from .handles import EPHandle, tensors_of
from .knobs import QUEUES, tell_of_ignored
from .utils.event import EventHandle, EventOverlap

if TYPE_CHECKING:
    import torch


def size_hint(ranks: int, tokens: int, hidden: int) -> int:
    """Bytes of rows that come, and in the same place of rows that go back, in units of 2 MiB."""
    unit = 2 << 20
    return -(-ranks * tokens * 2 * hidden // unit) * unit


class ElasticBuffer(ExpertBuffer):
    """Dispatch and combine of `deep_ep.ElasticBuffer`."""

    def __init__(
        self,
        group: torch.distributed.ProcessGroup,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        tell_of_ignored(QUEUES, num_allocated_qps=(num_allocated_qps, 0), sl_idx=(sl_idx, 3))
        super().__init__(group, num_max_tokens_per_rank, num_gpu_timeout_secs, deterministic, explicitly_destroy)
        self.num_bytes = num_bytes or size_hint(self.num_ranks, num_max_tokens_per_rank, hidden)
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute

    @staticmethod
    def get_buffer_size_hint(
        group: torch.distributed.ProcessGroup,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes of rows that come, and in the same place of rows that go back."""
        return size_hint(group.size(), num_max_tokens_per_rank, hidden)

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, EPHandle, EventOverlap]:
        """Rows to the ranks of their experts: what came, its experts and weights, a handle, an event."""
        ask = self._ask(
            handle, num_experts, num_max_tokens_per_rank, expert_alignment, num_sms,
            sync=do_cpu_sync, expand=do_expand, zero_padding=do_zero_padding, by_columns=use_tma_aligned_col_major_sf,
            copy=do_handle_copy,
        )  # fmt: skip
        inputs = tensors_of(x, topk_idx, topk_weights, cumulative_local_expert_recv_stats, handle)
        with self._engines().beside(previous_event, async_with_compute_stream, *inputs) as calls:
            receive = self._send(calls, x, topk_idx, topk_weights, ask, handle)
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            came, ids, weights, made = receive()
            if async_with_compute_stream:
                made.complete()
            calls.outputs += tensors_of(came, ids, weights, made)
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats += made.num_unaligned_recv_tokens_per_expert
        return came, ids, weights, made, calls.done

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Rows back to their tokens, added up: the sums, the weights' sums, an event."""
        inputs = tensors_of(x, handle, topk_weights, bias)
        with self._engines().beside(previous_event, async_with_compute_stream, *inputs) as calls:
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            combined, weights = self._combine(x, handle, topk_weights, bias, num_sms)
            calls.outputs += [combined, weights]
        return combined, weights, calls.done

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """0: each call takes the fewest SMs with which the link is its limit."""
        return 0

    get_engram_storage_size_hint = staticmethod(other_kind("get_engram_storage_size_hint"))
    get_pp_buffer_size_hint = staticmethod(other_kind("get_pp_buffer_size_hint"))
    get_agrs_num_max_session_bytes = staticmethod(other_kind("get_agrs_num_max_session_bytes"))
    get_agrs_buffer_size_hint = staticmethod(other_kind("get_agrs_buffer_size_hint"))
    engram_write = other_kind("engram_write")
    engram_fetch = other_kind("engram_fetch")
    pp_set_config = other_kind("pp_set_config")
    pp_send = other_kind("pp_send")
    pp_recv = other_kind("pp_recv")
    create_agrs_session = other_kind("create_agrs_session")
    destroy_agrs_session = other_kind("destroy_agrs_session")
    agrs_new_session = other_kind("agrs_new_session")
    agrs_set_config = other_kind("agrs_set_config")
    agrs_get_inplace_tensor = other_kind("agrs_get_inplace_tensor")
    all_gather = other_kind("all_gather")
