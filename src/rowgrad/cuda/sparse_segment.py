"""SparseSegment{Sum,Mean,SqrtN} on CUDA: bag sums, their gradients, and the transposes of the gradients.

A gradient sorts ids by row, then sums the gradient rows of each table row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from .._catalog.enums import Reduction
from .._core import CudaGradient, cuda_join_bytes
from ..errors import make_error
from .call import Call, blocks_for, is_wide, row_size, runs
from .device import Device, id_list, matrix
from .kernel import COMPLEX, FLOATS, INTEGERS, Kernel
from .sorting import SortedIds

# -- Gradients --------------------------------------------------------------------------------------------------------

# Bits of the mode of `sum_sorted`.
SCALE, DIVIDE, ROUND = 1, 2, 4
WIDE = ("4", "4", "4", "2")  # adjacent columns per lane, for the dtypes of FLOATS
_SIDE_STREAM_BYTES = 16 << 20  # larger outputs are zeroed concurrently with the sort
HAS_DIVISOR: dict[int, bool] = {Reduction.sum: False, Reduction.mean: True, Reduction.sqrtn: True}
_SUMS = [
    *((t, w, str(m)) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)
      for m in ((0, 1, 3, 5, 7, 8, 9) if t in ("half", "bfloat16") else (0, 1, 3, 8, 9))),
    *((t, "1", "0") for t in (*INTEGERS, *COMPLEX)),
]  # fmt: skip
_FEW = ("double", "complex<double>")  # fewer resident blocks, as for divisions: these need many registers
# Launched by `cpp/cuda/row_sums.cpp`.
Kernel(
    "segment_grad.cuh", "sum_rows", 128, _SUMS, {(t, w, m): 4 if t in _FEW or int(m) & 6 else 5 for t, w, m in _SUMS}
)  # fmt: skip
Kernel(
    "segment_grad.cuh", "join_runs", 128,
    [(t, w, r) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)
     for r in (("false", "true") if t in ("half", "bfloat16") else ("false",))]
    + [(t, "1", "false") for t in (*INTEGERS, *COMPLEX)],
)  # fmt: skip

_UNSIGNED = {2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
_PAD = Kernel("row_ops.cuh", "pad_rows", 256, [(u,) for u in _UNSIGNED.values()])
Kernel("row_ops.cuh", "pad_row_gradient", 256, [(u,) for u in (*_UNSIGNED.values(), "Block16")])


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums are accumulated."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def zero_output(device: Device, out: Tensor) -> AbstractContextManager[None]:
    """Fill `out` with zeros; a large output concurrently with the work queued inside the `with` block."""
    if out.numel() * out.element_size() <= _SIDE_STREAM_BYTES:
        device.zero(out)
        return nullcontext()
    return _zero_on_side_stream(device, out)


@contextmanager
def _zero_on_side_stream(device: Device, out: Tensor) -> Iterator[None]:
    device.zero_on_side_stream(out)
    try:
        yield
    finally:
        device.join()


class Entries(Protocol):
    """Entries sorted by row, with the addresses that `sum_rows` reads, padded as in `SortedIds`."""

    @property
    def at(self) -> dict[str, int]:
        """Addresses by name."""

    @property
    def size(self) -> int:
        """The number of entries."""


class Joins:
    """The workspace sizes of partial sums that a second kernel joins; `zeroed` bytes have to start as zeros."""

    def __init__(self, size: int, grad: Tensor, out: Tensor | None, order: int) -> None:
        self.zeroed, self.workspace = cuda_join_bytes(size, matrix(grad), 0 if out is None else out.data_ptr(), order)


def sum_sorted(
    device: Device, entries: Entries, grad: Tensor, out: Tensor, mode: int, order: int, *, unique: bool
) -> None:  # fmt: skip
    """Queue the sums of sorted entries, into table rows or, if `unique`, into consecutive rows."""
    device.launcher.sum_entries(
        device.stream(), entries.at, entries.size, matrix(grad), out.data_ptr(), mode, order, unique
    )  # fmt: skip


class Gradient:
    """A gradient with its own workspace that can run repeatedly.

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
        report: tuple[int, int, int],
    ) -> None:
        self.device, self.report = device, report
        size = indices.numel()
        most = max(size, capacity) if unique else 0
        self.out = device.empty((most if unique else num_rows, *grad.shape[1:]), grad.dtype) if out is None else out
        self.rows = device.empty((most,), indices.dtype)
        self._gradient = CudaGradient(
            device.launcher, matrix(grad), self.out.data_ptr(), size, num_rows, reduce, order, unique
        )  # fmt: skip
        self._lists = id_list(indices), id_list(segment_ids), id_list(self.rows)
        self._memory = device.workspace(self._gradient.bytes)
        self._total = 0
        self._inputs = grad, indices, segment_ids  # referred to by address

    def run(self) -> None:
        """Queue all launches."""
        total = self._gradient.run(
            self.device.launcher, self.device.stream(), self._memory.data_ptr(), *self._lists, self.report
        )  # fmt: skip
        self._total = total - self._memory.data_ptr()

    def total(self) -> Tensor:
        """Return the number of distinct rows, on the device."""
        return self._memory[self._total : self._total + 8].view(torch.int64)


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
        out=None if unique else call.output(0), report=call.report(),
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
            report=call.report(),
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

_FORWARD = [
    *((t, w) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)),
    *((t, "1") for t in INTEGERS),
]
_RESIDENT = 7  # blocks per multiprocessor
# Launched by `cpp/cuda/bags.cpp`.
Kernel("segment_forward.cuh", "sum_bags", 128, _FORWARD, _RESIDENT)
Kernel("segment_forward.cuh", "sum_offset_bags", 128, _FORWARD, _RESIDENT)
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1


class Forward:
    """A forward op with its own output that can run repeatedly."""

    def __init__(
        self, device: Device, data: Tensor, indices: Tensor, segment_ids: Tensor, num_segments: int, *, reduce: int,
        out: Tensor | None = None, report: tuple[int, int, int],
    ) -> None:  # fmt: skip
        self.device, self.data, self.indices, self.segment_ids = device, data, indices, segment_ids
        self.reduce, self.bags, self.report = reduce, num_segments, report
        self.out = device.empty((num_segments, *data.shape[1:]), data.dtype) if out is None else out

    def run(self) -> None:
        """Queue it."""
        self.device.launcher.sum_segments(
            self.device.stream(), matrix(self.data), id_list(self.indices), id_list(self.segment_ids),
            self.indices.numel(), self.bags, self.out.data_ptr(), self.reduce, self.report, 0,
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
        call.device, data, indices, segment_ids, bags, reduce=reduce, out=out, report=call.report()
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
    entries.run(segment_ids, indices, call.report(), order=3, codes=("segment_not_in_grad", "index_not_in_data"))
    at = entries.at
    call.device.launcher.sum_segments(
        call.device.stream(), matrix(data), (at["values"], False), (at["ids"], False), size, bags, out.data_ptr(),
        reduce, call.report(), at["checks"],
    )  # fmt: skip
    return (out,)
