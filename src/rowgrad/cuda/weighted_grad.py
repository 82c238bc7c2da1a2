"""WeightedSparseSegment{Sum,Mean,SqrtN}Grad: ids sorted with their positions, weighted gradient rows added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


class Reserve(Protocol):
    """Bytes that go with entries: `zeroed` are zeros at the start, `kept` hold anything."""

    zeroed: int
    kept: int


@dataclass(frozen=True, slots=True)
class WeightedEntries:
    """Sorted entries with weights and divisors, and the memory they lie in."""

    at: dict[str, int]
    size: int
    memory: tuple[Any, ...]


def weigh(
    call: Call, entries: Entries, grad: Tensor, segments: Tensor, weights: Tensor, reduce: int
) -> WeightedEntries:
    """Queue what turns the positions of entries into segments, and gives them weights and divisors.

    `segments` and `weights` are in the order of the batch.
    """
    size, total, room = entries.size, accumulator(grad.dtype), padded(entries.size)
    totals = segment_totals(call, segments, weights, total, grad.shape[0], reduce)
    scales = call.empty(2 if reduce else 1, room, dtype=total)
    divisors = scales[1].data_ptr() if reduce else 0
    at = {**entries.at, "scales": scales.data_ptr(), "divisors": divisors}
    _WEIGH.launch(
        call.device, min(blocks_for(size, _THREADS), call.device.processors * 16),
        (TYPE[weights.dtype], TYPE[total]), values=at["values"], segments=segments.data_ptr(),
        wide_segments=is_wide(segments), weights=weights.data_ptr(), totals=0 if totals is None else totals.data_ptr(),
        size=size, scales=at["scales"], divisors=divisors, checks=at["checks"],
    )  # fmt: skip
    return WeightedEntries(at, size, (entries, scales))


def weighted_entries(
    call: Call,
    grad: Tensor,
    indices: Tensor,
    segment_ids: Tensor,
    weights: Tensor,
    num_rows: int,
    how: Weighting,
    reserve: Reserve,
    rows: Tensor | None = None,
    starts: Tensor | None = None,
) -> WeightedEntries:
    """Queue the sort of a batch. `rows` and `starts`: memory for the rows that are named and where they begin."""
    entries = SortedIds(
        call.device, indices.numel(), num_rows, grad.shape[0], zeroed=reserve.zeroed, kept=reserve.kept
    )  # fmt: skip
    entries.run(indices, segment_ids, call.told(), by_segment=False, rows_out=rows, starts_out=starts)
    return weigh(call, entries, grad, segment_ids, weights, how.reduce)


@runs("weighted_segment_grad")
def weighted_segment_grad(call: Call) -> tuple[Tensor, ...]:
    """The whole table."""
    (grad, indices, segment_ids, weights, num_rows), how = call.inputs, Weighting(*call.attrs)
    out, device, run_shift = call.output(0), call.device, run_shift_of(how.order)
    if indices.numel() == 0 or num_rows == 0:  # then nothing else is looked at
        device.zero(out)
        return (out,)
    shape = Shape(grad, out)
    joins = Joins(indices.numel(), shape, accumulator(grad.dtype), run_shift)
    with cleared(device, out):
        entries = weighted_entries(call, grad, indices, segment_ids, weights, num_rows, how, joins)
    sum_sorted(device, entries, grad, out, shape, how.mode(grad.dtype), run_shift, unique=False)
    return (out,)
