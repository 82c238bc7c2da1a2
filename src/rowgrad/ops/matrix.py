"""Products of matrices and orders of dimensions."""

from __future__ import annotations

from typing import Any

from ..errors import refuse, shape_text
from ..shape import axis_in, differ, vector
from ..spec import EVERYTHING, FLOATS, INDEX, Call, Known, Shape
from .broadcasting import dense

CATEGORY = "Matrix"


def _product(x: Known) -> tuple[Shape, ...]:
    for name in ("a", "b"):
        if len(x.shape(name)) != 2:
            raise refuse("rank_exactly", argument=name, value=shape_text(x.shape(name)), bound=2)
    rows, inner = x.shape("a")[:: -1 if x.attrs["transpose_a"] else 1]
    other, columns = x.shape("b")[:: -1 if x.attrs["transpose_b"] else 1]
    if differ(inner, other):
        raise refuse("inner_sizes", argument="b", value=other, bound=inner)
    return ((rows, columns),)


def _matmul(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    a, b = c.attrs["transpose_a"], c.attrs["transpose_b"]

    def product(left: Any, right: Any, transpose_a: bool, transpose_b: bool) -> Any:
        return ops["MatMul"](left, right, transpose_a=transpose_a, transpose_b=transpose_b)

    to_a = to_b = None
    if c.wants("a"):
        to_a = product(c.b, y, b, True) if a else product(y, c.b, False, not b)
    if c.wants("b"):
        to_b = product(y, c.a, True, a) if b else product(c.a, y, not a, False)
    return to_a, to_b


dense(
    "MatMul",
    "a: T, b: T -> product: T",
    types={"T": (*FLOATS, "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    attrs={"transpose_a": False, "transpose_b": False},
    choices={"transpose_a": (False, True), "transpose_b": (False, True)},
    shape=_product,
    category=CATEGORY,
    differentiable=("a", "b"),
    adjoint=_matmul,
    doc="""The product of two matrices, each transposed first if asked for.

16-bit floats are multiplied and added in float32 and rounded once; the order of additions is the array library's.""",
    example="MatMul(np.array([[1., 2.], [3., 4.]]), np.array([[1., 1.], [0., 1.]]), transpose_b=True)",
)


def _order(x: Known) -> tuple[int, ...] | None:
    dims, perm = len(x.shape("x")), vector(x, "perm")
    if perm is None:
        return None
    found = tuple(axis_in(p, dims, "perm", i) for i, p in enumerate(perm))
    if sorted(found) != list(range(dims)):
        raise refuse("not_a_permutation", argument="perm", value=shape_text(perm), bound=dims)
    return found


def _transposed(x: Known) -> tuple[Shape, ...]:
    shape, order = x.shape("x"), _order(x)
    return ((None,) * len(shape) if order is None else tuple(shape[p] for p in order),)


def _transposed_back(x: Known) -> tuple[Shape, ...]:
    shape, order = x.shape("x"), _order(x)
    if order is None:
        return ((None,) * len(shape),)
    return (tuple(shape[order.index(i)] for i in range(len(shape))),)


_FIELDS: dict[str, Any] = {
    "types": {"T": EVERYTHING, "Tperm": INDEX},
    "category": CATEGORY,
    "differentiable": ("x",),
    "linear": ("x",),
}
dense(
    "Transpose",
    "x: T, perm: host Tperm -> y: T",
    shape=_transposed,
    adjoint=lambda ops, c, y: (ops["TransposeBack"](y, c.perm),),
    doc="Dimensions in another order: dimension i of the result is dimension perm[i] of x.",
    example="Transpose(np.array([[1., 2., 3.], [4., 5., 6.]]), perm=[1, 0])",
    **_FIELDS,
)
dense(
    "TransposeBack",
    "x: T, perm: host Tperm -> y: T",
    shape=_transposed_back,
    adjoint=lambda ops, c, y: (ops["Transpose"](y, c.perm),),
    tensorflow=False,
    doc="What `Transpose` with this `perm` was made of: its inverse and its transpose.",
    example="TransposeBack(np.array([[1., 4.], [2., 5.], [3., 6.]]), perm=[1, 0])",
    **_FIELDS,
)
