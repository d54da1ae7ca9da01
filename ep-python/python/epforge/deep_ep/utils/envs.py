"""How tests of deep_ep start their processes."""

from __future__ import annotations

import os
import random
from typing import Any

from .._torch import require

_global_seed = 0


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> tuple[int, int, Any]:
    """Joins the processes of one machine or several, and makes their GPUs torch's own: rank, ranks, a group."""
    torch = require()
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "8361")
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group(
        "nccl",
        init_method=f"tcp://{address}:{port}",
        world_size=nodes * num_local_ranks,
        rank=node * num_local_ranks + local_rank,
        device_id=torch.device("cuda", local_rank),
    )
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    init_seed(seed)
    return rank, ranks, torch.distributed.new_group(list(range(ranks)))


def init_seed(seed: int) -> None:
    """Random numbers that each rank draws the same again."""
    global _global_seed
    _global_seed = seed
    torch = require()
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    random.seed(seed + rank)
    torch.manual_seed(seed + rank)


def get_global_seed() -> int:
    """The seed of the last `init_seed`, the same on all ranks."""
    return _global_seed


def dist_print(*words: Any, once_in_node: bool = False) -> None:
    """Prints, on the first rank of a node alone if asked to, and waits for the others."""
    distributed = require().distributed
    if not once_in_node or distributed.get_rank() % require().cuda.device_count() == 0:
        print(*words, flush=True)
    distributed.barrier()
