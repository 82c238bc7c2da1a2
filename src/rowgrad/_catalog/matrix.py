"""Matrix products and transposes, softmax, losses and biases."""

from __future__ import annotations

from typing import Any

from ..errors import make_error, shape_text
from .elementwise import dense, summed
from .shapes import axis_in, check_same, differ, same, vector
from .spec import EVERYTHING, FLOATS, INDEX, NUMBERS, Call, Known, Shape

# -- Softmax, losses and biases ---------------------------------------------------------------------------------------

CATEGORY = "Losses"
_SHORT = "16-bit floats are computed in float32 and rounded once."


def _has_rows(x: Known) -> tuple[Shape, ...]:
    if not x.shape("logits"):
        raise make_error("rank_at_least", argument="logits", value="[]", bound=1)
    return (x.shape("logits"),)


def _last(ops: Any, x: Any, like: Any) -> Any:
    """Return the sum along the last dimension, broadcast along it."""
    return ops["Sum"](x, len(like.shape) - 1, keep_dims=True)


def _softmax(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    p = c.outputs[0]
    return (ops["Mul"](p, ops["Sub"](y, _last(ops, ops["Mul"](y, p), c.logits))),)


def _log_softmax(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    p = ops["Exp"](c.outputs[0])
    return (ops["Sub"](y, ops["Mul"](p, _last(ops, y, c.logits))),)


for _name, _output, _adjoint, _doc in (
    ("Softmax", "softmax", _softmax, "exp(x) / Σ exp(x) along the last dimension."),
    ("LogSoftmax", "logsoftmax", _log_softmax, "x − log Σ exp(x) along the last dimension."),
):
    dense(
        _name,
        f"logits: T -> {_output}: T",
        types={"T": FLOATS},
        shape=_has_rows,
        category=CATEGORY,
        differentiable=("logits",),
        adjoint=_adjoint,
        doc=f"{_doc}\n\n{_SHORT}",
        example=f"{_name}(np.array([[1., 2., 3.], [0., 0., 0.]]))",
    )


def _classes(x: Known) -> tuple[Shape, ...]:
    shape = x.shape("features")
    if len(shape) != 2:
        raise make_error("rank_exactly", argument="features", value=shape_text(shape), bound=2)
    check_same(x.shape("labels"), shape, "labels")
    return (shape[0],), shape


def _plus(ops: Any, a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else ops["Add"](a, b)


def _cross_entropy(ops: Any, c: Call, loss: Any, backprop: Any) -> tuple[Any, ...]:
    p = ops["Softmax"](c.features)
    to_features = to_labels = None
    if loss is not None:
        upstream = ops["ExpandDims"](loss, 1)
        total = ops["Sum"](c.labels, 1, keep_dims=True)
        to_features = ops["Mul"](upstream, ops["Sub"](ops["Mul"](p, total), c.labels))
        if c.wants("labels"):
            to_labels = ops["Neg"](ops["Mul"](upstream, ops["LogSoftmax"](c.features)))
    if backprop is not None:
        inner = ops["Sum"](ops["Mul"](backprop, p), 1, keep_dims=True)
        to_features = _plus(ops, to_features, ops["Mul"](p, ops["Sub"](backprop, inner)))
        if c.wants("labels"):
            to_labels = _plus(ops, to_labels, ops["Neg"](backprop))
    return to_features, to_labels


dense(
    "SoftmaxCrossEntropyWithLogits",
    "features: T, labels: T -> loss: T, backprop: T",
    types={"T": FLOATS},
    shape=_classes,
    category=CATEGORY,
    differentiable=("features", "labels"),
    adjoint=_cross_entropy,
    doc=f"""The cross entropy of labels and softmax(features), row by row: −Σ labels · log softmax(features).

`backprop` is softmax(features) − labels, which is the gradient if each row of labels sums to 1. The gradient of this
op is correct for any labels. {_SHORT}""",
    example="SoftmaxCrossEntropyWithLogits(np.array([[1., 2., 3.]]), np.array([[0., 0., 1.]]))",
)


def _sigmoid_cross_entropy(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (
        ops["Mul"](y, ops["Sub"](ops["Sigmoid"](c.logits), c.labels)),
        ops["Neg"](ops["Mul"](y, c.logits)) if c.wants("labels") else None,
    )


dense(
    "SigmoidCrossEntropyWithLogits",
    "logits: T, labels: T -> loss: T",
    types={"T": FLOATS},
    shape=same("logits", "labels"),
    category=CATEGORY,
    differentiable=("logits", "labels"),
    adjoint=_sigmoid_cross_entropy,
    tensorflow=False,
    doc=f"""The cross entropy of labels and sigmoid(logits), elementwise: max(x, 0) − x · z + log(1 + exp(−|x|)).

{_SHORT}""",
    example="SigmoidCrossEntropyWithLogits(np.array([1., -2.]), np.array([1., 0.]))",
)


def _bias(x: Known) -> tuple[Shape, ...]:
    value, bias = x.shape("value"), x.shape("bias")
    if len(value) < 2:
        raise make_error("rank_at_least", argument="value", value=shape_text(value), bound=2)
    if len(bias) != 1 or differ(bias[0], value[-1]):
        raise make_error("same_shape", argument="bias", value=shape_text(bias), bound=shape_text(value[-1:]))
    return (value,)


dense(
    "BiasAdd",
    "value: T, bias: T -> output: T",
    types={"T": NUMBERS},
    shape=_bias,
    category=CATEGORY,
    differentiable=("value", "bias"),
    linear=("value", "bias"),
    adjoint=lambda ops, c, y: (y, summed(ops, y, c.bias) if c.wants("bias") else None),
    doc="A vector added to every row: `bias` is as long as the last dimension of `value`.",
    example="BiasAdd(np.array([[1., 2.], [3., 4.]]), np.array([10., 20.]))",
)


# -- Matrix products and transposes -----------------------------------------------------------------------------------

MATRIX_CATEGORY = "Matrix"


def _product(x: Known) -> tuple[Shape, ...]:
    for name in ("a", "b"):
        if len(x.shape(name)) != 2:
            raise make_error("rank_exactly", argument=name, value=shape_text(x.shape(name)), bound=2)
    rows, inner = x.shape("a")[:: -1 if x.attrs["transpose_a"] else 1]
    other, columns = x.shape("b")[:: -1 if x.attrs["transpose_b"] else 1]
    if differ(inner, other):
        raise make_error("inner_sizes", argument="b", value=other, bound=inner)
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
    category=MATRIX_CATEGORY,
    differentiable=("a", "b"),
    adjoint=_matmul,
    doc="""The product of two matrices, each transposed first if requested.

16-bit floats are multiplied and added in float32 and rounded once; the order of additions is the array library's.""",
    example="MatMul(np.array([[1., 2.], [3., 4.]]), np.array([[1., 1.], [0., 1.]]), transpose_b=True)",
)


def _order(x: Known) -> tuple[int, ...] | None:
    dims, perm = len(x.shape("x")), vector(x, "perm")
    if perm is None:
        return None
    found = tuple(axis_in(p, dims, "perm", i) for i, p in enumerate(perm))
    if sorted(found) != list(range(dims)):
        raise make_error("not_a_permutation", argument="perm", value=shape_text(perm), bound=dims)
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
    "category": MATRIX_CATEGORY,
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
    doc="The inverse, and the transpose, of `Transpose` with the same `perm`.",
    example="TransposeBack(np.array([[1., 4.], [2., 5.], [3., 6.]]), perm=[1, 0])",
    **_FIELDS,
)
