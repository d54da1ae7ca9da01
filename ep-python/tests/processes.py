"""Ranks that are processes, which meet through pipes of rank 0."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import epforge

#: Brings what every rank passes to all of them.
Gather = Callable[[Any], list[Any]]


def fails_with(sentence: str, call: Callable[[], Any], kind: type[epforge.Error] = epforge.Error) -> None:
    """Fails unless a call is refused with a sentence."""
    try:
        call()
    except kind as error:
        assert str(error) == sentence, str(error)
    else:
        raise AssertionError(sentence)


def run_ranks(ranks: int, task: Callable[..., None], *arguments: Any, nodes: int = 1) -> list[str]:
    """Runs a task in a process for each rank, as torchrun starts it on so many nodes: what went wrong first."""
    context = multiprocessing.get_context("spawn")
    pipes, failed = [context.Pipe() for _ in range(ranks)], context.Queue()
    places = [(rank, ranks, nodes) for rank in range(ranks)]
    running = [context.Process(target=_rank, args=(place, pipes, failed, task, arguments)) for place in places]
    for each in running:
        each.start()
    waiting = {each.sentinel: each for each in running}
    while waiting:
        for sentinel in connection.wait(list(waiting)):
            ended = waiting.pop(sentinel)
            ended.join()
            if ended.exitcode:
                # The others would wait for it.
                for each in waiting.values():
                    each.terminate()
    return [failed.get()] if any(each.exitcode for each in running) else []


def _rank(
    place: tuple[int, int, int], pipes: Any, failed: Any, task: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    rank, ranks, nodes = place
    os.environ["GROUP_RANK"] = str(rank * nodes // ranks)

    def gather(value: Any) -> list[Any]:
        if rank:
            pipes[rank][1].send(value)
            return pipes[rank][1].recv()
        values = [value, *(pipes[other][0].recv() for other in range(1, ranks))]
        for other in range(1, ranks):
            pipes[other][0].send(values)
        return values

    try:
        task(rank, ranks, gather, *arguments)
    except BaseException as error:
        failed.put(f"rank {rank}: {error!r}")
        raise
