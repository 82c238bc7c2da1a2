"""SparseSegment ops and their gradients in plain XLA."""

from __future__ import annotations

from typing import assert_never

import jax.numpy as jnp

from ..._catalog.enums import Reduction
from .call import (
    Array,
    Call,
    Kernel,
    Ok,
    Results,
    add_up,
    all_below,
    combine,
    divide_or_zero,
    ids_per_segment,
    matrix,
    never_falls,
    rises_below,
    rows_at,
    run_of_each,
    scaled,
    widened,
)

# -- SparseSegment{Sum,Mean,SqrtN}, their gradients, dense and padded, and the gradients' transposes ------------------

INT32_MAX = 2**31 - 1


def _bags(call: Call, rows: int, sorted_ids: bool) -> Array:
    segments = call["segment_ids"]
    totals = add_up(widened(rows_at(matrix(call["data"]), call["indices"])), segments, rows, sorted_ids)
    return combine(totals, ids_per_segment(segments, rows, sorted_ids), call.reduction)


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
    return rows_at(scaled(grad, ids_per_segment(segments, grad.shape[0]), call.reduction), segments)


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


# -- Weighted bags ----------------------------------------------------------------------------------------------------

# Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², and their gradients for data.


def _divided(values: Array, weights: Array, segments: Array, reduction: Reduction) -> Array:
    """Rows of segments divided by Σw or √Σw² of their segment, 0 where that is 0; for sums, as they are."""
    rows = values.shape[0]
    match reduction:
        case Reduction.sum:
            return values
        case Reduction.mean:
            divisors = add_up(weights, segments, rows)
        case Reduction.sqrtn:
            divisors = jnp.sqrt(add_up(weights * weights, segments, rows))
        case _:
            assert_never(reduction)
    return divide_or_zero(values, divisors[:, None])


def weighted_segment(call: Call) -> Results:
    """Weighted bags, their number given: segments come in any order."""
    data, indices, segments = call["data"], call["indices"], call["segment_ids"]
    rows, table = call.size("num_segments"), widened(matrix(data))
    weights = call["weights"].astype(table.dtype)
    totals = add_up(rows_at(table, indices) * weights[:, None], segments, rows)
    totals = _divided(totals, weights, segments, call.reduction)
    return all_below(indices, data.shape[0]) & all_below(segments, rows), (totals,)


def terms_of_ids(call: Call, segments: Array) -> Array:
    """What every id adds to its row: its segment's row of `grad`, divided, times the id's weight."""
    grad = widened(matrix(call["grad"]))
    weights = call["weights"].astype(grad.dtype)
    grad = _divided(grad, weights, segments, call.reduction)
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


WEIGHTED_SEGMENT_KERNELS: dict[str, Kernel] = {
    "weighted_segment": weighted_segment,
    "weighted_segment_grad": weighted_segment_grad,
    "weighted_segment_grad_rows": weighted_segment_grad_rows,
}


# -- A batch's plan turned back into its ids, and the gradients that take a plan in place of the ids ------------------


def _can_be_used(call: Call, grad_rows: int) -> Ok:
    """Whether everything that names a row or an entry names one there is."""
    starts, counts, n = call["starts"], call["counts"].shape[0], call["segments"].shape[0]
    if counts > grad_rows or (n > 0 and starts.shape[0] == 0):
        return False
    begins = starts[0] == 0 if starts.shape[0] else True
    rises = rises_below(call["rows"], call.size("num_rows")) & rises_below(starts, n)
    return begins & rises & all_below(call["segments"], counts)


def _is_law(call: Call) -> Ok:
    """The rest of what makes arrays a plan: every position once, ascending inside a row; counts that count."""
    positions, segments, counts = call["positions"], call["segments"], call["counts"]
    n, run = positions.shape[0], run_of_each(call["starts"], positions.shape[0])
    ascends = (positions[1:] > positions[:-1]) | (run[1:] != run[:-1])
    once = ids_per_segment(positions, n) == 1  # positions are counted just as segments are
    right = ids_per_segment(segments, counts.shape[0]) == counts
    return all_below(positions, n) & jnp.all(ascends) & jnp.all(once) & jnp.all(right)


def _in_input_order(call: Call, values: Array) -> Array:
    return jnp.zeros_like(values).at[call["positions"]].set(values, mode="drop")


def _row_of_each(call: Call) -> Array:
    """The table's row of every entry: entries are sorted by it."""
    return rows_at(call["rows"], run_of_each(call["starts"], call["segments"].shape[0]))


def planned_ids(call: Call) -> Results:
    """The ids a plan was made of, in their order. Everything about the plan is looked at."""
    ok = _can_be_used(call, call["counts"].shape[0]) & _is_law(call)
    return ok, (_in_input_order(call, _row_of_each(call)), _in_input_order(call, call["segments"]))


def planned_segment_grad(call: Call) -> Results:
    """The gradient of a bag: the whole table, or the plan's rows one after the other and their ids."""
    grad, segments = widened(matrix(call["grad"])), call["segments"]
    ok = _can_be_used(call, grad.shape[0])
    counts = call["counts"][: grad.shape[0]]
    terms = rows_at(scaled(grad[: counts.shape[0]], counts, call.reduction), segments)
    if not call.parameter("unique"):
        return ok, (add_up(terms, _row_of_each(call), call.size("num_rows"), sorted_ids=True),)
    run, rows = run_of_each(call["starts"], segments.shape[0]), call["rows"]
    return ok, (add_up(terms, run, rows.shape[0], sorted_ids=True), rows)


def planned_weighted_grad(call: Call) -> Results:
    """The dense gradient of a weighted bag; weights are in the order of the batch."""
    positions, n = call["positions"], call["segments"].shape[0]
    ok = _can_be_used(call, call["grad"].shape[0]) & all_below(positions, n)
    terms = rows_at(terms_of_ids(call, _in_input_order(call, call["segments"])), positions)
    return ok, (add_as_asked(call, terms, _row_of_each(call), call.size("num_rows"), sorted_ids=True),)


PLAN_KERNELS: dict[str, Kernel] = {
    "planned_ids": planned_ids,
    "planned_segment_grad": planned_segment_grad,
    "planned_weighted_grad": planned_weighted_grad,
}
