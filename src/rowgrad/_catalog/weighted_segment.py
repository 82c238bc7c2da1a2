"""WeightedSparseSegment{Sum,Mean,SqrtN}: weighted bags Σwx, Σwx/Σw, Σwx/√Σw², and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .enums import Reduction
from .kernels import MeshDims, kernel
from .rows import IndexedRows
from .shapes import check_elements, rows_shape, same_lengths, size, vectors
from .sparse_segment import BAGS, GRADIENT, GRADIENT_MESH, LOOKUP_MESH, ORDER, forward_pairs, gradient_pairs
from .spec import FLOATS, INDEX, Call, Known, Shape, declare

CATEGORY = "Weighted segment"
TOTAL = {Reduction.sum: "Σwx", Reduction.mean: "Σwx / Σw", Reduction.sqrtn: "Σwx / √Σw²"}
TYPES = {"T": FLOATS, "Tidx": INDEX, "Tsegmentids": INDEX, "Tweights": FLOATS}
ROUNDING = {"accumulate": ("T", "float32")}  # in the order of Rounding

# Whole packets of columns are summed in another order than other columns (docs/reference/orders.md): not columnwise.
kernel(
    "weighted_segment",
    parameters=("reduction", "sized"),
    vmap="rows",
    layout=BAGS,
    data_sized={"sized": 0},
    mesh=LOOKUP_MESH,
    fuzz="segment_forward",
)
kernel(
    "weighted_segment_grad",
    parameters=("reduction", "accumulate", "order"),
    vmap="rows",
    layout=GRADIENT,
    columnwise=True,
    writes_named_rows=True,
    mesh=GRADIENT_MESH,
    fuzz="segment_gradient",
)
kernel(
    "weighted_segment_grad_rows",
    parameters=("reduction",),
    vmap="rows",
    layout="grad: S, segment_ids: n>S, weights: n -> n",
    columnwise=True,
    mesh=MeshDims({"grad": "bags"}, "ids"),
    fuzz="segment_gradient",
)


def _forward(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "segment_ids", "weights")
    same_lengths(x, "indices", "weights")
    data = rows_shape(x, "data")
    rows = size(x, "num_segments") if "num_segments" in x.avals else None
    return ((rows, *data[1:]),)


def _grad(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "segment_ids", "weights")
    same_lengths(x, "indices", "weights")
    shape = (size(x, "output_dim0"), *rows_shape(x, "grad")[1:])
    check_elements(shape)
    return (shape,)


def _grad_rows(x: Known) -> tuple[Shape, ...]:
    vectors(x, "segment_ids", "weights")
    same_lengths(x, "weights")
    return ((x.shape("segment_ids")[0], *rows_shape(x, "grad")[1:]),)


def _grad_rows_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return enumerate(map(int, inputs["segment_ids"]))


def weights_gradient(ops: Any, kind: str, c: Call, grad: Any, data: Any, rows: int) -> Any:
    """Return d⟨grad, bag(data, w)⟩ / dw, composed of ops, so that it can be differentiated; None if not requested.

    `rows` is the number of rows of grad. With a_i = ⟨grad[s_i], data[indices_i]⟩ and W the segment's divisor:
    a/W − w·Σ(w·a)/W³ for √Σw², a/W − Σ(w·a)/W² for Σw, and a for the plain sum; 0 where the divisor is 0.
    """
    if not c.wants("weights"):
        return None
    a = ops["SparseSegmentDot"](grad, data, c.indices, c.segment_ids)
    if kind == "Sum":
        return ops["CastLike"](a, c.weights)
    w = ops["CastLike"](c.weights, a)
    s, n = c.segment_ids, rows
    wa = ops["ScatterRows"](ops["Mul"](w, a), s, n)
    if kind == "Mean":
        total = ops["ScatterRows"](w, s, n)
        pull = ops["GatherRows"](ops["DivNoNan"](ops["DivNoNan"](wa, total), total), s, gradient="dense")
    else:
        total = ops["Sqrt"](ops["ScatterRows"](ops["Mul"](w, w), s, n))
        cubed = ops["DivNoNan"](ops["DivNoNan"](ops["DivNoNan"](wa, total), total), total)
        pull = ops["WeightedSparseSegmentSumGradRows"](cubed, s, w)  # w · cubed[s], rounded before it is subtracted
    direct = ops["DivNoNan"](a, ops["GatherRows"](total, s, gradient="dense"))
    return ops["CastLike"](ops["Sub"](direct, pull), c.weights)


def _forward_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        rows = c.data.shape[0]
        to_data: Any = None
        if not c.wants("data"):
            pass
        elif c.attrs.get("sparse_gradient"):
            values = ops[f"WeightedSparseSegment{kind}GradRows"](y, c.segment_ids, c.weights)
            to_data = IndexedRows(values, c.indices, rows)
        else:
            to_data = ops[f"WeightedSparseSegment{kind}Grad"](
                y, c.indices, c.segment_ids, c.weights, rows, accumulate=c.attrs["accumulate"]
            )
        return to_data, weights_gradient(ops, kind, c, y, c.data, c.outputs[0].shape[0])

    return adjoint


def planned_rows(ops: Any, kind: str, c: Call, y: Any, plan: tuple[Any, ...]) -> IndexedRows:
    """Return the gradient of `data` as unique rows: the dense gradient of a table of just the plan's rows."""
    rows, *rest = plan
    unique = rows.shape[0]
    values = ops[f"PlannedWeightedSparseSegment{kind}Grad"](
        y, c.weights, ops["Positions"](rows), *rest, unique, accumulate=c.attrs["accumulate"]
    )
    return IndexedRows(values, rows, c.data.shape[0], is_unique=True)


