"""Growth: time and memory of rowgrad as ids, rows or columns grow, and whether they follow a law."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from .. import _core
from . import fit, machine
from .point import Point
from .progress import Progress

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
TELLING = 200_000  # ids from which memory is judged: with fewer, the pages of threads and allocator tell


def points(series: str, upto: float) -> list[Point]:
    """The points of a series, without those above `upto`."""
    return [p for p in SERIES[series] if getattr(p, GROWING[series]) <= upto]


def measure_series(
    chosen: dict[str, list[Point]], repeats: int, threads: int | None, progress: Progress
) -> dict[str, list[Measured]]:
    """Every point and kind, each in a fresh process."""
    found: dict[str, list[Measured]] = {}
    for series, listed in chosen.items():
        for kind in KINDS:
            for point in listed:
                size = getattr(point, GROWING[series])
                progress.begin(f"series {series}, {kind}, {GROWING[series]} {size:,}")
                found.setdefault(series, []).append(_in_process(point, kind, repeats, threads))
    return found


def _in_process(point: Point, kind: str, repeats: int, threads: int | None) -> Measured:
    asked = json.dumps({"point": asdict(point), "kind": kind, "repeats": repeats})
    environment = dict(os.environ) if threads is None else {**os.environ, "ROWGRAD_NUM_THREADS": str(threads)}
    command = [sys.executable, "-P", "-m", "rowgrad.bench.point", asked]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    measured: Measured = json.loads(done.stdout)
    measured["regime"] = fit.regime(measured["working_set"], machine.cache_sizes())
    if kind != "forward" and _core.way(point.ids, point.rows, point.cols, 4) == "narrow":
        measured["regime"] = "narrow"  # another algorithm, so another law
    measured["bytes_per_id"] = bytes_per_id(point, measured["extra_bytes"])
    return measured


def bytes_per_id(point: Point, extra: int | None) -> float | None:
    """Memory beyond inputs and result for each id, after eight bytes for each bag."""
    return None if extra is None else round((extra - 8 * point.bags) / point.ids, 2)


def fits(measured: list[Measured]) -> dict[str, dict[str, fit.Fit]]:
    """The law of each kind in each cache regime."""
    found: dict[str, dict[str, fit.Fit]] = {}
    for kind in KINDS:
        for regime in REGIMES:
            here = [m for m in measured if m["kind"] == kind and m["regime"] == regime]
            if here:
                sizes = ([m[name] for m in here] for name in ("ids", "cols", "seconds"))
                found.setdefault(kind, {})[regime] = fit.fit(*sizes)
    return found


def slowing(measured: list[Measured], kind: str) -> tuple[float, float] | None:
    """Seconds of an id in a small and in a large batch, where both were measured."""
    by_ids = {m["ids"]: m["seconds"] / m["ids"] for m in measured if m["kind"] == kind}
    return (by_ids[SMALL], by_ids[LARGE]) if {SMALL, LARGE} <= by_ids.keys() else None


def report(series: str, measured: list[Measured]) -> Iterator[str]:
    """The points, then the judgements, line by line; `!` marks what misses its target."""
    name = GROWING[series]
    yield f"series {series}: {'kind':11} {name:>11} {'ms':>10} {'ns/id':>8} {'regime':>7} {'bytes/id':>9}"
    for m in measured:
        extra = "" if m["bytes_per_id"] is None else f"{m['bytes_per_id']:9.1f}"
        times = f"{m['seconds'] * 1e3:10.3f} {m['seconds'] / m['ids'] * 1e9:8.2f}"
        yield f"{'':10}{m['kind']:11} {m[name]:11,} {times} {m['regime']:>7} {extra}"
    # Along V neither N nor D changes: there is nothing a law in them could say.
    laws = fits(measured) if series != "V" else {}
    if laws:
        yield f"t = a + b·N + c·N·D by cache regime; largest deviation, target {MOST_DEVIATION:.0%}"
    for kind, by_regime in laws.items():
        for regime, law in by_regime.items():
            numbers = f"a {law.a * 1e6:.1f} µs, b {law.b * 1e9:.3f} ns, c {law.c * 1e9:.4f} ns"
            judged = f"{law.deviation:6.1%}{_mark(law.deviation, MOST_DEVIATION)}"
            yield f"  {kind:11} {regime:7} {judged} over {law.points} points: {numbers}"
    for kind in KINDS:
        per_id = slowing(measured, kind)
        if per_id is not None and series == "N":
            ratio = per_id[1] / per_id[0]
            yield (
                f"  {kind:11} an id takes {per_id[0] * 1e9:.2f} ns of {SMALL:,}, {per_id[1] * 1e9:.2f} ns of {LARGE:,}:"
                f" {ratio:.2f} times as long{_mark(ratio, MOST_SLOWING)} (target {MOST_SLOWING:g})"
            )
    judged_memory = [m["bytes_per_id"] for m in measured if m["ids"] >= TELLING and m["bytes_per_id"] is not None]
    if judged_memory:
        most = max(judged_memory)
        yield f"  most extra memory {most:.1f} bytes per id{_mark(most, MOST_BYTES)} (target {MOST_BYTES:g})"


def _mark(value: float, most: float) -> str:
    return " !" if value > most else ""
