"""Products and quotients around the least normal number have the bits of the CPU, which rounds before it flushes."""

from __future__ import annotations

import torch
from gpu_calls import call, device_call, fail_if_any, need_device, same_bits
from torch import Tensor

need_device()

LEAST = {torch.float32: (-126, 2.0**-24), torch.float64: (-1022, 2.0**-53)}  # exponent, half of the last bit of 1


def factors(dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Return two lists of numbers whose products are a few half bits below the least normal number, or more."""
    exponent, half_bit = LEAST[dtype]
    draw = torch.Generator().manual_seed(seed)
    size = 100_000
    other = torch.rand(size, generator=draw, dtype=torch.float64) / 2 + 0.5
    other[: size // 4] = 0.5  # exact products
    shift = torch.randint(2, 60, (size,), generator=draw)
    near = 1 - torch.randint(0, 12, (size,), generator=draw).double() * half_bit / 4
    one = torch.ldexp((near / other).to(dtype), exponent + shift)
    return one, torch.ldexp(other.to(dtype), -shift)


def test_products() -> None:
    failures = []
    for dtype in LEAST:
        for seed in range(3):
            x, y = (list_.reshape(-1, 1) for list_ in factors(dtype, seed))
            inputs = {"x": x, "y": y}
            (got,), (expected,) = device_call("RowDot", inputs), call("RowDot", inputs)
            if not same_bits(got, expected):
                failures.append(f"{dtype}, seed {seed}: {int((got != expected).sum())} of {len(x)} products")
    fail_if_any(failures, 3 * len(LEAST))


def test_quotients() -> None:
    """Of gradients and the total weights of their bags."""
    failures = []
    for dtype in LEAST:
        x, y = factors(dtype, 5)
        size = len(x)
        inputs = {"grad": x.reshape(-1, 1), "segment_ids": torch.arange(size), "weights": 1 / y}
        op = "WeightedSparseSegmentMeanGradRows"
        (got,), (expected,) = device_call(op, inputs), call(op, inputs)
        if not same_bits(got, expected):
            failures.append(f"{dtype}: {int((got != expected).sum())} of {size} quotients")
    fail_if_any(failures, len(LEAST))
