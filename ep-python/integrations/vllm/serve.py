"""Serving figures of vLLM with EPForge behind its deepep backends, beside its backend `allgather_reducescatter`.

``python serve.py`` serves a model with the mixture-of-experts layers of DeepSeek-V3 and random weights, with data and
expert parallelism on 2 GPUs, once for each backend. It prints the time between two tokens for several numbers of
sequences on each rank, the tokens per second of all ranks, and the time of a step that reads long prompts.
``--original FOLDER`` also runs the deepep backends on the module `deep_ep` of that folder, without EPForge. With
``--at-once N`` engines start together, and are measured in turn while the others wait.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ranks import Ranks, end_on_signal, engine_of, in_parts, leave_with_all, require_gpus, wait_for_turn

#: The shapes of DeepSeek-V3's mixture-of-experts layers behind an attention with few keys. Each of 2 GPUs has the 16
#: experts that each of 16 GPUs would have: with all 256, reading weights would take most of the time.
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "vocab_size": 16384, "hidden_size": 7168, "num_hidden_layers": 4, "num_attention_heads": 56,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2048, "moe_intermediate_size": 2048,
    "num_experts": 32, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

#: Sequences of a rank, the tokens of their prompts, and the tokens that are made for each.
BATCHES, START, MADE = (1, 8, 32, 128), 16, 48

#: Tokens of a long prompt, and how often a step reads one.
PROMPT, READ = 4096, 6

#: DeepEP's calls for prefill wait for the host, so vLLM's layers for them cannot be captured in CUDA graphs.
EAGER = "deepep_high_throughput"

#: Backends that run on EPForge, and the most tokens of a step. Rows packed by expert have room for each rank's most
#: tokens on every expert, so `deepep_low_latency` decodes and reads no long prompts.
BASE = "allgather_reducescatter"
OURS = (("deepep_v2", PROMPT), ("deepep_high_throughput", PROMPT), ("deepep_low_latency", 256))

#: The first API, which the original DeepEP has without NCCL's GIN.
ORIGINAL = OURS[1:]


def prompt(tokens: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [random.randrange(3, MODEL["vocab_size"]) for _ in range(tokens)]}


def stamps(engine: Any, batch: int, length: int, made: int) -> list[float]:
    """The start, and the end of each step in which every sequence got a token."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=1.0, max_tokens=made, ignore_eos=True, detokenize=False)
    steps = engine.llm_engine
    times, left = [time.perf_counter()], batch
    for number in range(batch):
        steps.add_request(f"{times[0]}-{number}", prompt(length), sampling)
    while left:
        outputs = steps.step()
        if len(outputs) == batch:
            times.append(time.perf_counter())
        left -= sum(output.finished for output in outputs)
    return times


def serve(rank: int, ranks: int, folder: str, backend: str, most: int, batches: list[int], attention: str) -> None:
    """One rank: its times in seconds go into a file."""
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": batches}
    engine = engine_of(
        folder,
        backend,
        attention,
        **({"enforce_eager": True} if backend == EAGER else {"compilation_config": graphs}),
        max_model_len=PROMPT + 64,
        max_num_batched_tokens=most,
        max_num_seqs=max(batches),
        kv_cache_memory_bytes=1 << 29,
    )
    random.seed(rank)
    told: dict[str, float] = {}
    for batch in batches:
        stamps(engine, batch, START, 4)
    if most >= PROMPT:
        stamps(engine, 1, PROMPT, 1)
    wait_for_turn(folder, rank)
    for batch in batches:
        times = stamps(engine, batch, START, MADE)
        # The steps before the first stamp read prompts.
        told[str(batch)] = statistics.median(end - begin for begin, end in itertools.pairwise(times[1:]))
    if most >= PROMPT:
        read = [stamps(engine, 1, PROMPT, 1) for _ in range(READ)]
        told["prompt"] = statistics.median(end - begin for begin, end in read)
    leave_with_all(folder, "made", rank, ranks, told)


