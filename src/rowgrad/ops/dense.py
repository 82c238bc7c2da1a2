"""The elementwise ops that gradients of weights and of max_norm are written in."""

from __future__ import annotations

from typing import Any

from ..errors import refuse, shape_text
from ..shape import differ
from ..spec import ACCUMULATOR_OF, FLOATS, INDEX, NUMBERS, Call, Known, Shape, declare

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


def _unary(name: str, adjoint: Any, doc: str, linear: bool = False) -> None:
    declare(
        name,
        "x: T -> output: T",
        types={"T": FLOATS},
        shape=_same("x"),
        category=CATEGORY,
        layer="dense",
        differentiable=("x",),
        linear=("x",) if linear else (),
        adjoint=adjoint,
        doc=doc,
        example=_example(f"rg.dense_ops.{name}(np.array([1., 4., 9.]))"),
    )


def _binary(name: str, adjoint: Any, doc: str, linear: bool = False) -> None:
    declare(
        name,
        "x: T, y: T -> output: T",
        types={"T": FLOATS},
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
_binary("Mul", lambda ops, c, y: (ops["Mul"](y, c.y), ops["Mul"](y, c.x)), "x · y, elementwise.")
_binary("DivNoNan", _div_adjoint, "x / y, elementwise; 0 where y is 0.")
_unary("Neg", lambda ops, c, y: (ops["Neg"](y),), "−x, elementwise.", linear=True)
_unary("Sqrt", _sqrt_adjoint, "The square root, elementwise; its gradient at 0 is 0.")

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


def _scale_rows(x: Known) -> tuple[Shape, ...]:
    rows, scale = x.shape("rows"), x.shape("scale")
    if not rows or len(scale) != 1 or differ(rows[0], scale[0]):
        raise refuse("same_shape", argument="scale", value=shape_text(scale), bound=shape_text(rows[:1]))
    return (rows,)


def _row_dot(x: Known) -> tuple[Shape, ...]:
    return (_same("x", "y")(x)[0][:1],)


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
declare(
    "RowDot",
    "x: T, y: T -> output: Tsum",
    types={"T": FLOATS, "Tsum": ACCUMULATOR_OF},
    kernel="row_dot",
    shape=_row_dot,
    category=CATEGORY,
    differentiable=("x", "y"),
    linear=("x",),
    adjoint=lambda ops, c, q: (ops["ScaleRows"](c.y, q), ops["ScaleRows"](c.x, q)),
    rows=lambda inputs: ((i, i) for i in range(len(inputs["x"]))),
    tensorflow=False,
    doc="The inner product of every row of x with the same row of y, in the order of docs/orders.md.",
    example=_example("rg.raw_ops.RowDot(np.array([[1., 2.], [3., 4.]]), np.array([[1., 1.], [2., 0.]]))"),
)
