"""A mixture-of-experts layer over `deep_ep`, and a test of it that needs no GPU.

``torchrun --nproc-per-node=2 moe_layer.py`` runs the test on CPU tensors and a gloo group: an emulator executes the
kernels that a GPU would, and checks every access. With GPUs, a CUDA device and an NCCL group the layer stays the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from epforge import deep_ep  # or `import deep_ep`, where epforge-deep-ep is installed

HIDDEN, TOPK, EXPERTS, TOKENS = 128, 2, 4, 6


class Dispatch(torch.autograd.Function):
    """Rows to the ranks of their experts; gradients come back."""

    @staticmethod
    def forward(ctx: Any, buffer: deep_ep.Buffer, x: Tensor, ids: Tensor, weights: Tensor) -> tuple[Any, ...]:
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        rows, local_ids, local_weights, _, handle, _ = buffer.dispatch(
            x,
            topk_idx=ids,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(local_ids)
        return rows, local_ids, local_weights, handle

    @staticmethod
    def backward(ctx: Any, rows: Tensor, _: Any, weights: Tensor, __: Any) -> tuple[Any, ...]:
        x, weights, _ = ctx.buffer.combine(rows.contiguous(), ctx.handle, topk_weights=weights)
        return None, x, None, weights


class Combine(torch.autograd.Function):
    """Rows back to their tokens, added up; gradients go where the rows came from."""

    @staticmethod
    def forward(ctx: Any, buffer: deep_ep.Buffer, rows: Tensor, handle: Any) -> Tensor:
        ctx.buffer, ctx.handle = buffer, handle
        return buffer.combine(rows, handle)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return None, ctx.buffer.dispatch(gradient.contiguous(), handle=ctx.handle)[0], None


class MoELayer(nn.Module):
    """Each rank has some of the experts, here linear maps."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.buffer = deep_ep.Buffer(group, num_nvl_bytes=1 << 20)
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS // group.size(), HIDDEN, HIDDEN) / HIDDEN**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights, ids = self.router(x.float()).softmax(-1).topk(TOPK)
        rows, local_ids, local_weights, handle = Dispatch.apply(self.buffer, x, ids, weights)
        return Combine.apply(self.buffer, of_experts(rows, local_ids, local_weights, self.experts), handle)


def of_experts(rows: Tensor, ids: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    """What the experts make of rows, weighted and added up; an id of -1 is no expert here."""
    made = torch.zeros_like(rows, dtype=torch.float32)
    for number, expert in enumerate(experts):
        factor = torch.where(ids == number, weights, 0.0).sum(1, keepdim=True)
        made = made + factor * (rows.float() @ expert)
    return made.to(rows.dtype)


def test_layer() -> None:
    """The layer and its gradients are those of a layer that has all experts on one rank."""
    group = dist.group.WORLD
    torch.manual_seed(0)
    layer = MoELayer(group)
    torch.manual_seed(1 + group.rank())
    layer.experts.data.normal_(std=HIDDEN**-0.5)
    x = torch.randn(TOKENS - group.rank(), HIDDEN).bfloat16()
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, layer.experts.detach())

    def gradients(call: Any) -> tuple[Tensor, ...]:
        own = x.clone().requires_grad_()
        y = call(own)
        (slope,) = torch.autograd.grad(y.float().square().sum(), own)
        return y.float(), slope.float()

    def alone(own: Tensor) -> Tensor:
        weights, ids = layer.router(own.float()).softmax(-1).topk(TOPK)
        return of_experts(own, ids, weights, torch.cat(every))

    for name, ours, wanted in zip(("the output", "the gradient"), gradients(layer), gradients(alone), strict=True):
        # Each rank rounds its sum to bfloat16.
        error = (ours - wanted).norm() / wanted.norm()
        assert error < 0.01, f"{name} of rank {group.rank()} is off by {error:.3f}"


if __name__ == "__main__":
    dist.init_process_group("gloo")
    test_layer()
    print(f"rank {dist.get_rank()}: the output and the gradient are right", flush=True)
    dist.destroy_process_group()
