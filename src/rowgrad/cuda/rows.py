"""RowDot, SparseSegmentDot, RowPositions, GatherRows, ScatterRows and Sqrt on CUDA."""

from __future__ import annotations

from math import gcd

from torch import Tensor

from .._catalog.enums import Fault, Order
from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .kernel import FLOATS, Kernel
from .launcher_kernels import CHECK_GATHER, GATHER, UNITS
from .sorting import SortedIds
from .sparse_segment import sum_sorted, zero_output

# -- RowDot, SparseSegmentDot, RowPositions ---------------------------------------------------------------------------

_THREADS = 256
_CHECK = Kernel("row_ops.cuh", "check_pairs", _THREADS)
_DOTS = Kernel("row_ops.cuh", "row_dots", _THREADS, [(t,) for t in FLOATS])
_POSITIONS = Kernel("row_ops.cuh", "row_positions", _THREADS)


@runs("row_dot")
def row_dot(call: Call) -> tuple[Tensor, ...]:
    """Multiply rows pairwise; nothing needs validation."""
    x, y = call.inputs
    return (_dots(call, x, None, y, None, x.shape[0], 0),)


@runs("sparse_segment_dot")
def sparse_segment_dot(call: Call) -> tuple[Tensor, ...]:
    """Validate pairs of ids, then multiply their rows."""
    grad, data, indices, segments = call.inputs
    size, checks = indices.numel(), call.checks()
    _CHECK.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 8), size=size, checks=checks.data_ptr(),
        indices=indices.data_ptr(), wide_indices=is_wide(indices), data_rows=data.shape[0],
        segments=segments.data_ptr(), wide_segments=is_wide(segments), grad_rows=grad.shape[0], **call.report_fields(),
    )  # fmt: skip
    return (_dots(call, grad, segments, data, indices, size, checks.data_ptr()),)


def _dots(
    call: Call, x: Tensor, x_ids: Tensor | None, y: Tensor, y_ids: Tensor | None, size: int, checks: int
) -> Tensor:
    out = call.output(0)
    rows_of_block = _THREADS // 8
    _DOTS.launch(
        call.device, min(blocks_for(size, rows_of_block), call.device.processors * 32), (TYPE[x.dtype],),
        x=x.data_ptr(), x_ids=0 if x_ids is None else x_ids.data_ptr(), x_wide=0 if x_ids is None else is_wide(x_ids),
        y=y.data_ptr(), y_ids=0 if y_ids is None else y_ids.data_ptr(), y_wide=0 if y_ids is None else is_wide(y_ids),
        size=size, cols=row_size(x), dots=out.data_ptr(), checks=checks,
    )  # fmt: skip
    return out


@runs("row_positions")
def row_positions(call: Call) -> tuple[Tensor, ...]:
    """Find each id in the sorted list; the same kernel validates."""
    listed, ids = call.inputs
    out, size, checks = call.output(0), ids.numel(), call.checks()
    _POSITIONS.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 8), size=size, checks=checks.data_ptr(),
        list=listed.data_ptr(), wide_list=is_wide(listed), listed=listed.numel(),
        ids=ids.data_ptr(), wide_ids=is_wide(ids), positions=out.data_ptr(), **call.report_fields(),
    )  # fmt: skip
    return (out,)


# -- GatherRows -------------------------------------------------------------------------------------------------------


@runs("gather_rows")
def gather_rows(call: Call) -> tuple[Tensor, ...]:
    """Validate ids, then copy rows."""
    params, ids = call.inputs
    out = call.output(0)
    size, most = ids.numel(), call.device.processors * 8
    checks = call.checks()
    fields = {"ids": ids.data_ptr(), "wide": is_wide(ids), "size": size, "checks": checks.data_ptr()}
    CHECK_GATHER.launch(
        call.device, min(blocks_for(size, 256), most), bound=params.shape[0],
        code=Fault.index_not_in_params, **fields, **call.report_fields(),
    )  # fmt: skip
    row_bytes = row_size(params) * params.element_size()
    unit = gcd(row_bytes, params.data_ptr(), out.data_ptr(), 16)
    if row_bytes:
        units = row_bytes // unit
        GATHER.launch(
            call.device, min(blocks_for(size * units, 256), most * 16), (UNITS[unit],),
            source=params.data_ptr(), to=out.data_ptr(), row_units=units, **fields,
        )  # fmt: skip
    return (out,)


# -- ScatterRows ------------------------------------------------------------------------------------------------------


@runs("scatter_rows")
def scatter_rows(call: Call) -> tuple[Tensor, ...]:
    """Sum rows by id, as a gradient in which each position is its own segment."""
    grad, indices, num_rows = call.inputs
    out, size, device = call.output(0), indices.numel(), call.device
    if size == 0:
        device.zero(out)
        return (out,)
    entries = SortedIds(device, size, num_rows, 1)
    with zero_output(device, out):
        entries.run(indices, None, call.report(), by_segment=False, order=0)
    sum_sorted(device, entries, grad, out, 0, Order.sequential, unique=False)
    return (out,)


# -- Sqrt -------------------------------------------------------------------------------------------------------------

_ROOTS = Kernel("elementwise.cuh", "roots", 256, [(t,) for t in FLOATS])


@runs("sqrt")
def sqrt(call: Call) -> tuple[Tensor, ...]:
    """Compute square roots; nothing needs validation."""
    (x,) = call.inputs
    out, size = call.output(0), x.numel()
    _ROOTS.launch(
        call.device, min(blocks_for(size, 256), call.device.processors * 32), (TYPE[x.dtype],),
        x=x.data_ptr(), roots=out.data_ptr(), size=size,
    )  # fmt: skip
    return (out,)