def _sized_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    dense = _forward_adjoint(kind)

    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        if not c.attrs["sparse_gradient"] or not c.wants("data"):
            return dense(ops, c, y)
        plan = ops["RowPlan"](c.indices, c.segment_ids, c.data.shape[0], y.shape[0])
        return planned_rows(ops, kind, c, y, plan), weights_gradient(ops, kind, c, y, c.data, y.shape[0])

    return adjoint


def grad_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    """Return the adjoint of a dense gradient: ⟨C, Grad(g, w)⟩ = ⟨bag(C, w), g⟩, so the cotangent replaces the data."""

    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        to_grad = None
        if c.wants("grad"):
            transpose = ops[f"WeightedSparseSegment{kind}GradGrad"]
            to_grad = transpose(y, c.indices, c.segment_ids, c.weights, c.grad.shape[0])
        return to_grad, weights_gradient(ops, kind, c, c.grad, y, c.grad.shape[0])

    return adjoint


def _grad_rows_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        ids = ops["Positions"](c.segment_ids)  # row i of the result belongs to id i
        each = c.on(indices=ids)
        to_grad = None
        if c.wants("grad"):
            transpose = ops[f"WeightedSparseSegment{kind}GradGrad"]
            to_grad = transpose(y, ids, c.segment_ids, c.weights, c.grad.shape[0])
        return to_grad, weights_gradient(ops, kind, each, c.grad, y, c.grad.shape[0])

    return adjoint


_EXAMPLE = """\
import numpy as np, rowgrad as rg
table = np.array([[1., 2.], [3., 4.], [5., 6.]])
weights = np.array([1., 3., 2.])
rg.raw_ops.WeightedSparseSegment{kind}{suffix}({args})
"""

