"""Prints the table of docs/python.md of the memory that buffers take, beside what DeepEP V1 asks for.

``python memory_table.py``; nothing is allocated. `test_memory.py` compares the page with what this prints.
"""

from __future__ import annotations

from collections.abc import Iterator

from epforge import deep_ep

#: Hidden size, experts of a token, experts.
MODELS = {
    "DeepSeek-V3": (7168, 8, 256),
    "Qwen3-235B": (4096, 8, 128),
    "GPT-OSS-120B": (2880, 4, 128),
    "Kimi-K2": (7168, 8, 384),
}
RANKS = (8, 16, 32, 64)
#: Tokens of a rank in a call, and in a low-latency call.
TOKENS, FEW = 4096, 128

#: DeepEP's kernels do not take hidden sizes in between: frameworks round up to multiples of this.
DEEPEP_STEP = 256

#: DeepEP V1 sends through 10 channels with 20 SMs. A token has room for 128 experts, weights and scales there.
CHANNELS, NODE, META = 10, 8, 8 + 128 * (8 + 4 + 4)


def deepep(ranks: int, hidden: int) -> int:
    """Bytes that DeepEP V1.2.1's configurations for so many ranks ask for, on nodes of 8 GPUs."""
    nodes, row = max(1, ranks // NODE), 2 * hidden + META
    # Tokens that wait in a channel, on their way within a node and between nodes.
    near, far = (256, 0) if nodes == 1 else (288, 140 if nodes == 2 else 128)
    within = CHANNELS * min(ranks, NODE) * (near * row + 4 * (2 * nodes + 3))
    if nodes == 1:
        return within
    return within + 2 * CHANNELS * nodes * (far * (row + 16) + 4 * (2 * NODE + 2)) + (1 << 20)


def deepep_low_latency(tokens: int, hidden: int, experts: int) -> int:
    """Bytes that DeepEP V1.2.1 asks for: two sets of rows to send and to receive, of each expert."""
    scales = hidden // 128
    there = 16 + max(2 * hidden, hidden + 4 * scales)
    back = 2 * hidden + 4 * scales
    return 2 * tokens * experts * (max(there, back) + back)


def lines() -> Iterator[str]:
    """The table, in MiB of each GPU."""
    yield "| model | ranks | 4096 tokens | DeepEP V1 | 128 tokens, per rank | per expert | DeepEP V1 |"
    yield "|---|---|---|---|---|---|---|"
    for name, (hidden, topk, experts) in MODELS.items():
        for ranks in RANKS:
            shape, rounded = (hidden, topk, experts), -(-hidden // DEEPEP_STEP) * DEEPEP_STEP
            low = [deep_ep.Buffer.low_latency_bytes(ranks, FEW, *shape, way=way) for way in ("per-rank", "per-expert")]
            every = (
                deep_ep.Buffer.bytes(ranks, TOKENS, *shape),
                deepep(ranks, rounded),
                *low,
                deepep_low_latency(FEW, rounded, experts),
            )
            yield f"| {name} | {ranks} | " + " | ".join(f"{-(-it >> 20)}" for it in every) + " |"


if __name__ == "__main__":
    print("\n".join(lines()))
