"""Arithmetic of two arrays, which broadcast, and the sum of many."""

from __future__ import annotations

from typing import Any

from ..shape import check_same
from ..spec import FLOATS, NUMBERS, REALS, Call, Known, Shape
from .broadcasting import CATEGORY, broadcasting, dense, summed

SIGNED = ("int8", "int16", "int32", "int64")


def _both(ops: Any, c: Call, to_x: Any, to_y: Any) -> tuple[Any, Any]:
    """The two gradients, each made only if it is asked for, in the shapes of x and y."""
    return (
        summed(ops, to_x(), c.x) if c.wants("x") else None,
        summed(ops, to_y(), c.y) if c.wants("y") else None,
    )


def _add(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _both(ops, c, lambda: z, lambda: z)


def _sub(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _both(ops, c, lambda: z, lambda: ops["Neg"](z))


def _mul(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _both(ops, c, lambda: ops["Mul"](z, c.y), lambda: ops["Mul"](z, c.x))


def _quotient(ops: Any, c: Call, z: Any, divide: Any) -> tuple[Any, ...]:
    """In TensorFlow's order: z comes last, so that z / y cannot overflow where the product does not."""
    return _both(ops, c, lambda: divide(z, c.y), lambda: ops["Mul"](z, divide(divide(ops["Neg"](c.x), c.y), c.y)))


def _div(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _quotient(ops, c, z, ops["RealDiv"])


def _div_no_nan(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _quotient(ops, c, z, ops["DivNoNan"])


def _mod(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    """x − q · y with a whole number q that does not change nearby."""

    def to_y() -> Any:
        q = ops["Round"](ops["RealDiv"](ops["Sub"](c.x, c.outputs[0]), c.y))
        return ops["Neg"](ops["Mul"](z, q))

    return _both(ops, c, lambda: z, to_y)


def _floor_mod(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _both(ops, c, lambda: z, lambda: ops["Mul"](z, ops["Neg"](ops["FloorDiv"](c.x, c.y))))


def _pow(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    def to_x() -> Any:
        # 0 where y is 0, also where 1 / x is not finite. Elsewhere the slope depends on y, whose derivative is 1 / x.
        inverse = ops["RealDiv"](ops["OnesLike"](c.x), c.x)
        is_finite = ops["Equal"](ops["Sub"](inverse, inverse), ops["ZerosLike"](inverse))
        is_zero = ops["Equal"](c.y, ops["ZerosLike"](c.y))
        flat = ops["LogicalAnd"](is_zero, ops["LogicalNot"](is_finite))
        base = ops["Select"](flat, ops["OnesLike"](c.x), c.x)
        slope = ops["Mul"](c.y, ops["Pow"](base, ops["Sub"](c.y, ops["OnesLike"](c.y))))
        return ops["Mul"](z, ops["Select"](flat, ops["ZerosLike"](slope), slope))

    def to_y() -> Any:
        positive = ops["Greater"](c.x, ops["ZerosLike"](c.x))
        log = ops["Log"](ops["Select"](positive, c.x, ops["OnesLike"](c.x)))  # 0 where there is none
        return ops["Mul"](z, ops["Mul"](ops["Pow"](c.x, c.y), log))

    return _both(ops, c, to_x, to_y)


def _extreme(first: str) -> Any:
    def adjoint(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
        mask, zeros = ops[first](c.x, c.y), ops["ZerosLike"](z)
        return _both(ops, c, lambda: ops["Select"](mask, z, zeros), lambda: ops["Select"](mask, zeros, z))

    return adjoint


def _squared_difference(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    difference = ops["Sub"](c.x, c.y)
    to_x = ops["Mul"](z, ops["Add"](difference, difference))
    return _both(ops, c, lambda: to_x, lambda: ops["Neg"](to_x))


def _binary(
    name: str,
    adjoint: Any,
    doc: str,
    types: tuple[str, ...] = REALS,
    numbers: str = "np.array([1., 2., 0.]), np.array([4., 5., 0.])",
    **fields: Any,
) -> None:
    fields = {"differentiable": ("x", "y") if adjoint else (), **fields}
    dense(
        name,
        "x: T, y: T -> z: T",
        types={"T": types},
        shape=broadcasting("x", "y"),
        category=CATEGORY,
        adjoint=adjoint,
        doc=doc,
        example=f"{name}({numbers})",
        **fields,
    )


_LINEAR: dict[str, Any] = {"linear": ("x", "y")}
_WHOLE = "np.array([7., -7., 7.]), np.array([2., 2., -2.])"
_ZERO = "An integer divided by 0 is refused."
_binary("Add", _add, "x + y, elementwise; the arrays broadcast.", NUMBERS, aliases=("AddV2",), **_LINEAR)
_binary("Sub", _sub, "x − y, elementwise; the arrays broadcast.", NUMBERS, aliases=("Subtract",), **_LINEAR)
_binary("Mul", _mul, "x · y, elementwise; the arrays broadcast.", aliases=("Multiply",))
_binary(
    "Div",
    _div,
    f"x / y, elementwise; the arrays broadcast.\n\nIntegers are rounded towards zero. {_ZERO}",
    REALS,
    _WHOLE,
)
_binary(
    "RealDiv",
    _div,
    "x / y, elementwise; the arrays broadcast.",
    FLOATS,
    "np.array([1., 2.]), np.array([4., 5.])",
    unlisted=("T",),
)
_binary("DivNoNan", _div_no_nan, "x / y, elementwise; 0 where y is 0. The arrays broadcast.", FLOATS)
_binary(
    "Mod",
    _mod,
    f"What is left of x after division by y towards zero: it has the sign of x.\n\nThe arrays broadcast. {_ZERO}",
    (*FLOATS, "int32", "int64"),
    _WHOLE,
    aliases=("TruncateMod",),
)
_binary(
    "FloorMod",
    _floor_mod,
    f"What is left of x after division by y rounded down: it has the sign of y.\n\nThe arrays broadcast. {_ZERO}",
    REALS,
    _WHOLE,
)
_binary("FloorDiv", None, f"x / y rounded down, elementwise; the arrays broadcast.\n\n{_ZERO}", REALS, _WHOLE)
_binary(
    "Pow",
    _pow,
    "x to the power y, elementwise; the arrays broadcast.\n\nThe gradient for y is 0 where x is not positive, but NaN"
    " where the power is. Integers have no negative powers: those are refused.",
    (*FLOATS, *SIGNED),
    "np.array([1., 2., 3.]), np.array([2., 3., .5])",
)
_binary(
    "Maximum",
    _extreme("GreaterEqual"),
    "The larger of x and y, elementwise; the arrays broadcast.\n\nOf equals, x has the gradient; NaN is above all.",
)
_binary(
    "Minimum",
    _extreme("LessEqual"),
    "The smaller of x and y, elementwise; the arrays broadcast.\n\nOf equals, x has the gradient; NaN is below all.",
)
_binary(
    "SquaredDifference",
    _squared_difference,
    "(x − y)², elementwise; the arrays broadcast.",
    (*FLOATS, "int32", "int64"),
)


def _alike(x: Known) -> tuple[Shape, ...]:
    first, *others = x.shapes("inputs")
    for k, shape in enumerate(others, 1):
        check_same(shape, first, f"inputs[{k}]")
    return (first,)


dense(
    "AddN",
    "inputs: list T -> sum: T",
    types={"T": NUMBERS},
    shape=_alike,
    category=CATEGORY,
    differentiable=("inputs",),
    linear=("inputs",),
    adjoint=lambda ops, c, y: ([y] * len(c.inputs),),
    doc="The sum of arrays of one shape, added in their order.\n\n16-bit floats are added in float32 and rounded once.",
    example="AddN([np.array([1., 2.]), np.array([3., 4.]), np.array([5., 6.])])",
)
