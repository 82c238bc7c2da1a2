"""Reshape, concatenate, split, slice and pad."""

from __future__ import annotations

import math
from typing import Any

from ..errors import make_error, shape_text
from .elementwise import dense, sizes
from .shapes import axis_in, check_same, differ, scalar, vector
from .spec import ALL_DTYPES, EVERYTHING, INDEX, NUMBERS, Call, Known, Shape

# -- Shapes -----------------------------------------------------------------------------------------------------------

CATEGORY = "Arrangement"


def filled(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the new shape with −1 replaced by the remaining size; if it contains 0, sizes of 0 are ignored."""
    if -1 not in new:
        return new
    size = rest = 1
    for n in old:
        size = size * n if n != 0 or 0 not in new else size
    for n in new:
        rest = rest * n if n not in (-1, 0) else rest
    return tuple(size // rest if n == -1 else n for n in new)


def _reshape(x: Known) -> tuple[Shape, ...]:
    old, (new, count) = x.shape("tensor"), sizes(x, "shape")
    if new is None:
        return ((None,) * count,)
    unknown = [i for i, n in enumerate(new) if n == -1]
    for i, n in enumerate(new):
        if n < -1:
            raise make_error("size_negative", argument="shape", position=i, value=n, bound=0)
    if len(unknown) > 1:
        raise make_error("two_unknown", argument="shape", position=unknown[1], value=shape_text(new))
    if None in old:
        return (tuple(None if n == -1 else n for n in new),)
    dims = tuple(n for n in old if n is not None)
    complete = filled(dims, new)
    # With sizes of 0, the size for −1 may be rounded down, because there are no elements.
    if math.prod(complete) != math.prod(dims):
        raise make_error("elements_match", argument="tensor", value=shape_text(old), bound=shape_text(new))
    return (complete,)


def _reshape_like(x: Known) -> tuple[Shape, ...]:
    old, like = x.shape("x"), x.shape("like")
    if None not in old and None not in like and math.prod(map(int, old)) != math.prod(map(int, like)):  # type: ignore[arg-type]
        raise make_error("elements_match", argument="x", value=shape_text(old), bound=shape_text(like))
    return (like,)


def _merge(x: Known) -> tuple[Shape, ...]:
    shape, count = x.shape("x"), x.attrs["count"]
    if not 0 <= count <= len(shape):
        raise make_error("rank_at_least", argument="x", value=shape_text(shape), bound=count)
    merged = None if None in shape[:count] else math.prod(n for n in shape[:count] if n is not None)
    return ((merged, *shape[count:]),)


def _expand(x: Known) -> tuple[Shape, ...]:
    shape, dim = x.shape("input"), scalar(x, "dim")
    if dim is None:
        return ((None,) * (len(shape) + 1),)
    at = axis_in(dim, len(shape) + 1, "dim")
    return ((*shape[:at], 1, *shape[at:]),)


def _squeeze(x: Known) -> tuple[Shape, ...]:
    shape, axis = x.shape("input"), x.attrs["axis"]
    if not axis:
        if None in shape:
            raise make_error("squeeze_unknown", argument="axis", value=shape_text(shape))
        return (tuple(n for n in shape if n != 1),)
    dropped = {axis_in(a, len(shape), "axis", i) for i, a in enumerate(axis)}
    for i in dropped:
        if differ(shape[i], 1):
            raise make_error("not_one", argument="input", position=i, value=shape[i])
    return (tuple(n for i, n in enumerate(shape) if i not in dropped),)


def _as(name: str) -> Any:
    """Return an adjoint: the upstream gradient in the shape of an argument."""
    return lambda ops, c, y: (ops["ReshapeLike"](y, c.arguments[name]),)


dense(
    "Reshape",
    "tensor: T, shape: host Tshape -> output: T",
    types={"T": ALL_DTYPES, "Tshape": INDEX},
    shape=_reshape,
    category=CATEGORY,
    differentiable=("tensor",),
    linear=("tensor",),
    adjoint=_as("tensor"),
    doc="The same elements in another shape; one size may be −1 and is computed from the others.\n\nIf another size is"
    " 0, it is computed without the sizes of 0: [0, 3] reshaped to [0, −1] is [0, 3].",
    example="Reshape(np.arange(4.), shape=[2, -1])",
)
dense(
    "ReshapeLike",
    "x: T, like: Tlike -> output: T",
    types={"T": ALL_DTYPES, "Tlike": ALL_DTYPES},
    shape=_reshape_like,
    category=CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=_as("x"),
    tensorflow=False,
    doc="The same elements in the shape of `like`.",
    example="ReshapeLike(np.arange(4.), like=np.zeros((2, 2)))",
)
dense(
    "MergeDims",
    "x: T -> output: T",
    types={"T": ALL_DTYPES},
    attrs={"count": 2},
    shape=_merge,
    category=CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=_as("x"),
    tensorflow=False,
    doc="The first `count` dimensions merged into one; with `count=0`, a dimension of size 1 is inserted in front.",
    example="MergeDims(np.zeros((2, 2, 1)), count=2)",
)
dense(
    "ExpandDims",
    "input: T, dim: host Tdim -> output: T",
    types={"T": ALL_DTYPES, "Tdim": INDEX},
    shape=_expand,
    category=CATEGORY,
    differentiable=("input",),
    linear=("input",),
    adjoint=_as("input"),
    doc="The array with a dimension of size 1 inserted at position `dim`; −1 is after the last.",
    example="ExpandDims(np.array([1., 2.]), dim=0)",
)
dense(
    "Squeeze",
    "input: T -> output: T",
    types={"T": ALL_DTYPES},
    attrs={"axis": ()},
    shape=_squeeze,
    category=CATEGORY,
    differentiable=("input",),
    linear=("input",),
    adjoint=_as("input"),
    doc="The array without its dimensions of size 1, or without those in `axis`.",
    example="Squeeze(np.array([[[1.], [2.]]]))",
)


# -- Concatenation and splitting --------------------------------------------------------------------------------------


def _concat(x: Known) -> tuple[Shape, ...]:
    axis, shapes = scalar(x, "axis"), x.shapes("values")
    first = shapes[0]
    if not first:
        raise make_error("rank_at_least", argument="values[0]", value="[]", bound=1)
    at = None if axis is None else axis_in(axis, len(first), "axis")
    total: int | None = 0
    for k, shape in enumerate(shapes):
        if len(shape) != len(first):
            raise make_error("rank_exactly", argument=f"values[{k}]", value=shape_text(shape), bound=len(first))
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
        raise make_error("index_outside", argument="index", value=index, bound=len(shapes))
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
    doc="Arrays concatenated along a dimension; the other dimensions are equal.",
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
    doc="The part of x at the place of `values[index]` in `Concat(values)`: one output of the transpose of `Concat`.",
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
    doc="Arrays of the same shape stacked along a new dimension.",
    example="Pack([np.array([1., 2.]), np.array([3., 4.])], axis=1)",
)


def _at(x: Known, name: str, axis: int, index: int) -> Shape:
    """Return the shape without one dimension; raise if the index is out of range in it."""
    shape = x.shape(name)
    if not shape:
        raise make_error("rank_at_least", argument=name, value="[]", bound=1)
    at = axis_in(axis, len(shape), "axis")
    size = shape[at]
    if size is not None and not -size <= index < size:
        raise make_error("index_outside", argument="index", value=index, bound=size)
    return shape[:at] + shape[at + 1 :]


def _place_rule(x: Known) -> tuple[Shape, ...]:
    check_same(x.shape("x"), _at(x, "like", x.attrs["axis"], x.attrs["index"]), "x")
    return (x.shape("like"),)


def _column(x: Known) -> tuple[Shape, ...]:
    if len(x.shape("x")) != 2:
        raise make_error("rank_exactly", argument="x", value=shape_text(x.shape("x")), bound=2)
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
    doc="The part of x at one index along a dimension, which is dropped.",
    example="PartAt(np.array([[1., 2.], [3., 4.]]), axis=1, index=1)",
    **_PART,
)
dense(
    "PlaceAt",
    "x: T, like: T -> output: T",
    attrs={"axis": 0, "index": 0},
    shape=_place_rule,
    adjoint=lambda ops, c, y: (ops["PartAt"](y, **c.attrs),),
    doc="The transpose of `PartAt`: zeros in the shape of `like`, with x at one index along a dimension.",
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


# -- Slices and padding -----------------------------------------------------------------------------------------------


def _lengths(x: Known, name: str, dims: int) -> tuple[int, ...] | None:
    """Return a host vector with one number per dimension."""
    values = vector(x, name)
    count = x.shape(name)[0]
    if count is not None and count != dims:
        raise make_error("lengths_match", argument=name, value=count, bound=dims)
    return values


def _slice(x: Known) -> tuple[Shape, ...]:
    shape = x.shape("input")
    begin, sizes = _lengths(x, "begin", len(shape)), _lengths(x, "size", len(shape))
    lengths: list[int | None] = []
    for i, n in enumerate(shape):
        start, size = None if begin is None else begin[i], None if sizes is None else sizes[i]
        if start is not None and (start < 0 or (n is not None and start > n)):
            raise make_error("slice_outside", argument="begin", position=i, value=start, bound="?" if n is None else n)
        if size == -1:
            size = None if n is None or start is None else n - start
        elif size is not None and (size < 0 or (n is not None and start is not None and start + size > n)):
            raise make_error("slice_outside", argument="size", position=i, value=size, bound="?" if n is None else n)
        lengths.append(size)
    return (tuple(lengths),)


def _inside(x: Known, small: str, large: str) -> None:
    part, all_of = x.shape(small), x.shape(large)
    if len(part) != len(all_of):
        raise make_error("rank_exactly", argument=small, value=shape_text(part), bound=len(all_of))
    begin = _lengths(x, "begin", len(all_of))
    for i, (n, total) in enumerate(zip(part, all_of, strict=True)):
        start = None if begin is None else begin[i]
        if start is not None and n is not None and total is not None and not 0 <= start <= total - n:
            raise make_error("slice_outside", argument="begin", position=i, value=start, bound=total)


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
    doc="The block of `size` that starts at `begin`; a size of −1 is the rest of the dimension.",
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
    doc="The transpose of `Slice`: zeros in the shape of `like`, with x at `begin`.",
    example="PadLike(np.array([1., 2.]), [1], like=np.zeros(4))",
    **_LIKE,
)
