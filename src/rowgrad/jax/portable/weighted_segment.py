"""Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², and their gradients for data."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Call, Kernel, Results
from .ids import all_below, rows_at
from .sums import MEAN, SUM, add_up, divide_or_zero, matrix, widened


def _divisors(weights: Array, segments: Array, rows: int, reduce: int) -> Array:
    """Σw or √Σw² of every segment, as a column."""
    if reduce == MEAN:
        return add_up(weights, segments, rows)[:, None]
    return jnp.sqrt(add_up(weights * weights, segments, rows))[:, None]


def weighted_segment(call: Call) -> Results:
    """Weighted bags, their number given: segments come in any order."""
    data, indices, segments = call["data"], call["indices"], call["segment_ids"]
    rows, table = call.size("num_segments"), widened(matrix(data))
    weights = call["weights"].astype(table.dtype)
    totals = add_up(rows_at(table, indices) * weights[:, None], segments, rows)
    if call.reduce != SUM:
        totals = divide_or_zero(totals, _divisors(weights, segments, rows, call.reduce))
    return all_below(indices, data.shape[0]) & all_below(segments, rows), (totals,)


def terms_of_ids(call: Call, segments: Array) -> Array:
    """What every id adds to its row: its segment's row of `grad`, divided, times the id's weight."""
    grad = widened(matrix(call["grad"]))
    weights = call["weights"].astype(grad.dtype)
    if call.reduce != SUM:
        grad = divide_or_zero(grad, _divisors(weights, segments, grad.shape[0], call.reduce))
    return rows_at(grad, segments) * weights[:, None]


def add_as_asked(call: Call, terms: Array, ids: Array, rows: int, sorted_ids: bool = False) -> Array:
    """The table of summed terms. `accumulate="T"`: each term and each sum is rounded to T."""
    if call.attrs["accumulate"] == "T":
        terms = terms.astype(call["grad"].dtype)
    return add_up(terms, ids, rows, sorted_ids)


def weighted_segment_grad(call: Call) -> Results:
    """The dense gradient. Of an empty table no id is looked at."""
    grad, indices, segments, rows = call["grad"], call["indices"], call["segment_ids"], call.size("output_dim0")
    if rows == 0:
        return True, (jnp.zeros(call.outputs[0].shape, grad.dtype),)
    ok = all_below(indices, rows) & all_below(segments, grad.shape[0])
    return ok, (add_as_asked(call, terms_of_ids(call, segments), indices, rows),)


def weighted_segment_grad_rows(call: Call) -> Results:
    """One row per id, before equal ids are summed."""
    segments = call["segment_ids"]
    return all_below(segments, call["grad"].shape[0]), (terms_of_ids(call, segments),)


KERNELS: dict[str, Kernel] = {
    "weighted_segment": weighted_segment,
    "weighted_segment_grad": weighted_segment_grad,
    "weighted_segment_grad_rows": weighted_segment_grad_rows,
}
