"""EPForge behind vLLM's backends `deepep_high_throughput`, `deepep_low_latency` and `deepep_v2`.

vLLM has no registry of all-to-all backends, so its own deepep backends run on EPForge's module `deep_ep`. vLLM calls
`register` in each of its processes. The plug-in changes what vLLM does for DeepEP alone: it rounds hidden sizes up,
and it refuses `deepep_v2` by the version of NCCL and without GIN. Entries without a local expert, which `deepep_v2`
marks with -1, get an expert of another rank. The plug-in also makes kernels and memory when a layer is made, before
vLLM measures free memory and captures graphs.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from epforge.deep_ep.served import check_name, tell

#: vLLM shows what is below its own name.
LOG = logging.getLogger("vllm.epforge")

LAYERS = "vllm.model_executor.layers.fused_moe"

#: EPForge takes hidden sizes that are multiples of this, up to the largest.
HIDDEN_STEP, MOST_HIDDEN = 16, 32768


def register() -> None:
    """Changes vLLM in this process; a second call changes nothing."""
    if any(isinstance(finder, Changes) for finder in sys.meta_path):
        return
    check_name()
    changes: dict[str, Callable[[ModuleType], None]] = {
        "vllm.utils.import_utils": lift_nccl,
        "vllm.distributed.device_communicators.all2all": lift_gin,
        f"{LAYERS}.prepare_finalize.deepep_ht": functools.partial(lift_rounding, "DeepEPHTPrepareAndFinalize"),
        f"{LAYERS}.prepare_finalize.deepep_v2": change_second,
        f"{LAYERS}.prepare_finalize.deepep_ll": lift_hidden_sizes,
        f"{LAYERS}.all2all_utils": prepare_layers,
    }
    sys.meta_path.insert(0, Changes(changes))


class Changes(MetaPathFinder):
    """Changes modules right after they are imported: those that a process does not need stay out of it."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes
        for name in changes:
            if name in sys.modules:
                self.change(sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec that other finders have, with a loader that makes the change."""
        if name not in self.changes:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self.change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def change(self, module: ModuleType) -> None:
        """Makes the change of a module; the log says if this vLLM does not have what is changed."""
        try:
            self.changes[module.__name__](module)
        except AttributeError as error:
            LOG.warning(f"EPForge does not know this vLLM, and leaves `{module.__name__}` as it is: {error}")


def lift_nccl(module: ModuleType) -> None:
    """`has_deep_ep_v2` asks for a version of NCCL that EPForge does not need."""
    least = module.DEEPEP_V2_MIN_NCCL_VERSION_RAW
    found = module._get_runtime_nccl_version
    module._get_runtime_nccl_version = lambda: max(found() or 0, least)  # type: ignore[attr-defined]


def lift_gin(module: ModuleType) -> None:
    """From vLLM 0.27 on `deepep_v2` asks for NCCL's GIN, which EPForge does not use."""
    manager = module.DeepEPV2All2AllManager
    if hasattr(manager, "_check_gin_support"):
        manager._check_gin_support = lambda self, group: None


def lift_rounding(name: str, module: ModuleType) -> None:
    """Rows of a model keep their length: DeepEP wants multiples of 512 bytes."""
    layer = getattr(module, name)
    _ = layer.maybe_roundup_layer_hidden_size
    layer.maybe_roundup_layer_hidden_size = staticmethod(lambda hidden_size, dtype: rounded(hidden_size))


def change_second(module: ModuleType) -> None:
    """Lifts the rounding, and gives entries without a local expert an expert of another rank.

    vLLM marks these entries with -1. Its Triton experts compute no row for -1, and then add up the rows of all entries,
    so that the sums contain what the memory held before. They write zeros for an expert of another rank, which is what
    vLLM's own classes for `deepep_high_throughput` pass.
    """
    lift_rounding("DeepEPV2PrepareAndFinalize", module)
    globalize = module._globalize_recv_topk_idx

    @functools.wraps(globalize)
    def made(recv_topk_idx: Any, psum_recv_per_rank: Any, rank_expert_offset: int, num_experts: int) -> Any:
        ids = globalize(recv_topk_idx, psum_recv_per_rank, rank_expert_offset, num_experts)
        # A group of one rank has no such expert.
        if len(psum_recv_per_rank) == 1:
            return ids
        return ids.masked_fill_(ids < 0, 0 if rank_expert_offset else num_experts - 1)

    module._globalize_recv_topk_idx = made  # type: ignore[attr-defined]


def lift_hidden_sizes(module: ModuleType) -> None:
    """DeepEP's low-latency kernels are compiled for a few hidden sizes, to which vLLM rounds up."""
    layer = module.DeepEPLLPrepareAndFinalize
    _ = layer.SUPPORTED_HIDDEN_SIZES
    layer.SUPPORTED_HIDDEN_SIZES = range(HIDDEN_STEP, MOST_HIDDEN + 1, HIDDEN_STEP)


def rounded(hidden: int) -> int:
    """The next hidden size that EPForge takes."""
    return -(-hidden // HIDDEN_STEP) * HIDDEN_STEP


def prepare_layers(module: ModuleType) -> None:
    """Layers have their kernels and memory when they are made."""
    make = module.maybe_make_prepare_finalize

    @functools.wraps(make)
    def made(moe: Any, quant_config: Any, *arguments: Any, **options: Any) -> Any:
        layer = make(moe, quant_config, *arguments, **options)
        prepare(moe, quant_config, layer)
        return layer

    module.maybe_make_prepare_finalize = made  # type: ignore[attr-defined]
    second = "DeepEPV2PrepareAndFinalize"
    if hasattr(module, "DeepEPHTPrepareAndFinalize") and not hasattr(module, second):
        # The module was imported before the plug-in, and left out what NCCL's version forbade.
        setattr(module, second, getattr(importlib.import_module(f"{LAYERS}.prepare_finalize.deepep_v2"), second))
    for other in list(sys.modules.values()):
        if getattr(other, "maybe_make_prepare_finalize", None) is make:
            other.maybe_make_prepare_finalize = made  # type: ignore[attr-defined]


def prepare(moe: Any, quant_config: Any, layer: Any) -> None:
    """Makes the kernels and the memory of a layer, which all ranks make together."""
    shape = (moe.hidden_dim, moe.experts_per_token, moe.num_experts)
    if moe.use_deepep_ht_kernels:
        tell(LOG, "vllm", "deepep_high_throughput")
        layer.buffer.prepare(moe.max_num_tokens, *shape, use_fp8=bool(quant_config and quant_config.is_block_quantized))
    elif moe.use_deepep_ll_kernels:
        tell(LOG, "vllm", "deepep_low_latency")
        layer.buffer.low_latency_prepare(moe.max_num_tokens, *shape, use_fp8=layer.use_fp8_dispatch)
    elif moe.use_deepep_v2_kernels:
        tell(LOG, "vllm", "deepep_v2")
        layer.buffer.prepare(*shape, use_fp8=layer.use_fp8_dispatch, do_expand=not layer.use_cudagraph)
