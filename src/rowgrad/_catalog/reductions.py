"""Sums, means, products, minima, maxima and their positions along dimensions."""

from __future__ import annotations

import math
from typing import Any

from ..errors import make_error, shape_text
from .elementwise import dense
from .shapes import axes, axis_in, check_same, scalar
from .spec import FLOATS, INDEX, NUMBERS, REALS, Aval, Call, Known, Shape

CATEGORY = "Reduction"
_MAX_WEIGHTS = 8  # of ProdOthers: each triples the work
_AXIS = (
    "`axis` is a dimension or an array of dimensions; negative ones count from the end. If it is empty, nothing is"
    " reduced."
)
_SHORT = "16-bit floats are computed in float32 and rounded once."


def _reduced(x: Known, shape: Shape, keep_dims: bool) -> Shape:
    """Return a shape after reducing dimensions."""
    axis = x.avals["axis"]
    if len(axis.shape) > 1:
        count = None if None in axis.shape else math.prod(axis.shape)
        x = Known({**x.avals, "axis": Aval(axis.dtype, (count,))}, x.host, x.attrs)
    found = axes(x, "axis", len(shape))
    if found is not None:
        return tuple(1 if i in found else n for i, n in enumerate(shape) if keep_dims or i not in found)
    if keep_dims:
        return (None,) * len(shape)
    count = x.shape("axis")[0] if x.shape("axis") else 1
    if count is None:
        raise make_error("axis_unknown", argument="axis")
    return (None,) * max(len(shape) - count, 0)


def _rule(x: Known) -> tuple[Shape, ...]:
    return (_reduced(x, x.shape("input"), x.attrs["keep_dims"]),)


def _reduction(name: str, adjoint: Any, doc: str, type: str = "T", **fields: Any) -> None:
    numbers = "[[True, False], [True, True]]" if type == "bool" else "[[1., 2.], [4., 4.]]"
    dense(
        name,
        f"input: {type}, axis: host Tidx -> output: {type}",
        shape=_rule,
        attrs={"keep_dims": False},
        choices={"keep_dims": (False, True)},
        category=CATEGORY,
        aliases=(f"Reduce{name}",),
        differentiable=("input",) if adjoint else (),
        adjoint=adjoint,
        doc=f"{doc}\n\n{_AXIS}",
        example=f"{name}(np.array({numbers}), axis=1)",
        **fields,
    )


def _spread(ops: Any, c: Call, x: Any, mean: bool = False) -> Any:
    return ops["SpreadLike"](x, c.axis, c.input, keep_dims=c.attrs["keep_dims"], mean=mean)


