"""Ops on whole rows: segment sums, gather, scatter, dot products and positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import make_error, shape_text
from .kernels import MeshDims, kernel
from .rows import IndexedRows
from .shapes import check_elements, differ, rank, rows_shape, same_lengths, size, vectors
from .spec import ACCUMULATOR_OF, ALL_DTYPES, FLOATS, INDEX, NUMBERS, Call, Known, Shape, declare, no_rows

CATEGORY = "Rows"

kernel("segment_sum", vmap="rows", layout="data: n, segment_ids: n>S -> S", data_sized=True, fuzz="segment_forward")
kernel(
    "gather_rows",
    vmap="rows",
    layout="params: V?, indices: n>V -> n",
    columnwise=True,
    mesh=MeshDims({"params": "rows"}, "ids", splits_ids=True),
    fuzz="rows",
)
kernel(
    "scatter_rows",
    vmap="rows",
    layout="grad: n, indices: n>V, num_rows: V -> V",
    columnwise=True,
    writes_named_rows=True,
    mesh=MeshDims({"grad": "ids"}, "output"),
    fuzz="rows",
)
kernel("row_positions", vmap="rows", layout="sorted_ids: V?, ids: n -> n", fuzz="rows")
kernel(
    "sparse_segment_dot",
    vmap="rows",
    layout="grad: S?, data: V?, indices: n>V, segment_ids: n>S -> n",
    mesh=MeshDims({"grad": "bags", "data": "rows"}, "ids"),
    fuzz="rows",
)
kernel("row_dot", vmap="rows", layout="x: n, y: n -> n", fuzz="rows")


def _segment_sum(x: Known) -> tuple[Shape, ...]:
    data = x.shape("data")
    if not data:
        raise make_error("input_rank")
    vectors(x, "segment_ids")
    if differ(data[0], x.shape("segment_ids")[0]):
        raise make_error("segments_match_data", value=x.shape("segment_ids")[0], bound=data[0])
    return ((None, *data[1:]),)


def _gather(x: Known) -> tuple[Shape, ...]:
    rank(x, "indices", 1, "gathered_should_be_vector")
    return ((x.shape("indices")[0], *rows_shape(x, "params")[1:]),)


def _positions(x: Known) -> tuple[Shape, ...]:
    vectors(x, "sorted_ids", "ids")
    return (x.shape("ids"),)


def _dot(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "segment_ids")
    same_lengths(x, "indices")
    grad, data = rows_shape(x, "grad"), rows_shape(x, "data")
    if len(grad) != len(data) or any(map(differ, grad[1:], data[1:])):
        raise make_error("rows_match", argument="data", value=shape_text(data[1:]), bound=shape_text(grad[1:]))
    return (x.shape("indices"),)


def _row_dot(x: Known) -> tuple[Shape, ...]:
    a, b = rows_shape(x, "x"), rows_shape(x, "y")
    if len(a) != len(b) or any(map(differ, a, b)):
        raise make_error("same_shape", argument="y", value=shape_text(b), bound=shape_text(a))
    return (a[:1],)


def _gather_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return enumerate(map(int, inputs["indices"]))


def _segment_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return ((int(s), i) for i, s in enumerate(inputs["segment_ids"]))


def _dot_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return enumerate(map(int, inputs["segment_ids"]))


declare(
    "SegmentSum",
    "data: T, segment_ids: Tsegmentids -> output: T",
    types={"T": NUMBERS, "Tsegmentids": INDEX},
    kernel="segment_sum",
    shape=_segment_sum,
    category=CATEGORY,
    differentiable=("data",),
    linear=("data",),
    adjoint=lambda ops, c, y: (ops["GatherRows"](y, c.segment_ids, gradient="dense"),),
    rows=_segment_pairs,
    doc="""Row s of the output is the sum of the rows of `data` that belong to segment s.

`segment_ids` are sorted, one per row of `data`; rows of skipped ids are zero. 16-bit floats are rounded at every
addition, as in TensorFlow; the SparseSegment ops round once.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SegmentSum(np.array([[1., 2.], [3., 4.], [5., 6.]]), [0, 0, 2])
""",
)


def _gather_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    rows = c.params.shape[0]
    if c.attrs["gradient"] == "rows":
        return (IndexedRows(y, c.indices, rows),)
    return (ops["ScatterRows"](y, c.indices, rows),)


def _scatter(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices")
    grad = rows_shape(x, "grad")
    if differ(grad[0], x.shape("indices")[0]):
        raise make_error("lengths_match", argument="indices", value=x.shape("indices")[0], bound=grad[0])
    shape = (size(x, "num_rows"), *grad[1:])
    check_elements(shape)
    return (shape,)


declare(
    "GatherRows",
    "params: T, indices: Tidx -> output: T",
    types={"T": ALL_DTYPES, "Tidx": INDEX},
    kernel="gather_rows",
    shape=_gather,
    category=CATEGORY,
    attrs={"gradient": "rows"},
    choices={"gradient": ("rows", "dense")},
    differentiable=("params",),
    linear=("params",),
    adjoint=_gather_adjoint,
    rows=_gather_pairs,
    tensorflow=False,
    doc="""The rows of `params` at `indices`.

