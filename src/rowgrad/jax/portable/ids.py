"""Lists of ids: whether they are what a kernel takes, and what they name. Every answer is a scalar of bool."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Ok


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
