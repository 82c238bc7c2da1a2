"""Rows with a number each, and bounds: what the gradients of weights and of max_norm are written in."""

from __future__ import annotations

from typing import Any

from ..errors import refuse, shape_text
from ..shape import differ, rank
from ..spec import ACCUMULATOR_OF, FLOATS, INDEX, NUMBERS, Call, Known, Shape
from .broadcasting import check_number, dense

CATEGORY = "Dense rows"


def _positions(x: Known) -> tuple[Shape, ...]:
    rank(x, "ids", 1, "should_be_vector")
    return (x.shape("ids"),)


dense(
    "Positions",
    "ids: Tidx -> output: int64",
    types={"Tidx": INDEX},
    shape=_positions,
    category=CATEGORY,
    tensorflow=False,
    doc="0, 1, 2, … as many as there are ids.",
    example="Positions(np.array([7, 7, 9]))",
)


def _mask_rows(x: Known) -> tuple[Shape, ...]:
    rows, mask = x.shape("rows"), x.shape("mask")
    if not rows or len(mask) != 1 or differ(rows[0], mask[0]):
        raise refuse("same_shape", argument="mask", value=shape_text(mask), bound=shape_text(rows[:1]))
    return (rows,)


def _rows_alike(x: Known, first: str, second: str) -> None:
    a, b = x.shape(first), x.shape(second)
    if not a or len(a) != len(b) or any(map(differ, a[1:], b[1:])):
        raise refuse("rows_match", argument=second, value=shape_text(b[1:]), bound=shape_text(a[1:]))


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
        raise refuse("lengths_match", argument="rows", value=x.shape("rows")[0], bound=total)
    return x.shape("x"), x.shape("y")


_ROWS: dict[str, Any] = {"category": CATEGORY, "tensorflow": False}
dense(
    "MaskRows",
    "rows: T, mask: bool -> output: T",
    types={"T": NUMBERS},
    shape=_mask_rows,
    differentiable=("rows",),
    linear=("rows",),
    adjoint=lambda ops, c, y: (ops["MaskRows"](y, c.mask),),
    doc="The rows, with zeros (whatever stood there, NaN too) where `mask` is true.",
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
    doc="The transpose of `ConcatRows`: as many rows as x has, then as many as y.",
    example="SplitRows(np.array([[1., 2.], [3., 4.]]), np.zeros((1, 2)), np.zeros((1, 2)))",
    **_ROWS,
)


def _bounded(x: Known) -> tuple[Shape, ...]:
    check_number(x, "bound", x.avals["x"].dtype)
    return (x.shape("x"),)


def _at_least_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    """A choice, not a product: where x is below the bound, an infinite or NaN gradient becomes 0 too."""
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
    doc="1 where x >= bound, else 0: the slope of `AtLeast`, and flat itself.",
    example="MaskBelow(np.array([1., 4., 9.]), bound=4.)",
    **_BOUND,
)


def _scale_rows(x: Known) -> tuple[Shape, ...]:
    rows, scale = x.shape("rows"), x.shape("scale")
    if not rows or len(scale) != 1 or differ(rows[0], scale[0]):
        raise refuse("same_shape", argument="scale", value=shape_text(scale), bound=shape_text(rows[:1]))
    return (rows,)


dense(
    "ScaleRows",
    "rows: T, scale: Tsum -> output: T",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    shape=_scale_rows,
    category=CATEGORY,
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
        raise refuse("same_shape", argument="by", value=shape_text(by), bound=shape_text(rows[:1]))
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
