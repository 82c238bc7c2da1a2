"""Plan: the same bits as with ids, also after pickling and in other processes; and its errors."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG, PLAN
from rowgrad.raw_ops import OPS

PLANNED = [op for op in CATALOG.values() if op.planned and op.name.endswith(("Grad", "GradV2"))]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def batch(seed: int, n: int = 500, rows: int = 40, segments: int = 60, ids: Any = np.int32) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, rows, n).astype(ids), np.sort(rng.integers(0, segments, n)).astype(ids)


def call(op: Any, grad: np.ndarray, weights: np.ndarray, ids: tuple[Any, ...], plan: Any, **more: Any) -> list[Any]:
    """Call with the plan, or without one with the ids and the number of rows."""
    extra = {"weights": weights} if "weights" in op.input_names else {}
    if plan is None:
        size = next(a.name for a in op.inputs if a.host)
        more |= {"indices": ids[0], "segment_ids": ids[1], size: ids[2]}
    else:
        more["plan"] = plan
    result = OPS[op.name](grad, **extra, **more)
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("order", ["sequential", "blocked"])
@pytest.mark.parametrize("op", PLANNED, ids=lambda op: op.name)
def test_same_bits_as_ids(op: Any, order: str) -> None:
    for seed, dtype in enumerate(DTYPES):
        # few rows: some have more than 64 ids, where the orders differ
        indices, segments = batch(seed, rows=4 if seed % 2 else 40, ids=np.int64 if seed > 1 else np.int32)
        rng = np.random.default_rng(seed)
        grad = rng.standard_normal((61, 5)).astype(dtype)
        weights = rng.uniform(0.5, 2, len(indices)).astype(dtype)
        plan = rg.Plan(indices, segments, 40)
        expected = call(op, grad, weights, (indices, segments, 40), None, order=order)
        for threads in (1, 3):
            rg.set_num_threads(threads)
            got = call(op, grad, weights, (), plan, order=order)
            assert all(map(same_bits, got, expected))
            assert [g.dtype for g in got] == [w.dtype for w in expected]


def test_named_results_and_reuse() -> None:
    indices, segments = batch(1)
    plan = rg.Plan(indices, segments, 40)
    one, other = np.ones((60, 3), np.float32), np.full((60, 7), 2.0)
    assert rg.raw_ops.SparseSegmentMeanGradV2(one, plan=plan).sorted_unique_indices.tolist() == plan.rows.tolist()
    assert rg.raw_ops.SparseSegmentMeanGrad(other, plan=plan, name="x").shape == (40, 7)
    buffer = rg.GradBuffer((40, 3))
    for seed in (1, 2):
        ids = batch(seed, n=5)
        rg.raw_ops.SparseSegmentSumGrad(one, plan=rg.Plan(*ids, 40), out=buffer)
        np.testing.assert_array_equal(buffer.array, rg.raw_ops.SparseSegmentSumGrad(one, *ids, 40))
        assert buffer.written.tolist() == sorted(set(ids[0].tolist()))


def test_ids_can_be_recovered() -> None:
    indices, segments = batch(2)
    segments = segments[::-1].copy()
    plan = rg.Plan(indices, segments, 40, num_segments=80)
    again = plan.ids()
    np.testing.assert_array_equal(again[0], indices)
    np.testing.assert_array_equal(again[1], segments)
    assert (plan.num_ids, plan.num_segments, plan.num_rows) == (500, 80, 40)
    assert repr(plan) == "Plan(500 ids, 40 of 40 rows, 80 segments)"
    assert plan != rg.Plan(segments, indices, 80)
    assert plan == rg.Plan(indices, segments, 40, num_segments=80)


def test_empty_plan() -> None:
    plan = rg.Plan([], [], 5)
    assert (plan.num_ids, plan.num_segments) == (0, 0)
    assert rg.raw_ops.SparseSegmentMeanGrad(np.ones((0, 2)), plan=plan).tolist() == [[0.0, 0.0]] * 5
    assert rg.raw_ops.SparseSegmentMeanGradV2(np.ones((3, 2)), plan=plan).output.shape == (0, 2)
    assert pickle.loads(pickle.dumps(plan)) == plan


def make_plan(seed: int) -> rg.Plan:
    return rg.Plan(*batch(seed), 40)


def test_plan_built_in_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        for seed, plan in enumerate(pool.map(make_plan, range(3))):
            assert plan == make_plan(seed)
            assert not plan.segments.flags.writeable


@pytest.mark.parametrize("part", PLAN)
def test_a_broken_pickle_is_rejected(part: str) -> None:
    plan = make_plan(1)
    parts = {name: getattr(plan, name) for name in PLAN}
    changed = np.array(parts[part])
    changed.reshape(-1)[changed.size // 2] = 1 << 20 if part in ("rows", "segments", "positions") else 0
    parts[part] = int(changed) if part == "num_rows" else changed
    broken = object.__new__(rg.Plan)
    for name, value in parts.items():
        object.__setattr__(broken, name, value)
    with pytest.raises(ValueError, match="not an intact Plan"):
        pickle.loads(pickle.dumps(broken))


def test_invalid_plans_raise() -> None:
    grad = np.ones((2, 1))
    plan = rg.Plan([3, 0, 3], [0, 0, 1], 4)
    with pytest.raises(TypeError, match="plan takes the place of indices, segment_ids, output_dim0"):
        rg.raw_ops.SparseSegmentMeanGrad(grad, [0], [0], 1, plan=plan)
    with pytest.raises(TypeError, match="plan takes the place of indices"):
        rg.raw_ops.SparseSegmentMeanGrad(grad, output_dim0=4, plan=plan)
    with pytest.raises(TypeError, match="SparseSegmentMean takes no plan"):
        rg.raw_ops.SparseSegmentMean(grad, plan=plan)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"must be a rowgrad\.Plan, got dict"):
        rg.raw_ops.SparseSegmentMeanGrad(grad, plan={})
    with pytest.raises(rg.errors.InvalidArgumentError, match="the plan has 2 segments, but grad has only 1 rows"):
        rg.raw_ops.SparseSegmentMeanGrad(grad[:1], plan=plan)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"Index 4 out of range \[0, 4\)"):
        rg.Plan([4], [0], 4)
    with pytest.raises(rg.errors.InvalidArgumentError, match="Segment id -1 out of range"):
        rg.Plan([0, 1], [-1, 0], 4)
    with pytest.raises(AttributeError, match="a Plan is immutable"):
        plan.rows = plan.starts
    assert rg.raw_ops.SparseSegmentMeanGrad(grad, [0], [0], 1, plan=None).tolist() == [[1.0]]


def test_derivatives_with_a_plan() -> None:
    indices, segments = batch(3, n=30, rows=7, segments=5)
    plan = rg.Plan(indices, segments, 7, num_segments=5)
    rng = np.random.default_rng(3)
    grad, weights = rng.standard_normal((5, 2)), rng.uniform(1, 2, 30)
    for op in PLANNED:
        names = ["grad", *(["weights"] if "weights" in op.input_names else [])]
        x = {"grad": grad, "weights": weights}
        y = rng.standard_normal(call(op, grad, weights, (indices, segments, 7), None)[0].shape)
        found = []
        for plan_or_none in (None, plan):

            def function(*values: Any, op: Any = op, plan_or_none: Any = plan_or_none) -> Any:
                return call(op, values[0], values[-1], (indices, segments, 7), plan_or_none)[0]

            found.append(rg.vjp(function, [x[n] for n in names], y))
        assert all(map(same_bits, *found))
