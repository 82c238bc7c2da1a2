"""WeightedSparseSegment*: weighted bags, and the gradient of each id's own row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import refuse
from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .kernel import FLOATS, Kernel
from .segment_sum import (
    LONG_THREADS,
    THREADS,
    check_bounds,
    column_form,
    column_forms,
    launch_sums,
    mark_bounds,
    zeros,
)
from .sorting import SortedIds

_SUM, _SQRTN = 0, 2
_MAX = (1 << 63) - 1
_FILE = "weighted_segment.cuh"
_CHECK = Kernel(_FILE, "check_weighted", THREADS)
_BRING = Kernel(_FILE, "bring_weights", THREADS, [(w, a) for w in FLOATS for a in ("float", "double")])
_TOTAL = Kernel(_FILE, "total_weights", THREADS, [("float",), ("double",)])
_BAGS = Kernel(_FILE, "weighted_bags", THREADS, column_forms(FLOATS))
_LONG_BAGS = Kernel(_FILE, "weighted_long_bags", LONG_THREADS, [(t,) for t in FLOATS])
_ROWS = Kernel(_FILE, "weighted_rows", THREADS, column_forms(FLOATS))


@dataclass(frozen=True, slots=True)
class Ordered:
    """Segments in ascending order, equal ones in input order.

    `positions` says where each stood in the batch, None where they came so.
    """

    segments: Tensor
    positions: Tensor | None = None


@runs("weighted_segment")
def weighted_segment(call: Call) -> tuple[Tensor, ...]:
    """Indices are checked first; the last segment says how many rows there are, if the call does not."""
    (data, indices, segments, weights), (kind, is_sized) = call.inputs[:4], call.attrs
    if indices.numel() == 0:
        out = call.output(0, 0)
        call.device.zero(out)
        return (out,)
    cols = row_size(data)
    if is_sized:
        checked = _check(call, indices, data.shape[0], segments, call.inputs[4])
        out = call.output(0)
        if cols == 0:
            return (out,)
        ids = _in_order(call, checked, segments, out.shape[0])
        marked = mark_bounds(call, ids.segments, out.shape[0], checked.data_ptr())
        bounds, checks = marked.data_ptr(), checked.data_ptr()
    else:
        checked = _check(call, indices, data.shape[0], None, 0)
        ids = Ordered(segments)
        out = call.output(0, _rows_needed(call, segments))
        state, bounds = check_bounds(call, segments, out.shape[0], cols > 0, checked.data_ptr())
        if cols == 0:
            return (out,)
        checks = state.data_ptr()
    values, in_order = _brought(call, weights, _accumulator(data), ids.positions, indices, checks)
    totals = _totals(call, values, bounds, out.shape[0], kind, checks)
    launch_sums(
        call, _BAGS, _LONG_BAGS, TYPE[data.dtype], data, out, indices.numel(), indices=in_order.data_ptr(),
        wide=is_wide(in_order), weights=values.data_ptr(), totals=0 if totals is None else totals.data_ptr(),
        bounds=bounds, checks=checks,
    )  # fmt: skip
    return (out,)


@runs("weighted_segment_grad_rows")
def weighted_segment_grad_rows(call: Call) -> tuple[Tensor, ...]:
    """Segments are checked; totals need them in order, the rows themselves do not."""
    (grad, segments, weights), (kind,) = call.inputs, call.attrs
    out, size, cols = call.output(0), segments.numel(), row_size(grad)
    checked = _check(call, None, 0, segments, grad.shape[0])
    checks = checked.data_ptr()
    if size == 0 or cols == 0:
        return (out,)
    values, _ = _brought(call, weights, _accumulator(grad), None, segments, checks)
    totals = None if kind == _SUM else _totals_in_order(call, checked, segments, weights, values, grad.shape[0], kind)
    form, log_lanes, blocks = column_form(TYPE[grad.dtype], grad, out)
    _ROWS.launch(
        call.device, min(blocks, call.device.processors * 64), form, grad=grad.data_ptr(), cols=cols,
        segments=segments.data_ptr(), wide=is_wide(segments), weights=values.data_ptr(),
        totals=0 if totals is None else totals.data_ptr(), size=size, log_lanes=log_lanes, out=out.data_ptr(),
        checks=checks,
    )  # fmt: skip
    return (out,)


def segment_totals(
    call: Call, segments: Tensor, weights: Tensor, dtype: torch.dtype, rows: int, kind: int
) -> Tensor | None:
    """Σw or √Σw² of every segment in this dtype; None for sums. That segments are in range was told before."""
    if kind == _SUM:
        return None
    checked = _check(call, None, 0, segments, rows, _unheard(call))
    values, _ = _brought(call, weights, dtype, None, segments, checked.data_ptr())
    return _totals_in_order(call, checked, segments, weights, values, rows, kind)


def _totals_in_order(
    call: Call, checked: Tensor, segments: Tensor, weights: Tensor, values: Tensor, rows: int, kind: int
) -> Tensor | None:
    """The same; `values` are the weights in the dtype of the totals."""
    checks = checked.data_ptr()
    ids = _in_order(call, checked, segments, rows)
    bounds = mark_bounds(call, ids.segments, rows, checks)
    if ids.positions is not None:
        values, _ = _brought(call, weights, values.dtype, ids.positions, segments, checks)
    return _totals(call, values, bounds.data_ptr(), rows, kind, checks)


def _unheard(call: Call) -> dict[str, int]:
    """Where faults are reported to nobody: they were told by checks before."""
    memory = call.empty(5, dtype=torch.int64)
    call.keeps.append(memory)
    return {"fault": memory.data_ptr(), "alarm": memory[4:].data_ptr()}


def _check(
    call: Call,
    indices: Tensor | None,
    data_rows: int,
    segments: Tensor | None,
    rows: int,
    told: dict[str, int] | None = None,
) -> Tensor:
    """The state of the checks, and after it whether segments fall."""
    state = zeros(call, 2)
    given = segments if indices is None else indices
    assert given is not None
    size = given.numel()
    _CHECK.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), size=size, checks=state.data_ptr(),
        indices=0 if indices is None else indices.data_ptr(), wide_indices=0 if indices is None else is_wide(indices),
        data_rows=data_rows, segments=0 if segments is None else segments.data_ptr(),
        wide_segments=0 if segments is None else is_wide(segments), segment_rows=rows, falls=state.data_ptr() + 8,
        **(told or call.told()),
    )  # fmt: skip
    return state


def _in_order(call: Call, checked: Tensor, segments: Tensor, rows: int) -> Ordered:
    """Segments in order. The device is asked whether they are already, as those of most batches are.

    While a graph is recorded nobody can be asked: then they are sorted.
    """
    if _may_wait(segments) and not call.number(checked[1]):
        return Ordered(segments)
    size = segments.numel()
    entries = SortedIds(call.device, size, rows, 1)
    entries.run(segments, None, _unheard(call), by_segment=False, order=0)
    return Ordered(entries.part("ids", size, torch.int32), entries.part("values", size, torch.int32))


def _may_wait(tensor: Tensor) -> bool:
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _rows_needed(call: Call, segments: Tensor) -> int:
    """How many rows the last segment asks for; TensorFlow counts them in the type of the segments."""
    size, last = segments.numel(), call.number(segments[-1])
    facts = {"has": call.op.input_names, "position": size - 1, "value": last}
    if last == _MAX:
        raise refuse("last_segment_too_big", bound=_MAX, **facts)
    if last < 0 or (last == (1 << 31) - 1 and not is_wide(segments)):
        raise refuse("segment_negative", bound=0, **facts)
    return last + 1


def _accumulator(data: Tensor) -> torch.dtype:
    return torch.float64 if data.dtype == torch.float64 else torch.float32


def _brought(
    call: Call, weights: Tensor, dtype: torch.dtype, positions: Tensor | None, indices: Tensor, checks: int
) -> tuple[Tensor, Tensor]:
    """Weights in this dtype and indices, both in the order of `positions`."""
    if weights.dtype == dtype and positions is None:
        return weights, indices
    size = weights.numel()
    brought = call.empty(size, dtype=dtype)
    in_order = indices if positions is None else call.empty(size, dtype=indices.dtype)
    _BRING.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), (TYPE[weights.dtype], TYPE[dtype]),
        weights=weights.data_ptr(), indices=indices.data_ptr(), wide_indices=is_wide(indices),
        positions=0 if positions is None else positions.data_ptr(), size=size, brought=brought.data_ptr(),
        brought_indices=0 if positions is None else in_order.data_ptr(), checks=checks,
    )  # fmt: skip
    return brought, in_order


def _totals(call: Call, weights: Tensor, bounds: int, rows: int, kind: int, checks: int) -> Tensor | None:
    """What every segment is divided by; None for sums."""
    if kind == _SUM:
        return None
    totals = call.empty(rows, dtype=weights.dtype)
    _TOTAL.launch(
        call.device, min(blocks_for(rows, THREADS), call.device.processors * 8), (TYPE[weights.dtype],),
        weights=weights.data_ptr(), bounds=bounds, rows=rows, is_squared=int(kind == _SQRTN), totals=totals.data_ptr(),
        checks=checks,
    )  # fmt: skip
    return totals
