"""Broadcasting and its transpose, and what records of the dense layer share."""

from __future__ import annotations

import numbers
from typing import Any

from ..errors import refuse
from ..shape import broadcast, check_broadcasts_to, scalar, vector
from ..spec import NUMBERS, Known, Op, Shape, declare, value_text

CATEGORY = "Arithmetic"


def example(call: str) -> str:
    """The lines of an example that ends in a call of `rowgrad.dense_ops`."""
    return f"import numpy as np, rowgrad as rg\nrg.dense_ops.{call}\n"


def dense(name: str, signature: str, **fields: Any) -> Op:
    """An op of the dense layer; its example is a call."""
    fields["example"] = example(fields["example"])
    return declare(name, signature, layer="dense", **fields)


def broadcasting(*names: str) -> Any:
    """A shape rule: all these arguments broadcast to one shape."""

    def rule(x: Known) -> tuple[Shape, ...]:
        shape = x.shape(names[0])
        for name in names[1:]:
            shape = broadcast(shape, x.shape(name), name)
        return (shape,)

    return rule


def sizes(x: Known, name: str) -> tuple[tuple[int, ...] | None, int]:
    """The sizes a host vector, or a number alone, names where they are known, and how many there are."""
    if not x.shape(name):
        value = scalar(x, name)
        return None if value is None else (value,), 1
    values, count = vector(x, name), x.shape(name)[0]
    if count is None:
        raise refuse("axis_unknown", argument=name)
    return values, count


_LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": (2 - 2.0**-52) * 2.0**1023,
}
_PARTS = {"complex64": "float32", "complex128": "float64"}


def check_number(x: Known, name: str, dtype: str) -> None:
    """An attribute that is a number which a dtype can hold; floats may be rounded for it."""
    value = x.attrs[name]
    if isinstance(value, numbers.Complex) and _holds(dtype, value):
        return
    raise refuse("number_unfit", argument=name, value=value_text(value), bound=_range_text(dtype))


def _holds(dtype: str, value: Any) -> bool:
    """NaN and infinities are floats too, but no integers."""
    if dtype in _PARTS:
        return all(_holds(_PARTS[dtype], part) for part in (value.real, value.imag))
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
        return f"a number whose parts {_PARTS[dtype]} holds"
    if dtype in _LARGEST:
        return f"a number {dtype} holds, at most {_LARGEST[dtype]:.9g}"
    low, high = _ends(dtype)
    return f"a whole number {dtype} holds, in [{low}, {high}]"


def summed(ops: Any, y: Any, x: Any) -> Any:
    """The gradient for an argument that was broadcast: y, summed over what was repeated."""
    made, given = getattr(y, "shape", None), getattr(x, "shape", None)
    shapes = [s for s in (made, given) if s is not None and None not in s]
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
    doc="""x summed over what broadcasting repeats of `like` to give it the shape of x: the transpose of that.

16-bit floats are summed in float32 and rounded once.""",
    example="SumLike(np.array([[1., 2.], [3., 4.]]), like=np.zeros(2))",
    **_LIKE,
)
dense(
    "BroadcastLike",
    "x: T, like: T -> output: T",
    shape=_broadcast_like,
    adjoint=lambda ops, c, y: (ops["SumLike"](y, c.x),),
    doc="x repeated so that it has the shape of `like`.",
    example="BroadcastLike(np.array([1., 2.]), like=np.zeros((2, 2)))",
    **_LIKE,
)
