"""The benchmarked calls of torch: `embedding_bag` with mode "mean", and its dense backward."""

from __future__ import annotations

import torch
from cases import Batch
from timing import Work
from torch.nn.functional import embedding_bag


def dense(batch: Batch) -> Work:
    """Return the backward pass alone; the forward pass ran before."""
    weight = batch.table.detach().requires_grad_()
    out = embedding_bag(batch.indices, weight, batch.offsets, mode="mean")
    return lambda: torch.autograd.grad(out, weight, batch.grad, retain_graph=True)[0]


def forward(batch: Batch) -> Work:
    """Return the forward pass without recording gradients."""

    def work() -> torch.Tensor:
        with torch.no_grad():
            return embedding_bag(batch.indices, batch.table, batch.offsets, mode="mean")

    return work


WORK = {"dense": dense, "forward": forward}
