"""ScatterRows on the emulated device compared with the CPU kernel."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree

from rowgrad._catalog.spec import CATALOG
from rowgrad.torch.tensors import DTYPE

WIDTHS = (torch.int32, torch.int64)
DTYPES = [DTYPE[name] for name in CATALOG["ScatterRows"].types["T"] if name in DTYPE]


def rows_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(shape, generator=draw, dtype=torch.complex128).to(dtype)
    values = torch.randn(shape, generator=draw, dtype=torch.float64) * (1 if dtype.is_floating_point else 40)
    return values.to(dtype) if dtype.is_floating_point or dtype.is_signed else values.abs().to(torch.int64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    for n, (size, rows, shape) in enumerate(
        [(0, 3, (4,)), (1, 1, (1,)), (33, 7, ()), (300, 40, (3,)), (2500, 90, (16,)), (700, 3, (2, 4)), (9, 5, (0,))]
    ):
        ids = torch.randint(0, rows, (size,), generator=torch.Generator().manual_seed(n)).to(WIDTHS[n % 2])
        agree("ScatterRows", n, grad=rows_of(dtype, (size, *shape), n), indices=ids, num_rows=rows)


@pytest.mark.parametrize("cols", [1, 40, 130])
def test_a_row_with_many_ids(cols: int) -> None:
    """They are summed in input order, however many."""
    ids = torch.where(torch.arange(3000) % 7 < 5, 2, torch.arange(3000) % 50)
    for seed in (0, 5):
        agree("ScatterRows", seed, grad=rows_of(torch.float32, (3000, cols)), indices=ids, num_rows=51)


@pytest.mark.parametrize("width", WIDTHS)
def test_bad_ids(width: torch.dtype) -> None:
    grad = rows_of(torch.float32, (2500, 2))
    for bad in ({0: -1}, {2499: 50}, {700: 2**31 - 1, 30: -5}):
        ids = torch.arange(2500).to(width) % 50
        for at, value in bad.items():
            ids[at] = value
        agree("ScatterRows", grad=grad, indices=ids, num_rows=50)
    agree("ScatterRows", grad=grad, indices=torch.zeros(2500, dtype=width), num_rows=0)
