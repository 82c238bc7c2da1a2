"""Cost of a page: loading, checking, and the overhead of a run over the ops themselves."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rowgrad.graph import Block, ClientSession, End, Page, check, dumps, loads
from rowgrad.raw_ops import OPS

from . import machine, output

_OPS = ("Add", "Mul", "Tanh", "Sub", "Square", "SparseSegmentMean", "Neg")


def run(blocks: int, chosen: argparse.Namespace) -> None:
    """Measure, print, and write with --out."""
    text = dumps(make_page(blocks))
    page = loads(text)
    assert isinstance(page, Page)
    session = ClientSession(check(page).scope)
    session.run_block()
    program = next(iter(session._programs.values()))
    calls = [(OPS[s.node.op.name], s.arguments, s.results[0]) for s in program.each]
    variable = session.state.values["x"]

    def direct() -> None:
        """Call the same ops on the same values one after the other."""
        values = program.start.copy()
        values[program.variables[0][1]] = variable
        for op, arguments, place in calls:
            values[place] = op(*[values[i] for i in arguments])

    rounds = chosen.rounds * chosen.repeats
    calls_by_name: dict[str, Callable[[], Any]] = {
        "load": lambda: loads(text), "check": lambda: check(page), "run": session.run_block, "ops alone": direct,
    }  # fmt: skip
    seconds = {name: _fastest(call, rounds) for name, call in calls_by_name.items()}
    added = (seconds["run"] - seconds["ops alone"]) / blocks * 1e6
    print(f"a page of {blocks} blocks, {len(text) / 1e3:.0f} kB; minima of {rounds}")
    for name, best in seconds.items():
        print(f"  {name:10} {best * 1e3:9.2f} ms {best / blocks * 1e6:9.2f} µs a block")
    print(f"  a run adds {added:.2f} µs a block to the ops called by hand")
    if chosen.out:
        rows = [{"what": k, "blocks": blocks, "min_ms": round(v * 1e3, 3)} for k, v in seconds.items()]
        parts = {"page": {"blocks": blocks, "seconds": seconds, "added_us_per_block": added}}
        for path in output.write(output.place(chosen.out), machine.facts(), parts, rows):
            print(f"wrote {path}")


def _fastest(call: Callable[[], Any], rounds: int) -> float:
    call()
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


def make_page(blocks: int) -> Page:
    """Return a chain of small ops with a second wire from one of the last few."""
    draw = random.Random(0)
    page = Page("page of a benchmark")
    page.blocks = [
        Block("x", "Variable", {"initvalues": np.full(4, 0.5, np.float32)}),
        Block("ids", "Const", {"val": np.array([0, 1, 1, 3], np.int32)}),
    ]
    ends = [End("x", "ref")]
    ids = End("ids", "output")
    for k in range(blocks):
        op = _OPS[k % len(_OPS)]
        last, other = ends[-1], ends[-draw.randint(1, min(5, len(ends)))]
        if op == "SparseSegmentMean":
            wires, pin = {"data": [last], "indices": [ids], "segment_ids": [ids]}, "output"
        elif op in ("Add", "Mul", "Sub"):
            wires, pin = {"x": [last], "y": [other]}, "z"
        else:
            wires, pin = {"x": [last]}, "y"
        page.blocks.append(Block(f"n{k}", op, wires=wires))
        ends.append(End(f"n{k}", pin))
    page.blocks.append(Block("session", "ClientSession", wires={"fetch_outputs": [ends[-1]]}))
    return page
