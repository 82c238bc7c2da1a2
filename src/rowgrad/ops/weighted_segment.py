"""SegmentSum, gathered rows, and weighted bags, on which the weighted lookups stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import refuse, shape_text
from ..rows import IndexedRows
from ..shape import check_elements, differ, rank
from ..spec import ACCUMULATOR_OF, ALL_DTYPES, FLOATS, INDEX, NUMBERS, Call, Known, Shape, declare
from .sparse_segment import REDUCE, forward_pairs, gradient_pairs

CATEGORY = "Weighted segment"
TOTAL = {"Sum": "Σwx", "Mean": "Σwx / Σw", "SqrtN": "Σwx / √Σw²"}
TYPES = {"T": FLOATS, "Tidx": INDEX, "Tsegmentids": INDEX, "Tweights": FLOATS}
_ROUNDING = {"accumulate": ("T", "float32")}


def _vectors(x: Known, *names: str) -> None:
    for name in names:
        rank(x, name, 1, "should_be_vector")


def _same_lengths(x: Known, *others: str) -> None:
    n = x.shape("segment_ids")[0]
    if "indices" in others and differ(x.shape("indices")[0], n):
        raise refuse("segments_match_indices")
    if "weights" in others and differ(x.shape("weights")[0], n):
        raise refuse("segments_match_weights", value=x.shape("weights")[0], bound=n)


def _rows_shape(x: Known, name: str) -> Shape:
    shape = x.shape(name)
    if not shape:
        raise refuse("grad_rank" if name == "grad" else "data_rank", has=(name,))
    return shape


def _size(x: Known, name: str) -> int | None:
    rank(x, name, 0, "should_be_scalar")
    size: int | None = x.host[name]
    if size is not None and size < 0:
        raise refuse("size_negative", argument=name, value=size, bound=0)
    return size


def _segment_sum(x: Known) -> tuple[Shape, ...]:
    data = x.shape("data")
    if not data:
        raise refuse("input_rank")
    _vectors(x, "segment_ids")
    if differ(data[0], x.shape("segment_ids")[0]):
        raise refuse("segments_match_data", value=x.shape("segment_ids")[0], bound=data[0])
    return ((None, *data[1:]),)


def _gather(x: Known) -> tuple[Shape, ...]:
    _vectors(x, "indices")
    return ((x.shape("indices")[0], *_rows_shape(x, "params")[1:]),)


def _positions(x: Known) -> tuple[Shape, ...]:
    _vectors(x, "sorted_ids", "ids")
    return (x.shape("ids"),)


def _forward(x: Known) -> tuple[Shape, ...]:
    _vectors(x, "indices", "segment_ids", "weights")
    _same_lengths(x, "indices", "weights")
    data = _rows_shape(x, "data")
    rows = _size(x, "num_segments") if "num_segments" in x.avals else None
    return ((rows, *data[1:]),)


def _grad(x: Known) -> tuple[Shape, ...]:
    _vectors(x, "indices", "segment_ids", "weights")
    _same_lengths(x, "indices", "weights")
    shape = (_size(x, "output_dim0"), *_rows_shape(x, "grad")[1:])
    check_elements(shape, wrapped=True)
    return (shape,)


def _grad_rows(x: Known) -> tuple[Shape, ...]:
    _vectors(x, "segment_ids", "weights")
    _same_lengths(x, "weights")
    return ((x.shape("segment_ids")[0], *_rows_shape(x, "grad")[1:]),)


def _dot(x: Known) -> tuple[Shape, ...]:
    _vectors(x, "indices", "segment_ids")
    _same_lengths(x, "indices")
    grad, data = _rows_shape(x, "grad"), _rows_shape(x, "data")
    if len(grad) != len(data) or any(map(differ, grad[1:], data[1:])):
        raise refuse("rows_match", argument="data", value=shape_text(data[1:]), bound=shape_text(grad[1:]))
    return (x.shape("indices"),)


def _gather_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return enumerate(map(int, inputs["indices"]))


def _segment_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return ((int(s), i) for i, s in enumerate(inputs["segment_ids"]))


def _grad_rows_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
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

`segment_ids` are sorted, one per row of `data`; skipped ids give rows of zeros. 16-bit floats round at
every add, as in TensorFlow; the SparseSegment ops do better.""",
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
    _vectors(x, "indices")
    grad = _rows_shape(x, "grad")
    if differ(grad[0], x.shape("indices")[0]):
        raise refuse("lengths_match", argument="indices", value=x.shape("indices")[0], bound=grad[0])
    shape = (_size(x, "num_rows"), *grad[1:])
    check_elements(shape, wrapped=True)
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
    doc="""The rows of `params` named by `indices`, bit for bit.

The gradient is an `IndexedRows` (one row per id, duplicates kept), or with `gradient="dense"` a whole table.""",
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
    rows=lambda inputs: (),
    tensorflow=False,
    doc="""Where each id stands in a list of distinct ascending ids, such as GradV2's `sorted_unique_indices`.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.RowPositions(sorted_ids=[2, 5, 9], ids=[9, 2, 2])
""",
)

