"""Gradients with order="blocked": random batches compared with the CPU, and the same bits in every run."""

from __future__ import annotations

import os
import random
from typing import Any

import torch
from gpu_calls import (
    FLOATS,
    call,
    device_call,
    fail_if_any,
    need_device,
    on_device,
    result_or_error,
    same_bits,
    validating,
)
from torch import Tensor

need_device()

CASES = int(os.environ.get("ROWGRAD_GPU_TEST_CASES", "1000"))
REPEATS = 100
OPS = tuple(
    f"{weighted}SparseSegment{kind}{suffix}"
    for weighted, suffixes in (("", ("Grad", "GradV2")), ("Weighted", ("Grad",)))
    for kind in ("Sum", "Mean", "SqrtN")
    for suffix in suffixes
)
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 64, 100, 127, 128, 129, 256, 300)
ODD = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 6e-8, 5e-324, 65504.0)


def batch(draw: random.Random, op: str, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, str]]:
    """Return inputs and attributes of one call: skewed or even ids, sorted or unsorted segments, both id widths."""
    seeded = torch.Generator().manual_seed(draw.getrandbits(40))
    rows, bags = int(10 ** draw.uniform(0, 4)), int(10 ** draw.uniform(0, 3.5))
    ids, columns = int(10 ** draw.uniform(0, 4.3)) - 1, draw.choice(COLUMNS)
    columns = min(columns, max(1, 4_000_000 // max(ids, rows)))
    grad = torch.randn(bags, columns, generator=seeded, dtype=torch.float64) * 10.0 ** draw.randint(-3, 3)
    if draw.random() < 0.15:
        places = torch.rand(grad.shape, generator=seeded) < 0.01
        grad[places] = torch.tensor(draw.choices(ODD, k=int(places.sum())), dtype=torch.float64)
    points = torch.rand(ids, generator=seeded, dtype=torch.float64) ** draw.choice((1, 1, 3, 12))
    segments = torch.randint(0, bags, (ids,), generator=seeded)
    width, segment_width = draw.choice((torch.int32, torch.int64)), draw.choice((torch.int32, torch.int64))
    inputs: dict[str, Any] = {
        "grad": grad.to(dtype),
        "indices": (points * rows).long().clamp_(max=rows - 1).to(width),
        "segment_ids": (segments if draw.random() < 0.3 else segments.sort().values).to(segment_width),
    }
    attrs = {"order": "blocked"}
    if op.startswith("Weighted"):
        inputs["weights"] = torch.randn(ids, generator=seeded).to(dtype)
        attrs["accumulate"] = draw.choice(("T", "float32"))
    inputs["dense_output_dim0" if op.endswith("V2") else "output_dim0"] = rows
    return inputs, attrs


def test_random_batches_have_the_bits_of_the_cpu() -> None:
    draw, failures = random.Random(11), []
    with validating("sync"):
        for number in range(CASES):
            op, dtype = OPS[number % len(OPS)], FLOATS[number // len(OPS) % len(FLOATS)]
            inputs, attrs = batch(draw, op, dtype)
            expected = call(op, inputs, **attrs)
            got, error = result_or_error(device_call, op, inputs, **attrs)
            shapes = {k: tuple(v.shape) if isinstance(v, Tensor) else v for k, v in inputs.items()}
            if error is not None:
                failures.append(f"{number} {op} {dtype} {shapes} {attrs}: {error}")
            elif not all(map(same_bits, got, expected)):
                failures.append(f"{number} {op} {dtype} {shapes} {attrs}: {difference(got, expected)}")
    fail_if_any(failures, CASES)


def difference(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str:
    """Describe in one line where outputs differ."""
    for at, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {at} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        if not same_bits(a, b):
            parts = (a.double() != b.double()) & ~(a.isnan() & b.isnan())
            if not parts.any():
                return f"output {at}: signs of zeros"
            place = parts.nonzero()[0].tolist()
            return f"output {at}{place} of {int(parts.sum())}: {a[tuple(place)].item()}, not {b[tuple(place)].item()}"
    return "none"


def test_a_hot_row_of_many_levels() -> None:
    """Rows with 300,000 ids: three levels of the tree."""
    ids = 300_000
    for op in ("SparseSegmentMeanGrad", "SparseSegmentSumGradV2"):
        for dtype in FLOATS:
            seeded = torch.Generator().manual_seed(5)
            inputs = {
                "grad": torch.randn(1000, 5, generator=seeded).to(dtype),
                "indices": (torch.rand(ids, generator=seeded) < 0.05).long() * 3,
                "segment_ids": torch.randint(0, 1000, (ids,), generator=seeded).sort().values,
                "dense_output_dim0" if op.endswith("V2") else "output_dim0": 7,
            }
            got, expected = device_call(op, inputs, order="blocked"), call(op, inputs, order="blocked")
            assert all(map(same_bits, got, expected)), f"{op} {dtype}: {difference(got, expected)}"


def test_a_plan_changes_no_bit() -> None:
    import rowgrad as rg

    draw = random.Random(12)
    for number in range(40):
        op, dtype = f"SparseSegment{draw.choice(('Sum', 'Mean', 'SqrtN'))}Grad", FLOATS[number % len(FLOATS)]
        inputs, attrs = batch(draw, op, dtype)
        if not inputs["indices"].numel():
            continue
        expected = call(op, inputs, **attrs)
        there = on_device(op, inputs)
        plan = rg.Plan(there["indices"], there["segment_ids"], inputs["output_dim0"], inputs["grad"].shape[0])
        got = getattr(rg.raw_ops, op)(there["grad"], plan=plan, **attrs).cpu()
        assert same_bits(got, expected[0]), f"{number} {op} {dtype}: {difference((got,), expected)}"


def test_one_batch_has_the_same_bits_in_every_run() -> None:
    draw = random.Random(13)
    for op in ("SparseSegmentMeanGrad", "SparseSegmentMeanGradV2", "WeightedSparseSegmentMeanGrad"):
        seeded = torch.Generator().manual_seed(draw.getrandbits(40))
        ids, rows = 50_000, 1000
        inputs = {
            "grad": torch.randn(2000, 48, generator=seeded),
            "indices": (torch.rand(ids, generator=seeded) ** 4 * rows).long().clamp_(max=rows - 1),
            "segment_ids": torch.randint(0, 2000, (ids,), generator=seeded).sort().values,
        }
        if op.startswith("Weighted"):
            inputs["weights"] = torch.rand(ids, generator=seeded)
        inputs["dense_output_dim0" if op.endswith("V2") else "output_dim0"] = rows
        there = on_device(op, inputs)
        first = call(op, there, order="blocked")
        for number in range(REPEATS):
            again = call(op, there, order="blocked")
            assert all(map(same_bits, again, first)), f"{op}: run {number} differs"
