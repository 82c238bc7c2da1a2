"""Checks of shapes and sizes, and the table of ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import CodeType
from types import SimpleNamespace as Inputs
from typing import Any

import numpy as np

from .arithmetic import Array, ExpectedError, Outputs
from .bags import segment_ids_from_offsets, stack_bags
from .ids import bad_shape, bad_slice, overflow, text
from .kernels import (
    fill_empty_rows,
    fill_empty_rows_grad,
    fill_empty_rows_grad_grad,
    gather_rows,
    row_dot,
    row_positions,
    scatter_rows,
    segment_sum,
    slice_shape,
    sparse_add,
    sparse_add_grad,
    sparse_add_grad_grad,
    sparse_segment,
    sparse_segment_dot,
    sparse_segment_grad,
    sparse_segment_grad_grad,
    sparse_segment_grad_padded,
    sparse_slice,
    sparse_slice_grad,
    sparse_slice_grad_grad,
    weighted_segment,
    weighted_segment_grad,
    weighted_segment_grad_rows,
)
from .plan import planned_grad, planned_ids, planned_weighted_grad, row_plan

Check = tuple[str, str]  # a condition and the message if it is false: expressions over the op's inputs


def vectors(*names: str) -> list[Check]:
    return [(f"{name}.ndim == 1", f"{name} should be a vector.") for name in names]


def must_be(rank: int, *names: str) -> list[Check]:
    what = ("scalar", "vector", "matrix")[rank]
    return [(f"{name}.ndim == {rank}", f"{name} must be a {what}, saw: {{text({name}.shape)}}") for name in names]


def as_long_as(other: str, *names: str) -> list[Check]:
    return [(f"len({n}) == len({other})", f"{n} must have length {{len({other})}}, got {{len({n})}}") for n in names]


def scalar(name: str) -> list[Check]:
    return [(f"{name}.ndim == 0", f"{name} should be a scalar.")]


def non_negative(name: str) -> list[Check]:
    return [(f"{name} >= 0", f"Expected a non-negative size, got {{{name}}}")]


def no_overflow(*shape: str) -> list[Check]:
    call = f"overflow({', '.join(shape)})"
    return [(f"not {call}", f"{{{call}}}")]


def first(flags: Array) -> int:
    return int(np.flatnonzero(flags)[0])


DATA, PARAMS, X, Y = ([(f"{n}.ndim > 0", "Shape must be at least rank 1")] for n in ("data", "params", "x", "y"))
GRAD = [("grad.ndim > 0", "Index must be less than 0, got 0")]
FILL = [
    (
        "fill_id >= dense_output_dim0",
        "fill_id must be at least {dense_output_dim0}, the number of rows, got {fill_id}",
    ),
    (
        "indices.dtype == 'int64' or fill_id < 2**31",
        "fill_id must contain values of int32; got {fill_id}",
    ),
]
IDS = vectors("indices", "segment_ids")
SAME_IDS = [("len(indices) == len(segment_ids)", "segment_ids and indices should have same size.")]
SAME_WEIGHTS = [
    ("len(weights) == len(segment_ids)",
     "weights and segment_ids should have same size, got {len(weights)} and {len(segment_ids)}"),
]  # fmt: skip
WEIGHTED = [*IDS, *vectors("weights"), *SAME_IDS, *SAME_WEIGHTS]
NUM_SEGMENTS = [
    ("num_segments.ndim == 0", "num_segments should be a scalar, not shape {text(num_segments.shape)}"),
    ("num_segments >= 0", "segment ids must be >= 0"),
]
SEGMENT_SUM = [
    ("data.ndim > 0", "input must be at least rank 1"),
    *vectors("segment_ids"),
    ("len(data) == len(segment_ids)", "segment_ids should be the same size as dimension 0 of input."),
]
SAME_ROWS = [("grad.shape[1:] == data.shape[1:]",
              "data must have rows of shape {text(grad.shape[1:])}, got {text(data.shape[1:])}")]  # fmt: skip
SAME_SHAPE = [("x.shape == y.shape", "y must have shape {text(x.shape)}, got {text(y.shape)}")]


def fill_checks(ids: str, size: str, rank: int) -> list[Check]:
    rows, count = f"{size}.flat[0]", f"len({ids})"
    columns = "`dense_shape` ({size.size}) must match the second dimension of `indices` ({indices.shape[1]})."
    return [
        *must_be(rank - 1, size),
        *must_be(rank, ids),
        *must_be(1, "values"),
        (f"len(values) == {count}",
         f"The length of `values` ({{len(values)}}) must match the first dimension of `{ids}` ({{{count}}})."),
        (f"{size}.shape == {ids}.shape[1:]", f"The length of {columns.replace('size.', f'{size}.')}"),
        *must_be(0, "default_value"),
        (f"{size}.size > 0", "Dense shape cannot be empty."),
        (f"{rows} >= 0", f"Expected shape dimensions to be non-negative, got {{{rows}}}"),
        (f"{rows} > 0 or {count} == 0",
         f"Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {{{count}}}"),
    ]  # fmt: skip


REVERSE = must_be(1, "reverse_index_map", "grad_values")
REVERSE_TRANSPOSE = [
    *must_be(1, "reverse_index_map", "dd_values", "grad_values"),
    *must_be(0, "dd_default_value"),
    *as_long_as("reverse_index_map", "dd_values"),
]
SLICE = [
    ("indices.ndim == 2", "Sparse indices must be rank 2 but is rank {indices.ndim}"),
    ("values.ndim == 1", "Sparse values must be rank 1 but is rank {values.ndim}"),
    ("shape.ndim == 1", "Sparse shape must be rank 1 but is rank {shape.ndim}"),
    ("len(indices) == len(values)",
     "Number of elements in indices ({len(indices)}) and values ({len(values)}) do not match"),
    ("indices.shape[1] == len(shape)",
     "Index rank ({indices.shape[1]}) and shape rank ({len(shape)}) do not match"),
    ("start.ndim == 1", "Input start should be a vector but received shape {text(start.shape)}"),
    ("size.ndim == 1", "Input size should be a vector but received shape {text(size.shape)}"),
    ("len(start) == len(shape)",
     "Expected start to be a vector of length {len(shape)} but got length {len(start)}"),
    ("len(size) == len(shape)",
     "Expected size to be a vector of length {len(shape)} but got length {len(size)}"),
    ("not bad_shape(shape)", "{bad_shape(shape)}"),
    ("not bad_slice(shape, slice_shape(shape, start, size))", "{bad_slice(shape, slice_shape(shape, start, size))}"),
]  # fmt: skip
BACKPROP = [
    ("backprop_val_grad.ndim == 1",
     "Input backprop_val_grad should be a vector but received shape: {text(backprop_val_grad.shape)}"),
]  # fmt: skip
SLICE_MATRICES = [("input_indices.ndim == output_indices.ndim == 2",
                   "Input and output indices should be matrices but received shapes: "
                   "{text(input_indices.shape)} and {text(output_indices.shape)}")]  # fmt: skip
SLICE_COUNTS = [
    ("input_indices.shape[1] == output_indices.shape[1]",
     "The input and output should have the same ndims: got: {input_indices.shape[1]} and {output_indices.shape[1]}"),
    ("len(output_indices) <= len(input_indices)",
     "# rows of output_indices should be not greater than of input_indices, "
     "got {len(output_indices)} and {len(input_indices)}"),
]  # fmt: skip
SLICE_VALUES = [("len(backprop_val_grad) == len(output_indices)",
                 "# elements of backprop_val_grad and # rows of output_indices should match (#nnz of sum): "
                 "got {len(backprop_val_grad)} and {len(output_indices)}")]  # fmt: skip
SLICE_START = [
    ("input_start.ndim == 1", "The input_start should be a vector but received shape {text(input_start.shape)}"),
    ("len(input_start) == input_indices.shape[1]",
     "Expected input_start to be a vector of length {input_indices.shape[1]} but got length {len(input_start)}"),
]  # fmt: skip
ADD = [
    ("thresh.dtype == a_values.real.dtype",
     "thresh must be {a_values.real.dtype}, the type that goes with T = {a_values.dtype}; got {thresh.dtype}"),
    ("a_indices.ndim == b_indices.ndim == 2",
     "Input indices should be matrices but received shapes: {text(a_indices.shape)} and {text(b_indices.shape)}"),
    ("a_indices.shape[1] == b_indices.shape[1]",
     "Input indices must have the same dimension, got {a_indices.shape[1]} and {b_indices.shape[1]}"),
    ("a_values.ndim == b_values.ndim == 1",
     "Input values should be vectors but received shapes: {text(a_values.shape)} and {text(b_values.shape)}"),
    ("len(a_values) == len(a_indices) and len(b_values) == len(b_indices)",
     "Expected {len(a_indices)} and {len(b_indices)} non-empty input values, "
     "got {len(a_values)} and {len(b_values)}"),
    ("a_shape.ndim == b_shape.ndim == 1",
     "Input shapes should be a vector but received shapes {text(a_shape.shape)} and {text(b_shape.shape)}"),
    ("a_indices.shape[1] == len(a_shape)",
     "Second dimension of a_indices and length of a_shape must match, got {a_indices.shape[1]} and {len(a_shape)}"),
    ("len(a_shape) > 0", "Tesors must not be empty"),
    ("len(a_shape) == len(b_shape)",
     "Operands do not have the same ranks; got shapes: "
     "{' '.join(map(str, a_shape))} and {' '.join(map(str, b_shape))}"),
    ("all(a_shape == b_shape)",
     "Operands' shapes do not match: got {a_shape[first(a_shape != b_shape)]} and {b_shape[first(a_shape != b_shape)]} "
     "for dimension {first(a_shape != b_shape)}"),
    ("thresh.ndim == 0", "The magnitude threshold must be a scalar: got shape {text(thresh.shape)}"),
]  # fmt: skip
SUM_MATRICES = [("a_indices.ndim == b_indices.ndim == sum_indices.ndim == 2",
                 "Input indices should be matrices but received shapes: "
                 "{text(a_indices.shape)} and {text(b_indices.shape)} and {text(sum_indices.shape)}")]  # fmt: skip
SUM_RANKS = [("a_indices.shape[1] == b_indices.shape[1] == sum_indices.shape[1]",
              "The densified operands should have the same ndims; for A, B, sum got: "
              "{a_indices.shape[1]}{b_indices.shape[1]}{sum_indices.shape[1]}")]  # fmt: skip
SUM_VALUES = [("len(backprop_val_grad) == len(sum_indices)",
               "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): "
               "got {len(backprop_val_grad)} and {len(sum_indices)}")]  # fmt: skip
PLAN = [*vectors("rows", "starts", "segments", "positions", "counts"), *as_long_as("rows", "starts"),
        *as_long_as("segments", "positions")]  # fmt: skip
NUM_ROWS = [*scalar("num_rows"), *non_negative("num_rows")]
TABLE = [*NUM_ROWS, *GRAD, *no_overflow("num_rows", "*grad.shape[1:]")]
OFFSETS_OF_FEATURES = (
    "len(offsets) > 0 and len(feature_rows) > 0 and (len(offsets) - 1) % len(feature_rows) == 0",
    "the length of offsets must be a multiple of the {len(feature_rows)} features plus one, got {len(offsets)}",
)
PLAN_OF_TABLE = [
    *as_long_as("indices", "segments"), *DATA, *NUM_ROWS,
    ("len(data) == num_rows", "the plan is for a table of {num_rows} rows, but data has {len(data)}"),
    *scalar("num_segments"), *non_negative("num_segments"),
]  # fmt: skip
DA_DB = [*must_be(1, "da"), *as_long_as("a_indices", "da"), *must_be(1, "db"), *as_long_as("b_indices", "db")]


# -- the table -------------------------------------------------------------------------------------------------------

OPS: dict[str, tuple[list[Check], Callable[[Inputs], Outputs]]] = {
    "SegmentSum": (SEGMENT_SUM, segment_sum),
    "GatherRows": ([*vectors("indices"), *PARAMS], gather_rows),
    "ScatterRows": (
        [*vectors("indices"), *GRAD, *as_long_as("grad", "indices"), *scalar("num_rows"), *non_negative("num_rows")],
        scatter_rows,
    ),
    "RowPositions": (vectors("sorted_ids", "ids"), row_positions),
    "RowPlan": (
        [*IDS, *SAME_IDS, *NUM_ROWS, *scalar("num_segments"), *non_negative("num_segments")],
        row_plan,
    ),
    "SegmentIdsFromOffsets": (
        [*vectors("offsets"), *scalar("num_ids"), *non_negative("num_ids")],
        segment_ids_from_offsets,
    ),
    "StackBags": (
        [
            *vectors("indices", "offsets", "feature_rows", "feature_first"),
            *as_long_as("feature_rows", "feature_first"),
            OFFSETS_OF_FEATURES,
        ],
        stack_bags,
    ),
    "PlannedIds": ([*PLAN, *NUM_ROWS], planned_ids),
    "RowDot": ([*X, *Y, *SAME_SHAPE], row_dot),
    "SparseSegmentDot": ([*IDS, *SAME_IDS, *GRAD, *DATA, *SAME_ROWS], sparse_segment_dot),
    "SparseSlice": (SLICE, sparse_slice),
    "SparseSliceGrad": ([*SLICE_MATRICES, *BACKPROP, *SLICE_COUNTS, *SLICE_VALUES, *SLICE_START], sparse_slice_grad),
    "SparseSliceGradGrad": (
        [*SLICE_MATRICES, *must_be(1, "grad"), *SLICE_COUNTS, *as_long_as("input_indices", "grad"), *SLICE_START],
        sparse_slice_grad_grad,
    ),
    "SparseAdd": (ADD, sparse_add),
    "SparseAddGrad": ([*SUM_MATRICES, *BACKPROP, *SUM_RANKS, *SUM_VALUES], sparse_add_grad),
    "SparseAddGradGrad": ([*SUM_MATRICES, *SUM_RANKS, *DA_DB], sparse_add_grad_grad),
    "SparseFillEmptyRows": (fill_checks("indices", "dense_shape", 2), fill_empty_rows),
    "RaggedFillEmptyRows": (fill_checks("value_rowids", "nrows", 1), fill_empty_rows),
}
for _family in ("Sparse", "Ragged"):
    OPS[f"{_family}FillEmptyRowsGrad"] = (REVERSE, fill_empty_rows_grad)
    OPS[f"{_family}FillEmptyRowsGradGrad"] = (REVERSE_TRANSPOSE, fill_empty_rows_grad_grad)
for _kind in ("Sum", "Mean", "SqrtN"):
    _op = f"SparseSegment{_kind}"
    OPS[_op] = ([*IDS, *SAME_IDS, *DATA], partial(sparse_segment, _kind))
    OPS[f"{_op}WithNumSegments"] = ([*NUM_SEGMENTS, *IDS, *SAME_IDS, *DATA], partial(sparse_segment, _kind))
    OPS[f"{_op}WithPlan"] = ([*IDS, *SAME_IDS, *PLAN, *PLAN_OF_TABLE], partial(sparse_segment, _kind))
    OPS[f"{_op}GradGrad"] = ([*NUM_SEGMENTS, *IDS, *SAME_IDS, *DATA], partial(sparse_segment_grad_grad, _kind))
    for _suffix, _size in (("Grad", "output_dim0"), ("GradV2", "dense_output_dim0")):
        _checks = [*IDS, *scalar(_size), *SAME_IDS, *GRAD, *non_negative(_size), *no_overflow(_size, "*grad.shape[1:]")]
        OPS[_op + _suffix] = (_checks, partial(sparse_segment_grad, _kind))
    _checks = [*_checks, *scalar("size"), *scalar("fill_id"), *non_negative("size"), *FILL]
    _checks += no_overflow("size", "*grad.shape[1:]")
    OPS[f"Padded{_op}GradV2"] = (_checks, partial(sparse_segment_grad_padded, _kind))
    _checks = [*WEIGHTED, *scalar("output_dim0"), *non_negative("output_dim0"), *GRAD]
    OPS[f"Weighted{_op}Grad"] = (_checks, partial(weighted_segment_grad, _kind))
    OPS[f"Planned{_op}Grad"] = ([*PLAN, *TABLE], partial(planned_grad, _kind, False))
    OPS[f"Planned{_op}GradV2"] = ([*PLAN, *NUM_ROWS, *GRAD], partial(planned_grad, _kind, True))
    _checks = [*PLAN, *vectors("weights"), *as_long_as("segments", "weights"), *TABLE]
    OPS[f"PlannedWeighted{_op}Grad"] = (_checks, partial(planned_weighted_grad, _kind))
    _checks = [*IDS, *SAME_IDS, *PLAN, *vectors("weights"), *SAME_WEIGHTS, *PLAN_OF_TABLE]
    OPS[f"Weighted{_op}WithPlan"] = (_checks, partial(weighted_segment, _kind))
    _checks = [*vectors("segment_ids", "weights"), *SAME_WEIGHTS, *GRAD]
    OPS[f"Weighted{_op}GradRows"] = (_checks, partial(weighted_segment_grad_rows, _kind))
    _checks = [*WEIGHTED, *DATA, *scalar("num_segments"), *non_negative("num_segments")]
    for _suffix in ("GradGrad", "WithNumSegments"):
        OPS[f"Weighted{_op}{_suffix}"] = (_checks, partial(weighted_segment, _kind))
    OPS[f"Weighted{_op}"] = ([*WEIGHTED, *DATA], partial(weighted_segment, _kind))


SCOPE = {f.__name__: f for f in (text, overflow, bad_shape, bad_slice, slice_shape, first)}  # usable in checks


@cache
def compiled(op_name: str) -> list[tuple[CodeType, CodeType]]:
    checks = OPS[op_name][0]
    return [(compile(holds, holds, "eval"), compile(f'f"""{message}"""', message, "eval")) for holds, message in checks]


def reference(op_name: str, inputs: dict[str, Array], attrs: dict[str, Any]) -> Outputs:
    """Return the outputs of a call, or raise its ExpectedError."""
    for holds, message in compiled(op_name):
        if not eval(holds, SCOPE, inputs):
            raise ExpectedError(eval(message, SCOPE, inputs))
    with np.errstate(all="ignore"):
        return OPS[op_name][1](Inputs(**inputs, **attrs))
