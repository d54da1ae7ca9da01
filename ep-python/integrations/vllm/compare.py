"""vLLM with EPForge behind its deepep backends, against its backend `allgather_reducescatter`.

``python compare.py`` serves a small random Qwen3-MoE with data and expert parallelism on 2 GPUs, once for each backend,
and compares the tokens that greedy sampling gives and their log-probabilities. The first rank has prompts of several
lengths, the longest in chunks; the other ranks have one short prompt, and idle while the first one goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from typing import Any

MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "vocab_size": 4096, "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1024, "moe_intermediate_size": 512, "num_experts": 32,
    "num_experts_per_tok": 4, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

#: Backends, and whether decoding runs in CUDA graphs. The first one is what the others are compared with.
RUNS = (
    ("allgather_reducescatter", False),
    ("deepep_high_throughput", False),
    ("deepep_low_latency", False),
    ("deepep_low_latency", True),
    ("deepep_v2", False),
    ("deepep_v2", True),
)

#: Tokens of the prompts of the first rank, and of a step.
LENGTHS, STEP, MADE = (5, 40, 700), 256, 16

#: Memory for keys and values of a rank. It has a fixed size, so that several backends can run at once.
KV_BYTES = 1 << 28

#: Lines of a log that are shown when a rank fails.
MOST_LINES = 80

#: Log-probabilities of one token may be apart by so much: ranks and experts are added up in another order.
MOST_APART = 0.05


def prompts(rank: int) -> list[list[int]]:
    lengths = LENGTHS if rank == 0 else (7,)
    return [[3 + (17 * place + 31 * number) % 4000 for place in range(length)] for number, length in enumerate(lengths)]


def engine_of(folder: str, backend: str, attention: str, **options: Any) -> Any:
    """A vLLM engine with random weights that serves the model of a folder with expert parallelism."""
    from vllm import LLM

    return LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_expert_parallel=True,
        all2all_backend=backend,
        attention_backend=attention or None,
        gpu_memory_utilization=0.1,
        enable_prefix_caching=False,
        seed=0,
        **options,
    )


def serve(rank: int, ranks: int, folder: str, backend: str, graphs: bool, attention: str) -> None:
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
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=MADE if rank == 0 else 1, logprobs=1, ignore_eos=True, detokenize=False
    )
    requests = [{"prompt_token_ids": prompt} for prompt in prompts(rank)]
    made = [output.outputs[0] for output in engine.generate(requests, sampling, use_tqdm=False)]
    told = [
        [(token, step[token].logprob) for token, step in zip(it.token_ids, it.logprobs, strict=True)] for it in made
    ]
    Path(folder, f"made-{rank}.json").write_text(json.dumps(told))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def first_failed(running: list[subprocess.Popen[bytes]]) -> int | None:
    """Waits for all ranks, or until one fails: the others would wait for it."""
    while any(it.poll() is None for it in running):
        time.sleep(0.5)
        if any(it.poll() for it in running):
            for it in running:
                it.kill()
    return next((rank for rank, it in enumerate(running) if it.wait() > 0), None)


def start_ranks(script: str, ranks: int, folder: str, arguments: list[Any], env: dict[str, str]) -> str:
    """Runs `script` once for each rank of a data-parallel group, and returns the log of the first rank."""
    meet = {"VLLM_DP_SIZE": str(ranks), "VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": str(free_port())}
    running = []
    for rank in range(ranks):
        own = {"VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank), **meet, **env}
        command = [sys.executable, script, "--serve", json.dumps([rank, ranks, folder, *arguments])]
        with Path(folder, f"log-{rank}").open("w") as log:
            running.append(subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT))
    failed = first_failed(running)
    if failed is not None:
        lines = Path(folder, f"log-{failed}").read_text().splitlines()
        # The first traceback is that of the process that failed first; others follow from it.
        first = next((number for number, line in enumerate(lines) if "Traceback (most recent" in line), 0)
        raise SystemExit("\n".join([f"{arguments}: rank {failed} fails", *lines[first : first + MOST_LINES]]))
    return Path(folder, "log-0").read_text()


def line_of_epforge(log: str) -> str:
    """The line of the log that says who served."""
    return next((line for line in log.splitlines() if "EPForge" in line and "serves" in line), "")


def run(ranks: int, backend: str, graphs: bool, attention: str) -> tuple[list[Any], str]:
    """What the first rank has made, and the line of the log that says who served."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        said = line_of_epforge(start_ranks(__file__, ranks, folder, [backend, graphs, attention], {}))
        return json.loads(Path(folder, "made-0.json").read_text()), said


def require_gpus(ranks: int) -> None:
    """Ends the program if there are too few GPUs, and asks for no torch: it would use a GPU before the ranks do."""
    found = (
        subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True) if which("nvidia-smi") else None
    )
    gpus = len(found.stdout.splitlines()) if found else 0
    if gpus < ranks:
        raise SystemExit(f"vLLM needs a GPU for each of {ranks} ranks, and there are {gpus} here")


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
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.serve:
        return serve(*json.loads(given.serve))
    require_gpus(given.ranks)
    is_right = True
    print("| backend | decoding | tokens as with the first one | log-probabilities apart by at most | |")
    print("|---|---|---|---|---|")
    with ThreadPoolExecutor(given.at_once) as pool:
        running = [(*it, pool.submit(run, given.ranks, *it, given.attention)) for it in RUNS]
        wanted = running[0][2].result()[0]
        for backend, graphs, made in running:
            is_right &= show(backend, graphs, made.result, wanted)
    raise SystemExit(0 if is_right else 1)


def show(backend: str, graphs: bool, result: Callable[[], tuple[list[Any], str]], wanted: list[Any]) -> bool:
    """Prints the row of a backend, and returns whether it agrees with what is wanted."""
    try:
        made, said = result()
    except SystemExit as error:
        print(f"| {backend} | {'in graphs' if graphs else 'eager'} | fails | | FAILS |\n\n{error}\n", flush=True)
        return False
    same, count, apart = compared(made, wanted)
    # Where two tokens are about as likely, a rounding decides, and what follows is another text.
    agrees = apart < MOST_APART and same > 0 and (backend == RUNS[0][0] or f"`{backend}`" in said)
    how = "in graphs" if graphs else "eager"
    print(f"| {backend} | {how} | {same} of {count} | {apart:.4f} | {'agrees' if agrees else 'DIFFERS'} |", flush=True)
    return agrees


if __name__ == "__main__":
    main()
