"""Inputs that crashed other kernels: each one returns a result or raises an error, and never crashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad.raw_ops import OPS

F = np.float32
NONE_2D = np.zeros((0, 2), np.int64)

MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    # grad_values that is not a vector; a map that points outside (both signs)
    ("SparseFillEmptyRowsGrad", {"reverse_index_map": [0], "grad_values": np.ones((1, 1))}, "must be a vector"),
    ("SparseFillEmptyRowsGrad", {"reverse_index_map": [5], "grad_values": np.ones(2)}, "but got 5"),
    ("SparseFillEmptyRowsGrad", {"reverse_index_map": [-1], "grad_values": np.ones(2)}, "but got -1"),
    # an empty shape; values and indices of different lengths; rank 0
    ("SparseFillEmptyRows",
     {"indices": np.zeros((1, 0), np.int64), "values": np.ones(1), "dense_shape": np.zeros(0, np.int64),
      "default_value": 0.0}, "Dense shape cannot be empty"),
    ("SparseFillEmptyRows",
     {"indices": np.zeros((17, 2), np.int64), "values": np.ones(0), "dense_shape": [2, 2], "default_value": 0.0},
     "The length of `values`"),
    ("SparseFillEmptyRows",
     {"indices": [[0, 0]], "values": np.ones(1), "dense_shape": [0, 0], "default_value": 0.0},
     r"dense_shape\[0\] = 0 but"),
    # segment ids: too large for any output, negative, unsorted, unsigned
    ("SparseSegmentSum", {"data": np.ones((1, 2)), "indices": np.array([0]), "segment_ids": np.array([2**62])},
     "overflow"),
    ("SparseSegmentSum", {"data": np.ones((1, 2)), "indices": [0], "segment_ids": [-5]}, "segment ids must be >= 0"),
    ("SparseSegmentSum", {"data": np.ones((1, 2)), "indices": [0, 0], "segment_ids": [1, 0]}, "not increasing"),
    ("SparseSegmentSum", {"data": F(1), "indices": [0], "segment_ids": [0]}, "at least rank 1"),
    ("SparseSegmentSum", {"data": np.ones((1, 2)), "indices": [0], "segment_ids": np.array([0], np.uint32)},
     "segment_ids must be one of int32, int64"),
    ("SparseSegmentMean", {"data": np.ones((0, 2)), "indices": [0], "segment_ids": [0]}, r"out of range \[0, 0\)"),
    ("SparseSegmentSumGradV2",
     {"grad": np.ones((1, 1)), "indices": [-3], "segment_ids": [-3], "dense_output_dim0": 4}, "Index -3 out of range"),
    ("SparseSegmentSumGradV2",
     {"grad": np.ones((1, 1)), "indices": [0], "segment_ids": [-3], "dense_output_dim0": 4}, "Segment id -3"),
    ("SegmentSum", {"data": np.ones((1, 2)), "segment_ids": np.array([2**63 - 1])}, "Expected a non-negative size"),
    ("SegmentSum", {"data": np.ones((2, 2)), "segment_ids": [-1, -1]}, "segment ids must be >= 0"),
    # sums of sparse tensors: rank 0, columns that do not match the shape, shapes that differ
    ("SparseAdd",
     {"a_indices": np.zeros((1, 0), np.int64), "a_values": np.ones(1), "a_shape": np.zeros(0, np.int64),
      "b_indices": np.zeros((1, 0), np.int64), "b_values": np.ones(1), "b_shape": np.zeros(0, np.int64),
      "thresh": 0.0}, "must not be empty"),
    ("SparseAdd",
     {"a_indices": [[0, 0]], "a_values": np.ones(1), "a_shape": [2], "b_indices": [[0, 0]], "b_values": np.ones(1),
      "b_shape": [2], "thresh": 0.0}, "must match, got 2 and 1"),
    # slices: shapes whose product overflows, negative dimensions
    ("SparseSlice",
     {"indices": NONE_2D, "values": np.ones(0), "shape": [2**32, 2**32], "start": [0, 0], "size": [1, 1]}, "overflow"),
    ("SparseSlice",
     {"indices": NONE_2D, "values": np.ones(0), "shape": [-1, 2], "start": [0, 0], "size": [1, 1]}, "non-negative"),
    ("GatherRows", {"params": np.ones((0, 2)), "indices": [0]}, r"is not in \[0, 0\)"),
    ("ScatterRows", {"grad": np.ones((1, 2)), "indices": [3], "num_rows": 3}, r"Index 3 out of range \[0, 3\)"),
    ("ScatterRows", {"grad": np.ones((1, 2)), "indices": [0], "num_rows": -3}, "non-negative size, got -3"),
    ("RowPositions", {"sorted_ids": [1, 3], "ids": [3, 2]}, r"ids\[1\] = 2 is not one of the 2 sorted_ids"),
    ("WeightedSparseSegmentSum",
     {"data": np.ones((2, 2)), "indices": [0, 1], "segment_ids": [0, 0], "weights": np.ones(3)}, "got 3 and 2"),
    ("WeightedSparseSegmentSum",
     {"data": np.ones((2, 2)), "indices": [0, 9], "segment_ids": [1, 0], "weights": np.ones(2)}, r"indices\[1\] = 9"),
    ("SparseSegmentDot",
     {"grad": np.ones((2, 2)), "data": np.ones((2, 3)), "indices": [0], "segment_ids": [0]}, "data must have rows of"),
    ("RowDot", {"x": np.ones((2, 2)), "y": np.ones((3, 2))}, "y must have shape"),
    ("RowDot", {"x": F(1), "y": F(1)}, "at least rank 1"),
    ("Reshape", {"tensor": np.ones(3), "shape": (2, 2)}, "as many elements as"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "message"), MALFORMED, ids=[f"{i}-{r[0]}" for i, r in enumerate(MALFORMED)])
def test_malformed_input_raises(name: str, x: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        OPS[name](**x)


ANSWERED: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("SparseFillEmptyRowsGrad", {"reverse_index_map": [], "grad_values": np.ones(0)}, [[], 0]),
    ("SparseFillEmptyRows",
     {"indices": NONE_2D, "values": np.ones(0), "dense_shape": [0, 0], "default_value": 0.0}, [[], [], [], []]),
    ("RaggedFillEmptyRows", {"value_rowids": [], "values": np.ones(0), "nrows": 0, "default_value": 0.0},
     [[], [], [], []]),
    ("SparseSegmentSumGrad", {"grad": np.ones((0, 1)), "indices": [], "segment_ids": [], "output_dim0": 2},
     [[[0], [0]]]),
    ("SparseSegmentSumGrad", {"grad": np.ones((0, 1)), "indices": [-9], "segment_ids": [99], "output_dim0": 0}, [[]]),
    ("SparseSlice",
     {"indices": [[0, 0]], "values": np.ones(1), "shape": [1, 1], "start": [2**63 - 1, 0], "size": [2**63 - 1, 1]},
     [[], [], [0, 1]]),
    ("SparseSegmentSum", {"data": np.ones((2, 0)), "indices": [0, 1], "segment_ids": [0, 3]}, [[[], [], [], []]]),
    ("SegmentSum", {"data": np.ones((0, 2)), "segment_ids": []}, [[]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "expected"), ANSWERED, ids=[f"{i}-{r[0]}" for i, r in enumerate(ANSWERED)])
def test_unusual_valid_input(name: str, x: dict[str, Any], expected: list[Any]) -> None:
    result = OPS[name](**x)
    assert [r.tolist() for r in (result if isinstance(result, tuple) else (result,))] == expected


def test_ragged_without_rows_has_rank_one() -> None:
    found = rg.raw_ops.RaggedFillEmptyRows([], np.ones(0), 0, 0.0)
    assert found.output_value_rowids.shape == (0,)


LARGE = 2**62


@pytest.mark.parametrize(
    ("shape", "start", "size", "message"),
    [
        ([100, -4], [0, 0], [1, 1], "Expected shape dimensions to be non-negative, got -4"),
        ([100000, -4], [0, 0], [1, 1], "Expected a non-negative size, got -4"),
        ([2**32, 2**32], [0, 0], [1, 1],
         "Encountered overflow when multiplying 4294967296 with 4294967296, result: -1"),
        ([3, LARGE], [0, 0], [1, 1],
         f"Encountered overflow when multiplying 3 with {LARGE}, result: -4611686018427387904"),
        ([4, 4], [-LARGE, 0], [LARGE, 2], f"Encountered overflow when multiplying {LARGE} with 4, result: -1"),
        ([4, 4], [-(2**40)] * 2, [LARGE] * 2,
         "Shape [1099511627780,1099511627780] results in overflow when computing number of elements"),
        ([4, 4], [0, -LARGE], [-1, LARGE], "Expected a non-negative size, got -1"),
    ],
)  # fmt: skip
def test_slices_of_impossible_shapes(shape: list[int], start: list[int], size: list[int], message: str) -> None:
    """The messages are TensorFlow's, which depend on the kind of overflow."""
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.raw_ops.SparseSlice(NONE_2D, np.ones(0), shape, start, size)
    assert caught.value.message == message


@pytest.mark.parametrize("version", ["", "V2"])
@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_ids_out_of_range_by_one_in_the_middle(kind: str, version: str) -> None:
    """Not the last segment id, which has its own check, and not so far out that memory protection would catch it."""
    grad, op = np.ones((2, 3), F), OPS[f"SparseSegment{kind}Grad{version}"]
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"Segment id 2 out of range \[0, 2\)") as caught:
        op(grad, [0, 1, 2], [0, 2, 1], 4)
    assert (caught.value.argument, caught.value.position) == ("segment_ids", 1)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"Index 4 out of range \[0, 4\)") as caught:
        op(grad, [0, 4, 2], [0, 1, 1], 4)
    assert (caught.value.argument, caught.value.position) == ("indices", 1)
