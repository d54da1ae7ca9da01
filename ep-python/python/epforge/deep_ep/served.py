"""What plug-ins of frameworks have in common: the frameworks import `deep_ep`, which has to be EPForge's."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys
from functools import cache

from .. import _core

FACADE = __name__.rpartition(".")[0]


def check_name() -> None:
    """Fails if programs find another module under the name ``deep_ep``, or none."""
    mend = "uninstall `deep_ep` and `sgl-deep-ep`, and then install epforge-deep-ep again"
    try:
        found = importlib.import_module("deep_ep")
    except Exception as error:
        raise _core.Missing(f"`deep_ep` cannot be imported ({error}): {mend}") from error
    if found is not sys.modules[FACADE]:
        raise _core.Missing(f"`deep_ep` is {found.__file__}, and not EPForge's: {mend}")


@cache
def tell(log: logging.Logger, framework: str, backend: str) -> None:
    """Says in the log, once in a process, which version serves a backend of a framework."""
    version = importlib.metadata.version(framework)
    log.info(f"EPForge {_core.__version__} serves `{backend}` of {framework} {version}")
