"""Numbers that tests and callers of deep_ep compare and round with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._torch import require

if TYPE_CHECKING:
    import torch

#: Values of a row that share a scale, and the largest float8_e4m3fn.
BLOCK, LARGEST = 128, 448.0


def ceil_div(x: int, y: int) -> int:
    """The quotient, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The next multiple of `y`."""
    return ceil_div(x, y) * y


def safe_div(x: float, y: float) -> float:
    """The quotient; 0 for a divisor of 0."""
    return x / y if y else 0


def count_bytes(*tensors: Any) -> int:
    """Bytes of all tensors, of those in tuples too."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, (tuple, list)):
            total += count_bytes(*tensor)
        elif tensor is not None:
            total += tensor.numel() * tensor.element_size()
    return total


def hash_tensor(t: torch.Tensor) -> int:
    """The sum of a tensor's words of 32 bits: equal bytes have equal sums."""
    return int(t.view(require().int32).sum())


def hash_tensors(*tensors: Any) -> int:
    """The exclusive or of the sums of all tensors, of those in tuples too."""
    value = 0
    for tensor in tensors:
        if isinstance(tensor, (tuple, list)):
            value ^= hash_tensors(*tensor)
        elif tensor is not None:
            value ^= hash_tensor(tensor)
    return value


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Leaves the different values of each row from 0 to below `num_slots`, largest first, and -1 behind them."""
    ordered = x.sort(dim=1, descending=True).values
    again = ordered[:, 1:] == ordered[:, :-1]
    ordered[:, 1:].masked_fill_(again, -1)
    x.copy_(ordered.sort(dim=1, descending=True).values)


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Scores of experts in the groups that each token has chosen, and 0 for the others."""
    chosen = scores.new_zeros((scores.shape[0], num_groups)).scatter_(1, group_idx, 1)
    return scores * chosen.repeat_interleave(scores.shape[1] // num_groups, dim=1)


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far two tensors are from pointing the same way, 1 added to both: 0 for equal ones."""
    if not x.numel() and not y.numel():
        return 0.0
    x, y = x.double() + 1, y.double() + 1
    both = (x * x + y * y).sum()
    return float(1 - 2 * (x * y).sum() / both)


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as float8 and a scale for each 128 values."""
    torch = require()
    blocks = x.float().unflatten(1, (-1, BLOCK))
    scale = blocks.abs().amax(dim=2).clamp(1e-4) / LARGEST
    return (blocks / scale[..., None]).to(torch.float8_e4m3fn).view(x.shape), scale


def per_token_cast_back(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bfloat16 rows from float8 and scales: float32, or four powers of two in each int32."""
    torch = require()
    if not x.numel():
        return x.to(torch.bfloat16)
    if scales.dtype == torch.int32:
        # A single column has any stride, which a view of bytes does not take.
        powers = scales.reshape(-1).view(torch.uint8).to(torch.int32)
        scales = (powers << 23).view(torch.float32)
    blocks = x.float().view(x.shape[0], -1, BLOCK) * scales.reshape(x.shape[0], -1, 1)
    return blocks.view(x.shape).to(torch.bfloat16)
