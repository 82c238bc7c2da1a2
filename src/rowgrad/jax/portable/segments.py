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
    is_increasing_below,
    is_nondecreasing,
    matrix,
    rows_at,
    run_of_each,
    scaled,
    widen,
)

# -- SparseSegment{Sum,Mean,SqrtN}, their gradients, dense and padded, and the gradients' transposes ------------------

INT32_MAX = 2**31 - 1


def _bags(call: Call, rows: int, sorted_ids: bool) -> Array:
    segments = call["segment_ids"]
    totals = add_up(widen(rows_at(matrix(call["data"]), call["indices"])), segments, rows, sorted_ids)
    return combine(totals, ids_per_segment(segments, rows, sorted_ids), call.reduction)


def sparse_segment(call: Call) -> Results:
    """Combine rows of sorted segments. TensorFlow's kernel has the number of segments in 32 bits."""
    segments, rows = call["segment_ids"], call.size("num_segments")
    ok = all_below(segments, rows) & is_nondecreasing(segments) & all_below(call["indices"], call["data"].shape[0])
    return ok & (rows <= INT32_MAX), (_bags(call, rows, sorted_ids=True),)


def sparse_segment_grad_grad(call: Call) -> Results:
    """Combine rows of segments in any order. For an empty table ids are not checked, as in its gradient."""
    data, rows = call["data"], call.size("num_segments")
    if data.shape[0] == 0:
        return True, (jnp.zeros(call.outputs[0].shape, data.dtype),)
    ok = all_below(call["indices"], data.shape[0]) & all_below(call["segment_ids"], rows)
    return ok, (_bags(call, rows, sorted_ids=False),)


def _terms(call: Call) -> Array:
    """Return what each id adds to its row."""
    grad, segments = widen(matrix(call["grad"])), call["segment_ids"]
    return rows_at(scaled(grad, ids_per_segment(segments, grad.shape[0]), call.reduction), segments)


def sparse_segment_grad(call: Call) -> Results:
    """Return the dense gradient. For an empty table ids are not checked."""
    grad, indices, rows = call["grad"], call["indices"], call.size("output_dim0")
    if rows == 0:
        return True, (jnp.zeros(call.outputs[0].shape, grad.dtype),)
    ok = all_below(indices, rows) & all_below(call["segment_ids"], grad.shape[0])
    return ok, (add_up(_terms(call), indices, rows),)


def sparse_segment_grad_padded(call: Call) -> Results:
    """Return the gradients and ids of unique rows, ascending, padded with zeros and `fill_id` to `size` rows.

    More than `size` unique rows are a fault.
    """
    grad, indices, size, fill = call["grad"], call["indices"], call.size("size"), call.size("fill_id")
    rows, unused = call.size("dense_output_dim0"), jnp.full(size, fill, indices.dtype)
    if rows == 0 or indices.shape[0] == 0:
        return True, (jnp.zeros(call.outputs[0].shape, grad.dtype), unused)
    order = jnp.argsort(indices, stable=True)  # a row's terms stay in input order
    ids = indices[order]
    begins = jnp.concatenate([jnp.zeros(1, bool), ids[1:] != ids[:-1]])
    place = jnp.cumsum(begins.astype(jnp.int32))  # the position of each id's row among the unique rows
    ok = all_below(indices, rows) & all_below(call["segment_ids"], grad.shape[0]) & (place[-1] < size)
    output = add_up(rows_at(_terms(call), order), place, size, sorted_ids=True)
    return ok, (output, unused.at[place].set(ids, mode="drop"))


KERNELS: dict[str, Kernel] = {
    "sparse_segment": sparse_segment,
    "sparse_segment_grad": sparse_segment_grad,
    "sparse_segment_grad_grad": sparse_segment_grad_grad,
    "sparse_segment_grad_padded": sparse_segment_grad_padded,
}


# -- Weighted bags: Σwx, Σwx/Σw, Σwx/√Σw², and their gradients for data -----------------------------------------------


def _divided(values: Array, weights: Array, segments: Array, reduction: Reduction) -> Array:
    """Return rows divided by Σw or √Σw² of their segment, 0 where that is 0; unchanged for sums."""
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
    """Combine weighted rows of segments in any order."""
    data, indices, segments = call["data"], call["indices"], call["segment_ids"]
    rows, table = call.size("num_segments"), widen(matrix(data))
    weights = call["weights"].astype(table.dtype)
    totals = add_up(rows_at(table, indices) * weights[:, None], segments, rows)
    totals = _divided(totals, weights, segments, call.reduction)
    return all_below(indices, data.shape[0]) & all_below(segments, rows), (totals,)


def terms_of_ids(call: Call, segments: Array) -> Array:
    """Return what each id adds to its row: its segment's row of `grad`, divided, times the id's weight."""
    grad = widen(matrix(call["grad"]))
    weights = call["weights"].astype(grad.dtype)
    grad = _divided(grad, weights, segments, call.reduction)
    return rows_at(grad, segments) * weights[:, None]


