"""SegmentSum and WeightedSparseSegment{Sum,Mean,SqrtN} on CUDA, with the gradients of the weighted ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._catalog.enums import Reduction, Rounding
from .._core import cuda_padded
from ..errors import make_error
from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .kernel import COMPLEX, FLOATS, Kernel
from .sorting import SortedIds
from .sparse_segment import (
    DIVIDE,
    HAS_DIVISOR,
    ROUND,
    SCALE,
    Entries,
    Joins,
    accumulator,
    sum_sorted,
    zero_output,
)

# -- Sorted segments: bounds, columns of threads, SegmentSum ----------------------------------------------------------

THREADS = 256
# Columns per thread and iteration if rows and addresses are aligned: sixteen bytes, fewer for small integers.
WIDTH = {
    "half": 8, "bfloat16": 8, "float": 4, "double": 2, "complex<float>": 2, "complex<double>": 1,
    "uint8_t": 4, "uint16_t": 4, "uint32_t": 4, "uint64_t": 2,
}  # fmt: skip
LONGEST = 256  # longer segments are summed by a second kernel
LONG_THREADS = 512
_LONG_SHARED = 32 * 1024 + 4 * 64 * 16  # the layout in sum_long_segment
_MAX = (1 << 63) - 1


def column_variants(types: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the kernel variants of these types: one column at a time, and several."""
    return [(t, str(v)) for t in types for v in sorted({1, WIDTH[t]})]


_SUMS = (*FLOATS, "uint8_t", "uint16_t", "uint32_t", "uint64_t", *COMPLEX)
_CHECK = Kernel("segment_sum.cuh", "check_segments", THREADS)
_MARK = Kernel("segment_sum.cuh", "mark_segments", THREADS)
_SUM = Kernel("segment_sum.cuh", "sum_segments", THREADS, column_variants(_SUMS))
_SUM_LONG = Kernel("segment_sum.cuh", "sum_long_segments", LONG_THREADS, [(t,) for t in _SUMS])


def column_variant(kind: str, data: Tensor, out: Tensor) -> tuple[tuple[str, str], int, int]:
    """Return the kernel variant for rows of `data` and `out`, log2 of the threads per row, and the number of blocks."""
    cols, width = row_size(data), WIDTH[kind]
    unit = width * data.element_size()
    if cols % width or data.data_ptr() % unit or out.data_ptr() % unit:
        width = 1
    log_lanes = min(max(blocks_for(cols, width) - 1, 0).bit_length(), THREADS.bit_length() - 1)
    return (kind, str(width)), log_lanes, blocks_for(out.shape[0] << log_lanes, THREADS)


def zeros(call: Call, size: int) -> Tensor:
    """Allocate a workspace of int64 zeros; a check state needs one."""
    tensor = call.empty(size, dtype=torch.int64)
    call.device.zero(tensor)
    return tensor


def check_bounds(call: Call, segments: Tensor, rows: int, has_columns: bool, before: int = 0) -> tuple[Tensor, int]:
    """Validate that segments ascend in [0, rows); return the check state and the address of the bounds.

    `before` is the state of earlier checks. Without columns no bounds are allocated.
    """
    state = zeros(call, 1 + 2 * rows if has_columns else 1)
    bounds = state.data_ptr() + 8 if has_columns else 0
    size = segments.numel()
    _CHECK.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), segments=segments.data_ptr(),
        wide=is_wide(segments), size=size, rows=rows, bounds=bounds, before=before, checks=state.data_ptr(),
        **call.report_fields(),
    )  # fmt: skip
    return state, bounds


def mark_bounds(call: Call, segments: Tensor, rows: int, checks: int) -> Tensor:
    """Return the bounds of ascending segments that `checks` has validated."""
    bounds = zeros(call, 2 * rows)
    size = segments.numel()
    _MARK.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), segments=segments.data_ptr(),
        wide=is_wide(segments), size=size, bounds=bounds.data_ptr(), checks=checks,
    )  # fmt: skip
    return bounds


