"""The terms of a row, added in the documented order, give the bits of the op's result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from rowgrad._catalog.spec import CATALOG, PLAN, Op
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph.row_sums import Call, RowSum, RowSums, Sum, in_eights, in_runs, row_sum
from rowgrad.raw_ops import OPS
from samples import sample

TRACED = [op for op in CATALOG.values() if op.rows is not None and op.linear]
OF_IDS = [op for op in TRACED if {"segment_ids", "segments"} & {*op.input_names}]
NUMBERS = ("float16", "bfloat16", "float32", "float64", "int8", "int64", "uint16", "complex64", "complex128")
ALL_NUMBERS = (*NUMBERS, "int16", "int32", "uint8", "uint32", "uint64")


def numpy_dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def calls(op: Op, inputs: dict[str, Any]) -> Iterator[Call]:
    """Call an op in every order and with every rounding that it has."""
    choices = {name: op.choices[name] for name in ("order", "accumulate") if name in op.choices}
    for values in itertools.product(*choices.values()):
        attrs = {**op.attrs, **dict(zip(choices, values, strict=True))}
        found = OPS[op.name](**inputs, **attrs)
        results = found if isinstance(found, tuple) else (found,)
        yield Call(op, inputs, dict(zip((out.name for out in op.outputs), results, strict=True)), attrs)


def assert_sums_have_the_bits_of(call: Call) -> int:
    find, count = RowSums(call), 0
    for pin in find.pins:
        for row in range(len(np.atleast_1d(call.outputs[pin]))):
            total, result = find(pin, row).total(), call.result(pin, row)
            count += 1
            assert total.dtype == result.dtype
            assert total.shape == result.shape
            same = total.tobytes() == result.tobytes() or np.array_equal(total, result, equal_nan=True)
            if total.dtype.kind == "f":  # which NaN comes out is not promised; the sign of zero is
                same = same and bool(np.all((np.signbit(total) == np.signbit(result)) | np.isnan(total)))
            assert same, (call.op.name, call.attrs, pin, row, total, result)
    return count


@pytest.mark.parametrize("op", TRACED, ids=lambda op: op.name)
def test_sums_of_every_op_have_the_bits_of_its_result(op: Op) -> None:
    """Every op with row pairs, every dtype of numbers, every order and rounding."""
    compared = 0
    for dtype in op.dtypes_of("T"):
        if dtype not in ALL_NUMBERS or (op.name == "SparseAdd" and dtype.startswith("complex")):
            continue  # the sample of SparseAdd has a complex threshold
        for seed in range(2):
            inputs = dict(sample(op.name, np.random.default_rng(seed), numpy_dtype(dtype)))
            compared += sum(map(assert_sums_have_the_bits_of, calls(op, inputs)))
    assert compared >= 4


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Return numbers of all sizes: subnormal sums and products, zeros of both signs, infinities."""
    if dtype not in ("float16", "bfloat16", "float32", "float64"):
        return rng.integers(-100 if not dtype.startswith("u") else 0, 100, shape).astype(numpy_dtype(dtype))
    tiny = {"float16": 6e-5, "bfloat16": 2e-38, "float32": 2e-38, "float64": 4e-308}[dtype]
    found = rng.standard_normal(shape)
    kinds = rng.integers(0, 12, shape)
    found = np.where(kinds == 0, found * tiny, found)
    found = np.where(kinds == 1, np.copysign(0.0, found), found)
    if rng.random() < 0.2:
        found = np.where(kinds == 2, np.copysign(np.inf, found), found)
    if rng.random() < 0.3:  # whole batches among the smallest numbers
        found = rng.standard_normal(shape) * tiny
    return found.astype(numpy_dtype(dtype))


