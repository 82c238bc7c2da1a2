"""SparseSegment gradients: ids sorted by row, gradient rows added up."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import TYPE, Call, blocks_for, row_size, runs
from .device import Device
from .kernel import COMPLEX, FLOATS, INTEGERS, Kernel
from .sorting import CHUNK, SortedIds

SCALE, DIVIDE, ROUND = 1, 2, 4
WIDE = ("4", "4", "4", "2")  # neighbouring columns of a lane, by the dtypes of FLOATS
_ASIDE = 16 << 20  # bytes of an output from which its zeros are written beside the sort
_RUN_SHIFT = {0: 30, 1: 6}  # by order: sequential, blocked
_BLOCK = 128
_SUM = Kernel(
    "segment_grad.cuh", "sum_rows", _BLOCK,
    [(t, w, str(m)) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)
     for m in ((0, 1, 3, 5, 7) if t in ("half", "bfloat16") else (0, 1, 3))]
    + [(t, "1", "0") for t in (*INTEGERS, *COMPLEX)],
    4,
)  # fmt: skip
_JOIN = Kernel(
    "segment_grad.cuh", "join_runs", _BLOCK,
    [(t, w, r) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)
     for r in (("false", "true") if t in ("half", "bfloat16") else ("false",))]
    + [(t, "1", "false") for t in (*INTEGERS, *COMPLEX)],
)  # fmt: skip


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type sums are held in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Shape:
    """How the columns of a gradient are spread over lanes."""

    def __init__(self, tensor: Tensor, *others: Tensor) -> None:
        self.columns = columns = row_size(tensor)
        wide = min(16 // tensor.element_size(), 4)
        aligned = all(t.data_ptr() % (wide * t.element_size()) == 0 for t in (tensor, *others))
        is_wide = tensor.dtype.is_floating_point and columns % wide == 0 and aligned and columns > 0
        self.width = wide if is_wide else 1
        units = blocks_for(columns, self.width)
        self.lanes = min(1 << max(units - 1, 0).bit_length(), 32)
        self.tiles = blocks_for(units, self.lanes)


class Gradient:
    """A gradient on memory of its own, to be run again and again: what a CUDA graph would record.

    `unique`: the rows that ids name, one after the other, and how many there are on the device; else the whole table.
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
        told: dict[str, int],
    ) -> None:
        self.device, self.grad, self.indices, self.segment_ids = device, grad, indices, segment_ids
        self.reduce, self.unique, self.told = reduce, unique, told
        self.size = size = indices.numel()
        self.run_shift = _RUN_SHIFT[order]
        rows = size if unique else num_rows
        self.out = device.empty((rows, *grad.shape[1:]), grad.dtype) if out is None else out
        self.shape = shape = Shape(grad, self.out)
        total = accumulator(grad.dtype)
        joins = Joins(size, shape, total, self.run_shift)
        self.sorted = SortedIds(
            device, size, num_rows, grad.shape[0], counted=reduce != 0, scales=total if reduce else None,
            zeroed=joins.zeroed, kept=joins.kept,
        )  # fmt: skip
        self.rows = device.empty((size,), indices.dtype) if unique else None
        self.starts = device.empty((size,), torch.int64) if unique else None

    def run(self) -> None:
        """Queue everything."""
        is_large = not self.unique and self.out.numel() * self.out.element_size() > _ASIDE
        if is_large:
            with self.device.aside():
                self.device.zero(self.out)
        elif not self.unique:
            self.device.zero(self.out)
        segments_first = not self.unique and self.reduce != 0
        self.sorted.run(
            self.indices, self.segment_ids, self.told, order=2 if segments_first else 1, reduce=self.reduce,
            rows_out=self.rows, starts_out=self.starts,
        )  # fmt: skip
        if is_large:
            self.device.join()
        sum_sorted(
            self.device, self.sorted, self.grad, self.out, self.shape, SCALE if self.reduce else 0, self.run_shift,
            unique=self.unique,
        )  # fmt: skip

    def total(self) -> Tensor:
        """How many rows there are, on the device."""
        return self.sorted.part("total", 1, torch.int64)


class Joins:
    """Memory for sums of runs that are left to be added up: how much, and where its parts begin.

    `zeroed` bytes hold a counter, then how many sums have arrived where; `kept` bytes hold the sums and a list of them.
    """

    def __init__(self, size: int, shape: Shape, total: torch.dtype, run_shift: int) -> None:
        slots = 2 * (size // 64 + 1) if run_shift == _RUN_SHIFT[1] else 0
        self.sums = -(-slots * shape.columns * total.itemsize // 16) * 16
        self.zeroed = 16 + slots * shape.tiles * 8 if slots else 0
        self.kept = self.sums + slots * 16
        self.most = slots


def sum_sorted(
    device: Device, entries: SortedIds, grad: Tensor, out: Tensor, shape: Shape, mode: int, run_shift: int, unique: bool
) -> None:
    """Queue the sums of sorted entries."""
    at = entries.at
    chunks, workers = blocks_for(entries.size, CHUNK), _SUM.threads // shape.lanes
    joins = Joins(entries.size, shape, accumulator(grad.dtype), run_shift)
    form = (TYPE[grad.dtype], str(shape.width))
    told = {"out": out.data_ptr(), "columns": shape.columns, "lanes": shape.lanes, "checks": at["checks"]}
    left = {"partials": at["kept"], "lefts": at["kept"] + joins.sums, "left_count": at["zeroed"]}
    _SUM.launch(
        device, (blocks_for(chunks, workers), shape.tiles), (*form, str(mode)), 0,
        grad=grad.data_ptr(), ids=at["ids"], segments=at["values"], scales=at["scales"],
        divisors=at.get("divisors", 0), heads=at["heads"], firsts=at["firsts"], begins=at["begins"], size=entries.size,
        run_shift=run_shift, unique=int(unique), **told, **left,
    )  # fmt: skip
    if joins.most and entries.size > 64:
        _JOIN.launch(
            device, (min(blocks_for(joins.most, workers), 2 * device.processors), shape.tiles),
            (*form, "true" if mode & ROUND else "false"), 0, arrivals=at["zeroed"] + 16, **told, **left,
        )  # fmt: skip


@runs("sparse_segment_grad")
def sparse_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """SparseSegment{Sum,Mean,SqrtN}Grad and GradV2."""
    grad, indices, segment_ids, num_rows = call.inputs
    reduce, unique, order = call.attrs
    if indices.numel() == 0 or num_rows == 0:  # then nothing else is looked at
        outputs = tuple(call.output(i, 0) for i in range(len(call.outputs)))
        call.device.zero(outputs[0])
        return outputs
    gradient = Gradient(
        call.device, grad, indices, segment_ids, num_rows, reduce=reduce, order=order, unique=bool(unique),
        told=call.told(),
    )  # fmt: skip
    gradient.run()
    if not unique:
        return (gradient.out,)
    assert gradient.rows is not None
    total = call.number(gradient.total())
    return gradient.out[:total].clone(), gradient.rows[:total].clone()
