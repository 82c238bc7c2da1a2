"""SparseSegment forwards, and the gradients' transposes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import refuse
from .call import TYPE, Call, blocks_for, is_wide, runs
from .device import Device
from .kernel import FLOATS, INTEGERS, Kernel
from .sorting import SortedIds
from .sparse_segment import WIDE, Shape, accumulator

_BLOCK = 128
_WAVE = 7  # blocks of a multiprocessor
_ROOM = 1.5  # times the ids a block of bags has on average
_LIST = 4096  # ids of a block of threads that shared memory holds
_FORMS = [
    *((t, w) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)),
    *((t, "1") for t in INTEGERS),
]
_SUM = Kernel("segment_forward.cuh", "sum_bags", _BLOCK, _FORMS, _WAVE)
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1


class Forward:
    """A forward on memory of its own, to be run again and again."""

    def __init__(
        self, device: Device, data: Tensor, indices: Tensor, segment_ids: Tensor, num_segments: int, *, reduce: int,
        out: Tensor | None = None, told: dict[str, int],
    ) -> None:  # fmt: skip
        self.device, self.data, self.indices, self.segment_ids = device, data, indices, segment_ids
        self.reduce, self.bags, self.told = reduce, num_segments, told
        self.out = device.empty((num_segments, *data.shape[1:]), data.dtype) if out is None else out

    def run(self) -> None:
        """Queue it."""
        sum_bags(
            self.device, self.data, self.out, (self.indices.data_ptr(), is_wide(self.indices)),
            (self.segment_ids.data_ptr(), is_wide(self.segment_ids)), self.indices.numel(), self.bags, self.reduce,
            self.told,
        )  # fmt: skip


List = tuple[int, int]  # the address of ids, and whether they are of 64 bits


def sum_bags(
    device: Device, data: Tensor, out: Tensor, ids: List, segments: List, size: int, bags: int, reduce: int,
    told: dict[str, int], earlier: int = 0,
) -> None:  # fmt: skip
    """Queue the checks of sorted segments and of their ids, and the sums of bags."""
    shape = Shape(data, out)
    workers = _BLOCK // shape.lanes
    # As many bags a block as make one wave of blocks, but lists of ids that mostly fit.
    rounds = min(blocks_for(bags, workers * _WAVE * device.processors), 3 * _LIST * bags // (4 * workers * (size + 1)))
    block_bags = workers * min(max(rounds, 1), 16)
    capacity = min(_LIST, int(_ROOM * block_bags * (size // (bags + 1) + 8)))
    shared = (
        _BLOCK * shape.width * accumulator(data.dtype).itemsize + 8 * (block_bags + 2) + 4 * (capacity + block_bags)
    )
    _SUM.launch(
        device, (max(blocks_for(bags, block_bags), 1), max(shape.tiles, 1)), (TYPE[data.dtype], str(shape.width)),
        shared,
        data=data.data_ptr(), out=out.data_ptr(), columns=shape.columns, lanes=shape.lanes, ids=ids[0],
        ids_wide=ids[1], segments=segments[0], segments_wide=segments[1], size=size, rows=data.shape[0], bags=bags,
        block_bags=block_bags, capacity=capacity, reduce=reduce, earlier=earlier, **told,
    )  # fmt: skip


def forward_rows(call: Call, segments: Tensor, wide_indices: bool, num_segments: int | None) -> int:
    """How many bags a forward has. It reads the last segment off the device, but for a plain `num_segments`."""
    size = segments.numel()
    if num_segments is not None and num_segments <= _INT32:
        return num_segments
    last = call.number(segments[-1]) if size else 0
    limit = _INT64 if wide_indices else _INT32
    if last >= limit:
        raise refuse("last_segment_too_big", call.op.input_names, position=size - 1, value=last, bound=limit)
    needed = last + 1 if size else 0
    if segments.dtype == torch.int32:
        needed = _low_half(needed)
    if num_segments is not None:
        if _low_half(num_segments) < needed:
            raise refuse(
                "num_segments_too_small", call.op.input_names, position=size - 1, value=last, bound=num_segments
            )
        raise refuse("num_segments_too_big", call.op.input_names, position=-1, value=num_segments, bound=_INT32)
    rows = needed if wide_indices else _low_half(needed)
    if rows < 0 or (size and rows == 0):
        raise refuse("segment_negative", call.op.input_names, position=size - 1, value=last, bound=0)
    return rows


def _low_half(number: int) -> int:
    """The low 32 bits of a number, as an int32."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


@runs("sparse_segment")
def sparse_segment(call: Call) -> tuple[Tensor, ...]:
    """SparseSegment{Sum,Mean,SqrtN}, also with the number of segments, also with a plan beside them."""
    data, indices, segment_ids = call.inputs[:3]
    reduce, sized = call.attrs[:2]
    bags = forward_rows(call, segment_ids, bool(is_wide(indices)), call.inputs[3] if sized else None)
    out = call.output(0, bags)
    forward = Forward(
        call.device, data, indices, segment_ids, bags, reduce=reduce, out=out, told=call.cleared()
    )  # fmt: skip
    forward.run()
    return (out,)


@runs("sparse_segment_grad_grad")
def sparse_segment_grad_grad(call: Call) -> tuple[Tensor, ...]:
    """The transposes of gradients: forwards of segments in any order."""
    data, indices, segment_ids, bags = call.inputs
    (reduce,) = call.attrs
    out = call.output(0)
    size, rows = indices.numel(), data.shape[0]
    if size == 0 or rows == 0:  # the gradient looked at no id either
        call.device.zero(out)
        return (out,)
    entries = SortedIds(call.device, size, bags, rows)
    entries.run(segment_ids, indices, call.told(), order=3, codes=("segment_not_in_grad", "index_not_in_data"))
    at = entries.at
    sum_bags(
        call.device, data, out, (at["values"], 0), (at["ids"], 0), size, bags, reduce, call.cleared(),
        earlier=at["checks"],
    )  # fmt: skip
    return (out,)
