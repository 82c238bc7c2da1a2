"""Scaling: rowgrad on one thread and on all, beside plain reads of the same rows in the same order.

What memory cannot give, no kernel can: rowgrad's speed-up is judged by that of `np.take`, which reads the rows into a
small buffer and does nothing else.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import rowgrad as rg

from .cases import SIX, Array, Arrays, Case
from .peers import rowgrad as peer
from .progress import Progress
from .worker import Call, seconds_of

Measured = dict[str, Any]
KINDS = ("forward", "rows", "dense_kept")
BUFFER = 1 << 19  # bytes of rows read at a time: they stay in a core's cache, and threads seldom wait for the GIL
LEAST = 0.85  # of the probe's speed-up
TELLING = 1e-3  # seconds on one thread from which a case is judged


def measure_scaling(cases: list[Case], threads: int, rounds: int, repeats: int, progress: Progress) -> list[Measured]:
    """Times and speed-ups of every case and kind."""
    found = []
    for case in cases:
        arrays = case.arrays()
        for kind in KINDS:
            progress.begin(f"series threads, {case.name} {kind}")
            found.append(_measure(case.name, kind, arrays, threads, rounds, repeats))
    return found


def _measure(case: str, kind: str, arrays: Arrays, threads: int, rounds: int, repeats: int) -> Measured:
    call = peer.KINDS[kind](arrays)
    if call is None:
        raise ValueError(f"no call of kind {kind!r}")
    source, order = reads(kind, arrays)
    with ThreadPoolExecutor(threads) as pool:
        times = _in_turn(
            {
                "one": lambda: _on_threads(1, call),
                "all": lambda: _on_threads(threads, call),
                "probe_one": lambda: take_rows(source, order, 1, pool),
                "probe_all": lambda: take_rows(source, order, threads, pool),
            },
            rounds,
            repeats,
        )
    ours, probe = times["one"] / times["all"], times["probe_one"] / times["probe_all"]
    ups = {"speed_up": ours, "probe_speed_up": probe, "quotient": ours / probe}
    return {"case": case, "kind": kind, "threads": threads, **times, **ups}


def reads(kind: str, x: Arrays) -> tuple[Array, Array]:
    """The rows a kind reads and their order: the table by ids, or the gradient by bags, sorted by table row."""
    if kind == "forward":
        return peer.typed(x, "table"), x["ids"].astype(np.intp)
    return peer.typed(x, "grad"), x["segments"][np.argsort(x["ids"], kind="stable")].astype(np.intp)


def take_rows(source: Array, order: Array, threads: int, pool: ThreadPoolExecutor) -> None:
    """Read rows into small buffers, a contiguous share of the order by each thread; NumPy does so without the GIL."""
    step = max(1, BUFFER // (source.itemsize * source.shape[1]))

    def share(places: Array) -> None:
        buffer = np.empty((step, source.shape[1]), source.dtype)
        for start in range(0, len(places), step):
            part = places[start : start + step]
            np.take(source, part, axis=0, out=buffer[: len(part)], mode="clip")

    list(pool.map(share, np.array_split(order, threads)))


def _on_threads(n: int, call: Call) -> Any:
    if rg.num_threads() != n:
        rg.set_num_threads(n)
    return call()


def _in_turn(calls: dict[str, Call], rounds: int, repeats: int) -> dict[str, float]:
    """The least time of each call, rounds going round all of them."""
    least = dict.fromkeys(calls, float("inf"))
    before = rg.num_threads()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                call()  # once untimed: threads awake, caches as this call leaves them
                least[name] = min(least[name], *(seconds_of(call) for _ in range(repeats)))
    finally:
        rg.set_num_threads(before)
    return least


def usable_cases(names: list[str]) -> list[Case]:
    """The cases among the six that were named, or all six."""
    return [case for case in SIX if case.name in names] or list(SIX)


def report(measured: list[Measured]) -> list[str]:
    """A line per case and kind; `!` marks a quotient below its target."""
    n = measured[0]["threads"]
    lines = [
        f"{'case':12} {'kind':11} {'1 thread ms':>12} {f'{n} ms':>9} {'speed-up':>9} {'of reads':>9} {'quotient':>9}",
    ]
    for m in measured:
        mark = " !" if m["quotient"] < LEAST and m["one"] > TELLING else ""
        times = f"{m['one'] * 1e3:12.3f} {m['all'] * 1e3:9.3f}"
        ups = f"{m['speed_up']:9.2f} {m['probe_speed_up']:9.2f} {m['quotient']:9.2f}"
        lines.append(f"{m['case']:12} {m['kind']:11} {times} {ups}{mark}")
    lines.append(
        f"quotient: rowgrad's speed-up by that of plain reads; target {LEAST} where one thread takes over 1 ms"
    )
    return lines
