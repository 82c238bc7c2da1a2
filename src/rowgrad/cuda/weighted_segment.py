"""Weighted bags on CUDA: sums, and gradients with respect to rows and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._catalog.enums import Reduction, Rounding
from ..errors import make_error
from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .kernel import COMPLEX, FLOATS, Kernel
from .sorting import SortedIds, padded
from .sparse_segment import (
    DIVIDE,
    HAS_DIVISOR,
    ROUND,
    SCALE,
    Entries,
    Joins,
    Shape,
    accumulator,
    cleared,
    run_shift_of,
    sum_sorted,
)

# -- SegmentSum, and what weighted bags share with it -----------------------------------------------------------------

# SegmentSum, and what weighted bags share with it: bounds of sorted segments, and how threads share columns.

THREADS = 256
# Columns a thread takes at a time, where rows and addresses allow it: sixteen bytes, but few of small integers.
WIDTH = {
    "half": 8, "bfloat16": 8, "float": 4, "double": 2, "complex<float>": 2, "complex<double>": 1,
    "uint8_t": 4, "uint16_t": 4, "uint32_t": 4, "uint64_t": 2,
}  # fmt: skip
LONGEST = 256  # rows of a segment that the threads of its columns sum by themselves
LONG_THREADS = 512
_LONG_SHARED = 32 * 1024 + 4 * 64 * 16  # as sum_long_segment lays it out
_MAX = (1 << 63) - 1


def column_forms(types: tuple[str, ...]) -> list[tuple[str, str]]:
    """A kernel's forms for these types: one column at a time, and several."""
    return [(t, str(v)) for t in types for v in sorted({1, WIDTH[t]})]


_SUMS = (*FLOATS, "uint8_t", "uint16_t", "uint32_t", "uint64_t", *COMPLEX)
_CHECK = Kernel("segment_sum.cuh", "check_segments", THREADS)
_MARK = Kernel("segment_sum.cuh", "mark_segments", THREADS)
_SUM = Kernel("segment_sum.cuh", "sum_segments", THREADS, column_forms(_SUMS))
_SUM_LONG = Kernel("segment_sum.cuh", "sum_long_segments", LONG_THREADS, [(t,) for t in _SUMS])


def column_form(kind: str, data: Tensor, out: Tensor) -> tuple[tuple[str, str], int, int]:
    """The form for rows of `data`, which go to rows of `out`; how many threads share a row (as a power of two); blocks
    for so many rows of it have `THREADS` threads."""
    cols, width = row_size(data), WIDTH[kind]
    unit = width * data.element_size()
    if cols % width or data.data_ptr() % unit or out.data_ptr() % unit:
        width = 1
    log_lanes = min(max(blocks_for(cols, width) - 1, 0).bit_length(), THREADS.bit_length() - 1)
    return (kind, str(width)), log_lanes, blocks_for(out.shape[0] << log_lanes, THREADS)


def zeros(call: Call, size: int) -> Tensor:
    """A workspace of zeros, eight bytes each: a state of checks takes one."""
    tensor = call.empty(size, dtype=torch.int64)
    call.device.zero(tensor)
    return tensor


