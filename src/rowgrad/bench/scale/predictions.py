"""The tables of MLPerf on 1 to 1,024 ranks, by the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .model import memory, sent
from .timing import Link, Machine, Routing, Work, step
from .workloads import MLPERF_RANKS, mlperf

Row = dict[str, Any]
CLUSTER = Link(message=10e-6, byte=8 / 200e9)  # assumed: 200 Gb/s in each direction of every rank, 10 µs a message
FASTER = 32  # assumed: how many times faster than one thread here a node of the cluster works, but for its calls
ALPHAS = (0.0, 1.05)


def machines(here: Machine) -> dict[str, Machine]:
    """This machine's ranks, the same on a cluster's links, and faster ones on those."""
    work = {
        way: {name: Work((w.seconds[0], *(t / FASTER for t in w.seconds[1:])), w.deviation) for name, w in laws.items()}
        for way, laws in here.work.items()
    }
    routes = {key: Routing(r.call, r.each / FASTER) for key, r in here.routes.items()}
    return {"here": here, "cluster": replace(here, link=CLUSTER), "faster": Machine(work, routes, CLUSTER)}


def predict(here: Machine) -> list[Row]:
    """A line for each law of ids, mode and number of ranks."""
    rows: list[Row] = []
    for alpha in ALPHAS:
        for mode, wire in (("exact", 4), ("pooled", 4), ("pooled", 2)):
            for ranks in MLPERF_RANKS:
                setting = mlperf(ranks, mode, wire, alpha)
                moved, held = sent(setting), memory(setting)
                row: Row = {"alpha": alpha, "mode": mode, "wire_bytes": wire, "ranks": ranks}
                row |= {
                    "bytes": moved.mean,
                    "bytes_busiest": moved.busiest,
                    "bytes_link": moved.mean / max(1, ranks - 1),
                }
                row |= {f"memory_{name}": float(b.max()) for name, b in held.items()}
                for name, machine in machines(here).items():
                    found = step(setting, machine)
                    row |= {f"{name}_ms": found.total * 1e3, f"{name}_largest": found.largest}
                rows.append(row)
    return rows
