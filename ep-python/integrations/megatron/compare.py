"""Megatron-core's mixture-of-experts layer with the flex dispatcher on EPForge, against its dispatcher `alltoall`.

``torchrun --nproc-per-node=2 compare.py`` compares layers: output and gradients, for several configurations.
``torchrun --nproc-per-node=2 compare.py --steps 200`` also trains two layers with both dispatchers.
With GPUs the tensors are there; without any, they are on the CPU, and an emulator executes EPForge's kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import zlib
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

import epforge
from epforge.deep_ep.served import check_name

ON_GPU = torch.cuda.is_available()
TOKENS, EXPERTS, TOPK = (512, 16, 4) if ON_GPU else (8, 4, 2)
HIDDEN = 1024 if ON_GPU else 128

#: Configurations that are compared.
CASES: dict[str, dict[str, Any]] = {
    "top-k": {},
    "bf16 router": {"moe_router_dtype": None},
    "sigmoid with groups": {
        "moe_router_score_function": "sigmoid", "moe_router_num_groups": 2, "moe_router_group_topk": 1,
    },
    "pre-softmax": {"moe_router_pre_softmax": True},
    "shared expert": {"moe_shared_expert_intermediate_size": 2 * HIDDEN},
    "capacity": {"moe_expert_capacity_factor": 1.0},
}  # fmt: skip


class NoStream:
    """A stream or an event of the CPU, where each operation is over when it returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: NoStream()


def place_on_cpu() -> None:
    """Megatron makes tensors on the current CUDA device, and streams beside it."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = torch.cuda.Event = NoStream
    torch.cuda.current_stream = NoStream
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.Tensor.record_stream = lambda *_: None
    zeros = torch.zeros

    def zeros_here(*shape: Any, device: Any = None, **more: Any) -> torch.Tensor:
        return zeros(*shape, device="cpu" if device == "cuda" else device, **more)

    torch.zeros = zeros_here
    exchange = dist.all_to_all_single

    def all_to_all(output: Any, given: Any, *, output_split_sizes: Any, input_split_sizes: Any, **more: Any) -> Any:
        # Megatron moves the sizes to the host only if they are on a GPU.
        sizes = [it.tolist() if isinstance(it, torch.Tensor) else it for it in (output_split_sizes, input_split_sizes)]
        return exchange(output, given, *sizes, **more)

    dist.all_to_all_single = all_to_all


def configured(backend: str, **more: Any) -> TransformerConfig:
    dispatcher = {"moe_token_dispatcher_type": "alltoall"}
    if backend:
        dispatcher = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
    options = {
        "num_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": 8, "ffn_hidden_size": 2 * HIDDEN,
        "num_moe_experts": EXPERTS, "moe_router_topk": TOPK, "moe_router_load_balancing_type": "none",
        **dispatcher, "expert_model_parallel_size": dist.get_world_size(),
        "add_bias_linear": False, "bf16": True, "params_dtype": torch.bfloat16, "use_cpu_initialization": not ON_GPU,
        "moe_router_dtype": "fp32", "gradient_accumulation_fusion": False,
    }  # fmt: skip
    return TransformerConfig(**{**options, **more})


def layer(backend: str, number: int, **more: Any) -> torch.nn.Module:
    """A layer, which has the same parameters with every dispatcher: `alltoall`, or flex with a backend."""
    config = configured(backend, **more)
    spec = get_moe_module_spec(use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False)
    made = spec(config, layer_number=number)
    made = made.cuda() if ON_GPU else made
    with torch.no_grad():
        # Megatron's own start on a GPU draws from generators that go on from layer to layer.
        for name, parameter in made.named_parameters():
            is_own = ".experts." in f".{name}" and "shared" not in name
            seed = zlib.crc32(f"{number} {name} {dist.get_rank() if is_own else 0}".encode())
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.copy_(0.02 * drawn)
    return made


def outcome(backend: str, **more: Any) -> dict[str, torch.Tensor]:
    """The output of a layer, and its gradients."""
    made = layer(backend, 1, **more)
    torch.manual_seed(7 + dist.get_rank())
    x = torch.randn(TOKENS, 1, HIDDEN).to(torch.bfloat16)
    x = (x.cuda() if ON_GPU else x).requires_grad_()
    y, _ = made(x)
    slope = torch.sin(torch.arange(HIDDEN, device=y.device)).to(y.dtype)
    (y * slope).sum().backward()
    found = {"output": y, "gradient of the input": x.grad}
    found.update({f"gradient of {name}": it.grad for name, it in made.named_parameters() if it.grad is not None})
    return {name: it.detach().float() for name, it in found.items()}


def off(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far the values are apart, relative to their size."""
    size = wanted.norm()
    return float((ours - wanted).norm() / size) if size > 0 else float(ours.norm())


