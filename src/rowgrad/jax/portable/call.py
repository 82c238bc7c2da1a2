"""Shared by the portable kernels: the call, checks of ids, faults, and sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jax import Array as Array

from ..._catalog.enums import Reduction
from ..._catalog.kernels import KERNELS
from ..._catalog.spec import Aval, Op

# -- Calls and their results ------------------------------------------------------------------------------------------

Ok = Any  # whether the CPU kernel would accept the data: a scalar array of bool, or a Python bool
Results = tuple[Ok, tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `call["grad"]` is an array, `call.size("num_rows")` a static number."""

    op: Op
    arrays: Mapping[str, Array]
    host: Mapping[str, int | tuple[int, ...]]
    attrs: Mapping[str, Any]
    outputs: tuple[Aval, ...]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def size(self, name: str) -> int:
        """Return the value of a host scalar."""
        value = self.host[name]
        assert isinstance(value, int)
        return value

    @property
    def reduction(self) -> Reduction:
        """How the rows of a bag are combined."""
        return Reduction(self.parameter("reduction"))

    def parameter(self, name: str) -> int:
        """Return a numeric parameter of the op's kernel."""
        names = KERNELS[str(self.op.kernel)].parameters
        return self.op.constants[names.index(name)]


Kernel = Callable[[Call], Results]


def finish(call: Call, ok: Ok, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the results in the dtypes and shapes of the outputs, poisoned unless `ok`."""
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


# -- Lists of ids -----------------------------------------------------------------------------------------------------


def all_below(ids: Array, bound: int) -> Ok:
    """Return whether every id is in [0, bound)."""
    if ids.shape[0] == 0:
        return True
    if bound > jnp.iinfo(ids.dtype).max:  # no id of this dtype is too large, and the bound does not fit the dtype
        return jnp.all(ids >= 0)
    return jnp.all((ids >= 0) & (ids < bound))


def is_nondecreasing(ids: Array) -> Ok:
    """Return whether no id is below the one before it."""
    return jnp.all(ids[1:] >= ids[:-1])


def is_increasing_below(ids: Array, bound: int) -> Ok:
    """Return whether ids are strictly increasing and in [0, bound)."""
    return all_below(ids, bound) & jnp.all(ids[1:] > ids[:-1])


def rows_at(values: Array, ids: Array) -> Array:
    """Return rows by id: the nearest row for an id out of range, zeros if there are no rows."""
    if values.shape[0] == 0:
        return jnp.zeros((ids.shape[0], *values.shape[1:]), values.dtype)
    return jnp.take(values, ids, axis=0, mode="clip")


def run_of_each(starts: Array, count: int) -> Array:
    """Return the run of each of `count` places, where run k begins at `starts[k]`; the last of equal starts."""
    places = jnp.arange(count, dtype=starts.dtype)
    return jnp.searchsorted(starts, places, side="right") - 1


# -- Sums of rows -----------------------------------------------------------------------------------------------------


def matrix(values: Array) -> Array:
    """Return rows of any rank as rows of a matrix."""
    return values.reshape(values.shape[0], math.prod(values.shape[1:]))


def widen(values: Array) -> Array:
    """Convert 16-bit floats to float32, in which they are summed; other dtypes are unchanged."""
    short = values.dtype in (jnp.float16, jnp.bfloat16)
    return values.astype(jnp.float32) if short else values


def add_up(terms: Array, ids: Array, rows: int, sorted_ids: bool = False) -> Array:
    """Add each term to the row of its id; return `rows` sums, in the dtype of the terms.

    XLA on a CPU adds in input order; elsewhere the order is the platform's. `sorted_ids` may be passed for ids that are
    required to be sorted, because otherwise the result is poisoned anyway.
    """
    return jax.ops.segment_sum(terms, ids, num_segments=rows, indices_are_sorted=sorted_ids)


def ids_per_segment(segments: Array, rows: int, sorted_ids: bool = False) -> Array:
    """Return the number of ids of each segment."""
    return add_up(jnp.ones(segments.shape[0], jnp.int32), segments, rows, sorted_ids)


def combine(totals: Array, counts: Array, reduction: Reduction) -> Array:
    """Return the sums of bags, divided as the reduction requires."""
    divisors = _divisors(counts, reduction, totals)
    return totals if divisors is None else totals / divisors


def scaled(grad: Array, counts: Array, reduction: Reduction) -> Array:
    """Return gradient rows times 1/n or 1/√n of their segment; unchanged for sums."""
    divisors = _divisors(counts, reduction, grad)
    return grad if divisors is None else grad * (1 / divisors)


def _divisors(counts: Array, reduction: Reduction, like: Array) -> Array | None:
    n = jnp.maximum(counts, 1).astype(like.dtype)[:, None]
    match reduction:
        case Reduction.sum:
            return None
        case Reduction.mean:
            return n
        case Reduction.sqrtn:
            return jnp.sqrt(n)
        case _:
            assert_never(reduction)


def divide_or_zero(values: Array, by: Array) -> Array:
    """Return values / by, and 0 where `by` is 0."""
    safe = jnp.where(by == 0, jnp.ones_like(by), by)
    return jnp.where(by == 0, jnp.zeros_like(values), values / safe)
