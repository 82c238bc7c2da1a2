"""Functions of one array, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .words import narrow, wide


def relu(xp: Any, x: Any) -> Any:
    """The larger of x and 0. NaN stays; its gradient, as that at 0, is 0."""
    return xp.where(x > 0, x, xp.where(x != x, xp.stop_gradient(x), xp.zeros_like(x)))


def softplus(xp: Any, x: Any) -> Any:
    """log(1 + exp(x)), which neither overflows nor loses small values."""
    return xp.logaddexp(x, xp.zeros_like(x))


def _in_float32(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda xp, x: narrow(xp, function(xp, wide(xp, x)), x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
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
