"""Optimizer steps with the gradient of bags."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import refuse
from ..spec import PLAN
from .planned import PlanArrays, plan_entries
from .sorting import SortedIds
from .sparse_segment import SCALE, SEVERAL, Entries, Joins, Shape, accumulator, run_shift_of, sum_sorted
from .updates import Singles, Update, update_listed, updates
from .weighted_grad import Weighting, weighted_entries


@updates("apply_bags")
def apply_bags(update: Update) -> None:
    """How many rows the ids name stays on the device: kernels that follow are launched for as many as there may be."""
    reduce, _, rounding, order = update.constants
    grad, indices, segment_ids = (update.inputs[name] for name in ("grad", "indices", "segment_ids"))
    weights, size, call = update.inputs.get("weights"), indices.shape[0], update.call
    if size == 0 or update.rows == 0:  # as for a gradient: then nothing else is looked at
        checks = call.checks()
        update.fade_rest(indices[:0], checks.data_ptr())
        return
    how = Weighting(reduce, rounding, order)
    joins = Joins(size, Shape(grad), accumulator(grad.dtype), run_shift_of(order))
    rows, starts = call.empty(size, dtype=indices.dtype), call.empty(size, dtype=torch.int64)
    if weights is None:
        entries = SortedIds(
            call.device, size, update.rows, grad.shape[0], counted=reduce != 0,
            scales=accumulator(grad.dtype) if reduce else None, zeroed=joins.zeroed, kept=joins.kept,
        )  # fmt: skip
        entries.run(indices, segment_ids, call.told(), reduce=reduce, rows_out=rows, starts_out=starts)
        _step(update, entries, SCALE if reduce else 0, order, rows, starts, entries.at["total"])
    else:
        weighted = weighted_entries(
            call, grad, indices, segment_ids, weights, update.rows, how, joins, rows, starts
        )  # fmt: skip
        _step(update, weighted, how.mode(grad.dtype), order, rows, starts, weighted.at["total"])


@updates("apply_planned")
def apply_planned(update: Update) -> None:
    """The plan says how many rows there are."""
    reduce, _, rounding, order = update.constants
    plan, grad, call = PlanArrays(*(update.inputs[name] for name in PLAN)), update.inputs["grad"], update.call
    if plan.num_rows != update.rows:
        raise refuse("plan_num_rows", has=call.op.input_names, position=-1, value=plan.num_rows, bound=update.rows)
    how = Weighting(reduce, rounding, order)
    joins = Joins(plan.size, Shape(grad), accumulator(grad.dtype), run_shift_of(order))
    entries, mode = plan_entries(call, plan, grad, update.inputs.get("weights"), how, joins, unique=True)
    _step(update, entries, mode, order, plan.rows, plan.starts, 0)


def _step(
    update: Update, entries: Entries, mode: int, order: int, rows: Tensor, starts: Tensor, count: int
) -> None:  # fmt: skip
    """The rows that entries name, and all others where moments fade.

    Sums of a row's entries are stored, one row after the other; rows of one entry need none. `count` is where the
    device says how many rows there are; 0: all that are listed.
    """
    grad, call, at = update.inputs["grad"], update.call, entries.at
    shape = Shape(grad)
    if shape.columns and entries.size:
        listed = min(rows.shape[0], update.rows)
        sums = call.empty(listed, shape.columns, dtype=grad.dtype)
        is_plain = mode in (0, SCALE) and not update.is_too_wide(update.shape(sums, grad))
        singles = Singles(starts, entries.size, grad, at["values"], at["scales"]) if is_plain else None
        way = mode | SEVERAL if singles else mode
        sum_sorted(call.device, entries, grad, sums, shape, way, run_shift_of(order), unique=True)
        update_listed(update, sums, rows, listed, at["checks"], count, singles)
    update.fade_rest(rows, at["checks"], count)