def _extreme(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    """Return the adjoint; equal extremes share the gradient."""
    found = ops["Equal"](c.input, _spread(ops, c, c.outputs[0]))
    ones = ops["Select"](found, ops["OnesLike"](c.input), ops["ZerosLike"](c.input))
    share = ops["RealDiv"](y, ops["Sum"](ones, c.axis, keep_dims=c.attrs["keep_dims"]))
    return (ops["Mul"](ones, _spread(ops, c, share)),)


def _prod(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (ops["Mul"](_spread(ops, c, y), ops["ProdOthers"]([c.input], c.axis)),)


_T: dict[str, Any] = {"types": {"T": NUMBERS, "Tidx": INDEX}, "linear": ("input",)}
_R: dict[str, Any] = {"types": {"T": REALS, "Tidx": INDEX}}
_B: dict[str, Any] = {"types": {"Tidx": INDEX}, "type": "bool"}
_reduction("Sum", lambda ops, c, y: (_spread(ops, c, y),), f"The sum along dimensions.\n\n{_SHORT}", **_T)
_reduction(
    "Mean",
    lambda ops, c, y: (_spread(ops, c, y, mean=True),),
    f"The mean along dimensions; NaN if there are no elements.\n\n{_SHORT} Integers are summed in 64 bits, and their"
    " means are rounded towards zero.",
    **_T,
)
_reduction(
    "Prod",
    _prod,
    f"The product along dimensions.\n\n{_SHORT}",
    **_R,
)
for _name, _word, _empty in (
    ("Max", "largest", "−∞ or the dtype's lowest"),
    ("Min", "smallest", "∞ or the dtype's highest"),
):
    _reduction(
        _name,
        _extreme,
        f"The {_word} element along dimensions; {_empty} for empty dimensions.\n\nEqual extremes share the gradient.",
        **_R,
    )
_reduction("All", None, "Whether all elements along dimensions are true; true for empty dimensions.", **_B)
_reduction("Any", None, "Whether any element along dimensions is true; false for empty dimensions.", **_B)


def _spread_rule(x: Known) -> tuple[Shape, ...]:
    like = x.shape("like")
    check_same(x.shape("x"), _reduced(x, like, x.attrs["keep_dims"]), "x")
    return (like,)


def _spread_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    back = ops["Mean" if c.attrs["mean"] else "Sum"]
    return (back(y, c.axis, keep_dims=c.attrs["keep_dims"]),)


dense(
    "SpreadLike",
    "x: T, axis: host Tidx, like: T -> output: T",
    types={"T": NUMBERS, "Tidx": INDEX},
    shape=_spread_rule,
    attrs={"keep_dims": False, "mean": False},
    choices={"keep_dims": (False, True), "mean": (False, True)},
    category=CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=_spread_adjoint,
    tensorflow=False,
    doc="""The transpose of `Sum`, or with `mean=True` of `Mean`: x broadcast along `axis` to the shape of `like`.

With `mean=True` it is divided by the number of elements.""",
    example="SpreadLike(np.array([1., 2.]), axis=1, like=np.zeros((2, 3)))",
)


def _others_rule(x: Known) -> tuple[Shape, ...]:
    first, *others = x.shapes("inputs")
    if len(others) > _MAX_WEIGHTS:
        bound = f"an array and at most {_MAX_WEIGHTS} weights"
        raise make_error("value_unfit", argument="inputs", bound=bound, value=f"{len(others)} weights")
    for k, shape in enumerate(others, 1):
        check_same(shape, first, f"inputs[{k}]")
    _reduced(x, first, True)  # validates `axis`
    return (first,)


def _others_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    """Return the adjoint: a derivative of a product is a sum of products with one factor less and one weight more."""
    x, *weights = c.inputs
    gradients = [ops["ProdOthers"]([x, *weights, y], c.axis)]
    for k in range(len(weights)):
        gradients.append(ops["ProdOthers"]([x, *weights[:k], *weights[k + 1 :], y], c.axis))
    return (gradients,)


dense(
    "ProdOthers",
    "inputs: list T, axis: host Tidx -> output: T",
    types={"T": FLOATS, "Tidx": INDEX},
    shape=_others_rule,
    category=CATEGORY,
    differentiable=("inputs",),
    adjoint=_others_adjoint,
    tensorflow=False,
    doc="""For each element of `inputs[0]` the product of all others along dimensions: the derivative of `Prod`.

Further arrays are weights: each replaces one more factor, and the products are summed over all places where it can do
so. The derivatives of this op are calls of it with one more weight. There can be at most 8 weights.""",
    example="ProdOthers([np.array([2., 0., 3.])], axis=0)",
)


def _position(x: Known) -> tuple[Shape, ...]:
    shape, axis = x.shape("input"), scalar(x, "dimension")
    if not shape:
        raise make_error("rank_at_least", argument="input", value=shape_text(shape), bound=1)
    if axis is None:
        return ((None,) * (len(shape) - 1),)
    at = axis_in(axis, len(shape), "dimension")
    if shape[at] == 0:
        raise make_error("axis_empty", argument="dimension", value=axis, bound=shape_text(shape))
    return (shape[:at] + shape[at + 1 :],)


for _name, _word in (("ArgMax", "largest"), ("ArgMin", "smallest")):
    dense(
        _name,
        "input: T, dimension: host Tidx -> output: output_type",
        types={"T": (*REALS, "bool"), "Tidx": INDEX},
        attrs={"output_type": "int64"},
        choices={"output_type": ("int64", "int32")},
        shape=_position,
        category=CATEGORY,
        doc=f"The position of the {_word} element along a dimension; the first of equal ones.\n\nNaN is ignored; if all"
        " elements are NaN, the position is 0.",
        example=f"{_name}(np.array([[1., 5., 5.], [4., 2., 3.]]), dimension=1)",
    )
dense(
    "L2Loss",
    "t: T -> output: T",
    types={"T": FLOATS},
    shape=lambda x: ((),),
    category=CATEGORY,
    differentiable=("t",),
    adjoint=lambda ops, c, y: (ops["Mul"](c.t, y),),
    doc=f"Half the sum of squares: Σ t² / 2.\n\n{_SHORT}",
    example="L2Loss(np.array([3., 4.]))",
)