def hot_inputs(op: Op, rng: np.random.Generator, dtype: str, ids: int) -> dict[str, Any]:
    """Return a call in which few rows get many ids; 13 columns are a whole packet of lanes and a rest."""
    rows, segments, names = 3, 4, {*op.input_names}
    places = rng.integers(0, segments, ids)
    takes_any_order = "Grad" in op.name or ("Weighted" in op.name and "num_segments" in names)
    if not takes_any_order:
        places = np.sort(places)
    indices = rng.integers(0, rows, ids)
    plan = rg.Plan(indices, places, rows, segments)
    made = {
        "data": lambda: numbers(rng, (ids if op.name == "SegmentSum" else rows, 13), dtype),
        "grad": lambda: numbers(rng, (segments, 13), dtype),
        "indices": lambda: indices,
        "segment_ids": lambda: places,
        "weights": lambda: np.where(rng.random(ids) < 0.1, 0, rng.uniform(-1, 2, ids)).astype(numpy_dtype(dtype)),
        "num_segments": lambda: segments,
        "output_dim0": lambda: rows,
        "dense_output_dim0": lambda: rows,
        "size": lambda: rows + 2,
        "fill_id": lambda: rows,
        **{part: lambda part=part: getattr(plan, part) for part in PLAN},
    }
    return {name: made[name]() for name in op.input_names}


@pytest.mark.parametrize("op", OF_IDS, ids=lambda op: op.name)
def test_sums_of_hot_rows_have_the_bits_of_the_result(op: Op) -> None:
    """Rows of 1 to 100 ids, so that both orders and the blocks of the forward differ."""
    rng = np.random.default_rng(11)
    for dtype in (name for name in op.dtypes_of("T") if name in NUMBERS):
        for ids in (1, 5, 40, 300):
            for call in calls(op, hot_inputs(op, rng, dtype, ids)):
                assert_sums_have_the_bits_of(call)


@pytest.mark.parametrize("name", ["SparseSegmentMeanGrad", "WeightedSparseSegmentSqrtNGrad"])
def test_sums_of_very_hot_rows_have_the_bits_of_the_result(name: str) -> None:
    """About 5,000 ids in a row, so that the tree of the blocked order has three levels."""
    for call in calls(CATALOG[name], hot_inputs(CATALOG[name], np.random.default_rng(3), "float32", 15_000)):
        assert_sums_have_the_bits_of(call)


def test_the_two_orders_of_a_hot_row_differ() -> None:
    """The test above would not notice if both orders were replayed as one."""
    op = CATALOG["SparseSegmentMeanGrad"]
    inputs = hot_inputs(op, np.random.default_rng(0), "float32", 15_000)
    inputs["grad"] = np.random.default_rng(0).standard_normal((4, 13)).astype(np.float32)
    sequential, blocked = (row_sum(call, "output", 1).total() for call in calls(op, inputs))
    assert sequential.tobytes() != blocked.tobytes()


def test_entries_of_lists_sum_up_and_complex_numbers_add() -> None:
    op = CATALOG["SparseAdd"]
    inputs = {
        "a_indices": np.array([[0], [2]]), "a_values": np.array([1 + 2j, 3]), "a_shape": np.array([4]),
        "b_indices": np.array([[1], [2]]), "b_values": np.array([5j, -1j]), "b_shape": np.array([4]),
        "thresh": np.float64(0),
    }  # fmt: skip
    (call,) = calls(op, inputs)
    assert assert_sums_have_the_bits_of(call) == 3
    assert [(t.pin, t.row) for t in row_sum(call, "sum_values", 2).terms] == [("a_values", 1), ("b_values", 1)]


def mean_gradient(order: str = "sequential") -> Call:
    op = CATALOG["SparseSegmentMeanGrad"]
    inputs = {
        "grad": np.array([[1, 2], [6, 8]], np.float32), "indices": np.array([0, 2, 2]),
        "segment_ids": np.array([0, 0, 1]), "output_dim0": np.int32(4),
    }  # fmt: skip
    return next(call for call in calls(op, inputs) if call.attrs["order"] == order)


def factors(found: RowSum) -> list[tuple[str, int, str]]:
    return [(term.pin, term.row, term.factor) for term in found.terms]


def test_the_sum_of_a_mean_gradient() -> None:
    found = row_sum(mean_gradient(), "output", 2)
    assert factors(found) == [("grad", 0, "1/2"), ("grad", 1, "1")]
    assert [p.tolist() for p in found.products] == [[0.5, 1.0], [6.0, 8.0]]
    assert [a.total.tolist() for a in found.additions(found.parts[0][2], 0, 2)] == [[0.5, 1.0], [6.5, 9.0]]
    assert found.total().tolist() == [6.5, 9.0]
    assert row_sum(mean_gradient(), "output", 1).terms == ()


