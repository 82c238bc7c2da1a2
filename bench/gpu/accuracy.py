"""Check results before their times count: the error against the same sum in float64."""

from __future__ import annotations

from typing import Any

import torch
from cases import Batch
from torch import Tensor

# Relative to the largest element. 16-bit results are rounded once, float32 sums many times.
ALLOWED = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}


def expected(batch: Batch, kind: str) -> Tensor:
    """Return the dense gradient, or the bags, in float64 by torch's ops."""
    wide, segments = torch.float64, batch.segment_ids.long()
    counts = torch.bincount(segments, minlength=batch.case.bags).clamp_(min=1).to(wide)
    if kind == "forward":
        sums = torch.zeros(batch.case.bags, batch.case.D, dtype=wide, device=batch.grad.device)
        for part in torch.arange(batch.N, device=segments.device).split(1 << 21):
            sums.index_add_(0, segments[part], batch.table[batch.indices[part].long()].to(wide))
        return sums / counts[:, None]
    scaled = batch.grad.to(wide) / counts[:, None]
    table = torch.zeros(batch.case.V, batch.case.D, dtype=wide, device=batch.grad.device)
    for part in torch.arange(batch.N, device=segments.device).split(1 << 21):
        table.index_add_(0, batch.indices[part].long(), scaled[segments[part]])
    return table


def error_of(got: Any, kind: str, reference: Tensor) -> float:
    """Return the largest difference relative to the largest expected element."""
    if isinstance(got, tuple) and len(got) == 1:
        (got,) = got
    if kind.endswith("rows"):
        values, ids = got
        ids = ids.long()
        if ids.numel() and not bool((ids[1:] > ids[:-1]).all()):
            return float("inf")
        without_listed = reference.clone()
        without_listed[ids] = 0  # rows that are not listed must have no gradient
        differences = [_largest(values.to(reference.dtype) - reference[ids]), _largest(without_listed)]
    else:
        if tuple(got.shape) != tuple(reference.shape):
            return float("inf")
        differences = [_largest(got.to(reference.dtype) - reference)]
    return max(differences) / max(_largest(reference), 1e-30)


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
