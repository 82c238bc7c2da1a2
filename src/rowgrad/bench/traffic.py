"""The bytes a call must move: one formula per kind, over the sizes of its workload.

Rows count as often as they are read, although a cache may hold a row that was read before; what is written counts
once. So a rate may exceed the memory's own where rows are hot, and where zeroed pages that nobody touches are never
moved at all. What an implementation does besides (sorting, copies) counts as time, not as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .cases import Array, Arrays


@dataclass(frozen=True)
class BagSizes:
    """What the formulas of the bag kinds know."""

    N: int  # ids
    U: int  # unique ids
    V: int  # rows of the table
    B: int  # bags
    D: int  # columns
    w: int  # bytes of a value
    i: int  # bytes of an id; a segment id has as many


@dataclass(frozen=True)
class SparseSizes:
    """What the formulas of the sparse kinds know; matrices have int64 indices of rank 2 and 4-byte values."""

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
    # forward, gradient rows read, then every named row and its one number of state read and written
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
    """Bytes of each kind that has a formula, on a workload's arrays."""
    if "ids" in arrays:
        bags = bag_sizes(arrays)
        return {kind: BAG_BYTES[kind](bags) for kind in kinds if kind in BAG_BYTES}
    if "indices" in arrays:
        sparse = sparse_sizes(arrays)
        return {kind: SPARSE_BYTES[kind](sparse) for kind in kinds if kind in SPARSE_BYTES}
    return {}


def bag_sizes(x: Arrays) -> BagSizes:
    """The sizes of a batch of bags."""
    width = 2 if x["dtype"] in ("float16", "bfloat16") else int(np.dtype(x["dtype"]).itemsize)
    ids = x["ids"]
    return BagSizes(len(ids), distinct(ids), x["rows"], x["bags"], x["grad"].shape[1], width, ids.itemsize)


def sparse_sizes(x: Arrays) -> SparseSizes:
    """The sizes of two sparse matrices and a slice."""
    rows, cols = x["shape"].tolist()
    a, b = x["indices"], x["b_indices"]
    inside = np.all((a >= x["start"]) & (a < x["start"] + x["size"]), axis=1).sum()
    places = np.concatenate([a[:, 0] * cols + a[:, 1], b[:, 0] * cols + b[:, 1]])
    return SparseSizes(len(a), int(inside), rows, rows - distinct(a[:, 0]), distinct(places))


def distinct(ids: Array) -> int:
    """How many different ids there are."""
    return len(np.unique(ids))
