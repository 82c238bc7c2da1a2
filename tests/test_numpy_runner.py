"""The NumPy runner: the caller's buffers, impossible sizes, edge-case shapes."""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG
from rowgrad.raw_ops import OPS
from samples import sample

EVERY = [pytest.param(op.name, id=op.name) for op in CATALOG.values() if op.layer != "graph"]


def outputs(result: Any) -> tuple[np.ndarray, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", EVERY)
def test_out_is_cleared_and_filled(name: str) -> None:
    x = sample(name, np.random.default_rng(7))
    expected = outputs(OPS[name](**x))
    buffers = tuple(np.full_like(e, 1) for e in expected)
    got = outputs(OPS[name](**x, out=buffers if len(buffers) > 1 else buffers[0]))
    assert all(g is b for g, b in zip(got, buffers, strict=True))
    assert all(map(same_bits, got, expected))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            np.zeros((3, 2)),
            r"out for output must be a writable, contiguous, aligned float32\[3,2\]; got float64\[3,2\]",
        ),
        (np.zeros((2, 2), np.float32), "out for output must be"),
        (np.zeros((2, 3), np.float32).T, "out for output must be"),
        ((np.zeros((3, 2), np.float32),) * 2, "out must contain 1 arrays, got 2"),
        ([[0.0] * 2] * 3, "out must contain 1 arrays, got 3"),
    ],
)
def test_unsuitable_out_raises(out: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 2), np.float32), [0], [0], 3, out=out)


def test_out_must_not_overlap_inputs() -> None:
    grad = np.ones((3, 2), np.float32)
    with pytest.raises(rg.errors.InvalidArgumentError, match="out for output shares memory with grad"):
        rg.raw_ops.SparseSegmentSumGrad(grad, [0], [0], 3, out=grad)


def test_nothing_is_written_when_a_call_is_rejected() -> None:
    out = np.full((3, 2), 7, np.float32)
    with pytest.raises(rg.errors.InvalidArgumentError):
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 2), np.float32), [0, 5], [0, 0], 3, out=out)
    assert (out == 7).all()


