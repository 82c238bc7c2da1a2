"""A batch's plan turned back into its ids, and the gradients that take a plan in place of the ids."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Call, Kernel, Ok, Results
from .ids import all_below, rises_below, rows_at, run_of_each
from .sums import add_up, ids_per_segment, matrix, scaled, widened
from .weighted_segment import add_as_asked, terms_of_ids


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
    terms = rows_at(scaled(grad[: counts.shape[0]], counts, call.reduce), segments)
    if not call.op.constants[1]:
        return ok, (add_up(terms, _row_of_each(call), call.size("num_rows"), sorted_ids=True),)
    run, rows = run_of_each(call["starts"], segments.shape[0]), call["rows"]
    return ok, (add_up(terms, run, rows.shape[0], sorted_ids=True), rows)


def planned_weighted_grad(call: Call) -> Results:
    """The dense gradient of a weighted bag; weights are in the order of the batch."""
    positions, n = call["positions"], call["segments"].shape[0]
    ok = _can_be_used(call, call["grad"].shape[0]) & all_below(positions, n)
    terms = rows_at(terms_of_ids(call, _in_input_order(call, call["segments"])), positions)
    return ok, (add_as_asked(call, terms, _row_of_each(call), call.size("num_rows"), sorted_ids=True),)


KERNELS: dict[str, Kernel] = {
    "planned_ids": planned_ids,
    "planned_segment_grad": planned_segment_grad,
    "planned_weighted_grad": planned_weighted_grad,
}
