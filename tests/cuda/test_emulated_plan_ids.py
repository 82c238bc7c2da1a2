"""PlannedIds on the emulated device compared with the CPU kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_comparison import agree
from emulated_call import emulate, on_cpu
from torch import Tensor

WIDTHS = (torch.int32, torch.int64)
NAMES = ("rows", "starts", "segments", "positions", "counts")


def plan_of(indices: Tensor, segments: Tensor, num_rows: int, num_segments: int) -> dict[str, Any]:
    """Return a plan as arguments."""
    plan = on_cpu(
        "RowPlan",
        {"indices": indices, "segment_ids": segments, "num_rows": num_rows, "num_segments": num_segments},
    )
    return {**dict(zip(NAMES, plan, strict=True)), "num_rows": num_rows}


@pytest.mark.parametrize("indices", WIDTHS)
@pytest.mark.parametrize("segments", WIDTHS)
@pytest.mark.parametrize(
    ("size", "rows", "bags"), [(0, 5, 3), (0, 0, 0), (1, 1, 1), (7, 3, 4), (1300, 40, 9), (2500, 100_000, 3000)]
)
def test_plans(indices: torch.dtype, segments: torch.dtype, size: int, rows: int, bags: int) -> None:
    draw = torch.Generator().manual_seed(size)
    ids = torch.randint(0, max(rows, 1), (size,), generator=draw).to(indices)
    segment_ids = torch.randint(0, max(bags, 1), (size,), generator=draw).to(segments)
    plan = plan_of(ids, segment_ids, rows, bags)
    for seed in (0, 3):
        agree("PlannedIds", seed, **plan)
    back = emulate("PlannedIds", plan)
    assert torch.equal(back[0], ids)
    assert torch.equal(back[1], segment_ids)


@pytest.mark.parametrize("width", WIDTHS)
def test_invalid_plans(width: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 50, (1300,), generator=draw).to(width)
    good = plan_of(ids, torch.randint(0, 40, (1300,), generator=draw).to(width), 50, 40)
    changes = [
        ("rows", 49, 50), ("rows", 3, -1), ("rows", 20, 5), ("starts", 0, 1), ("starts", 7, 1300), ("starts", 30, 2),
        ("segments", 1200, 40), ("segments", 5, -2), ("segments", 9, -1), ("positions", 700, 1300),
        ("positions", 1299, -1), ("positions", 600, 0), ("counts", 39, 7), ("counts", 2, -1),
    ]  # fmt: skip
    swapped = good["positions"].clone()
    swapped[[4, 5]] = swapped[[5, 4]]
    agree("PlannedIds", **{**good, "positions": swapped})
    agree("PlannedIds", **{**good, "segments": good["segments"].flip(0)})
    for n, (name, at, value) in enumerate(changes):
        bad = {**good, name: good[name].clone()}
        bad[name][at] = value
        agree("PlannedIds", n, **bad)
        other, where, what = changes[(n * 5 + 3) % len(changes)]
        bad[other] = bad[other].clone()
        bad[other][where] = what
        agree("PlannedIds", n, **bad)  # with two faults, both name the same one


def test_invalid_small_plans() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    zero = torch.zeros(1, dtype=torch.int64)
    agree("PlannedIds", rows=none, starts=none, segments=zero, positions=zero, counts=zero + 1, num_rows=1)
    agree("PlannedIds", rows=zero, starts=zero, segments=none, positions=none, counts=none, num_rows=1)
    agree("PlannedIds", rows=zero, starts=zero, segments=zero, positions=zero, counts=none, num_rows=1)
    agree("PlannedIds", rows=none, starts=none, segments=none, positions=none, counts=zero + 1, num_rows=1)
    agree("PlannedIds", rows=none, starts=none, segments=none, positions=none, counts=zero, num_rows=0)
