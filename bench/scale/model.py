"""Predict by formulas what one training step of tables sharded over ranks sends, stores and computes.

All ranks draw their ids from the same distribution, so what a rank sends to an owner depends only on the owner.
docs/explanation/scale.md explains the formulas, which describe rowgrad.torch.sharded.

Rows are numbered by frequency, row 0 first. So "div" assigns the hot rows to the first rank, as for ids sorted by
frequency, and "mod" spreads them, as a hash would.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rowgrad.sharding.div_mod import shard_sizes

from ..cpu.cases import Array

# -- Frequencies of rows ----------------------------------------------------------------------------------------------

HEAD = 65_536  # rows counted one by one; the others are in bins of nearly equal probability
BINS = 2_048


@dataclass(frozen=True)
class Law:
    """Groups of consecutive rows; all rows of a group have the same probability."""

    rows: int
    starts: Array
    counts: Array
    p: Array

    def distinct(self, draws: float) -> Array:
        """Return the expected number of distinct rows of each group among this many ids: 1 - (1 - p)^draws each."""
        with np.errstate(divide="ignore"):  # log 0 for a table with one row
            found: Array = self.counts * -np.expm1(draws * np.log1p(-self.p))
        return found

    def by_owner(self, values: Array, ranks: int, strategy: str) -> Array:
        """Sum values of the groups by owner of their rows."""
        sizes = np.array(shard_sizes(self.rows, ranks))
        if strategy == "div":
            total = np.concatenate([[0.0], np.cumsum(values)])
            ends = np.concatenate([[0], np.cumsum(sizes)])
            return np.diff(np.interp(ends, [*self.starts, self.rows], total))
        single = self.counts == 1
        alone = np.bincount(self.starts[single] % ranks, weights=values[single], minlength=ranks)
        shared: Array = alone + values[~single].sum() * sizes / self.rows
        return shared


@lru_cache(maxsize=64)
def law(rows: int, alpha: float) -> Law:
    """Return a uniform distribution if alpha is 0; else p of row k is proportional to (k + 1)^-alpha."""
    if not alpha:
        return Law(rows, np.array([0]), np.array([rows]), np.array([1 / rows]))
    head = min(rows, HEAD)
    weights = np.arange(1, head + 1, dtype=np.float64) ** -alpha
    starts, counts = np.arange(head), np.ones(head, np.int64)
    if rows > head:
        edges = np.unique(np.rint(np.geomspace(head, rows, BINS + 1)).astype(np.int64))
        starts, counts = np.concatenate([starts, edges[:-1]]), np.concatenate([counts, np.diff(edges)])
        weights = np.concatenate([weights, np.diff(_integral(edges + 0.5, alpha))])
    weights /= weights.sum()
    return Law(rows, starts, counts, weights / counts)


def _integral(x: Array, alpha: float) -> Array:
    """Return the integral of x^-alpha, which approximates a sum over rows, from half a row before to half after."""
    found: Array = np.log(x) if alpha == 1 else x ** (1 - alpha) / (1 - alpha)
    return found


def draw(rng: np.random.Generator, count: int, rows: int, alpha: float) -> Array:
    """Draw ids from that distribution."""
    if not alpha:
        return rng.integers(0, rows, count)
    total = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -alpha)
    found: Array = np.minimum(np.searchsorted(total, rng.random(count) * total[-1]), rows - 1)
    return found


# -- One step ---------------------------------------------------------------------------------------------------------

PHASES = ("sizes", "ids", "pairs", "rows", "calls", "gradients")  # of rowgrad.torch.sharded's Traffic, in one step
HEADER, HEADER_EACH = 5, 6  # numbers of 8 bytes sent to every other rank: per call, and per stack of tables
LINE = HEADER + HEADER_EACH  # the fixed-length message before a backward pass


@dataclass(frozen=True)
class Feature:
    """A table and its lookups: the number of ids in every bag, drawn by a power law; alpha 0 is uniform."""

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
    wire_bytes: int = 4  # of a transferred value: 2 with wire_dtype=torch.bfloat16
    value_bytes: int = 4  # of a value of the table
    combiner: str = "mean"

    @property
    def ids(self) -> int:
        """Return the number of ids that a rank looks up."""
        return sum(self.bags * f.hotness for f in self.features)


@dataclass(frozen=True)
class Counts:
    """By owner: what one rank requests from it, and what it stores."""

    pairs: Array  # ids
    rows: Array  # distinct ids
    bags: Array  # bags with an id there
    updated: Array  # distinct ids of all ranks together
    held: Array  # rows of the tables


@lru_cache(maxsize=256)
def counts(s: Setting) -> Counts:
    """Return expected numbers; exact for independent ids."""
    pairs, rows, bags, updated = (np.zeros(s.ranks) for _ in range(4))
    held = np.zeros(s.ranks, np.int64)
    for f in s.features:
        distribution, draws = law(f.rows, f.alpha), s.bags * f.hotness
        share = distribution.by_owner(distribution.p * distribution.counts, s.ranks, s.strategy)
        pairs += draws * share
        bags += s.bags * (1 - (1 - np.minimum(share, 1)) ** f.hotness)
        rows += distribution.by_owner(distribution.distinct(draws), s.ranks, s.strategy)
        updated += distribution.by_owner(distribution.distinct(draws * s.ranks), s.ranks, s.strategy)
        held += np.array(shard_sizes(f.rows, s.ranks))
    return Counts(pairs, rows, bags, updated, held)


@dataclass(frozen=True)
class Sent:
    """Bytes of one step, by phase and rank, to and from other ranks."""

    out: dict[str, Array]
    into: dict[str, Array]

    @property
    def mean(self) -> float:
        """Return the mean over ranks of the bytes sent in all phases."""
        return sum(float(b.mean()) for b in self.out.values())

    @property
    def busiest(self) -> float:
        """Return the bytes through the busiest rank's link in its busier direction."""
        return float(max(sum(self.out.values()).max(), sum(self.into.values()).max()))  # type: ignore[union-attr]


def sent(s: Setting) -> Sent:
    """Return the bytes that are sent; a rank's own rows do not count."""
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
    """Return the bytes that each rank stores: its shard, the optimizer's state (a float per row), a step's buffers.

    Buffers: int64 and int32 numbers of its ids (44 bytes each) and of the pairs it receives (48: as received, as rows
    and bags, and sorted); the rows requested from it, twice while they are sent; those it requested; its bags, their
    gradients, and the copies of these it sends and receives.
    """
    c, sides = counts(s), s.ranks
    wire_row = s.columns * s.wire_bytes
    requested = c.rows if s.mode == "exact" else c.bags
    bags = s.bags * len(s.features)
    buffers = (
        44.0 * s.ids + 48.0 * sides * c.pairs
        + (sides * requested + requested.sum()) * wire_row
        + (c.bags.sum() + sides * c.bags) * wire_row
        + 2.0 * bags * s.columns * s.value_bytes
    )  # fmt: skip
    return {
        "table": c.held * float(s.columns * s.value_bytes),
        "state": c.held * state_bytes_per_row,
        "buffers": buffers,
    }
