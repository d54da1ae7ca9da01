"""The examples, as torchrun starts them. `--full` runs this."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


class Examples(unittest.TestCase):
    """The examples print what docs/ci.md shows."""

    def test_a_layer_without_a_gpu(self) -> None:
        page = (EXAMPLES.parents[1] / "docs" / "ci.md").read_text()
        wanted = page.split("```text\n")[1].split("```")[0]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(EXAMPLES / "moe_layer.py")]
        # Without a GPU, whatever is here.
        ran = subprocess.run(
            command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=600
        )
        self.assertEqual(ran.returncode, 0, ran.stderr[-3000:])
        self.assertEqual(sorted(ran.stdout.splitlines()), wanted.splitlines())


if __name__ == "__main__":
    unittest.main()
