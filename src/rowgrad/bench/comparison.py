"""The comparison with peers from start to end: measure, show, write, draw."""

from __future__ import annotations

import argparse

from . import drawing, machine, report, results
from .measure import Found, measure_all
from .peer_process import start_peers


def run(wanted: dict[str, list[str]], names: list[str], peers_python: str, chosen: argparse.Namespace) -> None:
    """Time the wanted kinds of each case in the peers named."""
    facts = machine.facts(chosen.threads)
    copy = facts["copy_gb_per_s"]
    peers = start_peers(names, peers_python, chosen.threads)
    there = [p.name for p in peers]
    facts["versions"] = [p.version for p in peers]
    print("  ".join(facts["versions"]), f"\ncopying {copy} GB/s on {facts['threads']} threads\n")
    print(report.header(there), flush=True)

    def show(case: str, kind: str, found: Found) -> None:
        print(report.line(case, kind, found, there, copy), flush=True)

    try:
        found = measure_all(wanted, peers, chosen.rounds, chosen.repeats, show)
    finally:
        for p in peers:
            p.close()
    print(report.summary(found))
    if chosen.out and found:
        stem = results.place(chosen.out)
        parts = {"cases": results.titles(found), "results": found}
        written = results.write(stem, facts, parts, list(results.peer_rows(found, copy)))
        drawing.draw_if_possible(chosen.plot, written, lambda: drawing.draw_ratios(stem, found))
