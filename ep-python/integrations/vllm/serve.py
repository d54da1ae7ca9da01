"""Serving figures of vLLM with EPForge behind its deepep backends, beside its backend `allgather_reducescatter`.

``python serve.py`` serves a model with the mixture-of-experts layers of DeepSeek-V3 and random weights, with data and
expert parallelism on 2 GPUs, once for each backend. It prints the time between two tokens for several numbers of
sequences on each rank, the tokens per second of all ranks, and the time of a step that reads long prompts.
``--original FOLDER`` also runs the deepep backends on the module `deep_ep` of that folder, without EPForge.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from compare import engine_of, line_of_epforge, require_gpus, start_ranks

#: The shapes of DeepSeek-V3's mixture-of-experts layers behind an attention with few keys.
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "vocab_size": 16384, "hidden_size": 7168, "num_hidden_layers": 4, "num_attention_heads": 56,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2048, "moe_intermediate_size": 2048,
    "num_experts": 256, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

#: Sequences of a rank, the tokens of their prompts, and the tokens that are made for each.
BATCHES, START, MADE = (1, 8, 32, 128), 16, 48

#: Tokens of a long prompt, and how often a step reads one.
PROMPT, READ = 4096, 6

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
    engine = engine_of(
        folder,
        backend,
        attention,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": batches},
        max_model_len=PROMPT + 64,
        max_num_batched_tokens=most,
        max_num_seqs=max(batches),
        kv_cache_memory_bytes=1 << 31,
    )
    random.seed(rank)
    told: dict[str, float] = {}
    for batch in batches:
        stamps(engine, batch, START, 4)
        times = stamps(engine, batch, START, MADE)
        # The steps before the first stamp read prompts.
        told[str(batch)] = statistics.median(end - begin for begin, end in itertools.pairwise(times[1:]))
    if most >= PROMPT:
        read = [stamps(engine, 1, PROMPT, 1) for _ in range(READ)]
        told["prompt"] = statistics.median(end - begin for begin, end in read[1:])
    Path(folder, f"made-{rank}.json").write_text(json.dumps(told))


def measured(ranks: int, model: dict[str, Any], options: list[Any], original: str) -> str:
    """The row of a backend: times of the slowest rank."""
    backend, _, batches, _ = options
    first = os.pathsep.join([original, os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": first, "VLLM_PLUGINS": ""} if original else {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(model))
        said = line_of_epforge(start_ranks(__file__, ranks, folder, options, env))
        if (f"`{backend}`" in said) != (backend != BASE and not original):
            raise SystemExit(f"{backend}: the log says who serves: {said or 'not EPForge'}")
        made = [json.loads(Path(folder, f"made-{rank}.json").read_text()) for rank in range(ranks)]
    worst = {name: max(one[name] for one in made) for name in made[0]}
    cells = [f"{1000 * worst[str(it)]:.2f} / {ranks * it / worst[str(it)]:.0f}" for it in batches]
    read = f"{1000 * worst['prompt']:.1f} / {ranks * PROMPT / worst['prompt']:.0f}" if "prompt" in worst else ""
    who = "DeepEP" if original else "" if backend == BASE else "EPForge"
    return " | ".join(["", backend, who, *cells, read, ""]).strip()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--layers", type=int, default=MODEL["num_hidden_layers"])
    arguments.add_argument("--experts", type=int, default=MODEL["num_experts"])
    arguments.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    arguments.add_argument("--backends", nargs="+", default=[BASE, *dict(OURS)])
    arguments.add_argument("--attention", default="", help="an attention backend other than vLLM's choice")
    arguments.add_argument("--original", default="", help="a folder with the original module deep_ep")
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.serve:
        return serve(*json.loads(given.serve))
    require_gpus(given.ranks)
    model = {**MODEL, "num_hidden_layers": given.layers, "num_experts": given.experts}
    runs = [(BASE, PROMPT, ""), *((*it, "") for it in OURS)]
    runs += [(*it, given.original) for it in ORIGINAL if given.original]
    print(f"Each cell: ms between tokens, or of a step / tokens per second of {given.ranks} ranks.\n")
    print(f"| backend | on | {' | '.join(f'{it} sequences' for it in given.batches)} | {PROMPT} tokens read |")
    print("|---|---|" + "---|" * (len(given.batches) + 1))
    failed = []
    for backend, most, original in runs:
        if backend not in given.backends:
            continue
        try:
            print(measured(given.ranks, model, [backend, most, given.batches, given.attention], original), flush=True)
        except SystemExit as error:
            failed.append(str(error))
    raise SystemExit("\n\n".join(failed) or 0)


if __name__ == "__main__":
    main()
