"""RowPlan and PlannedIds on CUDA, and the gradients that take a plan instead of ids."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from .._core import cuda_check_limits, cuda_padded
from ..errors import make_error
from .call import Call, blocks_for, is_wide, runs
from .device import Device
from .kernel import Kernel
from .sorting import SortedIds
from .sparse_segment import HAS_DIVISOR, SCALE, Entries, Joins, accumulator, sum_sorted, zero_output
from .weighted_segment import Reserve, Weighting, weigh

# -- RowPlan ----------------------------------------------------------------------------------------------------------

_THREADS = 256
_WRITE = Kernel("row_plan.cuh", "write_plan", _THREADS)


@runs("row_plan")
def row_plan(call: Call) -> tuple[Tensor, ...]:
    """Sort ids with their positions; synchronize once, for the number of distinct rows."""
    indices, segment_ids, num_rows, num_segments = call.inputs
    size, device = indices.numel(), call.device
    segments, positions, counts = (call.output(i) for i in (2, 3, 4))
    if size == 0:
        device.zero(counts)
        return call.output(0, 0), call.output(1, 0), segments, positions, counts
    entries = SortedIds(device, size, num_rows, num_segments, counted=True)
    rows, starts = call.empty(size, dtype=indices.dtype), call.empty(size, dtype=torch.int64)
    entries.run(
        indices, segment_ids, call.report(), by_segment=False, order=0, rows_out=rows, starts_out=starts
    )  # fmt: skip
    _WRITE.launch(
        device, min(blocks_for(max(size, num_segments), _THREADS), device.processors * 16),
        sorted_positions=entries.at["values"], segment_ids=segment_ids.data_ptr(), wide_segments=is_wide(segment_ids),
        size=size, found=entries.at["counts"], num_segments=num_segments, segments=segments.data_ptr(),
        positions=positions.data_ptr(), counts=counts.data_ptr(), checks=entries.at["checks"],
    )  # fmt: skip
    total = call.number(entries.part("total", 1, torch.int64))
    return rows[:total].clone(), starts[:total].clone(), segments, positions, counts


# -- Gradients with a plan --------------------------------------------------------------------------------------------

_CHUNK = 32  # entries of a worker of the sums
_TILE = 1024  # entries per block; `cuda_padded` returns a multiple
_EXPAND = Kernel("planned.cuh", "expand_plan", _THREADS, [("float",), ("double",)])
_PLACE = Kernel("planned.cuh", "place_segments", _THREADS)
_TAKE = Kernel("planned.cuh", "take_segments", _THREADS)


class MemoryLayout:
    """Named parts of one allocation, each aligned to 256 bytes."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}
        self.size = 0

    def add(self, name: str, size: int) -> None:
        """Add a part of `size` bytes."""
        self._sizes[name] = (self.size, size)
        self.size += -(-size // 256) * 256

    def addresses(self, base: int) -> dict[str, int]:
        """Return the address of each part; 0 for empty parts."""
        return {name: base + at if size else 0 for name, (at, size) in self._sizes.items()}


class PlanArrays(NamedTuple):
    """The plan arguments of an op."""

    rows: Tensor
    starts: Tensor
    segments: Tensor
    positions: Tensor
    counts: Tensor
    num_rows: int

    @property
    def size(self) -> int:
        """The number of entries."""
        return int(self.segments.shape[0])


class PlanEntries:
    """The entries of a plan in the format that `sum_sorted` reads; `at` has the addresses that `SortedIds.at` has."""

    def __init__(
        self, call: Call, plan: PlanArrays, grad: Tensor, reserve: Reserve, *, reduce: int, weighted: bool, unique: bool
    ) -> None:
        self.call, self.plan, self.reduce, self.weighted = call, plan, reduce, weighted
        self.size = size = plan.size
        num_segments, grad_rows = plan.counts.shape[0], grad.shape[0]
        if num_segments > grad_rows:
            raise make_error(
                "plan_segments_not_in_grad", has=call.op.input_names, position=-1, value=num_segments, bound=grad_rows
            )
        cuda_check_limits(size, plan.num_rows, grad_rows)
        self.capacity, self.total = cuda_padded(size), accumulator(grad.dtype)
        zeros, rest = MemoryLayout(), MemoryLayout()
        zeros.add("checks", 8)
        zeros.add("zeroed", reserve.zeroed)
        rest.add("ids", 0 if unique else self.capacity * 4)
        rest.add("values", self.capacity * 4)
        rest.add("scales", self.capacity * self.total.itemsize if HAS_DIVISOR[reduce] and not weighted else 0)
        rest.add("heads", self.capacity // 8)
        rest.add("firsts", self.capacity // _CHUNK * 4)
        rest.add("begins", self.capacity // _CHUNK * 4)
        rest.add("workspace", reserve.workspace)
        self.memory = call.empty(zeros.size + rest.size, dtype=torch.uint8)
        self._zeros = self.memory[: zeros.size]
        base = self.memory.data_ptr()
        self.at = zeros.addresses(base) | rest.addresses(base + zeros.size)

    def run(self, device: Device, rows_out: Tensor | None = None) -> None:
        """Queue validation and expansion. Values are positions with weights, else segments, which may have scales."""
        call, plan, at = self.call, self.plan, self.at
        device.zero(self._zeros)
        _EXPAND.launch(
            device, self.capacity // _TILE, ("double" if self.total == torch.float64 else "float",), 0,
            rows=plan.rows.data_ptr(), wide_rows=is_wide(plan.rows), num_rows=plan.num_rows,
            starts=plan.starts.data_ptr(), listed=plan.rows.shape[0], segments=plan.segments.data_ptr(),
            wide_segments=is_wide(plan.segments), positions=plan.positions.data_ptr() if self.weighted else 0,
            counts=plan.counts.data_ptr(), num_segments=plan.counts.shape[0], size=self.size, reduce=self.reduce,
            ids=at["ids"], values=at["values"], scales=at["scales"], heads=at["heads"],
            firsts=at["firsts"], begins=at["begins"], rows_out=0 if rows_out is None else rows_out.data_ptr(),
            checks=at["checks"], **call.report_fields(),
        )  # fmt: skip


def plan_entries(
    call: Call,
    plan: PlanArrays,
    grad: Tensor,
    weights: Tensor | None,
    how: Weighting,
    reserve: Reserve,
    unique: bool,
) -> tuple[Entries, int]:
    """Queue the validation and expansion of a plan; return its entries and the mode of their sums.

    `unique`: the output has one row per distinct row, so entries need no row ids.
    """
    planned = PlanEntries(
        call, plan, grad, reserve, reduce=how.reduce, weighted=weights is not None, unique=unique
    )  # fmt: skip
    planned.run(call.device)
    if weights is None or plan.size == 0:
        return planned, SCALE if HAS_DIVISOR[how.reduce] else 0
    segments = _segments_in_input_order(call, plan, planned.at["checks"])
    return weigh(call, planned, grad, segments, weights, how.reduce), how.mode(grad.dtype)


@runs("planned_segment_grad")
def planned_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """Run PlannedSparseSegment{Sum,Mean,SqrtN}Grad and GradV2: one kernel validates and expands the plan, one sums."""
    (grad, *parts), (reduce, unique, order) = call.inputs, call.attrs
    plan, device, outputs = PlanArrays(*parts), call.device, tuple(call.output(i) for i in range(len(call.outputs)))
    joins = Joins(plan.size, grad, outputs[0], order)
    entries = PlanEntries(call, plan, grad, joins, reduce=reduce, weighted=False, unique=bool(unique))
    with nullcontext() if unique else zero_output(device, outputs[0]):
        entries.run(device, outputs[1] if unique else None)
    if plan.size:
        mode = SCALE if HAS_DIVISOR[reduce] else 0
        sum_sorted(device, entries, grad, outputs[0], mode, order, unique=bool(unique))
    return outputs


@runs("planned_weighted_grad")
def planned_weighted_grad(call: Call) -> tuple[Tensor, ...]:
    """Run PlannedWeightedSparseSegment{Sum,Mean,SqrtN}Grad."""
    (grad, weights, *parts), how, out = call.inputs, Weighting(*call.attrs), call.output(0)
    plan, device = PlanArrays(*parts), call.device
    joins = Joins(plan.size, grad, out, how.order)
    with zero_output(device, out):
        entries, mode = plan_entries(call, plan, grad, weights, how, joins, unique=False)
    if plan.size:
        sum_sorted(device, entries, grad, out, mode, how.order, unique=False)
    return (out,)


def _segments_in_input_order(call: Call, plan: PlanArrays, checks: int) -> Tensor:
    """Return the segment of each position of the batch, if the checks have passed."""
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


# -- PlannedIds -------------------------------------------------------------------------------------------------------

_ARRAYS = Kernel("planned_ids.cuh", "check_plan_arrays", _THREADS)
_IDS = Kernel("planned_ids.cuh", "planned_ids", _THREADS)
_COUNTS = Kernel("planned_ids.cuh", "check_plan_counts", _THREADS)


@runs("planned_ids")
def planned_ids(call: Call) -> tuple[Tensor, ...]:
    """Validate the arrays, restore the original order of entries, then compare counts."""
    rows, starts, segments, positions, counts, num_rows = call.inputs
    listed, size, num_segments = rows.numel(), segments.numel(), counts.numel()
    indices, segment_ids = call.output(0), call.output(1)
    most = call.device.processors * 8
    # Three check states, the counts of segments, and a flag for each position.
    state = call.empty(3 + num_segments + blocks_for(size, 2), dtype=torch.int64)
    call.device.zero(state)
    arrays, entries, totals, found = (state.data_ptr() + 8 * i for i in range(4))
    plan = {
        "rows": rows.data_ptr(), "wide_rows": is_wide(rows), "starts": starts.data_ptr(), "listed": listed,
        "segments": segments.data_ptr(), "wide_segments": is_wide(segments), "positions": positions.data_ptr(),
        "size": size,
    }  # fmt: skip
    _ARRAYS.launch(
        call.device, min(blocks_for(max(listed, size), _THREADS), most), num_rows=num_rows, num_segments=num_segments,
        checks=arrays, **plan, **call.report_fields(),
    )  # fmt: skip
    _IDS.launch(
        call.device, min(blocks_for(size, _TILE), most), seen=found + 8 * num_segments, found=found,
        indices=indices.data_ptr(), segment_ids=segment_ids.data_ptr(), before=arrays, checks=entries, **plan,
        **call.report_fields(),
    )  # fmt: skip
    _COUNTS.launch(
        call.device, min(blocks_for(num_segments, _THREADS), most), counts=counts.data_ptr(), found=found,
        num_segments=num_segments, arrays=arrays, entries=entries, checks=totals, **call.report_fields(),
    )  # fmt: skip
    return indices, segment_ids
