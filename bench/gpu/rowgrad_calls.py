"""The benchmarked calls of rowgrad; the only file here that imports rowgrad.

Each function takes a batch and returns a callable without arguments. The functions in `KERNELS` launch kernels on
preallocated buffers, as a captured step would. Those in `CALLS` are the functions that a user calls. `MissingError`
says what rowgrad does not support yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Batch
from timing import Work

MEAN, BLOCKED = 1, 1


class MissingError(ImportError):
    """A part of rowgrad that the benchmark needs is not available."""


def _device(batch: Batch) -> Any:
    from rowgrad.cuda.device import device_of

    if not batch.grad.is_cuda:
        raise MissingError("the kernels need a CUDA device")
    return device_of(batch.grad.device.index or 0)


def dense_grad(batch: Batch) -> Work:
    """Return the dense gradient of mean bags, into one table."""
    out = torch.empty_like(batch.table)
    run = _gradient(batch, unique=False, out=out)

    def work() -> torch.Tensor:
        run()
        return out

    return work


def rows_grad(batch: Batch) -> Work:
    """Return the same by unique rows; their number stays on the device, so the result is not compared."""
    run = _gradient(batch, unique=True, out=None)

    def work() -> None:
        run()

    return work


def _gradient(batch: Batch, unique: bool, out: Any) -> Work:
    from rowgrad.cuda.sparse_segment import Gradient

    device = _device(batch)
    gradient = Gradient(
        device, batch.grad, batch.indices, batch.segment_ids, batch.case.V,
        reduce=MEAN, order=BLOCKED, unique=unique, out=out, report=_slot(device),
    )  # fmt: skip

    def work() -> Any:
        gradient.run()
        return None if unique else gradient.out

    return work


def _slot(device: Any) -> tuple[int, int, int]:
    """Return where kernels report faults."""
    from rowgrad._catalog.spec import CATALOG

    slot = device.ledger.take(CATALOG["SparseSegmentMeanGrad"], True)
    return slot, device.ledger.alarm, device.ledger.checks_of(slot)


def forward(batch: Batch) -> Work:
    """Return mean bags."""
    from rowgrad.cuda.sparse_segment import Forward

    device, out = _device(batch), torch.empty_like(batch.grad)
    made = Forward(
        device, batch.table, batch.indices, batch.segment_ids, batch.case.bags, reduce=MEAN, out=out,
        report=_slot(device),
    )  # fmt: skip

    def work() -> Any:
        made.run()
        return out

    return work


def dense_call(batch: Batch) -> Work:
    """`SparseSegmentMeanGrad`."""
    import rowgrad as rg

    args = (batch.grad, batch.indices, batch.segment_ids, batch.case.V)
    return lambda: rg.raw_ops.SparseSegmentMeanGrad(*args, order="blocked")


def rows_call(batch: Batch) -> Work:
    """`SparseSegmentMeanGradV2`."""
    import rowgrad as rg

    args = (batch.grad, batch.indices, batch.segment_ids, batch.case.V)
    return lambda: rg.raw_ops.SparseSegmentMeanGradV2(*args, order="blocked")


def forward_call(batch: Batch) -> Work:
    """`SparseSegmentMeanWithNumSegments`."""
    import rowgrad as rg

    args = (batch.table, batch.indices, batch.segment_ids, batch.case.bags)
    return lambda: rg.raw_ops.SparseSegmentMeanWithNumSegments(*args)


def planned(batch: Batch, kind: str) -> Work:
    """Return a gradient, `dense` or `rows`, with the ids sorted before timing starts."""
    import rowgrad as rg

    plan = rg.Plan(batch.indices, batch.segment_ids, batch.case.V, batch.case.bags)
    op = {"dense": rg.raw_ops.SparseSegmentMeanGrad, "rows": rg.raw_ops.SparseSegmentMeanGradV2}[kind]
    return lambda: op(batch.grad, order="blocked", plan=plan)


def fused(batch: Batch) -> Work:
    """Return one step of row-wise Adagrad fused with the gradient of mean bags."""
    from rowgrad.torch.optim import RowWiseAdagrad

    weight = torch.nn.Parameter(batch.table.clone())
    optimizer = RowWiseAdagrad([weight], lr=1e-6)
    args = (weight, batch.grad, batch.indices, batch.segment_ids, "mean")
    return lambda: optimizer.update_from_bags(*args, order="blocked")


KERNELS: dict[str, Callable[[Batch], Work]] = {"dense": dense_grad, "rows": rows_grad, "forward": forward}
CALLS: dict[str, Callable[[Batch], Work]] = {
    "dense": dense_call,
    "rows": rows_call,
    "forward": forward_call,
    "planned dense": lambda batch: planned(batch, "dense"),
    "planned rows": lambda batch: planned(batch, "rows"),
    "fused": fused,
}
