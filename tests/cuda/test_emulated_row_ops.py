"""RowDot, SparseSegmentDot and RowPositions on the emulated device compared with the CPU kernels."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDTHS = (torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 0), (4,), (33, 7), (1, 8), (70, 3, 5), (701, 19), (3, 400)])
def test_row_dots(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(len(shape))
    x, y = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for _ in range(2))
    for seed in (0, 1):
        agree("RowDot", seed, x=x, y=y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_row_dots_of_subnormals(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(8)
    x = torch.randn((40, 12), generator=draw, dtype=torch.float64).to(dtype) * torch.finfo(dtype).tiny
    y = torch.randn((40, 12), generator=draw, dtype=torch.float64).to(dtype)
    agree("RowDot", x=x, y=y)
    agree("RowDot", x=-torch.zeros_like(x), y=y)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("indices", WIDTHS)
@pytest.mark.parametrize("segments", WIDTHS)
def test_segment_dots(dtype: torch.dtype, indices: torch.dtype, segments: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(5)
    grad, data = (torch.randn((rows, 13), generator=draw, dtype=torch.float64).to(dtype) for rows in (20, 50))
    for seed, size in enumerate((0, 1, 31, 900)):
        agree(
            "SparseSegmentDot", seed, grad=grad, data=data,
            indices=torch.randint(0, 50, (size,), generator=draw).to(indices),
            segment_ids=torch.randint(0, 20, (size,), generator=draw).to(segments),
        )  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_segment_dots_with_bad_ids_raise(width: torch.dtype) -> None:
    grad, data = torch.ones(4, 2), torch.ones(6, 2)
    for faults in ([(700, 0, 6)], [(700, 1, 4)], [(900, 0, -1), (900, 1, -1)], [(3, 1, -7), (2, 0, 1 << 30)]):
        ids = torch.zeros(2, 1000, dtype=width)
        for at, which, value in faults:
            ids[which, at] = value
        agree("SparseSegmentDot", grad=grad, data=data, indices=ids[0], segment_ids=ids[1])
    nothing = torch.zeros(1, dtype=width)
    agree("SparseSegmentDot", grad=grad[:0], data=data, indices=nothing, segment_ids=nothing)
    agree("SparseSegmentDot", grad=grad, data=data[:0], indices=nothing, segment_ids=nothing)


@pytest.mark.parametrize("listed", WIDTHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_positions(listed: torch.dtype, width: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(6)
    for seed, (many, size) in enumerate(((1, 0), (0, 0), (1, 1), (2, 5), (300, 3000))):
        ids = (torch.randperm(1000, generator=draw)[:many] - 100).sort().values.to(listed)
        chosen = ids[torch.randint(0, max(many, 1), (size,), generator=draw)] if size else ids[:0]
        agree("RowPositions", seed, sorted_ids=ids, ids=chosen.to(width))


@pytest.mark.parametrize("width", WIDTHS)
def test_ids_missing_from_the_sorted_list(width: torch.dtype) -> None:
    listed = torch.arange(0, 3000, 3).to(width)
    for changes in ([(0, 1)], [(999, 3000)], [(500, -1), (300, 4)]):
        ids = listed.flip(0).clone()
        for at, value in changes:
            ids[at] = value
        agree("RowPositions", sorted_ids=listed, ids=ids)
    agree("RowPositions", sorted_ids=listed[:0], ids=listed)
    agree("RowPositions", sorted_ids=listed.flip(0), ids=listed)  # unsorted: results are undefined, but nothing crashes
