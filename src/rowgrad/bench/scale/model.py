"""What one training step of tables split among ranks sends, holds and works on: expectations, by formulas.

All ranks draw their ids alike, so what a rank sends to an owner depends on the owner alone. docs/scale.md has the
formulas in words; rowgrad.torch.sharded is what they describe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...sharding.rule import shard_sizes
from ..cases import Array
from .laws import law

PHASES = ("sizes", "ids", "pairs", "rows", "calls", "gradients")  # of rowgrad.torch.sharded's Traffic, in one step
HEADER, HEADER_EACH = 5, 6  # numbers of 8 bytes a rank tells every other: of the call, and of each stack of tables
LINE = HEADER + HEADER_EACH  # what a backward pass begins with, of that length whatever it has to say


@dataclass(frozen=True)
class Feature:
    """A table, and how it is asked: so many ids in every bag, drawn by a power law; 0 is uniform."""

    rows: int
    hotness: int
    alpha: float = 0.0


@dataclass(frozen=True)
class Setting:
    """One step: every rank has `bags` bags of every feature. All tables have one width and combiner."""

    features: tuple[Feature, ...]
    columns: int
    bags: int
    ranks: int
    strategy: str = "div"
    mode: str = "exact"
    wire_bytes: int = 4  # of a value on its way: 2 with wire_dtype=torch.bfloat16
    value_bytes: int = 4  # of a value of the table
    combiner: str = "mean"

    @property
    def ids(self) -> int:
        """How many ids a rank looks up."""
        return sum(self.bags * f.hotness for f in self.features)


@dataclass(frozen=True)
class Counts:
    """By owner: what one rank asks of it, and what it has."""

    pairs: Array  # ids
    rows: Array  # distinct ids
    bags: Array  # bags with an id there
    updated: Array  # distinct ids of all ranks together
    held: Array  # rows of the tables


@lru_cache(maxsize=256)
def counts(s: Setting) -> Counts:
    """Expected numbers; exact for ids that are independent of each other."""
    pairs, rows, bags, updated = (np.zeros(s.ranks) for _ in range(4))
    held = np.zeros(s.ranks, np.int64)
    for f in s.features:
        named, draws = law(f.rows, f.alpha), s.bags * f.hotness
        share = named.by_owner(named.p * named.counts, s.ranks, s.strategy)
        pairs += draws * share
        bags += s.bags * (1 - (1 - np.minimum(share, 1)) ** f.hotness)
        rows += named.by_owner(named.distinct(draws), s.ranks, s.strategy)
        updated += named.by_owner(named.distinct(draws * s.ranks), s.ranks, s.strategy)
        held += np.array(shard_sizes(f.rows, s.ranks))
    return Counts(pairs, rows, bags, updated, held)


@dataclass(frozen=True)
class Sent:
    """Bytes of one step, by phase and rank, to and from other ranks."""

    out: dict[str, Array]
    into: dict[str, Array]

    @property
    def mean(self) -> float:
        """What a rank sends, all phases together, mean over ranks."""
        return sum(float(b.mean()) for b in self.out.values())

    @property
    def busiest(self) -> float:
        """What goes through the busiest rank's link in its busier direction."""
        return float(max(sum(self.out.values()).max(), sum(self.into.values()).max()))  # type: ignore[union-attr]


def sent(s: Setting) -> Sent:
    """What travels. A rank's own rows do not count."""
    c, others = counts(s), s.ranks - 1
    id_bytes = 4 if c.held.max() < 2**31 else 8
    wide = 8 if s.value_bytes == 8 else 4
    row = s.columns * s.wire_bytes
    to_owner = {
        "sizes": np.full(s.ranks, 8.0 * (HEADER + HEADER_EACH)),
        "ids": id_bytes * c.rows,
        "pairs": 8 * c.pairs + (wide * c.bags if s.combiner != "sum" else 0),
        "calls": np.full(s.ranks, 8.0 * LINE),
        "gradients": row * c.bags,
    }
    out = {name: each.sum() - each for name, each in to_owner.items()}
    into = {name: others * each for name, each in to_owner.items()}
    back = row * (c.rows if s.mode == "exact" else c.bags)
    out["rows"], into["rows"] = others * back, back.sum() - back
    return Sent({p: out[p] for p in PHASES}, {p: into[p] for p in PHASES})


def memory(s: Setting, state_bytes_per_row: float = 4.0) -> dict[str, Array]:
    """Bytes each rank holds: its part, the optimizer's state (row-wise: a float a row), what a step needs at its peak.

    Buffers: int64 and int32 numbers of the ids it has (44 bytes an id) and of the pairs it is sent (48: as they came,
    as rows and bags, and sorted); rows asked of it, twice on their way out; those it asked for; its bags, their
    gradients, the copies of these it sends and those it is sent.
    """
    c, sides = counts(s), s.ranks
    travelling = s.columns * s.wire_bytes
    asked = c.rows if s.mode == "exact" else c.bags
    bags = s.bags * len(s.features)
    buffers = (
        44.0 * s.ids + 48.0 * sides * c.pairs
        + (sides * asked + asked.sum()) * travelling
        + (c.bags.sum() + sides * c.bags) * travelling
        + 2.0 * bags * s.columns * s.value_bytes
    )  # fmt: skip
    return {
        "table": c.held * float(s.columns * s.value_bytes),
        "state": c.held * state_bytes_per_row,
        "buffers": buffers,
    }
