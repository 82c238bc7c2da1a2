"""SparseAdd on the emulated device compared with the CPU kernel: sorted lists, lists with repeats, unsorted lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_call import emulate, on_cpu, same_bits

from rowgrad.torch.tensors import DTYPE

NUMBERS = [dtype for name, dtype in DTYPE.items() if name != "bool"]
INT64 = torch.int64
ORDERS = ("ascending", "repeats", "any")


def numbers(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    ints = torch.randint(-9, 9, (size,), generator=generator)
    if dtype.is_complex:
        return torch.complex(ints.double(), ints.flip(0).double()).to(dtype)
    if not dtype.is_floating_point:
        return ints.to(dtype)
    return torch.where(ints > 0, ints.double(), torch.randn(size, dtype=torch.float64, generator=generator)).to(dtype)


def entries(size: int, rank: int, extent: int, seed: int, order: str) -> torch.Tensor:
    found = torch.randint(-3, extent - 3, (size, rank), generator=torch.Generator().manual_seed(seed))
    if order == "any":
        return found
    rows = [tuple(row) for row in found.tolist()]
    chosen = sorted(set(rows)) if order == "ascending" else sorted(rows)
    return torch.tensor(chosen, dtype=INT64).reshape(len(chosen), rank)


def compare(op: str, arguments: dict[str, Any], seed: int) -> tuple[torch.Tensor, ...]:
    results = on_cpu(op, arguments)
    for got, expected in zip(emulate(op, arguments, seed), results, strict=True):
        assert same_bits(got, expected), f"{op}\n{got}\n{expected}"
    return results


def real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def sum_of(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, thresh: float, seed: int) -> torch.Tensor:
    shape = [1000] * a.shape[1]
    arguments = {"a_indices": a, "a_values": numbers(dtype, len(a), seed), "a_shape": shape, "b_indices": b,
                 "b_values": numbers(dtype, len(b), seed + 1), "b_shape": shape,
                 "thresh": torch.tensor(thresh, dtype=real(dtype))}  # fmt: skip
    return compare("SparseAdd", arguments, seed)[0]


def compare_walks(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor, dtype: torch.dtype, seed: int) -> None:
    lists = {"a_indices": a, "b_indices": b, "sum_indices": total}
    compare("SparseAddGrad", {"backprop_val_grad": numbers(dtype, len(total), seed), **lists}, seed)
    values = {"da": numbers(dtype, len(a), seed + 3), "db": numbers(dtype, len(b), seed + 4)}
    compare("SparseAddGradGrad", {**values, **lists}, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("a_size", "b_size", "rank", "extent"),
    [
        (0, 0, 2, 5),
        (1, 0, 2, 5),
        (0, 3, 1, 9),
        (2100, 1501, 1, 3000),
        (1700, 2003, 2, 60),
        (900, 7, 3, 12),
        (40, 3000, 4, 5),
    ],
)
def test_sums_and_their_gradients(a_size: int, b_size: int, rank: int, extent: int, order: str, seed: int) -> None:
    a = entries(a_size, rank, extent, seed, order)
    b = entries(b_size, rank, extent, seed + 10, order)
    total = sum_of(a, b, torch.float32, 1.0, seed)
    compare_walks(a, b, total, torch.float32, seed)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_dtypes(dtype: torch.dtype) -> None:
    for order in ORDERS:
        a, b = entries(400, 2, 20, 1, order), entries(350, 2, 20, 2, order)
        for thresh in (0, 5):
            total = sum_of(a, b, dtype, thresh, 1)
        compare_walks(a, b, total, dtype, 2)


@pytest.mark.parametrize("seed", [1, 2])
def test_gradients_with_arbitrary_sum_indices(seed: int) -> None:
    """Indices that no sum has: gaps, unknown entries, repeats in only one list."""
    a, b = entries(700, 2, 30, 1, "ascending"), entries(600, 2, 30, 2, "ascending")
    for total in (a, b[::2], entries(500, 2, 30, 3, "ascending"), entries(500, 2, 30, 3, "repeats"), a.flip(0)):
        compare_walks(a, b, total.contiguous(), torch.bfloat16, seed)
    compare_walks(entries(700, 2, 9, 1, "repeats"), b, b, torch.float16, seed)
    nothing = torch.empty((0, 2), dtype=INT64)
    compare_walks(a, b, nothing, torch.float64, seed)
    compare_walks(nothing, nothing, a, torch.float64, seed)
    compare_walks(nothing, nothing, nothing, torch.float64, seed)


def test_no_dimensions() -> None:
    one, two = torch.empty((1, 0), dtype=INT64), torch.empty((2, 0), dtype=INT64)
    for a in (one, two):
        for b in (one, two):
            for total in (one, two):
                compare_walks(a, b, total, torch.float32, 1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_runs_of_equal_entries(seed: int) -> None:
    """Longer than a block: equal entries are paired in order."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(4, (n, 1), generator=generator).sort(0).values for n in (1400, 1100))
    compare_walks(a, b, sum_of(a, b, torch.float32, 0.5, seed), torch.float32, seed)


def test_coordinates_near_the_int64_limits() -> None:
    ends = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
    a = torch.tensor([[x, y] for x in ends for y in ends])
    compare_walks(a[::2], a[1::3].contiguous(), sum_of(a[::2], a[1::3], torch.int32, 3, 1), torch.int32, 1)


def thresholded(a_values: torch.Tensor, b_values: torch.Tensor, thresh: torch.Tensor) -> None:
    indices = torch.arange(len(a_values)).reshape(-1, 1)
    compare("SparseAdd", {"a_indices": indices, "a_values": a_values, "a_shape": [999], "b_indices": indices,
            "b_values": b_values, "b_shape": [999], "thresh": thresh}, 1)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_thresholds_of_floats(dtype: torch.dtype) -> None:
    some = [0.0, -0.0, 1.0, -2.5, float("inf"), -float("inf"), float("nan"), 1e-41, 1e-310, 1e-39, -3e38, 2e-38]
    a = torch.tensor([x for x in some for _ in some], dtype=torch.float64)
    b = torch.tensor(some * len(some), dtype=torch.float64)
    for thresh in (0.0, -1.0, 1.5, 3.5, 1e-41, 1e-310, float("inf"), float("nan")):
        if dtype.is_complex:
            thresholded(torch.complex(a, b).to(dtype), torch.zeros(len(a), dtype=dtype), torch.tensor(thresh))
        else:
            thresholded(a.to(dtype), b.to(dtype), torch.tensor(thresh, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_thresholds_of_complex_numbers(dtype: torch.dtype) -> None:
    """Thresholds equal to the absolute value of a sum, and their neighbours."""
    generator = torch.Generator().manual_seed(1)
    far = [1.0, 3e150, 1e-160, 1e300] if dtype == torch.complex128 else [1.0, 1e30, 1e-30]
    for scale in far:
        parts = torch.randint(-5, 6, (2, 60), generator=generator).double() * scale
        a = torch.complex(parts[0], parts[1]).to(dtype)
        for at in range(0, 60, 20):
            length = a[at].abs()
            for thresh in (length, length.nextafter(length * 2), length.nextafter(length * 0)):
                thresholded(a, torch.zeros_like(a), thresh)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint64])
def test_thresholds_of_integers(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    some = [info.min, info.max, info.min + 1, 0, 1, 5, info.max - 1]
    a = torch.tensor([x for x in some for _ in some], dtype=dtype)
    b = torch.tensor(some * len(some), dtype=dtype)
    for thresh in some:
        thresholded(a, b, torch.tensor(thresh, dtype=dtype))
