"""What a world of ranks has measured, and the model held against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .model import PHASES, sent
from .timing import PASSES, Link, Machine, Routing, fit_link, fit_work, step
from .workloads import BETWEEN, CALIBRATION, CHECKS, EXCHANGED, ROUTED, WAYS, Workload, routed

Way = tuple[str, int]
Row = dict[str, Any]
BYTES_BAR, TIME_BAR = 0.05, 0.25
WALL, OWN = 0, 1  # clocks: the wall's, and a process's own
LEAST_GAP = 0.01  # exact and pooled that are nearer than this send the same


@dataclass
class World:
    """Everything rank 0 has told."""

    ranks: int
    traffic: dict[tuple[str, Way], list[list[int]]] = field(default_factory=dict)  # [rank][phase]
    seconds: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)  # [repeat][part, the last: all][clock]

    def hear(self, line: Row) -> None:
        """Keep what one line says."""
        what, way = line["what"], tuple(line.get("way", ()))
        if what == "traffic":
            self.traffic[line["name"], way] = line["bytes"]
        elif what == "route":
            self.seconds.setdefault((what, *line["name"]), []).extend(line["seconds"])
        elif what in ("exchange", "after_work", "single", "step"):
            self.seconds.setdefault((what, line.get("name", line.get("size")), way), []).extend(line["seconds"])

    def best(self, clock: int, *key: Any) -> list[float]:
        """The parts of the repeat that took least. Steps are judged by theirs: the least of every part are less."""
        repeats = np.array(self.seconds[key])[..., clock]
        found: list[float] = repeats[repeats[:, -1].argmin()].tolist()
        return found

    def machine(self, clock: int = WALL) -> Machine:
        """The laws its own single ranks and exchanges follow: all ranks at work at the same time."""
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
        each = (whole - done) / len(PHASES)  # the wait for a rank that works longer is work already
        added = max(0.0, each - others * (link.message + link.byte * BETWEEN))
        return Machine(work, routes, replace(link, after_work=added))

    def _routing(self, clock: int, owners: int, strategy: str) -> Routing:
        """What sorting by so many owners takes longer than by one, through two numbers of ids."""
        (few, more), added = [bags * hotness for bags, hotness in ROUTED], []
        for ids in (few, more):
            one, many = (self.best(clock, "route", ids, n, strategy)[0] for n in (1, owners))
            added.append(max(0.0, many - one))
        each = max(0.0, added[1] - added[0]) / (more - few)
        return Routing(max(0.0, added[0] - each * few), each)


def compare(world: World, checks: Sequence[Workload] = CHECKS) -> list[Row]:
    """A line for each workload and way: bytes of a rank (mean) and milliseconds, by the model and measured."""
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
    """How far the model is from what was counted; at one rank nothing is sent."""
    return abs(row["model_bytes"] / row["bytes"] - 1) if row["bytes"] else float(row["model_bytes"] != 0)


def time_off(row: Row, clock: int) -> float:
    """How far the model is from what was timed."""
    name = ("ms", "cpu_ms")[clock]
    return abs(float(row[f"model_{name}"] / row[name]) - 1)


def pooled_sends_less(rows: Sequence[Row]) -> list[tuple[Row, bool, bool]]:
    """For each workload in pooled mode on several ranks: whether less is sent than in exact mode, said and seen."""
    found = []
    exact = {(r["ranks"], r["workload"], r["wire_bytes"]): r for r in rows if r["mode"] == "exact"}
    for row in rows:
        other = exact[row["ranks"], row["workload"], row["wire_bytes"]]
        if row["mode"] == "pooled" and row["ranks"] > 1:
            gap = row["model_bytes"] / other["model_bytes"] - 1
            if abs(gap) > LEAST_GAP:
                found.append((row, gap < 0, row["bytes"] < other["bytes"]))
    return found
