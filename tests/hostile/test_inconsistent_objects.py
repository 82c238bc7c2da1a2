"""Arguments with inconsistent attributes, or that change while they are read: SECURITY.md."""

from __future__ import annotations

from typing import Any

import inconsistent_objects as objects
import numpy as np
import pytest

import rowgrad as rg
from rowgrad import optim
from rowgrad.raw_ops import OPS

GRAD = np.ones((2, 3), np.float32)
IDS, SEGMENTS = np.array([0, 5, 5]), np.array([0, 0, 1])


def guarded(rows: int) -> tuple[objects.Guarded, np.ndarray]:
    around = objects.Guarded()
    return around, around.like(np.zeros((rows, 3), np.float32))


@pytest.mark.parametrize("kind", objects.SUBCLASSES)
def test_out_size_is_read_from_numpy(kind: type[objects.InconsistentArray]) -> None:
    """A buffer of two rows that claims to have six is not written."""
    claims = type("Claims", (kind,), {"shape": (6, 3), "dtype": np.dtype(np.float32), "flags": objects.GoodFlags()})
    around, small = guarded(2)
    out = objects.as_class(claims, small)
    with pytest.raises(
        rg.errors.InvalidArgumentError, match=r"must be a writable, contiguous, aligned .*; got float32\[2,3\]"
    ):
        OPS["SparseSegmentSumGrad"](GRAD, IDS, SEGMENTS, 6, out=out)
    assert around.are_intact()
    assert not small.any()