The gradient is an `IndexedRows` with one row per id (duplicates are not merged), or with `gradient="dense"` dense.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.GatherRows(np.array([[1., 2.], [3., 4.], [5., 6.]]), [2, 0, 2])
""",
)

declare(
    "ScatterRows",
    "grad: T, indices: Tidx, num_rows: host Tnumrows -> output: T",
    types={"T": NUMBERS, "Tidx": INDEX, "Tnumrows": INDEX},
    kernel="scatter_rows",
    shape=_scatter,
    category=CATEGORY,
    differentiable=("grad",),
    linear=("grad",),
    adjoint=lambda ops, c, y: (ops["GatherRows"](y, c.indices, gradient="dense"),),
    rows=lambda inputs: ((int(row), i) for i, row in enumerate(inputs["indices"])),
    tensorflow=False,
    doc="""A table of `num_rows` rows to which every row of `grad` is added at its index: the transpose of GatherRows.

Rows with the same index are added in input order, from zero; 16-bit floats in float32, rounded once.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.ScatterRows(np.array([[1., 2.], [3., 4.], [5., 6.]]), [2, 0, 2], num_rows=4)
""",
)

declare(
    "RowPositions",
    "sorted_ids: Tidx, ids: T -> positions: int64",
    types={"Tidx": INDEX, "T": INDEX},
    kernel="row_positions",
    shape=_positions,
    category=CATEGORY,
    rows=no_rows,
    tensorflow=False,
    doc="""The position of each id in a list of distinct ascending ids, such as GradV2's `sorted_unique_indices`.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.RowPositions(sorted_ids=[2, 5, 9], ids=[9, 2, 2])
""",
)


def _dot_adjoint(ops: Any, c: Call, q: Any) -> tuple[Any, ...]:
    to_grad = to_data = None
    if c.wants("grad"):
        to_grad = ops["WeightedSparseSegmentSumGradGrad"](c.data, c.indices, c.segment_ids, q, c.grad.shape[0])
    if c.wants("data"):
        to_data = ops["WeightedSparseSegmentSumGrad"](c.grad, c.indices, c.segment_ids, q, c.data.shape[0])
    return to_grad, to_data


declare(
    "SparseSegmentDot",
    "grad: T, data: T, indices: Tidx, segment_ids: Tsegmentids -> output: Tsum",
    types={"T": FLOATS, "Tidx": INDEX, "Tsegmentids": INDEX, "Tsum": ACCUMULATOR_OF},
    kernel="sparse_segment_dot",
    shape=_dot,
    category=CATEGORY,
    differentiable=("grad", "data"),
    linear=("grad",),
    adjoint=_dot_adjoint,
    rows=_dot_pairs,
    tensorflow=False,
    doc="""For every id i the inner product of `grad[segment_ids[i]]` and `data[indices[i]]`.

It is the gradient of a weighted sum for its weights. docs/reference/orders.md defines the order of the sum over
columns. The result of 16-bit floats is float32.""",
    example="""\
import numpy as np, rowgrad as rg
grad = np.array([[1., 2.], [3., 4.]])
data = np.array([[1., 0.], [0., 1.], [1., 1.]])
rg.raw_ops.SparseSegmentDot(grad, data, indices=[0, 2, 1], segment_ids=[0, 0, 1])
""",
)


declare(
    "RowDot",
    "x: T, y: T -> output: Tsum",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    kernel="row_dot",
    shape=_row_dot,
    category=CATEGORY,
    differentiable=("x", "y"),
    linear=("x",),
    adjoint=lambda ops, c, q: (
        ops["ScaleRows"](c.y, q) if c.wants("x") else None,
        ops["ScaleRows"](c.x, q) if c.wants("y") else None,
    ),
    rows=lambda inputs: ((i, i) for i in range(len(inputs["x"]))),
    tensorflow=False,
    doc="The inner product of every row of x with the same row of y, in the order of docs/reference/orders.md.",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.RowDot(np.array([[1., 2.], [3., 4.]]), np.array([[1., 1.], [2., 0.]]))
""",
)