def launch_sums(
    call: Call, short: Kernel, long: Kernel, kind: str, data: Tensor, out: Tensor, ids: int, **fields: int
) -> None:
    """Queue segment sums of `ids` rows in total; a second kernel sums long segments."""
    variant, log_lanes, blocks = column_variant(kind, data, out)
    found = zeros(call, 1 + ids // (LONGEST + 1))
    most = call.device.processors * 64
    fields = {
        "data": data.data_ptr(),
        "cols": row_size(data),
        "out": out.data_ptr(),
        "found": found.data_ptr(),
        **fields,
    }
    short.launch(
        call.device, min(blocks, most), variant, rows=out.shape[0], longest=LONGEST, log_lanes=log_lanes, **fields
    )
    if ids > LONGEST:
        most_items = (ids // (LONGEST + 1)) * blocks_for(row_size(data), 64)
        long.launch(call.device, min(most_items, call.device.processors * 4), (kind,), _LONG_SHARED, **fields)


@runs("segment_sum")
def segment_sum(call: Call) -> tuple[Tensor, ...]:
    """Read the number of rows from the last segment, then validate the segments and sum."""
    data, segments = call.inputs
    size = segments.numel()
    if size == 0:
        return (call.output(0, 0),)
    last = call.number(segments[-1])
    facts = {"has": call.op.input_names, "position": size - 1, "value": last}
    if last == _MAX:
        raise make_error("last_segment_overflows", bound=-_MAX - 1, **facts)
    if last < 0:
        raise make_error("segment_negative", bound=0, **facts)
    rows, cols = last + 1, row_size(data)
    out = call.output(0, rows)
    state, bounds = check_bounds(call, segments, rows, cols > 0)
    if cols:
        kind = TYPE[data.dtype]
        launch_sums(
            call, _SUM, _SUM_LONG, kind if kind in _SUMS else f"u{kind}", data, out, size, bounds=bounds,
            checks=state.data_ptr(),
        )  # fmt: skip
    return (out,)


# -- Weighted bags, and the gradient row of each id -------------------------------------------------------------------

_IS_SQUARED: dict[int, int] = {Reduction.mean: 0, Reduction.sqrtn: 1}  # 1: totals are √Σw², 0: Σw
_ROUNDS: dict[int, bool] = {Rounding.each_add: True, Rounding.at_end: False}
_FILE = "weighted_segment.cuh"
_CHECK_WEIGHTED = Kernel(_FILE, "check_weighted", THREADS)
_CONVERT_WEIGHTS = Kernel(_FILE, "convert_weights", THREADS, [(w, a) for w in FLOATS for a in ("float", "double")])
_TOTAL = Kernel(_FILE, "total_weights", THREADS, [("float",), ("double",)])
_BAGS = Kernel(_FILE, "weighted_bags", THREADS, column_variants(FLOATS))
_LONG_BAGS = Kernel(_FILE, "weighted_long_bags", LONG_THREADS, [(t,) for t in FLOATS])
_ROWS = Kernel(_FILE, "weighted_rows", THREADS, column_variants(FLOATS))


@dataclass(frozen=True, slots=True)
class SortedSegments:
    """Segments in ascending order, equal ones in input order.

    `positions` are their positions in the batch; None if the batch is already in order.
    """

    segments: Tensor
    positions: Tensor | None = None


@runs("weighted_segment")
def weighted_segment(call: Call) -> tuple[Tensor, ...]:
    """Validate indices, find the number of rows, validate segments, then sum."""
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
        ids = _sort_segments(call, checked, segments, out.shape[0])
        marked = mark_bounds(call, ids.segments, out.shape[0], checked.data_ptr())
        bounds, checks = marked.data_ptr(), checked.data_ptr()
    else:
        checked = _check(call, indices, data.shape[0], None, 0)
        ids = SortedSegments(segments)
        out = call.output(0, _rows_needed(call, segments))
        state, bounds = check_bounds(call, segments, out.shape[0], cols > 0, checked.data_ptr())
        if cols == 0:
            return (out,)
        checks = state.data_ptr()
    values, in_order = _convert_weights(call, weights, _accumulator(data), ids.positions, indices, checks)
    totals = _totals(call, values, bounds, out.shape[0], kind, checks)
    launch_sums(
        call, _BAGS, _LONG_BAGS, TYPE[data.dtype], data, out, indices.numel(), indices=in_order.data_ptr(),
        wide=is_wide(in_order), weights=values.data_ptr(), totals=0 if totals is None else totals.data_ptr(),
        bounds=bounds, checks=checks,
    )  # fmt: skip
    return (out,)


@runs("weighted_segment_grad_rows")
def weighted_segment_grad_rows(call: Call) -> tuple[Tensor, ...]:
    """Validate segments, then scale rows; only the totals need sorted segments."""
    (grad, segments, weights), (kind,) = call.inputs, call.attrs
    out, size, cols = call.output(0), segments.numel(), row_size(grad)
    checked = _check(call, None, 0, segments, grad.shape[0])
    checks = checked.data_ptr()
    if size == 0 or cols == 0:
        return (out,)
    values, _ = _convert_weights(call, weights, _accumulator(grad), None, segments, checks)
    totals = (
        None
        if not HAS_DIVISOR[kind]
        else _totals_in_order(call, checked, segments, weights, values, grad.shape[0], kind)
    )
    variant, log_lanes, blocks = column_variant(TYPE[grad.dtype], grad, out)
    _ROWS.launch(
        call.device, min(blocks, call.device.processors * 64), variant, grad=grad.data_ptr(), cols=cols,
        segments=segments.data_ptr(), wide=is_wide(segments), weights=values.data_ptr(),
        totals=0 if totals is None else totals.data_ptr(), size=size, log_lanes=log_lanes, out=out.data_ptr(),
        checks=checks,
    )  # fmt: skip
    return (out,)


def segment_totals(
    call: Call, segments: Tensor, weights: Tensor, dtype: torch.dtype, rows: int, kind: int
) -> Tensor | None:
    """Return Σw or √Σw² of each segment in this dtype, None for sums. The caller has validated the segments."""
    if not HAS_DIVISOR[kind]:
        return None
    checked = _check(call, None, 0, segments, rows, _discarded_report(call))
    values, _ = _convert_weights(call, weights, dtype, None, segments, checked.data_ptr())
    return _totals_in_order(call, checked, segments, weights, values, rows, kind)


def _totals_in_order(
    call: Call, checked: Tensor, segments: Tensor, weights: Tensor, values: Tensor, rows: int, kind: int
) -> Tensor | None:
    """Return the totals of segments in any order; `values` are the weights in the dtype of the totals."""
    checks = checked.data_ptr()
    ids = _sort_segments(call, checked, segments, rows)
    bounds = mark_bounds(call, ids.segments, rows, checks)
    if ids.positions is not None:
        values, _ = _convert_weights(call, weights, values.dtype, ids.positions, segments, checks)
    return _totals(call, values, bounds.data_ptr(), rows, kind, checks)


def _discarded_report(call: Call) -> dict[str, int]:
    """Return report fields of memory that is never read: earlier checks have reported the same faults."""
    memory = call.empty(5, dtype=torch.int64)
    call.keep_alive.append(memory)
    return {"fault": memory.data_ptr(), "alarm": memory[4:].data_ptr()}


def _check(
    call: Call,
    indices: Tensor | None,
    data_rows: int,
    segments: Tensor | None,
    rows: int,
    report: dict[str, int] | None = None,
) -> Tensor:
    """Queue validation; return the check state, followed by a flag that is set if segments are not ascending."""
    state = zeros(call, 2)
    ids = segments if indices is None else indices
    assert ids is not None
    size = ids.numel()
    _CHECK_WEIGHTED.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), size=size, checks=state.data_ptr(),
        indices=0 if indices is None else indices.data_ptr(), wide_indices=0 if indices is None else is_wide(indices),
        data_rows=data_rows, segments=0 if segments is None else segments.data_ptr(),
        wide_segments=0 if segments is None else is_wide(segments), segment_rows=rows, falls=state.data_ptr() + 8,
        **(report or call.report_fields()),
    )  # fmt: skip
    return state


