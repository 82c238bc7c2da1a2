"""Rows that are added up: in which type, by which scale."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from .call import Array

SUM, MEAN, SQRTN = 0, 1, 2


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


def combine(totals: Array, counts: Array, reduce: int) -> Array:
    """The sums of bags of so many rows, divided by what the way to combine them asks for."""
    if reduce == SUM:
        return totals
    return totals / _divisors(counts, reduce, totals)


def scaled(grad: Array, counts: Array, reduce: int) -> Array:
    """Gradient rows, each times 1/n or 1/√n of its segment; for sums, as they are."""
    if reduce == SUM:
        return grad
    return grad * (1 / _divisors(counts, reduce, grad))


def _divisors(counts: Array, reduce: int, like: Array) -> Array:
    n = jnp.maximum(counts, 1).astype(like.dtype)[:, None]
    return jnp.sqrt(n) if reduce == SQRTN else n


def divide_or_zero(values: Array, by: Array) -> Array:
    """values / by, and 0 where `by` is 0."""
    safe = jnp.where(by == 0, jnp.ones_like(by), by)
    return jnp.where(by == 0, jnp.zeros_like(values), values / safe)
