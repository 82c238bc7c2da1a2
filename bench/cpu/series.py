"""rowgrad alone as sizes or threads grow: measure, fit laws, print, write and draw.

Sizes: every point runs in a fresh process (`point.py`), and times are fitted to a law within each cache regime.
Threads: the speed-up is compared with that of `np.take`, which only reads the same rows in the same order into a small
buffer, because no kernel is faster than the memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import rowgrad as rg
from rowgrad import _core

from .. import child_environment, fit, machine, output
from ..output import Progress
from .cases import SIX, Array, Arrays, Case
from .peers import rowgrad as peer
from .point import Point
from .worker import Call, seconds_of

NAMES = {
    "N": "ids from a thousand to thirty million, bags of 20, V 1,000,000, D 32",
    "V": "rows of the table from a thousand to thirty million, 200,000 ids, D 64",
    "D": "columns from 1 to 1024, 200,000 ids, V 100,000",
    "threads": "one thread and all, the six cases, beside plain reads of the same rows",
}


def run(names: list[str], cases: list[str], chosen: argparse.Namespace) -> None:
    """Measure the listed series; `cases` limits the cases of `threads`."""
    facts: dict[str, Any] = {**machine.facts(chosen.threads), "versions": [f"rowgrad {rg.__version__}"]}
    chosen_points = {s: points(s, chosen.upto) for s in names if s != "threads"}
    six = usable_cases(cases) if "threads" in names else []
    total = sum(map(len, chosen_points.values())) * len(KINDS) + len(six) * len(KINDS)
    progress = Progress(total)
    grown = measure_series(chosen_points, chosen.rounds * chosen.repeats, chosen.threads, progress)
    scaled = measure_threads(six, facts["threads"], chosen.rounds, chosen.repeats, progress)
    progress.clear()
    for name, measured in grown.items():
        print("\n".join(growth_report(name, measured)) + "\n")
    if scaled:
        print("\n".join(threads_report(scaled)))
    if chosen.out and (grown or scaled):
        _write(chosen, facts, grown, scaled)


def _write(
    chosen: argparse.Namespace,
    facts: dict[str, Any],
    grown: dict[str, list[Measured]],
    scaled: list[Measured],
) -> None:
    stem = output.place(chosen.out)
    laws = {
        name: {kind: {r: asdict(law) for r, law in by.items()} for kind, by in fits(measured).items()}
        for name, measured in grown.items()
    }
    rows = [{"series": name, **m} for name, measured in grown.items() for m in measured]
    rows += [{"series": "threads", **m} for m in scaled]
    columns = dict.fromkeys(key for row in rows for key in row)
    parts = {"series": grown, "fits": laws, "threads": scaled}
    written = output.write(stem, facts, parts, [{**dict.fromkeys(columns, ""), **row} for row in rows])
    output.draw_if_possible(chosen.plot, written, lambda: draw_growth(stem, grown) if grown else [])


# -- Growing sizes ----------------------------------------------------------------------------------------------------

Measured = dict[str, Any]
KINDS = ("forward", "rows", "dense_kept")
HALF_DECADES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
SERIES = {
    "N": tuple(Point(n, 1_000_000, 32) for n in HALF_DECADES),
    "V": tuple(Point(200_000, v, 64) for v in HALF_DECADES),
    "D": tuple(Point(200_000, 100_000, d) for d in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)),
}
GROWING = {"N": "ids", "V": "rows", "D": "cols"}
SMALL, LARGE = 100_000, 30_000_000  # the ids between which the time of an id is compared
REGIMES = ("narrow", "L2", "L3", "memory")
MOST_DEVIATION, MOST_SLOWING, MOST_BYTES = 0.3, 3.0, 24.0
FEWEST_IDS = 200_000  # below, the pages of threads and of the allocator dominate memory


def points(series: str, upto: float) -> list[Point]:
    """Return the points of a series, without those above `upto`."""
    return [p for p in SERIES[series] if getattr(p, GROWING[series]) <= upto]


def measure_series(
    chosen: dict[str, list[Point]], repeats: int, threads: int | None, progress: Progress
) -> dict[str, list[Measured]]:
    """Measure every point and kind, each in a fresh process."""
    found: dict[str, list[Measured]] = {}
    for series, names in chosen.items():
        for kind in KINDS:
            for point in names:
                size = getattr(point, GROWING[series])
                progress.begin(f"series {series}, {kind}, {GROWING[series]} {size:,}")
                found.setdefault(series, []).append(_in_process(point, kind, repeats, threads))
    return found


def _in_process(point: Point, kind: str, repeats: int, threads: int | None) -> Measured:
    task = json.dumps({"point": asdict(point), "kind": kind, "repeats": repeats})
    environment = child_environment(**({} if threads is None else {"ROWGRAD_NUM_THREADS": str(threads)}))
    command = [sys.executable, "-P", "-m", "bench.cpu.point", task]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    measured: Measured = json.loads(done.stdout)
    measured["regime"] = fit.regime(measured["working_set"], machine.cache_sizes())
    if kind != "forward" and _core.gradient_algorithm(point.ids, point.rows, point.cols, 4) == "narrow":
        measured["regime"] = "narrow"  # another algorithm, so another law
    measured["bytes_per_id"] = bytes_per_id(point, measured["extra_bytes"])
    return measured


def bytes_per_id(point: Point, extra: int | None) -> float | None:
    """Return memory per id beyond inputs and result, less eight bytes per bag."""
    return None if extra is None else round((extra - 8 * point.bags) / point.ids, 2)


def fits(measured: list[Measured]) -> dict[str, dict[str, fit.Fit]]:
    """Return the law of each kind in each cache regime."""
    found: dict[str, dict[str, fit.Fit]] = {}
    for kind in KINDS:
        for regime in REGIMES:
            here = [m for m in measured if m["kind"] == kind and m["regime"] == regime]
            if here:
                sizes = ([m[name] for m in here] for name in ("ids", "cols", "seconds"))
                found.setdefault(kind, {})[regime] = fit.fit(*sizes)
    return found


def slowing(measured: list[Measured], kind: str) -> tuple[float, float] | None:
    """Return seconds per id in a small and in a large batch; None unless both were measured."""
    by_ids = {m["ids"]: m["seconds"] / m["ids"] for m in measured if m["kind"] == kind}
    return (by_ids[SMALL], by_ids[LARGE]) if {SMALL, LARGE} <= by_ids.keys() else None


def growth_report(series: str, measured: list[Measured]) -> Iterator[str]:
    """Yield the points, then the fits, line by line; `!` marks a missed target."""
    name = GROWING[series]
    yield f"series {series}: {'kind':11} {name:>11} {'ms':>10} {'ns/id':>8} {'regime':>7} {'bytes/id':>9}"
    for m in measured:
        extra = "" if m["bytes_per_id"] is None else f"{m['bytes_per_id']:9.1f}"
        times = f"{m['seconds'] * 1e3:10.3f} {m['seconds'] / m['ids'] * 1e9:8.2f}"
        yield f"{'':10}{m['kind']:11} {m[name]:11,} {times} {m['regime']:>7} {extra}"
    # Along V neither N nor D changes, so no law can be fitted.
    laws = fits(measured) if series != "V" else {}
    if laws:
        yield f"t = a + b·N + c·N·D by cache regime; largest deviation, target {MOST_DEVIATION:.0%}"
    for kind, by_regime in laws.items():
        for regime, law in by_regime.items():
            numbers = f"a {law.a * 1e6:.1f} µs, b {law.b * 1e9:.3f} ns, c {law.c * 1e9:.4f} ns"
            deviation = f"{law.deviation:6.1%}{_mark(law.deviation, MOST_DEVIATION)}"
            yield f"  {kind:11} {regime:7} {deviation} over {law.points} points: {numbers}"
    for kind in KINDS:
        per_id = slowing(measured, kind)
        if per_id is not None and series == "N":
            ratio = per_id[1] / per_id[0]
            yield (
                f"  {kind:11} an id takes {per_id[0] * 1e9:.2f} ns of {SMALL:,}, {per_id[1] * 1e9:.2f} ns of {LARGE:,}:"
                f" {ratio:.2f} times as long{_mark(ratio, MOST_SLOWING)} (target {MOST_SLOWING:g})"
            )
    memory = [m["bytes_per_id"] for m in measured if m["ids"] >= FEWEST_IDS and m["bytes_per_id"] is not None]
    if memory:
        most = max(memory)
        yield f"  most extra memory {most:.1f} bytes per id{_mark(most, MOST_BYTES)} (target {MOST_BYTES:g})"


def _mark(value: float, most: float) -> str:
    return " !" if value > most else ""


def draw_growth(stem: Path, grown: dict[str, list[Measured]]) -> list[Path]:
    """Draw a curve of time for every kind, a panel for every series."""
    figure = output.new_figure(4.5 * len(grown), 4)
    for axes, (series, measured) in zip(figure.subplots(1, len(grown), squeeze=False)[0], grown.items(), strict=True):
        name = GROWING[series]
        for kind in KINDS:
            points = [(m[name], m["seconds"] * 1e3) for m in measured if m["kind"] == kind]
            axes.plot(*zip(*points, strict=True), ".-", label=kind)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel({"ids": "ids", "rows": "rows of the table", "cols": "columns"}[name])
        axes.set_ylabel("ms")
        axes.grid(alpha=0.3)
        axes.legend()
    return [output.save_figure(figure, stem.with_name(f"{stem.name}_growth.svg"))]


# -- Threads ----------------------------------------------------------------------------------------------------------

BUFFER = 1 << 19  # bytes of rows read at a time: they fit a core's cache, and threads rarely wait for the GIL
LEAST_QUOTIENT = 0.85  # of the probe's speed-up
SHORTEST = 1e-3  # seconds on one thread below which a case has no target


def measure_threads(cases: list[Case], threads: int, rounds: int, repeats: int, progress: Progress) -> list[Measured]:
    """Return times and speed-ups of every case and kind."""
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
    """Return the rows a kind reads and their order: the table by ids, or the gradient by bags, sorted by table row."""
    if kind == "forward":
        return peer.typed(x, "table"), x["ids"].astype(np.intp)
    return peer.typed(x, "grad"), x["segments"][np.argsort(x["ids"], kind="stable")].astype(np.intp)


def take_rows(source: Array, order: Array, threads: int, pool: ThreadPoolExecutor) -> None:
    """Read rows into small buffers, each thread a contiguous share of the order; NumPy does so without the GIL."""
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
    """Return the least time of each call; calls take turns."""
    least = dict.fromkeys(calls, float("inf"))
    before = rg.num_threads()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                call()  # untimed: wakes the threads and warms the caches
                least[name] = min(least[name], *(seconds_of(call) for _ in range(repeats)))
    finally:
        rg.set_num_threads(before)
    return least


def usable_cases(names: list[str]) -> list[Case]:
    """Return the named cases among the six, or all six."""
    return [case for case in SIX if case.name in names] or list(SIX)


def threads_report(measured: list[Measured]) -> list[str]:
    """Return a line per case and kind; `!` marks a quotient below its target."""
    n = measured[0]["threads"]
    lines = [
        f"{'case':12} {'kind':11} {'1 thread ms':>12} {f'{n} ms':>9} {'speed-up':>9} {'of reads':>9} {'quotient':>9}",
    ]
    for m in measured:
        mark = " !" if m["quotient"] < LEAST_QUOTIENT and m["one"] > SHORTEST else ""
        times = f"{m['one'] * 1e3:12.3f} {m['all'] * 1e3:9.3f}"
        ups = f"{m['speed_up']:9.2f} {m['probe_speed_up']:9.2f} {m['quotient']:9.2f}"
        lines.append(f"{m['case']:12} {m['kind']:11} {times} {ups}{mark}")
    lines.append(
        f"quotient: rowgrad's speed-up by that of plain reads; target {LEAST_QUOTIENT} where one thread takes over 1 ms"
    )
    return lines
