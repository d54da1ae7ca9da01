"""SGLang's own dispatchers on EPForge, against the sums that they have to give.

``torchrun --nproc-per-node=2 compare.py`` sends rows to experts and back with `DeepEPDispatcher`, in its modes
`normal`, `low_latency` and `auto`, and with `DeepEPv2Dispatcher`. An expert multiplies its rows by a power of two.
With GPUs the tensors are there; without any, they are on the CPU, and an emulator executes EPForge's kernels. No
server, no model and no expert kernel of SGLang runs: rows have the layout that DeepGEMM wants, without DeepGEMM.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import epforge
import epforge_sglang

ON_GPU = torch.cuda.is_available()
HIDDEN, TOPK, EXPERTS, MOST = (2048, 8, 64, 128) if ON_GPU else (256, 3, 8, 16)
PLACE = "cuda" if ON_GPU else "cpu"

#: Tokens of two calls of the first rank and of the other ones: batches grow, and a rank may have no tokens.
PROMPTS = ((5, 700), (9, 0)) if ON_GPU else ((5, 40), (9, 0))
BATCHES = ((5, MOST), (9, 0))


def load() -> tuple[Any, Any, Any]:
    """SGLang's modules for the two APIs, and its context, as a server on GPUs with DeepGEMM would set them."""
    os.environ.setdefault("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", str(MOST))
    # A prefill of the second API has as many tokens as the buffer was made for.
    os.environ.setdefault("SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK", str(max(map(max, PROMPTS))))
    first, second = (
        importlib.import_module(f"sglang.srt.layers.moe.token_dispatcher.{it}") for it in ("deepep", "deepep_v2")
    )
    first.deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM = True
    # A server would set these.
    importlib.import_module("sglang.srt.layers.moe.utils").get_server_args = lambda: None
    second._get_allow_hybrid_mode = lambda: False
    second.get_parallel().override_permanently(attn_dp_size=dist.get_world_size())
    if not ON_GPU:
        torch.cuda.get_device_properties = lambda *_, **__: SimpleNamespace(multi_processor_count=132)
    epforge_sglang.register()
    importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
    return first, second, importlib.import_module("sglang.srt.layers.dp_attention")


def factor(experts: torch.Tensor) -> torch.Tensor:
    """What an expert multiplies its rows by."""
    return 2.0 ** (experts % 3)


def routed(tokens: int) -> tuple[torch.Tensor, Any]:
    """Rows, and the experts and weights of each; a power of two leaves the sums exact."""
    x = torch.randint(-8, 8, (tokens, HIDDEN), device=PLACE).to(torch.bfloat16)
    ids = torch.rand(tokens, EXPERTS, device=PLACE).topk(TOPK).indices.to(torch.int32)
    weights = torch.randint(1, 9, (tokens, TOPK), device=PLACE).float() / 8
    return x, SimpleNamespace(topk_ids=ids, topk_weights=weights)


