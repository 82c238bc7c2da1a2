"""Run the op of a combiner on prepared bags, and decide whether its gradient is sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

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


REPLICAS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # tables of `replicate_rows`, and how they are looked up
REPLICATED = "rowgrad"  # their `_ddp_ignored`, which pickled copies have too; True if the user reduces gradients


def replica_of(weight: Tensor, sparse_in_ddp: bool = False) -> Any:
    """Return the replica of a table that `replicate_rows` registered; None for other tables.

    Args:
        weight: The table.
        sparse_in_ddp: Whether DistributedDataParallel knows that the gradient is sparse, and reduces it.

    Raises:
        InvalidArgumentError: If DistributedDataParallel would reduce the row gradient of this table as a dense one.
    """
    replica = REPLICAS.get(weight) if REPLICAS else None
    if replica is None and not sparse_in_ddp and is_in_ddp() and getattr(weight, "_ddp_ignored", None) is not True:
        raise make_error("rows_in_ddp")
    return replica


def reject_replicated(weight: Tensor, option: str) -> None:
    """Raise for an option that ranks with copies of a table do not support."""
    if not torch.compiler.is_compiling() and REPLICAS and weight in REPLICAS:
        raise make_error("replicated_unfit", value=option)


def lookup(weight: Tensor, bags: Bags, kind: str, rows: bool, plan: Plan | None, sparse_in_ddp: bool = False) -> Tensor:
    """Run the op of a combiner on prepared bags."""
    if plan is not None and plan.num_segments != bags.num_bags:
        raise make_error("plan_unfit", value=f"{plan.num_segments} bags", bound=bags.num_bags)
    rows = rows and not torch.compiler.is_compiling()  # traced gradients are dense
    if rows and weight.requires_grad and torch.is_grad_enabled():
        replica = replica_of(weight, sparse_in_ddp) if weight.is_leaf else None
        if replica is not None:
            exchanged: Tensor = replica.look_up(weight, bags, kind)
            return exchanged
        keep_coalesced(weight)
    prefix = "" if bags.weights is None else "Weighted"
    op = OPS[f"{prefix}SparseSegment{kind}WithNumSegments"]
    weights = () if bags.weights is None else (bags.weights,)
    options: dict[str, Any] = {} if not rows and plan is None else {"sparse_gradient": rows, "plan": plan}
    result: Tensor = op(weight, bags.indices, bags.segment_ids, *weights, bags.num_bags, **options)
    return result


def gather_unique(weight: Tensor, ids: Tensor, rows: bool, sparse_in_ddp: bool) -> Tensor:
    """Return the rows of distinct ascending ids; a row-sparse gradient is coalesced."""
    if rows:
        numbers = torch.arange(ids.shape[0], dtype=ids.dtype, device=ids.device)
        return lookup(weight, Bags(ids, numbers, ids.shape[0]), "Sum", True, None, sparse_in_ddp)
    gathered: Tensor = OPS["GatherRows"](weight, ids, gradient="dense")
    return gathered
