"""The elementwise ops that gradients of weights and of max_norm are written in."""

from __future__ import annotations

import math
from typing import Any

from ..errors import refuse, shape_text
from ..shape import differ
from ..spec import ACCUMULATOR_OF, FLOATS, INDEX, NUMBERS, REALS, Call, Known, Shape, declare

CATEGORY = "Dense"


def _same(*names: str) -> Any:
    def rule(x: Known) -> tuple[Shape, ...]:
        first = x.shape(names[0])
        for name in names[1:]:
            shape = x.shape(name)
            if len(shape) != len(first) or any(map(differ, shape, first)):
                raise refuse("same_shape", argument=name, value=shape_text(shape), bound=shape_text(first))
        return (first,)

    return rule


def _example(call: str) -> str:
    return f"import numpy as np, rowgrad as rg\n{call}\n"


def _div_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    to_x = ops["DivNoNan"](y, c.y)
    return to_x, ops["Neg"](ops["Mul"](to_x, ops["DivNoNan"](c.x, c.y)))


def _sqrt_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    root = ops["Sqrt"](c.x)
    return (ops["DivNoNan"](y, ops["Add"](root, root)),)


def _unary(name: str, adjoint: Any, doc: str, types: tuple[str, ...] = FLOATS, **fields: Any) -> None:
    declare(
        name,
        "x: T -> output: T",
        types={"T": types},
        shape=_same("x"),
        category=CATEGORY,
        layer="dense",
        differentiable=("x",),
        adjoint=adjoint,
        doc=doc,
        example=_example(f"rg.dense_ops.{name}(np.array([1., 4., 9.]))"),
        **fields,
    )


def _binary(name: str, adjoint: Any, doc: str, linear: bool = False, types: tuple[str, ...] = NUMBERS) -> None:
    declare(
        name,
        "x: T, y: T -> output: T",
        types={"T": types},
        shape=_same("x", "y"),
        category=CATEGORY,
        layer="dense",
        differentiable=("x", "y"),
        linear=("x", "y") if linear else (),
        adjoint=adjoint,
        doc=doc,
        example=_example(f"rg.dense_ops.{name}(np.array([1., 2., 0.]), np.array([4., 5., 0.]))"),
    )


_binary("Add", lambda ops, c, y: (y, y), "x + y, elementwise.", linear=True)
_binary("Sub", lambda ops, c, y: (y, ops["Neg"](y)), "x − y, elementwise.", linear=True)
_binary("Mul", lambda ops, c, y: (ops["Mul"](y, c.y), ops["Mul"](y, c.x)), "x · y, elementwise.", types=REALS)
_binary("DivNoNan", _div_adjoint, "x / y, elementwise; 0 where y is 0.", types=FLOATS)
_unary("Neg", lambda ops, c, y: (ops["Neg"](y),), "−x, elementwise.", NUMBERS, linear=("x",))
_unary("Sqrt", _sqrt_adjoint, "The square root, elementwise; its gradient at 0 is 0.", kernel="sqrt")

