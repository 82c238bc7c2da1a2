"""Three ways to time a callable on a CUDA device.

`graph` records it into a CUDA graph and times replays. `queued` queues calls behind a pause, so that the host is ahead
and only the device's time counts. `eager` times single calls on an idle device, including all host work. All runs use
the same buffers, so data that fits the device's cache is read from there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

Work = Callable[[], Any]
WARM_UP = 3
_PAUSE_CYCLES = 20_000_000  # about ten milliseconds, in which the host queues every run


@dataclass(frozen=True)
class Timing:
    """Milliseconds."""

    median: float
    low: float  # the 10th percentile
    high: float  # the 90th percentile
    runs: int

    def as_dict(self) -> dict[str, float]:
        """Return the fields for JSON."""
        return asdict(self)


def summary_of(times: list[float]) -> Timing:
    """Return the median and percentiles."""
    ordered = sorted(times)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))


def graph(work: Work, runs: int = 50) -> Timing:
    """Time replays of a CUDA graph of `work`, each between two events."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):  # compile and load kernels here: a capture must not do it
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded, stream=side):
        result = work()  # the result is in the graph's memory
    torch.cuda.synchronize()
    try:
        return queued(recorded.replay, runs)
    finally:
        torch.cuda.synchronize()
        del result
        recorded.reset()


def queued(work: Work, runs: int = 50) -> Timing:
    """Time calls in a queue with events between them, with the host ahead of the device."""
    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    torch.cuda._sleep(_PAUSE_CYCLES)
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return summary_of([a.elapsed_time(b) for a, b in pairwise(marks)])


def eager(work: Work, runs: int = 50) -> Timing:
    """Time single calls on an idle device, between two events."""
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(runs):
        begun, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begun.record()
        work()
        done.record()
        done.synchronize()
        times.append(begun.elapsed_time(done))
    return summary_of(times)


def on_host(work: Work, runs: int = 5) -> Timing:
    """Time by the host's clock, to try out the scripts without a device."""
    work()
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) * 1e3)
    return summary_of(times)


CLOCKS = {"graph": graph, "queued": queued, "eager": eager}
