"""Invalid data: where the CPU kernel raises, the portable kernel poisons the result; otherwise both agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")  # not "jax", which would find this folder

import rowgrad as rg
from jax_arrays import x64
from portable_calls import (
    Prepared,
    assert_close,
    compiled,
    is_poisoned,
    prepare,
    prepare_sample,
    reference,
    run_together,
    sized_ops,
)
from rowgrad._catalog.spec import CATALOG, Arg, Aval
from rowgrad._runtime import numpy_runner

INDEX_AND_SEGMENT = {"index_not_in_output", "segment_count", "segment_not_in_grad"}
PLAN_FAULTS = {"plan_rows", "plan_starts", "plan_segments"}
OFFSET_FAULTS = {"offsets_begin", "offsets_fall", "offsets_end"}
# Every fault a kernel can find in data of valid shapes.
FAULTS = {
    "sparse_segment": {
        "index_not_in_data", "segment_not_in_output", "segments_not_increasing", "num_segments_too_small",
        "last_segment_too_big",
    },
    "sparse_segment_grad": INDEX_AND_SEGMENT,
    "sparse_segment_grad_grad": {"index_not_in_data", "segment_not_in_grad"},
    "weighted_segment": {"index_not_in_params", "segment_not_in_grad"},
    "weighted_segment_grad": INDEX_AND_SEGMENT,
    "weighted_segment_grad_rows": {"segment_not_in_grad"},
    "gather_rows": {"index_not_in_params"},
    "scatter_rows": {"index_not_in_output"},
    "row_positions": {"id_not_listed"},
    "sparse_segment_dot": {"index_not_in_params", "segment_not_in_grad"},
    "planned_ids": {*PLAN_FAULTS, "plan_positions", "plan_counts"},
    "planned_segment_grad": PLAN_FAULTS,
    "planned_weighted_grad": {*PLAN_FAULTS, "plan_positions"},
    "segment_ids_from_offsets": OFFSET_FAULTS,
    "stack_bags": {*OFFSET_FAULTS, "feature_negative", "feature_too_far", "id_not_in_feature"},
    "fill_empty_rows_grad": {"reverse_index_not_in_grad"},
    "fill_empty_rows_grad_grad": {"reverse_index_not_in_grad"},
    "sparse_slice_grad": {"slice_left_over"},
    "sparse_slice_grad_grad": {"slice_left_over"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


@pytest.fixture
def fault_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the keys of all faults that kernels raise."""
    keys: list[str] = []
    original = numpy_runner.make_error

    def record(key: str, *args: Any, **facts: Any) -> Any:
        keys.append(key)
        return original(key, *args, **facts)

    monkeypatch.setattr(numpy_runner, "make_error", record)
    return keys


def changed(call: Prepared) -> Iterator[Prepared]:
    """Yield the call unchanged, and with one array of ids changed in every way that could matter."""
    yield call
    for name, array in call.arrays.items():
        if array.dtype.kind != "i" or (call.op.name, name) == ("RowPositions", "sorted_ids"):
            continue  # the result of searching an unsorted list is undefined
        for change in changes(array):
            yield call._replace(inputs={**call.inputs, name: change})


