"""Sqrt on the emulated device compared with the CPU kernel."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.mark.parametrize("dtype", FLOATS)
def test_sqrt(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    for shape in ((), (0,), (1,), (3, 0, 2), (7, 301), (9000,)):
        agree("Sqrt", x=torch.rand(shape, generator=draw, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_sqrt_of_random_bit_patterns(dtype: torch.dtype) -> None:
    """Negative numbers, zeros, subnormals, infinities, NaN."""
    width = BITS[dtype.itemsize]
    facts = torch.iinfo(width)
    draw = torch.Generator().manual_seed(2)
    bits = torch.randint(facts.min, facts.max, (2000,), generator=draw, dtype=torch.int64).to(width)
    exponent = torch.tensor(torch.inf, dtype=dtype).view(width)
    few = torch.arange(-3, 4).to(width)
    agree("Sqrt", 4, x=torch.cat([bits, bits & ~exponent, few, exponent + few]).view(dtype))
