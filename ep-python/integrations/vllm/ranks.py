"""The processes of a data-parallel vLLM, one for each rank, and the folder through which they meet."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import Any, NoReturn, TypeVar

#: Lines of a log that are shown when a rank fails.
MOST_LINES = 80

#: Seconds between two looks at the folder, and seconds that ranks have to end before they are killed.
LOOK, TO_END = 0.05, 20.0

#: Where the ranks of one engine after another meet.
PORTS = iter(range(random.randrange(20000, 26000), 32000, 50))

Run = TypeVar("Run")


class Ranks:
    """The ranks of one engine: each runs `script --serve` with its options, and leaves files in the folder."""

    def __init__(
        self, script: str, ranks: int, model: dict[str, Any], options: list[Any], env: dict[str, str] | None = None
    ) -> None:
        self._options = options
        self._home = tempfile.TemporaryDirectory()
        self._folder = Path(self._home.name)
        Path(self._folder, "config.json").write_text(json.dumps(model))
        meet = {"VLLM_DP_SIZE": str(ranks), "VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": str(free_port())}
        self._running = []
        for rank in range(ranks):
            own = {"VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank), **meet, **(env or {})}
            command = [sys.executable, script, "--serve", json.dumps([rank, ranks, self._home.name, *options])]
            with self._log(rank).open("w") as log:
                # An engine has processes of its own, which end with their group.
                self._running.append(
                    subprocess.Popen(
                        command, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT, process_group=0
                    )
                )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(TO_END if kind is None else 0)
        self._home.cleanup()

    def _end(self, patience: float) -> None:
        """Waits for the processes to end, and kills those that have not ended then."""
        until = time.monotonic() + patience
        try:
            while any(it.poll() is None for it in self._running) and time.monotonic() < until:
                time.sleep(LOOK)
        finally:
            for it in self._running:
                if it.poll() is None:
                    os.killpg(it.pid, signal.SIGKILL)
                    it.wait()

    def _log(self, rank: int) -> Path:
        return self._folder / f"log-{rank}"

    def wait_for(self, name: str, limit: float) -> None:
        """Waits until all ranks have left the file `name`. If a rank fails or they take too long, ends all."""
        until, ranks = time.monotonic() + limit, range(len(self._running))
        while missing := [rank for rank in ranks if not file_of(self._folder, name, rank).exists()]:
            failed = next((rank for rank in missing if self._running[rank].poll() is not None), None)
            if failed is not None and not file_of(self._folder, name, failed).exists():
                lines = self._log(failed).read_text().splitlines()
                # The first traceback is that of the process that failed first; others follow from it.
                first = next((number for number, line in enumerate(lines) if "Traceback (most recent" in line), 0)
                self._fail(f"rank {failed} fails", lines[first:][:MOST_LINES])
            if time.monotonic() > until:
                lines = [line for rank in missing for line in self._log(rank).read_text().splitlines()[-MOST_LINES:]]
                self._fail(f"ranks {missing} leave no `{name}` in {limit:.0f} s", lines)
            time.sleep(LOOK)

    def _fail(self, why: str, lines: list[str]) -> NoReturn:
        # A rank that waits for another one would keep its GPU busy.
        self._end(0)
        raise SystemExit("\n".join([f"{self._options}: {why}", *lines]))

    def go(self) -> None:
        """Lets ranks on that wait for their turn."""
        (self._folder / "go").touch()

    def made(self) -> list[Any]:
        """What each rank has made."""
        return [json.loads(file_of(self._folder, "made", rank).read_text()) for rank in range(len(self._running))]

    def line_of_epforge(self) -> str:
        """The line of the first rank's log that says who served."""
        return next((line for line in self._lines() if "EPForge" in line and "serves" in line), "")

    def has_moved_experts(self) -> bool:
        """Whether EPLB has moved experts, other than to see how much memory that takes."""
        return any("Rearranged experts" in line and "(profile)" not in line for line in self._lines())

    def _lines(self) -> list[str]:
        """The lines of the first rank's log."""
        return self._log(0).read_text().splitlines()


def file_of(folder: str | Path, name: str, rank: int) -> Path:
    """The file that a rank leaves."""
    return Path(folder, f"{name}-{rank}")


def leave(folder: str, name: str, rank: int, value: Any = None) -> None:
    """Leaves a file of a rank: others see all of it, or nothing."""
    part = Path(folder, f"part-{rank}")
    part.write_text(json.dumps(value))
    part.rename(file_of(folder, name, rank))


def leave_with_all(folder: str, name: str, rank: int, ranks: int, value: Any = None) -> None:
    """Leaves a file of a rank and waits for those of all ranks: each needs the others until all are done."""
    leave(folder, name, rank, value)
    while not all(file_of(folder, name, other).exists() for other in range(ranks)):
        time.sleep(LOOK)
    # The engines go on together for a few steps.
    time.sleep(1)


def wait_for_turn(folder: str, rank: int) -> None:
    """Says that this rank is ready, and waits until it is the turn of its engine."""
    leave(folder, "ready", rank)
    while not Path(folder, "go").exists():
        time.sleep(LOOK)


def free_port() -> int:
    """A port that nobody listens at, nor at those behind it, which vLLM also takes."""
    for port in PORTS:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise SystemExit("no port is free")


def require_gpus(ranks: int) -> None:
    """Ends the program if there are too few GPUs, and asks for no torch: it would use a GPU before the ranks do."""
    found = (
        subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True) if which("nvidia-smi") else None
    )
    gpus = len(found.stdout.splitlines()) if found else 0
    if gpus < ranks:
        raise SystemExit(f"vLLM needs a GPU for each of {ranks} ranks, and there are {gpus} here")


def in_parts(runs: Sequence[Run], most: int) -> list[Sequence[Run]]:
    """The runs in parts of so many, which run at the same time."""
    return [runs[first : first + most] for first in range(0, len(runs), most)]


def end_on_signal() -> None:
    """A program that is told to end also ends its ranks."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))


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
