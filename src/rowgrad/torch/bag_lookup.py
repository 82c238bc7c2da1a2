"""Run the op of a combiner on prepared bags, and decide whether its gradient is sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import make_error
from ..plan import Plan
from ..raw_ops import OPS
from .bags import Bags
from .row_gradient import keep_coalesced


def check_bags(bags: Bags, num_rows: int) -> None:
    """Validate ids and segment ids without a lookup. On GPUs, faults are raised as by all kernels."""
    ids = bags.indices
    if torch.compiler.is_compiling():  # an op whose result is unused would be removed
        torch._assert_async(((ids >= 0) & (ids < num_rows)).all(), "an id is out of range")
        return
    rows = torch.empty((num_rows, 0), device=ids.device)
    OPS["SparseSegmentSumWithNumSegments"](rows, ids, bags.segment_ids, bags.num_bags)


def is_in_ddp() -> bool:
    """Return whether a forward pass of DistributedDataParallel is running."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    return torch.nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None


def may_be_sparse(sparse_in_ddp: bool) -> bool:
    """Return whether gradients may be sparse: traced ones are dense, and DDP supports only those it knows of."""
    return not torch.compiler.is_compiling() and (sparse_in_ddp or not is_in_ddp())


def lookup(weight: Tensor, bags: Bags, kind: str, rows: bool, plan: Plan | None, sparse_in_ddp: bool = False) -> Tensor:
    """Run the op of a combiner on prepared bags."""
    rows = rows and may_be_sparse(sparse_in_ddp)
    if rows and weight.is_leaf and weight.requires_grad and torch.is_grad_enabled():
        keep_coalesced(weight)
    if plan is not None and plan.num_segments != bags.num_bags:
        raise make_error("plan_unfit", value=f"{plan.num_segments} bags", bound=bags.num_bags)
    prefix = "" if bags.weights is None else "Weighted"
    op = OPS[f"{prefix}SparseSegment{kind}WithNumSegments"]
    weights = () if bags.weights is None else (bags.weights,)
    options: dict[str, Any] = {} if not rows and plan is None else {"sparse_gradient": rows, "plan": plan}
    result: Tensor = op(weight, bags.indices, bags.segment_ids, *weights, bags.num_bags, **options)
    return result


def gather_unique(weight: Tensor, ids: Tensor, rows: bool) -> Tensor:
    """Return the rows of distinct ascending ids; a row-sparse gradient is coalesced."""
    if rows:
        numbers = torch.arange(ids.shape[0], dtype=ids.dtype, device=ids.device)
        return lookup(weight, Bags(ids, numbers, ids.shape[0]), "Sum", True, None, True)
    gathered: Tensor = OPS["GatherRows"](weight, ids, gradient="dense")
    return gathered
