"""The dense ops on traced arrays: the functions of `rowgrad._runtime.dense` with jax.numpy as array namespace.

They consist of JAX's own operations, so JAX differentiates, batches and compiles them. XLA may contract a product and a
sum into one instruction, which rounds once instead of twice, so compiled dense ops may differ in the last bit or two;
kernels have the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._catalog.spec import COMPLEX, FLOATS, REALS, Op
from .._runtime.dense import FUNCTIONS, host_dtypes
from .._runtime.validation import infer
from .arrays import admit_arrays, canonical_dtype, check_sizes

Axes = tuple[int, ...]


class _Names(type):
    """Attributes that depend on JAX's 64-bit mode, which may change at run time."""

    @property
    def int64(cls) -> Any:
        """The widest integer dtype."""
        return canonical_dtype("int64")


class Namespace(metaclass=_Names):
    """jax.numpy with the names of the array API standard, and a few that it lacks."""

    dtype = staticmethod(canonical_dtype)
    bool, float32 = canonical_dtype("bool"), canonical_dtype("float32")
    short_floats = frozenset(canonical_dtype(n) for n in ("float16", "bfloat16"))
    integers = frozenset(jnp.dtype(n) for n in REALS if n not in FLOATS)
    complexes = frozenset(jnp.dtype(n) for n in COMPLEX)

    where = staticmethod(jnp.where)
    zeros_like = staticmethod(jnp.zeros_like)
    ones_like = staticmethod(jnp.ones_like)
    full_like = staticmethod(jnp.full_like)
    broadcast_to = staticmethod(jnp.broadcast_to)
    reshape = staticmethod(jnp.reshape)
    argwhere = staticmethod(jnp.argwhere)
    argmax = staticmethod(jnp.argmax)
    argmin = staticmethod(jnp.argmin)
    pad = staticmethod(jnp.pad)
    real = staticmethod(jnp.real)
    abs = staticmethod(jnp.abs)
    sign = staticmethod(jnp.sign)
    sqrt = staticmethod(jnp.sqrt)
    exp = staticmethod(jnp.exp)
    expm1 = staticmethod(jnp.expm1)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    logaddexp = staticmethod(jnp.logaddexp)
    sin = staticmethod(jnp.sin)
    cos = staticmethod(jnp.cos)
    tanh = staticmethod(jnp.tanh)
    sigmoid = staticmethod(jax.nn.sigmoid)
    floor = staticmethod(jnp.floor)
    ceil = staticmethod(jnp.ceil)
    round = staticmethod(jnp.round)
    pow = staticmethod(jnp.power)
    fmod = staticmethod(jnp.fmod)
    remainder = staticmethod(jnp.remainder)
    floor_divide = staticmethod(jnp.floor_divide)
    stop_gradient = staticmethod(jax.lax.stop_gradient)

    @staticmethod
    def permute_dims(x: Any, axes: Axes) -> Any:
        """Permute dimensions; JAX does not accept negative ones."""
        return jnp.permute_dims(x, tuple(a % x.ndim for a in axes))

    @staticmethod
    def device(x: Any) -> Any:
        """Return no device: a tracer has none."""
        return None

    @staticmethod
    def asarray(values: Any, dtype: Any, device: Any = None) -> Any:
        """Convert numbers to an array."""
        return jnp.asarray(values, dtype)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any, device: Any = None) -> Any:
        """Return an array filled with one value."""
        return jnp.full(shape, value, dtype)

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        """Multiply matrices, with full float32 precision on every platform."""
        return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """Convert x to another dtype."""
        return x.astype(dtype)

    @staticmethod
    def copy(x: Any) -> Any:
        """Return x itself: JAX arrays are immutable."""
        return x

    @staticmethod
    def arange(start: Any, stop: Any, step: Any, dtype: Any, device: Any = None) -> Any:
        """Return start, start + step, …."""
        return jnp.arange(start, stop, step, dtype)

    @staticmethod
    def concat(arrays: Sequence[Any], axis: int = 0) -> Any:
        """Concatenate arrays."""
        return jnp.concatenate(tuple(arrays), axis)

    @staticmethod
    def sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Sum in the dtype of x."""
        return jnp.sum(x, axis, dtype=x.dtype, keepdims=keepdims)

    @staticmethod
    def long_sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Sum integers in the widest integer dtype."""
        wide = canonical_dtype("uint64" if x.dtype.kind == "u" else "int64")
        return jnp.sum(x, axis, dtype=wide, keepdims=keepdims)

    @staticmethod
    def prod(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Multiply in the dtype of x."""
        return jnp.prod(x, axis, dtype=x.dtype, keepdims=keepdims)

    @staticmethod
    def max(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return the maximum."""
        return jnp.max(x, axis, keepdims=keepdims)

    @staticmethod
    def min(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return the minimum."""
        return jnp.min(x, axis, keepdims=keepdims)

    @staticmethod
    def all(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return whether all elements are true."""
        return jnp.all(x, axis, keepdims=keepdims)

    @staticmethod
    def any(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Return whether any element is true."""
        return jnp.any(x, axis, keepdims=keepdims)

    @staticmethod
    def lowest(dtype: Any) -> Any:
        """Return the smallest value of a dtype."""
        return jnp.iinfo(dtype).min if dtype.kind in "iu" else -jnp.inf

    @staticmethod
    def highest(dtype: Any) -> Any:
        """Return the largest value of a dtype."""
        return jnp.iinfo(dtype).max if dtype.kind in "iu" else jnp.inf

    @staticmethod
    def lowest_finite(dtype: Any) -> Any:
        """Return the lowest finite value of a dtype."""
        return jnp.iinfo(dtype).min if dtype.kind in "iu" else jnp.finfo(dtype).min

    @staticmethod
    def last_positions(indices: Any, size: int) -> Any:
        """Return for each of `size` slots the last position that names it, or -1. Indices from `size` on name none."""
        inside = jnp.where(indices < 0, size, indices)
        numbers = jnp.arange(indices.shape[0], dtype=indices.dtype)
        return jnp.full((size,), -1, indices.dtype).at[inside].max(numbers, mode="drop")

    @staticmethod
    def take(x: Any, indices: Any) -> Any:
        """Gather rows; rows out of range are NaN, or the lowest integer."""
        inside = jnp.where(indices < 0, x.shape[0], indices)  # JAX would count negative ones from the end
        if x.shape[0] == 0:  # JAX cannot gather from an empty array
            x, inside = jnp.zeros((1, *x.shape[1:]), x.dtype), jnp.ones_like(inside)
        return x.at[inside].get(mode="fill")

    @staticmethod
    def first_true(mask: Any) -> int:
        """Return -1: the values of a tracer are unknown."""
        return -1


def call(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a dense op on arguments of which some are traced."""
    admitted = admit_arrays(op, arguments)
    outputs = infer(op, admitted.avals, admitted.host_values, attrs)
    check_sizes(outputs, "call it outside of jit, and pass its results in")
    values = {**admitted.arrays, **admitted.host_values}
    lists = {a.name for a in op.inputs if a.many}
    ordered: list[Any] = []
    for name, value in ((n, values[n]) for n in op.input_names):
        if name in lists:
            ordered.append(tuple(map(jnp.asarray, value)))
        else:
            ordered.append(jnp.asarray(value) if name in admitted.arrays else value)
    result = FUNCTIONS[op.name](Namespace, *ordered, **{**attrs, **host_dtypes(op.name, outputs)})
    return result if isinstance(result, tuple) else (result,)
