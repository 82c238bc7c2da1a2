"""A reused gradient buffer equals a newly allocated gradient, step after step."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad.raw_ops import OPS


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 3, 70])
@pytest.mark.parametrize("rows", [50, 5000])  # mostly stale: cleared completely; few stale rows: cleared one by one
def test_every_step_equals_a_new_gradient(rows: int, columns: int, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    buffer = rg.GradBuffer((rows, columns), dtype)
    for step in range(6):
        n = int(rng.integers(0, 40))
        ids, segments = rng.integers(0, rows, n), rng.integers(0, 5, n)
        grad = rng.normal(size=(5, columns)).astype(dtype)
        call = (grad, ids, segments, rows)
        kind = ("Sum", "Mean", "SqrtN")[step % 3]
        reused = OPS[f"SparseSegment{kind}Grad"](*call, out=buffer)
        assert reused is buffer.array
        assert same_bits(reused, OPS[f"SparseSegment{kind}Grad"](*call))


def test_other_dense_gradients() -> None:
    buffer = rg.GradBuffer((6, 2), np.float64)
    for ids in ([0, 5, 5], [1, 1, 2]):
        x = (np.ones((3, 2)), ids, [0, 1, 2], np.array([1.0, 2.0, 3.0]), 6)
        expected = rg.raw_ops.WeightedSparseSegmentMeanGrad(*x)
        assert same_bits(rg.raw_ops.WeightedSparseSegmentMeanGrad(*x, out=buffer), expected)
        expected = rg.raw_ops.ScatterRows(np.ones((3, 2)), ids, 6)
        assert same_bits(rg.raw_ops.ScatterRows(np.ones((3, 2)), ids, 6, out=buffer), expected)


def test_a_rejected_call_keeps_the_last_gradient() -> None:
    buffer = rg.GradBuffer((3, 1), np.float64)
    rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [1], [0], 3, out=buffer)
    with pytest.raises(rg.errors.InvalidArgumentError, match="Index 9 out of range"):
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [9], [0], 3, out=buffer)
    assert buffer.array.ravel().tolist() == [0, 1, 0]
    buffer.clear()
    assert not buffer.array.any()
    assert repr(buffer) == "GradBuffer(float64[3,1], 0 rows written)"


def test_wrong_shapes_and_ops_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="out for output must be"):
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [0], [0], 4, out=rg.GradBuffer((3, 1), np.float64))
    with pytest.raises(rg.errors.InvalidArgumentError, match="must be an array; got a GradBuffer"):
        rg.raw_ops.GatherRows(np.ones((3, 1)), [0, 1, 2], out=rg.GradBuffer((3, 1), np.float64))
    for shape in ((), 5, (-1, 2), ("a",)):
        with pytest.raises(TypeError, match="a tuple of sizes, rows first"):
            rg.GradBuffer(shape, np.float64)


def test_internal_state_is_read_only() -> None:
    buffer = rg.GradBuffer((3, 1), np.float64)
    rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [1], [0], 3, out=buffer)
    with pytest.raises(ValueError, match="read-only"):
        buffer.written[:] = 10**12
    with pytest.raises(AttributeError):
        buffer.array = np.zeros((1, 1))
    other = copy.copy(buffer)
    rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1)), [2], [0], 3, out=other)
    assert buffer.array.ravel().tolist() == [0, 1, 0]
    assert other.array.ravel().tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [object, "nonsense", "S4", np.dtype([("qint8", np.int8)]), bool])
@pytest.mark.parametrize("rows", [4, 1 << 20])
def test_dtypes_without_gradients_raise(dtype: Any, rows: int) -> None:
    with pytest.raises(TypeError, match="GradBuffer: dtype must be one of"):
        rg.GradBuffer((rows,), dtype)


def test_buffers_beyond_memory_raise() -> None:
    with pytest.raises(rg.errors.ResourceExhaustedError, match="GradBuffer: OOM"):
        rg.GradBuffer((2**40, 2**18))
    with pytest.raises(TypeError, match="shape must be a tuple of sizes"):
        rg.GradBuffer((0, 2**62))