def bf16(rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Rows as 32-bit values; FP8 rows have a scale for each 128 values."""
    if scale is None:
        return rows.float()
    return (rows.float().unflatten(-1, (-1, 128)) * scale.float()[..., None]).flatten(-2)


def local_experts() -> torch.Tensor:
    local = EXPERTS // dist.get_world_size()
    return torch.arange(dist.get_rank() * local, (dist.get_rank() + 1) * local, device=PLACE)


def by_first_api(sent: Any) -> Any:
    """What the experts make of a dispatch of the first API, in the form that its combine takes."""
    rows, own = bf16(sent.hidden_states, sent.hidden_states_scale), local_experts()
    if hasattr(sent, "masked_m"):
        made = rows * factor(own)[:, None, None]
    else:
        at = sent.topk_ids
        weight = torch.where(at >= 0, sent.topk_weights * factor(at + own[0]), 0.0)
        made = rows * weight.sum(1, keepdim=True)
    return made.to(torch.bfloat16), sent.topk_ids, sent.topk_weights


def by_second_api(second: Any, sent: Any) -> Any:
    """What the experts make of a dispatch of the second API."""
    rows, own = bf16(sent.hidden_states, sent.hidden_states_scale), local_experts()
    if sent.is_expanded:
        ends = sent.psum_num_recv_tokens_per_expert.tolist()
        made, begin = torch.zeros_like(rows), 0
        for expert, end in zip(own, ends, strict=True):
            made[begin:end] = rows[begin:end] * sent.topk_weights[begin:end, None] * factor(expert)
            begin = -(-end // sent.expert_alignment) * sent.expert_alignment
    else:
        at = sent.topk_ids
        weight = torch.where(at >= 0, sent.topk_weights * factor(at + own[0]), 0.0)
        made = rows * weight.sum(1, keepdim=True)
    return second.DeepEPv2CombineInput(made.to(torch.bfloat16), None)


def cases(first: Any, second: Any) -> Iterator[tuple[str, Any, Any, list[tuple[bool, tuple[int, int]]]]]:
    """Names, dispatchers, experts, and for each call: whether it is a prefill, and the tokens of the ranks."""
    local = EXPERTS // dist.get_world_size()
    shape = {"num_experts": EXPERTS, "num_local_experts": local, "hidden_size": HIDDEN, "params_dtype": torch.bfloat16}
    prefill, decode = [(True, it) for it in PROMPTS], [(False, it) for it in BATCHES]
    for name, calls, payload, more in (
        ("normal", prefill, "bf16", {"async_finish": False}),
        ("normal", prefill, "bf16", {"async_finish": True}),
        ("low_latency", decode, "bf16", {"return_recv_hook": False}),
        ("low_latency", decode, "fp8", {"return_recv_hook": False}),
        ("low_latency", decode, "fp8", {"return_recv_hook": True}),
        ("auto", [*prefill, *decode, *prefill], "bf16", {"return_recv_hook": True}),
    ):
        # A server has one buffer, of one mode.
        first.get_resources().buffers.clear()
        mode = first.DeepEPMode(name)
        made = first.DeepEPDispatcher(group=dist.group.WORLD, router_topk=TOPK, deepep_mode=mode, **shape, **more)
        made.set_quant_config({"dispatcher_output_dtype": payload})
        what = ", ".join(key for key, is_set in more.items() if is_set)
        yield f"deepep, {name}, {payload}{', ' if what else ''}{what}", made, by_first_api, calls
    for name, is_expanded, calls in (
        ("prefill, expanded", True, prefill),
        ("prefill", False, prefill),
        ("decode", True, decode),
    ):
        first.get_resources().buffers.clear()
        with second.envs.SGLANG_DEEPEP_V2_ENABLE_PREFILL_EXPAND.override(is_expanded):
            made = second.DeepEPv2Dispatcher(dist.group.WORLD, TOPK, use_fp8_dispatch=False, **shape)
        yield f"deepep_v2, {name}, bf16", made, partial(by_second_api, second), calls


def worst(dispatcher: Any, experts: Any, calls: list[tuple[bool, tuple[int, int]]], attention: Any) -> float:
    """The largest difference of a call's sums on any rank, relative to their size."""
    found = 0.0
    for is_prefill, tokens in calls:
        attention.set_is_extend_in_batch(is_prefill)
        x, topk = routed(tokens[min(dist.get_rank(), 1)])
        wanted = x.float() * (topk.topk_weights * factor(topk.topk_ids)).sum(1, keepdim=True)
        sums = dispatcher.combine(experts(dispatcher.dispatch(x, topk)))
        assert sums.shape == x.shape, (sums.shape, x.shape)
        if x.shape[0]:
            found = max(found, float((sums.float() - wanted).norm() / wanted.norm()))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    return max(every)


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl" if ON_GPU else "gloo")
    if ON_GPU:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    torch.manual_seed(dist.get_rank())
    first, second, attention = load()
    say = print if dist.get_rank() == 0 else lambda *_, **__: None
    where = torch.cuda.get_device_name() if ON_GPU else "the CPU, emulated"
    version = importlib.metadata.version("sglang")
    say(f"SGLang {version}, EPForge {epforge.__version__}, {dist.get_world_size()} ranks on {where}\n")
    say("| dispatcher | calls | largest difference | |\n|---|---|---|---|", flush=True)
    is_right = True
    for name, dispatcher, experts, calls in cases(first, second):
        # An FP8 value has three bits behind its first one.
        most = 0.04 if "fp8" in name else 0.01
        found = worst(dispatcher, experts, calls, attention)
        is_right &= found < most
        say(f"| {name} | {len(calls)} | {found:.4f} | {'agrees' if found < most else 'DIFFERS'} |", flush=True)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    main()
