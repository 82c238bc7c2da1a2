"""Gradients that take a plan in place of the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import refuse
from .call import Call, blocks_for, is_wide, runs
from .kernel import Kernel
from .sorting import CHUNK, Carving, check_limits, padded
from .sparse_segment import SCALE, Entries, Joins, Shape, accumulator, cleared, run_shift_of, sum_sorted
from .weighted_grad import Reserve, Weighting, weigh

_TILE = 1024  # entries of a block; `padded` gives whole ones
_THREADS = 256
_EXPAND = Kernel("planned.cuh", "expand_plan", _THREADS, [("float",), ("double",)])
_PLACE = Kernel("planned.cuh", "place_segments", _THREADS)
_TAKE = Kernel("planned.cuh", "take_segments", _THREADS)


class PlanArrays(NamedTuple):
    """A plan as an op gets it."""

    rows: Tensor
    starts: Tensor
    segments: Tensor
    positions: Tensor
    counts: Tensor
    num_rows: int

    @property
    def size(self) -> int:
        """How many entries."""
        return int(self.segments.shape[0])


class PlanEntries:
    """The entries of a plan as the sums of gradients read them. `at` is as that of `SortedIds`."""

    def __init__(
        self, call: Call, plan: PlanArrays, grad: Tensor, reserve: Reserve, *, reduce: int, weighted: bool, unique: bool
    ) -> None:
        self.call, self.plan, self.reduce, self.weighted = call, plan, reduce, weighted
        self.size = size = plan.size
        num_segments, grad_rows = plan.counts.shape[0], grad.shape[0]
        if num_segments > grad_rows:
            raise refuse(
                "plan_segments_not_in_grad", has=call.op.input_names, position=-1, value=num_segments, bound=grad_rows
            )
        check_limits(size, plan.num_rows, grad_rows)
        self.room, self.total = padded(size), accumulator(grad.dtype)
        zeros, rest = Carving(), Carving()
        zeros.add("checks", 8)
        zeros.add("zeroed", reserve.zeroed)
        rest.add("ids", 0 if unique else self.room * 4)
        rest.add("values", self.room * 4)
        rest.add("scales", self.room * self.total.itemsize if reduce and not weighted else 0)
        rest.add("heads", self.room // 8)
        rest.add("firsts", self.room // CHUNK * 4)
        rest.add("begins", self.room // CHUNK * 4)
        rest.add("kept", reserve.kept)
        self.memory = call.empty(zeros.size + rest.size, dtype=torch.uint8)
        self._zeros = self.memory[: zeros.size]
        base = self.memory.data_ptr()
        self.at = zeros.addresses(base) | rest.addresses(base + zeros.size)

    def run(self, rows_out: Tensor | None = None) -> None:
        """Queue the checks and the lists. With weights values are positions; else segments, which may have scales."""
        call, plan, at = self.call, self.plan, self.at
        call.device.zero(self._zeros)
        _EXPAND.launch(
            call.device, self.room // _TILE, ("double" if self.total == torch.float64 else "float",), 0,
            rows=plan.rows.data_ptr(), wide_rows=is_wide(plan.rows), num_rows=plan.num_rows,
            starts=plan.starts.data_ptr(), listed=plan.rows.shape[0], segments=plan.segments.data_ptr(),
            wide_segments=is_wide(plan.segments), positions=plan.positions.data_ptr() if self.weighted else 0,
            counts=plan.counts.data_ptr(), num_segments=plan.counts.shape[0], size=self.size, reduce=self.reduce,
            ids=at["ids"], values=at["values"], scales=at["scales"], heads=at["heads"],
            firsts=at["firsts"], begins=at["begins"], rows_out=0 if rows_out is None else rows_out.data_ptr(),
            checks=at["checks"], **call.told(),
        )  # fmt: skip


def plan_entries(
    call: Call,
    plan: PlanArrays,
    grad: Tensor,
    weights: Tensor | None,
    how: Weighting,
    reserve: Reserve,
    unique: bool,
    rows_out: Tensor | None = None,
) -> tuple[Entries, int]:
    """Queue the checks of a plan and its entries; also given is what sums do with them.

    `unique`: rows are counted, not named. `rows_out` gets a copy of the plan's.
    """
    planned = PlanEntries(
        call, plan, grad, reserve, reduce=how.reduce, weighted=weights is not None, unique=unique
    )  # fmt: skip
    planned.run(rows_out)
    if weights is None or plan.size == 0:
        return planned, SCALE if how.reduce else 0
    segments = _segments_in_input_order(call, plan, planned.at["checks"])
    return weigh(call, planned, grad, segments, weights, how.reduce), how.mode(grad.dtype)


def _sum_plan(
    call: Call, parts: Sequence[Any], grad: Tensor, weights: Tensor | None, how: Weighting, unique: bool
) -> tuple[Tensor, ...]:
    """The outputs of a gradient: the plan's rows one after the other if `unique`, else the whole table."""
    plan, device, run_shift = PlanArrays(*parts), call.device, run_shift_of(how.order)
    outputs = tuple(call.output(i) for i in range(len(call.outputs)))
    shape = Shape(grad, outputs[0])
    joins = Joins(plan.size, shape, accumulator(grad.dtype), run_shift)
    with cleared(device, None if unique else outputs[0]):
        entries, mode = plan_entries(
            call, plan, grad, weights, how, joins, unique, outputs[1] if unique else None
        )  # fmt: skip
    if plan.size:
        sum_sorted(device, entries, grad, outputs[0], shape, mode, run_shift, unique=unique)
    return outputs


def _segments_in_input_order(call: Call, plan: PlanArrays, checks: int) -> Tensor:
    """The segment of every position of the batch, once the checks have passed."""
    size, device = plan.size, call.device
    blocks = min(blocks_for(size, _THREADS), device.processors * 16)
    placed, segments = call.empty(size, dtype=torch.int64), call.empty(size, dtype=torch.int32)
    device.zero(placed)
    _PLACE.launch(
        device, blocks, segments=plan.segments.data_ptr(), wide_segments=is_wide(plan.segments),
        positions=plan.positions.data_ptr(), size=size, placed=placed.data_ptr(), checks=checks,
    )  # fmt: skip
    _TAKE.launch(device, blocks, placed=placed.data_ptr(), size=size, segments=segments.data_ptr(), checks=checks)
    return segments


@runs("planned_segment_grad")
def planned_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """PlannedSparseSegment{Sum,Mean,SqrtN}Grad and GradV2: one kernel checks and expands the plan, one adds up."""
    (grad, *parts), (reduce, unique, order) = call.inputs, call.attrs
    return _sum_plan(call, parts, grad, None, Weighting(reduce, 1, order), bool(unique))


@runs("planned_weighted_grad")
def planned_weighted_grad(call: Call) -> tuple[Tensor, ...]:
    """PlannedWeightedSparseSegment{Sum,Mean,SqrtN}Grad."""
    grad, weights, *parts = call.inputs
    return _sum_plan(call, parts, grad, weights, Weighting(*call.attrs), unique=False)
