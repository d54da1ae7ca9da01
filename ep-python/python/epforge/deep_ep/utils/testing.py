"""Times of kernels, as tests of deep_ep take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..._core import Mismatch
from .._torch import require

#: Bytes that push everything else out of the L2 cache, and cycles for which all ranks can get ready.
FLUSHED, SLEPT = 256 << 20, 20_000_000


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Callable[[], Any] | None = None,
) -> Any:
    """Seconds on the GPU of the kernels whose names contain each of some words, on average over many calls.

    With ``barrier_comm_profiling`` the ranks begin each call together: behind a ``barrier`` of their own, or a
    sum over all ranks. If each call runs ``num_kernels_per_period`` kernels with a name, the result has a list of
    their times in the order of their starts. Nothing is printed, with or without ``suppress_kineto_output``.
    """
    torch = require()
    together = torch.ones(1, dtype=torch.float32, device="cuda")

    def once() -> None:
        if flush_l2:
            torch.empty(FLUSHED, dtype=torch.int8, device="cuda").zero_()
        if barrier_comm_profiling:
            torch.cuda._sleep(SLEPT)
            barrier() if barrier is not None else torch.distributed.all_reduce(together)
        fn()

    # What is compiled or allocated at the first call is no part of the times.
    once()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_tests):
            once()
        torch.cuda.synchronize()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    times: tuple[Any, ...]
    if num_kernels_per_period > 1:
        # The kernels alone: an event of the host may have a kernel's name, but no time on the GPU.
        ran = sorted((event for event in profiler.events() if event.self_device_time_total), key=started)
        times = seconds_in_turn(ran, names, num_kernels_per_period)
    else:
        times = seconds_of(profiler.key_averages(), names)
    return times[0] if isinstance(kernel_names, str) else times


def bench(
    fn: Callable[[], Any], num_warmups: int = 50, num_tests: int = 50, post_fn: Callable[[], Any] | None = None
) -> tuple[float, float, float]:
    """Seconds of a call on its stream: the mean, the least and the most. ``post_fn`` runs between two calls."""
    cuda = require().cuda
    for _ in range(num_warmups):
        fn()
    require().empty(FLUSHED, dtype=require().int8, device="cuda").zero_()
    between = []
    for _ in range(num_tests):
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        fn()
        end.record()
        between.append((begin, end))
        if post_fn is not None:
            post_fn()
    cuda.synchronize()
    times = [begin.elapsed_time(end) / 1e3 for begin, end in between]
    # The first call also waits for the other ranks to begin.
    times = times[1:] or times
    return sum(times) / len(times), min(times), max(times)


def started(event: Any) -> float:
    return float(event.time_range.start)


def seconds_in_turn(events: Iterable[Any], names: tuple[str, ...], period: int) -> tuple[list[float], ...]:
    """For each name the mean times of the first kernel of a call whose name contains it, of the second, and so on."""
    ran = list(events)
    times = []
    for name in names:
        found = [event.self_device_time_total for event in ran if name in event.name]
        if not found or len(found) % period:
            raise Mismatch(f"{len(found)} kernels that ran have names with `{name}`, not {period} in each call")
        calls = len(found) // period
        times.append([sum(found[turn::period]) / calls / 1e6 for turn in range(period)])
    return tuple(times)


def seconds_of(events: Iterable[Any], names: tuple[str, ...]) -> tuple[float, ...]:
    """For each name the mean times of the kernels whose names contain it, added up, from microseconds."""
    ran = [event for event in events if event.self_device_time_total]
    means = {event.key: event.self_device_time_total / event.count for event in ran}
    times = []
    for name in names:
        found = [mean for key, mean in means.items() if name in key]
        if not found:
            raise Mismatch(f"no kernel that ran has a name with `{name}`: there were {', '.join(sorted(means))}")
        times.append(sum(found) / 1e6)
    return tuple(times)
