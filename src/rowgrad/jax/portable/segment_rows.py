"""Whole rows: gathered, scattered, looked for, multiplied with one another; and their roots."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Call, Kernel, Results
from .ids import all_below, rows_at
from .sums import add_up, matrix, widened


def gather_rows(call: Call) -> Results:
    """The rows named, bit for bit."""
    params = call["params"]
    return all_below(call["indices"], params.shape[0]), (rows_at(matrix(params), call["indices"]),)


def scatter_rows(call: Call) -> Results:
    """A table to which every row is added at its index."""
    indices, rows = call["indices"], call.size("num_rows")
    return all_below(indices, rows), (add_up(widened(matrix(call["grad"])), indices, rows),)


def row_positions(call: Call) -> Results:
    """Where each id stands in the list; one that is not listed is a fault."""
    dtype = jnp.promote_types(call["sorted_ids"].dtype, call["ids"].dtype)
    listed, ids = call["sorted_ids"].astype(dtype), call["ids"].astype(dtype)
    places = jnp.searchsorted(listed, ids)
    found = (places < listed.shape[0]) & (rows_at(listed, places) == ids)
    return jnp.all(found), (places,)


def _dots(x: Array, y: Array) -> Array:
    # Products and a sum, not a matrix product, whose factors a GPU may round to fewer bits.
    return jnp.sum(widened(x) * widened(y), axis=1)


def sparse_segment_dot(call: Call) -> Results:
    """Of every id: the inner product of its segment's row of `grad` and its row of `data`."""
    grad, data, indices, segments = call["grad"], call["data"], call["indices"], call["segment_ids"]
    ok = all_below(indices, data.shape[0]) & all_below(segments, grad.shape[0])
    return ok, (_dots(rows_at(matrix(grad), segments), rows_at(matrix(data), indices)),)


def row_dot(call: Call) -> Results:
    """The inner product of every row of x with the same row of y."""
    return True, (_dots(matrix(call["x"]), matrix(call["y"])),)


def sqrt(call: Call) -> Results:
    """Roots; those of 16-bit floats in float32, then rounded."""
    return True, (jnp.sqrt(widened(call["x"])),)


KERNELS: dict[str, Kernel] = {
    "gather_rows": gather_rows,
    "scatter_rows": scatter_rows,
    "row_positions": row_positions,
    "sparse_segment_dot": sparse_segment_dot,
    "row_dot": row_dot,
    "sqrt": sqrt,
}
