"""Named workloads, and the arrays each is made of. Only NumPy is known here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A batch of bags: a table of rows × cols, `bags` bags of 0 … 2·length ids each."""

    name: str
    rows: int
    cols: int
    bags: int
    length: float
    zipf: float = 1.05  # 0: uniform
    dtype: str = "float32"
    ids: str = "int32"
    seed: int = 1

    @property
    def title(self) -> str:
        law = f"zipf {self.zipf}" if self.zipf else "uniform"
        return f"V {self.rows:,}, D {self.cols}, {self.bags:,} bags × {self.length:g}, {law}, {self.dtype}, {self.ids}"

    def arrays(self) -> Arrays:
        """Table, gradient, ids, segment ids, offsets and weights, the same on every call."""
        rng = np.random.default_rng(self.seed)
        lengths = rng.integers(0, int(2 * self.length) + 1, self.bags) if self.length > 1 else _few(rng, self)
        n = int(lengths.sum())
        segments = np.repeat(np.arange(self.bags), lengths)
        ids = _power_law(rng, n, self.rows, self.zipf)
        return {
            "table": rng.standard_normal((self.rows, self.cols), np.float32),
            "grad": rng.standard_normal((self.bags, self.cols), np.float32),
            "ids": ids.astype(self.ids),
            "segments": segments.astype(self.ids),
            "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            "weights": rng.uniform(0.5, 1.5, n).astype(np.float32),
            "rows": self.rows,
            "bags": self.bags,
            "dtype": self.dtype,
        }


def _few(rng: np.random.Generator, case: Case) -> np.ndarray:
    return rng.poisson(case.length, case.bags) if case.length < 1 else np.ones(case.bags, np.int64)


def _power_law(rng: np.random.Generator, n: int, rows: int, exponent: float) -> np.ndarray:
    """Ids by a truncated power law, through a random permutation so that hot rows are not neighbours."""
    if not exponent:
        return rng.integers(0, rows, n)
    weight = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    ranks = np.searchsorted(np.cumsum(weight) / weight.sum(), rng.random(n))
    return rng.permutation(rows)[np.minimum(ranks, rows - 1)]


SIX = (
    Case("mid", 100_000, 64, 8_192, 20),
    Case("wide", 1_000_000, 128, 16_384, 20),
    Case("narrow", 1_000_000, 32, 65_536, 10),
    Case("cold", 10_000_000, 64, 8_192, 20, zipf=0),
    Case("few_rows", 1_000, 256, 4_096, 50),
    Case("one_column", 100_000, 1, 65_536, 20),
)
SHAPES = (
    Case("S1", 100_000, 128, 512, 20, zipf=0),
    Case("S2", 1_000_000, 64, 2_048, 100, zipf=0),
    Case("S4", 5_000_000, 128, 32_768, 16),
    Case("S9", 100, 128, 32_768, 20, zipf=0),
    Case("S10", 1_000_000, 128, 32_768, 1, zipf=0),
    Case("S11", 1_000_000, 17, 8_192, 20),
    Case("S13", 1_000_000, 64, 65_536, 0.7),
)
VARIANTS = tuple(
    replace(case, name=f"{case.name}_{what}", **{field: what})
    for case in SIX[:3]
    for field, what in (("dtype", "bfloat16"), ("dtype", "float16"), ("ids", "int64"))
)
ALL = {case.name: case for case in (*SIX, *SHAPES, *VARIANTS)}


def sparse_arrays(nnz: int = 4_000_000, rows: int = 1_000_000, cols: int = 256, empty: float = 0.02) -> Arrays:
    """A sorted sparse matrix of nnz entries, `empty` of its rows without any, and a second one that overlaps it."""
    rng = np.random.default_rng(2)
    filled = np.sort(rng.permutation(rows)[: int(rows * (1 - empty))])

    def entries(n: int) -> np.ndarray:
        places = np.sort(rng.integers(0, len(filled) * cols, n))
        return np.stack([filled[places // cols], places % cols], axis=1).astype(np.int64)

    a, b = entries(nnz), entries(nnz)
    return {
        "indices": a,
        "values": rng.standard_normal(nnz).astype(np.float32),
        "shape": np.array([rows, cols], np.int64),
        "start": np.array([rows // 4, 0], np.int64),
        "size": np.array([rows // 2, cols // 2], np.int64),
        "b_indices": b,
        "b_values": rng.standard_normal(nnz).astype(np.float32),
    }
