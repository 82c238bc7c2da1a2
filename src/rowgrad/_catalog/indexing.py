"""Indexing, one-hot and where; shapes and ranges; per-row scaling and clipping."""

from __future__ import annotations

from math import prod
from typing import Any

from ..errors import make_error, shape_text
from .elementwise import check_number, dense, sizes, summed
from .shapes import axis_in, check_dimensions, check_elements, differ, rank, scalar, size, vector
from .spec import ACCUMULATOR_OF, ALL_DTYPES, EVERYTHING, FLOATS, INDEX, NUMBERS, Call, Known, Shape

# -- Indexing, one-hot and where --------------------------------------------------------------------------------------

CATEGORY = "Picking"


def _gather(x: Known) -> tuple[Shape, ...]:
    params = x.shape("params")
    if not params:
        raise make_error("data_rank", argument="params")
    return ((*x.shape("indices"), *params[1:]),)


def _gather_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    indices, dims = c.indices, len(c.indices.shape)
    if dims != 1:
        indices, y = ops["MergeDims"](indices, count=dims), ops["MergeDims"](y, count=dims)
    return (ops["ScatterRows"](y, indices, c.params.shape[0]),)


dense(
    "Gather",
    "params: T, indices: Tidx -> output: T",
    types={"T": EVERYTHING, "Tidx": INDEX},
    shape=_gather,
    category=CATEGORY,
    differentiable=("params",),
    linear=("params",),
    adjoint=_gather_adjoint,
    aliases=("GatherV2",),
    doc="""Rows of `params` by index; `indices` may have any shape.

The gradient sums the rows of equal indices in input order.""",
    example="Gather(np.array([[1., 2.], [3., 4.]]), np.array([[1, 0], [1, 1]]))",
)


def _one_hot(x: Known) -> tuple[Shape, ...]:
    shape, depth = x.shape("indices"), size(x, "depth")
    for name in ("on_value", "off_value"):
        rank(x, name, 0, "should_be_scalar")
    axis = x.attrs["axis"]
    if not -1 <= axis <= len(shape):
        raise make_error("one_hot_axis", argument="axis", value=axis, bound=len(shape) + 1)
    at = len(shape) if axis == -1 else axis
    return ((*shape[:at], depth, *shape[at:]),)


def _one_hot_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    zero, one = ops["ZerosLike"](c.on_value), ops["OnesLike"](c.on_value)

    def share(on: Any, off: Any) -> Any:
        return ops["Mul"](y, ops["OneHot"](c.indices, c.depth, on, off, axis=c.attrs["axis"]))

    return (
        summed(ops, share(one, zero), c.on_value) if c.wants("on_value") else None,
        summed(ops, share(zero, one), c.off_value) if c.wants("off_value") else None,
    )


dense(
    "OneHot",
    "indices: TI, depth: host int32, on_value: T, off_value: T -> output: T",
    types={"TI": ("uint8", "int8", "int32", "int64"), "T": (*NUMBERS, "bool")},
    attrs={"axis": -1},
    shape=_one_hot,
    category=CATEGORY,
    differentiable=("on_value", "off_value"),
    linear=("on_value", "off_value"),
    adjoint=_one_hot_adjoint,
    doc="""`on_value` at the index, `off_value` elsewhere, along a new dimension.

The new dimension has size `depth` and is inserted at position `axis`; −1 is after the last. For an index outside of
[0, depth) all values are `off_value`.""",
    example="OneHot(np.array([1, -1]), 3, 1., 0.)",
)


def _index_count(x: Known, name: str) -> tuple[int | None, int | None]:
    """Return the number of sparse indices, and of the entries of each; None if unknown."""
    shape = x.shape(name)
    if len(shape) > 2:
        raise make_error("scalar_to_matrix", argument=name, shape=shape_text(shape))
    return (shape[0] if shape else 1), (shape[1] if len(shape) == 2 else 1)


