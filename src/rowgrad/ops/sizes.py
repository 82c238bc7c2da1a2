"""Shapes as numbers, and arrays made of numbers."""

from __future__ import annotations

from math import prod
from typing import Any

from ..errors import refuse
from ..shape import axis_in, check_elements, rank, scalar
from ..spec import ALL_DTYPES, EVERYTHING, INDEX, Call, Known, Shape
from .broadcasting import dense, sizes, summed

CATEGORY = "Sizes"
_ANY = {"T": ALL_DTYPES}
_OUT: dict[str, Any] = {"attrs": {"out_type": "int32"}, "choices": {"out_type": INDEX}}


def _reaches(x: Known, count: int | None) -> None:
    """A number of the result is one of its dtype."""
    if x.attrs["out_type"] == "int32" and isinstance(count, int) and count >= 1 << 31:
        raise refuse("out_type_too_narrow", argument="input", value=count, bound="int32")


def _sizes(x: Known) -> tuple[Shape, ...]:
    for n in x.shape("input"):
        _reaches(x, n)
    return ((len(x.shape("input")),),)


def _count(x: Known) -> tuple[Shape, ...]:
    shape = x.shape("input")
    if all(isinstance(n, int) for n in shape):
        _reaches(x, prod(n for n in shape if n is not None))
    return ((),)


dense(
    "Shape",
    "input: T -> output: out_type",
    types=_ANY,
    shape=_sizes,
    category=CATEGORY,
    doc="The size of every dimension.",
    example="Shape(np.zeros((2, 3)))",
    **_OUT,
)
dense(
    "Size",
    "input: T -> output: out_type",
    types=_ANY,
    shape=_count,
    category=CATEGORY,
    doc="The number of elements.",
    example="Size(np.zeros((2, 3)))",
    **_OUT,
)
dense(
    "Rank",
    "input: T -> output: int32",
    types=_ANY,
    shape=lambda x: ((),),
    category=CATEGORY,
    doc="The number of dimensions.",
    example="Rank(np.zeros((2, 3)))",
)


def _dimension(x: Known) -> tuple[Shape, ...]:
    axis_in(x.attrs["axis"], len(x.shape("x")), "axis")
    return ((),)


dense(
    "Dimension",
    "x: T -> output: int64",
    types=_ANY,
    attrs={"axis": 0},
    shape=_dimension,
    category=CATEGORY,
    tensorflow=False,
    doc="The size of one dimension.",
    example="Dimension(np.zeros((2, 3)), axis=1)",
)


def _fill(x: Known) -> tuple[Shape, ...]:
    dims, count = sizes(x, "dims")
    rank(x, "value", 0, "should_be_scalar")
    if dims is None:
        return ((None,) * count,)
    for i, n in enumerate(dims):
        if n < 0:
            raise refuse("size_negative", argument="dims", position=i, value=n, bound=0)
    check_elements(dims)
    return (dims,)


def _fill_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (summed(ops, y, c.value),)


dense(
    "Fill",
    "dims: host Tdims, value: T -> output: T",
    types={"Tdims": INDEX, "T": EVERYTHING},
    shape=_fill,
    category=CATEGORY,
    differentiable=("value",),
    linear=("value",),
    adjoint=_fill_adjoint,
    doc="One value in every element of a shape, which is a vector of sizes or, for a vector, one size.",
    example="Fill([2, 2], 7.)",
)


def _range(x: Known) -> tuple[Shape, ...]:
    start, limit, delta = (scalar(x, name) for name in ("start", "limit", "delta"))
    if delta == 0:
        raise refuse("range_endless", argument="delta", value=0)
    if start is None or limit is None or delta is None:
        return ((None,),)
    if (limit - start) * delta < 0:
        raise refuse("range_backwards", argument="delta", value=start, bound=limit, result=delta)
    return (((limit - start + delta - (1 if delta > 0 else -1)) // delta,),)


dense(
    "Range",
    "start: host Tidx, limit: host Tidx, delta: host Tidx -> output: Tidx",
    types={"Tidx": INDEX},
    shape=_range,
    category=CATEGORY,
    doc="`start`, `start` + `delta`, … up to but without `limit`.",
    example="Range(3, 18, 5)",
)
