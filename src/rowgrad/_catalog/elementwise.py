"""Elementwise ops: broadcasting arithmetic, unary functions, comparisons and dtype conversions."""

from __future__ import annotations

import numbers
from typing import Any

from ..errors import make_error
from .kernels import kernel
from .shapes import broadcast, check_broadcasts_to, check_same, same, scalar, vector
from .spec import ALL_DTYPES, EVERYTHING, FLOATS, NUMBERS, REALS, Call, Known, Op, Shape, declare, value_text

# -- Broadcasting, its transpose, and shared helpers ------------------------------------------------------------------

CATEGORY = "Arithmetic"


def example(call: str) -> str:
    """Return the lines of an example that ends in a call of `rowgrad.dense_ops`."""
    return f"import numpy as np, rowgrad as rg\nrg.dense_ops.{call}\n"


def dense(name: str, signature: str, **fields: Any) -> Op:
    """Declare a dense op; its example is a call."""
    fields["example"] = example(fields["example"])
    return declare(name, signature, layer="dense", **fields)


def broadcasting(*names: str) -> Any:
    """Return a shape rule: all these arguments broadcast to one shape."""

    def rule(x: Known) -> tuple[Shape, ...]:
        shape = x.shape(names[0])
        for name in names[1:]:
            shape = broadcast(shape, x.shape(name), name)
        return (shape,)

    return rule


def sizes(x: Known, name: str) -> tuple[tuple[int, ...] | None, int]:
    """Return the sizes in a host vector or scalar, if known, and their number."""
    if not x.shape(name):
        value = scalar(x, name)
        return None if value is None else (value,), 1
    values, count = vector(x, name), x.shape(name)[0]
    if count is None:
        raise make_error("axis_unknown", argument=name)
    return values, count


_LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": (2 - 2.0**-52) * 2.0**1023,
}
_PARTS = {"complex64": "float32", "complex128": "float64"}


def check_number(x: Known, name: str, dtype: str) -> None:
    """Raise unless an attribute is a number that fits a dtype; floats may be rounded."""
    value = x.attrs[name]
    if isinstance(value, numbers.Complex) and _fits(dtype, value):
        return
    raise make_error("number_unfit", argument=name, value=value_text(value), bound=_range_text(dtype))


def _fits(dtype: str, value: Any) -> bool:
    """Return whether a number fits a dtype; NaN and infinities fit floats only."""
    if dtype in _PARTS:
        return all(_fits(_PARTS[dtype], part) for part in (value.real, value.imag))
    is_real = isinstance(value, numbers.Real)
    if not is_real:
        return False
    if dtype in _LARGEST:
        return not _LARGEST[dtype] < abs(value) < float("inf")
    low, high = _ends(dtype)
    return bool(low <= value <= high and value % 1 == 0)


def _ends(dtype: str) -> tuple[int, int]:
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _range_text(dtype: str) -> str:
    if dtype in _PARTS:
        return f"a number whose parts fit {_PARTS[dtype]}"
    if dtype in _LARGEST:
        return f"a number that fits {dtype}, at most {_LARGEST[dtype]:.9g}"
    low, high = _ends(dtype)
    return f"an integer that fits {dtype}, in [{low}, {high}]"


def summed(ops: Any, y: Any, x: Any) -> Any:
    """Return the gradient of a broadcast argument: y summed over the repeated dimensions."""
    shapes = [s for s in (getattr(a, "shape", None) for a in (y, x)) if s is not None and None not in s]
    if len(shapes) == 2 and tuple(shapes[0]) == tuple(shapes[1]):
        return y
    return ops["SumLike"](y, x)


def _sum_like(x: Known) -> tuple[Shape, ...]:
    check_broadcasts_to(x.shape("like"), x.shape("x"), "like")
    return (x.shape("like"),)


def _broadcast_like(x: Known) -> tuple[Shape, ...]:
    check_broadcasts_to(x.shape("x"), x.shape("like"), "x")
    return (x.shape("like"),)


_LIKE: dict[str, Any] = {
    "types": {"T": NUMBERS},
    "category": CATEGORY,
    "differentiable": ("x",),
    "linear": ("x",),
    "tensorflow": False,
}
dense(
    "SumLike",
    "x: T, like: T -> output: T",
    shape=_sum_like,
    adjoint=lambda ops, c, y: (ops["BroadcastLike"](y, c.x),),
    doc="""x summed to the shape of `like`, which broadcasts to the shape of x: the transpose of `BroadcastLike`.

16-bit floats are summed in float32 and rounded once.""",
    example="SumLike(np.array([[1., 2.], [3., 4.]]), like=np.zeros(2))",
    **_LIKE,
)
dense(
    "BroadcastLike",
    "x: T, like: T -> output: T",
    shape=_broadcast_like,
    adjoint=lambda ops, c, y: (ops["SumLike"](y, c.x),),
    doc="x broadcast to the shape of `like`.",
    example="BroadcastLike(np.array([1., 2.]), like=np.zeros((2, 2)))",
    **_LIKE,
)


