"""The rules of optimizers in JAX's arithmetic, for rows or for a whole array alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Numbers(NamedTuple):
    """The numbers of one step; `decays` says whether there is a weight_decay, `step` counts from 1."""

    lr: Any
    step: Any
    decays: bool
    weight_decay: Any
    eps: Any = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def rate(self) -> Any:
        """lr·√(1 − β₂ᵗ) / (1 − β₁ᵗ): as 1 − exp(t·log β), which loses nothing where β is near 1."""
        b1, b2 = (_one_less_power(b, self.step) for b in self.betas)
        return jnp.asarray(self.lr).astype(_widest()) * jnp.sqrt(b2) / b1


def _widest() -> Any:
    """float64, where JAX has it."""
    return jnp.result_type(float)


def _one_less_power(beta: float, step: Any) -> Any:
    if beta == 0.0:
        return 1.0
    return -jnp.expm1(step.astype(_widest()) * math.log(beta))


def _decayed(n: Numbers, g: Any, w: Any) -> Any:
    return g + _rounded(n, w * as_type(n.weight_decay, g)) if n.decays else g


def as_type(number: Any, like: Any) -> Any:
    """A hyperparameter rounded once to the type of arithmetic."""
    return jnp.asarray(number).astype(like.dtype)


def _rounded(n: Numbers, x: Any) -> Any:
    """A product, rounded before something is added to it.

    XLA would make both one step that rounds once, or not, depending on how many rows there are: a part of a table would
    have other bits than the whole. It does not see that no bit is flipped here.
    """
    bits = jax.lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")
    none = jnp.minimum(jnp.asarray(n.step), 0).astype(bits.dtype)  # steps count from 1
    return jax.lax.bitcast_convert_type(bits ^ none, x.dtype)


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
    return (_rounded(n, -(_decayed(n, g, w) * as_type(n.lr, g))),)


def _adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    a = a + _rounded(n, g * g)
    return -(g * as_type(n.lr, g) / (jnp.sqrt(a) + as_type(n.eps, g))), a


def _row_wise_adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    columns = math.prod(g.shape[1:])
    rows = g.reshape(a.shape[0], columns)
    a = a + _rounded(n, _total(_rounded(n, rows * rows)) / max(columns, 1))
    factor = as_type(n.lr, g) / (jnp.sqrt(a) + as_type(n.eps, g))
    return _rounded(n, -(rows * factor[:, None])).reshape(g.shape), a


def _adam(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    return _moments(n, _decayed(n, g, w), m, v)


def _adamw(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    update, m, v = _moments(n, g, m, v)
    if n.decays:
        update = update - _rounded(n, w * (as_type(n.lr, g) * as_type(n.weight_decay, g)))
    return update, m, v


def _moments(n: Numbers, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    b1, b2 = (as_type(b, g) for b in n.betas)
    one = as_type(1.0, g)
    m = _rounded(n, m * b1) + _rounded(n, g * (one - b1))
    v = _rounded(n, v * b2) + _rounded(n, (g * g) * (one - b2))
    return -(m * as_type(n.rate(), g) / (jnp.sqrt(v) + as_type(n.eps, g))), m, v


STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_wise_adagrad": _row_wise_adagrad,
    "adam": _adam,
    "adamw": _adamw,
}