declare(
    "SparseSegmentDot",
    "grad: T, data: T, indices: Tidx, segment_ids: Tsegmentids -> output: Tsum",
    types={"T": FLOATS, "Tidx": INDEX, "Tsegmentids": INDEX, "Tsum": ACCUMULATOR_OF},
    kernel="sparse_segment_dot",
    shape=_dot,
    category=CATEGORY,
    differentiable=("grad", "data"),
    linear=("grad",),
    adjoint=lambda ops, c, q: (
        ops["WeightedSparseSegmentSumGradGrad"](c.data, c.indices, c.segment_ids, q, c.grad.shape[0]),
        ops["WeightedSparseSegmentSumGrad"](c.grad, c.indices, c.segment_ids, q, c.data.shape[0]),
    ),
    rows=_grad_rows_pairs,
    tensorflow=False,
    doc="""For every id i the inner product of `grad[segment_ids[i]]` and `data[indices[i]]`.

It is the gradient of a weighted sum for its weights. The order of the sum over columns is written in docs/orders.md;
16-bit floats give a float32 result.""",
    example="""\
import numpy as np, rowgrad as rg
grad = np.array([[1., 2.], [3., 4.]])
data = np.array([[1., 0.], [0., 1.], [1., 1.]])
rg.raw_ops.SparseSegmentDot(grad, data, indices=[0, 2, 1], segment_ids=[0, 0, 1])
""",
)


def _weights_gradient(ops: Any, kind: str, c: Call, grad: Any, data: Any) -> Any:
    """d⟨grad, bag(data, w)⟩ / dw, as a composition, so that it can be differentiated again.

    With a_i = ⟨grad[s_i], data[indices_i]⟩ and W the segment's divisor: a/W − w·Σ(w·a)/W³ for √Σw²,
    a/W − Σ(w·a)/W² for Σw, and a for the plain sum. A divisor of 0 gives 0.
    """
    a = ops["SparseSegmentDot"](grad, data, c.indices, c.segment_ids)
    if kind == "Sum":
        return ops["CastLike"](a, c.weights)
    w = ops["CastLike"](c.weights, a)
    s, n = c.segment_ids, grad.shape[0]
    wa = ops["ScatterRows"](ops["Mul"](w, a), s, n)
    if kind == "Mean":
        total = ops["ScatterRows"](w, s, n)
        pull = ops["GatherRows"](ops["DivNoNan"](ops["DivNoNan"](wa, total), total), s, gradient="dense")
    else:
        total = ops["Sqrt"](ops["ScatterRows"](ops["Mul"](w, w), s, n))
        cubed = ops["DivNoNan"](ops["DivNoNan"](ops["DivNoNan"](wa, total), total), total)
        pull = ops["Mul"](w, ops["GatherRows"](cubed, s, gradient="dense"))
    direct = ops["DivNoNan"](a, ops["GatherRows"](total, s, gradient="dense"))
    return ops["CastLike"](ops["Sub"](direct, pull), c.weights)


