"""StackBags on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import Call, blocks_for, is_wide, runs
from .kernel import Kernel

_TILE = 1024  # items per block and iteration
_EXAMPLES = 32  # examples per block of `stacked_starts` and iteration
_CHECK_BAGS = Kernel("bag_ids.cuh", "check_bags", 256)
_STARTS = Kernel("bag_ids.cuh", "stacked_starts", 512)
_STACK = Kernel("bag_ids.cuh", "stack_bags", 256)


@runs("stack_bags")
def stack_bags(call: Call) -> tuple[Tensor, ...]:
    """Validate the inputs, compute where each bag starts in the result, then copy the ids."""
    (indices, offsets, feature_rows, feature_first), (has_positions,) = call.inputs, call.attrs
    ids, features, most = indices.numel(), feature_rows.numel(), call.device.processors * 8
    bags = offsets.numel() - 1
    examples = bags // features
    stacked, segments, positions = (call.output(i) for i in range(3))
    checks, starts = call.checks(), call.empty(bags, dtype=torch.int64)
    fields = {"features": features, "examples": examples, "checks": checks.data_ptr()}
    lists = {
        "indices": indices.data_ptr(), "wide_indices": is_wide(indices), "ids": ids,
        "offsets": offsets.data_ptr(), "wide_offsets": is_wide(offsets), "feature_first": feature_first.data_ptr(),
    }  # fmt: skip
    check_blocks = max(blocks_for(ids, _TILE), blocks_for(bags + 1, 256), blocks_for(features, 256))
    _CHECK_BAGS.launch(
        call.device,
        min(check_blocks, most),
        feature_rows=feature_rows.data_ptr(),
        **lists,
        **fields,
        **call.report_fields(),
    )
    _STARTS.launch(
        call.device, min(blocks_for(examples, _EXAMPLES), most), offsets=offsets.data_ptr(), wide=is_wide(offsets),
        starts=starts.data_ptr(), **fields,
    )  # fmt: skip
    _STACK.launch(
        call.device, min(blocks_for(ids, _TILE), most), starts=starts.data_ptr(), stacked=stacked.data_ptr(),
        segments=segments.data_ptr(), positions=positions.data_ptr() if has_positions else 0, **lists, **fields,
    )  # fmt: skip
    return stacked, segments, positions
