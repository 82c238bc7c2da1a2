"""jax.vmap: the rules of `rowgrad._runtime.vmap` with jax.numpy as their array namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._catalog.spec import Aval, Op
from .._runtime import vmap
from .._runtime.vmap import Run


class Namespace:
    """jax.numpy with the names of `rowgrad._runtime.vmap`; `int64` is int32 without JAX's 64-bit mode."""

    float32 = jnp.dtype("float32")
    short_floats = frozenset((jnp.dtype("float16"), jnp.dtype("bfloat16")))

    where = staticmethod(jnp.where)
    reshape = staticmethod(jnp.reshape)
    broadcast_to = staticmethod(jnp.broadcast_to)
    moveaxis = staticmethod(jnp.moveaxis)
    stack = staticmethod(jnp.stack)
    concat = staticmethod(jnp.concatenate)
    ones_like = staticmethod(jnp.ones_like)

    def __init__(self) -> None:
        self.int64 = jax.dtypes.canonicalize_dtype("int64")  # the setting may differ by thread and change later

    def admit(self, op: Op, arguments: Mapping[str, Any]) -> dict[str, tuple[Any, Aval]]:
        """Return JAX arrays and values of host inputs, and the aval of each."""
        admitted: dict[str, tuple[Any, Aval]] = {}
        for arg in op.inputs:
            value = arguments[arg.name]
            if arg.host:
                dtype = "int64" if arg.type in op.types else arg.type
                aval = Aval(dtype, () if isinstance(value, int) else (len(value),))
            else:
                value = jnp.asarray(value)
                is_fixed = arg.type == "int64" and value.dtype == self.int64
                aval = Aval("int64" if is_fixed else value.dtype.name, tuple(value.shape))
            admitted[arg.name] = value, aval
        return admitted

    @staticmethod
    def sizes(value: Any) -> Any:
        """Return sizes unchanged: JAX has no symbolic sizes here."""
        return value

    @staticmethod
    def is_array(value: Any) -> bool:
        """Return whether a value is an array or a stand-in for one."""
        return isinstance(value, Array)

    @staticmethod
    def highest(dtype: Any) -> int:
        """Return the largest integer of a dtype."""
        return int(np.iinfo(dtype).max)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """Convert x to another dtype."""
        return x.astype(dtype)

    @staticmethod
    def all(x: Any, axis: int, keepdims: bool) -> Any:
        """Return whether all elements are true."""
        return jnp.all(x, axis=axis, keepdims=keepdims)

    @staticmethod
    def numbers(stop: int, like: Any, dtype: Any) -> Array:
        """Return 0, 1, 2, … on the default device."""
        return jnp.arange(stop, dtype=dtype)

    @staticmethod
    def zeros(shape: Sequence[int], like: Any) -> Array:
        """Return zeros of the dtype of another array."""
        return jnp.zeros(shape, like.dtype)

    def count(self, ids: Any) -> Any:
        """Return the last id plus one, 0 without ids; an int unless the ids are traced."""
        if isinstance(ids, jax.core.Tracer):
            return (ids[-1:].astype(self.int64) + 1).sum()
        return int(ids[-1]) + 1 if ids.shape[0] else 0

    @staticmethod
    def named(index: Any, size: int) -> Array:
        """Return which of `size` positions each row of `index` names."""
        rows = jnp.arange(index.shape[0])[:, None]
        return jnp.zeros((index.shape[0], size), bool).at[rows, index].set(True)

    @staticmethod
    def pick(pool: Any, index: Any) -> Array:
        """Return pool[b, index[b, i]] or, for a shared index, pool[b, index[i]]."""
        each = jnp.broadcast_to(index, (pool.shape[0], index.shape[-1]))
        return jnp.take_along_axis(pool, each, axis=1, mode="clip")


def batched(
    op: Op,
    attrs: Mapping[str, Any],
    batch_size: int,
    values: Sequence[Any],
    in_dims: Sequence[int | None],
    run: Run,
) -> tuple[tuple[Array, ...], tuple[int | None, ...]]:
    """Run a kernel op for every item of a batch; return outputs and their batch dimensions (None: not batched)."""
    with jax.numpy_rank_promotion("allow"):  # the rules broadcast as NumPy does
        return vmap.batched(Namespace(), op, attrs, batch_size, values, in_dims, run)
