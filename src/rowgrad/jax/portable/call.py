"""A call as its kernel sees it, and what becomes of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array as Array

from ...spec import Aval, Op

Ok = Any  # a scalar of bool, an array or a Python bool: whether the CPU kernel would find no fault
Results = tuple[Ok, tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `call["grad"]` is an array, `call.size("num_rows")` a number known before the program runs."""

    op: Op
    arrays: Mapping[str, Array]
    host: Mapping[str, int | tuple[int, ...]]
    attrs: Mapping[str, Any]
    outputs: tuple[Aval, ...]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def size(self, name: str) -> int:
        """The value of a host scalar."""
        value = self.host[name]
        assert isinstance(value, int)
        return value

    @property
    def reduce(self) -> int:
        """How the rows of a bag are combined: SUM, MEAN or SQRTN of `sums`."""
        return self.op.constants[0]


Kernel = Callable[[Call], Results]


def finish(call: Call, ok: Ok, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Results in the dtypes and shapes the call promised, poisoned unless `ok`."""
    shaped = []
    for result, aval in zip(results, call.outputs, strict=True):
        dtype = jax.dtypes.canonicalize_dtype(aval.dtype)
        shaped.append(_poisoned_unless(ok, result.astype(dtype).reshape(aval.shape)))
    return tuple(shaped)


def _poisoned_unless(ok: Ok, result: Array) -> Array:
    if ok is True or result.dtype == jnp.bool_ or result.size == 0:
        return result
    poison: float | int = jnp.nan
    if jnp.issubdtype(result.dtype, jnp.integer):
        limits = jnp.iinfo(result.dtype)
        poison = limits.min or limits.max
    return jnp.where(ok, result, jnp.asarray(poison, result.dtype))