def test_factors_are_exact_fractions_and_roots() -> None:
    data = np.arange(6, dtype=np.float64).reshape(3, 2)
    ids, segments = np.array([0, 1, 2, 0, 1, 2]), np.array([0, 0, 0, 1, 1, 1])
    weights = np.array([1, 3, 4, 0.5, 0.5, 1.0])

    def texts(name: str, segment: int, **more: Any) -> list[str]:
        inputs = {"data": data, "indices": ids, "segment_ids": segments, **more}
        return [term.factor for term in row_sum(next(calls(CATALOG[name], inputs)), "output", segment).terms]

    assert texts("SparseSegmentMean", 0) == ["1/3"] * 3
    assert texts("SparseSegmentSqrtN", 0) == ["1/√3"] * 3
    assert texts("SparseSegmentSum", 0) == ["1"] * 3
    assert texts("WeightedSparseSegmentSum", 0, weights=weights) == ["1", "3", "4"]
    assert texts("WeightedSparseSegmentMean", 0, weights=weights) == ["1/8", "3/8", "1/2"]
    assert texts("WeightedSparseSegmentMean", 1, weights=weights) == ["1/4", "1/4", "1/2"]
    assert texts("WeightedSparseSegmentSqrtN", 0, weights=weights) == ["1/√26", "3/√26", "4/√26"]


def test_the_reason_of_a_factor_and_the_id_of_a_row() -> None:
    terms = row_sum(mean_gradient(), "output", 2).terms
    assert [(term.place, term.id, term.reason) for term in terms] == [
        (1, 2, "bag 0 has 2 ids"), (2, 2, "bag 1 has 1 id"),
    ]  # fmt: skip
    data, ids, segments = np.ones((3, 2)), np.array([2, 1, 0]), np.array([1, 1, 3])
    weights = np.array([2.0, 3, 1])

    def reasons(name: str, row: int, **more: Any) -> list[str]:
        inputs = {"indices": ids, "segment_ids": segments, **more}
        return [term.reason for term in row_sum(next(calls(CATALOG[name], inputs)), "output", row).terms]

    assert reasons("SparseSegmentSqrtN", 1, data=data) == ["bag 1 has 2 ids"] * 2
    assert reasons("SparseSegmentSum", 1, data=data) == ["", ""]
    assert reasons("WeightedSparseSegmentMean", 1, data=data, weights=weights) == [
        "its weight is 2 of 5 in bag 1 (w/Σw)", "its weight is 3 of 5 in bag 1 (w/Σw)",
    ]  # fmt: skip
    grad = {"grad": np.ones((4, 2)), "weights": weights, "output_dim0": 4}
    assert reasons("WeightedSparseSegmentSqrtNGrad", 2, **grad) == ["its weight is 2 and bag 1 has √Σw² = √13"]
    assert reasons("WeightedSparseSegmentSumGrad", 2, **grad) == ["its weight is 2"]


def test_the_default_of_filled_rows_is_explained() -> None:
    op = CATALOG["SparseFillEmptyRowsGrad"]
    (call,) = calls(op, {"reverse_index_map": np.array([0, 1, 3]), "grad_values": np.array([1.0, 2, 4, 8, 16])})
    found = row_sum(call, "d_default_value", 0)
    assert factors(found) == [("grad_values", 2, "1"), ("grad_values", 4, "1")]
    assert found.total().tolist() == [20.0]


def test_the_documented_orders() -> None:
    """docs/reference/orders.md names these two examples."""
    assert in_eights(19).of[:3] == (0, 1, 2)
    assert [part.of for part in in_eights(19).of[3:] if isinstance(part, Sum)] == [(*range(3, 11),), (*range(11, 19),)]
    runs = in_runs(6500).of
    assert [len(part.of) for part in runs if isinstance(part, Sum)] == [64, 38]
    (last,) = (part.of[-1] for part in runs[-1:] if isinstance(part, Sum))
    assert isinstance(last, Sum)
    assert len(last.of) == 36


def test_invalid_rows_raise() -> None:
    call = mean_gradient()
    with pytest.raises(InvalidArgumentError, match=r"row must be in \[0, 4\), the rows of output; got 4"):
        row_sum(call, "output", 4)
    with pytest.raises(InvalidArgumentError, match="pin must be one of output; got 'grad'"):
        row_sum(call, "grad", 0)
    with pytest.raises(InvalidArgumentError, match="RowPlan has no record of which rows"):
        row_sum(Call(CATALOG["RowPlan"], {}, {}), "rows", 0)
