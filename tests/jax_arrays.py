"""Golden arrays and samples as JAX arrays, with and without 64-bit types."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import ml_dtypes
import numpy as np

from rowgrad._catalog.spec import Op
from samples import sample


def x64(on: bool = True) -> AbstractContextManager[Any]:
    """Return a context with JAX's 64-bit types on or off; the switch differs between versions."""
    switch = getattr(jax, "enable_x64", None)
    if switch is None:
        from jax.experimental import enable_x64 as switch
    return switch(on)


def placed(value: Any) -> jax.Array:
    """Return the value as a JAX array. `jnp.asarray` does too, but compiles a program per shape and dtype."""
    return jax.device_put(np.asarray(value))


def to_jax(value: Any) -> Any:
    """Return a NumPy array as a JAX array; None if JAX lacks the dtype."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "OTV" and value.dtype != ml_dtypes.bfloat16:
        return None
    array = placed(value)
    return array if array.dtype == value.dtype else None


def split(op: Op, dtype: Any = np.float64, seed: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a sample's arguments as arrays (host inputs as numbers), and its attributes."""
    sampled = sample(op.name, np.random.default_rng(seed), dtype)
    inputs = {k: v for k, v in sampled.items() if k in op.input_names}
    attrs = {k: v for k, v in sampled.items() if k in op.attrs}
    return {a.name: _argument(inputs[a.name], a.host, a.many) for a in op.inputs}, attrs


def _argument(value: Any, host: bool, many: bool) -> Any:
    if many:
        return [placed(v) for v in value]
    if host:
        return value.tolist() if isinstance(value, np.ndarray) else value
    return placed(value)
