"""Launches that are queued again with other memory must use that memory."""

from __future__ import annotations

from typing import Any

import emulated_call
import pytest
import torch
from cpu_comparison import agree
from emulated_call import emulate, on_cpu, same_bits
from emulated_device import HostDevice
from torch import Tensor

SIZE, ROWS = 300, 40


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """Make all calls of a test use the same device."""
    device = HostDevice()
    monkeypatch.setattr(emulated_call, "HostDevice", lambda seed: device)
    return device


def check(op: str, **arguments: Any) -> None:
    for got, expected in zip(emulate(op, arguments), on_cpu(op, arguments), strict=True):
        assert same_bits(got, expected)


def lists(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments, and a buffer in which both overlap."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS, (SIZE,), generator=draw)
    return ids, torch.randint(0, ROWS, (SIZE,), generator=draw), torch.randint(0, ROWS, (SIZE + 8,), generator=draw)


def test_inputs_that_share_memory() -> None:
    """One list twice, then two lists, then two joint lists, and again."""
    grad = torch.randn((ROWS, 4), generator=torch.Generator().manual_seed(1))
    for op in ("SparseSegmentSumGrad", "SparseSegmentMeanGrad"):
        for seed in range(2):
            ids, segments, joint = lists(seed)
            for pair in (
                (ids, ids),
                (ids, segments),
                (joint[:-8], joint[8:]),
                (segments, ids),
                (joint[8:], joint[:-8]),
            ):
                check(op, grad=grad, indices=pair[0], segment_ids=pair[1], output_dim0=ROWS)


def test_plans_that_share_memory() -> None:
    """Plans with one array twice, then with two arrays."""
    grad = torch.randn((ROWS, 4), generator=torch.Generator().manual_seed(1))
    every, counts = torch.arange(ROWS), torch.ones(ROWS, dtype=torch.int64)
    for op in ("PlannedSparseSegmentMeanGrad", "PlannedSparseSegmentMeanGradV2"):
        for rows, starts, segments in (
            (every, every, every),
            (every * 2, every, every.flip(0)),
            (every, every.clone(), every),
            (every * 3, every.clone(), every.clone()),
        ):
            plan = {"rows": rows, "starts": starts, "segments": segments, "positions": every, "counts": counts}
            check(op, grad=grad, **plan, num_rows=3 * ROWS)


@pytest.mark.parametrize("order", ["sequential", "blocked"])
@pytest.mark.parametrize("op", ["PlannedSparseSegmentSumGrad", "PlannedSparseSegmentSqrtNGradV2"])
def test_repeated_plans_of_one_shape(op: str, order: str) -> None:
    """Several plans of one shape, one of them invalid: it raises, and the next one is unaffected."""
    starts, size = torch.tensor([0, 70, 71, 2000]), 2100
    for turn in range(4):
        draw = torch.Generator().manual_seed(turn)
        segments = torch.randint(0, 9, (size,), generator=draw)
        plan = {
            "rows": torch.randperm(20, generator=draw)[:4].sort().values, "starts": starts + 0, "segments": segments,
            "positions": torch.arange(size), "counts": segments.bincount(minlength=9), "num_rows": 20,
        }  # fmt: skip
        if turn == 2:
            segments[1500] = 9
        agree(op, grad=torch.randn((9, 3), generator=draw), **plan, attrs={"order": order})


@pytest.mark.parametrize("op", ["SparseSegmentMeanWithNumSegments", "WeightedSparseSegmentMeanWithNumSegments"])
def test_kernels_reset_the_state_of_their_checks(op: str, device: HostDevice) -> None:
    """After each call, also one with bad ids, long bags or unsorted segments, the next one finds zeros."""
    draw = torch.Generator().manual_seed(3)
    ids, segments = torch.randint(0, ROWS, (900,), generator=draw), torch.arange(900) // 30
    data = torch.randn((ROWS, 4), generator=draw)
    weights = {"weights": torch.rand(900, generator=draw)} if op.startswith("Weighted") else {}
    for changed in (segments, segments.flip(0), segments // 20, segments + 1, segments - 1, segments):
        agree(op, data=data, indices=ids, segment_ids=changed, **weights, num_segments=30)
        assert device.launched
        assert not device.ledger._checks.any()