def _check_sparse_values(x: Known, dims: int | None, array: str | None = None) -> None:
    """Check indices and values for a result of so many dimensions, those of the argument `array` if it is given."""
    count, entries = _index_count(x, "sparse_indices")
    if differ(entries, dims):
        if array is not None:
            raise make_error("rank_exactly", argument=array, value=shape_text(x.shape(array)), bound=entries)
        raise make_error("sparse_dims", argument="output_shape", value=dims, bound=entries)
    values = x.shape("sparse_values")
    if values and (len(values) != 1 or differ(values[0], count)):
        raise make_error("sparse_values_shape", argument="sparse_values", value=shape_text(values), bound=count)


def _sparse_to_dense(x: Known) -> tuple[Shape, ...]:
    rank(x, "output_shape", 1, "rank_1_shape")
    dims = x.shape("output_shape")[0]
    _check_sparse_values(x, dims)
    rank(x, "default_value", 0, "should_be_scalar")
    values = vector(x, "output_shape")
    if values is not None:
        check_dimensions(tuple(values), "output_shape")
        return (tuple(values),)
    if dims is None:
        raise make_error("axis_unknown", argument="output_shape")
    return ((None,) * dims,)


def _sparse_to_dense_like(x: Known) -> tuple[Shape, ...]:
    _check_sparse_values(x, len(x.shape("like")), "like")
    rank(x, "default_value", 0, "should_be_scalar")
    return (x.shape("like"),)


def _sparse_to_dense_grad(x: Known) -> tuple[Shape, ...]:
    _check_sparse_values(x, len(x.shape("grad")), "grad")
    return x.shape("sparse_values"), ()


