"""The arithmetic of optimizer rules in JAX, for rows or for a whole array alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Numbers(NamedTuple):
    """The numbers of one step; `decays` says whether there is a weight_decay, `step` counts from 1."""

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
        """lr·(√(1 − β₂ᵗ) / (1 − β₁ᵗ)), of sums and products alone: see `_one_less_power`."""
        b1, b2 = (_one_less_power(b, self.step) for b in self.betas)
        return jnp.asarray(self.lr).astype(_widest()) * (jnp.sqrt(b2) / b1)


def _widest() -> Any:
    """float64, where JAX has it."""
    return jnp.result_type(float)


def _one_less_power(beta: float, step: Any) -> Any:
    """1 − βᵗ, which loses nothing where β is near 1: t is a sum of powers of two, and 1 − ab is (1 − a) + (1 − b)·a.

    The compiler evaluates JAX's own expm1 differently where it knows the step number than where it does not.
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
    """A hyperparameter rounded once to the type of arithmetic."""
    return jnp.asarray(number).astype(like.dtype)


@jax.custom_jvp
def _rounded(x: Any) -> Any:
    """A product, rounded before something is added to it. Its derivative is that of the identity.

    XLA would contract both into one multiply-add that rounds once, or not, depending on how many rows there are: a part
    of a table would have other bits than the whole. The bits of one NaN are replaced by those of another, which no
    compiler may leave out.
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
    """√x, whose derivative at 0 is 0: there the gradient is 0 too, and the step does not depend on the root."""
    return jnp.sqrt(x)


@_root.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    slope = 0.5 / _root(jnp.where(x == 0, 1, x))
    return _root(x), jnp.where(x == 0, 0, slope * tangent)


def _total(rows: Any) -> Any:
    """The sum of each row, halves added to halves: the order of XLA's own depends on how many rows there are."""
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
    a = a + _rounded(_total(_rounded(rows * rows)) / max(columns, 1))
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


# By the name of the rule. Each returns what is added to the weights, then its slots.
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
