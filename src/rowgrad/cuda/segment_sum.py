"""SegmentSum, and what weighted bags share with it: bounds of sorted segments, and how threads share columns."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import refuse
from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .kernel import COMPLEX, FLOATS, Kernel

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
        **call.told(),
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
    call: Call, short: Kernel, long: Kernel, kind: str, data: Tensor, out: Tensor, ids: int, **told: int
) -> None:
    """Sums of segments by two kernels: the first leaves long segments to the second. There are `ids` rows in all."""
    form, log_lanes, blocks = column_form(kind, data, out)
    found = zeros(call, 1 + ids // (LONGEST + 1))
    most = call.device.processors * 64
    told = {"data": data.data_ptr(), "cols": row_size(data), "out": out.data_ptr(), "found": found.data_ptr(), **told}
    short.launch(call.device, min(blocks, most), form, rows=out.shape[0], longest=LONGEST, log_lanes=log_lanes, **told)
    if ids > LONGEST:
        most_items = (ids // (LONGEST + 1)) * blocks_for(row_size(data), 64)
        long.launch(call.device, min(most_items, call.device.processors * 4), (kind,), _LONG_SHARED, **told)


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
        raise refuse("last_segment_overflows", bound=-_MAX - 1, **facts)
    if last < 0:
        raise refuse("segment_negative", bound=0, **facts)
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
