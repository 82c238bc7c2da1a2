"""Elementwise ops over an array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import make_error
from .shared import narrow, place, wide

# -- Binary arithmetic, and sums over broadcast dimensions ------------------------------------------------------------


def div_no_nan(xp: Any, x: Any, y: Any) -> Any:
    """Return the quotient, 0 where y is 0; its gradient there is 0 too."""
    zero = y == 0
    quotient = x / xp.where(zero, xp.ones_like(y), y)
    return xp.where(zero, xp.zeros_like(quotient), quotient)


def _check_divisors(xp: Any, y: Any) -> None:
    """Raise if an integer divisor is 0."""
    at = xp.first_true(y == 0)
    if at >= 0:
        raise make_error("division_by_zero", argument="y", position=place(at, y.shape), value=0)


def _is_integer(xp: Any, x: Any) -> bool:
    return x.dtype in xp.integers


def _div(xp: Any, x: Any, y: Any) -> Any:
    if not _is_integer(xp, y):
        return x / y
    _check_divisors(xp, y)
    return xp.floor_divide(x - xp.fmod(x, y), y)  # exact, so that rounding down is rounding towards zero


def _with_check(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(xp: Any, x: Any, y: Any) -> Any:
        if _is_integer(xp, y):
            _check_divisors(xp, y)
        return function(xp, x, y)

    return checked


def _floor_div(xp: Any, x: Any, y: Any) -> Any:
    if _is_integer(xp, y):
        return xp.floor_divide(x, y)
    return xp.floor(x / y)


def _pow(xp: Any, x: Any, y: Any) -> Any:
    if _is_integer(xp, y):
        at = xp.first_true(y < 0)
        if at >= 0:
            raise make_error("negative_power", argument="y", position=place(at, y.shape), value="a negative number")
        return xp.pow(x, y)
    base, exponent = wide(xp, x), wide(xp, y)
    # The gradient for y is 0 where x is not positive: its logarithm is undefined.
    positive = base > 0
    smooth = xp.pow(xp.where(positive, base, xp.ones_like(base)), exponent)
    other = xp.pow(base, xp.stop_gradient(exponent))
    other = other * xp.where(other != other, exponent, xp.ones_like(exponent))  # so that NaN has the gradient NaN
    return narrow(xp, xp.where(positive, smooth, other), x.dtype)


def _one_of(xp: Any, first: Any, x: Any, y: Any) -> Any:
    """Return x where `first` is true, else y. Where x is NaN the result is NaN, and y gets the gradient."""
    if not _is_integer(xp, x):
        y = xp.where(x != x, y + xp.stop_gradient(x), y)
    return xp.where(first, x, y)


def _maximum(xp: Any, x: Any, y: Any) -> Any:
    return _one_of(xp, x >= y, x, y)


def _minimum(xp: Any, x: Any, y: Any) -> Any:
    return _one_of(xp, x <= y, x, y)


def _squared_difference(xp: Any, x: Any, y: Any) -> Any:
    difference = x - y
    return difference * difference


def _add_n(xp: Any, inputs: tuple[Any, ...]) -> Any:
    total = wide(xp, inputs[0])
    for item in inputs[1:]:
        total = total + wide(xp, item)
    return xp.copy(total) if len(inputs) == 1 else narrow(xp, total, inputs[0].dtype)


def _sum_like(xp: Any, x: Any, like: Any) -> Any:
    lead = x.ndim - like.ndim
    inner = tuple(lead + i for i, n in enumerate(like.shape) if n == 1 and x.shape[lead + i] != 1)
    if not lead and not inner:
        return xp.copy(x)
    total = xp.sum(wide(xp, x), (*range(lead), *inner), False)
    return narrow(xp, xp.reshape(total, tuple(like.shape)), x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda xp, x, y: x + y,
    "AddN": _add_n,
    "Sub": lambda xp, x, y: x - y,
    "Mul": lambda xp, x, y: x * y,
    "Div": _div,
    "RealDiv": lambda xp, x, y: x / y,
    "DivNoNan": div_no_nan,
    "Mod": _with_check(lambda xp, x, y: xp.fmod(x, y)),
    "FloorMod": _with_check(lambda xp, x, y: xp.remainder(x, y)),
    "FloorDiv": _with_check(_floor_div),
    "Pow": _pow,
    "Maximum": _maximum,
    "Minimum": _minimum,
    "SquaredDifference": _squared_difference,
    "SumLike": _sum_like,
    "BroadcastLike": lambda xp, x, like: xp.copy(xp.broadcast_to(x, tuple(like.shape))),
}


# -- Unary functions --------------------------------------------------------------------------------------------------


def relu(xp: Any, x: Any) -> Any:
    """Return the larger of x and 0. NaN stays NaN; its gradient is 0, as at 0."""
    return xp.where(x > 0, x, xp.where(x != x, xp.stop_gradient(x), xp.zeros_like(x)))


def softplus(xp: Any, x: Any) -> Any:
    """Return log(1 + exp(x)) without overflow or loss of small values."""
    return xp.logaddexp(x, xp.zeros_like(x))


def _in_float32(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda xp, x: narrow(xp, function(xp, wide(xp, x)), x.dtype)


UNARY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Neg": lambda xp, x: -x,
    "Abs": lambda xp, x: xp.abs(x),
    "Sign": lambda xp, x: xp.sign(x),
    "Square": lambda xp, x: x * x,
    "Rsqrt": _in_float32(lambda xp, x: xp.ones_like(x) / xp.sqrt(x)),
    "Reciprocal": lambda xp, x: xp.ones_like(x) / x,
    "Log": _in_float32(lambda xp, x: xp.log(x)),
    "Log1p": _in_float32(lambda xp, x: xp.log1p(x)),
    "Exp": _in_float32(lambda xp, x: xp.exp(x)),
    "Expm1": _in_float32(lambda xp, x: xp.expm1(x)),
    "Sin": _in_float32(lambda xp, x: xp.sin(x)),
    "Cos": _in_float32(lambda xp, x: xp.cos(x)),
    "Sigmoid": _in_float32(lambda xp, x: xp.sigmoid(x)),
    "Tanh": _in_float32(lambda xp, x: xp.tanh(x)),
    "Softplus": _in_float32(softplus),
    "Floor": lambda xp, x: xp.floor(x),
    "Ceil": lambda xp, x: xp.ceil(x),
    "Round": lambda xp, x: xp.copy(x) if x.dtype in xp.integers else xp.round(x),
    "Relu": lambda xp, features: relu(xp, features),
    "ReluGrad": lambda xp, gradients, features: gradients * (features > 0),
}


# -- Comparisons, logic and Select ------------------------------------------------------------------------------------

COMPARISON_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Equal": lambda xp, x, y: x == y,
    "NotEqual": lambda xp, x, y: x != y,
    "Less": lambda xp, x, y: x < y,
    "LessEqual": lambda xp, x, y: x <= y,
    "Greater": lambda xp, x, y: x > y,
    "GreaterEqual": lambda xp, x, y: x >= y,
    "LogicalAnd": lambda xp, x, y: x & y,
    "LogicalOr": lambda xp, x, y: x | y,
    "LogicalNot": lambda xp, x: ~x,
    "Select": lambda xp, condition, x, y: xp.where(condition, x, y),
}


# -- Casts and Identity -----------------------------------------------------------------------------------------------


def convert(xp: Any, x: Any, dtype: Any) -> Any:
    """Convert x to another dtype: floats are truncated towards zero, complex numbers lose their imaginary part."""
    if x.dtype in xp.complexes and dtype not in xp.complexes:
        x = xp.real(x)
    return xp.astype(x, dtype)


CONVERSION_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Cast": lambda xp, x, DstT: convert(xp, x, xp.dtype(DstT)),
    "CastLike": lambda xp, x, like: convert(xp, x, like.dtype),
    "Identity": lambda xp, input: xp.copy(input),
    "StopGradient": lambda xp, input: xp.copy(xp.stop_gradient(input)),
    "ZerosLike": lambda xp, x: xp.zeros_like(x),
    "OnesLike": lambda xp, x: xp.ones_like(x),
}
