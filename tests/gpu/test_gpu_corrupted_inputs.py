"""Corrupted inputs raise the CPU's error class and message, and the device computes correctly afterwards."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from gpu_calls import FLOATS, call, device_call, fail_if_any, need_device, result_or_error, same_bits, validating
from torch import Tensor

from rowgrad._catalog.spec import CATALOG, INDEX, Op
from rowgrad.errors import ResourceExhaustedError
from samples import sample
from torch_arrays import to_torch

need_device()

CALLS = int(os.environ.get("ROWGRAD_GPU_TEST_CALLS", "10000"))  # fewer under a slow memory checker
OPS = tuple(op for op in CATALOG.values() if op.layer == "kernel" and op.name != "RowDot")  # it has no ids


def good(op: Op, draw: random.Random, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a valid call as tensors, with ids of either width, and its attributes."""
    sampled = sample(op.name, np.random.default_rng(draw.getrandbits(32)), np.float64)
    width = {t: draw.choice((torch.int32, torch.int64)) for t in op.types if op.types[t] == INDEX}
    inputs = {}
    for arg in op.inputs:
        value = sampled[arg.name]
        if arg.host:
            inputs[arg.name] = value.tolist() if isinstance(value, np.ndarray) else value
        else:
            tensor = to_torch(np.asarray(value))
            inputs[arg.name] = tensor.to(dtype if tensor.dtype.is_floating_point else width.get(arg.type, tensor.dtype))
    return inputs, {k: v for k, v in sampled.items() if k in op.attrs}


def values(draw: random.Random, dtype: torch.dtype) -> int:
    """Return ids near the bounds of small samples or of their dtype, except those that only make results huge."""
    limits = torch.iinfo(dtype)
    return draw.choice((-1, -2, 5, 6, 7, 8, 9, 1000, limits.min, limits.min + 1, limits.max))


def corrupted(op: Op, inputs: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], str]:
    """Return a copy with some inputs corrupted, and a description of the changes."""
    bad = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
    changes = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice([k for k, v in bad.items() if not (isinstance(v, Tensor) and v.dtype.is_floating_point)])
        value = bad[name]
        if not isinstance(value, Tensor):
            size = draw.choice((-1, 0, 1, 2, 3, -(2**31), -(2**40)))
            if isinstance(value, int):
                bad[name] = size
            else:
                at = draw.randrange(len(value))
                bad[name] = [size if i == at else v for i, v in enumerate(value)]
            changes.append(f"{name} {bad[name]}")
        elif value.numel() and value.dtype != torch.bool:
            corruption = draw.choice(("value", "value", "shuffled", "shorter"))
            if corruption == "value":
                at = draw.randrange(value.numel())
                value.view(-1)[at] = values(draw, value.dtype)
                changes.append(f"{name}[{at}] = {value.view(-1)[at].item()}")
            elif corruption == "shuffled":
                order = list(range(value.shape[0])) if value.ndim else [0]
                draw.shuffle(order)
                bad[name] = value[order] if value.ndim else value
                changes.append(f"{name} shuffled")
            elif value.ndim:
                bad[name] = value[: draw.randrange(value.shape[0])].clone()
                changes.append(f"{name} cut to {bad[name].shape[0]}")
    return bad, ", ".join(changes)


def test_corrupted_inputs_raise_the_errors_of_the_cpu() -> None:
    draw, failures, rejected = random.Random(21), [], 0
    with validating("sync"):
        for number in range(CALLS):
            op = OPS[number % len(OPS)]
            inputs, attrs = good(op, draw, draw.choice(FLOATS))
            bad, what = corrupted(op, inputs, draw)
            expected, wrong = result_or_error(call, op.name, bad, **attrs)
            if isinstance(wrong, ResourceExhaustedError):
                continue  # available memory differs between devices
            got, error = result_or_error(device_call, op.name, bad, **attrs)
            rejected += wrong is not None
            label = f"{number} {op.name}, {what}"
            if wrong is None and error is None:
                if not all(map(same_bits, got, expected)):
                    failures.append(f"{label}: {got}, not {expected}")
            elif wrong is None or error is None:
                failures.append(f"{label}: {error!r} here, {wrong!r} on the CPU")
            elif facts(error) != facts(wrong):
                failures.append(f"{label}: {facts(error)}, not {facts(wrong)}")
            if number % 50 == 0 and not is_correct(op, inputs, attrs):
                failures.append(f"{label}: a good call after it was wrong")
    assert rejected > CALLS // 4, f"only {rejected} raised"
    fail_if_any(failures, CALLS)


def is_correct(op: Op, inputs: dict[str, Any], attrs: dict[str, Any]) -> bool:
    """Return whether a valid call returns the CPU's bits."""
    got, error = result_or_error(device_call, op.name, inputs, **attrs)
    return error is None and all(map(same_bits, got, call(op.name, inputs, **attrs)))


def test_bad_ids_in_a_large_batch() -> None:
    """One bad id in a batch of many blocks: the error names the first in the order of the CPU's checks."""
    draw, failures, tried = random.Random(22), [], 0
    names = ("SparseSegmentMean", "SparseSegmentMeanGrad", "SparseSegmentSumGradV2", "GatherRows", "RowPlan")
    batches = {name: large(name, seed) for seed, name in enumerate(names)}
    with validating("sync"):
        for _ in range(40):
            for name in names:
                tried += 1
                inputs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in batches[name].items()}
                for _ in range(draw.choice((1, 2, 5))):
                    which = draw.choice([k for k in ("indices", "segment_ids") if k in inputs])
                    inputs[which][draw.randrange(inputs[which].shape[0])] = draw.choice((-1, 10**6, 2**62, -(2**62)))
                _, wrong = result_or_error(call, name, inputs)
                _, error = result_or_error(device_call, name, inputs)
                if facts(error) != facts(wrong) or wrong is None:
                    failures.append(f"{name}: {facts(error)}, not {facts(wrong)}")
    fail_if_any(failures, tried)


def facts(error: Any) -> tuple[Any, ...]:
    """Return what both devices must agree on."""
    return (type(error).__name__, getattr(error, "message", None), getattr(error, "position", None))


def large(name: str, seed: int) -> dict[str, Any]:
    """Return a valid batch of 100,000 ids."""
    seeded = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 5000, (100_000,), generator=seeded)
    segments = torch.randint(0, 3000, (100_000,), generator=seeded).sort().values
    if name == "GatherRows":
        return {"params": torch.randn(5000, 3, generator=seeded), "indices": ids}
    if name == "RowPlan":
        return {"indices": ids, "segment_ids": segments, "num_rows": 5000, "num_segments": 3000}
    if "Grad" not in name:
        return {"data": torch.randn(5000, 3, generator=seeded), "indices": ids, "segment_ids": segments}
    size = "dense_output_dim0" if name.endswith("V2") else "output_dim0"
    return {"grad": torch.randn(3000, 3, generator=seeded), "indices": ids, "segment_ids": segments, size: 5000}
