"""Times as a law of sizes: t = a + b·N + c·N·D, with nonnegative coefficients and least relative errors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .cpu.cases import Array


@dataclass(frozen=True)
class Fit:
    """The law's three coefficients in seconds, and the largest relative deviation of the points from it."""

    a: float
    b: float
    c: float
    deviation: float
    points: int

    def at(self, ids: float, cols: float) -> float:
        """Return seconds by the law."""
        return self.a + self.b * ids + self.c * ids * cols


def fit(ids: list[float], cols: list[float], seconds: list[float]) -> Fit:
    """Return the best law through the points."""
    n, d, t = (np.asarray(values, np.float64) for values in (ids, cols, seconds))
    terms = np.stack([np.ones_like(n), n, n * d], axis=1) / t[:, None]  # divided by t: errors are relative
    weights = nonnegative_least_squares(terms, np.ones_like(t))
    deviation = float(np.abs(terms @ weights - 1).max())
    a, b, c = weights.tolist()
    return Fit(a, b, c, deviation, len(t))


def nonnegative_least_squares(terms: Array, target: Array) -> Array:
    """Return the nonnegative least-squares weights by trying every set of columns: there are only a few."""
    scale = np.linalg.norm(terms, axis=0)  # columns of similar norm keep the solution well conditioned
    best, best_error = np.zeros(terms.shape[1]), float(target @ target)
    for size in range(1, terms.shape[1] + 1):
        for columns in map(list, combinations(range(terms.shape[1]), size)):
            found = np.linalg.lstsq(terms[:, columns] / scale[columns], target, rcond=None)[0]
            if (found < 0).any():
                continue
            weights = np.zeros(terms.shape[1])
            weights[columns] = found / scale[columns]
            error = float(((terms @ weights - target) ** 2).sum())
            if error < best_error * (1 - 1e-12):  # prefer fewer columns if errors are equal
                best, best_error = weights, error
    return best


def regime(working_set: int, caches: dict[int, int]) -> str:
    """Return the cache level of a working set: at most the L2, at most half of the L3, or memory from twice the L3 on.

    Other sizes use two levels in an unknown proportion: they are "between" and are not fitted.
    """
    if working_set <= caches[2]:
        return "L2"
    if 2 * caches[2] <= working_set <= caches[3] // 2:
        return "L3"
    return "memory" if working_set >= 2 * caches[3] else "between"
