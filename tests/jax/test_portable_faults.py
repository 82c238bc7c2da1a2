"""Invalid data: where the CPU kernel raises, the portable kernel poisons the result; otherwise both agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")  # `jax` alone would find this folder

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
def refused_as(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of all faults the kernels find."""
    keys: list[str] = []
    word = numpy_runner.make_error

    def noted(key: str, *args: Any, **facts: Any) -> Any:
        keys.append(key)
        return word(key, *args, **facts)

    monkeypatch.setattr(numpy_runner, "make_error", noted)
    return keys


def changed(call: Prepared) -> Iterator[Prepared]:
    """The call as it is, and with one array of ids changed, in every way that could matter."""
    yield call
    for name, array in call.arrays.items():
        if array.dtype.kind != "i" or (call.op.name, name) == ("RowPositions", "sorted_ids"):
            continue  # a list that is not sorted may be searched in any way
        for change in changes(array):
            yield call._replace(given={**call.given, name: change})


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
    """Whether the call was refused; then it is poisoned, else the answers agree."""
    got = run(call.arrays)
    try:
        expected = reference(call)
    except rg.errors.OpError:
        assert all(is_poisoned(output) for output in got if output.size), call
        return True
    assert_close(got, expected, call)
    return False


@pytest.mark.parametrize("kernel", [*FAULTS, "sparse_add_grad", "sparse_add_grad_grad"])
def test_changed_ids(kernel: str, refused_as: list[str]) -> None:
    taken = 0
    # Ops that differ in the kernel's constants look for the same faults: SqrtN, their last, stands for Sum and Mean.
    ops = [op for name in sized_ops() if (op := CATALOG[name]).kernel == kernel]
    for name in {(op.input_names, len(op.outputs)): op.name for op in ops}.values():
        call = prepare_sample(name)
        run = compiled(call)
        taken += sum(not check(other, run) for other in changed(call))
    assert set(refused_as) == FAULTS.get(kernel, set())
    assert taken > 1  # not only the call as it was


@pytest.mark.parametrize("name", ["SparseSliceGrad", "SparseSliceGradGrad", "SparseAddGrad", "SparseAddGradGrad"])
def test_walks_along_lists_in_any_order(name: str) -> None:
    """Few coordinates, so that many are equal: what the gradients then match, they match one entry after the other."""
    rng, call = np.random.default_rng(8), prepare_sample(name)
    call = prepare(call.op, {**call.given, "input_start": np.array([-1, 0])}) if "Slice" in name else call
    run, refused = compiled(call), 0
    for draw in range(60):
        given = {k: rng.integers(0, 3, v.shape) if v.ndim == 2 else v for k, v in call.given.items()}
        if draw % 3 == 0:
            given = {k: v[np.lexsort(v.T[::-1])] if v.ndim == 2 else v for k, v in given.items()}
        if "Slice" in name and draw % 2:  # some entries of the input, in their order
            entries, count = given["input_indices"], len(given["output_indices"])
            kept = np.sort(rng.permutation(len(entries))[:count])
            if draw % 5 == 0:  # and after the last of them others that equal it
                kept, entries[count:] = np.arange(count), entries[count - 1]
            given["output_indices"] = entries[kept] - given["input_start"]
        refused += check(call._replace(given=given), run)
    assert refused == 0 if "Add" in name else 0 < refused <= 30


