"""Optimizer steps with the gradient of bags: the rows that ids name are summed, and take their step at once."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import refuse
from ..spec import PLAN
from ..update_rules import RULES
from .call import blocks_for, is_wide
from .kernel import Kernel
from .planned import PlanArrays, plan_entries
from .sorting import SortedIds
from .sparse_segment import SCALE, Entries, accumulator
from .updates import THREADS, Update, forms_of, updates
from .weighted_grad import Weighting, weighted_entries

_RUN = 64
_ANY = 1 << 62
_UPDATE = Kernel("bag_updates.cuh", "update_bags", THREADS, forms_of(tuple(RULES)))
_UPDATE_LONG = Kernel("bag_updates.cuh", "update_long_bags", THREADS, forms_of(tuple(RULES)))


class LongRuns:
    """Memory for rows that have several runs, which they have in blocked order: how much, and where its parts begin.

    `zeroed` bytes hold how many runs there are, then how many sums have arrived where; `kept` bytes hold the sums and
    the list of runs.
    """

    def __init__(self, size: int, update: Update, order: int) -> None:
        self.most = 2 * (size // _RUN + 1) if order else 0
        self.sums = blocks_for(self.most * update.cols * accumulator(update.table.dtype).itemsize, 16) * 16
        self.zeroed = 16 + self.most * 8
        self.kept = self.sums + self.most * 8


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
    runs, how = LongRuns(size, update, order), Weighting(reduce, rounding, order)
    rows, starts = call.empty(size, dtype=indices.dtype), call.empty(size, dtype=torch.int64)
    if weights is None:
        entries = SortedIds(
            call.device, size, update.rows, grad.shape[0], counted=reduce != 0,
            scales=accumulator(grad.dtype) if reduce else None, zeroed=runs.zeroed, kept=runs.kept,
        )  # fmt: skip
        entries.run(indices, segment_ids, call.told(), reduce=reduce, rows_out=rows, starts_out=starts)
        _update(update, entries, SCALE if reduce else 0, rows, starts, runs, entries.at["total"])
    else:
        weighted = weighted_entries(
            call, grad, indices, segment_ids, weights, update.rows, how, runs, rows, starts
        )  # fmt: skip
        _update(update, weighted, how.mode(grad.dtype), rows, starts, runs, weighted.at["total"])


@updates("apply_planned")
def apply_planned(update: Update) -> None:
    """The plan says how many rows there are."""
    reduce, _, rounding, order = update.constants
    plan, grad, call = PlanArrays(*(update.inputs[name] for name in PLAN)), update.inputs["grad"], update.call
    if plan.num_rows != update.rows:
        raise refuse("plan_num_rows", has=call.op.input_names, position=-1, value=plan.num_rows, bound=update.rows)
    runs, how = LongRuns(plan.size, update, order), Weighting(reduce, rounding, order)
    entries, mode = plan_entries(call, plan, grad, update.inputs.get("weights"), how, runs, unique=True)
    _update(update, entries, mode, plan.rows, plan.starts, runs, 0)


def _update(
    update: Update, entries: Entries, mode: int, rows: Tensor, starts: Tensor, runs: LongRuns, count: int
) -> None:
    """The rows that entries name, and all others where moments fade.

    `count` is where the device says how many rows there are; 0: all that are listed.
    """
    at, grad, device = entries.at, update.inputs["grad"], update.call.device
    if update.cols and entries.size:
        width = update.width(grad)
        lanes, listed = update.lanes(width), min(rows.shape[0], update.rows)
        form, shared = update.form(width), update.shared(width)
        told = {
            "grad": grad.data_ptr(), "values": at["values"], "scales": at["scales"], "divisors": at.get("divisors", 0),
            "size": entries.size, "mode": mode, "ids": rows.data_ptr(), "wide": is_wide(rows),
            "starts": starts.data_ptr(), "listed": listed, "count": count, "left": at["kept"] + runs.sums,
            "left_count": at["zeroed"], "checks": at["checks"], **update.told(lanes),
        }  # fmt: skip
        longest = _RUN if runs.most else _ANY
        _UPDATE.launch(device, update.blocks(listed, lanes), form, shared, longest=longest, **told)
        if runs.most and entries.size > _RUN:
            _UPDATE_LONG.launch(
                device, min(update.blocks(runs.most, lanes), device.processors * 4), form, shared,
                partials=at["kept"], arrivals=at["zeroed"] + 16, **told,
            )  # fmt: skip
    update.fade_rest(rows, at["checks"], count)
