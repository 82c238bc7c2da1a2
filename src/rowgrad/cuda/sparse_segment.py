"""SparseSegment{Sum,Mean,SqrtN} on CUDA: bag sums, their gradients, and the transposes of the gradients.

A gradient sorts ids by row, then sums the gradient rows of each table row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._catalog.enums import Order, Reduction
from ..errors import ResourceExhaustedError, make_error
from .call import TYPE, Call, blocks_for, is_wide, row_size, runs
from .chains import Chain, key_of, queue_again, record
from .device import Device
from .kernel import COMPLEX, FLOATS, INTEGERS, Kernel
from .sorting import CHUNK, SortedIds

# -- Gradients --------------------------------------------------------------------------------------------------------

# Bits of the mode of `sum_sorted`.
SCALE, DIVIDE, ROUND = 1, 2, 4
SEVERAL = 8  # skip rows with a single entry
WIDE = ("4", "4", "4", "2")  # adjacent columns per lane, for the dtypes of FLOATS
_MAX_WIDTH = 4
_ROW_BYTES = 1 << 32
_SIDE_STREAM_BYTES = 16 << 20  # larger outputs are zeroed concurrently with the sort
_RUN_SHIFT: dict[int, int] = {Order.sequential: 30, Order.blocked: 6}
HAS_DIVISOR: dict[int, bool] = {Reduction.sum: False, Reduction.mean: True, Reduction.sqrtn: True}
BLOCK = 128
_SUMS = [
    *((t, w, str(m)) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)
      for m in ((0, 1, 3, 5, 7, 8, 9) if t in ("half", "bfloat16") else (0, 1, 3, 8, 9))),
    *((t, "1", "0") for t in (*INTEGERS, *COMPLEX)),
]  # fmt: skip
_FEW = ("double", "complex<double>")  # fewer resident blocks, as for divisions: these need many registers
_SUM = Kernel(
    "segment_grad.cuh", "sum_rows", BLOCK, _SUMS, {(t, w, m): 4 if t in _FEW or int(m) & 6 else 5 for t, w, m in _SUMS}
)  # fmt: skip
_JOIN = Kernel(
    "segment_grad.cuh", "join_runs", BLOCK,
    [(t, w, r) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)
     for r in (("false", "true") if t in ("half", "bfloat16") else ("false",))]
    + [(t, "1", "false") for t in (*INTEGERS, *COMPLEX)],
)  # fmt: skip

_UNSIGNED = {2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
_PAD = Kernel("row_ops.cuh", "pad_rows", 256, [(u,) for u in _UNSIGNED.values()])


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums are accumulated."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Shape:
    """The assignment of columns to lanes."""

    def __init__(self, tensor: Tensor, *others: Tensor) -> None:
        self.columns = columns = row_size(tensor)
        if columns * tensor.element_size() >= _ROW_BYTES:
            raise ResourceExhaustedError(f"a CUDA call supports rows of fewer than {_ROW_BYTES} bytes")
        wide = min(16 // tensor.element_size(), _MAX_WIDTH)
        aligned = all(t.data_ptr() % (wide * t.element_size()) == 0 for t in (tensor, *others))
        is_wide = tensor.dtype.is_floating_point and columns % wide == 0 and aligned and columns > 0
        self.width = wide if is_wide else 1
        units = blocks_for(columns, self.width)
        self.lanes = min(1 << max(units - 1, 0).bit_length(), 32)
        self.tiles = blocks_for(units, self.lanes)


@contextmanager
def zero_output(device: Device, out: Tensor | None) -> Iterator[None]:
    """Fill `out` with zeros; a large output concurrently with the work queued inside the `with` block."""
    is_large = out is not None and out.numel() * out.element_size() > _SIDE_STREAM_BYTES
    if out is not None:
        (device.zero_on_side_stream if is_large else device.zero)(out)
    try:
        yield
    finally:
        if is_large:
            device.join()


class Entries(Protocol):
    """Entries sorted by row, with the addresses that `sum_rows` reads, padded as in `SortedIds`."""

    @property
    def at(self) -> dict[str, int]:
        """Addresses by name."""

    @property
    def size(self) -> int:
        """The number of entries."""


def run_shift_of(order: int) -> int:
    """Return log2 of the run length of a summation order."""
    return _RUN_SHIFT[order]


class _Recording(NamedTuple):
    """The recorded launches of gradients with one key, before and after zeroing, and the size of their workspace."""

    memory: int
    total: int  # offset of the number of rows
    sort: Chain
    sum: Chain


_RECORDINGS: dict[Any, _Recording] = {}
_MAX_RECORDINGS = 1024


class Gradient:
    """A gradient with its own workspace that can run repeatedly; its launches are recorded like a CUDA graph.

    `unique`: compute only the distinct rows, whose number stays on the device; else the whole table. `capacity`: the
    minimum number of distinct rows to allocate.
    """

    def __init__(
        self,
        device: Device,
        grad: Tensor,
        indices: Tensor,
        segment_ids: Tensor,
        num_rows: int,
        *,
        reduce: int,
        order: int = 1,
        unique: bool = False,
        out: Tensor | None = None,
        capacity: int = 0,
        report: dict[str, int],
    ) -> None:
        self.device, self.grad, self.indices, self.segment_ids = device, grad, indices, segment_ids
        self.num_rows, self.reduce, self.order, self.unique, self.report = num_rows, reduce, order, unique, report
        size = indices.numel()
        most = max(size, capacity) if unique else 0
        self.out = device.empty((most if unique else num_rows, *grad.shape[1:]), grad.dtype) if out is None else out
        self.rows = device.empty((most,), indices.dtype)
        self._tensors = (indices, segment_ids, grad, self.out, self.rows)
        self._key = (device, num_rows, reduce, order, unique, key_of(self._tensors))
        self._memory: Tensor | None = None
        self._total = 0

    def run(self) -> None:
        """Queue all launches."""
        recording, fault = _RECORDINGS.get(self._key), self.report["fault"]
        if recording is None:
            self._record()
            return
        if self._memory is None:
            self._memory = self.device.empty((recording.memory,), torch.uint8)
            self._total = recording.total
        tensors = (self._memory, *self._tensors)
        with zero_output(self.device, None if self.unique else self.out):
            queue_again(self.device, recording.sort, tensors, fault)
        queue_again(self.device, recording.sum, tensors, fault)

    def _record(self) -> None:
        total, shape = accumulator(self.grad.dtype), Shape(self.grad, self.out)
        size, run_shift = self.indices.numel(), _RUN_SHIFT[self.order]
        joins = Joins(size, shape, total, run_shift)
        entries = SortedIds(
            self.device, size, self.num_rows, self.grad.shape[0], counted=HAS_DIVISOR[self.reduce],
            scales=total if HAS_DIVISOR[self.reduce] else None, zeroed=joins.zeroed, workspace=joins.workspace,
        )  # fmt: skip
        segments_first = not self.unique and HAS_DIVISOR[self.reduce]

        def sort(device: Device) -> None:
            entries.device = device
            entries.run(
                self.indices, self.segment_ids, self.report, order=2 if segments_first else 1, reduce=self.reduce,
                rows_out=self.rows if self.unique else None,
            )  # fmt: skip

        def add_up(device: Device) -> None:
            mode = SCALE if HAS_DIVISOR[self.reduce] else 0
            sum_sorted(device, entries, self.grad, self.out, shape, mode, run_shift, unique=self.unique)

        self._memory = entries.memory
        self._total = entries.at["total"] - entries.memory.data_ptr()
        tensors, fault = (self._memory, *self._tensors), self.report["fault"]
        with zero_output(self.device, None if self.unique else self.out):
            sorts = record(self.device, tensors, fault, sort)
        sums = record(self.device, tensors, fault, add_up)
        if len(_RECORDINGS) >= _MAX_RECORDINGS:
            _RECORDINGS.clear()
        _RECORDINGS[self._key] = _Recording(entries.memory.numel(), self._total, sorts, sums)

    def total(self) -> Tensor:
        """Return the number of distinct rows, on the device."""
        assert self._memory is not None
        return self._memory[self._total : self._total + 8].view(torch.int64)


class Joins:
    """The workspace sizes of partial sums that a second kernel joins.

    `zeroed` bytes hold a counter and the arrival counts; `workspace` bytes hold the partial sums and a list of them.
    """

    def __init__(self, size: int, shape: Shape, total: torch.dtype, run_shift: int) -> None:
        slots = 2 * (size // 64 + 1) if run_shift == _RUN_SHIFT[1] else 0
        self.sums = -(-slots * shape.columns * total.itemsize // 16) * 16
        self.zeroed = 16 + slots * shape.tiles * 8 if slots else 0
        self.workspace = self.sums + slots * 16
        self.most = slots


def sum_sorted(
    device: Device, entries: Entries, grad: Tensor, out: Tensor, shape: Shape, mode: int, run_shift: int, unique: bool
) -> None:  # fmt: skip
    """Queue the sums of sorted entries, into table rows or, if `unique`, into consecutive rows."""
    at = entries.at
    chunks, workers = blocks_for(entries.size, CHUNK), BLOCK // shape.lanes
    joins = Joins(entries.size, shape, accumulator(grad.dtype), run_shift)
    variant = (TYPE[grad.dtype], str(shape.width))
    fields = {"out": out.data_ptr(), "cols": shape.columns, "lanes": shape.lanes, "checks": at["checks"]}
    left = {"partials": at["workspace"], "lefts": at["workspace"] + joins.sums, "left_count": at["zeroed"]}
    _SUM.launch(
        device, (blocks_for(chunks, workers), shape.tiles), (*variant, str(mode)), 0,
        grad=grad.data_ptr(), ids=at["ids"], segments=at["values"], scales=at["scales"],
        divisors=at.get("divisors", 0), heads=at["heads"], firsts=at["firsts"], begins=at["begins"], size=entries.size,
        run_shift=run_shift, unique=int(unique), **fields, **left,
    )  # fmt: skip
    if joins.most and entries.size > 64:
        _JOIN.launch(
            device, (min(blocks_for(joins.most, workers), 2 * device.processors), shape.tiles),
            (*variant, "true" if mode & ROUND else "false"), 0, arrivals=at["zeroed"] + 16, **fields, **left,
        )  # fmt: skip


@runs("sparse_segment_grad")
def sparse_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """Run SparseSegment{Sum,Mean,SqrtN}Grad and GradV2."""
    grad, indices, segment_ids, num_rows = call.inputs
    reduce, unique, order = call.attrs
    if indices.numel() == 0 or num_rows == 0:  # as TensorFlow: nothing else is validated
        outputs = tuple(call.output(i, 0) for i in range(len(call.outputs)))
        call.device.zero(outputs[0])
        return outputs
    gradient = Gradient(
        call.device, grad, indices, segment_ids, num_rows, reduce=reduce, order=order, unique=bool(unique),
        out=None if unique else call.output(0), report=call.report_fields(),
    )  # fmt: skip
    gradient.run()
    if not unique:
        return (gradient.out,)
    total = call.number(gradient.total())
    return gradient.out[:total].clone(), gradient.rows[:total].clone()


@runs("sparse_segment_grad_padded")
def sparse_segment_grad_padded(call: Call) -> tuple[Tensor, ...]:
    """Run PaddedSparseSegment{Sum,Mean,SqrtN}GradV2 without synchronization: the number of rows stays on the device."""
    grad, indices, segment_ids, num_rows, size, fill_id = call.inputs
    reduce, _, order = call.attrs
    if indices.numel() == 0 or num_rows == 0:  # as TensorFlow: nothing else is validated
        out, rows, total = call.output(0), call.output(1), call.empty(1, dtype=torch.int64)
        call.device.zero(total)
    else:
        gradient = Gradient(
            call.device, grad, indices, segment_ids, num_rows, reduce=reduce, order=order, unique=True, capacity=size,
            report=call.report_fields(),
        )  # fmt: skip
        gradient.run()
        out, rows, total = gradient.out, gradient.rows, gradient.total()
    columns = row_size(grad)
    _PAD.launch(
        call.device, max(1, min(blocks_for(size * columns, _PAD.threads), 4 * call.device.processors)),
        (_UNSIGNED[grad.dtype.itemsize],), rows=out.data_ptr(), ids=rows.data_ptr(), wide_ids=is_wide(rows),
        total=total.data_ptr(), size=size, cols=columns, fill_id=fill_id, **call.report_fields(),
    )  # fmt: skip
    call.keep_alive.append(total)
    return out[:size], rows[:size]


# -- Forward ops and transposes of gradients --------------------------------------------------------------------------

_BLOCK = 128
_WAVE = 7  # blocks per multiprocessor
_CAPACITY_FACTOR = 1.5  # relative to the average number of ids per block
_LIST = 4096  # ids of a block in shared memory
_VARIANTS = [
    *((t, w) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)),
    *((t, "1") for t in INTEGERS),
]
_FORWARD_SUM = Kernel("segment_forward.cuh", "sum_bags", _BLOCK, _VARIANTS, _WAVE)
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1


class Forward:
    """A forward op with its own output that can run repeatedly."""

    def __init__(
        self, device: Device, data: Tensor, indices: Tensor, segment_ids: Tensor, num_segments: int, *, reduce: int,
        out: Tensor | None = None, report: dict[str, int],
    ) -> None:  # fmt: skip
        self.device, self.data, self.indices, self.segment_ids = device, data, indices, segment_ids
        self.reduce, self.bags, self.report = reduce, num_segments, report
        self.out = device.empty((num_segments, *data.shape[1:]), data.dtype) if out is None else out

    def run(self) -> None:
        """Queue it."""
        sum_bags(
            self.device, self.data, self.out, (self.indices.data_ptr(), is_wide(self.indices)),
            (self.segment_ids.data_ptr(), is_wide(self.segment_ids)), self.indices.numel(), self.bags, self.reduce,
            self.report,
        )  # fmt: skip


List = tuple[int, int]  # the address of ids, and 1 if they are int64


def sum_bags(
    device: Device, data: Tensor, out: Tensor, ids: List, segments: List, size: int, bags: int, reduce: int,
    report: dict[str, int], earlier: int = 0,
) -> None:  # fmt: skip
    """Queue the validation of sorted segments and their ids, and the sums of bags."""
    shape = Shape(data, out)
    workers = _BLOCK // shape.lanes
    # Enough bags per block for one wave of blocks, but few enough that their ids mostly fit in shared memory.
    rounds = min(blocks_for(bags, workers * _WAVE * device.processors), 3 * _LIST * bags // (4 * workers * (size + 1)))
    block_bags = workers * min(max(rounds, 1), 16)
    capacity = min(_LIST, int(_CAPACITY_FACTOR * block_bags * (size // (bags + 1) + 8)))
    shared = (
        _BLOCK * shape.width * accumulator(data.dtype).itemsize + 8 * (block_bags + 2) + 4 * (capacity + block_bags)
    )
    _FORWARD_SUM.launch(
        device, (max(blocks_for(bags, block_bags), 1), max(shape.tiles, 1)), (TYPE[data.dtype], str(shape.width)),
        shared,
        data=data.data_ptr(), out=out.data_ptr(), columns=shape.columns, lanes=shape.lanes, ids=ids[0],
        ids_wide=ids[1], segments=segments[0], segments_wide=segments[1], size=size, rows=data.shape[0], bags=bags,
        block_bags=block_bags, capacity=capacity, reduce=reduce, earlier=earlier, **report,
    )  # fmt: skip


def forward_rows(call: Call, segments: Tensor, wide_indices: bool, num_segments: int | None) -> int:
    """Return the number of bags; synchronize for the last segment unless `num_segments` fits int32."""
    size = segments.numel()
    if num_segments is not None and num_segments <= _INT32:
        return num_segments
    last = call.number(segments[-1]) if size else 0
    limit = _INT64 if wide_indices else _INT32
    if last >= limit:
        raise make_error("last_segment_too_big", call.op.input_names, position=size - 1, value=last, bound=limit)
    needed = last + 1 if size else 0
    if segments.dtype == torch.int32:
        needed = _low_half(needed)
    if num_segments is not None:
        if _low_half(num_segments) < needed:
            raise make_error(
                "num_segments_too_small", call.op.input_names, position=size - 1, value=last, bound=num_segments
            )
        raise make_error("num_segments_too_big", call.op.input_names, position=-1, value=num_segments, bound=_INT32)
    rows = needed if wide_indices else _low_half(needed)
    if rows < 0 or (size and rows == 0):
        raise make_error("segment_negative", call.op.input_names, position=size - 1, value=last, bound=0)
    return rows


def _low_half(number: int) -> int:
    """Return the low 32 bits of a number as an int32."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


