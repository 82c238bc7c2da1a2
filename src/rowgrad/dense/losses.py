"""Softmax, losses and biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .words import narrow, wide


def _log_softmax(xp: Any, x: Any) -> Any:
    """Along the last dimension; the largest is taken off first, so that nothing overflows."""
    if not x.shape[-1]:
        return x
    shifted = x - xp.stop_gradient(xp.max(x, (x.ndim - 1,), True))
    return shifted - xp.log(xp.sum(xp.exp(shifted), (x.ndim - 1,), True))


def _softmax(xp: Any, x: Any) -> Any:
    if not x.shape[-1]:
        return x
    powers = xp.exp(x - xp.stop_gradient(xp.max(x, (x.ndim - 1,), True)))
    return powers / xp.sum(powers, (x.ndim - 1,), True)


def _cross_entropy(xp: Any, features: Any, labels: Any) -> tuple[Any, Any]:
    x, p = wide(xp, features), wide(xp, labels)
    loss = -xp.sum(p * _log_softmax(xp, x), (1,), False)
    return narrow(xp, loss, features.dtype), narrow(xp, _softmax(xp, x) - p, features.dtype)


def _sigmoid_cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    x = wide(xp, logits)
    positive, zeros = x >= 0, xp.zeros_like(x)
    # Not softplus(x) − x · z: that is 0 for large x and z = 1, where this is exp(−x). The slope at 0 is ½.
    small = xp.log1p(xp.exp(xp.where(positive, -x, x)))
    return narrow(xp, xp.where(positive, x, zeros) - x * wide(xp, labels) + small, logits.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Softmax": lambda xp, logits: xp.copy(narrow(xp, _softmax(xp, wide(xp, logits)), logits.dtype)),
    "LogSoftmax": lambda xp, logits: xp.copy(narrow(xp, _log_softmax(xp, wide(xp, logits)), logits.dtype)),
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SigmoidCrossEntropyWithLogits": _sigmoid_cross_entropy,
    "BiasAdd": lambda xp, value, bias: value + bias,
}
