"""The kinds of calls that are timed: which cases each fits, what peers run, and how many bytes it must move.

Bytes: a row counts as often as it is read, although a cache may contain it; an output counts once. So a rate may exceed
the memory's bandwidth if rows are hot, or if zeroed pages are never touched. Extra work of an implementation (sorting,
copies) counts as time, not as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .cases import Array, Arrays

PEERS = ("rowgrad", "tensorflow", "torch", "fbgemm", "jax", "scipy")


@dataclass(frozen=True)
class Kind:
    """One call on one group of workloads; `nearest` is the kind that peers run if they lack this one."""

    name: str
    group: str
    title: str
    nearest: str | None = None

    def for_peer(self, peer: str) -> str:
        """Return the kind that this peer runs."""
        return self.name if peer == "rowgrad" or self.nearest is None else self.nearest


_EVERY = (
    Kind("forward", "bags", "mean of each bag's rows"),
    Kind("weighted", "bags", "weighted mean of each bag's rows"),
    Kind("dense", "bags", "gradient of the mean, a fresh table"),
    Kind("dense_kept", "bags", "gradient of the mean into a GradBuffer; peers as in dense", "dense"),
    Kind("rows", "bags", "gradient of the mean, unique rows only"),
    Kind("rows_planned", "bags", "the same with the ids sorted beforehand by a Plan; peers as in rows", "rows"),
    Kind("forward_jit", "bags", "mean of each bag's rows inside jax.jit; peers as in forward", "forward"),
    Kind("dense_jit", "bags", "gradient of the mean inside jax.jit, a table; peers as in dense", "dense"),
    Kind("rows_jit", "bags", "unique rows inside jax.jit, padded to a quarter more; peers as in dense", "dense"),
    Kind("zeros_jit", "bags", "probe: a table of zeros inside jax.jit"),
    Kind("weighted_dense", "bags", "gradient of the weighted mean, a fresh table"),
    Kind("page_touch", "bags", "probe: a fresh zeroed table, one write to every page that holds rows of the gradient"),
    Kind("train", "bags", "a training step: forward, backward, row-wise Adagrad (torch: Adagrad), by torch modules"),
    Kind("train_tables", "tables", "the same on many tables: one Embeddings module, peers with theirs"),
    Kind("slice", "sparse", "SparseSlice"),
    Kind("slice_grad", "sparse", "SparseSliceGrad"),
    Kind("fill", "sparse", "SparseFillEmptyRows"),
    Kind("fill_grad", "sparse", "SparseFillEmptyRowsGrad"),
    Kind("add", "sparse", "SparseAdd"),
    Kind("add_grad", "sparse", "SparseAddGrad"),
    Kind("tiny", "tiny", "a thousand calls of SparseSegmentMeanGrad from NumPy"),
    Kind("tiny_jit", "tiny", "a thousand calls of SparseSegmentMean in one compiled loop of JAX"),
    Kind("tiny_torch", "tiny", "a thousand calls of SparseSegmentMean from torch; torch: F.embedding_bag"),
    Kind("tiny_torch_grad", "tiny", "the same on a table that requires a gradient"),
    Kind("tiny_torch_backward", "tiny", "a thousand backward passes of one such call, to a dense gradient"),
    Kind("tiny_module", "tiny", "a thousand calls of EmbeddingBag modules with offsets, gradient recorded"),
)
KINDS = {kind.name: kind for kind in _EVERY}


# -- Bytes that a call must move --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BagSizes:
    """Sizes in the formulas of the bag kinds."""

    N: int  # ids
    U: int  # unique ids
    V: int  # rows of the table
    B: int  # bags
    D: int  # columns
    w: int  # bytes of a value
    i: int  # bytes of an id; a segment id has as many


@dataclass(frozen=True)
class SparseSizes:
    """Sizes in the formulas of the sparse kinds; matrices have int64 indices of rank 2 and 4-byte values."""

    n: int  # entries of each matrix
    inside: int  # entries inside the slice
    rows: int
    empty: int  # rows without an entry
    union: int  # entries of the sum


ENTRY = 2 * 8 + 4  # bytes of an entry: its index and its value

BAG_BYTES: dict[str, Callable[[BagSizes], int]] = {
    "forward": lambda s: s.N * s.D * s.w + 2 * s.N * s.i + s.B * s.D * s.w,
    "weighted": lambda s: s.N * s.D * s.w + s.N * (2 * s.i + 4) + s.B * s.D * s.w,
    "rows": lambda s: s.N * s.D * s.w + 2 * s.N * s.i + s.U * (s.D * s.w + s.i),
    "rows_planned": lambda s: s.N * s.D * s.w + s.N * s.i + s.U * (s.D * s.w + s.i),
    "dense_kept": lambda s: s.N * s.D * s.w + 2 * s.N * s.i + 2 * s.U * s.D * s.w,
    "dense": lambda s: s.N * s.D * s.w + 2 * s.N * s.i + (s.U + s.V) * s.D * s.w,
    "weighted_dense": lambda s: s.N * s.D * s.w + s.N * (2 * s.i + 4) + (s.U + s.V) * s.D * s.w,
    # forward, gradient rows read, then every looked-up row and its one number of state read and written
    "train": lambda s: 2 * (s.N * s.D * s.w + 2 * s.N * s.i) + s.B * s.D * s.w + s.U * (2 * s.D * s.w + 8),
    "page_touch": lambda s: s.U * s.D * s.w,
    "zeros_jit": lambda s: s.V * s.D * s.w,
}
BAG_BYTES |= {f"{kind}_jit": BAG_BYTES[kind] for kind in ("forward", "dense")}
BAG_BYTES["rows_jit"] = lambda s: s.N * s.D * s.w + 2 * s.N * s.i + s.U * 5 // 4 * (s.D * s.w + s.i)
SPARSE_BYTES: dict[str, Callable[[SparseSizes], int]] = {
    "slice": lambda s: (s.n + s.inside) * ENTRY,
    "slice_grad": lambda s: s.n * 16 + s.inside * ENTRY + s.n * 4,
    "fill": lambda s: s.n * ENTRY + (s.n + s.empty) * ENTRY + s.n * 8 + s.rows,
    "fill_grad": lambda s: s.n * 8 + (s.n + s.empty) * 4 + s.n * 4,
    "add": lambda s: (2 * s.n + s.union) * ENTRY,
    "add_grad": lambda s: 2 * s.n * 16 + s.union * ENTRY + 2 * s.n * 4,
}


def least_bytes(arrays: Arrays, kinds: list[str]) -> dict[str, int]:
    """Return the bytes of each kind that has a formula, on a workload's arrays."""
    if "ids" in arrays:
        bags = bag_sizes(arrays)
        return {kind: BAG_BYTES[kind](bags) for kind in kinds if kind in BAG_BYTES}
    if "indices" in arrays:
        sparse = sparse_sizes(arrays)
        return {kind: SPARSE_BYTES[kind](sparse) for kind in kinds if kind in SPARSE_BYTES}
    return {}


def bag_sizes(x: Arrays) -> BagSizes:
    """Return the sizes of a batch of bags."""
    width = 2 if x["dtype"] in ("float16", "bfloat16") else int(np.dtype(x["dtype"]).itemsize)
    ids = x["ids"]
    return BagSizes(len(ids), distinct(ids), x["rows"], x["bags"], x["grad"].shape[1], width, ids.itemsize)


def sparse_sizes(x: Arrays) -> SparseSizes:
    """Return the sizes of two sparse matrices and a slice."""
    rows, cols = x["shape"].tolist()
    a, b = x["indices"], x["b_indices"]
    inside = np.all((a >= x["start"]) & (a < x["start"] + x["size"]), axis=1).sum()
    places = np.concatenate([a[:, 0] * cols + a[:, 1], b[:, 0] * cols + b[:, 1]])
    return SparseSizes(len(a), int(inside), rows, rows - distinct(a[:, 0]), distinct(places))


def distinct(ids: Array) -> int:
    """Return the number of distinct ids."""
    return len(np.unique(ids))
