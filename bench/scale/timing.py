"""Seconds of one step: laws with measured coefficients over the counts of the model, and predictions from them.

A pass of a rank takes a + b·ids + c·ids·D + d·bags·D + e·rows + f·rows·D; forward and backward, and every mode, have
coefficients of their own. Sorting ids by owner takes longer the more owners there are; an exchange takes α for each
message, β for each byte, and λ because it follows work. At one rank the three counts of ids, bags and rows are
unambiguous; among several each term uses the count that it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cpu.cases import Array
from ..fit import nonnegative_least_squares
from ..output import Row
from .model import PHASES, Setting, counts, memory, sent
from .workloads import MLPERF_RANKS, mlperf

TERMS = ("call", "ids", "ids·D", "bags·D", "rows", "rows·D")
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Work:
    """Seconds of the terms of one pass, and the largest deviation of the points it was fitted to."""

    seconds: tuple[float, ...]
    deviation: float


@dataclass(frozen=True)
class Routing:
    """Extra seconds of sorting ids by several owners instead of one: per call and per id."""

    call: float
    each: float


@dataclass(frozen=True)
class Link:
    """Seconds per message and per byte to another rank, and the extra seconds of an exchange that follows work.

    After work, ranks arrive one after the other, and their caches hold other data.
    """

    message: float
    byte: float
    deviation: float = 0.0
    after_work: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Measured coefficients: a law for each (mode, bytes of a transferred value) and pass, routes, and the link."""

    work: dict[tuple[str, int], dict[str, Work]]
    routes: dict[tuple[int, str], Routing]  # by owners and strategy
    link: Link


def terms(s: Setting) -> dict[str, Array]:
    """Return the counts that each rank's passes depend on, [rank, term]."""
    c, ones = counts(s), np.ones(s.ranks)
    pairs = s.ranks * c.pairs
    bag_rows = (s.ranks * c.bags + c.bags.sum()) / 2  # mean of those it receives and those it sends
    sent_bytes = (s.ranks * c.rows + c.rows.sum()) / 2
    updating = [ones, pairs, pairs * s.columns, bag_rows * s.columns, c.updated, c.updated * s.columns]
    if s.mode == "exact":
        bags = s.bags * len(s.features) * ones
        forward = [ones, s.ids * ones, s.ids * s.columns * ones, bags * s.columns, sent_bytes, sent_bytes * s.columns]
    else:
        forward = [ones, (s.ids + pairs) / 2, *updating[2:]]
    return {"forward": np.stack(forward, 1), "backward": np.stack(updating, 1)}


def fit_work(settings: Sequence[Setting], seconds: Sequence[dict[str, float]]) -> dict[str, Work]:
    """Fit the laws of both passes to steps of single ranks."""
    found = {}
    for name in PASSES:
        measured = np.array([t[name] for t in seconds])
        over = np.stack([terms(s)[name][0] for s in settings]) / measured[:, None]
        weights = nonnegative_least_squares(over, np.ones(len(measured)))
        found[name] = Work(tuple(weights.tolist()), float(np.abs(over @ weights - 1).max()))
    return found


def fit_link(sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """Fit the law of an exchange between two ranks, by the bytes each sends to the other."""
    t = np.array(seconds)
    over = np.stack([np.ones(len(t)), np.array(sizes, float)], 1) / t[:, None]
    message, byte = nonnegative_least_squares(over, np.ones(len(t)))
    return Link(float(message), float(byte), float(np.abs(over @ [message, byte] - 1).max()))


@dataclass(frozen=True)
class Step:
    """Seconds of the slowest rank, by part."""

    forward: float
    backward: float
    messages: float
    bytes: float

    @property
    def total(self) -> float:
        """Return the sum of all parts, assuming no overlap."""
        return self.forward + self.backward + self.messages + self.bytes

    @property
    def largest(self) -> str:
        """Return the part that takes longest."""
        work = self.forward + self.backward
        parts = {"work": work, "messages": self.messages, "bytes": self.bytes}
        return max(parts, key=lambda name: parts[name])


def step(s: Setting, machine: Machine) -> Step:
    """Predict a step. All ranks wait for every exchange, so each part counts with its slowest rank."""
    work, over = machine.work[s.mode, s.wire_bytes], terms(s)
    passes = {name: float((over[name] @ np.array(work[name].seconds)).max()) for name in PASSES}
    if s.ranks == 1:
        return Step(passes["forward"], passes["backward"], 0.0, 0.0)
    routing, sent_bytes = machine.routes[s.ranks, s.strategy], sent(s)
    passes["forward"] += routing.call + routing.each * s.ids
    most = sum(float(max(sent_bytes.out[p].max(), sent_bytes.into[p].max())) for p in PHASES)
    link = machine.link
    messages = len(PHASES) * ((s.ranks - 1) * link.message + link.after_work)
    return Step(passes["forward"], passes["backward"], messages, most * link.byte)


# -- Predictions: MLPerf's tables on 1 to 1,024 ranks -----------------------------------------------------------------

CLUSTER = Link(message=10e-6, byte=8 / 200e9)  # assumed: 200 Gb/s in each direction of every rank, 10 µs per message
FASTER = 32  # assumed: speed of a cluster node relative to one thread here, except for calls
ALPHAS = (0.0, 1.05)


def machines(here: Machine) -> dict[str, Machine]:
    """Return this machine's ranks, the same ranks with a cluster's links, and faster ranks with those."""
    work = {
        way: {name: Work((w.seconds[0], *(t / FASTER for t in w.seconds[1:])), w.deviation) for name, w in laws.items()}
        for way, laws in here.work.items()
    }
    routes = {key: Routing(r.call, r.each / FASTER) for key, r in here.routes.items()}
    return {"here": here, "cluster": replace(here, link=CLUSTER), "faster": Machine(work, routes, CLUSTER)}


def predict(here: Machine) -> list[Row]:
    """Return a row for each distribution of ids, mode and number of ranks."""
    rows: list[Row] = []
    for alpha in ALPHAS:
        for mode, wire in (("exact", 4), ("pooled", 4), ("pooled", 2)):
            for ranks in MLPERF_RANKS:
                setting = mlperf(ranks, mode, wire, alpha)
                sent_bytes, stored_bytes = sent(setting), memory(setting)
                row: Row = {"alpha": alpha, "mode": mode, "wire_bytes": wire, "ranks": ranks}
                row |= {
                    "bytes": sent_bytes.mean,
                    "bytes_busiest": sent_bytes.busiest,
                    "bytes_link": sent_bytes.mean / max(1, ranks - 1),
                }
                row |= {f"memory_{name}": float(b.max()) for name, b in stored_bytes.items()}
                for name, machine in machines(here).items():
                    found = step(setting, machine)
                    row |= {f"{name}_ms": found.total * 1e3, f"{name}_largest": found.largest}
                rows.append(row)
    return rows
