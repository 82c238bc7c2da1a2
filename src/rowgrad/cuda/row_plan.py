"""RowPlan."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import Call, blocks_for, is_wide, runs
from .kernel import Kernel
from .sorting import SortedIds

_THREADS = 256
_WRITE = Kernel("row_plan.cuh", "write_plan", _THREADS)


@runs("row_plan")
def row_plan(call: Call) -> tuple[Tensor, ...]:
    """Ids are sorted with their positions; how many rows they name is asked for once, at the end."""
    indices, segment_ids, num_rows, num_segments = call.inputs
    size, device = indices.numel(), call.device
    segments, positions, counts = (call.output(i) for i in (2, 3, 4))
    if size == 0:
        device.zero(counts)
        return call.output(0, 0), call.output(1, 0), segments, positions, counts
    entries = SortedIds(device, size, num_rows, num_segments, counted=True)
    rows, starts = call.empty(size, dtype=indices.dtype), call.empty(size, dtype=torch.int64)
    entries.run(
        indices, segment_ids, call.told(), by_segment=False, order=0, rows_out=rows, starts_out=starts
    )  # fmt: skip
    _WRITE.launch(
        device, min(blocks_for(max(size, num_segments), _THREADS), device.processors * 16),
        sorted_positions=entries.at["values"], segment_ids=segment_ids.data_ptr(), wide_segments=is_wide(segment_ids),
        size=size, found=entries.at["counts"], num_segments=num_segments, segments=segments.data_ptr(),
        positions=positions.data_ptr(), counts=counts.data_ptr(), checks=entries.at["checks"],
    )  # fmt: skip
    total = call.number(entries.part("total", 1, torch.int64))
    return rows[:total].clone(), starts[:total].clone(), segments, positions, counts
