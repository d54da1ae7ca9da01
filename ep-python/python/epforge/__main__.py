"""The command line `epforge`: what the Rust binary of this name does."""

from __future__ import annotations

import os
import signal
import sys

from . import _core


def main() -> int:
    """Runs the command line of this process, and gives its exit code."""
    # Ranks that share a GPU want a queue for each of their streams, before the driver starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    # What this command starts again is this interpreter with this module.
    os.environ["EPFORGE_PYTHON"] = sys.executable
    # The work is done outside of the interpreter, which would only see an interrupt after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.run_command(["epforge", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
