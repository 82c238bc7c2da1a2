"""SparseSegment{Sum,Mean,SqrtN}, their gradients, dense and padded, and the gradients' transposes."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Call, Kernel, Results
from .ids import all_below, never_falls, rows_at
from .sums import add_up, combine, ids_per_segment, matrix, scaled, widened

INT32_MAX = 2**31 - 1


def _bags(call: Call, rows: int, sorted_ids: bool) -> Array:
    segments = call["segment_ids"]
    totals = add_up(widened(rows_at(matrix(call["data"]), call["indices"])), segments, rows, sorted_ids)
    return combine(totals, ids_per_segment(segments, rows, sorted_ids), call.reduce)


def sparse_segment(call: Call) -> Results:
    """Sorted segments, their number given; TensorFlow's kernel keeps that number in 32 bits."""
    segments, rows = call["segment_ids"], call.size("num_segments")
    ok = all_below(segments, rows) & never_falls(segments) & all_below(call["indices"], call["data"].shape[0])
    return ok & (rows <= INT32_MAX), (_bags(call, rows, sorted_ids=True),)


def sparse_segment_grad_grad(call: Call) -> Results:
    """The forward for segments in any order. Of an empty table no id is looked at: its gradient looked at none."""
    data, rows = call["data"], call.size("num_segments")
    if data.shape[0] == 0:
        return True, (jnp.zeros(call.outputs[0].shape, data.dtype),)
    ok = all_below(call["indices"], data.shape[0]) & all_below(call["segment_ids"], rows)
    return ok, (_bags(call, rows, sorted_ids=False),)


def _terms(call: Call) -> Array:
    """What every id adds to its row."""
    grad, segments = widened(matrix(call["grad"])), call["segment_ids"]
    return rows_at(scaled(grad, ids_per_segment(segments, grad.shape[0]), call.reduce), segments)


def sparse_segment_grad(call: Call) -> Results:
    """The dense gradient. Of an empty table no id is looked at."""
    grad, indices, rows = call["grad"], call["indices"], call.size("output_dim0")
    if rows == 0:
        return True, (jnp.zeros(call.outputs[0].shape, grad.dtype),)
    ok = all_below(indices, rows) & all_below(call["segment_ids"], grad.shape[0])
    return ok, (add_up(_terms(call), indices, rows),)


def sparse_segment_grad_padded(call: Call) -> Results:
    """The distinct rows, ascending, and their gradients; after them `fill_id` and zeros, up to `size` rows.

    More distinct rows than that are a fault like an id out of range.
    """
    grad, indices, size, fill = call["grad"], call["indices"], call.size("size"), call.size("fill_id")
    rows, unused = call.size("dense_output_dim0"), jnp.full(size, fill, indices.dtype)
    if rows == 0 or indices.shape[0] == 0:
        return True, (jnp.zeros(call.outputs[0].shape, grad.dtype), unused)
    order = jnp.argsort(indices, stable=True)  # so that a row's terms keep their order
    ids = indices[order]
    begins = jnp.concatenate([jnp.zeros(1, bool), ids[1:] != ids[:-1]])
    place = jnp.cumsum(begins.astype(jnp.int32))  # of each id's row among the distinct ones
    ok = all_below(indices, rows) & all_below(call["segment_ids"], grad.shape[0]) & (place[-1] < size)
    output = add_up(rows_at(_terms(call), order), place, size, sorted_ids=True)
    return ok, (output, unused.at[place].set(ids, mode="drop"))


KERNELS: dict[str, Kernel] = {
    "sparse_segment": sparse_segment,
    "sparse_segment_grad": sparse_segment_grad,
    "sparse_segment_grad_grad": sparse_segment_grad_grad,
    "sparse_segment_grad_padded": sparse_segment_grad_padded,
}
