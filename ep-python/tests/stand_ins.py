"""Stand-ins for vLLM and SGLang: modules with the names and arguments that the plug-ins change, and little else.

`torch_frameworks.py` compares the same names and arguments with those of the frameworks.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import unittest
from pathlib import Path

LAYERS = "vllm.model_executor.layers.fused_moe"
DISPATCHERS = "sglang.srt.layers.moe.token_dispatcher"

VLLM = {
    "vllm.utils.import_utils": """
DEEPEP_V2_MIN_NCCL_VERSION_RAW = 23004
def _get_runtime_nccl_version():
    return None
def has_deep_ep_v2():
    version = _get_runtime_nccl_version()
    return version is not None and version >= DEEPEP_V2_MIN_NCCL_VERSION_RAW
""",
    "vllm.distributed.device_communicators.all2all": """
class DeepEPHTAll2AllManager:
    def get_handle(self, kwargs): ...
class DeepEPLLAll2AllManager:
    def get_handle(self, kwargs): ...
class DeepEPV2All2AllManager:
    def _check_gin_support(self, group):
        raise RuntimeError("no GIN here")
    def get_handle(self, kwargs):
        self._check_gin_support(None)
        return "a buffer"
""",
    f"{LAYERS}.prepare_finalize.deepep_ht": """
