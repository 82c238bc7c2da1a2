"""The rules of optimizers in JAX's arithmetic, for rows or for a whole array alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

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
    return g + w * as_type(n.weight_decay, g) if n.decays else g


def as_type(number: Any, like: Any) -> Any:
    """A hyperparameter rounded once to the type of arithmetic."""
    return jnp.asarray(number).astype(like.dtype)


def _sgd(n: Numbers, g: Any, w: Any) -> tuple[Any, ...]:
    return (-(_decayed(n, g, w) * as_type(n.lr, g)),)


def _adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    a = a + g * g
    return -(g * as_type(n.lr, g) / (jnp.sqrt(a) + as_type(n.eps, g))), a


def _row_wise_adagrad(n: Numbers, g: Any, w: Any, a: Any) -> tuple[Any, ...]:
    g = _decayed(n, g, w)
    columns = math.prod(g.shape[1:])
    rows = g.reshape(a.shape[0], columns)
    a = a + (rows * rows).sum(axis=1) / max(columns, 1)
    factor = as_type(n.lr, g) / (jnp.sqrt(a) + as_type(n.eps, g))
    return -(rows * factor[:, None]).reshape(g.shape), a


def _adam(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    return _moments(n, _decayed(n, g, w), m, v)


def _adamw(n: Numbers, g: Any, w: Any, m: Any, v: Any) -> tuple[Any, ...]:
    update, m, v = _moments(n, g, m, v)
    if n.decays:
        update = update - w * (as_type(n.lr, g) * as_type(n.weight_decay, g))
    return update, m, v


def _moments(n: Numbers, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    b1, b2 = (as_type(b, g) for b in n.betas)
    one = as_type(1.0, g)
    m = m * b1 + g * (one - b1)
    v = v * b2 + (g * g) * (one - b2)
    return -(m * as_type(n.rate(), g) / (jnp.sqrt(v) + as_type(n.eps, g))), m, v


STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_wise_adagrad": _row_wise_adagrad,
    "adam": _adam,
    "adamw": _adamw,
}
