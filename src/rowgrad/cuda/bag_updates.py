"""Optimizer steps with the gradient of bags: the rows that ids name are summed, and take their step at once."""

from __future__ import annotations

from torch import Tensor

from ..errors import refuse
from ..spec import PLAN
from .planned import PlanArrays, sum_plan
from .sparse_segment import Entries, Gradient
from .updates import Update, update_named, updates
from .weighted_grad import Weighting, sum_weighted


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
    sums = call.empty(min(size, update.rows), *grad.shape[1:], dtype=grad.dtype)
    entries: Entries
    rows: Tensor | None
    if weights is None:
        gradient = Gradient(
            call.device, grad, indices, segment_ids, update.rows, reduce=reduce, order=order, unique=True, out=sums,
            told=call.told(),
        )  # fmt: skip
        gradient.run()
        entries, rows = gradient.sorted, gradient.rows
    else:
        rows = call.empty(size, dtype=indices.dtype)
        how = Weighting(reduce, rounding, order)
        entries = sum_weighted(call, grad, indices, segment_ids, weights, update.rows, how, sums, rows)
    assert rows is not None
    update_named(update, sums, rows, entries.at["checks"], entries.at["total"])


@updates("apply_planned")
def apply_planned(update: Update) -> None:
    """The plan says how many rows there are."""
    reduce, _, rounding, order = update.constants
    plan, grad, call = PlanArrays(*(update.inputs[name] for name in PLAN)), update.inputs["grad"], update.call
    if plan.num_rows != update.rows:
        raise refuse(
            "plan_num_rows", has=call.op.input_names, position=-1, value=plan.num_rows, bound=update.rows
        )  # fmt: skip
    sums = call.empty(plan.rows.shape[0], *grad.shape[1:], dtype=grad.dtype)
    how = Weighting(reduce, rounding, order)
    entries = sum_plan(call, plan, grad, update.inputs.get("weights"), how, sums, unique=True)
    update_named(update, sums, plan.rows, entries.at["checks"])
