"""WeightedSparseSegment{Sum,Mean,SqrtN}Grad: ids sorted with their positions, weighted gradient rows added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .call import TYPE, Call, blocks_for, is_wide, runs
from .kernel import FLOATS, Kernel
from .sorting import SortedIds, padded
from .sparse_segment import (
    DIVIDE,
    ROUND,
    SCALE,
    Entries,
    Joins,
    Shape,
    accumulator,
    cleared,
    run_shift_of,
    sum_sorted,
)
from .weighted_segment import segment_totals

_THREADS = 256
_WEIGH = Kernel("weighted_grad.cuh", "weigh_entries", _THREADS, [(w, a) for w in FLOATS for a in ("float", "double")])


@dataclass(frozen=True, slots=True)
class Weighting:
    """How the rows of weighted bags add up: the record's attributes."""

    reduce: int
    rounding: int
    order: int

    def mode(self, dtype: torch.dtype) -> int:
        """What sums do with every row: 16-bit floats may be rounded after every step."""
        rounds = self.rounding == 0 and dtype in (torch.float16, torch.bfloat16)
        return SCALE | (DIVIDE if self.reduce else 0) | (ROUND if rounds else 0)


@dataclass(frozen=True, slots=True)
class WeightedEntries:
    """Sorted entries with weights and divisors."""

    at: dict[str, int]
    size: int


def weigh(
    call: Call, entries: Entries, grad: Tensor, segments: Tensor, weights: Tensor, reduce: int, scales: Tensor
) -> WeightedEntries:
    """Queue what turns the positions of entries into segments, and gives them weights and divisors.

    `scales` has room for both lists. `segments` and `weights` are in the order of the batch.
    """
    size, total, checks = entries.size, accumulator(grad.dtype), entries.at["checks"]
    totals = segment_totals(call, segments, weights, total, grad.shape[0], reduce)
    half = scales.data_ptr() + padded(size) * total.itemsize
    at = {**entries.at, "scales": scales.data_ptr(), "divisors": half}
    _WEIGH.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 16),
        (TYPE[weights.dtype], TYPE[total]), values=at["values"], segments=segments.data_ptr(),
        wide_segments=is_wide(segments), weights=weights.data_ptr(), totals=0 if totals is None else totals.data_ptr(),
        size=size, scales=at["scales"], divisors=at["divisors"], checks=checks,
    )  # fmt: skip
    return WeightedEntries(at, size)


def sum_weighted(
    call: Call,
    grad: Tensor,
    indices: Tensor,
    segment_ids: Tensor,
    weights: Tensor,
    num_rows: int,
    how: Weighting,
    out: Tensor,
    rows: Tensor | None = None,
) -> SortedIds:
    """Queue the gradient into `out`: the whole table; or, with memory for their numbers, `rows` one after the other."""
    device, size, shape, unique = call.device, indices.numel(), Shape(grad, out), rows is not None
    total, run_shift = accumulator(grad.dtype), run_shift_of(how.order)
    joins = Joins(size, shape, total, run_shift)
    entries = SortedIds(device, size, num_rows, grad.shape[0], zeroed=joins.zeroed, kept=joins.kept)
    scales = call.empty(2 * padded(size), dtype=total)
    starts = call.empty(size, dtype=torch.int64) if unique else None
    with cleared(device, None if unique else out):
        entries.run(indices, segment_ids, call.told(), by_segment=False, rows_out=rows, starts_out=starts)
    weighted = weigh(call, entries, grad, segment_ids, weights, how.reduce, scales)
    sum_sorted(device, weighted, grad, out, shape, how.mode(grad.dtype), run_shift, unique=unique)
    return entries


@runs("weighted_segment_grad")
def weighted_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """The whole table."""
    (grad, indices, segment_ids, weights, num_rows), how = call.inputs, Weighting(*call.attrs)
    out = call.output(0)
    if indices.numel() == 0 or num_rows == 0:  # then nothing else is looked at
        call.device.zero(out)
    else:
        sum_weighted(call, grad, indices, segment_ids, weights, num_rows, how, out)
    return (out,)
