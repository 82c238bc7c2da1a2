"""JAX on the CPU, compiled: gather and `segment_sum` forward, gather and scatter-add backward; bag sizes are known."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

VERSION = f"JAX {jax.__version__}"
Arrays = dict[str, Any]


def to_numpy(result: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(result.astype(jnp.float32) if result.dtype == jnp.bfloat16 else result)]


def parts(x: Arrays, name: str, weights: np.ndarray[Any, Any] | None) -> tuple[Any, ...]:
    """Return table or gradient, ids, segment ids, one over each bag's sum, weights or None; all on the device."""
    jax.config.update("jax_enable_x64", x["ids"].dtype == np.int64)
    total = np.bincount(x["segments"], weights, minlength=x["bags"])
    scale = jnp.asarray(1 / np.where(total == 0, 1, total), x["dtype"])[:, None]
    factors = None if weights is None else jnp.asarray(weights, x["dtype"])[:, None]
    values = jnp.asarray(x[name]).astype(x["dtype"])
    return values, jnp.asarray(x["ids"]), jnp.asarray(x["segments"]), scale, factors


def bags(x: Arrays, weights: np.ndarray[Any, Any] | None) -> Callable[[], Any]:
    def compute(table: Any, ids: Any, segments: Any, scale: Any, factors: Any) -> Any:
        found = table[ids] if factors is None else table[ids] * factors
        return jax.ops.segment_sum(found, segments, x["bags"], indices_are_sorted=True) * scale

    arguments = parts(x, "table", weights)
    run = jax.jit(compute)
    return lambda: run(*arguments).block_until_ready()


def gradient(x: Arrays, weights: np.ndarray[Any, Any] | None) -> Callable[[], Any]:
    shape = (x["rows"], x["grad"].shape[1])

    def compute(grad: Any, ids: Any, segments: Any, scale: Any, factors: Any) -> Any:
        share = (grad * scale)[segments]
        return jnp.zeros(shape, grad.dtype).at[ids].add(share if factors is None else share * factors)

    arguments = parts(x, "grad", weights)
    run = jax.jit(compute)
    return lambda: run(*arguments).block_until_ready()


def tiny_loop(x: Arrays) -> Callable[[], Any]:
    """Return a loop of a thousand gathers and segment sums, each on the result of the one before."""
    ids = jnp.arange(16)

    def step(_: Any, table: Any) -> Any:
        return jax.ops.segment_sum(table[ids], ids, 16, indices_are_sorted=True)

    run, table = jax.jit(lambda t: jax.lax.fori_loop(0, 1000, step, t)), jnp.ones((16, 16))
    return lambda: run(table).block_until_ready()


KINDS = {
    "tiny_jit": tiny_loop,
    "forward": lambda x: bags(x, None),
    "weighted": lambda x: bags(x, x["weights"]),
    "dense": lambda x: gradient(x, None),
    "weighted_dense": lambda x: gradient(x, x["weights"]),
}
