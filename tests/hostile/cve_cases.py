"""Published crashes of TensorFlow's kernels and others, as calls of our ops: one table.

A case is an identifier from a public list, a description, an op, its arguments, and the expected outcome: an error's
class and message, which are TensorFlow's where it has them, or the result that TensorFlow returns deliberately. CVEs of
ops that we do not have are included for their malformed SparseTensor or row splits, which our ops take too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rowgrad._core import memory_limit

IAE, OOM = "InvalidArgumentError", "ResourceExhaustedError"

# The published lists; test_cve_list.py requires a case for every entry.
OUR_OPERATORS = (
    "CVE-2020-15194", "CVE-2020-15195", "CVE-2021-29565", "CVE-2021-37676", "CVE-2021-41224", "CVE-2022-41898",
    "CVE-2021-41195", "CVE-2019-16778", "CVE-2020-15212", "CVE-2020-15213", "CVE-2020-15214", "CVE-2021-29607",
    "CVE-2021-29609",
)  # fmt: skip
SAME_FAMILY = (
    "CVE-2022-29206", "CVE-2023-25665", "CVE-2021-29611", "CVE-2021-37640", "CVE-2021-37635", "CVE-2021-29558",
    "CVE-2021-29534", "CVE-2021-29545", "CVE-2021-37647", "CVE-2022-21736", "CVE-2021-29567", "CVE-2021-37636",
    "CVE-2022-23567", "CVE-2021-29523", "CVE-2022-23568", "CVE-2020-15196", "CVE-2020-15197", "CVE-2020-15198",
    "CVE-2020-15199", "CVE-2020-15200", "CVE-2020-15201", "CVE-2021-29521", "CVE-2021-29619", "CVE-2021-41210",
    "CVE-2022-21738", "CVE-2022-21740", "CVE-2021-41226", "CVE-2021-41215", "CVE-2021-37656", "CVE-2021-29560",
    "CVE-2021-29608", "CVE-2021-37638", "CVE-2021-29596", "CVE-2022-23560",
)  # fmt: skip
CRASH_ISSUES = (
    "tf#46897", "tf#59364", "tf#59086", "tf#104261", "tf#59201", "tf#118200", "tf#59928",
    # entries about GPUs, with the inputs that crashed there
    "tf#50256", "tf#50700", "tf#93136", "tf#93159", "tf#113146", "tf#127480", "tf#59161", "tf#57765", "tf#59393",
)  # fmt: skip
NUMBERS = (*OUR_OPERATORS, *SAME_FAMILY, *CRASH_ISSUES)


class Case(NamedTuple):
    """One call and its expected outcome: (class, message), or the outputs as lists."""

    number: str
    what: str
    op: str
    arguments: dict[str, Any]
    expected: tuple[str, str] | list[Any]

    @property
    def name(self) -> str:
        """Return the name of its test."""
        number = self.number.lower().replace("-", "_").replace("#", "_")
        return f"test_{number}_{self.what.replace(' ', '_')}"


def _f(*values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    array = np.array(values, np.float32)
    return array if shape is None else array.reshape(shape)


def _i(*values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    array = np.array(values, np.int64)
    return array if shape is None else array.reshape(shape)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _no(*shape: int) -> np.ndarray:
    """Return empty ids, or zeros, of a shape."""
    return np.zeros(shape, np.int64)


def _workspace(elements: int) -> str:
    return f"OOM when allocating workspace for {elements} elements; this machine has {memory_limit()} bytes"


def _output(shape: str) -> str:
    where = "/job:localhost/replica:0/task:0/device:CPU:0"
    return f"OOM when allocating tensor with shape[{shape}] and type float on {where} by allocator mklcpu"


_S = np.float32(0)
Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


def _fill(triple: Triple) -> dict[str, Any]:
    indices, values, shape = triple
    return {"indices": indices, "values": values, "dense_shape": shape, "default_value": np.float32(-1)}


def _slice(triple: Triple) -> dict[str, Any]:
    indices, values, shape = triple
    n = shape.size
    return {"indices": indices, "values": values, "shape": shape, "start": _no(n), "size": np.ones(n, np.int64)}


def _add(triple: Triple, other: Triple | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for side, (indices, values, shape) in (("a", triple), ("b", triple if other is None else other)):
        arguments |= {f"{side}_indices": indices, f"{side}_values": values, f"{side}_shape": shape}
    return arguments | {"thresh": _S}


def _bags(data: np.ndarray, indices: np.ndarray, segments: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"data": data, "indices": indices, "segment_ids": segments, **more}


def _grads(grad: np.ndarray, indices: np.ndarray, segments: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"grad": grad, "indices": indices, "segment_ids": segments, **more}


def _reverse(index_map: np.ndarray, grad_values: np.ndarray) -> dict[str, Any]:
    return {"reverse_index_map": index_map, "grad_values": grad_values}


def _ragged(rowids: np.ndarray, values: np.ndarray, nrows: Any) -> dict[str, Any]:
    return {"value_rowids": rowids, "values": values, "nrows": nrows, "default_value": np.float32(-1)}


_GOOD: Triple = (_i(0, 0, 1, 1, shape=(2, 2)), _f(1, 2), _i(2, 2))
_SEVENTEEN: Triple = (_no(17, 2), _f(), _i(2, 2))
_FILL, _SLICE, _ADD = "SparseFillEmptyRows", "SparseSlice", "SparseAdd"
_SUM, _MEAN, _GRAD, _V2 = "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSumGrad", "SparseSegmentSumGradV2"
_OFFSETS = "SegmentIdsFromOffsets"

CASES: list[Case] = [
    # -- our operators -----------------------------------------------------------------------------------------------
    Case("CVE-2020-15194", "grad values that are no vector", "SparseFillEmptyRowsGrad",
         _reverse(_i(0), _f(1, shape=(1, 1))), (IAE, "grad_values must be a vector, saw: [1,1]")),
    Case("CVE-2020-15194", "a map that is no vector", "SparseFillEmptyRowsGrad",
         _reverse(_i(0, shape=(1, 1)), _f(1)), (IAE, "reverse_index_map must be a vector, saw: [1,1]")),
    Case("CVE-2020-15194", "ragged grad values that are a scalar", "RaggedFillEmptyRowsGrad",
         _reverse(_i(0), _f(1, shape=())), (IAE, "grad_values must be a vector, saw: []")),
    Case("CVE-2020-15195", "a map beyond the values", "SparseFillEmptyRowsGrad", _reverse(_i(0, 5), _f(1, 2)),
         (IAE, "Elements in reverse index must be in [0, 2) but got 5")),
    Case("CVE-2020-15195", "a negative map", "SparseFillEmptyRowsGrad", _reverse(_i(-1), _f(1, 2)),
         (IAE, "Elements in reverse index must be in [0, 2) but got -1")),
    Case("CVE-2020-15195", "a map far beyond", "RaggedFillEmptyRowsGrad", _reverse(_i(2**62), _f(1, 2)),
         (IAE, "Elements in reverse index must be in [0, 2) but got 4611686018427387904")),
    Case("CVE-2020-15195", "a map into nothing", "SparseFillEmptyRowsGrad", _reverse(_i(0), _f()),
         (IAE, "Elements in reverse index must be in [0, 0) but got 0")),
    Case("CVE-2021-29565", "an empty dense shape", _FILL, _fill((_no(1, 0), _f(1), _no(0))),
         (IAE, "Dense shape cannot be empty.")),
    Case("CVE-2021-29565", "an empty dense shape and no entry", _FILL, _fill((_no(0, 0), _f(), _no(0))),
         (IAE, "Dense shape cannot be empty.")),
    Case("CVE-2021-37676", "empty inputs but columns", _FILL, _fill((_no(0, 2), _f(), _no(0))),
         (IAE, "The length of `dense_shape` (0) must match the second dimension of `indices` (2).")),
    Case("CVE-2021-37676", "empty indices of rank one", _FILL, _fill((_no(0), _f(), _no(0))),
         (IAE, "indices must be a matrix, saw: [0]")),
    Case("CVE-2021-37676", "empty inputs of an empty shape", _FILL, _fill((_no(0, 2), _f(), _no(2))), [[], [], [], []]),
    Case("CVE-2021-41224", "fewer values than indices", _FILL, _fill(_SEVENTEEN),
         (IAE, "The length of `values` (0) must match the first dimension of `indices` (17).")),
    Case("CVE-2021-41224", "more values than indices", _FILL, _fill((_no(1, 2), _f(1, 2), _i(2, 2))),
         (IAE, "The length of `values` (2) must match the first dimension of `indices` (1).")),
    Case("CVE-2021-41224", "ragged values without rows of theirs", "RaggedFillEmptyRows",
         _ragged(_i(0), _f(1, 2), 2),
         (IAE, "The length of `values` (2) must match the first dimension of `value_rowids` (1).")),
    Case("CVE-2022-41898", "all inputs empty", "SparseFillEmptyRowsGrad", _reverse(_no(0), _f()), [[], 0.0]),
    Case("CVE-2022-41898", "ragged and all inputs empty", "RaggedFillEmptyRowsGrad", _reverse(_no(0), _f()), [[], 0.0]),
    Case("CVE-2021-41195", "the largest id there is", "SegmentSum",
         {"data": _zeros(1, 2), "segment_ids": _i(2**63 - 1)},
         (IAE, "Expected a non-negative size, got -9223372036854775808")),
    Case("CVE-2021-41195", "an id whose output has too many elements", "SegmentSum",
         {"data": _zeros(1, 2), "segment_ids": _i(2**62)},
         (IAE, "Encountered overflow when multiplying 4611686018427387905 with 2, result: -9223372036854775806")),
    Case("CVE-2021-41195", "an id whose bags have too many elements", _SUM,
         _bags(_zeros(1, 2), _i(0), _i(2**62)),
         (IAE, "Encountered overflow when multiplying 4611686018427387905 with 2, result: -9223372036854775806")),
    Case("CVE-2021-41195", "a number of segments that overflows", "SparseSegmentSumGradGrad",
         _bags(_zeros(1, 2), _i(0), _i(0), num_segments=2**62),
         (IAE, "Encountered overflow when multiplying 4611686018427387904 with 2, result: -9223372036854775808")),
    Case("CVE-2019-16778", "a last id that int32 cannot count", _SUM,
         _bags(_zeros(1, 2), np.array([0], np.int32), np.array([2**31 - 1], np.int32)),
         (IAE, "Last segment id must be < kintmax, got 2147483647 limit 2147483647")),
    Case("CVE-2019-16778", "a number of segments beyond int32", "SparseSegmentSumWithNumSegments",
         _bags(_zeros(1, 2), _i(0), _i(0), num_segments=2**31), (IAE, "segment ids must be < num_segments")),
    Case("CVE-2019-16778", "a number of segments whose low bits are small", "SparseSegmentMeanWithNumSegments",
         _bags(_zeros(1, 2), _i(0), _i(0), num_segments=2**40 + 5),
         (IAE, "num_segments must be at most 2147483647, got 1099511627781")),
    Case("CVE-2019-16778", "a size whose low bits are small", _GRAD,
         _grads(_zeros(1, 2), _i(0), _i(0), output_dim0=2**32 + 1),
         (IAE, "output_dim0 must contain values of int32; got 4294967297")),
    Case("CVE-2019-16778", "a negative size", _GRAD, _grads(_zeros(1, 2), _i(0), _i(0), output_dim0=-1),
         (IAE, "Expected a non-negative size, got -1")),
    Case("CVE-2020-15212", "a negative id", _SUM, _bags(_zeros(1, 2), _i(0), _i(-1)),
         (IAE, "segment ids must be >= 0")),
    Case("CVE-2020-15212", "a negative first id", _SUM, _bags(_zeros(1, 2), _i(0, 0), _i(-1, 0)),
         (IAE, "Segment id -1 out of range [0, 1), possibly because 'segment_ids' input is not sorted.")),
    Case("CVE-2020-15212", "negative ids of rows", "SegmentSum", {"data": _zeros(2, 2), "segment_ids": _i(-1, -1)},
         (IAE, "segment ids must be >= 0")),
    Case("CVE-2020-15213", "ids without bound", _SUM, _bags(_zeros(1, 2), _i(0), _i(2**40)),
         (OOM, _output("1099511627777,2"))),
    Case("CVE-2020-15213", "ids of rows without bound", "SegmentSum", {"data": _zeros(1, 2), "segment_ids": _i(2**40)},
         (OOM, _output("1099511627777,2"))),
    Case("CVE-2020-15214", "unsorted ids", _SUM, _bags(_zeros(1, 2), _i(0, 0), _i(1, 0)),
         (IAE, "segment ids are not increasing")),
    Case("CVE-2020-15214", "unsorted ids of rows", "SegmentSum", {"data": _zeros(2, 2), "segment_ids": _i(1, 0)},
         (IAE, "segment ids are not increasing")),
    Case("CVE-2021-29607", "tensors of rank zero", _ADD, _add((_no(1, 0), _f(1), _no(0))),
         (IAE, "Tesors must not be empty")),
    Case("CVE-2021-29607", "empty tensors of rank zero", _ADD, _add((_no(0, 0), _f(), _no(0))),
         (IAE, "Tesors must not be empty")),
    Case("CVE-2021-29607", "empty tensors", _ADD, _add((_no(0, 2), _f(), _i(2, 2))), [[], [], [2, 2]]),
    Case("CVE-2021-29607", "indices without values", _ADD, _add((_i(0, 0, shape=(1, 2)), _f(), _i(2, 2)), _GOOD),
         (IAE, "Expected 1 and 2 non-empty input values, got 0 and 2")),
    Case("CVE-2021-29609", "columns of another shape", _ADD,
         _add((_i(0, 0, shape=(1, 2)), _f(1), _i(2))),
         (IAE, "Second dimension of a_indices and length of a_shape must match, got 2 and 1")),
    Case("CVE-2021-29609", "indices that are no matrix", _ADD, _add((_i(0, 0), _f(1), _i(2, 2)), _GOOD),
         (IAE, "Input indices should be matrices but received shapes: [2] and [2,2]")),
    Case("CVE-2021-29609", "gradients of other ranks", "SparseAddGrad",
         {"backprop_val_grad": _f(1), "a_indices": _no(1, 1), "b_indices": _no(1, 2), "sum_indices": _no(1, 2)},
         (IAE, "The densified operands should have the same ndims; for A, B, sum got: 122")),
    # -- the same family ---------------------------------------------------------------------------------------------
    Case("CVE-2022-29206", "seventeen indices and no values", _FILL, _fill(_SEVENTEEN),
         (IAE, "The length of `values` (0) must match the first dimension of `indices` (17).")),
    Case("CVE-2022-29206", "seventeen indices and no values sliced", _SLICE, _slice(_SEVENTEEN),
         (IAE, "Number of elements in indices (17) and values (0) do not match")),
    Case("CVE-2022-29206", "seventeen indices and no values added", _ADD, _add(_SEVENTEEN, _GOOD),
         (IAE, "Expected 17 and 2 non-empty input values, got 0 and 2")),
    Case("CVE-2022-29206", "seventeen indices and no values as summand", _ADD, _add(_GOOD, _SEVENTEEN),
         (IAE, "Expected 2 and 17 non-empty input values, got 2 and 0")),
    Case("CVE-2023-25665", "a second tensor without columns", _ADD,
         _add((_i(1, shape=(1, 1)), _f(0.1), _i(2)), (_no(1, 0), _f(2), _i(2))),
         (IAE, "Input indices must have the same dimension, got 1 and 0")),
    Case("CVE-2023-25665", "a second shape of another rank", _ADD,
         _add((_i(1, shape=(1, 1)), _f(0.1), _i(2)), (_i(1, shape=(1, 1)), _f(2), _i(2, 2))),
         (IAE, "Operands do not have the same ranks; got shapes: 2 and 2 2")),
    Case("CVE-2021-29611", "more columns than dimensions", _FILL, _fill((_no(1, 3), _f(1), _i(2, 2))),
         (IAE, "The length of `dense_shape` (2) must match the second dimension of `indices` (3).")),
    Case("CVE-2021-29611", "more columns than dimensions sliced", _SLICE, _slice((_no(1, 3), _f(1), _i(2, 2))),
         (IAE, "Index rank (3) and shape rank (2) do not match")),
    Case("CVE-2021-37640", "a dimension of size zero", _FILL, _fill((_no(0, 2), _f(), _i(2, 0))),
         [[[0, 0], [1, 0]], [-1.0, -1.0], [True, True], []]),
    Case("CVE-2021-37640", "a dimension of size zero sliced", _SLICE, _slice((_no(0, 2), _f(), _i(0, 3))), [[], [],
         [0, 1]]),
    Case("CVE-2021-37640", "a dimension of size zero added", _ADD, _add((_no(0, 2), _f(), _i(0, 3))), [[], [], [0, 3]]),
    Case("CVE-2021-37635", "a row beyond the shape", _FILL, _fill((_i(5, 0, shape=(1, 2)), _f(1), _i(2, 2))),
         (IAE, "indices(0, 0) is invalid: 5 >= 2")),
    Case("CVE-2021-37635", "a row beyond the shape sliced", _SLICE,
         _slice((_i(5, 0, shape=(1, 2)), _f(1), _i(2, 2))), [[], [], [1, 1]]),
    Case("CVE-2021-37635", "a row beyond the shape added", _ADD, _add((_i(5, 0, shape=(1, 2)), _f(1), _i(2, 2))),
         [[[5, 0]], [2.0], [2, 2]]),
    Case("CVE-2021-29558", "a column beyond the shape", _FILL,
         _fill((_i(0, 9, 1, 9, shape=(2, 2)), _f(1, 2), _i(2, 2))),
         [[[0, 9], [1, 9]], [1.0, 2.0], [False, False], [0, 1]]),
    Case("CVE-2021-29558", "a column beyond the shape sliced", _SLICE,
         _slice((_i(0, 2**40, shape=(1, 2)), _f(1), _i(2, 2))), [[], [], [1, 1]]),
    Case("CVE-2021-29534", "a shape whose product overflows", _SLICE,
         _slice((_no(0, 3), _f(), _i(2**31, 2**31, 2**31))),
         (IAE, "Encountered overflow when multiplying 4611686018427387904 with 2147483648, result: -1")),
    Case("CVE-2021-29534", "a shape that is too large to fill", _FILL,
         _fill((_no(0, 2), _f(), _i(2**62, 2**62))), (OOM, _workspace(4611686018427387904))),
    Case("CVE-2021-29545", "an entry in a shape of zeros", _FILL, _fill((_no(1, 2), _f(1), _no(2))),
         (IAE, "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = 1")),
    Case("CVE-2021-29545", "an entry in a shape of zeros sliced", _SLICE, _slice((_no(1, 2), _f(1), _no(2))),
         [[[0, 0]], [1.0], [0, 0]]),
    Case("CVE-2021-37647", "values without indices", _FILL, _fill((_no(0, 2), _f(1), _i(2, 2))),
         (IAE, "The length of `values` (1) must match the first dimension of `indices` (0).")),
    Case("CVE-2021-37647", "values without indices sliced", _SLICE, _slice((_no(0, 2), _f(1), _i(2, 2))),
         (IAE, "Number of elements in indices (0) and values (1) do not match")),
    Case("CVE-2021-37647", "values without indices added", _ADD, _add((_no(0, 2), _f(1), _i(2, 2))),
         (IAE, "Expected 0 and 0 non-empty input values, got 1 and 1")),
    Case("CVE-2022-21736", "values that are a scalar", _FILL, _fill((_no(1, 2), _f(1, shape=()), _i(2, 2))),
         (IAE, "values must be a vector, saw: []")),
    Case("CVE-2022-21736", "indices of rank one sliced", _SLICE, _slice((_i(0, 0), _f(1), _i(2, 2))),
         (IAE, "Sparse indices must be rank 2 but is rank 1")),
    Case("CVE-2021-29567", "fewer dimensions than columns", _FILL, _fill((_no(1, 2), _f(1), _i(2))),
         (IAE, "The length of `dense_shape` (1) must match the second dimension of `indices` (2).")),
    Case("CVE-2021-29567", "fewer dimensions than columns sliced", _SLICE, _slice((_no(1, 2), _f(1), _i(2))),
         (IAE, "Index rank (2) and shape rank (1) do not match")),
    Case("CVE-2021-37636", "an entry where the shape has no rows", _FILL, _fill((_no(1, 2), _f(1), _i(0, 2))),
         (IAE, "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = 1")),
    Case("CVE-2022-23567", "a product of dimensions beyond int64", _SLICE,
         _slice((_no(0, 2), _f(), _i(2**62, 2**62))),
         (IAE, "Encountered overflow when multiplying 4611686018427387904 with 4611686018427387904, result: -1")),
    Case("CVE-2022-23567", "a slice of an impossible size", _SLICE,
         {"indices": _no(0, 2), "values": _f(), "shape": _i(4, 4), "start": _i(-(2**40), -(2**40)),
          "size": _i(2**62, 2**62)},
         (IAE, "Shape [1099511627780,1099511627780] results in overflow when computing number of elements")),
    Case("CVE-2021-29523", "a shape of two to the 32 squared", _SLICE, _slice((_no(0, 2), _f(), _i(2**32, 2**32))),
         (IAE, "Encountered overflow when multiplying 4294967296 with 4294967296, result: -1")),
    Case("CVE-2022-23568", "an entry in a shape of two to the 32 squared", _SLICE,
         _slice((_no(1, 2), _f(1), _i(2**32, 2**32))),
         (IAE, "Encountered overflow when multiplying 4294967296 with 4294967296, result: -1")),
    Case("CVE-2020-15196", "indices that are a vector", _FILL, _fill((_i(0), _f(1), _i(2, 2))),
         (IAE, "indices must be a matrix, saw: [1]")),
    Case("CVE-2020-15197", "indices that are a scalar", _FILL, _fill((_i(0, shape=()), _f(1), _i(2, 2))),
         (IAE, "indices must be a matrix, saw: []")),
    Case("CVE-2020-15197", "indices of rank three sliced", _SLICE, _slice((_no(1, 2, 1), _f(1), _i(2, 2))),
         (IAE, "Sparse indices must be rank 2 but is rank 3")),
    Case("CVE-2020-15198", "as many values as columns", _FILL, _fill((_no(1, 2), _f(1, 2), _i(2, 2))),
         (IAE, "The length of `values` (2) must match the first dimension of `indices` (1).")),
    Case("CVE-2020-15199", "empty splits", _OFFSETS, {"offsets": _no(0), "num_ids": 1},
         (IAE, "offsets must end with the number of ids, 1, got 0")),
    Case("CVE-2020-15200", "splits that do not begin with zero", _OFFSETS, {"offsets": _i(7, 8), "num_ids": 8},
         (IAE, "offsets[0] must be 0, got 7")),
    Case("CVE-2020-15200", "splits that fall", _OFFSETS, {"offsets": _i(0, 5, 3, 8), "num_ids": 8},
         (IAE, "offsets must not decrease, but offsets[2] = 3 follows 5")),
    Case("CVE-2020-15201", "splits that end beyond the ids", _OFFSETS, {"offsets": _i(0, 9), "num_ids": 8},
         (IAE, "offsets must end with the number of ids, 8, got 9")),
    Case("CVE-2020-15201", "splits of features that end too soon", "StackBags",
         {"indices": _i(0, 0), "offsets": _i(0, 1), "feature_rows": _i(1), "feature_first": _i(0)},
         (IAE, "offsets must end with the number of ids, 2, got 1")),
    Case("CVE-2021-29521", "a negative dense shape", _FILL, _fill((_no(0, 2), _f(), _i(-1, 2))),
         (IAE, "Expected shape dimensions to be non-negative, got -1")),
    Case("CVE-2021-29521", "a negative dense shape sliced", _SLICE, _slice((_no(0, 2), _f(), _i(2, -4))),
         (IAE, "Expected shape dimensions to be non-negative, got -4")),
    Case("CVE-2021-29619", "everything empty but the rank", _SLICE, _slice((_no(0, 2), _f(), _no(0))),
         (IAE, "Index rank (2) and shape rank (0) do not match")),
    Case("CVE-2021-29619", "everything empty", _SLICE, _slice((_no(0, 0), _f(), _no(0))), [[], [], []]),
    Case("CVE-2021-41210", "a row of minus one", _FILL, _fill((_i(-1, 0, shape=(1, 2)), _f(1), _i(2, 2))),
         (IAE, "indices(0, 0) is invalid: -1 >= 2")),
    Case("CVE-2021-41210", "a row of minus one in a ragged", "RaggedFillEmptyRows", _ragged(_i(-1), _f(1), 2),
         (IAE, "indices(0, 0) is invalid: -1 >= 2")),
    Case("CVE-2022-21738", "more rows than memory", _FILL, _fill((_no(0, 2), _f(), _i(2**50, 2))),
         (OOM, _workspace(1125899906842624))),
    Case("CVE-2022-21740", "an entry at the end of the shape", _FILL,
         _fill((_i(2, 0, shape=(1, 2)), _f(1), _i(2, 2))), (IAE, "indices(0, 0) is invalid: 2 >= 2")),
    Case("CVE-2021-41226", "weights that are not as many as ids", "WeightedSparseSegmentSum",
         _bags(_zeros(1, 2), _i(0, 0), _i(0, 0), weights=_f(1, 1, 1)),
         (IAE, "weights and segment_ids should have same size, got 3 and 2")),
    Case("CVE-2021-41215", "a dense shape that is a matrix", _FILL,
         _fill((_no(1, 2), _f(1), _i(2, 2, shape=(1, 2)))), (IAE, "dense_shape must be a vector, saw: [1,2]")),
    Case("CVE-2021-41215", "a dense shape that is a scalar", _FILL, _fill((_no(1, 2), _f(1), _i(2, shape=()))),
         (IAE, "dense_shape must be a vector, saw: []")),
    Case("CVE-2021-37656", "splits that are one number", _OFFSETS, {"offsets": _i(5), "num_ids": 5},
         (IAE, "offsets[0] must be 0, got 5")),
    Case("CVE-2021-37656", "a split far beyond", _OFFSETS, {"offsets": _i(0, 2**62), "num_ids": 3},
         (IAE, "offsets must end with the number of ids, 3, got 4611686018427387904")),
    Case("CVE-2021-29560", "a row beyond the rows", "RaggedFillEmptyRows", _ragged(_i(0, 7), _f(1, 2), 2),
         (IAE, "indices(1, 0) is invalid: 7 >= 2")),
    Case("CVE-2021-29608", "rows of values that are none", "RaggedFillEmptyRows", _ragged(_no(0), _f(1), 2),
         (IAE, "The length of `values` (1) must match the first dimension of `value_rowids` (0).")),
    Case("CVE-2021-29608", "values but no rows", "RaggedFillEmptyRows", _ragged(_i(0), _f(1), 0),
         (IAE, "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = 1")),
    Case("CVE-2021-37638", "rows that are a matrix", "RaggedFillEmptyRows", _ragged(_no(1, 1), _f(1), 2),
         (IAE, "value_rowids must be a vector, saw: [1,1]")),
    Case("CVE-2021-37638", "a negative number of rows", "RaggedFillEmptyRows", _ragged(_no(0), _f(), -1),
         (IAE, "Expected shape dimensions to be non-negative, got -1")),
    Case("CVE-2021-29596", "a table without rows", "GatherRows", {"params": _zeros(0, 2), "indices": _i(0)},
         (IAE, "indices[0] = 0 is not in [0, 0)")),
    Case("CVE-2021-29596", "bags of a table without rows", _MEAN, _bags(_zeros(0, 2), _i(0), _i(0)),
         (IAE, "Bad: indices[0] == 0 out of range [0, 0)")),
    Case("CVE-2022-23560", "rows to be written outside", "ScatterRows",
         {"grad": _zeros(1, 2), "indices": _i(3), "num_rows": 3}, (IAE, "Index 3 out of range [0, 3).")),
    Case("CVE-2022-23560", "rows to be written before the first", "ScatterRows",
         {"grad": _zeros(1, 2), "indices": _i(-1), "num_rows": 3}, (IAE, "Index -1 out of range [0, 3).")),
    # -- crashes that have no CVE --------------------------------------------------------------------------------------
    Case("tf#46897", "scalar data", _SUM, _bags(_f(1, shape=()), _i(0), _i(0)), (IAE, "Shape must be at least rank 1")),
    Case("tf#46897", "unsigned segment ids", _SUM, _bags(_zeros(1, 2), _i(0), np.array([0], np.uint32)),
         (IAE, "segment_ids must be one of int32, int64; got uint32")),
    Case("tf#46897", "a scalar gradient", _GRAD, _grads(_f(1, shape=()), _i(0), _i(0), output_dim0=1),
         (IAE, "Index must be less than 0, got 0")),
    Case("tf#59364", "an index of 125091515651", _SUM, _bags(_zeros(2, 2), _i(125091515651), _i(0)),
         (IAE, "Bad: indices[0] == 125091515651 out of range [0, 2)")),
    Case("tf#59364", "a segment id of 125091515651", _GRAD,
         _grads(_zeros(2, 2), _i(0), _i(125091515651), output_dim0=2), (IAE, "Invalid number of segments")),
    Case("tf#59364", "an index of 125091515651 in a gradient", _V2,
         _grads(_zeros(2, 2), _i(125091515651), _i(0), dense_output_dim0=2),
         (IAE, "Index 125091515651 out of range [0, 2).")),
    Case("tf#59086", "data with no rows", _SUM, _bags(_zeros(0, 2), _i(0, 1), _i(0, 0)),
         (IAE, "Bad: indices[0] == 0 out of range [0, 0)")),
    Case("tf#59086", "a gradient with no rows", _GRAD, _grads(_zeros(0, 2), _i(0), _i(0), output_dim0=3),
         (IAE, "Invalid number of segments")),
    Case("tf#104261", "data with no rows and known segments", "SparseSegmentSqrtNWithNumSegments",
         _bags(_zeros(0, 2), _i(0), _i(0), num_segments=2), (IAE, "Bad: indices[0] == 0 out of range [0, 0)")),
    Case("tf#104261", "data with no rows and no ids", _MEAN, _bags(_zeros(0, 2), _no(0), _no(0)), [[]]),
    Case("tf#59201", "no ids", _MEAN, _bags(_f(1, 2, shape=(1, 2)), _no(0), _no(0)), [[]]),
    Case("tf#59201", "no ids and known segments", "SparseSegmentMeanWithNumSegments",
         _bags(_f(1, 2, shape=(1, 2)), _no(0), _no(0), num_segments=2), [[[0.0, 0.0], [0.0, 0.0]]]),
    Case("tf#59201", "no ids in a gradient", "SparseSegmentMeanGrad",
         _grads(_zeros(0, 2), _no(0), _no(0), output_dim0=2), [[[0.0, 0.0], [0.0, 0.0]]]),
    Case("tf#118200", "a negative index", _V2, _grads(_zeros(1, 2), _i(-3), _i(0), dense_output_dim0=4),
         (IAE, "Index -3 out of range [0, 4).")),
    Case("tf#118200", "a negative segment id", _V2, _grads(_zeros(1, 2), _i(0), _i(-3), dense_output_dim0=4),
         (IAE, "Segment id -3 out of range [0, 1).")),
    Case("tf#118200", "both negative", "SparseSegmentMeanGradV2",
         _grads(_zeros(1, 2), _i(-3), _i(-3), dense_output_dim0=4), (IAE, "Index -3 out of range [0, 4).")),
    Case("tf#59928", "a start that is a scalar", _SLICE,
         {"indices": _no(1, 2), "values": _f(1), "shape": _i(2, 2), "start": _i(0, shape=()), "size": _i(1, 1)},
         (IAE, "Input start should be a vector but received shape []")),
    Case("tf#59928", "a size that is too short", _SLICE,
         {"indices": _no(1, 2), "values": _f(1), "shape": _i(2, 2), "start": _i(0, 0), "size": _i(1)},
         (IAE, "Expected size to be a vector of length 2 but got length 1")),
    Case("tf#59928", "a negative size", _SLICE,
         {"indices": _no(1, 2), "values": _f(1), "shape": _i(2, 2), "start": _i(0, 0), "size": _i(-1, 1)},
         (IAE, "Expected a non-negative size, got -1")),
    Case("tf#59928", "a start beyond all", _SLICE,
         {"indices": _no(1, 2), "values": _f(1), "shape": _i(1, 1), "start": _i(2**63 - 1, 0),
          "size": _i(2**63 - 1, 1)}, [[], [], [0, 1]]),
    Case("tf#50256", "one id", "SparseSegmentMeanGrad", _grads(_f(1, 2, shape=(1, 2)), _i(1), _i(0), output_dim0=2),
         [[[0.0, 0.0], [1.0, 2.0]]]),
    Case("tf#50700", "no rows to give", "SparseSegmentMeanGrad",
         _grads(_zeros(1, 2), _i(-9), _i(99), output_dim0=0), [[]]),
    Case("tf#93136", "unsorted ids of a mean", _MEAN, _bags(_zeros(2, 2), _i(0, 1, 0), _i(0, 2, 1)),
         (IAE, "segment ids are not increasing")),
    Case("tf#93159", "an index beyond the rows of a mean", _MEAN, _bags(_zeros(2, 2), _i(0, 2), _i(0, 0)),
         (IAE, "Bad: indices[1] == 2 out of range [0, 2)")),
    Case("tf#113146", "an index just beyond", "SparseSegmentSqrtN", _bags(_zeros(2, 2), _i(0, 2), _i(0, 1)),
         (IAE, "Bad: indices[1] == 2 out of range [0, 2)")),
    Case("tf#127480", "a segment id just beyond", "SparseSegmentSqrtNGrad",
         _grads(_zeros(2, 2), _i(0, 0), _i(0, 2), output_dim0=1), (IAE, "Invalid number of segments")),
    Case("tf#127480", "segment ids beyond known segments", "SparseSegmentSumWithNumSegments",
         _bags(_zeros(2, 2), _i(0, 1), _i(0, 2), num_segments=2), (IAE, "segment ids must be < num_segments")),
    Case("tf#59161", "other lengths", _SUM, _bags(_zeros(2, 2), _i(0, 1), _i(0)),
         (IAE, "segment_ids and indices should have same size.")),
    Case("tf#59161", "ids that are a matrix", _SUM, _bags(_zeros(2, 2), _no(1, 1), _no(1, 1)),
         (IAE, "indices should be a vector.")),
    Case("tf#57765", "rows to be filled that are none", _FILL, _fill((_i(3, 0, shape=(1, 2)), _f(1), _i(3, 1))),
         (IAE, "indices(0, 0) is invalid: 3 >= 3")),
    Case("tf#57765", "a default that is a vector", _FILL, _fill(_GOOD) | {"default_value": _f(1)},
         (IAE, "default_value must be a scalar, saw: [1]")),
    Case("tf#59393", "an output that is no slice", "SparseSliceGrad",
         {"backprop_val_grad": _f(1), "input_indices": _no(1, 2), "input_start": _no(2),
          "output_indices": _i(0, 1, shape=(1, 2))},
         ('InternalError', "Elements of backprop_val_grad aren't all propagated. Num elements:1, used: 0")),
    Case("tf#59393", "more output than input", "SparseSliceGrad",
         {"backprop_val_grad": _f(1, 2), "input_indices": _no(1, 2), "input_start": _no(2),
          "output_indices": _no(2, 2)},
         (IAE, "# rows of output_indices should be not greater than of input_indices, got 2 and 1")),
]  # fmt: skip


def table() -> str:
    """Return the rows of the table in docs/contributing/hostile_input.md."""
    rows = [f"| {n} | {'<br>'.join(f'`{c.name}`' for c in CASES if c.number == n)} |" for n in NUMBERS]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