def compare_layers(backend: str) -> bool:
    is_right = True
    for name, more in CASES.items():
        wanted, ours = outcome("", **more), outcome(backend, **more)
        assert wanted.keys() == ours.keys(), (wanted.keys(), ours.keys())
        worst, where = max((off(ours[it], wanted[it]), it) for it in wanted)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, (worst, where))
        worst, where = max(every)
        is_right &= worst < 0.02
        say(f"| {name} | {len(wanted)} | {worst:.4f} ({where}) | {'agrees' if worst < 0.02 else 'DIFFERS'} |")
    return is_right


def trained(backend: str, steps: int) -> list[float]:
    """The losses of two layers that learn a map of a few batches."""
    layers = torch.nn.ModuleList([layer(backend, number) for number in (1, 2)])
    learner = torch.optim.Adam(layers.parameters(), lr=1e-3)
    torch.manual_seed(11 + dist.get_rank())
    batches = torch.randn(4, TOKENS, 1, HIDDEN).to(torch.bfloat16)
    losses = []
    for step in range(steps):
        x = batches[step % 4]
        y = x = x.cuda() if ON_GPU else x
        for one in layers:
            y = y + one(y)[0]
        loss = (y.float() - torch.roll(x.float(), 1, -1)).square().mean()
        learner.zero_grad()
        loss.backward()
        for name, parameter in layers.named_parameters():
            if ".experts." not in f".{name}" and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        learner.step()
        told = loss.detach().clone()
        dist.all_reduce(told)
        losses.append(float(told) / dist.get_world_size())
    return losses


def compare_training(backend: str, steps: int) -> bool:
    wanted, ours = trained("", steps), trained(backend, steps)
    gap = max(abs(a - b) for a, b in zip(wanted, ours, strict=True)) / wanted[0]
    assert wanted[-1] < wanted[0], "the layers learn nothing: the comparison says nothing"
    is_right = gap < 0.02
    say(f"| step | loss, alltoall | loss, {backend} on EPForge |\n|---|---|---|")
    for step in sorted({0, steps // 4, steps // 2, steps - 1}):
        say(f"| {step + 1} | {wanted[step]:.4f} | {ours[step]:.4f} |")
    verdict = "they agree" if is_right else "THEY DIFFER"
    say(f"The losses differ by {100 * gap:.2f} % of the first loss at most: {verdict}.")
    return is_right


say = partial(print, flush=True)


def main() -> None:
    global say
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=0, help="steps of training")
    arguments.add_argument("--backend", choices=("deepep", "hybridep"), default="deepep", help="of the flex dispatcher")
    given = arguments.parse_args()
    backend, steps = given.backend, given.steps
    if not ON_GPU:
        place_on_cpu()
    dist.init_process_group("cpu:gloo,cuda:nccl" if ON_GPU else "gloo")
    if ON_GPU:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    check_name()
    parallel_state.initialize_model_parallel(expert_model_parallel_size=dist.get_world_size())
    if ON_GPU:
        model_parallel_cuda_manual_seed(1)
    if dist.get_rank():
        say = lambda *_: None  # noqa: E731
    version = importlib.metadata.version("megatron-core")
    where = torch.cuda.get_device_name() if ON_GPU else "the CPU, emulated"
    say(f"Megatron-core {version}, EPForge {epforge.__version__}, {dist.get_world_size()} ranks on {where}\n")
    say("| layer | tensors | largest difference | |\n|---|---|---|---|")
    is_right = compare_layers(backend)
    if steps:
        say("")
        is_right &= compare_training(backend, steps)
    dist.destroy_process_group()
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    main()
