"""Softmax, losses and biases."""

from __future__ import annotations

from typing import Any

from ..errors import refuse, shape_text
from ..shape import check_same, differ, same
from ..spec import FLOATS, NUMBERS, Call, Known, Shape
from .broadcasting import dense, summed

CATEGORY = "Losses"
_SHORT = "16-bit floats are worked on in float32 and rounded once."


def _has_rows(x: Known) -> tuple[Shape, ...]:
    if not x.shape("logits"):
        raise refuse("rank_at_least", argument="logits", value="[]", bound=1)
    return (x.shape("logits"),)


def _last(ops: Any, x: Any, like: Any) -> Any:
    """The sum along the last dimension, once for every element of it."""
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
        raise refuse("rank_exactly", argument="features", value=shape_text(shape), bound=2)
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

`backprop` is softmax(features) − labels, the gradient where a row of labels sums to 1. The op's own gradient is that
of the loss as it is, whatever the labels sum to. {_SHORT}""",
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
        raise refuse("rank_at_least", argument="value", value=shape_text(value), bound=2)
    if len(bias) != 1 or differ(bias[0], value[-1]):
        raise refuse("same_shape", argument="bias", value=shape_text(bias), bound=shape_text(value[-1:]))
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