@pytest.mark.parametrize("kind", objects.SUBCLASSES)
def test_a_valid_buffer_of_any_class_is_written(kind: type[objects.InconsistentArray]) -> None:
    around, whole = guarded(6)
    out = objects.as_class(kind, whole)
    assert OPS["SparseSegmentSumGrad"](GRAD, IDS, SEGMENTS, 6, out=out) is out
    assert around.are_intact()
    assert whole[:, 0].tolist() == [1, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("kind", objects.SUBCLASSES)
def test_table_size_is_read_from_numpy(kind: type[objects.InconsistentArray]) -> None:
    claims = type("Claims", (kind,), {"shape": (6, 3), "dtype": np.dtype(np.float32), "flags": objects.GoodFlags()})
    around, small = guarded(2)
    with pytest.raises(rg.errors.OpError):
        optim.apply_rows("sgd", objects.as_class(claims, small), (), GRAD[:1], np.array([5]), optim.Step(lr=1.0))
    assert around.are_intact()
    assert not small.any()
    around, whole = guarded(6)
    optim.apply_rows("sgd", objects.as_class(kind, whole), (), GRAD[:1], np.array([5]), optim.Step(lr=1.0))
    assert around.are_intact()
    assert whole[5].tolist() == [-1, -1, -1]


def test_the_array_interface_of_a_table_is_not_used() -> None:
    elsewhere = np.zeros((6, 3), np.float32)

    class OtherMemory(np.ndarray):
        __array_interface__ = elsewhere.__array_interface__  # type: ignore[assignment]

    table = np.zeros((6, 3), np.float32)
    optim.apply_rows("sgd", table.view(OtherMemory), (), GRAD[:1], np.array([5]), optim.Step(lr=1.0))
    assert not elsewhere.any()
    assert table[5, 0] == -1


@pytest.mark.parametrize("change", ["shape", "dtype", "resize"])
def test_a_table_changed_by_converting_another_argument(change: str) -> None:
    """Whatever a conversion does to the table, the step does not use its earlier memory."""
    table = np.zeros((6, 3), np.float32)

    def act() -> None:
        if change == "resize":
            table.resize((1, 3), refcheck=False)
        else:
            setattr(table, change, (18, 1) if change == "shape" else np.int32)

    with pytest.raises(rg.errors.OpError, match="changed its shape, dtype or memory layout"):
        optim.apply_rows("sgd", table, (), objects.Converted(GRAD[:1], act), np.array([5]), optim.Step(lr=1.0))
    assert not table.any()


def test_data_shrunk_by_converting_ids() -> None:
    data = np.ones((6, 3), np.float32)
    ids = objects.Converted(np.array([0, 5]), lambda: data.resize((1, 3), refcheck=False))
    with pytest.raises(rg.errors.OpError, match="out of range"):
        OPS["SparseSegmentSum"](data, ids, np.array([0, 0]))


def test_subclass_data_shrunk_by_converting_ids() -> None:
    data = objects.owning(objects.InconsistentArray, np.ones((6, 3), np.float32))
    ids = objects.Converted(np.array([0, 5]), lambda: data.resize((1, 3), refcheck=False))
    with pytest.raises(rg.errors.OpError, match="out of range"):
        OPS["SparseSegmentSum"](data, ids, np.array([0, 0]))


class PlanOnce:
    """A plan whose arrays are longer at the first read than later."""

    def __init__(self) -> None:
        self.plan, self.reads = rg.Plan([3, 0, 3], [0, 0, 1], num_rows=4), dict.fromkeys(rg._catalog.spec.PLAN, 0)

    def __getattr__(self, name: str) -> Any:
        part = getattr(self.plan, name)
        self.reads[name] += 1
        return part


@pytest.mark.parametrize("planned", ["op", "update"])
def test_every_array_of_a_plan_is_read_once(planned: str) -> None:
    plan = PlanOnce()
    if planned == "op":
        OPS["SparseSegmentSumGrad"](GRAD, plan=plan)
    else:
        table = np.zeros((4, 3), np.float32)
        optim.apply_planned("sgd", table, (), GRAD, plan, optim.Step(lr=1.0))
    assert set(plan.reads.values()) == {1}


class Size(int):
    """A different number each time it is read."""

    def __int__(self) -> int:
        return 6

    __index__ = __int__


def test_a_size_that_changes_is_not_cached() -> None:
    grad = np.ones((2, 5), np.float32)
    for _ in range(2):
        OPS["SparseSegmentSumGrad"](grad, IDS, SEGMENTS, Size(9))
        assert OPS["SparseSegmentSumGrad"](grad, IDS, SEGMENTS, 9).shape == (9, 5)
        assert OPS["SparseSegmentSumGrad"](grad, IDS, SEGMENTS, 6).shape == (6, 5)


def test_a_changed_buffer_is_rejected() -> None:
    buffer = rg.GradBuffer((6, 3), np.float32)
    buffer._written = np.arange(5, dtype=np.int8)
    with pytest.raises(rg.errors.InvalidArgumentError, match="intact GradBuffer"):
        OPS["SparseSegmentSumGrad"](GRAD, IDS, SEGMENTS, 6, out=buffer)


def test_a_changed_step_is_rejected() -> None:
    step = optim.Step(lr=1.0)
    object.__setattr__(step, "betas", ())
    object.__setattr__(step, "rate", 1.0)
    table = np.zeros((6, 3), np.float32)
    with pytest.raises(rg.errors.InvalidArgumentError, match="12 numbers"):
        optim.apply_rows("sgd", table, (), GRAD[:1], np.array([5]), step)


def test_messages_contain_no_address() -> None:
    rows = rg.IndexedRows(GRAD, np.array([0, 1]), object())  # type: ignore[arg-type]
    calls = [
        lambda: OPS["SparseSegmentSumGrad"](GRAD, IDS, SEGMENTS, 6, out=[object()]),
        lambda: optim.apply_gradient("sgd", np.zeros((6, 3), np.float32), (), rows, optim.Step(lr=1.0)),
    ]
    for call in calls:
        with pytest.raises(rg.errors.OpError) as caught:
            call()
        assert " at 0x" not in str(caught.value)


def test_two_thousand_calls_with_inconsistent_objects() -> None:
    done, failed = objects.run(2000)
    assert done > 200
    assert failed > 200


@pytest.mark.slow
def test_a_hundred_thousand_calls_with_inconsistent_objects() -> None:
    assert sum(objects.run(100_000, seed=1)) == 100_000
