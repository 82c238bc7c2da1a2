"""How often rows are named, and what of them each rank owns. Only NumPy is known here.

Rows are numbered by how often they are named: row 0 most. So "div" gives the hot rows to the first rank, as it does for
ids sorted by frequency, and "mod" deals them out, which is also what a hash does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...sharding.rule import shard_sizes
from ..cases import Array

HEAD = 65_536  # rows that are counted one by one; those behind them in bins of nearly equal probability
BINS = 2_048


@dataclass(frozen=True)
class Law:
    """Groups of rows that follow one another; all rows of a group are named with one probability."""

    rows: int
    starts: Array
    counts: Array
    p: Array

    def distinct(self, draws: float) -> Array:
        """How many rows of each group are expected among so many ids: each with 1 - (1 - p)^draws."""
        with np.errstate(divide="ignore"):  # of a table with one row, log 0
            found: Array = self.counts * -np.expm1(draws * np.log1p(-self.p))
        return found

    def by_owner(self, values: Array, ranks: int, strategy: str) -> Array:
        """Numbers of the groups added up by who owns their rows."""
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
    """Uniform where alpha is 0; else row k has a probability in proportion to (k + 1)^-alpha."""
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
    """Of x^-alpha; from half a row before the first to half a row after the last it is their sum, nearly."""
    found: Array = np.log(x) if alpha == 1 else x ** (1 - alpha) / (1 - alpha)
    return found


def draw(rng: np.random.Generator, count: int, rows: int, alpha: float) -> Array:
    """Ids by that law."""
    if not alpha:
        return rng.integers(0, rows, count)
    total = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -alpha)
    found: Array = np.minimum(np.searchsorted(total, rng.random(count) * total[-1]), rows - 1)
    return found
