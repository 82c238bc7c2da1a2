"""SparseSegment{Sum,Mean,SqrtN}: forward, gradients, and the transposes of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import make_error
from .enums import Order, Reduction
from .kernels import MeshDims, kernel
from .rows import IndexedRows
from .shapes import check_elements, differ, rank
from .spec import FLOATS, INDEX, REALS, Call, Known, Shape, declare

CATEGORY = "Sparse segment"
_COUNT = ", n being the number of ids in that segment"
# Texts of the reference for each reduction: the combined rows of a bag, and their gradient.
TEXTS = {
    Reduction.sum: ("sum", "`"),
    Reduction.mean: ("mean", f" * 1/n`{_COUNT}"),
    Reduction.sqrtn: ("sum divided by √n", f" * 1/√n`{_COUNT}"),
}
ORDER = {"order": tuple(order.name for order in Order)}
IN_ORDER: dict[str, Any] = {"attrs": {"order": "sequential"}, "choices": ORDER, "passed": ("order",)}
_INT32_MAX = (1 << 31) - 1
TYPES = {"T": FLOATS, "Tidx": INDEX, "Tsegmentids": INDEX}

BAGS = "data: V?, indices: n>V, segment_ids: n>S, weights: n, num_segments: S -> S"
GRADIENT = "grad: S, indices: n>V, segment_ids: n>S, weights: n, output_dim0: V -> V"
LOOKUP_MESH = MeshDims({"data": "rows"}, "bags", gathers_ids=True)
GRADIENT_MESH = MeshDims({"grad": "bags"}, "output")

kernel(
    "sparse_segment",
    parameters=("reduction", "sized"),
    vmap="rows",
    layout=BAGS,
    columnwise=True,
    data_sized={"sized": 0},
    mesh=LOOKUP_MESH,
    fuzz="segment_forward",
)
kernel(
    "sparse_segment_grad",
    parameters=("reduction", "unique", "order"),
    vmap="rows",
    layout=GRADIENT,
    columnwise=True,
    data_sized={"unique": 1},
    writes_named_rows=True,
    mesh=GRADIENT_MESH,
    fuzz="segment_gradient",
)
kernel(
    "sparse_segment_grad_padded",
    parameters=("reduction", "unique", "order"),
    vmap="rows",
    shared_ids="use jax.lax.map, or the dense gradient",  # different ids would return different rows per item
    columnwise=True,
    mesh=GRADIENT_MESH,
    fuzz="segment_gradient",
)
kernel(
    "sparse_segment_grad_grad",
    parameters=("reduction",),
    vmap="rows",
    layout=BAGS,
    columnwise=True,
    mesh=LOOKUP_MESH,
    fuzz="segment_forward",
)


def _ids(x: Known) -> None:
    rank(x, "indices", 1, "ids_should_be_vector")
    rank(x, "segment_ids", 1, "should_be_vector")


def _same_length(x: Known) -> None:
    ids, segments = x.shape("indices")[0], x.shape("segment_ids")[0]
    if differ(ids, segments):
        raise make_error("segments_match_indices", value=segments, bound=ids)


def _forward(x: Known) -> tuple[Shape, ...]:
    rows = None
    if "num_segments" in x.avals:
        rank(x, "num_segments", 0, "should_be_scalar_not")
        rows = x.host["num_segments"]
        if rows is not None and rows < 0:
            raise make_error("num_segments_negative", value=rows, bound=0)
    _ids(x)
    _same_length(x)
    data = x.shape("data")
    if not data:
        raise make_error("data_rank", has=("data",))
    return ((rows, *data[1:]),)


def _gradient(size: str) -> Callable[[Known], Shape]:
    def rule(x: Known) -> Shape:
        _ids(x)
        rank(x, size, 0, "should_be_scalar")
        _same_length(x)
        grad = x.shape("grad")
        if not grad:
            raise make_error("grad_rank")
        rows = x.host[size]
        if rows is not None and rows < 0:
            raise make_error("size_negative", argument=size, value=rows, bound=0)
        shape = (rows, *grad[1:])
        check_elements(shape)
        return shape

    return rule


_dense = _gradient("output_dim0")
_unique = _gradient("dense_output_dim0")


def _grad(x: Known) -> tuple[Shape, ...]:
    return (_dense(x),)


def _grad_v2(x: Known) -> tuple[Shape, ...]:
    return (None, *_unique(x)[1:]), (None,)


def _padded(x: Known) -> tuple[Shape, ...]:
    table = _unique(x)
    for name in ("size", "fill_id"):
        rank(x, name, 0, "should_be_scalar")
    size, fill = x.host["size"], x.host["fill_id"]
    if size is not None and size < 0:
        raise make_error("size_negative", argument="size", value=size, bound=0)
    if fill is not None and table[0] is not None and fill < table[0]:
        raise make_error("fill_is_a_row", value=fill, bound=table[0])
    if fill is not None and x.avals["indices"].dtype == "int32" and fill > _INT32_MAX:
        raise make_error("integer_does_not_fit", argument="fill_id", value=fill, bound="int32")
    check_elements((size, *table[1:]))
    return (size, *table[1:]), (size,)


def forward_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    """Return (segment, row of data) for every id."""
    return zip(map(int, inputs["segment_ids"]), map(int, inputs["indices"]), strict=True)


def gradient_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    """Return (row of the table, row of grad) for every id."""
    return zip(map(int, inputs["indices"]), map(int, inputs["segment_ids"]), strict=True)


def _v2_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    position = {row: p for p, row in enumerate(sorted({int(i) for i in inputs["indices"]}))}
    return ((position[row], segment) for row, segment in gradient_pairs(inputs))


def _forward_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        rows = c.data.shape[0]
        if c.attrs["sparse_gradient"]:
            values, ids = ops[f"SparseSegment{kind}GradV2"](y, c.indices, c.segment_ids, rows)
            return (IndexedRows(values, ids, rows, is_unique=True),)
        return (ops[f"SparseSegment{kind}Grad"](y, c.indices, c.segment_ids, rows),)

    return adjoint


def grad_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    """Return the adjoint of a dense gradient: its transpose."""

    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        return (ops[f"SparseSegment{kind}GradGrad"](y, c.indices, c.segment_ids, c.grad.shape[0]),)

    return adjoint


def v2_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    """Return the adjoint of a gradient by unique rows: the transpose, on positions of rows."""

    def adjoint(ops: Any, c: Call, y: Any, _ids: Any) -> tuple[Any, ...]:
        if c.arguments.get("dense_output_dim0", 1) == 0:  # the gradient did not validate ids, so they may be invalid
            return (ops[f"SparseSegment{kind}GradGrad"](y, c.indices, c.segment_ids, c.grad.shape[0]),)
        positions = ops["RowPositions"](c.outputs[1], c.indices)
        return (ops[f"SparseSegment{kind}GradGrad"](y, positions, c.segment_ids, c.grad.shape[0]),)

    return adjoint


def _grad_grad_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        return (ops[f"SparseSegment{kind}Grad"](y, c.indices, c.segment_ids, c.data.shape[0]),)

    return adjoint


_EXAMPLE = """\
import numpy as np, rowgrad as rg
table = np.array([[1., 2.], [3., 4.], [5., 6.]], np.float32)
rg.raw_ops.SparseSegment{kind}{suffix}(data=table, indices=[0, 2, 1], segment_ids=[0, 0, 2]{extra})
"""
_GRAD_EXAMPLE = """\
import numpy as np, rowgrad as rg
grad = np.array([[1., 2.], [6., 8.]], np.float32)
rg.raw_ops.SparseSegment{kind}{suffix}(grad, indices=[0, 2, 2], segment_ids=[0, 0, 1], {size}=4)
"""

for _reduce in Reduction:
    _kind, (_rule, _scale) = _reduce.op_suffix, TEXTS[_reduce]
    _forward_types = {**TYPES, "T": REALS if _kind == "Sum" else FLOATS}
    _common: dict[str, Any] = {
        "category": CATEGORY,
        "differentiable": ("data",),
        "linear": ("data",),
        "adjoint": _forward_adjoint(_kind),
        "rows": forward_pairs,
        "attrs": {"sparse_gradient": False},
        "choices": {"sparse_gradient": (False, True)},
    }
    declare(
        f"SparseSegment{_kind}",
        "data: T, indices: Tidx, segment_ids: Tsegmentids -> output: T",
        types=_forward_types,
        kernel="sparse_segment",
        constants=(_reduce, 0),
        sized=f"SparseSegment{_kind}WithNumSegments",
        shape=_forward,
        doc=f"""Row s of the output is the {_rule} of the rows of `data` whose ids belong to segment s.