def _forward_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        rows = c.data.shape[0]
        if c.attrs.get("sparse_gradient"):
            values = ops[f"WeightedSparseSegment{kind}GradRows"](y, c.segment_ids, c.weights)
            to_data: Any = IndexedRows(values, c.indices, rows)
        else:
            to_data = ops[f"WeightedSparseSegment{kind}Grad"](
                y, c.indices, c.segment_ids, c.weights, rows, accumulate=c.attrs["accumulate"]
            )
        return to_data, _weights_gradient(ops, kind, c, y, c.data)

    return adjoint


def _grad_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    # ⟨C, Grad(g, w)⟩ = ⟨bag(C, w), g⟩: the cotangent takes the place of the data.
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        to_grad = ops[f"WeightedSparseSegment{kind}GradGrad"](y, c.indices, c.segment_ids, c.weights, c.grad.shape[0])
        return to_grad, _weights_gradient(ops, kind, c, c.grad, y)

    return adjoint


def _grad_rows_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        ids = ops["Positions"](c.segment_ids)  # row i of the result belongs to id i
        each = Call({**c.arguments, "indices": ids}, c.attrs, c.outputs)
        to_grad = ops[f"WeightedSparseSegment{kind}GradGrad"](y, ids, c.segment_ids, c.weights, c.grad.shape[0])
        return to_grad, _weights_gradient(ops, kind, each, c.grad, y)

    return adjoint


_EXAMPLE = """\
import numpy as np, rowgrad as rg
table = np.array([[1., 2.], [3., 4.], [5., 6.]])
weights = np.array([1., 3., 2.])
rg.raw_ops.WeightedSparseSegment{kind}{suffix}({args})
"""

for _kind, _reduce in REDUCE.items():
    declare(
        f"WeightedSparseSegment{_kind}",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, weights: Tweights -> output: T",
        types=TYPES,
        kernel="weighted_segment",
        constants=(_reduce, 0),
        shape=_forward,
        category=CATEGORY,
        attrs={"sparse_gradient": False, "accumulate": "float32"},
        choices={"sparse_gradient": (False, True), **_ROUNDING},
        differentiable=("data", "weights"),
        linear=("data",),
        adjoint=_forward_adjoint(_kind),
        rows=forward_pairs,
        tensorflow=False,
        doc=f"""Row s of the output is {TOTAL[_kind]} over the ids of segment s, as TensorFlow's weighted lookups do it.

Segment ids are sorted; a divisor of 0 gives 0. Weights of any float dtype are brought to the accumulator's.
`sparse_gradient=True` gives the gradient for `data` as one row per id; `accumulate` says how a dense gradient in
16 bits adds up: `"float32"`, rounded once, or `"T"`, rounded at every add as TensorFlow does.""",
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
        attrs={"accumulate": "float32"},
        choices=_ROUNDING,
        differentiable=("grad", "weights"),
        linear=("grad",),
        adjoint=_grad_adjoint(_kind),
        rows=gradient_pairs,
        tensorflow=False,
        doc=f"""The gradient of `WeightedSparseSegment{_kind}` for `data`, as a dense table of `output_dim0` rows.

The upstream row is divided by the segment's divisor, then multiplied by the id's weight, then added, in input order.""",
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
        f"WeightedSparseSegment{_kind}GradGrad",
        "data: T, indices: Tidx, segment_ids: Tsegmentids, weights: Tweights, num_segments: host Tnumsegments"
        " -> output: T",
        types={**TYPES, "Tnumsegments": INDEX},
        kernel="weighted_segment",
        constants=(_reduce, 1),
        shape=_forward,
        category=CATEGORY,
        attrs={"accumulate": "float32"},
        choices=_ROUNDING,
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
