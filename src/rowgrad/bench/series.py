"""The series from start to end: rowgrad alone as sizes or threads grow; measure, show, write, draw."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import rowgrad as rg

from . import drawing, growth, machine, results, scaling
from .progress import Progress

NAMES = {
    "N": "ids from a thousand to thirty million, bags of 20, V 1,000,000, D 32",
    "V": "rows of the table from a thousand to thirty million, 200,000 ids, D 64",
    "D": "columns from 1 to 1024, 200,000 ids, V 100,000",
    "threads": "one thread and all, the six cases, beside plain reads of the same rows",
}


def run(listed: list[str], cases: list[str], chosen: argparse.Namespace) -> None:
    """Measure the series listed; `cases` limits those of `threads`."""
    facts: dict[str, Any] = {**machine.facts(chosen.threads), "versions": [f"rowgrad {rg.__version__}"]}
    chosen_points = {s: growth.points(s, chosen.upto) for s in listed if s != "threads"}
    six = scaling.usable_cases(cases) if "threads" in listed else []
    total = sum(map(len, chosen_points.values())) * len(growth.KINDS) + len(six) * len(scaling.KINDS)
    progress = Progress(total)
    grown = growth.measure_series(chosen_points, chosen.rounds * chosen.repeats, chosen.threads, progress)
    scaled = scaling.measure_scaling(six, facts["threads"], chosen.rounds, chosen.repeats, progress)
    progress.clear()
    for name, measured in grown.items():
        print("\n".join(growth.report(name, measured)) + "\n")
    if scaled:
        print("\n".join(scaling.report(scaled)))
    if chosen.out and (grown or scaled):
        _write(chosen, facts, grown, scaled)


def _write(
    chosen: argparse.Namespace,
    facts: dict[str, Any],
    grown: dict[str, list[growth.Measured]],
    scaled: list[scaling.Measured],
) -> None:
    stem = results.place(chosen.out)
    laws = {
        name: {kind: {r: asdict(law) for r, law in by.items()} for kind, by in growth.fits(measured).items()}
        for name, measured in grown.items()
    }
    rows = [{"series": name, **m} for name, measured in grown.items() for m in measured]
    rows += [{"series": "threads", **m} for m in scaled]
    columns = dict.fromkeys(key for row in rows for key in row)
    parts = {"series": grown, "fits": laws, "threads": scaled}
    written = results.write(stem, facts, parts, [{**dict.fromkeys(columns, ""), **row} for row in rows])
    drawing.draw_if_possible(chosen.plot, written, lambda: drawing.draw_growth(stem, grown) if grown else [])
