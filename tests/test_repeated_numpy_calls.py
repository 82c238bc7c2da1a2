"""A repeated call takes a fast path: it must use its own data and raise the same errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG
from rowgrad._runtime import numpy_runner
from rowgrad.raw_ops import OPS
from samples import sample

KERNELS = [pytest.param(op.name, id=op.name) for op in CATALOG.values() if op.kernel]
IDS, SEGMENTS = np.array([0, 2]), np.array([0, 0])


@pytest.fixture(autouse=True)
def _clear_caches() -> None:
    numpy_runner._PREPARED.clear()


def outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", KERNELS)
def test_other_data_of_the_same_shapes(name: str, dtype: Any) -> None:
    calls = [sample(name, np.random.default_rng(seed), dtype) for seed in range(4)]
    calls = [{k: np.asarray(v) for k, v in x.items()} for x in calls]
    for x in calls:
        numpy_runner._PREPARED.clear()
        x["expected"] = outputs(OPS[name](**x))
    for x in calls * 2:
        inputs = {k: v for k, v in x.items() if k != "expected"}
        assert all(map(same_bits, outputs(OPS[name](**inputs)), x["expected"]))


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2"])
def test_non_native_byte_order_every_time(dtype: str) -> None:
    data = np.arange(6, dtype=dtype).reshape(3, 2)
    for _ in range(3):
        assert rg.raw_ops.SparseSegmentSum(data, IDS, SEGMENTS).tolist() == [[4, 6]]


def test_non_native_sizes_every_time() -> None:
    rows = np.array(4, ">i4")
    grad = np.ones((1, 2), np.float32)
    for _ in range(2):
        assert rg.raw_ops.SparseSegmentSumGrad(grad, np.array([1]), np.array([0]), rows).shape == (4, 2)
        with pytest.raises(rg.errors.InvalidArgumentError, match="Index 5 out of range"):
            rg.raw_ops.SparseSegmentSumGrad(grad, np.array([5]), np.array([0]), rows)


def test_integers_that_later_overflow_raise() -> None:
    good, bad = np.array([[0, 1]], np.uint64), np.array([[2**63, 1]], np.uint64)
    x = (np.ones(1), np.array([2, 2]), np.array([0, 0]), np.array([2, 2]))
    for _ in range(2):
        rg.raw_ops.SparseSlice(good, *x)
        with pytest.raises(rg.errors.InvalidArgumentError, match="indices must contain values of int64"):
            rg.raw_ops.SparseSlice(bad, *x)


def test_faults_in_the_data_raise_every_time() -> None:
    data = np.ones((3, 2))
    rg.raw_ops.SparseSegmentSum(data, IDS, SEGMENTS)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"Bad: indices\[1\] == 7") as caught:
        rg.raw_ops.SparseSegmentSum(data, np.array([0, 7]), SEGMENTS, name="again")
    assert caught.value.name == "again"


def test_attributes_are_part_of_the_cache_key() -> None:
    grad, weights = np.ones((4096, 1), ml_dtypes.bfloat16), np.ones(4096, np.float32)
    x = (grad, np.zeros(4096, np.int64), np.arange(4096), weights, np.int32(1))
    for accumulate, expected in (("T", 256), ("float32", 4096)) * 2:
        assert float(rg.raw_ops.WeightedSparseSegmentSumGrad(*x, accumulate=accumulate)[0, 0]) == expected


def test_live_results_are_not_overwritten() -> None:
    """Large outputs reuse memory of freed ones; memory still in use is never written."""
    rng = np.random.default_rng(1)
    table, ids = rng.normal(size=(2000, 64)).astype(np.float32), rng.integers(0, 2000, 20_000)
    results = [rg.raw_ops.GatherRows(table, ids + 0) for _ in range(3)]
    slice_of_a_result = rg.raw_ops.GatherRows(table, ids)[100:200]
    for _ in range(5):
        rg.raw_ops.GatherRows(-table, ids)
    assert all(same_bits(k, table[ids]) for k in results)
    assert same_bits(slice_of_a_result, table[ids][100:200])