def _sort_segments(call: Call, checked: Tensor, segments: Tensor, rows: int) -> SortedSegments:
    """Return the segments in order. Most batches are sorted already, so this synchronizes to avoid a sort.

    During graph capture it cannot synchronize, and always sorts.
    """
    if _may_wait(segments) and not call.number(checked[1]):
        return SortedSegments(segments)
    size = segments.numel()
    entries = SortedIds(call.device, size, rows, 1)
    report = _discarded_report(call)
    entries.run(segments, None, (report["fault"], report["alarm"], 0), by_segment=False, order=0)
    return SortedSegments(entries.part("ids", size, torch.int32), entries.part("values", size, torch.int32))


def _may_wait(tensor: Tensor) -> bool:
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _rows_needed(call: Call, segments: Tensor) -> int:
    """Return the last segment plus one; like TensorFlow, compute it in the dtype of the segments."""
    size, last = segments.numel(), call.number(segments[-1])
    facts = {"has": call.op.input_names, "position": size - 1, "value": last}
    if last == _MAX:
        raise make_error("last_segment_too_big", bound=_MAX, **facts)
    if last < 0 or (last == (1 << 31) - 1 and not is_wide(segments)):
        raise make_error("segment_negative", bound=0, **facts)
    return last + 1


def _accumulator(data: Tensor) -> torch.dtype:
    return torch.float64 if data.dtype == torch.float64 else torch.float32


def _convert_weights(
    call: Call, weights: Tensor, dtype: torch.dtype, positions: Tensor | None, indices: Tensor, checks: int
) -> tuple[Tensor, Tensor]:
    """Return weights in this dtype and indices, both in the order of `positions`."""
    if weights.dtype == dtype and positions is None:
        return weights, indices
    size = weights.numel()
    converted = call.empty(size, dtype=dtype)
    in_order = indices if positions is None else call.empty(size, dtype=indices.dtype)
    _CONVERT_WEIGHTS.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), (TYPE[weights.dtype], TYPE[dtype]),
        weights=weights.data_ptr(), indices=indices.data_ptr(), wide_indices=is_wide(indices),
        positions=0 if positions is None else positions.data_ptr(), size=size, brought=converted.data_ptr(),
        brought_indices=0 if positions is None else in_order.data_ptr(), checks=checks,
    )  # fmt: skip
    return converted, in_order


