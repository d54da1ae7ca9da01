"""Arguments of deep_ep that change nothing here: a program that sets one hears of it, once."""

from __future__ import annotations

import logging
from typing import Any

LOG = logging.getLogger("epforge")

QUEUES = "the network's own thread has as many queues as it needs"
CHUNKS = "rows go straight to their places, and not by chunks"
NODES = "rows go over NVLink within a host, and over the network that `EPFORGE_NET` names between hosts"

#: Arguments that somebody has heard of.
_TOLD: set[str] = set()


def tell_of_ignored(why: str, **given: tuple[Any, Any]) -> None:
    """Says in the log, once in a process for each argument, that its value changes nothing, if it is not the usual one.

    ``given`` has for each argument its value and the usual one.
    """
    for name, (value, usual) in given.items():
        if value != usual and name not in _TOLD:
            _TOLD.add(name)
            LOG.warning(f"deep_ep: `{name}={value}` changes nothing: {why}")
