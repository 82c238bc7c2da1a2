"""The time to only read and write the rows of a batch: a lower bound for an optimizer update."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from cases import Batch
from timing import Timing, Work

Clock = Callable[[Work, int], Timing]
_SHAPES = ((4, 4), (8, 4), (16, 4), (16, 8))  # rows per program, warps


@triton.jit
def _add_one(table, ids, count, columns: tl.constexpr, padded: tl.constexpr, rows: tl.constexpr):
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.arange(0, padded)
    row = tl.load(ids + number, mask=number < count, other=0).to(tl.int64)
    at = table + row[:, None] * columns + column[None, :]
    mask = (number < count)[:, None] & (column < columns)[None, :]
    tl.store(at, tl.load(at, mask=mask) + 1.0, mask=mask)


def rewrite(batch: Batch, clock: Clock, runs: int) -> dict[str, float]:
    """Return the time of the best of several launch shapes, in ms."""
    ids, table, columns = torch.unique(batch.indices), batch.table.clone(), batch.case.D
    count = ids.numel()

    def work(rows: int, warps: int) -> Work:
        grid = ((count + rows - 1) // rows,)
        padded = triton.next_power_of_2(columns)
        return lambda: _add_one[grid](table, ids, count, columns, padded, rows, num_warps=warps)

    return {"ms": min(clock(work(*shape), runs).median for shape in _SHAPES), "rows": float(count)}