class DeepEPHTPrepareAndFinalize:
    @staticmethod
    def maybe_roundup_layer_hidden_size(hidden_size, dtype):
        return -(-hidden_size // 256) * 256
    def __init__(self, buffer, num_dispatchers, dp_size, rank_expert_offset):
        self.buffer = buffer
""",
    f"{LAYERS}.prepare_finalize.deepep_ll": """
class DeepEPLLPrepareAndFinalize:
    SUPPORTED_HIDDEN_SIZES = [2048, 2560, 3072, 4096]
    @staticmethod
    def maybe_roundup_layer_hidden_size(hidden_size):
        return next(it for it in DeepEPLLPrepareAndFinalize.SUPPORTED_HIDDEN_SIZES if it >= hidden_size)
    def __init__(self, buffer, max_tokens_per_rank, num_dispatchers, use_fp8_dispatch=False, global_to_physical=None,
                 physical_to_global=None, local_expert_global_ids=None):
        self.buffer, self.use_fp8_dispatch = buffer, use_fp8_dispatch
""",
    f"{LAYERS}.prepare_finalize.deepep_v2": """
class DeepEPV2PrepareAndFinalize:
    @staticmethod
    def maybe_roundup_layer_hidden_size(hidden_size, dtype):
        return -(-hidden_size // 256) * 256
    def __init__(self, buffer, num_dispatchers, dp_size, rank_expert_offset, num_experts, num_topk,
                 use_fp8_dispatch=False, use_cudagraph=False):
        self.buffer, self.use_fp8_dispatch, self.use_cudagraph = buffer, use_fp8_dispatch, use_cudagraph
def _globalize_recv_topk_idx(recv_topk_idx, psum_recv_per_rank, rank_expert_offset, num_experts):
    return recv_topk_idx
""",
    f"{LAYERS}.all2all_utils": f"""
from vllm.utils.import_utils import has_deep_ep_v2
from {LAYERS}.prepare_finalize.deepep_ht import DeepEPHTPrepareAndFinalize
from {LAYERS}.prepare_finalize.deepep_ll import DeepEPLLPrepareAndFinalize
if has_deep_ep_v2():
    from {LAYERS}.prepare_finalize.deepep_v2 import DeepEPV2PrepareAndFinalize
def maybe_make_prepare_finalize(moe, quant_config, routing_tables=None, allow_new_interface=False,
                                use_monolithic=False, eep_stage=False):
    if moe.use_deepep_ht_kernels:
        return DeepEPHTPrepareAndFinalize(moe.buffer, 2, 2, 0)
    if moe.use_deepep_ll_kernels:
        return DeepEPLLPrepareAndFinalize(moe.buffer, moe.max_num_tokens, 2, use_fp8_dispatch=True)
    if moe.use_deepep_v2_kernels:
        return DeepEPV2PrepareAndFinalize(moe.buffer, 2, 2, 0, moe.num_experts, moe.experts_per_token)
    return None
""",
}

SGLANG = {
    "sglang.srt.plugins.hook_registry": """
import functools, importlib
from enum import Enum
class HookType(Enum):
    AFTER = "after"
    AROUND = "around"
class HookRegistry:
    hooks = []
    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls.hooks.append((target, hook, hook_type))
    @classmethod
    def apply_hooks(cls):
        for target, hook, kind in cls.hooks:
            module, owner, name = target.rsplit(".", 2)
            place = getattr(importlib.import_module(module), owner)
            setattr(place, name, wrapped(getattr(place, name), hook, kind))
def wrapped(call, hook, kind):
    @functools.wraps(call)
    def wrapper(*arguments, **options):
        if kind is HookType.AROUND:
            return hook(call, *arguments, **options)
        made = call(*arguments, **options)
        changed = hook(made, *arguments, **options)
        return made if changed is None else changed
    return wrapper
""",
    f"{DISPATCHERS}.deepep": """
from contextlib import contextmanager
from enum import Enum
class DeepEPMode(Enum):
    NORMAL = "normal"
    LOW_LATENCY = "low_latency"
    AUTO = "auto"
    def enable_normal(self):
        return self in (DeepEPMode.NORMAL, DeepEPMode.AUTO)
    def enable_low_latency(self):
        return self in (DeepEPMode.LOW_LATENCY, DeepEPMode.AUTO)
class Number:
    value = 128
    def get(self):
        return self.value
    @contextmanager
    def override(self, value):
        before, self.value = self.value, value
        yield
        self.value = before
class envs:
    SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK = Number()
class deep_gemm_wrapper:
    ENABLE_JIT_DEEPGEMM, DEEPGEMM_SCALE_UE8M0 = True, False
class _DeepEPDispatcherImplBase:
    def __init__(self, group, router_topk, permute_fusion, num_experts, num_local_experts, hidden_size, params_dtype,
                 deepep_mode, runner_backend=None):
        self.group, self.router_topk, self.num_experts = group, router_topk, num_experts
        self.hidden_size, self.use_fp8 = hidden_size, True
        self.num_max_dispatch_tokens_per_rank = envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.get()
        assert self.num_max_dispatch_tokens_per_rank <= 1024
    def _get_buffer(self):
        return self.group
class DeepEPDispatcher:
    def __init__(self, group, router_topk, permute_fusion=False, num_experts=None, num_local_experts=None,
                 hidden_size=None, params_dtype=None, deepep_mode=DeepEPMode.AUTO, async_finish=False,
                 return_recv_hook=False, runner_backend=None):
        self.deepep_mode = deepep_mode
        numbers = (group, router_topk, permute_fusion, num_experts, num_local_experts, hidden_size, params_dtype)
        if deepep_mode.enable_low_latency():
            self._low_latency_dispatcher = _DeepEPDispatcherImplBase(*numbers, deepep_mode)
        if deepep_mode.enable_normal():
            self._normal_dispatcher = _DeepEPDispatcherImplBase(*numbers, deepep_mode)
""",
    f"{DISPATCHERS}.deepep_v2": """
_EXPERT_ALIGNMENT = _SCALE_BLOCK_SIZE = 128
class _DeepEPv2Impl:
    def _get_buffer(self):
        return self.group
class DeepEPv2Dispatcher:
    def __init__(self, group, router_topk, num_experts, num_local_experts, hidden_size, params_dtype, use_fp8_dispatch,
                 activation_scale_block_size=_SCALE_BLOCK_SIZE):
        self._impl = own = _DeepEPv2Impl()
        own.group, own.router_topk, own.num_experts, own.hidden_size = group, router_topk, num_experts, hidden_size
        own.use_fp8_dispatch, own.scale_format = use_fp8_dispatch, type("Format", (), {"ue8m0": False})
""",
}


def put_in_place(test: unittest.TestCase, modules: dict[str, str]) -> None:
    """Makes modules importable for one test."""
    folder = tempfile.TemporaryDirectory()
    root = next(iter(modules)).partition(".")[0]
    for name, text in modules.items():
        path = Path(folder.name, *name.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)

    def forget() -> None:
        sys.path.remove(folder.name)
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name == root or name.startswith(f"{root}.")]:
            del sys.modules[name]
        folder.cleanup()

    finders = list(sys.meta_path)
    sys.path.insert(0, folder.name)
    importlib.invalidate_caches()
    test.addCleanup(forget)
