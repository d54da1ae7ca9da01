"""The third API of deep_ep: `EPBuffer`, within one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .elastic import size_hint
from .expert import ExpertBuffer, other_kind
from .handles import EPHandle, tensors_of
from .knobs import QUEUES, tell_of_ignored
from .utils.event import EventHandle

if TYPE_CHECKING:
    import torch


class EPBuffer(ExpertBuffer):
    """Dispatch and combine of `deep_ep.EPBuffer`."""

    #: One with `defer_epilogue`, and another call.
    live = 2

    def __init__(
        self,
        group: torch.distributed.ProcessGroup,
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: Any = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        if lb_allocation_plan_or_num_bytes:
            other_kind("lb_allocation_plan_or_num_bytes")()
        tell_of_ignored(QUEUES, num_allocated_qps=(num_allocated_qps, 0), sl_idx=(sl_idx, None))
        super().__init__(group, num_max_tokens_per_rank, num_gpu_timeout_secs, deterministic, explicitly_destroy)
        self.num_bytes = num_bytes or 2 * size_hint(self.num_ranks, num_max_tokens_per_rank, hidden)
        self.num_lb_bytes = 0
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
        """Bytes of rows that come, and in the same places of rows that go back: two of each."""
        return 2 * size_hint(group.size(), num_max_tokens_per_rank, hidden)

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
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = False,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Rows to the ranks of their experts: what came, its experts and weights, a handle, an event.

        With ``defer_epilogue`` the event alone, whose wait gives the others.
        """
        ask = self._ask(
            handle, num_experts, num_max_tokens_per_rank, expert_alignment, num_sms,
            sync=do_cpu_sync, expand=do_expand, zero_padding=do_zero_padding, by_columns=use_tma_aligned_col_major_sf,
            copy=do_handle_copy,
        )  # fmt: skip
        inputs = tensors_of(x, topk_idx, topk_weights, cumulative_local_expert_recv_stats, handle)

        def counted(results: tuple[Any, ...]) -> tuple[Any, ...]:
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(results[3].num_unaligned_recv_tokens_per_expert)
            return results

        is_async = async_with_compute_stream or defer_epilogue
        with self._engines().beside(previous_event, is_async, *inputs) as calls:
            receive = self._send(calls, x, topk_idx, topk_weights, ask, handle)
            if not defer_epilogue:
                came, ids, weights, made = counted(receive())
                if is_async:
                    made.complete()
                calls.outputs += tensors_of(came, ids, weights, made)
        if defer_epilogue:
            calls.done.register_hook_after_wait(lambda: counted(receive()))
            return calls.done
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
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Rows back to their tokens, added up: the sums, the weights' sums, an event.

        With ``defer_epilogue`` the event alone, whose wait gives the others.
        """
        is_async = async_with_compute_stream or defer_epilogue
        inputs = tensors_of(x, handle, topk_weights, bias)
        with self._engines().beside(previous_event, is_async, *inputs) as calls:
            combined, weights = self._combine(x, handle, topk_weights, bias, num_sms)
            calls.outputs += [combined, weights]
        if defer_epilogue:
            calls.done.register_hook_after_wait(lambda: (combined, weights))
            return calls.done
        return combined, weights, calls.done

    lb_get_theoretical_num_sms = other_kind("lb_get_theoretical_num_sms")
    lb_prefetch_weights = other_kind("lb_prefetch_weights")
    lb_reduce_grads = other_kind("lb_reduce_grads")