def test_faults_that_shapes_show() -> None:
    table, no_rows, none = np.ones((2, 3), np.float32), np.ones((0, 3), np.float32), np.zeros(0, np.int64)
    ids = {"indices": [0], "segment_ids": [0], "weights": np.ones(1, np.float32)}
    plan = {"rows": [0], "starts": [0], "segments": [0], "positions": [0], "counts": [1, 0, 0], "num_rows": 1}
    offsets = {"indices": [0], "offsets": [0], "feature_rows": [3], "feature_first": [0]}
    given: list[tuple[str, dict[str, Any]]] = [
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
    for dtype in (np.int8, np.uint8, np.complex64):  # and what poison is in other dtypes
        given.append(("ScatterRows", {"grad": table.astype(dtype), "indices": [0, 4], "num_rows": 4}))
    calls = [prepare(CATALOG[name], x) for name, x in given]
    for call, got in zip(calls, run_together(calls), strict=True):
        with pytest.raises(rg.errors.OpError):
            reference(call)
        assert any(output.size for output in got), call
        assert all(is_poisoned(output) for output in got if output.size), call


def test_a_bound_beyond_the_ids() -> None:
    """Ids of 32 bits in a table of more rows than they can name."""
    call = prepare_sample("PlannedIds")
    large = prepare(call.op, {**call.given, "rows": call.given["rows"].astype(np.int32), "num_rows": 2**40})
    run = compiled(large)
    assert not check(large, run)
    assert check(large._replace(given={**large.given, "rows": large.given["rows"] - 1}), run)


# -- gradients by unique rows, padded to a given number of rows ------------------------------------------------------


def padded(kind: str, x: dict[str, Any], size: int, fill_id: int) -> tuple[Prepared, Prepared]:
    """The call, and that of the op without padding, which says what it should give."""
    plain = prepare(CATALOG[f"SparseSegment{kind}GradV2"], x)
    inputs = (*plain.op.inputs, Arg("size", "int32", host=True), Arg("fill_id", "int32", host=True))
    op = replace(plain.op, inputs=inputs, kernel="sparse_segment_grad_padded", constants=plain.op.constants[:1])
    shapes = (size, *plain.given["grad"].shape[1:]), (size,)
    outputs = tuple(Aval(o.dtype, shape) for o, shape in zip(plain.outputs, shapes, strict=True))
    return Prepared(op, plain.given, {**plain.host, "size": size, "fill_id": fill_id}, plain.attrs, outputs), plain


def test_padded_gradients() -> None:
    drawn = {k: v.copy() for k, v in prepare_sample("SparseSegmentSqrtNGradV2").given.items()}
    unique = len(set(drawn["indices"].tolist()))
    narrow = {**drawn, "indices": drawn["indices"].astype(np.int32), "grad": np.ones((5, 2, 1, 2), np.float16)}
    none, many = np.zeros(0, np.int64), np.zeros(4096, np.int64)
    ones = {"grad": np.ones((1, 1), np.float16), "indices": many, "segment_ids": many, "dense_output_dim0": 1}
    pairs = [
        padded("Sum", drawn, unique + 3, 7),
        padded("Mean", drawn, unique, 7),
        padded("SqrtN", narrow, 20, -1),
        padded("Sum", ones, 2, 1),
        padded("Mean", {**drawn, "indices": none, "segment_ids": none}, 2, 9),
        padded("Mean", {**drawn, "indices": drawn["indices"] - 99, "dense_output_dim0": 0}, 2, 9),  # none is read
    ]
    for (call, plain), got in zip(pairs, run_together([call for call, _ in pairs]), strict=True):
        rows, ids = reference(plain)
        assert_close([output[: len(ids)] for output in got], [rows, ids], call)
        assert not got[0][len(ids) :].any()
        assert (got[1][len(ids) :] == call.host["fill_id"]).all()


def test_faults_of_padded_gradients() -> None:
    drawn = prepare_sample("SparseSegmentMeanGradV2").given
    unique = len(set(drawn["indices"].tolist()))
    calls = [
        padded("Mean", drawn, unique - 1, 7)[0],
        padded("Mean", {**drawn, "indices": drawn["indices"] + 1}, 20, 7)[0],
        padded("Mean", {**drawn, "segment_ids": drawn["segment_ids"] - 1}, 20, 7)[0],
    ]
    for got in run_together(calls):
        assert all(map(is_poisoned, got))
