"""Slices, and zeros around them."""

from __future__ import annotations

from typing import Any

from ..errors import refuse, shape_text
from ..shape import vector
from ..spec import EVERYTHING, INDEX, NUMBERS, Known, Shape
from .broadcasting import dense

CATEGORY = "Arrangement"


def _lengths(x: Known, name: str, dims: int) -> tuple[int, ...] | None:
    """A host vector with one number per dimension."""
    values = vector(x, name)
    count = x.shape(name)[0]
    if count is not None and count != dims:
        raise refuse("lengths_match", argument=name, value=count, bound=dims)
    return values


def _slice(x: Known) -> tuple[Shape, ...]:
    shape = x.shape("input")
    begin, sizes = _lengths(x, "begin", len(shape)), _lengths(x, "size", len(shape))
    made: list[int | None] = []
    for i, n in enumerate(shape):
        start, size = None if begin is None else begin[i], None if sizes is None else sizes[i]
        if start is not None and (start < 0 or (n is not None and start > n)):
            raise refuse("slice_outside", argument="begin", position=i, value=start, bound="?" if n is None else n)
        if size == -1:
            size = None if n is None or start is None else n - start
        elif size is not None and (size < 0 or (n is not None and start is not None and start + size > n)):
            raise refuse("slice_outside", argument="size", position=i, value=size, bound="?" if n is None else n)
        made.append(size)
    return (tuple(made),)


def _inside(x: Known, small: str, large: str) -> None:
    part, all_of = x.shape(small), x.shape(large)
    if len(part) != len(all_of):
        raise refuse("rank_exactly", argument=small, value=shape_text(part), bound=len(all_of))
    begin = _lengths(x, "begin", len(all_of))
    for i, (n, total) in enumerate(zip(part, all_of, strict=True)):
        start = None if begin is None else begin[i]
        if start is not None and n is not None and total is not None and not 0 <= start <= total - n:
            raise refuse("slice_outside", argument="begin", position=i, value=start, bound=total)


def _slice_like(x: Known) -> tuple[Shape, ...]:
    _inside(x, "like", "x")
    return (x.shape("like"),)


def _pad_like(x: Known) -> tuple[Shape, ...]:
    _inside(x, "x", "like")
    return (x.shape("like"),)


dense(
    "Slice",
    "input: T, begin: host Index, size: host Index -> output: T",
    types={"T": EVERYTHING, "Index": INDEX},
    shape=_slice,
    category=CATEGORY,
    differentiable=("input",),
    linear=("input",),
    adjoint=lambda ops, c, y: (ops["PadLike"](y, c.begin, c.input),),
    doc="The block of `size` that starts at `begin`; a size of −1 is all that is left of a dimension.",
    example="Slice(np.array([[1., 2., 3.], [4., 5., 6.]]), begin=[0, 1], size=[-1, 2])",
)
_LIKE: dict[str, Any] = {
    "types": {"T": NUMBERS, "Index": INDEX},
    "category": CATEGORY,
    "differentiable": ("x",),
    "linear": ("x",),
    "tensorflow": False,
}
dense(
    "SliceLike",
    "x: T, begin: host Index, like: T -> output: T",
    shape=_slice_like,
    adjoint=lambda ops, c, y: (ops["PadLike"](y, c.begin, c.x),),
    doc="The block in the shape of `like` that starts at `begin`.",
    example="SliceLike(np.array([1., 2., 3.]), [1], like=np.zeros(2))",
    **_LIKE,
)
dense(
    "PadLike",
    "x: T, begin: host Index, like: T -> output: T",
    shape=_pad_like,
    adjoint=lambda ops, c, y: (ops["SliceLike"](y, c.begin, c.x),),
    doc="The transpose of `Slice`: x at `begin` among zeros in the shape of `like`.",
    example="PadLike(np.array([1., 2.]), [1], like=np.zeros(4))",
    **_LIKE,
)
