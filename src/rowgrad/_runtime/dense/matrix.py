"""Matrix products, losses and per-row scaling over an array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .elementwise import div_no_nan
from .shared import column, narrow, wide

# -- Matrix products and transposes -----------------------------------------------------------------------------------


def _matmul(xp: Any, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    left = xp.permute_dims(a, (1, 0)) if transpose_a else a
    right = xp.permute_dims(b, (1, 0)) if transpose_b else b
    return narrow(xp, xp.matmul(wide(xp, left), wide(xp, right)), a.dtype)


def _transpose_back(xp: Any, x: Any, perm: tuple[int, ...]) -> Any:
    back = sorted(range(len(perm)), key=[p % len(perm) for p in perm].__getitem__)
    return xp.copy(xp.permute_dims(x, tuple(back)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "MatMul": _matmul,
    "Transpose": lambda xp, x, perm: xp.copy(xp.permute_dims(x, perm)),
    "TransposeBack": _transpose_back,
}


# -- Softmax, losses and biases ---------------------------------------------------------------------------------------


def _log_softmax(xp: Any, x: Any) -> Any:
    """Compute along the last dimension; subtract the maximum first to avoid overflow."""
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


LOSSES_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Softmax": lambda xp, logits: xp.copy(narrow(xp, _softmax(xp, wide(xp, logits)), logits.dtype)),
    "LogSoftmax": lambda xp, logits: xp.copy(narrow(xp, _log_softmax(xp, wide(xp, logits)), logits.dtype)),
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SigmoidCrossEntropyWithLogits": _sigmoid_cross_entropy,
    "BiasAdd": lambda xp, value, bias: value + bias,
}


# -- Per-row scaling and clipping, for the gradients of weights and of max_norm ---------------------------------------

_LONG = 1 << 64


def _scale_rows(xp: Any, rows: Any, scale: Any) -> Any:
    return xp.astype(xp.astype(rows, scale.dtype) * column(xp, scale, rows), rows.dtype)


def _div_rows(xp: Any, rows: Any, by: Any) -> Any:
    wide = xp.astype(rows, by.dtype)
    divisors = xp.broadcast_to(column(xp, by, rows), wide.shape)
    return xp.astype(div_no_nan(xp, wide, divisors), rows.dtype)


def _full(xp: Any, x: Any, value: Any) -> Any:
    """Return an array like x filled with an attribute. Integers beyond 64 bits become floats, as x is then."""
    is_long = isinstance(value, int) and not -_LONG < value < _LONG
    return xp.full_like(x, float(value) if is_long else value)


def _at_least(xp: Any, x: Any, bound: float) -> Any:
    bounds = _full(xp, x, bound)
    return xp.where(x < bounds, bounds, x)


ROWS_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Positions": lambda xp, ids: xp.arange(0, ids.shape[0], 1, dtype=xp.int64, device=xp.device(ids)),
    "ScaleRows": _scale_rows,
    "DivRows": _div_rows,
    "MaskRows": lambda xp, rows, mask: xp.where(column(xp, mask, rows), xp.zeros_like(rows), rows),
    "MaskBelow": lambda xp, x, bound: xp.astype(x >= _full(xp, x, bound), x.dtype),
    "AtLeast": _at_least,
    "FullLike": _full,
    "ConcatRows": lambda xp, x, y: xp.concat([x, y]),
    "SplitRows": lambda xp, rows, x, y: (xp.copy(rows[: x.shape[0]]), xp.copy(rows[x.shape[0] :])),
}