IMPOSSIBLE = [
    ("SparseSegmentSum", {"data": np.ones((1, 8)), "indices": np.array([0]), "segment_ids": np.array([2**45])}),
    ("SparseSegmentSumWithNumSegments",
     {"data": np.ones((1, 2**10)), "indices": np.array([0]), "segment_ids": np.array([0]), "num_segments": 2**31 - 1}),
    ("SparseSegmentSumGrad",
     {"grad": np.ones((1, 2**10)), "indices": [0], "segment_ids": [0], "output_dim0": 2**31 - 1}),
    ("SparseFillEmptyRows",
     {"indices": np.zeros((0, 2), np.int64), "values": np.ones(0), "dense_shape": [2**62, 1], "default_value": 0.0}),
    ("RaggedFillEmptyRows",
     {"value_rowids": np.array([3]), "values": np.ones(1), "nrows": 2**40, "default_value": 0.0}),
    ("SegmentSum", {"data": np.ones((1, 8)), "segment_ids": np.array([2**45])}),
    ("ScatterRows", {"grad": np.ones((1, 8)), "indices": [0], "num_rows": np.array(2**45)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x"), IMPOSSIBLE, ids=[name for name, _ in IMPOSSIBLE])
def test_impossible_sizes_are_rejected_immediately(name: str, x: dict[str, Any]) -> None:
    started = time.process_time()
    with pytest.raises(rg.errors.ResourceExhaustedError, match="OOM when allocating"):
        OPS[name](**x)
    assert time.process_time() - started < 2


def test_more_elements_than_int64_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="overflow when multiplying 4611686018427387905 with 2"):
        rg.raw_ops.SparseSegmentSum(np.ones((1, 2)), np.array([0]), np.array([2**62]))


def test_sums_of_4096_ones_are_4096_in_16_bits() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        ones = np.ones((4096, 1), dtype)
        grad = rg.raw_ops.SparseSegmentSumGrad(ones, np.zeros(4096, np.int64), np.arange(4096), 1)
        assert float(grad[0, 0]) == 4096
        assert float(rg.raw_ops.SparseSegmentSum(ones, np.arange(4096), np.zeros(4096, np.int64))[0, 0]) == 4096


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_ten_million_rows_one_hot_row_unsorted(dtype: Any) -> None:
    rows, n = 10_000_000, 50_000
    rng = np.random.default_rng(8)
    ids = rng.integers(0, rows, n)
    ids[rng.random(n) < 0.5] = 1234567
    segments = rng.integers(0, 100, n)
    grad = rng.normal(size=(100, 2)).astype(dtype)
    values, unique = rg.raw_ops.SparseSegmentMeanGradV2(grad, ids, segments, rows)
    dense = rg.raw_ops.SparseSegmentMeanGrad(grad, ids, segments, rows)
    assert same_bits(dense[unique], values)
    assert np.array_equal(unique, np.unique(ids))
    touched = np.flatnonzero(dense.astype(np.float32).any(axis=1))
    assert np.isin(touched, unique).all()


def test_scalar_rows_and_high_rank() -> None:
    vector = rg.raw_ops.SparseSegmentSum(np.array([1.0, 2.0, 4.0]), [0, 2], [0, 0])
    assert vector.tolist() == [5.0]
    cube = rg.raw_ops.SparseSegmentMeanGrad(np.ones((1, 2, 1, 3)), [1, 1], [0, 0], 2)
    assert cube.shape == (2, 2, 1, 3)
    assert cube.sum() == 6


def test_more_rows_than_int32() -> None:
    rows = 2**32 + 8
    table = rg.raw_ops.ScatterRows(np.array([5, 7], np.int8), np.array([2**32 + 3, 3]), np.int64(rows))
    assert (int(table[3]), int(table[2**32 + 3])) == (7, 5)


def test_one_array_for_two_outputs_raises() -> None:
    z, flags, places = np.zeros(2, np.int64), np.zeros(2, bool), np.zeros(2, np.int64)
    with pytest.raises(rg.errors.InvalidArgumentError, match="shares memory with output_values"):
        rg.raw_ops.RaggedFillEmptyRows([0, 1], np.array([5, 6]), 2, np.int64(0), out=(z, z, flags, places))


def test_unaligned_out_raises() -> None:
    out = np.zeros(9, np.uint8)[1:].view(np.float32).reshape(1, 2)
    with pytest.raises(rg.errors.InvalidArgumentError, match="aligned"):
        rg.raw_ops.SparseSegmentSum(np.ones((1, 2), np.float32), [0], [0], out=out)


def test_size_pads_the_gradient() -> None:
    """`size=` selects the padded op, however other arguments are passed; contradicting arguments raise."""
    grad, op = np.ones((1, 2), np.float32), rg.raw_ops.SparseSegmentSumGradV2
    for rows in (
        op(grad, [1], [0], 6, size=3),
        op(grad, [1], [0], 6, "sequential", size=3),
        op(grad, indices=[1], segment_ids=[0], dense_output_dim0=6, size=3, fill_id=6),
    ):
        assert rows.sorted_unique_indices.tolist() == [1, 6, 6]
        assert rows.output.tolist() == [[1, 1], [0, 0], [0, 0]]
    plan = rg.Plan([1], [0], 6)
    for rows in (op(grad, [1], [0], 6, size=None, fill_id=None), op(grad, plan=plan, size=None)):
        assert rows.sorted_unique_indices.tolist() == [1]
    for wrong, message in (
        ({"fill_id": 7}, "so it needs size"),
        ({"size": 3, "order": "blocked"}, "'order' twice"),
    ):
        with pytest.raises(TypeError, match=message):
            op(grad, [1], [0], 6, "sequential", **wrong)
    with pytest.raises(TypeError, match="pass plan or size, not both"):
        op(grad, plan=plan, size=3)


def test_masked_out_is_rejected() -> None:
    out = np.ma.array(np.zeros((1, 2), np.float32))
    for call in (lambda: rg.raw_ops.GatherRows(np.ones((3, 2), np.float32), [0], out=out),
                 lambda: rg.dense_ops.Neg(np.ones((1, 2), np.float32), out=out)):  # fmt: skip
        with pytest.raises(rg.errors.InvalidArgumentError, match="got a masked array, whose mask would be lost"):
            call()
    assert out.tolist() == [[0, 0]]
