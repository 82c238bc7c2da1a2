"""Functions of one array, element by element."""

from __future__ import annotations

from typing import Any

from ..shape import same
from ..spec import FLOATS, NUMBERS, REALS, Call
from .broadcasting import dense

CATEGORY = "Elementwise"
SIGNED = ("int8", "int16", "int32", "int64")


def _times(slope: Any) -> Any:
    """An adjoint: the upstream gradient times a slope made of ops, the argument and the result."""
    return lambda ops, c, y: (ops["Mul"](y, slope(ops, c.x, c.outputs[0])),)


def _sqrt(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    root = ops["Sqrt"](c.x)
    return (ops["DivNoNan"](y, ops["Add"](root, root)),)


def _sigmoid(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    z = c.outputs[0]
    return (ops["Mul"](ops["Mul"](y, z), ops["Sub"](ops["OnesLike"](z), z)),)


def _log1p(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (ops["RealDiv"](y, ops["Add"](c.x, ops["OnesLike"](c.x))),)


def _rsqrt_slope(ops: Any, x: Any, z: Any) -> Any:
    return ops["Mul"](ops["FullLike"](z, value=-0.5), ops["Mul"](z, ops["Mul"](z, z)))


def _unary(
    name: str,
    adjoint: Any,
    doc: str,
    types: tuple[str, ...] = FLOATS,
    numbers: str = "[1., 4., 9.]",
    **fields: Any,
) -> None:
    dense(
        name,
        "x: T -> y: T",
        types={"T": types},
        shape=same("x"),
        category=CATEGORY,
        differentiable=("x",) if adjoint else (),
        adjoint=adjoint,
        doc=doc,
        example=f"{name}(np.array({numbers}))",
        **fields,
    )


_SOME = "[-1.5, 0., 2.5]"
_unary(
    "Neg",
    lambda ops, c, y: (ops["Neg"](y),),
    "−x, elementwise.",
    NUMBERS,
    linear=("x",),
    aliases=("Negate",),
)
_unary(
    "Abs",
    _times(lambda ops, x, z: ops["Sign"](x)),
    "|x|, elementwise; its gradient at 0 is 0.",
    (*FLOATS, *SIGNED),
    _SOME,
)
_unary("Sign", None, "−1, 0 or 1, by the sign of x; flat.", (*FLOATS, *SIGNED), _SOME)
_unary("Square", _times(lambda ops, x, z: ops["Add"](x, x)), "x², elementwise.", REALS)
_unary("Sqrt", _sqrt, "The square root, elementwise; its gradient at 0 is 0.", kernel="sqrt")
_unary("Rsqrt", _times(_rsqrt_slope), "1 / √x, elementwise.")
_unary(
    "Reciprocal",
    _times(lambda ops, x, z: ops["Neg"](ops["Mul"](z, z))),
    "1 / x, elementwise.",
    aliases=("Inv",),
    unlisted=("T",),
)
_unary("Log", lambda ops, c, y: (ops["RealDiv"](y, c.x),), "The natural logarithm, elementwise.")
_unary("Log1p", _log1p, "log(1 + x), elementwise, exact for small x.")
_unary("Exp", _times(lambda ops, x, z: z), "e to the power x, elementwise.", FLOATS, _SOME)
_unary("Expm1", _times(lambda ops, x, z: ops["Exp"](x)), "exp(x) − 1, elementwise, exact for small x.", FLOATS, _SOME)
_unary("Sin", _times(lambda ops, x, z: ops["Cos"](x)), "The sine, elementwise.", FLOATS, _SOME)
_unary("Cos", _times(lambda ops, x, z: ops["Neg"](ops["Sin"](x))), "The cosine, elementwise.", FLOATS, _SOME)
_unary(
    "Sigmoid",
    _sigmoid,
    "1 / (1 + exp(−x)), elementwise.",
    FLOATS,
    _SOME,
)
_unary(
    "Tanh",
    _times(lambda ops, x, z: ops["Sub"](ops["OnesLike"](z), ops["Mul"](z, z))),
    "The hyperbolic tangent, elementwise.",
    FLOATS,
    _SOME,
)
_unary(
    "Softplus",
    _times(lambda ops, x, z: ops["Sigmoid"](x)),
    "log(1 + exp(x)), elementwise; neither end overflows.",
    FLOATS,
    _SOME,
)
_unary("Floor", None, "x rounded down, elementwise; flat.", FLOATS, _SOME)
_unary("Ceil", None, "x rounded up, elementwise; flat.", FLOATS, _SOME)
_unary("Round", None, "x rounded to the nearest whole number, halves to the even one; flat.", (*FLOATS, *SIGNED), _SOME)
dense(
    "Relu",
    "features: T -> activations: T",
    types={"T": REALS},
    shape=same("features"),
    category=CATEGORY,
    differentiable=("features",),
    adjoint=lambda ops, c, y: (ops["ReluGrad"](y, c.features),),
    doc="The larger of x and 0, elementwise; its gradient at 0 is 0.",
    example="Relu(np.array([-1., 0., 2.]))",
)
dense(
    "ReluGrad",
    "gradients: T, features: T -> backprops: T",
    types={"T": REALS},
    shape=same("gradients", "features"),
    category=CATEGORY,
    differentiable=("gradients",),
    linear=("gradients",),
    adjoint=lambda ops, c, y: (ops["ReluGrad"](y, c.features),),
    doc="The gradient of `Relu`: `gradients` times 1 where a feature is positive, else times 0.",
    example="ReluGrad(np.array([1., 2., 3.]), np.array([-1., 0., 2.]))",
)
