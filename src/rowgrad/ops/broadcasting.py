"""Broadcasting and its transpose, and what records of the dense layer share."""

from __future__ import annotations

from typing import Any

from ..shape import broadcast, check_broadcasts_to
from ..spec import NUMBERS, Known, Op, Shape, declare

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


def summed(ops: Any, y: Any, x: Any) -> Any:
    """The gradient for an argument that was broadcast: y, summed over what was repeated."""
    made, given = getattr(y, "shape", None), getattr(x, "shape", None)
    if made is not None and given is not None and None not in given and tuple(made) == tuple(given):
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
