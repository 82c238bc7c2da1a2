"""Fused optimizer steps with bag gradients, and padded gradients: the CPU's bits."""

from __future__ import annotations

import os
import random
from typing import Any

import torch
from gpu_calls import DEVICE, FLOATS, call, device_call, fail_if_any, need_device, same_bits, validating
from test_gpu_blocked_gradients import batch, difference
from torch import Tensor

import rowgrad as rg
from rowgrad.torch import optim

need_device()

CASES = int(os.environ.get("ROWGRAD_GPU_TEST_CASES", "1000")) // 5
RULES = (optim.SGD, optim.Adagrad, optim.RowWiseAdagrad, optim.Adam, optim.AdamW)


def stepped(
    make: Any, table: Tensor, inputs: dict[str, Any], options: dict[str, Any], combiner: str, plan: bool
) -> list[Any]:
    """Return the table and its state after two steps, on the host."""
    parameter = torch.nn.Parameter(table.clone())
    optimizer = make([parameter], lr=0.1, weight_decay=options.pop("weight_decay"))
    ids, segments = inputs["indices"], inputs["segment_ids"]
    built = rg.Plan(ids, segments, table.shape[0], inputs["grad"].shape[0]) if plan else None
    ids_or_plan = (None, None) if plan else (ids, segments)
    for _ in range(2):
        optimizer.update_from_bags(parameter, inputs["grad"], *ids_or_plan, combiner, plan=built, **options)
    state = optimizer.state[parameter]
    return [parameter.detach().cpu(), *(v.cpu() for _, v in sorted(state.items()) if isinstance(v, Tensor))]


def test_steps_have_the_bits_of_the_cpu() -> None:
    draw, failures = random.Random(21), []
    with validating("sync"):
        for number in range(CASES):
            make, dtype = RULES[number % len(RULES)], FLOATS[number // len(RULES) % len(FLOATS)]
            weighted = draw.random() < 0.3
            inputs, _ = batch(draw, "WeightedSparseSegmentSumGrad" if weighted else "SparseSegmentSumGrad", dtype)
            rows = inputs.pop("output_dim0")
            table = torch.randn(rows, *inputs["grad"].shape[1:], generator=torch.Generator().manual_seed(number)).to(
                dtype
            )
            options = {"order": draw.choice(("blocked", "sequential")), "weight_decay": draw.choice((0.0, 0.01))}
            combiner, plan = (
                draw.choice(("sum", "mean", "sqrtn")),
                draw.random() < 0.3 and inputs["indices"].numel() > 0,
            )
            results = []
            for there in (False, True):
                placed = {k: v.to(DEVICE) if there else v for k, v in inputs.items()}
                own = options | ({"weights": placed["weights"]} if weighted else {})
                results.append(stepped(make, table.to(DEVICE) if there else table, placed, own, combiner, plan))
            if not all(map(same_bits, *results)):
                shapes = {k: tuple(v.shape) for k, v in inputs.items()}
                failures.append(
                    f"{number} {make.__name__} {dtype} {shapes} {options} {combiner}: {difference(*results)}"
                )
    fail_if_any(failures, CASES)


def test_padded_gradients() -> None:
    draw, failures = random.Random(22), []
    with validating("sync"):
        for number in range(CASES):
            op, dtype = f"SparseSegment{draw.choice(('Sum', 'Mean', 'SqrtN'))}GradV2", FLOATS[number % len(FLOATS)]
            inputs, attrs = batch(draw, op, dtype)
            size = inputs["indices"].unique().numel() + draw.choice((0, 1, 50))
            expected, got = (run(op, inputs, size=size, **attrs) for run in (call, device_call))
            if not all(map(same_bits, got, expected)):
                failures.append(f"{number} {op} {dtype} {size}: {difference(got, expected)}")
    fail_if_any(failures, CASES)
