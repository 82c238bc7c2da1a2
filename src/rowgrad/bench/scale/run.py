"""`rowgrad bench --scale` from start to end: run worlds, hold the model against them, predict, write."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rowgrad as rg

from .. import drawing, machine, results
from ..progress import Progress
from . import tables
from .predictions import ALPHAS, predict
from .seen import Row, World, compare
from .timing import Machine
from .workloads import CHECKS, PREDICTING, WORLDS
from .worlds import listen

SECONDS = {1: 6.0, 2: 65.0, 4: 12.0}  # of timed steps; the world of two is the one times are judged in
ROUNDS = {1: 3, 2: 30, 4: 3}
REPEATS = 3
PAGE = Path("docs", "scale.md")
VERDICTS = "What came of it"


def run(chosen: argparse.Namespace) -> None:
    """Measure, print, and write where that is asked for."""
    load = os.getloadavg()[0]
    progress = Progress(sum(ROUNDS.values()) + len(WORLDS))
    worlds = {ranks: measure(ranks, progress) for ranks in WORLDS}
    progress.clear()
    laws = {ranks: world.machine() for ranks, world in worlds.items()}
    rows = [row for world in worlds.values() for row in compare(world)]
    predicted = predict(laws[PREDICTING])
    parts = sections(rows, laws[PREDICTING], predicted, load)
    for title, lines in parts.items():
        print("\n".join([f"## {title}", "", *lines, ""]))
    if chosen.out:
        write(chosen, rows, laws, predicted, parts, load)


def measure(ranks: int, progress: Progress) -> World:
    """One world, until its rounds are done or its time is over."""
    world, last = World(ranks), progress.done + 1 + ROUNDS[ranks]
    progress.begin(f"ranks: {ranks}; start, bytes")
    for line in listen(ranks, [w.name for w in CHECKS], SECONDS[ranks], ROUNDS[ranks], REPEATS):
        if line["what"] == "round":
            progress.begin(f"ranks: {ranks}; steps in turn")
        world.hear(line)
    progress.done = last
    return world


def sections(rows: list[Row], here: Machine, predicted: list[Row], load: float) -> dict[str, list[str]]:
    """Every table under its title."""
    found = {VERDICTS: tables.verdicts(rows, load)}
    found |= {f"Model and runs, ranks: {n}": tables.checks(rows, n) for n in sorted({r["ranks"] for r in rows})}
    found["Measured numbers, 2 ranks at work"] = tables.parameters(here)
    found["MLPerf tables: bytes of a step and rank, MB, and memory of a rank"] = tables.mlperf_sizes(predicted)
    for alpha in ALPHAS:
        title = f"MLPerf tables: milliseconds of a step, and what takes most of them, {tables.LAWS[alpha]}"
        found[title] = tables.mlperf_times(predicted, alpha)
    return found


def write(
    chosen: argparse.Namespace, rows: list[Row], laws: dict[int, Machine], predicted: list[Row], parts: Any, load: float
) -> None:
    """JSON, CSV, Markdown and drawing; where they go to bench/results/scale, the page's own tables as well."""
    stem = results.place(chosen.out)
    facts: dict[str, Any] = {**machine.facts(1), "load_average": load, "versions": [f"rowgrad {rg.__version__}"]}
    numbers = {
        str(ranks): {
            "work": {f"{mode} {wire}": {p: asdict(w) for p, w in by.items()} for (mode, wire), by in m.work.items()},
            "link": asdict(m.link),
        }
        for ranks, m in laws.items()
    }
    written = results.write(stem, facts, {"checks": rows, "numbers": numbers, "mlperf": predicted}, rows)
    page = stem.with_name(stem.name + ".md")
    said = f"{facts['processor']}, {facts['cores']} cores, one thread a rank; `rowgrad bench --scale`."
    text = [f"# Tables split among processes: model and runs\n\n{said}"]
    text += ["\n".join([f"## {title}", "", *lines]) for title, lines in parts.items()]
    page.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    if stem == Path("bench", "results", "scale") and PAGE.exists():
        two = tables.checks(rows, 2)
        tables.put(PAGE, "runs", [*parts[VERDICTS], "", *two])
        tables.put(PAGE, "numbers", tables.parameters(laws[2]))
        tables.put(PAGE, "sizes", tables.mlperf_sizes(predicted))
        for alpha in ALPHAS:
            tables.put(PAGE, f"times, {tables.LAWS[alpha]}", tables.mlperf_times(predicted, alpha))
        written.append(PAGE)
    drawing.draw_if_possible(chosen.plot, [*written, page], lambda: drawing.draw_scale(stem, predicted))
