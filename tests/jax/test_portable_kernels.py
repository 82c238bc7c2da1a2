"""The portable kernels compared with TensorFlow's results and with the NumPy runner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")  # not "jax", which would find this folder

import rowgrad as rg
from golden_cases import Case, cases
from jax_arrays import x64
from portable_calls import assert_close, prepare, prepare_sample, reference, run_together, sized_ops
from rowgrad._catalog.spec import CATALOG
from rowgrad.jax import portable
from samples import sample

SHORT = (np.float16, ml_dtypes.bfloat16)


@pytest.fixture
def wide() -> Iterator[None]:
    with x64():
        yield


def test_every_kernel_is_portable_or_data_sized() -> None:
    for op in CATALOG.values():
        if not op.kernel:
            continue
        call = prepare(op, sample(op.name, np.random.default_rng(5)))
        unknown = any(None in output.shape for output in call.outputs)
        assert op.is_data_sized == unknown, op.name
        assert unknown or op.kernel in portable.KERNELS, op.name


def test_data_sized_ops_raise() -> None:
    call = prepare_sample("SparseSegmentSum")
    with pytest.raises(ValueError, match="SparseSegmentSum cannot be compiled"):
        portable.run(call.op, call.arrays, *call[2:])


# -- golden cases ----------------------------------------------------------------------------------------------------


def golden_cases_of_static_size() -> list[Case]:
    return [case for case in cases("valid") if not CATALOG[case.op].is_data_sized]


def check_golden(found: list[Case]) -> None:
    calls = [prepare(CATALOG[case.op], case.inputs, **case.attrs) for case in found]
    for case, got in zip(found, run_together(calls), strict=True):
        assert_close(got, list(case.outputs.values()), case)


@pytest.mark.usefixtures("wide")
def test_golden_of_every_op_and_dtype() -> None:
    chosen: dict[Any, Case] = {}
    for case in golden_cases_of_static_size():
        op, first = CATALOG[case.op], next(iter(case.outputs.values()))
        if 0 < first.size < 100:
            moves = str(op.kernel).startswith(("sparse_slice", "sparse_add"))  # one dtype of each kind is enough
            chosen[op.kernel, first.dtype.kind if moves else first.dtype] = case
            chosen[op.name] = case
    found = list({case.id: case for case in chosen.values()}.values())
    assert {case.op for case in found} == {case.op for case in golden_cases_of_static_size()}
    check_golden(found)


@pytest.mark.slow
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("part", range(16))
def test_golden(part: int) -> None:
    check_golden(golden_cases_of_static_size()[part::16])


# -- the NumPy runner ------------------------------------------------------------------------------------------------


def check_calls(calls: list[Any]) -> None:
    for call, got in zip(calls, run_together(calls), strict=True):
        assert_close(got, reference(call), f"{call.op.name} {call.inputs}")


@pytest.mark.usefixtures("wide")
def test_sums_in_double() -> None:
    """And ops without ids; test_portable_faults covers all other ops in float32."""
    check_calls(
        [prepare_sample(name, np.float64) for name in sized_ops() if "Sum" in name or name in ("Sqrt", "RowDot")]
    )


@pytest.mark.usefixtures("wide")
def test_16_bit_floats() -> None:
    ops = {CATALOG[name].kernel: name for name in sized_ops() if "Sum" not in name}
    check_calls([prepare_sample(name, SHORT[i % 2]) for i, name in enumerate(ops.values())])


@pytest.mark.usefixtures("wide")
def test_other_dtypes() -> None:
    ids, calls = [3, 0, 3, 1], []
    for dtype in (np.int8, np.uint16, np.int64, np.complex64):
        rows = (np.arange(8).reshape(4, 2) * 40).astype(dtype)  # int8 sums wrap
        calls.append(prepare(CATALOG["ScatterRows"], {"grad": rows, "indices": ids, "num_rows": 5}))
        calls.append(prepare(CATALOG["GatherRows"], {"params": rows, "indices": np.array(ids, np.int32)}))
    truth = np.array([[True], [False], [True], [False]])
    calls.append(prepare(CATALOG["GatherRows"], {"params": truth, "indices": ids}))
    check_calls(calls)


def one_of_each_kernel_of_rows() -> list[str]:
    ops = {CATALOG[name].kernel: name for name in sized_ops() if "SqrtN" in name or "Rows" in name or "Dot" in name}
    return [name for kernel, name in ops.items() if "fill" not in str(kernel)]


@pytest.mark.usefixtures("wide")
def test_rows_of_every_rank() -> None:
    """Rows that are scalars, have one column, no column, or several dimensions."""
    calls = []
    for name in one_of_each_kernel_of_rows():
        call = prepare_sample(name)
        tables = [k for k in call.inputs if k in ("data", "grad", "params", "x", "y")]
        for inner in ((), (1,), (0,), (2, 1, 2)):
            full = {k: np.resize(call.inputs[k], (len(call.inputs[k]), *inner)) for k in tables}
            calls.append(prepare(call.op, {**call.inputs, **full}))
    assert len(calls) == 4 * 13
    check_calls(calls)


@pytest.mark.usefixtures("wide")
def test_empty_arguments() -> None:
    table, no_rows = np.ones((2, 3), np.float32), np.ones((0, 3), np.float32)
    none, matrix = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
    no_ids = {"indices": none, "segment_ids": none, "weights": np.ones(0, np.float32)}
    unread = {"indices": [-9, 1], "segment_ids": [99, 0], "weights": np.ones(2, np.float32)}
    plan = {"rows": none, "starts": none, "segments": none, "positions": none, "counts": np.zeros(2, np.int64)}
    inputs: list[tuple[str, dict[str, Any]]] = [
        ("SparseSegmentMeanWithNumSegments", {"data": no_rows, **no_ids, "num_segments": 2}),
        ("SparseSegmentMeanWithNumSegments", {"data": table, **no_ids, "num_segments": 0}),
        ("SparseSegmentMeanGrad", {"grad": no_rows, **no_ids, "output_dim0": 2}),
        ("SparseSegmentMeanGrad", {"grad": table, **unread, "output_dim0": 0}),
        ("SparseSegmentMeanGradGrad", {"data": no_rows, **unread, "num_segments": 3}),
        ("WeightedSparseSegmentMeanGradGrad", {"data": no_rows, **no_ids, "num_segments": 3}),
        ("WeightedSparseSegmentMeanGrad", {"grad": no_rows, **no_ids, "output_dim0": 2}),
        ("WeightedSparseSegmentMeanGrad", {"grad": table, **unread, "output_dim0": 0}),
        ("WeightedSparseSegmentMeanGradRows", {"grad": no_rows, **no_ids}),
        ("GatherRows", {"params": no_rows, "indices": none}),
        ("ScatterRows", {"grad": no_rows, "indices": none, "num_rows": 2}),
        ("RowPositions", {"sorted_ids": none, "ids": none}),
        ("SparseSegmentDot", {"grad": no_rows, "data": no_rows, **no_ids}),
        ("RowDot", {"x": no_rows, "y": no_rows}),
        ("PlannedIds", {**plan, "num_rows": 0}),
        ("PlannedSparseSegmentMeanGrad", {"grad": table, **plan, "num_rows": 3}),
        ("PlannedSparseSegmentMeanGradV2", {"grad": table, **plan, "num_rows": 3}),
        ("PlannedWeightedSparseSegmentMeanGrad", {"grad": table, **no_ids, **plan, "num_rows": 3}),
        ("SegmentIdsFromOffsets", {"offsets": none, "num_ids": 0}),
        ("SegmentIdsFromOffsets", {"offsets": [0, 0], "num_ids": 0}),
        ("StackBags", {"indices": none, "offsets": [0], "feature_rows": [3], "feature_first": [0]}),
        ("SparseFillEmptyRowsGrad", {"reverse_index_map": none, "grad_values": np.ones(0)}),
        ("SparseFillEmptyRowsGrad", {"reverse_index_map": none, "grad_values": np.ones(3)}),
        ("SparseSliceGrad", {
            "backprop_val_grad": np.ones(0), "input_indices": [[1, 2]], "input_start": [0, 0], "output_indices": matrix,
        }),
        ("SparseSliceGradGrad", {
            "grad": np.ones(0), "input_indices": matrix, "input_start": [0, 0], "output_indices": matrix,
        }),
        ("SparseAddGrad", {
            "backprop_val_grad": np.ones(0), "a_indices": [[1, 2]], "b_indices": matrix, "sum_indices": matrix,
        }),
        ("SparseAddGradGrad", {
            "da": np.ones(0), "db": np.ones(0), "a_indices": matrix, "b_indices": matrix, "sum_indices": [[1, 2]],
        }),
    ]  # fmt: skip
    check_calls([prepare(CATALOG[name], x) for name, x in inputs])


@pytest.mark.usefixtures("wide")
def test_attributes() -> None:
    offsets = {"offsets": np.array([0, 2, 2, 5], np.int32), "num_ids": 5}
    check_calls([
        prepare(CATALOG["SegmentIdsFromOffsets"], offsets, include_last_offset=True),
        prepare_sample("StackBags", positions=True),
        prepare_sample("SparseSegmentMeanGrad", order="blocked"),
        prepare_sample("WeightedSparseSegmentMeanGrad", accumulate="T", order="blocked"),
        prepare_sample("PlannedWeightedSparseSegmentMeanGrad", accumulate="T"),
    ])  # fmt: skip


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("dtype", "stuck"), [(np.float16, 2048), (ml_dtypes.bfloat16, 256)])
def test_4096_ones(dtype: Any, stuck: int) -> None:
    """float32 sums reach 4096; where the kernel rounds every partial sum to 16 bits, they get stuck."""
    ones, row, ids = np.ones((4096, 1), dtype), np.ones((1, 1), dtype), np.zeros(4096, np.int64)
    bags = {"indices": ids, "segment_ids": ids, "weights": ones[:, 0]}
    plan = {part: getattr(rg.Plan(ids, ids, 1), part) for part in rg._catalog.spec.PLAN}
    positions = {"reverse_index_map": ids, "grad_values": np.ones(1, dtype)}
    wide_sums: list[tuple[str, dict[str, Any]]] = [
        ("SparseSegmentSumWithNumSegments", {"data": row, **bags, "num_segments": 1}),
        ("SparseSegmentSumGrad", {"grad": row, **bags, "output_dim0": 1}),
        ("SparseSegmentSumGradGrad", {"data": row, **bags, "num_segments": 1}),
        ("WeightedSparseSegmentSumWithNumSegments", {"data": row, **bags, "num_segments": 1}),
        ("WeightedSparseSegmentSumGrad", {"grad": row, **bags, "output_dim0": 1}),
        ("PlannedSparseSegmentSumGrad", {"grad": row, **plan}),
        ("PlannedWeightedSparseSegmentSumGrad", {"grad": row, **bags, **plan}),
        ("ScatterRows", {"grad": ones, "indices": ids, "num_rows": 1}),
        ("RowDot", {"x": ones.T, "y": ones.T}),
        ("SparseSegmentDot", {"grad": ones.T, "data": ones.T, "indices": [0], "segment_ids": [0]}),
        ("SparseFillEmptyRowsGradGrad", {**positions, "dd_values": ones[:, 0], "dd_default_value": dtype(7)}),
    ]
    short_sums = [
        prepare(
            CATALOG["WeightedSparseSegmentSumGrad"], dict(wide_sums)["WeightedSparseSegmentSumGrad"], accumulate="T"
        ),
        prepare(CATALOG["SparseFillEmptyRowsGrad"], {"reverse_index_map": ids[:0], "grad_values": ones[:, 0]}),
    ]
    calls = [prepare(CATALOG[name], x) for name, x in wide_sums] + short_sums
    for call, got in zip(calls, run_together(calls), strict=True):
        expected = 4096 if call not in short_sums else stuck
        assert float(got[-1].reshape(-1)[0]) == expected, call.op.name
        assert_close(got, reference(call), call.op.name)


def test_without_64_bits() -> None:
    """Ids and sizes declared as int64 become int32, and so do outputs."""
    names = ["SparseSegmentMeanWithNumSegments", "PlannedSparseSegmentSqrtNGradV2", "PlannedIds", "StackBags",
             "RowPositions", "SegmentIdsFromOffsets", "SparseFillEmptyRowsGrad", "SparseAddGrad", "SparseSliceGrad",
             "WeightedSparseSegmentSqrtNGrad"]  # fmt: skip
    calls = [prepare_sample(name) for name in names]
    bad = prepare(CATALOG["SegmentIdsFromOffsets"], {"offsets": [1, 2], "num_ids": 3})
    assert np.array_equal(run_together([bad])[0], [np.full(3, -(2**31), np.int32)])
    narrow = {np.dtype(np.int64): np.dtype(np.int32)}
    for call, got in zip(calls, run_together(calls), strict=True):
        expected = [a.astype(narrow.get(a.dtype, a.dtype)) for a in reference(call)]
        assert_close(got, expected, call.op.name)