@runs("sparse_segment")
def sparse_segment(call: Call) -> tuple[Tensor, ...]:
    """Run SparseSegment{Sum,Mean,SqrtN}, the variants with `num_segments`, and those with a plan."""
    data, indices, segment_ids = call.inputs[:3]
    reduce, sized = call.attrs[:2]
    bags = forward_rows(call, segment_ids, bool(is_wide(indices)), call.inputs[3] if sized else None)
    out = call.output(0, bags)
    forward = Forward(
        call.device, data, indices, segment_ids, bags, reduce=reduce, out=out, report=call.report_and_check_fields()
    )  # fmt: skip
    forward.run()
    return (out,)


@runs("sparse_segment_grad_grad")
def sparse_segment_grad_grad(call: Call) -> tuple[Tensor, ...]:
    """Run the transpose of a gradient: a forward sum of segments in any order."""
    data, indices, segment_ids, bags = call.inputs
    (reduce,) = call.attrs
    out = call.output(0)
    size, rows = indices.numel(), data.shape[0]
    if size == 0 or rows == 0:  # the gradient does not validate ids either
        call.device.zero(out)
        return (out,)
    entries = SortedIds(call.device, size, bags, rows)
    entries.run(segment_ids, indices, call.report_fields(), order=3, codes=("segment_not_in_grad", "index_not_in_data"))
    at = entries.at
    sum_bags(
        call.device, data, out, (at["values"], 0), (at["ids"], 0), size, bags, reduce, call.report_and_check_fields(),
        earlier=at["checks"],
    )  # fmt: skip
    return (out,)