# -- Binary arithmetic and AddN ---------------------------------------------------------------------------------------

SIGNED = ("int8", "int16", "int32", "int64")


def _both(ops: Any, c: Call, to_x: Any, to_y: Any) -> tuple[Any, Any]:
    """Return the two gradients in the shapes of x and y, each computed only if requested."""
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
    """Multiply in TensorFlow's order: z last, so that z / y cannot overflow if the product does not."""
    return _both(ops, c, lambda: divide(z, c.y), lambda: ops["Mul"](z, divide(divide(ops["Neg"](c.x), c.y), c.y)))


def _div(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _quotient(ops, c, z, ops["RealDiv"])


def _div_no_nan(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    return _quotient(ops, c, z, ops["DivNoNan"])


def _mod(ops: Any, c: Call, z: Any) -> tuple[Any, ...]:
    """Return the adjoint of x − q · y with a locally constant integer q."""

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
        log = ops["Log"](ops["Select"](positive, c.x, ops["OnesLike"](c.x)))  # 0 where the logarithm is undefined
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
_ZERO = "Integer division by 0 is an error."
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
    f"The remainder of x / y rounded towards zero: it has the sign of x.\n\nThe arrays broadcast. {_ZERO}",
    (*FLOATS, "int32", "int64"),
    _WHOLE,
    aliases=("TruncateMod",),
)
_binary(
    "FloorMod",
    _floor_mod,
    f"The remainder of x / y rounded down: it has the sign of y.\n\nThe arrays broadcast. {_ZERO}",
    REALS,
    _WHOLE,
)
_binary("FloorDiv", None, f"x / y rounded down, elementwise; the arrays broadcast.\n\n{_ZERO}", REALS, _WHOLE)
_binary(
    "Pow",
    _pow,
    "x to the power y, elementwise; the arrays broadcast.\n\nThe gradient for y is 0 where x is not positive, but NaN"
    " where the power is NaN. Negative powers of integers are an error.",
    (*FLOATS, *SIGNED),
    "np.array([1., 2., 3.]), np.array([2., 3., .5])",
)
_binary(
    "Maximum",
    _extreme("GreaterEqual"),
    "The larger of x and y, elementwise; the arrays broadcast.\n\nIf both are equal, x gets the gradient. If one is"
    " NaN, the result is NaN.",
)
_binary(
    "Minimum",
    _extreme("LessEqual"),
    "The smaller of x and y, elementwise; the arrays broadcast.\n\nIf both are equal, x gets the gradient. If one is"
    " NaN, the result is NaN.",
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
    doc="The sum of arrays of the same shape, added in order.\n\n16-bit floats are added in float32 and rounded once.",
    example="AddN([np.array([1., 2.]), np.array([3., 4.]), np.array([5., 6.])])",
)


# -- Unary functions --------------------------------------------------------------------------------------------------

UNARY_CATEGORY = "Elementwise"


def _times(slope: Any) -> Any:
    """Return an adjoint: the upstream gradient times a slope computed from the argument and the result."""
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
        category=UNARY_CATEGORY,
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
_unary("Sign", None, "−1, 0 or 1, by the sign of x; no gradient.", (*FLOATS, *SIGNED), _SOME)
_unary("Square", _times(lambda ops, x, z: ops["Add"](x, x)), "x², elementwise.", REALS)
kernel("sqrt", vmap="elements", fuzz="rows")
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
    "log(1 + exp(x)), elementwise, without overflow.",
    FLOATS,
    _SOME,
)
_unary("Floor", None, "x rounded down, elementwise; no gradient.", FLOATS, _SOME)
_unary("Ceil", None, "x rounded up, elementwise; no gradient.", FLOATS, _SOME)
_unary("Round", None, "x rounded to the nearest integer, halves to even; no gradient.", (*FLOATS, *SIGNED), _SOME)
dense(
    "Relu",
    "features: T -> activations: T",
    types={"T": REALS},
    shape=same("features"),
    category=UNARY_CATEGORY,
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
    category=UNARY_CATEGORY,
    differentiable=("gradients",),
    linear=("gradients",),
    adjoint=lambda ops, c, y: (ops["ReluGrad"](y, c.features),),
    doc="The gradient of `Relu`: `gradients` times 1 where a feature is positive, else times 0.",
    example="ReluGrad(np.array([1., 2., 3.]), np.array([-1., 0., 2.]))",
)


# -- Comparisons, logic and Select ------------------------------------------------------------------------------------

COMPARISON_CATEGORY = "Comparison"

