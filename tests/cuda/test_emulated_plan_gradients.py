"""Gradients with a plan on the emulated device compared with the CPU kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_comparison import agree
from emulated_call import on_cpu
from torch import Tensor

WIDTHS = (torch.int32, torch.int64)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAMES = ("rows", "starts", "segments", "positions", "counts")
OPS = [f"PlannedSparseSegment{kind}Grad{version}" for kind in ("Sum", "Mean", "SqrtN") for version in ("", "V2")]
WEIGHTED = [f"PlannedWeightedSparseSegment{kind}Grad" for kind in ("Sum", "Mean", "SqrtN")]
ORDERS = ("sequential", "blocked")


def plan_of(
    size: int,
    rows: int,
    bags: int,
    widths: tuple[torch.dtype, torch.dtype] = (torch.int64, torch.int32),
    often: int = 0,
) -> dict[str, Any]:
    """Return a plan as arguments; `often` ids of the batch name one row."""
    draw = torch.Generator().manual_seed(size)
    ids = torch.randint(0, max(rows, 1), (size,), generator=draw).to(widths[0])
    ids[torch.randperm(size, generator=draw)[:often]] = rows // 2
    segments = torch.randint(0, max(bags, 1), (size,), generator=draw).to(widths[1])
    plan = on_cpu("RowPlan", {"indices": ids, "segment_ids": segments, "num_rows": rows, "num_segments": bags})
    return {**dict(zip(NAMES, plan, strict=True)), "num_rows": rows}


def numbers(shape: Any, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_dtypes(op: str, dtype: torch.dtype) -> None:
    for n, (size, rows, bags, cols) in enumerate([(1, 1, 1, 1), (70, 30, 9, 3), (1500, 200, 90, 8), (1100, 5, 3, 40)]):
        plan = plan_of(size, rows, bags, (WIDTHS[n % 2], WIDTHS[n // 2 % 2]), size // 3)
        agree(op, n, grad=numbers((bags + n, cols), dtype), **plan, attrs={"order": ORDERS[n % 2]})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS[2:4])
def test_sizes(op: str, order: str) -> None:
    """Rows and entries that end at, before and after the ends of words and tiles."""
    for n, size in enumerate([0, 31, 32, 33, 64, 1023, 1024, 1025, 2048, 3000]):
        for rows, often in ((2000, 0), (1, 0), (40, size - size // 9)):
            plan = plan_of(size, rows, 50, often=often)
            agree(op, n, grad=numbers((50, 2), torch.float32), **plan, attrs={"order": order})


@pytest.mark.parametrize("op", OPS[:2])
def test_rows_that_start_with_a_tile(op: str) -> None:
    """Rows that begin exactly with a tile, or without ids."""
    for starts in ([0], [0, 1024], [0, 1023], [0, 1025, 2048], [0, 1024, 1055, 1056, 2049], list(range(0, 2100, 32))):
        size, count = 2100, len(starts)
        plan = {
            "rows": torch.arange(count) * 3, "starts": torch.tensor(starts), "segments": torch.arange(size) % 13,
            "positions": torch.arange(size), "counts": torch.full((13,), 9), "num_rows": count * 3,
        }  # fmt: skip
        agree(op, grad=numbers((13, 3), torch.float32), **plan)
        agree(op, grad=numbers((13, 3), torch.float32), **plan, attrs={"order": "blocked"})


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (130,), (600,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    for op in OPS:
        for size in (0, 200):
            agree(op, grad=numbers((20, *shape), torch.float32), **plan_of(size, 40, 20), attrs={"order": "blocked"})


def test_empty_plans() -> None:
    for op in OPS:
        agree(op, grad=numbers((0, 2), torch.float32), **plan_of(0, 0, 0))
        agree(op, grad=numbers((3, 2), torch.float32), **plan_of(0, 4, 3))


CHANGES = [
    ("rows", 49, 50), ("rows", 3, -1), ("rows", 20, 5), ("starts", 0, 1), ("starts", 7, 1300), ("starts", 30, 2),
    ("segments", 1200, 40), ("segments", 5, -2), ("segments", 9, 2**31 - 1), ("positions", 700, 1300),
    ("positions", 1299, -1), ("starts", 49, -(2**40)), ("starts", 12, 2**62), ("counts", 39, 7), ("counts", 2, -1),
]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", OPS[1:3])
def test_invalid_plans(op: str, width: torch.dtype) -> None:
    """Values used as addresses are validated, in order; others are trusted."""
    good = {"grad": numbers((40, 2), torch.float32), **plan_of(1300, 50, 40, (width, width))}
    for n, (name, at, value) in enumerate(CHANGES):
        bad = {**good, name: good[name].clone()}
        bad[name][at] = value
        agree(op, n, **bad)
        other, where, what = CHANGES[(n * 4 + 3) % len(CHANGES)]
        bad[other] = bad[other].clone()
        bad[other][where] = what
        agree(op, n, **bad)
    agree(op, **{**good, "grad": good["grad"][:39]})
    agree(op, **{**good, "num_rows": 10})
    agree(op, **{**good, "starts": good["starts"].flip(0)})
    agree(op, **{**good, "starts": torch.zeros_like(good["starts"])})


@pytest.mark.parametrize("op", OPS[:2])
def test_invalid_small_plans(op: str) -> None:
    none, zero, grad = (
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        numbers((2, 1), torch.float32),
    )
    for row_ids in (none, zero):
        for entries in (none, zero):
            for counts in (none, zero):
                agree(
                    op, grad=grad, rows=row_ids, starts=row_ids, segments=entries, positions=entries, counts=counts,
                    num_rows=1,
                )  # fmt: skip


@pytest.mark.parametrize("accumulate", ["T", "float32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", WEIGHTED)
def test_weights(op: str, dtype: torch.dtype, accumulate: str) -> None:
    for n, (size, rows, bags, cols) in enumerate([(0, 3, 2, 2), (1, 1, 1, 1), (70, 30, 9, 3), (1500, 200, 90, 8)]):
        plan = plan_of(size, rows, bags, (WIDTHS[n % 2], WIDTHS[n // 2 % 2]), size // 3)
        weights = numbers((size,), DTYPES[(n + DTYPES.index(dtype)) % 4], n)
        weights[::7] = 0
        for order in ORDERS:
            attrs = {"accumulate": accumulate, "order": order}
            agree(op, n, grad=numbers((bags + n, cols), dtype), weights=weights, **plan, attrs=attrs)


@pytest.mark.parametrize("op", WEIGHTED)
def test_weights_with_invalid_plans(op: str) -> None:
    """Positions are used as addresses and validated; that they are a permutation is trusted."""
    inputs = {"grad": numbers((40, 2), torch.float32), "weights": numbers((1300,), torch.float32)}
    good = {**inputs, **plan_of(1300, 50, 40)}
    twice = good["positions"].clone()
    twice[[700, 1200]] = twice[[3, 4]]
    agree(op, **{**good, "positions": twice})
    for n, (name, at, value) in enumerate(CHANGES):
        bad = {**good, name: good[name].clone()}
        bad[name][at] = value
        agree(op, n, **bad)
        other, where, what = CHANGES[(n * 4 + 3) % len(CHANGES)]
        bad[other] = bad[other].clone()
        bad[other][where] = what
        agree(op, n, **bad)
