"""vLLM's two scripts in `integrations`, on a stand-in for vLLM that makes tokens without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent / "integrations" / "vllm"

#: `FAILS` and `HANGS` name backends whose second rank does not get ready, and `STAYS` one that moves no experts.
VLLM = """
import os, time
from types import SimpleNamespace as SamplingParams
class Engine:
    def __init__(self):
        self.left = {}
    def add_request(self, name, prompt, params):
        self.left[name] = params.max_tokens
    def step(self):
        time.sleep(0.001)
        self.left = {name: count - 1 for name, count in self.left.items() if count}
        return [SamplingParams(finished=not count) for count in self.left.values()]
class LLM:
    def __init__(self, all2all_backend, **options):
        if os.environ["VLLM_DP_RANK"] == "1":
            if all2all_backend == os.environ.get("FAILS"):
                raise ValueError("no such backend")
            if all2all_backend == os.environ.get("HANGS"):
                time.sleep(600)
        if "VLLM_PLUGINS" not in os.environ and "deepep" in all2all_backend:
            print(f"EPForge 0.1.0 serves `{all2all_backend}` of vllm 0.26.0", flush=True)
        if options.get("enable_eplb"):
            print("Rearranged experts  (profile)  in 0.01 s.", flush=True)
            if all2all_backend != os.environ.get("STAYS"):
                print("Rearranged experts   in 0.01 s.", flush=True)
        self.llm_engine = Engine()
    def generate(self, requests, params, use_tqdm):
        made = [{5: SamplingParams(logprob=-1.0)}] * params.max_tokens
        one = SamplingParams(token_ids=[5] * params.max_tokens, logprobs=made)
        return [SamplingParams(outputs=[one]) for _ in requests]
"""


class Scripts(unittest.TestCase):
    """What the scripts print and how they end."""

    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.home / "vllm-0.26.0.dist-info").mkdir()
        (self.home / "vllm-0.26.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.26.0\n")
        (self.home / "vllm.py").write_text(VLLM)
        (self.home / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0; echo GPU 1\n")
        (self.home / "nvidia-smi").chmod(0o755)

    def run_script(self, name: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        found = {"PATH": f"{self.home}:{os.environ['PATH']}", "PYTHONPATH": str(self.home)}
        command = [sys.executable, str(SCRIPTS / name), *options]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **found, **env}, timeout=100)

    def test_a_rank_that_fails_leaves_the_other_rows(self) -> None:
        run = self.run_script("compare.py", "--at-once", "9", FAILS="deepep_v2", STAYS="deepep_high_throughput")
        rows = [line for line in run.stdout.splitlines() if line.startswith("|")][2:]
        agrees, stays = (f"48 of 48 | 0.0000 | {end} |" for end in ("agrees", "NO EXPERT MOVED"))
        wanted = [agrees] * 4 + ["FAILS |"] * 2 + [stays, agrees, agrees]
        self.assertEqual(
            [row.endswith(end) for row, end in zip(rows, wanted, strict=True)], [True] * 9, run.stdout + run.stderr
        )
        self.assertIn("ValueError: no such backend", run.stdout)
        self.assertEqual(run.returncode, 1)

    def test_engines_are_measured_in_turn(self) -> None:
        told = self.home / "told.jsonl"
        options = ["--at-once", "6", "--batches", "1", "4", "--original", "/original"]
        run = self.run_script("serve.py", *options, "--json", str(told), FAILS="deepep_v2")
        records = [json.loads(line) for line in told.read_text().splitlines()]
        ours, theirs = ("deepep_high_throughput", "deepep_low_latency"), "DeepEP"
        wanted = [("allgather_reducescatter", ""), *((it, "EPForge") for it in ours), *((it, theirs) for it in ours)]
        self.assertEqual([(it["backend"], it["on"]) for it in records], wanted, run.stderr)
        self.assertEqual(
            [sorted(it["ms"]) for it in records], [["1", "4", "prompt"][: 2 + (it != ours[1])] for it, _ in wanted]
        )
        self.assertEqual((records[0]["vllm"], records[0]["num_experts"]), ("0.26.0", 32))
        self.assertIn("ValueError: no such backend", run.stderr)
        self.assertEqual(run.returncode, 1)

    def test_an_engine_that_does_not_get_ready_ends(self) -> None:
        run = self.run_script("serve.py", "--backends", "deepep_v2", "--limit", "1", HANGS="deepep_v2")
        self.assertRegex(run.stderr, r"ranks \[.*1\] leave no `ready` in 1 s")
        self.assertEqual(run.returncode, 1)


if __name__ == "__main__":
    unittest.main()