for _name, _sign, _types in (
    ("Equal", "=", EVERYTHING),
    ("NotEqual", "≠", EVERYTHING),
    ("Less", "<", REALS),
    ("LessEqual", "≤", REALS),
    ("Greater", ">", REALS),
    ("GreaterEqual", "≥", REALS),
):
    dense(
        _name,
        "x: T, y: T -> z: bool",
        types={"T": _types},
        shape=broadcasting("x", "y"),
        category=COMPARISON_CATEGORY,
        doc=f"Whether x {_sign} y, elementwise; the arrays broadcast.",
        example=f"{_name}(np.array([1., 2., 3.]), np.array([2., 2., 2.]))",
    )
for _name, _word in (("LogicalAnd", "both x and y are"), ("LogicalOr", "x or y is")):
    dense(
        _name,
        "x: bool, y: bool -> z: bool",
        types={},
        shape=broadcasting("x", "y"),
        category=COMPARISON_CATEGORY,
        doc=f"Whether {_word} true, elementwise; the arrays broadcast.",
        example=f"{_name}(np.array([True, True, False]), np.array([True, False, False]))",
    )
dense(
    "LogicalNot",
    "x: bool -> y: bool",
    types={},
    shape=same("x"),
    category=COMPARISON_CATEGORY,
    doc="Whether x is false, elementwise.",
    example="LogicalNot(np.array([True, False]))",
)


def _select(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    zeros = ops["ZerosLike"](y)
    return (
        summed(ops, ops["Select"](c.condition, y, zeros), c.x) if c.wants("x") else None,
        summed(ops, ops["Select"](c.condition, zeros, y), c.y) if c.wants("y") else None,
    )


dense(
    "Select",
    "condition: bool, x: T, y: T -> output: T",
    types={"T": EVERYTHING},
    shape=broadcasting("condition", "x", "y"),
    category=COMPARISON_CATEGORY,
    differentiable=("x", "y"),
    linear=("x", "y"),
    adjoint=_select,
    aliases=("SelectV2",),
    doc="x where `condition` is true, else y, elementwise; the arrays broadcast.",
    example="Select(np.array([True, False]), np.array([1., 2.]), np.array([3., 4.]))",
)


# -- Casts and Identity -----------------------------------------------------------------------------------------------

CONVERSION_CATEGORY = "Conversion"
_VALUES = (*NUMBERS, "bool")

dense(
    "Cast",
    "x: T -> y: DstT",
    types={"T": _VALUES},
    attrs={"DstT": "float32"},
    choices={"DstT": _VALUES},
    shape=same("x"),
    category=CONVERSION_CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=lambda ops, c, y: (ops["CastLike"](y, c.x),),
    doc="x converted to the dtype `DstT`.\n\nFloats are truncated towards zero to integers; complex numbers lose their"
    " imaginary part; as bool, a real part other than 0 is true. Numbers that do not fit an integer dtype, and NaN,"
    " become unspecified integers.",
    example="Cast(np.array([1.75, -1.75]), DstT='float16')",
)
dense(
    "CastLike",
    "x: T, like: Tto -> output: Tto",
    types={"T": NUMBERS, "Tto": NUMBERS},
    shape=same("x"),
    category=CONVERSION_CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=lambda ops, c, y: (ops["CastLike"](y, c.x),),
    tensorflow=False,
    doc="x in the dtype of `like`.",
    example="CastLike(np.array([1.5, 2.5]), like=np.zeros(1, np.float32))",
)
dense(
    "Identity",
    "input: T -> output: T",
    types={"T": ALL_DTYPES},
    shape=same("input"),
    category=CONVERSION_CATEGORY,
    differentiable=("input",),
    linear=("input",),
    adjoint=lambda ops, c, y: (y,),
    doc="The array unchanged.",
    example="Identity(np.array([1., 2.]))",
)
dense(
    "StopGradient",
    "input: T -> output: T",
    types={"T": ALL_DTYPES},
    shape=same("input"),
    category=CONVERSION_CATEGORY,
    doc="The array unchanged, without a gradient.",
    example="StopGradient(np.array([1., 2.]))",
)
for _name_conversion, _number in (("ZerosLike", "Zeros"), ("OnesLike", "Ones")):
    dense(
        _name_conversion,
        "x: T -> y: T",
        types={"T": _VALUES},
        shape=same("x"),
        category=CONVERSION_CATEGORY,
        doc=f"{_number} in the shape and dtype of x; no gradient.",
        example=f"{_name_conversion}(np.array([1., 2.]))",
    )


def _full_like(x: Known) -> tuple[Shape, ...]:
    check_number(x, "value", x.avals["x"].dtype)
    return (x.shape("x"),)


dense(
    "FullLike",
    "x: T -> output: T",
    types={"T": NUMBERS},
    shape=_full_like,
    attrs={"value": 0.0},
    category=CONVERSION_CATEGORY,
    tensorflow=False,
    doc="An array in the shape and dtype of x, filled with the number `value`, which must fit the dtype; no gradient.",
    example="FullLike(np.zeros((2, 2)), value=3.)",
)