declare(
    "CastLike",
    "x: T, like: Tto -> output: Tto",
    types={"T": NUMBERS, "Tto": NUMBERS},
    shape=lambda x: (x.shape("x"),),
    category=CATEGORY,
    layer="dense",
    differentiable=("x",),
    linear=("x",),
    adjoint=lambda ops, c, y: (ops["CastLike"](y, c.x),),
    tensorflow=False,
    doc="x in the dtype of `like`.",
    example=_example("rg.dense_ops.CastLike(np.array([1.5, 2.5]), like=np.zeros(1, np.float32))"),
)
declare(
    "Positions",
    "ids: Tidx -> output: int64",
    types={"Tidx": INDEX},
    shape=_same("ids"),
    category=CATEGORY,
    layer="dense",
    tensorflow=False,
    doc="0, 1, 2, … as many as there are ids.",
    example=_example("rg.dense_ops.Positions(np.array([7, 7, 9]))"),
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


def _reshape(x: Known) -> tuple[Shape, ...]:
    shape = tuple(x.attrs["shape"])
    given = x.shape("x")
    if None not in given and math.prod(map(int, shape)) != math.prod(d for d in given if d is not None):
        raise refuse("elements_match", argument="x", value=shape_text(given), bound=shape_text(shape))
    return (shape,)


_ROWS: dict[str, Any] = {"category": CATEGORY, "layer": "dense", "tensorflow": False}
declare(
    "MaskRows",
    "rows: T, mask: bool -> output: T",
    types={"T": NUMBERS},
    shape=_mask_rows,
    differentiable=("rows",),
    linear=("rows",),
    adjoint=lambda ops, c, y: (ops["MaskRows"](y, c.mask),),
    doc="The rows, with zeros (whatever stood there, NaN too) where `mask` is true.",
    example=_example("rg.dense_ops.MaskRows(np.array([[1., 2.], [3., 4.]]), np.array([True, False]))"),
    **_ROWS,
)
declare(
    "ConcatRows",
    "x: T, y: T -> output: T",
    types={"T": NUMBERS},
    shape=_concat,
    differentiable=("x", "y"),
    linear=("x", "y"),
    adjoint=lambda ops, c, y: tuple(ops["SplitRows"](y, c.x, c.y)),
    doc="The rows of x, then those of y.",
    example=_example("rg.dense_ops.ConcatRows(np.array([[1., 2.]]), np.array([[3., 4.]]))"),
    **_ROWS,
)
declare(
    "SplitRows",
    "rows: T, x: T, y: T -> first: T, second: T",
    types={"T": NUMBERS},
    shape=_split,
    differentiable=("rows",),
    linear=("rows",),
    adjoint=lambda ops, c, a, b: (ops["ConcatRows"](a, b),),
    doc="The transpose of `ConcatRows`: as many rows as x has, then as many as y.",
    example=_example("rg.dense_ops.SplitRows(np.array([[1., 2.], [3., 4.]]), np.zeros((1, 2)), np.zeros((1, 2)))"),
    **_ROWS,
)
declare(
    "Reshape",
    "x: T -> output: T",
    types={"T": NUMBERS},
    shape=_reshape,
    attrs={"shape": ()},
    differentiable=("x",),
    linear=("x",),
    adjoint=lambda ops, c, y: (ops["Reshape"](y, shape=tuple(c.x.shape)),),
    doc="The same elements in another shape.",
    example=_example("rg.dense_ops.Reshape(np.arange(4.), shape=(2, 2))"),
    **_ROWS,
)
_BOUND: dict[str, Any] = {"types": {"T": FLOATS}, "shape": _same("x"), "attrs": {"bound": 0.0}, **_ROWS}
declare(
    "Maximum",
    "x: T -> output: T",
    differentiable=("x",),
    adjoint=lambda ops, c, y: (ops["Mul"](y, ops["MaskBelow"](c.x, bound=c.attrs["bound"])),),
    doc="The larger of x and the number `bound`; the gradient passes where x >= bound.",
    example=_example("rg.dense_ops.Maximum(np.array([1., 4., 9.]), bound=4.)"),
    **_BOUND,
)
declare(
    "MaskBelow",
    "x: T -> output: T",
    doc="1 where x >= bound, else 0: the slope of `Maximum`, and flat itself.",
    example=_example("rg.dense_ops.MaskBelow(np.array([1., 4., 9.]), bound=4.)"),
    **_BOUND,
)
declare(
    "FullLike",
    "x: T -> output: T",
    types={"T": NUMBERS},
    shape=_same("x"),
    attrs={"value": 0.0},
    doc="The number `value` in the shape and dtype of x; flat.",
    example=_example("rg.dense_ops.FullLike(np.zeros((2, 2)), value=3.)"),
    **_ROWS,
)


def _scale_rows(x: Known) -> tuple[Shape, ...]:
    rows, scale = x.shape("rows"), x.shape("scale")
    if not rows or len(scale) != 1 or differ(rows[0], scale[0]):
        raise refuse("same_shape", argument="scale", value=shape_text(scale), bound=shape_text(rows[:1]))
    return (rows,)


declare(
    "ScaleRows",
    "rows: T, scale: Tsum -> output: T",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    shape=_scale_rows,
    category=CATEGORY,
    layer="dense",
    differentiable=("rows", "scale"),
    linear=("rows",),
    adjoint=lambda ops, c, y: (ops["ScaleRows"](y, c.scale), ops["RowDot"](c.rows, y)),
    tensorflow=False,
    doc="Every row times its own number. Scales of 16-bit rows are float32.",
    example=_example("rg.dense_ops.ScaleRows(np.array([[1., 2.], [3., 4.]]), np.array([10., 100.]))"),
)


def _div_rows_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    to_rows = ops["DivRows"](y, c.by)
    return to_rows, ops["Neg"](ops["RowDot"](to_rows, ops["DivRows"](c.rows, c.by)))


def _div_rows(x: Known) -> tuple[Shape, ...]:
    rows, by = x.shape("rows"), x.shape("by")
    if not rows or len(by) != 1 or differ(rows[0], by[0]):
        raise refuse("same_shape", argument="by", value=shape_text(by), bound=shape_text(rows[:1]))
    return (rows,)


declare(
    "DivRows",
    "rows: T, by: Tsum -> output: T",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    shape=_div_rows,
    differentiable=("rows", "by"),
    linear=("rows",),
    adjoint=_div_rows_adjoint,
    doc="Every row divided by its own number; zeros where that is 0. Divisors of 16-bit rows are float32.",
    example=_example("rg.dense_ops.DivRows(np.array([[1., 2.], [3., 4.]]), np.array([2., 0.]))"),
    **_ROWS,
)
