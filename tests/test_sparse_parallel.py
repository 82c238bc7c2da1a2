"""Long lists shared by threads, sorted, with repeats and unsorted, equal the results of the naive reference.

Threads start their parts at guessed positions. A guess is right if the list is sorted; otherwise some part must detect
that and start again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from reference import ExpectedError, reference
from rowgrad._catalog.spec import CATALOG
from rowgrad.raw_ops import OPS

COUNTS = (1, 2, 3, 8)
LONG = 40_000  # enough entries for two parts of a walk
LONGER = 140_000  # and of a scan
KINDS = ("sorted", "repeats", "one place", "swapped once", "halves swapped", "random")
RANKS = (1, 2, 3)


def places(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "one place":
        return np.full(n, 7)
    if kind == "random":
        return rng.integers(0, n, n)
    found = np.sort(rng.integers(0, 3 * n, n)) if kind != "repeats" else np.sort(rng.integers(0, n // 2, n))
    if kind == "sorted":
        return np.unique(found)
    if kind == "swapped once":
        found[[n // 3, n // 2 + 5]] = found[[n // 2 + 5, n // 3]]
    return np.roll(found, n // 2) if kind == "halves swapped" else found


def coordinates(kind: str, rank: int, rng: np.random.Generator, n: int = LONG) -> np.ndarray:
    digits = [places(kind, n, rng)]
    while len(digits) < rank:
        digits[:1] = np.divmod(digits[0], 50)
    return np.stack(digits, axis=1).astype(np.int64)


def values(n: int, rng: np.random.Generator, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(n).astype(dtype)


def check(op: str, **inputs: Any) -> tuple[np.ndarray, ...]:
    """Check the reference's result or error at every number of threads."""
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    expected: tuple[np.ndarray, ...] = ()
    expected_error = None
    try:
        expected = tuple(reference(op, arrays, CATALOG[op].attrs))
    except ExpectedError as error:
        expected_error = error
    for count in COUNTS:
        rg.set_num_threads(count)
        if expected_error is not None:
            with pytest.raises(rg.errors.OpError) as raised:
                OPS[op](**arrays)
            assert expected_error.message in str(raised.value), count
            continue
        got = OPS[op](**arrays)
        got = got if isinstance(got, tuple) else (got,)
        assert all(map(same_bits, got, expected)), (op, count)
    return expected


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("kind", KINDS)
def test_slice(kind: str, rank: int) -> None:
    rng = np.random.default_rng(rank)
    indices = coordinates(kind, rank, rng)
    n, top = len(indices), int(indices[:, 0].max())
    start, size = np.zeros(rank, np.int64), np.full(rank, 30)
    start[0], size[0] = top // 4, top // 2 + 1
    shape = np.full(rank, top + 60)
    out, sliced, _ = check("SparseSlice", indices=indices, values=values(n, rng), shape=shape, start=start, size=size)
    match = {"input_indices": indices, "input_start": start}
    check("SparseSliceGrad", backprop_val_grad=sliced, output_indices=out, **match)
    check("SparseSliceGradGrad", grad=values(n, rng), output_indices=out, **match)
    some = indices[rng.random(n) < 0.3] - start  # the box contains others too, so every entry must be checked
    check("SparseSliceGrad", backprop_val_grad=values(len(some), rng), output_indices=some, **match)
    some[len(some) // 2] = -9  # not in the input: it and the entries after it are left over
    check("SparseSliceGrad", backprop_val_grad=values(len(some), rng), output_indices=some, **match)


@pytest.mark.parametrize(("kind", "rank"), list(zip(KINDS, RANKS * 2, strict=True)))
def test_add(kind: str, rank: int) -> None:
    rng = np.random.default_rng(10 + rank)
    shape = np.full(rank, 4 * LONG)
    for other, thresh in (("sorted", 0), (kind, 1)):
        a, b = coordinates(kind, rank, rng), coordinates(other, rank, rng, LONG // 2)
        x = {"a_indices": a, "b_indices": b}
        found, _, _ = check(
            "SparseAdd", a_values=values(len(a), rng), a_shape=shape, b_values=values(len(b), rng), b_shape=shape,
            thresh=np.float32(thresh), **x,
        )  # fmt: skip
        for total in (found, a[::-1]):
            check("SparseAddGrad", backprop_val_grad=values(len(total), rng), sum_indices=total, **x)
            check("SparseAddGradGrad", da=values(len(a), rng), db=values(len(b), rng), sum_indices=total, **x)


@pytest.mark.parametrize("kind", KINDS)
def test_fill_empty_rows(kind: str) -> None:
    rng = np.random.default_rng(20)
    rowids = places(kind, LONGER, rng) // 4
    n, rows = len(rowids), int(rowids.max()) + 1000
    indices = np.stack([rowids, rng.integers(0, 9, n)], axis=1)
    x = {"values": values(n, rng), "default_value": np.float32(-1)}
    check("RaggedFillEmptyRows", value_rowids=rowids, nrows=rows, **x)
    filled = check("SparseFillEmptyRows", indices=indices, dense_shape=[rows, 9], **x)
    check("SparseFillEmptyRows", indices=indices, dense_shape=[int(rowids.max()), 9], **x)  # one row too few
    map_, length = filled[3], len(filled[1])
    check("SparseFillEmptyRowsGrad", reverse_index_map=map_, grad_values=values(length, rng, np.float16))
    check("SparseFillEmptyRowsGrad", reverse_index_map=rowids, grad_values=values(rows, rng))
    late = map_.copy()
    late[-1] = length
    check("SparseFillEmptyRowsGrad", reverse_index_map=late, grad_values=values(length, rng))


def test_nothing_to_fill_and_empty_inputs() -> None:
    none = np.zeros(0, np.int64)
    x = {"values": np.zeros(0, np.float32), "default_value": np.float32(2)}
    filled = check("RaggedFillEmptyRows", value_rowids=none, nrows=LONGER, **x)
    check("RaggedFillEmptyRowsGrad", reverse_index_map=none, grad_values=filled[1])
    check("RaggedFillEmptyRowsGrad", reverse_index_map=np.arange(LONGER), grad_values=filled[1])