def changes(array: np.ndarray) -> Iterator[np.ndarray]:
    yield array[::-1].copy()
    yield np.zeros_like(array)
    yield array - 1
    yield array + 1
    yield array + 2
    for at in {0, array.size // 2, array.size - 1}:
        for value in (-1, array.flat[at] - 1, array.flat[at] + 1, array.flat[at - 1], np.iinfo(array.dtype).max):
            change = array.copy()
            change.flat[at] = value
            yield change


def check(call: Prepared, run: Any) -> bool:
    """Return whether the CPU kernel raised; check that the portable result is then poisoned, and else agrees."""
    got = run(call.arrays)
    try:
        expected = reference(call)
    except rg.errors.OpError:
        assert all(is_poisoned(output) for output in got if output.size), call
        return True
    assert_close(got, expected, call)
    return False


@pytest.mark.parametrize("kernel", [*FAULTS, "sparse_add_grad", "sparse_add_grad_grad"])
def test_changed_ids(kernel: str, fault_keys: list[str]) -> None:
    valid = 0
    # Ops that differ only in a kernel's constants find the same faults: SqrtN is tested instead of Sum and Mean too.
    ops = [op for name in sized_ops() if (op := CATALOG[name]).kernel == kernel]
    for name in {(op.input_names, len(op.outputs)): op.name for op in ops}.values():
        call = prepare_sample(name)
        run = compiled(call)
        valid += sum(not check(other, run) for other in changed(call))
    assert set(fault_keys) == FAULTS.get(kernel, set())
    assert valid > 1  # not only the unchanged call


@pytest.mark.parametrize("name", ["SparseSliceGrad", "SparseSliceGradGrad", "SparseAddGrad", "SparseAddGradGrad"])
def test_gradients_match_unsorted_duplicate_entries_in_order(name: str) -> None:
    """Few coordinates, so many are equal: gradients match equal entries one after the other."""
    rng, call = np.random.default_rng(8), prepare_sample(name)
    call = prepare(call.op, {**call.inputs, "input_start": np.array([-1, 0])}) if "Slice" in name else call
    run, raised = compiled(call), 0
    for draw in range(60):
        inputs = {k: rng.integers(0, 3, v.shape) if v.ndim == 2 else v for k, v in call.inputs.items()}
        if draw % 3 == 0:
            inputs = {k: v[np.lexsort(v.T[::-1])] if v.ndim == 2 else v for k, v in inputs.items()}
        if "Slice" in name and draw % 2:  # some input entries, in order
            entries, count = inputs["input_indices"], len(inputs["output_indices"])
            chosen = np.sort(rng.permutation(len(entries))[:count])
            if draw % 5 == 0:  # entries after the last chosen one are equal to it
                chosen, entries[count:] = np.arange(count), entries[count - 1]
            inputs["output_indices"] = entries[chosen] - inputs["input_start"]
        raised += check(call._replace(inputs=inputs), run)
    assert raised == 0 if "Add" in name else 0 < raised <= 30


def test_faults_visible_in_shapes() -> None:
    table, no_rows, none = np.ones((2, 3), np.float32), np.ones((0, 3), np.float32), np.zeros(0, np.int64)
    ids = {"indices": [0], "segment_ids": [0], "weights": np.ones(1, np.float32)}
    plan = {"rows": [0], "starts": [0], "segments": [0], "positions": [0], "counts": [1, 0, 0], "num_rows": 1}
    offsets = {"indices": [0], "offsets": [0], "feature_rows": [3], "feature_first": [0]}
    inputs: list[tuple[str, dict[str, Any]]] = [
        ("SparseSegmentMeanWithNumSegments", {"data": no_rows, **ids, "num_segments": 1}),
        ("SparseSegmentMeanGrad", {"grad": no_rows, **ids, "output_dim0": 1}),
        ("WeightedSparseSegmentMeanGradGrad", {"data": no_rows, **ids, "num_segments": 1}),
        ("WeightedSparseSegmentMeanGrad", {"grad": no_rows, **ids, "output_dim0": 1}),
        ("WeightedSparseSegmentMeanGradRows", {"grad": no_rows, **ids}),
        ("SparseSegmentDot", {"grad": no_rows, "data": table, **ids}),
        ("GatherRows", {"params": no_rows, "indices": [0]}),
        ("RowPositions", {"sorted_ids": none, "ids": [1]}),
        ("PlannedSparseSegmentMeanGrad", {"grad": table, **plan}),  # three segments, two rows
        ("PlannedWeightedSparseSegmentMeanGrad", {"grad": table, **ids, **plan}),
        ("PlannedIds", {**plan, "rows": none, "starts": none}),
        ("SegmentIdsFromOffsets", {"offsets": none, "num_ids": 3}),
        ("StackBags", offsets),
        ("SparseFillEmptyRowsGrad", {"reverse_index_map": [0], "grad_values": np.ones(0)}),
    ]
    for dtype in (np.int8, np.uint8, np.complex64):  # poison values of other dtypes
        inputs.append(("ScatterRows", {"grad": table.astype(dtype), "indices": [0, 4], "num_rows": 4}))
    calls = [prepare(CATALOG[name], x) for name, x in inputs]
    for call, got in zip(calls, run_together(calls), strict=True):
        with pytest.raises(rg.errors.OpError):
            reference(call)
        assert any(output.size for output in got), call
        assert all(is_poisoned(output) for output in got if output.size), call


def test_more_rows_than_int32_ids_can_name() -> None:
    """int32 ids in a table with more rows than they can address."""
    call = prepare_sample("PlannedIds")
    large = prepare(call.op, {**call.inputs, "rows": call.inputs["rows"].astype(np.int32), "num_rows": 2**40})
    run = compiled(large)
    assert not check(large, run)
    assert check(large._replace(inputs={**large.inputs, "rows": large.inputs["rows"] - 1}), run)


# -- unique-row gradients, padded to a fixed number of rows ----------------------------------------------------------


def padded(kind: str, x: dict[str, Any], size: int, fill_id: int) -> tuple[Prepared, Prepared]:
    """Return the padded call, and the call of the unpadded op with the expected result."""
    plain = prepare(CATALOG[f"SparseSegment{kind}GradV2"], x)
    inputs = (*plain.op.inputs, Arg("size", "int32", host=True), Arg("fill_id", "int32", host=True))
    op = replace(plain.op, inputs=inputs, kernel="sparse_segment_grad_padded", constants=plain.op.constants[:1])
    shapes = (size, *plain.inputs["grad"].shape[1:]), (size,)
    outputs = tuple(Aval(o.dtype, shape) for o, shape in zip(plain.outputs, shapes, strict=True))
    return Prepared(op, plain.inputs, {**plain.host, "size": size, "fill_id": fill_id}, plain.attrs, outputs), plain


def test_padded_gradients() -> None:
    sampled = {k: v.copy() for k, v in prepare_sample("SparseSegmentSqrtNGradV2").inputs.items()}
    unique = len(set(sampled["indices"].tolist()))
    narrow = {**sampled, "indices": sampled["indices"].astype(np.int32), "grad": np.ones((5, 2, 1, 2), np.float16)}
    none, many = np.zeros(0, np.int64), np.zeros(4096, np.int64)
    ones = {"grad": np.ones((1, 1), np.float16), "indices": many, "segment_ids": many, "dense_output_dim0": 1}
    pairs = [
        padded("Sum", sampled, unique + 3, 7),
        padded("Mean", sampled, unique, 7),
        padded("SqrtN", narrow, 20, -1),
        padded("Sum", ones, 2, 1),
        padded("Mean", {**sampled, "indices": none, "segment_ids": none}, 2, 9),
        padded("Mean", {**sampled, "indices": sampled["indices"] - 99, "dense_output_dim0": 0}, 2, 9),  # no id is read
    ]
    for (call, plain), got in zip(pairs, run_together([call for call, _ in pairs]), strict=True):
        rows, ids = reference(plain)
        assert_close([output[: len(ids)] for output in got], [rows, ids], call)
        assert not got[0][len(ids) :].any()
        assert (got[1][len(ids) :] == call.host["fill_id"]).all()


def test_faults_of_padded_gradients() -> None:
    sampled = prepare_sample("SparseSegmentMeanGradV2").inputs
    unique = len(set(sampled["indices"].tolist()))
    calls = [
        padded("Mean", sampled, unique - 1, 7)[0],
        padded("Mean", {**sampled, "indices": sampled["indices"] + 1}, 20, 7)[0],
        padded("Mean", {**sampled, "segment_ids": sampled["segment_ids"] - 1}, 20, 7)[0],
    ]
    for got in run_together(calls):
        assert all(map(is_poisoned, got))