`indices[i]` is a row of `data`, and `segment_ids[i]` the output row to which it belongs. Segment ids are sorted; rows
of skipped numbers are zero. The output has `segment_ids[-1] + 1` rows. 16-bit floats are summed in float32 and rounded
once. With `sparse_gradient=True` the gradient is row-sparse with unique rows (`…GradV2`).""",
        example=_EXAMPLE.format(kind=_kind, suffix="", extra=""),
        **_common,
    )
    declare(
        f"SparseSegment{_kind}WithNumSegments",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, num_segments: host Tnumsegments -> output: T",
        types={**_forward_types, "Tnumsegments": INDEX},
        kernel="sparse_segment",
        constants=(_reduce, 1),
        planned=f"SparseSegment{_kind}WithPlan",
        shape=_forward,
        doc=f"""`SparseSegment{_kind}` with `num_segments` output rows; rows of segments without ids are zero.

Use it if the last bags may be empty, or if the output's shape must be known before the call.""",
        example=_EXAMPLE.format(kind=_kind, suffix="WithNumSegments", extra=", num_segments=4"),
        **_common,
    )
    declare(
        f"SparseSegment{_kind}Grad",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, output_dim0: host int32 -> output: T",
        types=TYPES,
        kernel="sparse_segment_grad",
        constants=(_reduce, 0),
        **IN_ORDER,
        planned=f"PlannedSparseSegment{_kind}Grad",
        shape=_grad,
        category=CATEGORY,
        differentiable=("grad",),
        linear=("grad",),
        adjoint=grad_adjoint(_kind),
        rows=gradient_pairs,
        doc=f"""The gradient of `SparseSegment{_kind}` for `data`, as a dense table of `output_dim0` rows.

`output[indices[i]] += grad[segment_ids[i]]{_scale}, in the order of i; other rows are
zero. Segment ids need not be sorted. For an empty batch all rows are zero. `order="blocked"` adds the ids of a row as a
tree of runs of 64 instead (docs/reference/orders.md); `plan=` takes a `Plan` in place of the ids and the size.""",
        example=_GRAD_EXAMPLE.format(kind=_kind, suffix="Grad", size="output_dim0"),
    )
    declare(
        f"SparseSegment{_kind}GradV2",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, dense_output_dim0: host int32"
        " -> output: T, sorted_unique_indices: Tidx",
        types=TYPES,
        kernel="sparse_segment_grad",
        constants=(_reduce, 1),
        **IN_ORDER,
        planned=f"PlannedSparseSegment{_kind}GradV2",
        padded=f"PaddedSparseSegment{_kind}GradV2",
        dense=f"SparseSegment{_kind}Grad",
        shape=_grad_v2,
        category=CATEGORY,
        differentiable=("grad",),
        linear=("grad",),
        adjoint=v2_adjoint(_kind),
        rows=_v2_pairs,
        doc=f"""The gradient of `SparseSegment{_kind}` for `data`, only the rows that were looked up.

`output[k]` is the gradient of row `sorted_unique_indices[k]`, with the same bits as in `SparseSegment{_kind}Grad`; the
ids are distinct and ascending. `order` and `plan=` are as there. `size=` fixes the number of output rows, which a
compiler needs to know (`PaddedSparseSegment{_kind}GradV2`).""",
        example=_GRAD_EXAMPLE.format(kind=_kind, suffix="GradV2", size="dense_output_dim0"),
    )
    declare(
        f"PaddedSparseSegment{_kind}GradV2",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, dense_output_dim0: host int32, size: host Tsize,"
        " fill_id: host Tfill -> output: T, sorted_unique_indices: Tidx",
        types={**TYPES, "Tsize": INDEX, "Tfill": INDEX},
        kernel="sparse_segment_grad_padded",
        constants=(_reduce, 1),
        **IN_ORDER,
        shape=_padded,
        category=CATEGORY,
        differentiable=("grad",),
        linear=("grad",),
        adjoint=v2_adjoint(_kind),
        rows=_v2_pairs,
        tensorflow=False,
        doc=f"""`SparseSegment{_kind}GradV2` padded to `size` rows, for compilers that need static shapes.

Looked-up rows come first, with the same bits, followed by rows of zeros with the id `fill_id`, which is out of range
for the table, so that code that adds rows to a table can skip them. More than `size` looked-up rows are an error.
`SparseSegment{_kind}GradV2(…, size=…)` calls it with `fill_id = dense_output_dim0`.""",
        example=_GRAD_EXAMPLE.format(kind=_kind, suffix="GradV2", size="size=3, fill_id=4, dense_output_dim0").replace(
            "raw_ops.", "raw_ops.Padded"
        ),
    )
    declare(
        f"SparseSegment{_kind}GradGrad",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, num_segments: host Tnumsegments -> output: T",
        types={**TYPES, "Tnumsegments": INDEX},
        kernel="sparse_segment_grad_grad",
        constants=(_reduce,),
        shape=_forward,
        category=CATEGORY,
        differentiable=("data",),
        linear=("data",),
        adjoint=_grad_grad_adjoint(_kind),
        rows=forward_pairs,
        tensorflow=False,
        doc=f"""The transpose of `SparseSegment{_kind}Grad`, needed for second derivatives.

`SparseSegment{_kind}WithNumSegments` for segment ids in any order; with sorted ids the bits are the same.""",
        example=_EXAMPLE.format(kind=_kind, suffix="GradGrad", extra=", num_segments=4"),
    )
