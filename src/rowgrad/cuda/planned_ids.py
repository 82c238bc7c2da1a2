"""PlannedIds."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import Call, blocks_for, is_wide, runs
from .kernel import Kernel

_THREADS = 256
_TILE = 1024  # entries a block finds the rows of at a time
_ARRAYS = Kernel("planned_ids.cuh", "check_plan_arrays", _THREADS)
_IDS = Kernel("planned_ids.cuh", "planned_ids", _THREADS)
_COUNTS = Kernel("planned_ids.cuh", "check_plan_counts", _THREADS)


@runs("planned_ids")
def planned_ids(call: Call) -> tuple[Tensor, ...]:
    """What becomes an address is checked, entries go back to their positions, then counts are compared."""
    rows, starts, segments, positions, counts, num_rows = call.inputs
    listed, size, num_segments = rows.numel(), segments.numel(), counts.numel()
    indices, segment_ids = call.output(0), call.output(1)
    most = call.device.processors * 8
    state = call.empty(3 + num_segments + blocks_for(size, 2), dtype=torch.int64)  # checks, what is found, what is seen
    call.device.zero(state)
    arrays, entries, totals, found = (state.data_ptr() + 8 * i for i in range(4))
    plan = {
        "rows": rows.data_ptr(), "wide_rows": is_wide(rows), "starts": starts.data_ptr(), "listed": listed,
        "segments": segments.data_ptr(), "wide_segments": is_wide(segments), "positions": positions.data_ptr(),
        "size": size,
    }  # fmt: skip
    _ARRAYS.launch(
        call.device, min(blocks_for(max(listed, size), _THREADS), most), num_rows=num_rows, num_segments=num_segments,
        checks=arrays, **plan, **call.told(),
    )  # fmt: skip
    _IDS.launch(
        call.device, min(blocks_for(size, _TILE), most), seen=found + 8 * num_segments, found=found,
        indices=indices.data_ptr(), segment_ids=segment_ids.data_ptr(), before=arrays, checks=entries, **plan,
        **call.told(),
    )  # fmt: skip
    _COUNTS.launch(
        call.device, min(blocks_for(num_segments, _THREADS), most), counts=counts.data_ptr(), found=found,
        num_segments=num_segments, arrays=arrays, entries=entries, checks=totals, **call.told(),
    )  # fmt: skip
    return indices, segment_ids
