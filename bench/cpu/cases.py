"""Named workloads and their arrays; the six usual ones are those of `rowgrad bench`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from rowgrad.cli.bench import CASES, draw_ids

Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]


class Workload(Protocol):
    """Named arrays; `group` says which kinds of calls run on them."""

    @property
    def name(self) -> str:
        """Return its name in `--cases`."""

    @property
    def group(self) -> str:
        """Return the kinds that fit it: bags, sparse or tiny."""

    @property
    def title(self) -> str:
        """Return its sizes as text."""

    def arrays(self) -> Arrays:
        """Return the same arrays on every call."""


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
    group: str = "bags"

    @property
    def title(self) -> str:
        """Return sizes, distribution of ids and dtypes in one line."""
        law = f"zipf {self.zipf}" if self.zipf else "uniform"
        return f"V {self.rows:,}, D {self.cols}, {self.bags:,} bags × {self.length:g}, {law}, {self.dtype}, {self.ids}"

    def arrays(self) -> Arrays:
        """Return table, gradient, ids, segment ids, offsets and weights, the same on every call."""
        rng = np.random.default_rng(self.seed)
        lengths = rng.integers(0, int(2 * self.length) + 1, self.bags) if self.length > 1 else _few(rng, self)
        n = int(lengths.sum())
        segments = np.repeat(np.arange(self.bags), lengths)
        ids = draw_ids(rng, n, self.rows, self.zipf)
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


def _few(rng: np.random.Generator, case: Case) -> Array:
    return rng.poisson(case.length, case.bags) if case.length < 1 else np.ones(case.bags, np.int64)


@dataclass(frozen=True)
class TablesCase:
    """A batch of bags for each of many tables of one size, feature by feature."""

    name: str
    tables: int
    rows: int
    cols: int
    bags: int
    length: float
    group: str = "tables"

    @property
    def title(self) -> str:
        """Return sizes in one line."""
        size = f"{self.tables} tables of V {self.rows:,}, D {self.cols}"
        return f"{size}, {self.bags:,} bags × {self.length:g} each, zipf 1.05, float32, int64"

    def arrays(self) -> Arrays:
        """Return concatenated ids and offsets of all features, one initial table for all, and the gradient."""
        each = [
            Case(self.name, self.rows, 1, self.bags, self.length, ids="int64", seed=s).arrays()
            for s in range(self.tables)
        ]
        starts = np.cumsum([0, *(len(x["ids"]) for x in each)])
        rng = np.random.default_rng(7)
        return {
            "table": rng.standard_normal((self.rows, self.cols), np.float32),
            "grad": rng.standard_normal((self.bags, self.tables, self.cols), np.float32),
            "ids": np.concatenate([x["ids"] for x in each]),
            "offsets": np.concatenate(
                [*(x["offsets"][:-1] + s for x, s in zip(each, starts, strict=False)), starts[-1:]]
            ),
            "rows": self.rows,
            "bags": self.bags,
            "tables": self.tables,
            "dtype": "float32",
        }


@dataclass(frozen=True)
class SparseCase:
    """A sorted sparse matrix of nnz entries with `empty` empty rows, and a second one that overlaps it."""

    name: str
    nnz: int
    rows: int
    cols: int = 256
    empty: float = 0.02
    group: str = "sparse"

    @property
    def title(self) -> str:
        """Return shape and entries in one line."""
        return f"{self.rows:,} × {self.cols}, {self.nnz:,} entries, float32, int64"

    def arrays(self) -> Arrays:
        """Return indices and values of both matrices, and a slice of half the rows by half the columns."""
        rng = np.random.default_rng(2)
        filled = np.sort(rng.permutation(self.rows)[: int(self.rows * (1 - self.empty))])

        def entries() -> Array:
            places = np.sort(rng.integers(0, len(filled) * self.cols, self.nnz))
            return np.stack([filled[places // self.cols], places % self.cols], axis=1).astype(np.int64)

        a, b = entries(), entries()
        return {
            "indices": a,
            "values": rng.standard_normal(self.nnz).astype(np.float32),
            "shape": np.array([self.rows, self.cols], np.int64),
            "start": np.array([self.rows // 4, 0], np.int64),
            "size": np.array([self.rows // 2, self.cols // 2], np.int64),
            "b_indices": b,
            "b_values": rng.standard_normal(self.nnz).astype(np.float32),
        }


@dataclass(frozen=True)
class TinyCase:
    """Without arrays: the call makes its own few numbers."""

    name: str = "tiny"
    group: str = "tiny"
    title: str = "a thousand calls, 16 ids, 16 × 16 float32"

    def arrays(self) -> Arrays:
        """Return no arrays."""
        return {}


SIX = tuple(Case(c.name, c.rows, c.cols, c.bags, c.length, c.zipf) for c in CASES)
SHAPES = (
    Case("S1", 100_000, 128, 512, 20, zipf=0),
    Case("S2", 1_000_000, 64, 2_048, 100, zipf=0),
    Case("S4", 5_000_000, 128, 32_768, 16),
    Case("S9", 100, 128, 32_768, 20, zipf=0),
    Case("S10", 1_000_000, 128, 32_768, 1, zipf=0),
    Case("S11", 1_000_000, 17, 8_192, 20),
    Case("S12", 10_000, 16, 16, 3, zipf=0),
    Case("S13", 1_000_000, 64, 65_536, 0.7),
)
VARIANTS = (
    *(replace(case, name=f"{case.name}_{dtype}", dtype=dtype) for case in SIX[:3] for dtype in ("bfloat16", "float16")),
    *(replace(case, name=f"{case.name}_int64", ids="int64") for case in SIX[:3]),
)
SPARSE = (SparseCase("sparse", 4_000_000, 1_000_000), SparseCase("sparse_small", 20_000, 5_000))
TABLES = TablesCase("tables", 26, 100_000, 64, 2_048, 10)
_EVERY: tuple[Workload, ...] = (*SIX, *SHAPES, *VARIANTS, TABLES, *SPARSE, TinyCase())
ALL: dict[str, Workload] = {case.name: case for case in _EVERY}
USUAL = (*(case.name for case in SIX), "tables", "sparse", "tiny")
