"""A world of ranks on this machine: start its processes, collect their measurements, compare them with the model."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import child_environment
from ..output import Row
from .model import PHASES, sent
from .timing import PASSES, Link, Machine, Routing, fit_link, fit_work, step
from .workloads import BETWEEN, CALIBRATION, CHECKS, EXCHANGED, ROUTED, WAYS, Workload, routed

STARTING = 60.0  # seconds before and after timed steps


# glibc returns pages to the system and requests them again as sizes change, which no law describes: disable that.
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}


class WorldEndedError(Exception):
    """A rank ended before its work was done."""


def listen(
    ranks: int, checks: Sequence[str], seconds: float = 0, rounds: int = 1, repeats: int = 1
) -> Iterator[dict[str, Any]]:
    """Start the ranks and yield the messages of rank 0; raise WorldEndedError if a rank fails or time is up.

    Timed steps take turns until `seconds` are over or `rounds` are done.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ROWGRAD_NUM_THREADS"), "1")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(ranks):
            task = {"store": f"{folder}/store", "rank": rank, "ranks": ranks, "seconds": seconds, "rounds": rounds,
                    "repeats": repeats, "checks": list(checks)}  # fmt: skip
            errors = open(Path(folder, f"errors_{rank}"), "w+")  # noqa: SIM115 - closed with its process below
            command = [sys.executable, "-P", "-m", "bench.scale.ranks", json.dumps(task)]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            environment = child_environment(**threads, **loopback, **KEEP)
            started.append((subprocess.Popen(command, env=environment, stdout=out, stderr=errors, text=True), errors))
        clock = threading.Timer(seconds + STARTING, _end, [[process for process, _ in started]])
        clock.start()
        try:
            for line in started[0][0].stdout or ():
                yield json.loads(line)
            for rank, (process, errors) in enumerate(started):
                if process.wait() != 0:
                    errors.seek(0)
                    last = errors.read().strip().rpartition("\n")[2]
                    raise WorldEndedError(f"rank {rank} of {ranks}: {last or f'ended with {process.returncode}'}")
        finally:
            clock.cancel()
            for process, errors in started:
                process.kill()
                process.wait()
                errors.close()
                if process.stdout:
                    process.stdout.close()


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


# -- Measurements -----------------------------------------------------------------------------------------------------

Way = tuple[str, int]
BYTES_BAR, TIME_BAR = 0.05, 0.25
WALL, OWN = 0, 1  # clocks: wall time, and the process's CPU time
LEAST_GAP = 0.01  # smaller differences between exact and pooled count as equal


@dataclass
class World:
    """Everything that rank 0 reported."""

    ranks: int
    traffic: dict[tuple[str, Way], list[list[int]]] = field(default_factory=dict)  # [rank][phase]
    seconds: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)  # [repeat][part, the last: all][clock]

    def add(self, line: Row) -> None:
        """Record one message."""
        what, way = line["what"], tuple(line.get("way", ()))
        if what == "traffic":
            self.traffic[line["name"], way] = line["bytes"]
        elif what == "route":
            self.seconds.setdefault((what, *line["name"]), []).extend(line["seconds"])
        elif what in ("exchange", "after_work", "single", "step"):
            self.seconds.setdefault((what, line.get("name", line.get("size")), way), []).extend(line["seconds"])

    def best(self, clock: int, *key: Any) -> list[float]:
        """Return the parts of the fastest repeat; the minima of single parts would add up to less than any step."""
        repeats = np.array(self.seconds[key])[..., clock]
        found: list[float] = repeats[repeats[:, -1].argmin()].tolist()
        return found

    def machine(self, clock: int = WALL) -> Machine:
        """Return laws fitted to this world's single ranks and exchanges, with all ranks at work."""
        work = {}
        for way in WAYS:
            seconds = [dict(zip(PASSES, self.best(clock, "single", w.name, way), strict=False)) for w in CALIBRATION]
            work[way] = fit_work([w.setting(1, *way) for w in CALIBRATION], seconds)
        routes = {key: self._routing(clock, *key) for key in routed(self.ranks)}
        if self.ranks == 1:
            return Machine(work, routes, Link(0.0, 0.0))
        others = self.ranks - 1
        link = fit_link(EXCHANGED, [self.best(clock, "exchange", n, ())[0] / others for n in EXCHANGED])
        done, _, whole = self.best(clock, "after_work", BETWEEN, ())
        each = (whole - done) / len(PHASES)  # waiting for a slower rank already counts as work
        added = max(0.0, each - others * (link.message + link.byte * BETWEEN))
        return Machine(work, routes, replace(link, after_work=added))

    def _routing(self, clock: int, owners: int, strategy: str) -> Routing:
        """Return the extra time of sorting by this many owners instead of one, fitted to two numbers of ids."""
        (few, more), added = [bags * hotness for bags, hotness in ROUTED], []
        for ids in (few, more):
            one, many = (self.best(clock, "route", ids, n, strategy)[0] for n in (1, owners))
            added.append(max(0.0, many - one))
        each = max(0.0, added[1] - added[0]) / (more - few)
        return Routing(max(0.0, added[0] - each * few), each)


def compare(world: World, checks: Sequence[Workload] = CHECKS) -> list[Row]:
    """Return a line for each workload and way: mean bytes of a rank and milliseconds, by the model and measured."""
    machines = (world.machine(WALL), world.machine(OWN)) if world.seconds else ()
    rows: list[Row] = []
    for w in checks:
        for way in WAYS:
            setting = w.setting(world.ranks, *way)
            by_phase, measured = sent(setting), np.array(world.traffic[w.name, way])
            row: Row = {"ranks": world.ranks, "workload": w.name, "mode": way[0], "wire_bytes": way[1]}
            row |= {"model_bytes": round(by_phase.mean), "bytes": round(float(measured.sum(1).mean()))}
            for k, phase in enumerate(PHASES):
                row |= {f"model_{phase}": round(float(by_phase.out[phase].mean())), phase: round(measured[:, k].mean())}
            for clock, machine in enumerate(machines):
                predicted, found = step(setting, machine), np.array(world.seconds["step", w.name, way])[:, -1, clock]
                name = ("", "cpu_")[clock]
                row |= {f"model_{name}ms": predicted.total * 1e3, f"{name}ms": float(found.min()) * 1e3}
                row |= {f"median_{name}ms": float(np.median(found)) * 1e3}
            rows.append(row)
    return rows


def bytes_off(row: Row) -> float:
    """Return the relative deviation of the model from the counted bytes; at one rank nothing is sent."""
    return abs(row["model_bytes"] / row["bytes"] - 1) if row["bytes"] else float(row["model_bytes"] != 0)


def time_off(row: Row, clock: int) -> float:
    """Return the relative deviation of the model from the measured time."""
    name = ("ms", "cpu_ms")[clock]
    return abs(float(row[f"model_{name}"] / row[name]) - 1)


def pooled_sends_less(rows: Sequence[Row]) -> list[tuple[Row, bool, bool]]:
    """Return for each pooled workload on several ranks whether it sends less than exact, predicted and measured."""
    found = []
    exact = {(r["ranks"], r["workload"], r["wire_bytes"]): r for r in rows if r["mode"] == "exact"}
    for row in rows:
        other = exact[row["ranks"], row["workload"], row["wire_bytes"]]
        if row["mode"] == "pooled" and row["ranks"] > 1:
            gap = row["model_bytes"] / other["model_bytes"] - 1
            if abs(gap) > LEAST_GAP:
                found.append((row, gap < 0, row["bytes"] < other["bytes"]))
    return found
