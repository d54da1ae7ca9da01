"""Arguments of deep_ep that mean something else here, or nothing: a program that sets one hears of it, once."""

from __future__ import annotations

import logging
import os
from typing import Any

LOG = logging.getLogger("epforge")

#: Queue pairs that a program of deep_ep asks for if it does not say, and the most that a card has for each peer.
USUAL_QUEUES, MOST_QUEUES = 24, 8

QUEUES = "the network's own thread has as many queues as it needs"
KERNEL = "a card that is a kernel has two queue pairs for each peer"
NAMED = "`EPFORGE_NET` says how many queue pairs a card has for each peer"
CHUNKS = "rows go straight to their places, and not by chunks"
NODES = "rows go over NVLink within a host, and over the network that `EPFORGE_NET` names between hosts"

SLOTS = "kernels copy rows for other nodes to the slots that they are sent from"

#: Arguments and calls that somebody has heard of.
_TOLD: set[str] = set()


def net_with_queues(count: int) -> str | None:
    """The network between nodes, with so many queue pairs for each peer if it has any; None: as `EPFORGE_NET` says."""
    net = os.environ.get("EPFORGE_NET", "")
    name, _, settings = net.partition(":")
    if name != "ibgda" or "queues=" in settings:
        why = NAMED if name == "ibgda" else KERNEL if name == "card" else QUEUES
        tell_of_ignored(why, num_qps_per_rank=(count, USUAL_QUEUES))
        return None
    if count == USUAL_QUEUES:
        return None
    queues = min(max(count, 1), MOST_QUEUES)
    if queues != count and "num_qps_per_rank" not in _TOLD:
        _TOLD.add("num_qps_per_rank")
        LOG.warning(
            f"deep_ep: `num_qps_per_rank={count}` becomes {queues}: a card has 1 to {MOST_QUEUES} for each peer"
        )
    return f"{name}:{settings}{',' if settings else ''}queues={queues}"


def tell_of_ignored(why: str, **given: tuple[Any, Any]) -> None:
    """Says in the log, once in a process for each argument, that its value changes nothing, if it is not the usual one.

    ``given`` has for each argument its value and the usual one.
    """
    for name, (value, usual) in given.items():
        if value != usual:
            tell_once(name, f"`{name}={value}` changes nothing: {why}")


def tell_once(name: str, sentence: str) -> None:
    """Says something about an argument or a call in the log, once in a process."""
    if name not in _TOLD:
        _TOLD.add(name)
        LOG.warning(f"deep_ep: {sentence}")