def _written(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return tuple(ops["SparseToDenseGrad"](c.sparse_indices, c.sparse_values, y))


def _written_back(ops: Any, c: Call, values: Any, default: Any) -> tuple[Any, ...]:
    if values is None:
        values = ops["ZerosLike"](c.sparse_values)
    if default is None:
        default = ops["ZerosLike"](c.outputs[1])
    return (ops["SparseToDenseLike"](c.sparse_indices, c.grad, values, default),)


_SPARSE: dict[str, Any] = {"category": CATEGORY, "differentiable": ("sparse_values", "default_value")}
dense(
    "SparseToDense",
    "sparse_indices: Tindices, output_shape: host Tshape, sparse_values: T, default_value: T -> dense: T",
    types={"Tindices": INDEX, "Tshape": INDEX, "T": EVERYTHING},
    attrs={"validate_indices": True},
    choices={"validate_indices": (False, True)},
    shape=_sparse_to_dense,
    linear=("sparse_values", "default_value"),
    adjoint=_written,
    doc="""An array of `output_shape` with `sparse_values` at `sparse_indices`, and `default_value` elsewhere.

`sparse_indices` has a row per value; for a vector as result it may be a vector, for one value a scalar.
`sparse_values` has one value per index, or is a scalar for all of them. Indices must be sorted and unique; without
`validate_indices` they need not be, and of equal ones the last is written.""",
    example="SparseToDense(np.array([[0, 1], [1, 0]]), [2, 2], np.array([5., 6.]), 0.)",
    **_SPARSE,
)
dense(
    "SparseToDenseLike",
    "sparse_indices: Tindices, like: T, sparse_values: T, default_value: T -> dense: T",
    types={"Tindices": INDEX, "T": NUMBERS},
    shape=_sparse_to_dense_like,
    linear=("sparse_values", "default_value"),
    adjoint=_written,
    tensorflow=False,
    doc="`SparseToDense` with the shape of `like` and any order of indices, for gradients.",
    example="SparseToDenseLike(np.array([2, 0]), np.ones(4), np.array([5., 6.]), 0.)",
    **_SPARSE,
)
dense(
    "SparseToDenseGrad",
    "sparse_indices: Tindices, sparse_values: T, grad: T -> d_values: T, d_default_value: T",
    types={"Tindices": INDEX, "T": NUMBERS},
    shape=_sparse_to_dense_grad,
    differentiable=("grad",),
    linear=("grad",),
    adjoint=_written_back,
    category=CATEGORY,
    tensorflow=False,
    doc="""The gradient of `SparseToDense`: `grad` at the indices, and the sum of all else.

Of equal indices, the last has the gradient. It reads only the shape of `sparse_values`.""",
    example="SparseToDenseGrad(np.array([2, 0]), np.ones(2), np.array([1., 2., 3., 4.]))",
)
dense(
    "Where",
    "condition: bool -> index: int64",
    types={},
    shape=lambda x: ((None, len(x.shape("condition"))),),
    category=CATEGORY,
    doc="The coordinates of true elements, one row each, in row-major order.",
    example="Where(np.array([[True, False], [True, True]]))",
)


def _vector(x: Known) -> tuple[Shape, ...]:
    rank(x, "mask", 1, "must_be_vector")
    return ((None,),)


dense(
    "Flatnonzero",
    "mask: bool -> positions: int64",
    types={},
    shape=_vector,
    category=CATEGORY,
    tensorflow=False,
    doc="The positions of true elements in a vector, ascending.",
    example="Flatnonzero(np.array([True, False, True]))",
)


# -- Shapes, fills and ranges -----------------------------------------------------------------------------------------

SIZES_CATEGORY = "Sizes"
_ANY = {"T": ALL_DTYPES}
_OUT: dict[str, Any] = {"attrs": {"out_type": "int32"}, "choices": {"out_type": INDEX}}


def _check_fits(x: Known, count: int | None) -> None:
    """Raise unless a number fits the dtype of the result."""
    if x.attrs["out_type"] == "int32" and isinstance(count, int) and count >= 1 << 31:
        raise make_error("out_type_too_narrow", argument="input", value=count, bound="int32")


def _sizes(x: Known) -> tuple[Shape, ...]:
    for n in x.shape("input"):
        _check_fits(x, n)
    return ((len(x.shape("input")),),)


def _count(x: Known) -> tuple[Shape, ...]:
    shape = x.shape("input")
    if all(isinstance(n, int) for n in shape):
        _check_fits(x, prod(n for n in shape if n is not None))
    return ((),)


dense(
    "Shape",
    "input: T -> output: out_type",
    types=_ANY,
    shape=_sizes,
    category=SIZES_CATEGORY,
    doc="The size of every dimension.",
    example="Shape(np.zeros((2, 3)))",
    **_OUT,
)
dense(
    "Size",
    "input: T -> output: out_type",
    types=_ANY,
    shape=_count,
    category=SIZES_CATEGORY,
    doc="The number of elements.",
    example="Size(np.zeros((2, 3)))",
    **_OUT,
)
dense(
    "Rank",
    "input: T -> output: int32",
    types=_ANY,
    shape=lambda x: ((),),
    category=SIZES_CATEGORY,
    doc="The number of dimensions.",
    example="Rank(np.zeros((2, 3)))",
)


def _dimension(x: Known) -> tuple[Shape, ...]:
    axis_in(x.attrs["axis"], len(x.shape("x")), "axis")
    return ((),)


dense(
    "Dimension",
    "x: T -> output: int64",
    types=_ANY,
    attrs={"axis": 0},
    shape=_dimension,
    category=SIZES_CATEGORY,
    tensorflow=False,
    doc="The size of one dimension.",
    example="Dimension(np.zeros((2, 3)), axis=1)",
)


def _fill(x: Known) -> tuple[Shape, ...]:
    dims, count = sizes(x, "dims")
    rank(x, "value", 0, "should_be_scalar")
    if dims is None:
        return ((None,) * count,)
    for i, n in enumerate(dims):
        if n < 0:
            raise make_error("size_negative", argument="dims", position=i, value=n, bound=0)
    check_elements(dims)
    return (dims,)


def _fill_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (summed(ops, y, c.value),)


dense(
    "Fill",
    "dims: host Tdims, value: T -> output: T",
    types={"Tdims": INDEX, "T": EVERYTHING},
    shape=_fill,
    category=SIZES_CATEGORY,
    differentiable=("value",),
    linear=("value",),
    adjoint=_fill_adjoint,
    doc="An array of shape `dims` filled with one value; a single size means a vector.",
    example="Fill([2, 2], 7.)",
)


def _range(x: Known) -> tuple[Shape, ...]:
    start, limit, delta = (scalar(x, name) for name in ("start", "limit", "delta"))
    if delta == 0:
        raise make_error("range_endless", argument="delta", value=0)
    if start is None or limit is None or delta is None:
        return ((None,),)
    if (limit - start) * delta < 0:
        raise make_error("range_backwards", argument="delta", value=start, bound=limit, result=delta)
    return (((limit - start + delta - (1 if delta > 0 else -1)) // delta,),)


dense(
    "Range",
    "start: host Tidx, limit: host Tidx, delta: host Tidx -> output: Tidx",
    types={"Tidx": INDEX},
    shape=_range,
    category=SIZES_CATEGORY,
    doc="`start`, `start` + `delta`, … up to but excluding `limit`.",
    example="Range(3, 18, 5)",
)


# -- Per-row scaling and clipping, for the gradients of weights and of max_norm ---------------------------------------

DENSE_ROWS_CATEGORY = "Dense rows"


def _positions(x: Known) -> tuple[Shape, ...]:
    rank(x, "ids", 1, "should_be_vector")
    return (x.shape("ids"),)


dense(
    "Positions",
    "ids: Tidx -> output: int64",
    types={"Tidx": INDEX},
    shape=_positions,
    category=DENSE_ROWS_CATEGORY,
    tensorflow=False,
    doc="0, 1, 2, …: the position of each id.",
    example="Positions(np.array([7, 7, 9]))",
)


def _mask_rows(x: Known) -> tuple[Shape, ...]:
    rows, mask = x.shape("rows"), x.shape("mask")
    if not rows or len(mask) != 1 or differ(rows[0], mask[0]):
        raise make_error("same_shape", argument="mask", value=shape_text(mask), bound=shape_text(rows[:1]))
    return (rows,)


def _rows_alike(x: Known, first: str, second: str) -> None:
    a, b = x.shape(first), x.shape(second)
    if not a or len(a) != len(b) or any(map(differ, a[1:], b[1:])):
        raise make_error("rows_match", argument=second, value=shape_text(b[1:]), bound=shape_text(a[1:]))


def _total(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _concat(x: Known) -> tuple[Shape, ...]:
    _rows_alike(x, "x", "y")
    return ((_total(x.shape("x")[0], x.shape("y")[0]), *x.shape("x")[1:]),)


def _split(x: Known) -> tuple[Shape, ...]:
    _rows_alike(x, "rows", "x")
    _rows_alike(x, "rows", "y")
    total = _total(x.shape("x")[0], x.shape("y")[0])
    if differ(total, x.shape("rows")[0]):
        raise make_error("lengths_match", argument="rows", value=x.shape("rows")[0], bound=total)
    return x.shape("x"), x.shape("y")


_ROWS: dict[str, Any] = {"category": DENSE_ROWS_CATEGORY, "tensorflow": False}
dense(
    "MaskRows",
    "rows: T, mask: bool -> output: T",
    types={"T": NUMBERS},
    shape=_mask_rows,
    differentiable=("rows",),
    linear=("rows",),
    adjoint=lambda ops, c, y: (ops["MaskRows"](y, c.mask),),
    doc="The rows, with zeros where `mask` is true, even in place of NaN.",
    example="MaskRows(np.array([[1., 2.], [3., 4.]]), np.array([True, False]))",
    **_ROWS,
)
dense(
    "ConcatRows",
    "x: T, y: T -> output: T",
    types={"T": NUMBERS},
    shape=_concat,
    differentiable=("x", "y"),
    linear=("x", "y"),
    adjoint=lambda ops, c, y: tuple(ops["SplitRows"](y, c.x, c.y)),
    doc="The rows of x, then those of y.",
    example="ConcatRows(np.array([[1., 2.]]), np.array([[3., 4.]]))",
    **_ROWS,
)
dense(
    "SplitRows",
    "rows: T, x: T, y: T -> first: T, second: T",
    types={"T": NUMBERS},
    shape=_split,
    differentiable=("rows",),
    linear=("rows",),
    adjoint=lambda ops, c, a, b: (ops["ConcatRows"](a, b),),
    doc="The transpose of `ConcatRows`: the first rows, as many as x has, and the others, as many as y has.",
    example="SplitRows(np.array([[1., 2.], [3., 4.]]), np.zeros((1, 2)), np.zeros((1, 2)))",
    **_ROWS,
)


def _bounded(x: Known) -> tuple[Shape, ...]:
    check_number(x, "bound", x.avals["x"].dtype)
    return (x.shape("x"),)


def _at_least_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    """Select instead of multiply: where x is below the bound, an infinite or NaN gradient becomes 0 too."""
    passes = ops["GreaterEqual"](c.x, ops["FullLike"](c.x, value=c.attrs["bound"]))
    return (ops["Select"](passes, y, ops["ZerosLike"](y)),)


_BOUND: dict[str, Any] = {"types": {"T": FLOATS}, "shape": _bounded, "attrs": {"bound": 0.0}, **_ROWS}
dense(
    "AtLeast",
    "x: T -> output: T",
    differentiable=("x",),
    adjoint=_at_least_adjoint,
    doc="The larger of x and the number `bound`; the gradient passes where x >= bound.",
    example="AtLeast(np.array([1., 4., 9.]), bound=4.)",
    **_BOUND,
)
dense(
    "MaskBelow",
    "x: T -> output: T",
    doc="1 where x >= bound, else 0: the derivative of `AtLeast`. It has no gradient itself.",
    example="MaskBelow(np.array([1., 4., 9.]), bound=4.)",
    **_BOUND,
)


def _scale_rows(x: Known) -> tuple[Shape, ...]:
    rows, scale = x.shape("rows"), x.shape("scale")
    if not rows or len(scale) != 1 or differ(rows[0], scale[0]):
        raise make_error("same_shape", argument="scale", value=shape_text(scale), bound=shape_text(rows[:1]))
    return (rows,)


dense(
    "ScaleRows",
    "rows: T, scale: Tsum -> output: T",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    shape=_scale_rows,
    category=DENSE_ROWS_CATEGORY,
    differentiable=("rows", "scale"),
    linear=("rows",),
    adjoint=lambda ops, c, y: (ops["ScaleRows"](y, c.scale), ops["RowDot"](c.rows, y)),
    tensorflow=False,
    doc="Every row times its own number. Scales of 16-bit rows are float32.",
    example="ScaleRows(np.array([[1., 2.], [3., 4.]]), np.array([10., 100.]))",
)


def _div_rows_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    to_rows = ops["DivRows"](y, c.by)
    return to_rows, ops["Neg"](ops["RowDot"](to_rows, ops["DivRows"](c.rows, c.by)))


def _div_rows(x: Known) -> tuple[Shape, ...]:
    rows, by = x.shape("rows"), x.shape("by")
    if not rows or len(by) != 1 or differ(rows[0], by[0]):
        raise make_error("same_shape", argument="by", value=shape_text(by), bound=shape_text(rows[:1]))
    return (rows,)


dense(
    "DivRows",
    "rows: T, by: Tsum -> output: T",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    shape=_div_rows,
    differentiable=("rows", "by"),
    linear=("rows",),
    adjoint=_div_rows_adjoint,
    doc="Every row divided by its own number; zeros where that is 0. Divisors of 16-bit rows are float32.",
    example="DivRows(np.array([[1., 2.], [3., 4.]]), np.array([2., 0.]))",
    **_ROWS,
)
