"""The same elements in other shapes."""

from __future__ import annotations

import math
from typing import Any

from ..errors import refuse, shape_text
from ..shape import axis_in, differ, scalar
from ..spec import ALL_DTYPES, INDEX, Known, Shape
from .broadcasting import dense, sizes

CATEGORY = "Arrangement"


def filled(given: tuple[Any, ...], wanted: tuple[Any, ...]) -> tuple[Any, ...]:
    """The wanted shape with what is left of the given one in place of −1; beside a size of 0, without sizes of 0."""
    if -1 not in wanted:
        return wanted
    size = rest = 1
    for n in given:
        size = size * n if n != 0 or 0 not in wanted else size
    for n in wanted:
        rest = rest * n if n not in (-1, 0) else rest
    return tuple(size // rest if n == -1 else n for n in wanted)


def _reshape(x: Known) -> tuple[Shape, ...]:
    given, (wanted, count) = x.shape("tensor"), sizes(x, "shape")
    if wanted is None:
        return ((None,) * count,)
    unknown = [i for i, n in enumerate(wanted) if n == -1]
    for i, n in enumerate(wanted):
        if n < -1:
            raise refuse("size_negative", argument="shape", position=i, value=n, bound=0)
    if len(unknown) > 1:
        raise refuse("two_unknown", argument="shape", position=unknown[1], value=shape_text(wanted))
    if None in given:
        return (tuple(None if n == -1 else n for n in wanted),)
    dims = tuple(n for n in given if n is not None)
    made = filled(dims, wanted)
    # A size that is looked for among others that are 0 may be rounded down, as nothing is left out.
    if math.prod(made) != math.prod(dims):
        raise refuse("elements_match", argument="tensor", value=shape_text(given), bound=shape_text(wanted))
    return (made,)


def _reshape_like(x: Known) -> tuple[Shape, ...]:
    given, like = x.shape("x"), x.shape("like")
    if None not in given and None not in like and math.prod(map(int, given)) != math.prod(map(int, like)):  # type: ignore[arg-type]
        raise refuse("elements_match", argument="x", value=shape_text(given), bound=shape_text(like))
    return (like,)


def _merge(x: Known) -> tuple[Shape, ...]:
    shape, count = x.shape("x"), x.attrs["count"]
    if not 0 <= count <= len(shape):
        raise refuse("rank_at_least", argument="x", value=shape_text(shape), bound=count)
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
            raise refuse("squeeze_unknown", argument="axis", value=shape_text(shape))
        return (tuple(n for n in shape if n != 1),)
    gone = {axis_in(a, len(shape), "axis", i) for i, a in enumerate(axis)}
    for i in gone:
        if differ(shape[i], 1):
            raise refuse("not_one", argument="input", position=i, value=shape[i])
    return (tuple(n for i, n in enumerate(shape) if i not in gone),)


def _as(name: str) -> Any:
    """An adjoint: the upstream gradient in the shape of an argument."""
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
    doc="The same elements in another shape; one dimension may be −1 and is what is left for it.\n\nWhere another size"
    " is 0, what is left is counted without the sizes of 0: [0, 3] in shape [0, −1] is [0, 3].",
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
    doc="The first `count` dimensions as one; with none, a dimension of size 1 is put in front.",
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
    doc="A dimension of size 1 put in at position `dim`; −1 is behind the last.",
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
    doc="Without the dimensions of size 1, or only those that `axis` names.",
    example="Squeeze(np.array([[[1.], [2.]]]))",
)
