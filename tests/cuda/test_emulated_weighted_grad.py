"""Gradients of weighted bags on the emulated device compared with the CPU kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_comparison import agree
from torch import Tensor

WIDTHS = (torch.int32, torch.int64)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("Sum", "Mean", "SqrtN")


def numbers(shape: Any, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def batch(
    size: int, rows: int, bags: int, n: int = 0, is_sorted: bool = False, weights: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Return ids of which a third name one row, in bags of which some are empty; some weights are zero."""
    draw = torch.Generator().manual_seed(size + n)
    ids = torch.randint(0, rows, (size,), generator=draw)
    ids[torch.randperm(size, generator=draw)[: size // 3]] = rows // 2
    segments = torch.randint(0, bags, (size,), generator=draw)
    weight_values = numbers((size,), weights, n).where(segments % 5 > 0, torch.zeros((), dtype=weights))
    return {
        "indices": ids.to(WIDTHS[n % 2]),
        "segment_ids": (segments.sort().values if is_sorted else segments).to(WIDTHS[n // 2 % 2]),
        "weights": weight_values,
        "output_dim0": rows,
    }


@pytest.mark.parametrize("accumulate", ["T", "float32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind: str, dtype: torch.dtype, accumulate: str) -> None:
    for n, (size, rows, bags, cols) in enumerate([(1, 1, 1, 1), (70, 30, 9, 3), (1500, 200, 90, 8), (1100, 5, 3, 40)]):
        inputs = batch(size, rows, bags, n, n % 3 > 0, DTYPES[(n + DTYPES.index(dtype)) % 4])
        for order in ("sequential", "blocked"):
            attrs = {"accumulate": accumulate, "order": order}
            agree(f"WeightedSparseSegment{kind}Grad", n, grad=numbers((bags + 1, cols), dtype), **inputs, attrs=attrs)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind: str) -> None:
    op = f"WeightedSparseSegment{kind}Grad"
    for shape in ((), (0,), (2, 3), (130,)):
        agree(op, grad=numbers((20, *shape), torch.float32), **batch(200, 40, 20))
    agree(op, grad=numbers((20, 3), torch.float32), **batch(0, 40, 20))
    agree(op, grad=numbers((20, 3), torch.float32), **{**batch(50, 40, 20), "output_dim0": 0})
    agree(op, grad=numbers((0, 3), torch.float32), **batch(0, 40, 20))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_ids(kind: str) -> None:
    """The last segment id is validated first, then index and segment id alternately."""
    changes = [
        ("indices", 2599, 50), ("indices", 0, -1), ("segment_ids", 17, 40), ("segment_ids", 2400, -1),
        ("indices", 17, 2**31 - 1), ("segment_ids", 2599, 99), ("indices", 1200, -(2**31)), ("segment_ids", 2599, -3),
    ]  # fmt: skip
    for n, (name, at, value) in enumerate(changes):
        good = {"grad": numbers((40, 2), torch.float32), **batch(2600, 50, 40, n)}
        bad = {**good, name: good[name].clone()}
        bad[name][at] = value
        agree(f"WeightedSparseSegment{kind}Grad", n, **bad)
        other, where, what = changes[(n * 3 + 2) % len(changes)]
        bad[other] = bad[other].clone()
        bad[other][where] = what
        agree(f"WeightedSparseSegment{kind}Grad", n, **bad)
