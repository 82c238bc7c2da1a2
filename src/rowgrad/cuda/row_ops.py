"""RowDot, SparseSegmentDot, RowPositions."""

from __future__ import annotations

from torch import Tensor

from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .kernel import FLOATS, Kernel

_THREADS = 256
_CHECK = Kernel("row_ops.cuh", "check_pairs", _THREADS)
_DOTS = Kernel("row_ops.cuh", "row_dots", _THREADS, [(t,) for t in FLOATS])
_POSITIONS = Kernel("row_ops.cuh", "row_positions", _THREADS)


@runs("row_dot")
def row_dot(call: Call) -> tuple[Tensor, ...]:
    """Nothing is checked."""
    x, y = call.inputs
    return (_dots(call, x, None, y, None, x.shape[0], 0),)


@runs("sparse_segment_dot")
def sparse_segment_dot(call: Call) -> tuple[Tensor, ...]:
    """Ids are checked pair by pair, then their rows multiplied."""
    grad, data, indices, segments = call.inputs
    size, checks = indices.numel(), call.checks()
    _CHECK.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 8), size=size, checks=checks.data_ptr(),
        indices=indices.data_ptr(), wide_indices=is_wide(indices), data_rows=data.shape[0],
        segments=segments.data_ptr(), wide_segments=is_wide(segments), grad_rows=grad.shape[0], **call.told(),
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
    """One kernel, which looks for ids and at them."""
    listed, ids = call.inputs
    out, size, checks = call.output(0), ids.numel(), call.checks()
    _POSITIONS.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 8), size=size, checks=checks.data_ptr(),
        list=listed.data_ptr(), wide_list=is_wide(listed), listed=listed.numel(),
        ids=ids.data_ptr(), wide_ids=is_wide(ids), positions=out.data_ptr(), **call.told(),
    )  # fmt: skip
    return (out,)
