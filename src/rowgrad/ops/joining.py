"""Arrays put together to one, and the parts of one."""

from __future__ import annotations

from typing import Any

from ..errors import refuse, shape_text
from ..shape import axis_in, check_same, scalar
from ..spec import EVERYTHING, INDEX, NUMBERS, Call, Known, Shape
from .broadcasting import dense

CATEGORY = "Arrangement"


def _concat(x: Known) -> tuple[Shape, ...]:
    axis, shapes = scalar(x, "axis"), x.shapes("values")
    first = shapes[0]
    if not first:
        raise refuse("rank_at_least", argument="values[0]", value="[]", bound=1)
    at = None if axis is None else axis_in(axis, len(first), "axis")
    total: int | None = 0
    for k, shape in enumerate(shapes):
        if len(shape) != len(first):
            raise refuse("rank_exactly", argument=f"values[{k}]", value=shape_text(shape), bound=len(first))
        if at is not None:
            check_same(shape[:at] + shape[at + 1 :], first[:at] + first[at + 1 :], f"values[{k}]")
            n = shape[at]
            total = None if total is None or n is None else total + n
    return ((None,) * len(first) if at is None else (*first[:at], total, *first[at + 1 :]),)


def _concat_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    parts = range(len(c.values))
    return ([ops["ConcatPart"](y, c.axis, c.values, index=k) for k in parts],)


def _concat_part(x: Known) -> tuple[Shape, ...]:
    (whole_shape,) = _concat(x)
    index, shapes = x.attrs["index"], x.shapes("values")
    check_same(x.shape("x"), whole_shape, "x")
    if not 0 <= index < len(shapes):
        raise refuse("index_outside", argument="index", value=index, bound=len(shapes))
    return (shapes[index],)


def _concat_part_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    index = c.attrs["index"]
    parts = [y if k == index else ops["ZerosLike"](v) for k, v in enumerate(c.values)]
    return (ops["Concat"](parts, c.axis),)


dense(
    "Concat",
    "values: list T, axis: host Tidx -> output: T",
    types={"T": EVERYTHING, "Tidx": INDEX},
    shape=_concat,
    category=CATEGORY,
    differentiable=("values",),
    linear=("values",),
    adjoint=_concat_adjoint,
    aliases=("ConcatV2",),
    doc="Arrays one behind the other along a dimension; the other dimensions agree.",
    example="Concat([np.array([[1., 2.]]), np.array([[3., 4.], [5., 6.]])], axis=0)",
)
dense(
    "ConcatPart",
    "x: T, axis: host Tidx, values: list T -> output: T",
    types={"T": NUMBERS, "Tidx": INDEX},
    attrs={"index": 0},
    shape=_concat_part,
    category=CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=_concat_part_adjoint,
    tensorflow=False,
    doc="The part of x that `values[index]` is when `Concat` makes x of `values`: one part of its transpose.",
    example="ConcatPart(np.array([1., 2., 3.]), 0, [np.zeros(1), np.zeros(2)], index=1)",
)


def _pack(x: Known) -> tuple[Shape, ...]:
    first, *others = x.shapes("values")
    for k, shape in enumerate(others, 1):
        check_same(shape, first, f"values[{k}]")
    at = axis_in(x.attrs["axis"], len(first) + 1, "axis")
    return ((*first[:at], 1 + len(others), *first[at:]),)


def _pack_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return ([ops["PartAt"](y, axis=c.attrs["axis"], index=k) for k in range(len(c.values))],)


dense(
    "Pack",
    "values: list T -> output: T",
    types={"T": EVERYTHING},
    attrs={"axis": 0},
    shape=_pack,
    category=CATEGORY,
    differentiable=("values",),
    linear=("values",),
    adjoint=_pack_adjoint,
    aliases=("Stack",),
    doc="Arrays of one shape as the parts of one that has a dimension more.",
    example="Pack([np.array([1., 2.]), np.array([3., 4.])], axis=1)",
)


def _at(x: Known, name: str, axis: int, index: int) -> Shape:
    """The shape without one dimension, in which there is such an index."""
    shape = x.shape(name)
    if not shape:
        raise refuse("rank_at_least", argument=name, value="[]", bound=1)
    at = axis_in(axis, len(shape), "axis")
    size = shape[at]
    if size is not None and not -size <= index < size:
        raise refuse("index_outside", argument="index", value=index, bound=size)
    return shape[:at] + shape[at + 1 :]


def _place_rule(x: Known) -> tuple[Shape, ...]:
    check_same(x.shape("x"), _at(x, "like", x.attrs["axis"], x.attrs["index"]), "x")
    return (x.shape("like"),)


def _column(x: Known) -> tuple[Shape, ...]:
    if len(x.shape("x")) != 2:
        raise refuse("rank_exactly", argument="x", value=shape_text(x.shape("x")), bound=2)
    return (_at(x, "x", 1, x.attrs["index"]),)


_PART: dict[str, Any] = {
    "types": {"T": NUMBERS},
    "category": CATEGORY,
    "differentiable": ("x",),
    "linear": ("x",),
    "tensorflow": False,
}
dense(
    "PartAt",
    "x: T -> output: T",
    attrs={"axis": 0, "index": 0},
    shape=lambda x: (_at(x, "x", x.attrs["axis"], x.attrs["index"]),),
    adjoint=lambda ops, c, y: (ops["PlaceAt"](y, c.x, **c.attrs),),
    doc="The part of x at one index along a dimension, which is gone then.",
    example="PartAt(np.array([[1., 2.], [3., 4.]]), axis=1, index=1)",
    **_PART,
)
dense(
    "PlaceAt",
    "x: T, like: T -> output: T",
    attrs={"axis": 0, "index": 0},
    shape=_place_rule,
    adjoint=lambda ops, c, y: (ops["PartAt"](y, **c.attrs),),
    doc="The transpose of `PartAt`: x at one index along a dimension of zeros in the shape of `like`.",
    example="PlaceAt(np.array([1., 2.]), like=np.zeros((2, 2)), axis=1, index=1)",
    **_PART,
)
dense(
    "Column",
    "x: T -> output: T",
    attrs={"index": 0},
    shape=_column,
    adjoint=lambda ops, c, y: (ops["PlaceAt"](y, c.x, axis=1, index=c.attrs["index"]),),
    doc="One column of a matrix.",
    example="Column(np.array([[1., 2.], [3., 4.]]), index=1)",
    **_PART,
)