def check_bounds(call: Call, segments: Tensor, rows: int, has_columns: bool, before: int = 0) -> tuple[Tensor, int]:
    """Check that segments ascend, in [0, rows): the state of the checks, and where the bounds stand.

    `before`: the state of checks that came first. Without columns no bounds are needed, however many rows there are.
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
    """The bounds of segments that ascend and were found good by `checks`."""
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
    """Sums of segments by two kernels: the first leaves long segments to the second. There are `ids` rows in all."""
    form, log_lanes, blocks = column_form(kind, data, out)
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
        call.device, min(blocks, most), form, rows=out.shape[0], longest=LONGEST, log_lanes=log_lanes, **fields
    )
    if ids > LONGEST:
        most_items = (ids // (LONGEST + 1)) * blocks_for(row_size(data), 64)
        long.launch(call.device, min(most_items, call.device.processors * 4), (kind,), _LONG_SHARED, **fields)


@runs("segment_sum")
def segment_sum(call: Call) -> tuple[Tensor, ...]:
    """The last segment says how many rows there are; then segments are checked, and summed."""
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


# -- WeightedSparseSegment* -------------------------------------------------------------------------------------------

# WeightedSparseSegment*: weighted bags, and the gradient of each id's own row.

_IS_SQUARED: dict[int, int] = {Reduction.mean: 0, Reduction.sqrtn: 1}  # whether totals are √Σw² or Σw
_ROUNDS: dict[int, bool] = {Rounding.each_add: True, Rounding.at_end: False}
_FILE = "weighted_segment.cuh"
_CHECK_WEIGHTED = Kernel(_FILE, "check_weighted", THREADS)
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
    totals = (
        None
        if not HAS_DIVISOR[kind]
        else _totals_in_order(call, checked, segments, weights, values, grad.shape[0], kind)
    )
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
    """Σw or √Σw² of every segment in this dtype; None for sums. The caller has validated the segments."""
    if not HAS_DIVISOR[kind]:
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
    """Return report fields of memory that nobody reads: earlier checks have reported the same faults."""
    memory = call.empty(5, dtype=torch.int64)
    call.keeps.append(memory)
    return {"fault": memory.data_ptr(), "alarm": memory[4:].data_ptr()}


def _check(
    call: Call,
    indices: Tensor | None,
    data_rows: int,
    segments: Tensor | None,
    rows: int,
    report: dict[str, int] | None = None,
) -> Tensor:
    """The state of the checks, and after it whether segments fall."""
    state = zeros(call, 2)
    given = segments if indices is None else indices
    assert given is not None
    size = given.numel()
    _CHECK_WEIGHTED.launch(
        call.device, min(blocks_for(size, THREADS), call.device.processors * 8), size=size, checks=state.data_ptr(),
        indices=0 if indices is None else indices.data_ptr(), wide_indices=0 if indices is None else is_wide(indices),
        data_rows=data_rows, segments=0 if segments is None else segments.data_ptr(),
        wide_segments=0 if segments is None else is_wide(segments), segment_rows=rows, falls=state.data_ptr() + 8,
        **(report or call.report_fields()),
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
        raise make_error("last_segment_too_big", bound=_MAX, **facts)
    if last < 0 or (last == (1 << 31) - 1 and not is_wide(segments)):
        raise make_error("segment_negative", bound=0, **facts)
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
    if not HAS_DIVISOR[kind]:
        return None
    totals = call.empty(rows, dtype=weights.dtype)
    _TOTAL.launch(
        call.device, min(blocks_for(rows, THREADS), call.device.processors * 8), (TYPE[weights.dtype],),
        weights=weights.data_ptr(), bounds=bounds, rows=rows, is_squared=_IS_SQUARED[kind], totals=totals.data_ptr(),
        checks=checks,
    )  # fmt: skip
    return totals


# -- WeightedSparseSegment{Sum,Mean,SqrtN}Grad ------------------------------------------------------------------------

# WeightedSparseSegment{Sum,Mean,SqrtN}Grad: ids sorted with their positions, weighted gradient rows added up.

_THREADS = 256
_WEIGH = Kernel("weighted_grad.cuh", "weigh_entries", _THREADS, [(w, a) for w in FLOATS for a in ("float", "double")])


@dataclass(frozen=True, slots=True)
class Weighting:
    """How the rows of weighted bags add up: the record's attributes."""

    reduce: int
    rounding: int
    order: int

    def mode(self, dtype: torch.dtype) -> int:
        """What sums do with every row: 16-bit floats may be rounded after every step."""
        rounds = _ROUNDS[self.rounding] and dtype in (torch.float16, torch.bfloat16)
        return SCALE | (DIVIDE if HAS_DIVISOR[self.reduce] else 0) | (ROUND if rounds else 0)


class Reserve(Protocol):
    """Bytes that go with entries: `zeroed` are zeros at the start, `kept` hold anything."""

    zeroed: int
    kept: int


@dataclass(frozen=True, slots=True)
class WeightedEntries:
    """Sorted entries with weights and divisors, and the memory they lie in."""

    at: dict[str, int]
    size: int
    memory: tuple[Any, ...]


def weigh(
    call: Call, entries: Entries, grad: Tensor, segments: Tensor, weights: Tensor, reduce: int
) -> WeightedEntries:
    """Queue what turns the positions of entries into segments, and gives them weights and divisors.

    `segments` and `weights` are in the order of the batch.
    """
    size, total, room = entries.size, accumulator(grad.dtype), padded(entries.size)
    totals = segment_totals(call, segments, weights, total, grad.shape[0], reduce)
    scales = call.empty(2 if HAS_DIVISOR[reduce] else 1, room, dtype=total)
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
    """Queue the sort of a batch. `rows` and `starts`: memory for the rows that are named and where they begin."""
    entries = SortedIds(
        call.device, indices.numel(), num_rows, grad.shape[0], zeroed=reserve.zeroed, kept=reserve.kept
    )  # fmt: skip
    entries.run(indices, segment_ids, call.report_fields(), by_segment=False, rows_out=rows, starts_out=starts)
    return weigh(call, entries, grad, segment_ids, weights, how.reduce)


@runs("weighted_segment_grad")
def weighted_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """The whole table."""
    (grad, indices, segment_ids, weights, num_rows), how = call.inputs, Weighting(*call.attrs)
    out, device, run_shift = call.output(0), call.device, run_shift_of(how.order)
    if indices.numel() == 0 or num_rows == 0:  # then nothing else is looked at
        device.zero(out)
        return (out,)
    shape = Shape(grad, out)
    joins = Joins(indices.numel(), shape, accumulator(grad.dtype), run_shift)
    with cleared(device, out):
        entries = weighted_entries(call, grad, indices, segment_ids, weights, num_rows, how, joins)
    sum_sorted(device, entries, grad, out, shape, how.mode(grad.dtype), run_shift, unique=False)
    return (out,)
