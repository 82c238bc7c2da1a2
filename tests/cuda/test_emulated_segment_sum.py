"""SegmentSum on the emulated device compared with the CPU kernel."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
WIDTHS = (torch.int32, torch.int64)


def numbers(draw: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return random numbers of this dtype and of very different sizes."""
    if dtype in COMPLEX:
        return torch.complex(*(torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))).to(dtype)
    if dtype in FLOATS:
        return (torch.randn(shape, generator=draw, dtype=torch.float64) ** 3).to(dtype)
    return torch.randint(-(1 << 62), 1 << 62, shape, generator=draw).to(dtype)


def segments_of(counts: list[int]) -> Tensor:
    """Return sorted segment ids with these numbers of rows."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS])
def test_sums(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    counts = [1, 0, 2, 3, 15, 16, 0, 0, 17, 18, 19, 1, 40, 7, 163]
    ids = segments_of(counts)
    for seed, cols in enumerate((1, 3, 4, 8, 13, 24)):
        data = numbers(draw, (len(ids), cols), dtype)
        agree("SegmentSum", seed, data=data, segment_ids=ids.to(WIDTHS[seed % 2]))
    agree("SegmentSum", data=numbers(draw, (len(ids), 4, 2), dtype), segment_ids=ids)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, torch.uint8, torch.int64])
def test_long_segments(dtype: torch.dtype) -> None:
    """Segments long enough for a block each, among short ones."""
    draw = torch.Generator().manual_seed(7)
    ids = segments_of([256, 3, 257, 0, 1, 702, 299])
    for seed, cols in enumerate((1, 11, 70, 136)):
        agree("SegmentSum", seed, data=numbers(draw, (len(ids), cols), dtype), segment_ids=ids)
    ids = segments_of([9000])
    agree("SegmentSum", data=numbers(draw, (9000, 1), dtype), segment_ids=ids)


def test_unaligned_memory() -> None:
    """Rows of a multiple of 16 bytes that do not start at one."""
    ids = segments_of([20, 3, 1])
    data = torch.randn(24 * 8 + 1, generator=torch.Generator().manual_seed(1))[1:].view(24, 8)
    agree("SegmentSum", data=data, segment_ids=ids)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_zeros_and_subnormals(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(2)
    ids = segments_of([1, 2, 1, 20, 1])
    agree("SegmentSum", data=-torch.zeros(len(ids), 9, dtype=dtype), segment_ids=ids)
    agree("SegmentSum", data=numbers(draw, (len(ids), 9), dtype) * torch.finfo(dtype).tiny, segment_ids=ids)


@pytest.mark.parametrize("width", WIDTHS)
def test_sizes(width: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    for seed, (rows, cols) in enumerate(((0, 3), (1, 5), (3, 0), (2000, 3), (900, 17), (40, 1100))):
        ids = torch.randint(0, max(rows // 3, 1), (rows,), generator=draw).sort().values.to(width)
        agree("SegmentSum", seed, data=numbers(draw, (rows, cols), torch.float32), segment_ids=ids)
    agree("SegmentSum", data=torch.ones(3), segment_ids=torch.tensor([0, 0, 5], dtype=width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cols", [0, 2])
def test_invalid_segment_ids_raise(width: torch.dtype, cols: int) -> None:
    limit = torch.iinfo(width).max
    lists = [[-1], [0, -3], [1, 0, 2], [0, 3, 2], [-1, 2], [0, 5, 1, 2], [5, 7, 3], [0, 9, 9, 4]]
    if width == torch.int64:
        lists.append([0, limit])
    for ids in lists:
        agree("SegmentSum", data=torch.ones(len(ids), cols), segment_ids=torch.tensor(ids, dtype=width))
    long = torch.arange(3000).to(width)
    for at, value in ((2000, 1), (1000, -4), (2500, 2_000_000)):
        bad = long.clone()
        bad[at] = value
        agree("SegmentSum", data=torch.ones(3000, cols), segment_ids=bad)
