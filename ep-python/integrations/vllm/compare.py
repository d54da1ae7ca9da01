"""vLLM with EPForge behind its deepep backends, against its backend `allgather_reducescatter`.

``python compare.py`` serves a small random Qwen3-MoE with data and expert parallelism on 2 GPUs, once for each backend,
and compares the tokens that greedy sampling gives and their log-probabilities. The first rank has prompts of several
lengths, the longest in chunks; the other ranks have one short prompt, and idle while the first one goes on. In rows
with EPLB, vLLM's load balancer moves experts between the ranks every few steps.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import Any

from ranks import Ranks, end_on_signal, engine_of, in_parts, leave_with_all, require_gpus

MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "vocab_size": 4096, "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1024, "moe_intermediate_size": 512, "num_experts": 32,
    "num_experts_per_tok": 4, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

#: Backends, whether decoding runs in CUDA graphs, and whether vLLM balances the load of experts (EPLB). The others are
#: compared with the first one.
RUNS = (
    ("allgather_reducescatter", False, False),
    ("deepep_high_throughput", False, False),
    ("deepep_low_latency", False, False),
    ("deepep_low_latency", True, False),
    ("deepep_v2", False, False),
    ("deepep_v2", True, False),
    ("deepep_high_throughput", False, True),
    ("deepep_low_latency", False, True),
    ("deepep_low_latency", True, True),
)

#: Experts move after so many steps. There are no copies of an expert: random weights would differ between copies.
BALANCING = {"window_size": 4, "step_interval": 4, "num_redundant_experts": 0, "use_async": False}

#: Tokens of the prompts of the first rank, and of a step.
LENGTHS, STEP, MADE = (5, 40, 700), 256, 16

#: Memory for keys and values of a rank. It has a fixed size, so that several backends can run at once.
KV_BYTES = 1 << 28

#: Log-probabilities of one token may be apart by so much: ranks and experts are added up in another order.
MOST_APART = 0.05

#: So many tokens are the same: where two are about as likely, a rounding decides, and what follows is another text.
LEAST_SAME = 0.9


def prompts(rank: int) -> list[list[int]]:
    lengths = LENGTHS if rank == 0 else (7,)
    return [[3 + (17 * place + 31 * number) % 4000 for place in range(length)] for number, length in enumerate(lengths)]


def serve(rank: int, ranks: int, folder: str, backend: str, graphs: bool, balances: bool, attention: str) -> None:
    """One rank: its tokens and their log-probabilities go into a file."""
    from vllm import SamplingParams

    engine = engine_of(
        folder,
        backend,
        attention,
        enforce_eager=not graphs,
        max_model_len=1024,
        max_num_batched_tokens=STEP,
        max_num_seqs=8,
        kv_cache_memory_bytes=KV_BYTES,
        **({"enable_eplb": True, "eplb_config": BALANCING} if balances else {}),
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=MADE if rank == 0 else 1, logprobs=1, ignore_eos=True, detokenize=False
    )
    requests = [{"prompt_token_ids": prompt} for prompt in prompts(rank)]
    made = [output.outputs[0] for output in engine.generate(requests, sampling, use_tqdm=False)]
    told = [
        [(token, step[token].logprob) for token, step in zip(it.token_ids, it.logprobs, strict=True)] for it in made
    ]
    leave_with_all(folder, "made", rank, ranks, told)


def compared(ours: list[Any], wanted: list[Any]) -> tuple[int, int, float]:
    """How many tokens are the same, of how many, and how far their log-probabilities are apart until one differs."""
    same, apart = 0, 0.0
    for own, other in zip(ours, wanted, strict=True):
        for (token, value), (wanted_token, wanted_value) in zip(own, other, strict=True):
            if token != wanted_token:
                break
            same, apart = same + 1, max(apart, abs(value - wanted_value))
    return same, sum(len(it) for it in wanted), apart


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--at-once", type=int, default=1, help="backends that run at the same time")
    arguments.add_argument("--attention", default="", help="an attention backend other than vLLM's choice")
    arguments.add_argument("--limit", type=float, default=600, help="seconds until a backend has to be done")
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.serve:
        return serve(*json.loads(given.serve))
    require_gpus(given.ranks)
    end_on_signal()
    is_right, wanted = True, None
    print("| backend | decoding | tokens as with the first one | log-probabilities apart by at most | |")
    print("|---|---|---|---|---|", flush=True)
    for some in in_parts(RUNS, given.at_once):
        with ExitStack() as stack:
            started = [stack.enter_context(Ranks(__file__, given.ranks, MODEL, [*it, given.attention])) for it in some]
            for (backend, graphs, balances), ranks in zip(some, started, strict=True):
                cells, made = result(backend, balances, ranks, wanted, given.limit)
                wanted = wanted or made
                how = ("in graphs" if graphs else "eager") + ", with EPLB" * balances
                print(f"| {backend} | {how} | {cells}", flush=True)
                if not wanted:
                    raise SystemExit("there is nothing to compare with")
                is_right &= cells.endswith("agrees |")
    raise SystemExit(0 if is_right else 1)


def result(
    backend: str, balances: bool, ranks: Ranks, wanted: list[Any] | None, limit: float
) -> tuple[str, list[Any] | None]:
    """The rest of a backend's row, and what its first rank has made."""
    try:
        ranks.wait_for("made", limit)
    except SystemExit as error:
        return f"fails | | FAILS |\n\n{error}\n", None
    made = ranks.made()[0]
    same, count, apart = compared(made, wanted or made)
    is_served = backend == RUNS[0][0] or f"`{backend}`" in ranks.line_of_epforge()
    if balances and not ranks.has_moved_experts():
        return f"{same} of {count} | {apart:.4f} | NO EXPERT MOVED |", made
    agrees = apart < MOST_APART and same >= LEAST_SAME * count and is_served
    return f"{same} of {count} | {apart:.4f} | {'agrees' if agrees else 'DIFFERS'} |", made


if __name__ == "__main__":
    main()
