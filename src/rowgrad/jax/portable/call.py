"""What portable kernels share: checks of ids, faults, sums in the documented order."""

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

# -- A call as its kernel sees it, and what becomes of its results ----------------------------------------------------

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
    def reduction(self) -> Reduction:
        """How the rows of a bag are combined."""
        return Reduction(self.parameter("reduction"))

    def parameter(self, name: str) -> int:
        """A number that the op's kernel reads."""
        names = KERNELS[str(self.op.kernel)].parameters
        return self.op.constants[names.index(name)]


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


# -- Lists of ids -----------------------------------------------------------------------------------------------------

# Lists of ids: whether they are what a kernel takes, and what they name. Every answer is a scalar of bool.


def all_below(ids: Array, bound: int) -> Ok:
    """Whether every id is in [0, bound)."""
    if ids.shape[0] == 0:
        return True
    if bound > jnp.iinfo(ids.dtype).max:  # then no id of this dtype is too large, and the bound is no number of it
        return jnp.all(ids >= 0)
    return jnp.all((ids >= 0) & (ids < bound))


def never_falls(ids: Array) -> Ok:
    """Whether no id is below the one before it."""
    return jnp.all(ids[1:] >= ids[:-1])


def rises_below(ids: Array, bound: int) -> Ok:
    """Whether ids ascend strictly in [0, bound)."""
    return all_below(ids, bound) & jnp.all(ids[1:] > ids[:-1])


def rows_at(values: Array, ids: Array) -> Array:
    """The rows that ids name. An id out of range names the nearest row, and none of an empty array: zeros."""
    if values.shape[0] == 0:
        return jnp.zeros((ids.shape[0], *values.shape[1:]), values.dtype)
    return jnp.take(values, ids, axis=0, mode="clip")


def run_of_each(starts: Array, count: int) -> Array:
    """Which run each of `count` places belongs to, when run k begins at `starts[k]`; of empty runs, the last."""
    places = jnp.arange(count, dtype=starts.dtype)
    return jnp.searchsorted(starts, places, side="right") - 1


# -- Rows that are added up -------------------------------------------------------------------------------------------

# Rows that are added up: in which type, by which scale.


def matrix(values: Array) -> Array:
    """Rows of any rank as rows of a matrix."""
    return values.reshape(values.shape[0], math.prod(values.shape[1:]))


def widened(values: Array) -> Array:
    """Values in the type their sums are held in: float32 for 16-bit floats, their own for all others."""
    short = values.dtype in (jnp.float16, jnp.bfloat16)
    return values.astype(jnp.float32) if short else values


def add_up(terms: Array, ids: Array, rows: int, sorted_ids: bool = False) -> Array:
    """`rows` rows, to which every term is added at its id, from zero, in the terms' own type.

    XLA on a CPU adds in input order, one term after the other; elsewhere the order is the platform's. `sorted_ids` is
    said also of ids that ought to be sorted: where they are not, the result is poisoned and never seen.
    """
    return jax.ops.segment_sum(terms, ids, num_segments=rows, indices_are_sorted=sorted_ids)


def ids_per_segment(segments: Array, rows: int, sorted_ids: bool = False) -> Array:
    """How many ids each segment has."""
    return add_up(jnp.ones(segments.shape[0], jnp.int32), segments, rows, sorted_ids)


def combine(totals: Array, counts: Array, reduction: Reduction) -> Array:
    """The sums of bags of so many rows, divided by what the reduction asks for."""
    divisors = _divisors(counts, reduction, totals)
    return totals if divisors is None else totals / divisors


def scaled(grad: Array, counts: Array, reduction: Reduction) -> Array:
    """Gradient rows, each times 1/n or 1/√n of its segment; for sums, as they are."""
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
    """values / by, and 0 where `by` is 0."""
    safe = jnp.where(by == 0, jnp.ones_like(by), by)
    return jnp.where(by == 0, jnp.zeros_like(values), values / safe)
