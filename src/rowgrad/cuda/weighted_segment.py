"""SegmentSum and WeightedSparseSegment{Sum,Mean,SqrtN} on CUDA; sorted entries of weighted gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._catalog.enums import Rounding
from ..errors import make_error
from .call import TYPE, Call, Workspaces, blocks_for, is_wide, row_size, runs
from .device import CODE, id_list, matrix
from .kernel import COMPLEX, FLOATS, Kernel
from .launcher_kernels import CHECK_WEIGHTED, WIDTH, column_variants
from .sorting import SortedIds
from .sparse_segment import DIVIDE, HAS_DIVISOR, ROUND, SCALE, Entries

# -- Sorted segments: bounds, columns of threads, SegmentSum ----------------------------------------------------------

THREADS = 256
LONGEST = 256  # longer segments are summed by a second kernel
LONG_THREADS = 512
_LONG_SHARED = 32 * 1024 + 4 * 64 * 16  # the layout in sum_long_segment
_MAX = (1 << 63) - 1
_ROUNDS: dict[int, bool] = {Rounding.each_add: True, Rounding.at_end: False}
_SUMS = (*FLOATS, "uint8_t", "uint16_t", "uint32_t", "uint64_t", *COMPLEX)
_CHECK = Kernel("segment_sum.cuh", "check_segments", THREADS)
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


# -- Weighted bags ----------------------------------------------------------------------------------------------------


@runs("weighted_segment")
def weighted_segment(call: Call) -> tuple[Tensor, ...]:
    """Validate indices, find the number of rows, validate segments, then sum."""
    (data, indices, segments, weights), is_sized = call.inputs[:4], call.attrs[1]
    if is_sized or indices.numel() == 0:
        return call.queue(inputs=[*call.inputs[:4], call.inputs[4] if is_sized else 0], rows=0)
    checked = zeros(call, 2)
    CHECK_WEIGHTED.launch(
        call.device, min(blocks_for(indices.numel(), THREADS), call.device.processors * 8), size=indices.numel(),
        indices=indices.data_ptr(), wide_indices=is_wide(indices), data_rows=data.shape[0], segments=0,
        wide_segments=0, segment_rows=0, falls=checked[1:].data_ptr(), bounds=0,
        checks=checked.data_ptr(), **call.report_fields(),
    )  # fmt: skip
    rows = _rows_needed(call, segments)
    check_bounds(call, segments, rows, False, checked.data_ptr())
    # The launcher validates again, without the order of segments. The first report is the one that counts.
    return call.queue(inputs=[data, indices, segments, weights, rows], rows=rows, report=_discarded_report(call))


def _discarded_report(call: Call) -> tuple[int, int, int]:
    """Return report addresses of memory that the host never reads: earlier checks have reported the same faults."""
    memory = zeros(call, 6)
    call.keep_alive.append(memory)
    return memory.data_ptr(), memory[4:].data_ptr(), memory[5:].data_ptr()


def _rows_needed(call: Call, segments: Tensor) -> int:
    """Return the last segment plus one; like TensorFlow, compute it in the dtype of the segments."""
    size, last = segments.numel(), call.number(segments[-1])
    facts = {"has": call.op.input_names, "position": size - 1, "value": last}
    if last == _MAX:
        raise make_error("last_segment_too_big", bound=_MAX, **facts)
    if last < 0 or (last == (1 << 31) - 1 and not is_wide(segments)):
        raise make_error("segment_negative", bound=0, **facts)
    return last + 1


# -- Entries of weighted gradients ------------------------------------------------------------------------------------


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
    """Queue what replaces positions of entries by segments and adds weights and divisors.

    `segments` and `weights` are in the order of the batch.
    """
    memory = Workspaces(call.device)
    at = call.device.launcher.weigh(
        call.device.stream(), entries.at, entries.size, matrix(grad), id_list(segments), weights.data_ptr(),
        CODE[weights.dtype], reduce, memory.allocate,
    )  # fmt: skip
    return WeightedEntries(at, entries.size, (entries, *memory.tensors))


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