def _totals(call: Call, weights: Tensor, bounds: int, rows: int, kind: int, checks: int) -> Tensor | None:
    """Return the divisor of each segment; None for sums."""
    if not HAS_DIVISOR[kind]:
        return None
    totals = call.empty(rows, dtype=weights.dtype)
    _TOTAL.launch(
        call.device, min(blocks_for(rows, THREADS), call.device.processors * 8), (TYPE[weights.dtype],),
        weights=weights.data_ptr(), bounds=bounds, rows=rows, is_squared=_IS_SQUARED[kind], totals=totals.data_ptr(),
        checks=checks,
    )  # fmt: skip
    return totals


# -- Gradients of weighted bags ---------------------------------------------------------------------------------------

_THREADS = 256
_WEIGH = Kernel("weighted_grad.cuh", "weigh_entries", _THREADS, [(w, a) for w in FLOATS for a in ("float", "double")])


@dataclass(frozen=True, slots=True)
class Weighting:
    """The attributes of a sum of weighted bags."""

    reduce: int
    rounding: int
    order: int

    def mode(self, dtype: torch.dtype) -> int:
        """Return the mode bits of `sum_sorted`; 16-bit floats may be rounded after each addition."""
        rounds = _ROUNDS[self.rounding] and dtype in (torch.float16, torch.bfloat16)
        return SCALE | (DIVIDE if HAS_DIVISOR[self.reduce] else 0) | (ROUND if rounds else 0)


class Reserve(Protocol):
    """Extra bytes to allocate with entries: `zeroed` bytes start as zeros, `workspace` bytes are uninitialized."""

    zeroed: int
    workspace: int


@dataclass(frozen=True, slots=True)
class WeightedEntries:
    """Sorted entries with weights and divisors, and the memory that holds them."""

    at: dict[str, int]
    size: int
    memory: tuple[Any, ...]


def weigh(
    call: Call, entries: Entries, grad: Tensor, segments: Tensor, weights: Tensor, reduce: int
) -> WeightedEntries:
    """Queue the kernel that replaces positions of entries by segments and adds weights and divisors.

    `segments` and `weights` are in the order of the batch.
    """
    size, total, capacity = entries.size, accumulator(grad.dtype), cuda_padded(entries.size)
    totals = segment_totals(call, segments, weights, total, grad.shape[0], reduce)
    scales = call.empty(2 if HAS_DIVISOR[reduce] else 1, capacity, dtype=total)
    divisors = scales[1].data_ptr() if HAS_DIVISOR[reduce] else 0
    at = {**entries.at, "scales": scales.data_ptr(), "divisors": divisors}
    _WEIGH.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 16),
        (TYPE[weights.dtype], TYPE[total]), values=at["values"], segments=segments.data_ptr(),
        wide_segments=is_wide(segments), weights=weights.data_ptr(), totals=0 if totals is None else totals.data_ptr(),
        size=size, scales=at["scales"], divisors=divisors, checks=at["checks"],
    )  # fmt: skip
    return WeightedEntries(at, size, (entries, scales))


def weighted_entries(
    call: Call,
    grad: Tensor,
    indices: Tensor,
    segment_ids: Tensor,
    weights: Tensor,
    num_rows: int,
    how: Weighting,
    reserve: Reserve,
    rows: Tensor | None = None,
    starts: Tensor | None = None,
) -> WeightedEntries:
    """Queue the sort of a batch. `rows` and `starts` receive the distinct rows and their first entries."""
    entries = SortedIds(
        call.device, indices.numel(), num_rows, grad.shape[0], zeroed=reserve.zeroed, workspace=reserve.workspace
    )  # fmt: skip
    entries.run(indices, segment_ids, call.report(), by_segment=False, rows_out=rows, starts_out=starts)
    return weigh(call, entries, grad, segment_ids, weights, how.reduce)


@runs("weighted_segment_grad")
def weighted_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """Run WeightedSparseSegment{Sum,Mean,SqrtN}Grad."""
    (grad, indices, segment_ids, weights, num_rows), how = call.inputs, Weighting(*call.attrs)
    out, device = call.output(0), call.device
    if indices.numel() == 0 or num_rows == 0:  # as TensorFlow: nothing else is validated
        device.zero(out)
        return (out,)
    joins = Joins(indices.numel(), grad, out, how.order)
    with zero_output(device, out):
        entries = weighted_entries(call, grad, indices, segment_ids, weights, num_rows, how, joins)
    sum_sorted(device, entries, grad, out, how.mode(grad.dtype), how.order, unique=False)
    return (out,)
