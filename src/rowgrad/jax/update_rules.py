"""The arithmetic of the optimizer rules in JAX, for rows and for whole arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Numbers(NamedTuple):
    """The hyperparameters of one step; `decays`: whether weight_decay is not 0; `step` counts from 1."""

    lr: Any
    step: Any
    decays: bool
    weight_decay: Any = 0.0
    eps: Any = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: Any = 0.9
    nesterov: bool = False
    lr_power: Any = -0.5
    l1: Any = 0.0
    l2: Any = 0.0
    l2_shrinkage: Any = 0.0

    def rate(self) -> Any:
        """Return lr·(√(1 − β₂ᵗ) / (1 − β₁ᵗ)); see `_one_less_power`."""
        b1, b2 = (_one_less_power(b, self.step) for b in self.betas)
        return jnp.asarray(self.lr).astype(_widest()) * (jnp.sqrt(b2) / b1)


def _widest() -> Any:
    """Return float64, or float32 without JAX's 64-bit mode."""
    return jnp.result_type(float)


def _one_less_power(beta: float, step: Any) -> Any:
    """Return 1 − βᵗ without cancellation for β near 1: t is a sum of powers of two, and 1 − ab = (1 − a) + (1 − b)·a.

    Not by jnp.expm1, which has other bits if the compiler knows the step number.
    """
    if beta == 0.0:
        return jnp.ones((), _widest())
    places = np.arange(32)  # a step number has 31 bits
    parts = jnp.asarray(-np.expm1(2.0**places * math.log(beta)), _widest())
    parts = jnp.where((step >> jnp.asarray(places, step.dtype)) & 1 == 1, parts, 0)
    while parts.shape[0] > 1:
        a, b = jnp.split(parts, 2)
        parts = a + _rounded(b * (1 - a))
    return parts[0]


def _decayed(n: Numbers, g: Any, w: Any) -> Any:
    return g + _rounded(w * as_type(n.weight_decay, g)) if n.decays else g


def as_type(number: Any, like: Any) -> Any:
    """Return a hyperparameter rounded once to the dtype of `like`."""
    return jnp.asarray(number).astype(like.dtype)


@jax.custom_jvp
def _rounded(x: Any) -> Any:
    """Return a product so that it is rounded before something is added to it; the derivative is the identity's.

    Depending on the number of rows, XLA would contract both into one multiply-add that rounds once, so a shard would
    have other bits than the whole table. Replacing one NaN by another is an operation that no compiler may remove.
    """
    bits = jax.lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")
    nan = jnp.asarray(jnp.nan, x.dtype)
    quiet = jax.lax.bitcast_convert_type(nan, bits.dtype)
    return jax.lax.bitcast_convert_type(jnp.where(bits == quiet + 1, quiet, bits), x.dtype)


@_rounded.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _rounded(*primals), tangents[0]


@jax.custom_jvp
def _root(x: Any) -> Any:
    """Return √x with derivative 0 at 0, where the gradient is 0 too and the step does not depend on the root."""
    return jnp.sqrt(x)


@_root.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    slope = 0.5 / _root(jnp.where(x == 0, 1, x))
    return _root(x), jnp.where(x == 0, 0, slope * tangent)


def _row_sums(rows: Any) -> Any:
    """Return the sum of each row by pairwise halves; the order of XLA's sum depends on the number of rows."""
    columns = rows.shape[1]
    while columns > 1:
        half = columns // 2
        added = rows[:, :half] + rows[:, half : 2 * half]
        rows = added if columns % 2 == 0 else jnp.concatenate([added, rows[:, -1:]], axis=1)
        columns = rows.shape[1]
    return rows.sum(axis=1)


def _sgd(n: Numbers, g: Any, w: Any) -> tuple[Any, ...]:
    return (_rounded(-(_decayed(n, g, w) * as_type(n.lr, g))),)


def _adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    a = a + _rounded(g * g)
    return -(g * as_type(n.lr, g) / (_root(a) + as_type(n.eps, g))), a


def _row_wise_adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    columns = math.prod(g.shape[1:])
    rows = g.reshape(a.shape[0], columns)
    a = a + _rounded(_row_sums(_rounded(rows * rows)) / max(columns, 1))
    factor = as_type(n.lr, g) / (_root(a) + as_type(n.eps, g))
    return _rounded(-(rows * factor[:, None])).reshape(g.shape), a


def _adam(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    return _moments(n, _decayed(n, g, w), m, v)


def _adamw(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    update, m, v = _moments(n, g, m, v)
    if n.decays:
        update = update - _rounded(w * (as_type(n.lr, g) * as_type(n.weight_decay, g)))
    return update, m, v


def _moments(n: Numbers, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    b1, b2 = (as_type(b, g) for b in n.betas)
    one = as_type(1.0, g)
    m = _rounded(m * b1) + _rounded(g * (one - b1))
    v = _rounded(v * b2) + _rounded((g * g) * (one - b2))
    return -(m * as_type(n.rate(), g) / (_root(v) + as_type(n.eps, g))), m, v


def _momentum(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    lr, momentum = as_type(n.lr, g), as_type(n.momentum, g)
    a = _rounded(a * momentum) + g
    if n.nesterov:
        return -(_rounded(g * lr) + _rounded(a * (momentum * lr))), a
    return _rounded(-(a * lr)), a


def _lion(n: Numbers, g: Any, w: Any, m: Any) -> tuple[Any, ...]:
    b1, b2 = (as_type(b, g) for b in n.betas)
    one, lr = as_type(1.0, g), as_type(n.lr, g)
    update = _rounded(-(jnp.sign(_rounded(m * b1) + _rounded(g * (one - b1))) * lr))
    if n.decays:
        update = update - _rounded(w * (lr * as_type(n.weight_decay, g)))
    return update, _rounded(m * b2) + _rounded(g * (one - b2))


def _ftrl(n: Numbers, g: Any, w: Any, a: Any, l: Any) -> tuple[Any, ...]:  # noqa: E741
    lr, l1, two = as_type(n.lr, g), as_type(n.l1, g), as_type(2.0, g)
    by_root = isinstance(n.lr_power, int | float) and n.lr_power == -0.5

    def powered(x: Any) -> Any:
        return _root(x) if by_root else jnp.power(x, as_type(-n.lr_power, g))

    after = a + _rounded(g * g)
    moved = _rounded((powered(after) - powered(a)) / lr * w)
    shrinks = not isinstance(n.l2_shrinkage, int | float) or n.l2_shrinkage != 0  # 0·w is NaN for an infinite w
    shrunk = g + _rounded(w * (two * as_type(n.l2_shrinkage, g))) if shrinks else g
    linear = l + (shrunk - moved)
    inside = jnp.clip(linear, -l1, l1)
    new = (inside - linear) / (powered(after) / lr + _rounded(two * as_type(n.l2, g)))
    return new - w, after, linear


# By the name of the rule. Each returns the update of the weights, then its slots.
STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_wise_adagrad": _row_wise_adagrad,
    "adam": _adam,
    "adamw": _adamw,
    "momentum": _momentum,
    "lion": _lion,
    "ftrl": _ftrl,
}
