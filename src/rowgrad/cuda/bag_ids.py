"""SegmentIdsFromOffsets and StackBags on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import make_error
from .call import Call, blocks_for, is_wide, runs
from .kernel import Kernel
from .launcher_kernels import CHECK_OFFSETS, SEGMENTS_OF_OFFSETS

_TILE = 1024  # items per block and iteration
_EXAMPLES = 32  # examples per block of `stacked_starts` and iteration
_CHECK_BAGS = Kernel("bag_ids.cuh", "check_bags", 256)
_STARTS = Kernel("bag_ids.cuh", "stacked_starts", 512)
_STACK = Kernel("bag_ids.cuh", "stack_bags", 256)


@runs("segment_ids_from_offsets")
def segment_ids_from_offsets(call: Call) -> tuple[Tensor, ...]:
    """Validate the offsets, then find the bag of each id."""
    (offsets, ids), (has_end,) = call.inputs, call.attrs
    size, out, most = offsets.numel(), call.output(0), call.device.processors * 8
    if size == 0:  # nothing on the device to validate
        if ids or has_end:
            raise make_error("offsets_end", has=call.op.input_names, position=-1, value=0, bound=ids)
        return (out,)
    checks = call.checks()
    fields = {"offsets": offsets.data_ptr(), "wide": is_wide(offsets), "ids": ids, "checks": checks.data_ptr()}
    CHECK_OFFSETS.launch(
        call.device, min(blocks_for(size, 256), most), size=size, has_end=has_end, **fields, **call.report_fields()
    )
    SEGMENTS_OF_OFFSETS.launch(
        call.device, min(blocks_for(ids, _TILE), most), bags=size - has_end, segments=out.data_ptr(), **fields
    )
    return (out,)


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
