"""Seconds of one step: laws whose numbers are measured, over the counts of the model.

A pass of a rank takes a + b·ids + c·ids·D + d·bags·D + e·rows + f·rows·D, forward and backward each with numbers of
their own, and so does every mode; sorting ids by owner takes longer the more there are; an exchange takes α for each
message, β for each byte, and λ for that it comes after work. At one rank all counts of ids, of bags and of rows are the
same; among several each term takes the count it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..cases import Array
from ..fit import nonnegative_least_squares
from .model import PHASES, Setting, counts, sent

TERMS = ("call", "ids", "ids·D", "bags·D", "rows", "rows·D")
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Work:
    """Seconds of the terms of one pass, and how far the points it was fitted to lie from it."""

    seconds: tuple[float, ...]
    deviation: float


@dataclass(frozen=True)
class Routing:
    """Seconds that sorting ids by several owners takes longer than by one: of a call, and of an id."""

    call: float
    each: float


@dataclass(frozen=True)
class Link:
    """Seconds of a message, and of a byte to another rank; and what an exchange after work takes beyond these.

    From work ranks come one after the other, and their caches hold what they worked on.
    """

    message: float
    byte: float
    deviation: float = 0.0
    after_work: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Measured numbers: a law for each (mode, bytes of a value on its way) and pass, routes, and the link."""

    work: dict[tuple[str, int], dict[str, Work]]
    routes: dict[tuple[int, str], Routing]  # by owners and strategy
    link: Link


def terms(s: Setting) -> dict[str, Array]:
    """What each rank's passes work on, [rank, term]."""
    c, ones = counts(s), np.ones(s.ranks)
    pairs = s.ranks * c.pairs
    bag_rows = (s.ranks * c.bags + c.bags.sum()) / 2  # those it is sent and those it sends
    moved = (s.ranks * c.rows + c.rows.sum()) / 2
    updating = [ones, pairs, pairs * s.columns, bag_rows * s.columns, c.updated, c.updated * s.columns]
    if s.mode == "exact":
        bags = s.bags * len(s.features) * ones
        forward = [ones, s.ids * ones, s.ids * s.columns * ones, bags * s.columns, moved, moved * s.columns]
    else:
        forward = [ones, (s.ids + pairs) / 2, *updating[2:]]
    return {"forward": np.stack(forward, 1), "backward": np.stack(updating, 1)}


def fit_work(settings: Sequence[Setting], seconds: Sequence[dict[str, float]]) -> dict[str, Work]:
    """The laws of both passes through steps of single ranks."""
    found = {}
    for name in PASSES:
        measured = np.array([t[name] for t in seconds])
        over = np.stack([terms(s)[name][0] for s in settings]) / measured[:, None]
        weights = nonnegative_least_squares(over, np.ones(len(measured)))
        found[name] = Work(tuple(weights.tolist()), float(np.abs(over @ weights - 1).max()))
    return found


def fit_link(sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """The law of an exchange between two ranks, by the bytes each sends to the other."""
    t = np.array(seconds)
    over = np.stack([np.ones(len(t)), np.array(sizes, float)], 1) / t[:, None]
    message, byte = nonnegative_least_squares(over, np.ones(len(t)))
    return Link(float(message), float(byte), float(np.abs(over @ [message, byte] - 1).max()))


@dataclass(frozen=True)
class Step:
    """Seconds of the slowest rank, by what takes them."""

    forward: float
    backward: float
    messages: float
    bytes: float

    @property
    def total(self) -> float:
        """Nothing is taken to overlap."""
        return self.forward + self.backward + self.messages + self.bytes

    @property
    def largest(self) -> str:
        """Which part takes longest."""
        work = self.forward + self.backward
        parts = {"work": work, "messages": self.messages, "bytes": self.bytes}
        return max(parts, key=lambda name: parts[name])


def step(s: Setting, machine: Machine) -> Step:
    """The prediction. Every exchange is waited for by all, so each part counts with the rank it takes longest on."""
    work, over = machine.work[s.mode, s.wire_bytes], terms(s)
    passes = {name: float((over[name] @ np.array(work[name].seconds)).max()) for name in PASSES}
    if s.ranks == 1:
        return Step(passes["forward"], passes["backward"], 0.0, 0.0)
    routing, moved = machine.routes[s.ranks, s.strategy], sent(s)
    passes["forward"] += routing.call + routing.each * s.ids
    most = sum(float(max(moved.out[p].max(), moved.into[p].max())) for p in PHASES)
    link = machine.link
    messages = len(PHASES) * ((s.ranks - 1) * link.message + link.after_work)
    return Step(passes["forward"], passes["backward"], messages, most * link.byte)
