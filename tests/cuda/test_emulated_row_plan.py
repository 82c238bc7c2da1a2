"""RowPlan on the emulated device compared with the CPU kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_comparison import agree

WIDTHS = (torch.int32, torch.int64)


def batch(size: int, rows: int, bags: int, widths: tuple[torch.dtype, torch.dtype], seed: int = 0) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, max(rows, 1), (size,), generator=draw).to(widths[0])
    segments = torch.randint(0, max(bags, 1), (size,), generator=draw).to(widths[1])
    return {"indices": ids, "segment_ids": segments, "num_rows": rows, "num_segments": bags}


@pytest.mark.parametrize("indices", WIDTHS)
@pytest.mark.parametrize("segments", WIDTHS)
@pytest.mark.parametrize(
    ("size", "rows", "bags"),
    [(0, 5, 3), (0, 0, 0), (0, 4, 0), (1, 1, 1), (7, 3, 4), (2100, 40, 9), (2500, 100_000, 3000), (5000, 2**31, 7)],
)
def test_plans(indices: torch.dtype, segments: torch.dtype, size: int, rows: int, bags: int) -> None:
    if rows == 2**31 and indices == torch.int32:
        rows -= 1
    for seed in (0, 3):
        agree("RowPlan", seed, **batch(size, rows, bags, (indices, segments), seed))


@pytest.mark.parametrize("width", WIDTHS)
def test_one_row_with_all_ids(width: torch.dtype) -> None:
    ids = torch.full((3000,), 5, dtype=width)
    agree("RowPlan", indices=ids, segment_ids=torch.arange(3000).to(width) % 11, num_rows=6, num_segments=12)


@pytest.mark.parametrize("width", WIDTHS)
def test_bad_ids(width: torch.dtype) -> None:
    """Index and segment id are validated alternately."""
    good = batch(2600, 50, 40, (width, width))
    changes = [
        ("indices", 2599, 50), ("indices", 0, -1), ("segment_ids", 17, 40), ("segment_ids", 2400, -1),
        ("indices", 17, 2**31 - 1), ("segment_ids", 2599, 99), ("indices", 1200, -(2**31)),
    ]  # fmt: skip
    for n, (name, at, value) in enumerate(changes):
        bad = {**good, name: good[name].clone()}
        bad[name][at] = value
        agree("RowPlan", n, **bad)
        other, where, what = changes[(n * 3 + 2) % len(changes)]
        bad[other] = bad[other].clone()
        bad[other][where] = what
        agree("RowPlan", n, **bad)  # with two faults, both name the same one
    agree("RowPlan", **{**good, "num_rows": 0})
    agree("RowPlan", **{**good, "num_segments": 0})