def start(ranks: int, model: dict[str, Any], options: list[Any], original: str) -> Ranks:
    """The ranks of a backend, on the module `deep_ep` of a folder if there is one."""
    first = os.pathsep.join([original, os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": first, "VLLM_PLUGINS": ""} if original else {}
    return Ranks(__file__, ranks, model, options, env)


def row(ranks: Ranks, backend: str, batches: list[int], original: str, limit: float) -> tuple[str, dict[str, Any]]:
    """The row of a backend in the table, and as a record: times of the slowest rank."""
    ranks.go()
    ranks.wait_for("made", limit)
    said, made = ranks.line_of_epforge(), ranks.made()
    if (f"`{backend}`" in said) != (backend != BASE and not original):
        raise SystemExit(f"{backend}: the log says who serves: {said or 'not EPForge'}")
    worst = {name: max(one[name] for one in made) for name in made[0]}
    count = len(made)
    cells = [f"{1000 * worst[str(it)]:.2f} / {count * it / worst[str(it)]:.0f}" for it in batches]
    read = f"{1000 * worst['prompt']:.1f} / {count * PROMPT / worst['prompt']:.0f}" if "prompt" in worst else ""
    who = "DeepEP" if original else "" if backend == BASE else "EPForge"
    told = {"backend": backend, "on": who, "ms": {name: round(1000 * value, 4) for name, value in worst.items()}}
    return " | ".join(["", backend, who, *cells, read, ""]).strip(), told


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--layers", type=int, default=MODEL["num_hidden_layers"])
    arguments.add_argument("--experts", type=int, default=MODEL["num_experts"])
    arguments.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    arguments.add_argument("--backends", nargs="+", default=[BASE, *dict(OURS)])
    arguments.add_argument("--attention", default="", help="an attention backend other than vLLM's choice")
    arguments.add_argument("--original", default="", help="a folder with the original module deep_ep")
    arguments.add_argument("--at-once", type=int, default=1, help="engines that start at the same time")
    arguments.add_argument("--limit", type=float, default=600, help="seconds until an engine has to be ready or done")
    arguments.add_argument("--json", default="", help="a file for one record of each row")
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.serve:
        return serve(*json.loads(given.serve))
    require_gpus(given.ranks)
    end_on_signal()
    model = {**MODEL, "num_hidden_layers": given.layers, "num_experts": given.experts}
    runs = [(BASE, PROMPT, ""), *((*it, "") for it in OURS)]
    runs += [(*it, given.original) for it in ORIGINAL if given.original]
    print(f"Each cell: ms between tokens, or of a step / tokens per second of {given.ranks} ranks.\n")
    print(f"| backend | on | {' | '.join(f'{it} sequences' for it in given.batches)} | {PROMPT} tokens read |")
    print("|---|---|" + "---|" * (len(given.batches) + 1), flush=True)
    failed: list[str] = []
    for some in in_parts([it for it in runs if it[0] in given.backends], given.at_once):
        failed += measure(some, model, given)
    raise SystemExit("\n\n".join(failed) or 0)


def measure(runs: Sequence[tuple[str, int, str]], model: dict[str, Any], given: argparse.Namespace) -> list[str]:
    """Starts the engines of some rows, prints a row for each in turn, and returns what has failed."""
    failed = []
    with ExitStack() as stack:
        started = []
        for backend, most, original in runs:
            ranks = start(given.ranks, model, [backend, most, given.batches, given.attention], original)
            started.append((backend, original, stack.enter_context(ranks)))
        ready = []
        for it in started:
            try:
                it[2].wait_for("ready", given.limit)
                ready.append(it)
            except SystemExit as error:
                failed.append(str(error))
        for backend, original, ranks in ready:
            try:
                shown, told = row(ranks, backend, given.batches, original, given.limit)
            except SystemExit as error:
                failed.append(str(error))
                continue
            print(shown, flush=True)
            if given.json:
                with Path(given.json).open("a") as file:
                    file.write(json.dumps({**told, **facts(model, given)}) + "\n")
    return failed


def facts(model: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """What was served, for a record."""
    shape = {name: model[name] for name in ("hidden_size", "num_hidden_layers", "num_experts", "num_experts_per_tok")}
    return {**shape, "ranks": given.ranks, "vllm": importlib.metadata.version("vllm")}


if __name__ == "__main__":
    main()
