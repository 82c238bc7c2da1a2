"""SegmentIdsFromOffsets and StackBags on the emulated device compared with the CPU kernels."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree
from torch import Tensor

WIDTHS = (torch.int32, torch.int64)


def random_offsets(draw: torch.Generator, bags: int, ids: int, dtype: torch.dtype) -> Tensor:
    """Return the offsets of `bags` bags, many of them empty, and the end."""
    inner = torch.randint(0, ids + 1, (bags - 1,), generator=draw).sort().values
    return torch.cat([torch.tensor([0]), inner, torch.tensor([ids])]).to(dtype)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize(
    ("bags", "ids"), [(1, 1), (1, 0), (5, 0), (3, 7), (700, 5000), (9000, 40), (1, 3000), (2500, 2500)]
)
def test_segment_ids_from_offsets(dtype: torch.dtype, bags: int, ids: int) -> None:
    draw = torch.Generator().manual_seed(bags + ids)
    offsets = random_offsets(draw, bags, ids, dtype)
    for seed in (0, 7):
        agree("SegmentIdsFromOffsets", seed, offsets=offsets[:-1], num_ids=ids)
        agree("SegmentIdsFromOffsets", seed, offsets=offsets, num_ids=ids, attrs={"include_last_offset": True})


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("has_end", [False, True])
def test_invalid_offsets_raise(dtype: torch.dtype, has_end: bool) -> None:
    good = random_offsets(torch.Generator().manual_seed(3), 3000, 4000, dtype)
    cases: list[tuple[list[int] | Tensor, int]] = [
        ([], 0), ([], 3), ([0], 3), ([1, 2], 3), ([-1, 2], 3), ([0, 3, 2], 3), ([0, 4], 3), ([0, 2], 3), ([5, 3], 3),
        ([0, 2, -9, 3, 1], 3), ([0, 9, 3], 3),
    ]  # fmt: skip
    for at, value in ((2000, -5), (2999, 1 << 30), (0, 1)):
        bad = good.clone()
        bad[at] = value
        cases.append((bad, 4000))
    for offsets, ids in cases:
        offsets_ = torch.as_tensor(offsets, dtype=dtype)
        agree("SegmentIdsFromOffsets", offsets=offsets_, num_ids=ids, attrs={"include_last_offset": has_end})


def stack(
    draw: torch.Generator, features: int, examples: int, ids: int, indices: torch.dtype, offsets: torch.dtype
) -> dict[str, Tensor]:
    """Return arguments of StackBags."""
    rows = torch.randint(1, 50, (features,), generator=draw)
    places = random_offsets(draw, features * examples, ids, offsets) if examples else torch.zeros(1, dtype=offsets)
    starts = places[::examples] if examples else torch.zeros(features + 1, dtype=offsets)
    bound = torch.repeat_interleave(rows, starts.diff().long())
    return {
        "indices": (torch.rand(ids, generator=draw, dtype=torch.float64) * bound).long().to(indices),
        "offsets": places,
        "feature_rows": rows,
        "feature_first": rows.cumsum(0) - rows,
    }


@pytest.mark.parametrize("indices", WIDTHS)
@pytest.mark.parametrize("offsets", WIDTHS)
@pytest.mark.parametrize(
    ("features", "examples", "ids"),
    [(1, 1, 1), (1, 0, 0), (3, 0, 0), (2, 2, 0), (3, 5, 20), (26, 70, 3000), (90, 3, 2100), (1, 300, 700), (5, 90, 9)],
)
def test_stack_bags(indices: torch.dtype, offsets: torch.dtype, features: int, examples: int, ids: int) -> None:
    draw = torch.Generator().manual_seed(features * 100 + examples)
    arguments = stack(draw, features, examples, ids, indices, offsets)
    for seed in (0, 5):
        agree("StackBags", seed, **arguments)
        agree("StackBags", seed, **arguments, attrs={"positions": True})


@pytest.mark.parametrize("indices", WIDTHS)
@pytest.mark.parametrize("offsets", WIDTHS)
def test_invalid_bags_raise(indices: torch.dtype, offsets: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(4)
    good = stack(draw, 4, 30, 2500, indices, offsets)
    changes = [
        ("indices", 2000, -1), ("indices", 17, 60), ("offsets", 0, 1), ("offsets", 0, -1), ("offsets", 50, 2501),
        ("offsets", 50, -3), ("offsets", 120, 2499), ("offsets", 120, 1 << 30), ("feature_rows", 2, -1),
        ("feature_first", 1, -7), ("feature_first", 3, (1 << 31) - 2), ("feature_first", 3, (1 << 63) - 1),
        ("feature_rows", 1, 0), ("feature_rows", 3, (1 << 63) - 1),
    ]  # fmt: skip
    for name, at, value in changes:
        bad = {**good, name: good[name].clone()}
        bad[name][at] = value
        agree("StackBags", **bad)
        for other, where, what in changes[::3]:  # with two faults, both name the same one
            worse = {**bad, other: bad[other].clone()}
            worse[other][where] = what
            agree("StackBags", 3, **worse)