def accumulate(call: Call, terms: Array, ids: Array, rows: int, sorted_ids: bool = False) -> Array:
    """Add terms by row. With the attribute `accumulate="T"`, each term and each sum is rounded to T."""
    if call.attrs["accumulate"] == "T":
        terms = terms.astype(call["grad"].dtype)
    return add_up(terms, ids, rows, sorted_ids)


def weighted_segment_grad(call: Call) -> Results:
    """Return the dense gradient. For an empty table ids are not checked."""
    grad, indices, segments, rows = call["grad"], call["indices"], call["segment_ids"], call.size("output_dim0")
    if rows == 0:
        return True, (jnp.zeros(call.outputs[0].shape, grad.dtype),)
    ok = all_below(indices, rows) & all_below(segments, grad.shape[0])
    return ok, (accumulate(call, terms_of_ids(call, segments), indices, rows),)


def weighted_segment_grad_rows(call: Call) -> Results:
    """Return one gradient row per id, before equal ids are summed."""
    segments = call["segment_ids"]
    return all_below(segments, call["grad"].shape[0]), (terms_of_ids(call, segments),)


WEIGHTED_SEGMENT_KERNELS: dict[str, Kernel] = {
    "weighted_segment": weighted_segment,
    "weighted_segment_grad": weighted_segment_grad,
    "weighted_segment_grad_rows": weighted_segment_grad_rows,
}


# -- The ids of a plan, and gradients that take a plan instead of ids -------------------------------------------------


def _is_in_range(call: Call, grad_rows: int) -> Ok:
    """Return whether all row numbers, starts and segments of a plan are in range."""
    starts, counts, n = call["starts"], call["counts"].shape[0], call["segments"].shape[0]
    if counts > grad_rows or (n > 0 and starts.shape[0] == 0):
        return False
    starts_at_0 = starts[0] == 0 if starts.shape[0] else True
    increases = is_increasing_below(call["rows"], call.size("num_rows")) & is_increasing_below(starts, n)
    return starts_at_0 & increases & all_below(call["segments"], counts)


def _is_consistent(call: Call) -> Ok:
    """Return whether a plan has each position once, ascending within a row, and the right counts."""
    positions, segments, counts = call["positions"], call["segments"], call["counts"]
    n, run = positions.shape[0], run_of_each(call["starts"], positions.shape[0])
    ascends = (positions[1:] > positions[:-1]) | (run[1:] != run[:-1])
    is_unique = ids_per_segment(positions, n) == 1
    counts_ok = ids_per_segment(segments, counts.shape[0]) == counts
    return all_below(positions, n) & jnp.all(ascends) & jnp.all(is_unique) & jnp.all(counts_ok)


def _in_input_order(call: Call, values: Array) -> Array:
    return jnp.zeros_like(values).at[call["positions"]].set(values, mode="drop")


def _row_of_each(call: Call) -> Array:
    """Return the table's row of each entry; entries are sorted by it."""
    return rows_at(call["rows"], run_of_each(call["starts"], call["segments"].shape[0]))


def planned_ids(call: Call) -> Results:
    """Return the ids and segments of a plan in input order. Checks the plan completely."""
    ok = _is_in_range(call, call["counts"].shape[0]) & _is_consistent(call)
    return ok, (_in_input_order(call, _row_of_each(call)), _in_input_order(call, call["segments"]))


def planned_segment_grad(call: Call) -> Results:
    """Return the gradient of bags: dense, or the values and ids of the plan's rows."""
    grad, segments = widen(matrix(call["grad"])), call["segments"]
    ok = _is_in_range(call, grad.shape[0])
    counts = call["counts"][: grad.shape[0]]
    terms = rows_at(scaled(grad[: counts.shape[0]], counts, call.reduction), segments)
    if not call.parameter("unique"):
        return ok, (add_up(terms, _row_of_each(call), call.size("num_rows"), sorted_ids=True),)
    run, rows = run_of_each(call["starts"], segments.shape[0]), call["rows"]
    return ok, (add_up(terms, run, rows.shape[0], sorted_ids=True), rows)


def planned_weighted_grad(call: Call) -> Results:
    """Return the dense gradient of weighted bags; weights are in input order."""
    positions, n = call["positions"], call["segments"].shape[0]
    ok = _is_in_range(call, call["grad"].shape[0]) & all_below(positions, n)
    terms = rows_at(terms_of_ids(call, _in_input_order(call, call["segments"])), positions)
    return ok, (accumulate(call, terms, _row_of_each(call), call.size("num_rows"), sorted_ids=True),)


PLAN_KERNELS: dict[str, Kernel] = {
    "planned_ids": planned_ids,
    "planned_segment_grad": planned_segment_grad,
    "planned_weighted_grad": planned_weighted_grad,
}
