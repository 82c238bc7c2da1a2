"""Weighted bags and their row gradients on the emulated device compared with the CPU kernels."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree
from torch import Tensor

from rowgrad.cuda.call import Call

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDTHS = (torch.int32, torch.int64)
KINDS = ("Sum", "Mean", "SqrtN")
COUNTS = [1, 0, 2, 3, 15, 16, 0, 17, 19, 1, 33, 7, 65, 200]


def numbers(draw: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape, generator=draw, dtype=torch.float64) ** 3).to(dtype)


def batch(draw: torch.Generator, rows: int, counts: list[int], weights: torch.dtype) -> dict[str, Tensor]:
    """Return ids, segment ids and weights of bags with these numbers of ids; some bags' weights are zero."""
    segments = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
    weight_values = numbers(draw, (len(segments),), weights)
    weight_values[segments % 5 == 3] = 0
    return {
        "indices": torch.randint(0, rows, (len(segments),), generator=draw),
        "segment_ids": segments,
        "weights": weight_values,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", FLOATS)
def test_bags(kind: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    ids = batch(draw, 40, COUNTS, weights)
    for seed, cols in enumerate((8, 13)):
        data = numbers(draw, (40, cols), dtype)
        agree(f"WeightedSparseSegment{kind}", seed, data=data, **ids)
        agree(f"WeightedSparseSegment{kind}WithNumSegments", seed, data=data, **ids, num_segments=17)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_long_bags(kind: str, dtype: torch.dtype) -> None:
    """Bags long enough for a block each, among short ones."""
    draw = torch.Generator().manual_seed(8)
    ids = batch(draw, 40, [256, 3, 257, 300, 0, 1, 1023], dtype)
    for seed, cols in enumerate((1, 11, 72)):
        agree(f"WeightedSparseSegment{kind}", seed, data=numbers(draw, (40, cols), dtype), **ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", FLOATS)
def test_row_gradients(kind: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(2)
    ids = batch(draw, 1, COUNTS, weights)
    del ids["indices"]
    for seed, cols in enumerate((8, 13)):
        agree(f"WeightedSparseSegment{kind}GradRows", seed, grad=numbers(draw, (15, cols), dtype), **ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indices", WIDTHS)
@pytest.mark.parametrize("segments", WIDTHS)
def test_widths_and_sizes(kind: str, indices: torch.dtype, segments: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    for seed, (counts, cols) in enumerate((([], 3), ([1], 2), ([2, 1], 0), ([2] * 700, 3), ([0] * 600 + [1], 20))):
        ids = batch(draw, 50, counts, torch.float32)
        ids = {**ids, "indices": ids["indices"].to(indices), "segment_ids": ids["segment_ids"].to(segments)}
        data = numbers(draw, (50, cols), torch.float32)
        agree(f"WeightedSparseSegment{kind}", seed, data=data, **ids)
        agree(f"WeightedSparseSegment{kind}GradGrad", seed, data=data, **ids, num_segments=len(counts) + 2)
        row_arguments = {name: ids[name] for name in ("segment_ids", "weights")}
        grad = numbers(draw, (len(counts) + 2, cols), torch.float32)
        agree(f"WeightedSparseSegment{kind}GradRows", seed, grad=grad, **row_arguments)


@pytest.mark.parametrize("kind", ["Mean", "SqrtN"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", FLOATS)
def test_small_and_large_numbers(kind: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    """Subnormals on either side, weights beyond the accumulator's range, signed zeros, infinities."""
    draw = torch.Generator().manual_seed(4)
    ids = batch(draw, 40, COUNTS, torch.float64)
    data = numbers(draw, (40, 9), torch.float64)
    for tiny, huge in ((torch.float32, 1e30), (torch.float64, 1e300), (weights, torch.inf)):
        small = torch.finfo(tiny).tiny
        scale = torch.tensor([1.0, small, small * 2.0**-3, -0.0, huge], dtype=torch.float64)
        chosen = scale[torch.randint(0, 5, ids["weights"].shape, generator=draw)]
        inputs = {**ids, "weights": (ids["weights"] * chosen).to(weights)}
        few = (data * scale[torch.randint(0, 4, data.shape, generator=draw)]).to(dtype)
        agree(f"WeightedSparseSegment{kind}", data=few, **inputs)
        del inputs["indices"]
        agree(f"WeightedSparseSegment{kind}GradRows", grad=few, **inputs)


def test_weights_near_the_smallest_float() -> None:
    """Whether a double is too small for float32 is decided after rounding to 24 bits."""
    least = torch.tensor(2.0**-126, dtype=torch.float64)
    off = torch.tensor([-(2.0**-23), -(2.0**-24), -(2.0**-25), -(2.0**-25) - 2.0**-40, 0, 2.0**-30]).double()
    weights = torch.cat([least * (1 + off), -least * (1 + off)])
    each = torch.arange(len(weights))
    data = torch.full((1, 1), 2.0**20)
    agree("WeightedSparseSegmentSum", data=data, indices=each * 0, segment_ids=each, weights=weights)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cols", [0, 3])
def test_bad_ids_raise(width: torch.dtype, cols: int) -> None:
    data = torch.ones(6, cols)
    good = torch.arange(1000) // 10
    changes: list[list[tuple[str, int, int]]] = [
        [("indices", 700, 6)], [("indices", 0, -1)], [("segment_ids", 700, 3)], [("segment_ids", 700, -3)],
        [("segment_ids", 999, -3)], [("segment_ids", 999, 5)], [("segment_ids", 999, -3), ("indices", 999, 9)],
        [("segment_ids", 3, 200)], [("segment_ids", 3, 200), ("segment_ids", 2, -1)], [("segment_ids", 0, -1)],
    ]  # fmt: skip
    if width == torch.int32:
        changes.append([("segment_ids", 999, (1 << 31) - 1)])
    else:
        changes.append([("segment_ids", 999, (1 << 63) - 1)])
    for change in changes:
        ids = {"indices": (good % 6).to(width), "segment_ids": good.to(width)}
        for name, at, value in change:
            ids[name][at] = value
        agree("WeightedSparseSegmentMean", data=data, **ids, weights=torch.ones(1000))
        agree("WeightedSparseSegmentMeanGradGrad", data=data, **ids, weights=torch.ones(1000), num_segments=99)
        for kind in ("Sum", "Mean"):
            agree(
                f"WeightedSparseSegment{kind}GradRows", grad=torch.ones(99, cols), segment_ids=ids["segment_ids"],
                weights=torch.ones(1000),
            )  # fmt: skip
    agree("WeightedSparseSegmentSumGradRows", grad=data[:0], segment_ids=good[:1], weights=torch.ones(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float64])
def test_unsorted_segments(kind: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(6)
    ids = batch(draw, 40, COUNTS, weights)
    shuffled = {name: values[torch.randperm(len(values), generator=draw)] for name, values in ids.items()}
    data = numbers(draw, (40, 8), dtype)
    for seed, (index, segment) in enumerate(((0, 1), (1, 0))):
        inputs = {
            "indices": shuffled["indices"].to(WIDTHS[index]),
            "segment_ids": shuffled["segment_ids"].to(WIDTHS[segment]),
            "weights": shuffled["weights"],
        }
        agree(f"WeightedSparseSegment{kind}GradGrad", seed, data=data, **inputs, num_segments=15)
        del inputs["indices"]
        agree(f"WeightedSparseSegment{kind}GradRows", seed, grad=data, **inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_unsorted_long_bags(kind: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(12)
    ids = batch(draw, 40, [256, 3, 257, 300, 0, 1, 1023], dtype)
    order = torch.randperm(len(ids["indices"]), generator=draw)
    shuffled = {name: values[order] for name, values in ids.items()}
    agree(f"WeightedSparseSegment{kind}GradGrad", data=numbers(draw, (40, 11), dtype), **shuffled, num_segments=8)
    agree(f"WeightedSparseSegment{kind}GradRows", grad=numbers(draw, (8, 3), dtype), **without_indices(shuffled))


def without_indices(ids: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values for name, values in ids.items() if name != "indices"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_with_known_sizes_synchronizes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs capture them. Whether segments have to be sorted is decided on the device."""
    monkeypatch.setattr(Call, "number", None)
    draw = torch.Generator().manual_seed(10)
    ids = batch(draw, 40, COUNTS, torch.float32)
    data = numbers(draw, (40, 8), torch.float32)
    agree(f"WeightedSparseSegment{kind}WithNumSegments", data=data, **ids, num_segments=15)
    for faults in ({"segment_ids": 15}, {"indices": -1}, {"segment_ids": -4, "indices": 40}):
        bad = {name: values.clone() for name, values in ids.items()}
        for name, value in faults.items():
            bad[name][30] = value
        agree(f"WeightedSparseSegment{kind}WithNumSegments", data=data, **bad, num_segments=15)


def test_many_unsorted_segments() -> None:
    draw = torch.Generator().manual_seed(9)
    segments = torch.randint(0, 2000, (3000,), generator=draw)
    inputs = {"segment_ids": segments, "weights": numbers(draw, (3000,), torch.float32)}
    data = numbers(draw, (50, 5), torch.float32)
    indices = torch.randint(0, 50, (3000,), generator=draw)
    agree("WeightedSparseSegmentMeanWithNumSegments", data=data, indices=indices, **inputs, num_segments=2000)
    agree("WeightedSparseSegmentSqrtNGradRows", grad=numbers(draw, (2000, 3), torch.float32), **inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bags", [900, 5000, (1 << 20) + 7])
def test_unsorted_segments_of_several_tiles_and_passes(kind: str, bags: int) -> None:
    """One, two and three passes of the sort, tiles that wait for one another, and a long bag, as of masked ids."""
    draw = torch.Generator().manual_seed(11)
    size = 9000
    segments = torch.randint(0, bags, (size,), generator=draw)
    segments[torch.rand(size, generator=draw) < 0.2] = bags - 1
    inputs = {"segment_ids": segments, "weights": numbers(draw, (size,), torch.float32)}
    data, indices = numbers(draw, (50, 2), torch.float32), torch.randint(0, 50, (size,), generator=draw)
    agree(
        f"WeightedSparseSegment{kind}WithNumSegments", data=data, indices=indices, **inputs, num_segments=bags
    )  # fmt: skip


@pytest.mark.parametrize("bags", [40, 1500, (1 << 20) + 7])
def test_a_bad_id_of_an_unsorted_batch(bags: int) -> None:
    """Indices are searched first, as on the CPU. No block waits for passes of the sort, which are not done."""
    draw = torch.Generator().manual_seed(13)
    segments = torch.randint(0, bags, (5000,), generator=draw)
    indices = torch.randint(0, 50, (5000,), generator=draw)
    data, weights = numbers(draw, (50, 3), torch.float32), numbers(draw, (5000,), torch.float32)
    for changes in ({"segment_ids": bags}, {"indices": 50, "segment_ids": -1}, {"indices": -1}):
        ids = {"indices": indices.clone(), "segment_ids": segments.clone()}
        for name, value in changes.items():
            ids[name][4321] = value
        agree("WeightedSparseSegmentMeanWithNumSegments", data=data, **ids, weights=weights, num_segments=bags)


@pytest.mark.parametrize("dtype", FLOATS)
def test_long_bags_at_all_places(dtype: torch.dtype) -> None:
    """Bags of just more than the longest short one, which begin at any distance from a multiple of its size."""
    draw = torch.Generator().manual_seed(14)
    for counts in ([257] * 4, [1, 257, 257], [256, 257, 1, 258, 300, 257], [0, 3, 771, 0, 257]):
        ids = batch(draw, 40, counts, torch.float32)
        agree("WeightedSparseSegmentMean", data=numbers(draw, (40, 3), dtype), **ids)


@pytest.mark.parametrize("op", ["SparseSegmentMeanWithNumSegments", "WeightedSparseSegmentMeanWithNumSegments"])
def test_blocks_of_bags_reject_ids_of_the_bag_before(op: str) -> None:
    """One bad segment among ascending ones: the search for the first id of a block may end one bag too early."""
    draw = torch.Generator().manual_seed(0)
    segments = torch.randint(0, 1500, (600,), generator=draw)
    segments[torch.rand(600, generator=draw) < 0.1] = 1499
    segments = segments.sort().values
    weights = {"weights": torch.rand(600, generator=draw)} if op.startswith("Weighted") else {}
    ids = torch.randint(0, 50, (600,), generator=draw)
    for at in range(200, 600, 20):
        bad = segments.clone()
        bad[at] = 1500
        agree(op, data=torch.ones(50, 20), indices=ids, segment_ids=bad, **weights, num_segments=1500)
