"""Elements by index, indices as rows, and where something is so."""

from __future__ import annotations

from typing import Any

from ..errors import refuse
from ..shape import rank, size
from ..spec import EVERYTHING, INDEX, NUMBERS, Call, Known, Shape
from .broadcasting import dense, summed

CATEGORY = "Picking"


def _gather(x: Known) -> tuple[Shape, ...]:
    params = x.shape("params")
    if not params:
        raise refuse("data_rank", argument="params")
    return ((*x.shape("indices"), *params[1:]),)


def _gather_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    indices, dims = c.indices, len(c.indices.shape)
    if dims != 1:
        indices, y = ops["MergeDims"](indices, count=dims), ops["MergeDims"](y, count=dims)
    return (ops["ScatterRows"](y, indices, c.params.shape[0]),)


dense(
    "Gather",
    "params: T, indices: Tidx -> output: T",
    types={"T": EVERYTHING, "Tidx": INDEX},
    shape=_gather,
    category=CATEGORY,
    differentiable=("params",),
    linear=("params",),
    adjoint=_gather_adjoint,
    aliases=("GatherV2",),
    doc="""Rows of `params` by index; `indices` may have any shape.

The gradient adds up rows named more than once, in input order.""",
    example="Gather(np.array([[1., 2.], [3., 4.]]), np.array([[1, 0], [1, 1]]))",
)


def _one_hot(x: Known) -> tuple[Shape, ...]:
    shape, depth = x.shape("indices"), size(x, "depth")
    for name in ("on_value", "off_value"):
        rank(x, name, 0, "should_be_scalar")
    axis = x.attrs["axis"]
    if not -1 <= axis <= len(shape):
        raise refuse("one_hot_axis", argument="axis", value=axis, bound=len(shape) + 1)
    at = len(shape) if axis == -1 else axis
    return ((*shape[:at], depth, *shape[at:]),)


def _one_hot_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    zero, one = ops["ZerosLike"](c.on_value), ops["OnesLike"](c.on_value)

    def share(on: Any, off: Any) -> Any:
        return ops["Mul"](y, ops["OneHot"](c.indices, c.depth, on, off, axis=c.attrs["axis"]))

    return (
        summed(ops, share(one, zero), c.on_value) if c.wants("on_value") else None,
        summed(ops, share(zero, one), c.off_value) if c.wants("off_value") else None,
    )


dense(
    "OneHot",
    "indices: TI, depth: host int32, on_value: T, off_value: T -> output: T",
    types={"TI": ("uint8", "int8", "int32", "int64"), "T": (*NUMBERS, "bool")},
    attrs={"axis": -1},
    shape=_one_hot,
    category=CATEGORY,
    differentiable=("on_value", "off_value"),
    linear=("on_value", "off_value"),
    adjoint=_one_hot_adjoint,
    doc="""`on_value` at the index, `off_value` elsewhere, along a new dimension.

It has size `depth` and stands at position `axis`, behind the others for −1. An index outside [0, depth) gives
`off_value` only.""",
    example="OneHot(np.array([1, -1]), 3, 1., 0.)",
)
dense(
    "Where",
    "condition: bool -> index: int64",
    types={},
    shape=lambda x: ((None, len(x.shape("condition"))),),
    category=CATEGORY,
    doc="The coordinates of what is true, one row each, in order.",
    example="Where(np.array([[True, False], [True, True]]))",
)


def _vector(x: Known) -> tuple[Shape, ...]:
    rank(x, "mask", 1, "must_be_vector")
    return ((None,),)


dense(
    "Flatnonzero",
    "mask: bool -> positions: int64",
    types={},
    shape=_vector,
    category=CATEGORY,
    tensorflow=False,
    doc="The positions of what is true in a vector, ascending.",
    example="Flatnonzero(np.array([True, False, True]))",
)