for _reduce in Reduction:
    _kind = _reduce.op_suffix
    declare(
        f"WeightedSparseSegment{_kind}",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, weights: Tweights -> output: T",
        types=TYPES,
        kernel="weighted_segment",
        constants=(_reduce, 0),
        sized=f"WeightedSparseSegment{_kind}WithNumSegments",
        shape=_forward,
        category=CATEGORY,
        attrs={"sparse_gradient": False, "accumulate": "float32"},
        choices={"sparse_gradient": (False, True), **ROUNDING},
        differentiable=("data", "weights"),
        linear=("data",),
        adjoint=_forward_adjoint(_kind),
        rows=forward_pairs,
        tensorflow=False,
        doc=f"""Row s of the output is {TOTAL[_reduce]} over the ids of segment s, as in TensorFlow's weighted lookups.

Segment ids are sorted; where the divisor is 0, so is the result. Weights of any float dtype are converted to that of
the sum. With `sparse_gradient=True` the gradient for `data` has one row per id. `accumulate` determines how a dense
gradient in 16 bits is summed: in `"float32"`, rounded once, or `"T"`, rounded at every addition as in TensorFlow.""",
        example=_EXAMPLE.format(kind=_kind, suffix="", args="table, [0, 2, 1], [0, 0, 2], weights"),
    )
    declare(
        f"WeightedSparseSegment{_kind}Grad",
        "grad: T, indices: Tidx, segment_ids: Tsegmentids, weights: Tweights, output_dim0: host int32 -> output: T",
        types=TYPES,
        kernel="weighted_segment_grad",
        constants=(_reduce,),
        shape=_grad,
        category=CATEGORY,
        attrs={"accumulate": "float32", "order": "sequential"},
        choices={**ROUNDING, **ORDER},
        passed=("accumulate", "order"),
        planned=f"PlannedWeightedSparseSegment{_kind}Grad",
        differentiable=("grad", "weights"),
        linear=("grad",),
        adjoint=grad_adjoint(_kind),
        rows=gradient_pairs,
        tensorflow=False,
        doc=f"""The gradient of `WeightedSparseSegment{_kind}` for `data`, as a dense table of `output_dim0` rows.

The upstream row is divided by the segment's divisor, multiplied by the id's weight, and added, in input order.""",
        example=_EXAMPLE.format(kind=_kind, suffix="Grad", args="table, [0, 2, 2], [0, 0, 2], weights, output_dim0=4"),
    )
    declare(
        f"WeightedSparseSegment{_kind}GradRows",
        "grad: T, segment_ids: Tsegmentids, weights: Tweights -> output: T",
        types={k: TYPES[k] for k in ("T", "Tsegmentids", "Tweights")},
        kernel="weighted_segment_grad_rows",
        constants=(_reduce,),
        shape=_grad_rows,
        category=CATEGORY,
        differentiable=("grad", "weights"),
        linear=("grad",),
        adjoint=_grad_rows_adjoint(_kind),
        rows=_grad_rows_pairs,
        tensorflow=False,
        doc=f"""The gradient of `WeightedSparseSegment{_kind}` for each id's own row, equal ids not yet summed.""",
        example=_EXAMPLE.format(kind=_kind, suffix="GradRows", args="table, [0, 0, 2], weights"),
    )
    declare(
        f"WeightedSparseSegment{_kind}WithNumSegments",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, weights: Tweights, num_segments: host Tnumsegments"
        " -> output: T",
        types={**TYPES, "Tnumsegments": INDEX},
        kernel="weighted_segment",
        constants=(_reduce, 1),
        shape=_forward,
        category=CATEGORY,
        attrs={"sparse_gradient": False, "accumulate": "float32"},
        choices={"sparse_gradient": (False, True), **ROUNDING},
        planned=f"WeightedSparseSegment{_kind}WithPlan",
        differentiable=("data", "weights"),
        linear=("data",),
        adjoint=_sized_adjoint(_kind),
        rows=forward_pairs,
        tensorflow=False,
        doc=f"""`WeightedSparseSegment{_kind}` with `num_segments` output rows, for segment ids in any order.

Rows of segments without ids are zero. With `sparse_gradient=True` the gradient for `data` has unique rows, with the
same bits as the rows of the dense gradient.""",
        example=_EXAMPLE.format(
            kind=_kind, suffix="WithNumSegments", args="table, [0, 2, 1], [0, 0, 2], weights, num_segments=4"
        ),
    )
    declare(
        f"WeightedSparseSegment{_kind}GradGrad",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, weights: Tweights, num_segments: host Tnumsegments"
        " -> output: T",
        types={**TYPES, "Tnumsegments": INDEX},
        kernel="weighted_segment",
        constants=(_reduce, 1),
        shape=_forward,
        category=CATEGORY,
        attrs={"accumulate": "float32"},
        choices=ROUNDING,
        differentiable=("data", "weights"),
        linear=("data",),
        adjoint=_forward_adjoint(_kind),
        rows=forward_pairs,
        tensorflow=False,
        doc=f"""The transpose of `WeightedSparseSegment{_kind}Grad`: segment ids in any order, `num_segments` rows.""",
        example=_EXAMPLE.format(
            kind=_kind, suffix="GradGrad", args="table, [0, 2, 1], [2, 0, 0], weights, num_segments=4"
        ),
    )
