"""EPForge behind SGLang's backends `deepep` and `deepep_v2`.

SGLang has no registry of all-to-all backends, so its own dispatchers run on EPForge's module `deep_ep`. SGLang calls
`register` in each of its processes. The hooks of the plug-in lift a limit that is DeepEP's alone, 1024 tokens in a
low-latency call, and make kernels and memory when a dispatcher is made, before SGLang measures free memory and
captures graphs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from epforge.deep_ep.served import check_name, tell

LOG = logging.getLogger(__name__)
DISPATCHERS = "sglang.srt.layers.moe.token_dispatcher"

#: The most tokens of a low-latency call that SGLang lets through to DeepEP.
DEEPEP_MOST = 1024


def register() -> None:
    """Registers the hooks, which SGLang applies."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    check_name()
    for target, hook, kind in (
        ("deepep._DeepEPDispatcherImplBase.__init__", lift_most_tokens, HookType.AROUND),
        ("deepep.DeepEPDispatcher.__init__", prepare, HookType.AFTER),
        ("deepep_v2.DeepEPv2Dispatcher.__init__", prepare_v2, HookType.AFTER),
    ):
        HookRegistry.register(f"{DISPATCHERS}.{target}", hook, kind)


def lift_most_tokens(make: Callable[..., None], dispatcher: Any, *arguments: Any, **options: Any) -> None:
    """Low-latency calls may have as many tokens as EPForge takes."""
    most = sys.modules[f"{DISPATCHERS}.deepep"].envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
    wanted = most.get()
    with most.override(min(wanted, DEEPEP_MOST)):
        make(dispatcher, *arguments, **options)
    dispatcher.num_max_dispatch_tokens_per_rank = wanted


def prepare(_: None, dispatcher: Any, *__: Any, **___: Any) -> None:
    """Makes the kernels and the memory of a dispatcher, which all ranks make together."""
    tell(LOG, "sglang", "deepep")
    gemm = sys.modules[f"{DISPATCHERS}.deepep"].deep_gemm_wrapper
    mode, is_packed = dispatcher.deepep_mode, bool(gemm.ENABLE_JIT_DEEPGEMM and gemm.DEEPGEMM_SCALE_UE8M0)
    if mode.enable_low_latency():
        low = dispatcher._low_latency_dispatcher
        low._get_buffer().low_latency_prepare(
            low.num_max_dispatch_tokens_per_rank, *shape(low), use_fp8=low.use_fp8, round_scale=is_packed
        )
    if mode.enable_normal():
        normal, is_deep = dispatcher._normal_dispatcher, bool(gemm.ENABLE_JIT_DEEPGEMM)
        normal._get_buffer().prepare(
            1,
            *shape(normal),
            use_fp8=is_deep and normal.use_fp8,
            use_ue8m0=is_packed,
            expert_alignment=128 if is_deep else 1,
        )


def prepare_v2(_: None, dispatcher: Any, *__: Any, **___: Any) -> None:
    """Makes the kernels and the memory of a dispatcher of the second API, which all ranks make together."""
    tell(LOG, "sglang", "deepep_v2")
    own = dispatcher._impl
    own._get_buffer().prepare(
        *shape(own),
        use_fp8=own.use_fp8_dispatch,
        use_ue8m0=bool(own.scale_format.ue8m0),
        expert_alignment=sys.modules[f"{DISPATCHERS}.deepep_v2"]._EXPERT_ALIGNMENT,
    )


def shape(own: Any) -> tuple[int, int, int]:
    """The hidden size, the top-k and the number of experts."""
    return own.hidden_size, own.router_topk, own.num_experts
