"""Updates inside backward: the optimizer that holds a fused table changes it as soon as its gradient is known.

The protocol with `rowgrad.torch.optim`: an optimizer's constructor puts a reference to itself into
`weight.rowgrad_optimizer`; backward calls its `update_from_bags` and sets `weight.rowgrad_pending`; `step()` clears it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ..errors import refuse
from ..lookup_options import COMBINERS
from ..plan import Plan
from .autograd import TABLE
from .bags import Bags
from .functional import is_in_ddp, lookup


class FusedWeight(torch.nn.Parameter):
    """A parameter whose gradient is used up inside backward: there is none to read, clip or accumulate."""

    rowgrad_fused = True
    rowgrad_pending = False
    rowgrad_optimizer: Any = None
    rowgrad_waiting: Any = None  # a weak reference to the lookup that has not come back

    @property
    def grad(self) -> None:
        """None; between backward and step, where somebody might want to clip it, an error."""
        if self.rowgrad_pending:
            raise refuse("fused_gradient")

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            raise refuse("fused_gradient")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # torch would make it a plain parameter; what is between two steps stays behind.
        return _restored, (self.data, self.requires_grad)


def _restored(data: Tensor, requires_grad: bool) -> FusedWeight:
    return FusedWeight(data, requires_grad)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: FusedWeight, weights: Tensor | None, bags: Bags, kind: str, plan: Plan | None) -> Any:
        waiting = weight.rowgrad_waiting() if weight.rowgrad_waiting is not None else None
        if waiting is not None:
            raise refuse("fused_waiting")
        weight.rowgrad_waiting = weakref.ref(ctx)
        ctx.weight, ctx.kind, ctx.plan, ctx.num_bags = weight, kind, plan, bags.num_bags
        ctx.version = weight._version
        ctx.save_for_backward(bags.indices, bags.segment_ids, weights)
        return lookup(weight.detach(), bags, kind, False, None)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        (y,) = ys
        weight, kind = ctx.weight, ctx.kind
        indices, segment_ids, weights = ctx.saved_tensors
        optimizer = weight.rowgrad_optimizer() if weight.rowgrad_optimizer is not None else None
        if optimizer is None:
            raise refuse("fused_no_optimizer")
        if torch.is_grad_enabled():
            raise refuse("fused_unfit", value="create_graph=True")
        if weight.rowgrad_pending:
            raise refuse("fused_twice")
        weight.rowgrad_waiting = None
        to_weights = None
        if weights is not None and ctx.needs_input_grad[1]:
            # Of the table as it was in the forward pass, so before it changes.
            if weight._version != ctx.version:
                raise refuse("fused_changed")
            to_weights = _weights_gradient(weight, weights, indices, segment_ids, ctx.num_bags, kind, y)
        combiner = next(name for name, k in COMBINERS.items() if k == kind)
        optimizer.update_from_bags(
            weight, y.contiguous(), indices, segment_ids, combiner, weights=weights, plan=ctx.plan
        )
        weight.rowgrad_pending = True
        return None, to_weights, None, None, None


def _weights_gradient(
    weight: Tensor, weights: Tensor, indices: Tensor, segment_ids: Tensor, num_bags: int, kind: str, y: Tensor
) -> Tensor:
    with torch.enable_grad():
        leaf = weights.detach().requires_grad_()
        result = TABLE[f"WeightedSparseSegment{kind}WithNumSegments"](
            weight.detach(), indices, segment_ids, leaf, num_bags
        )
    return torch.autograd.grad(result, leaf, y)[0]


def fused_bags(weight: FusedWeight, bags: Bags, kind: str, plan: Plan | None) -> Tensor:
    """One lookup whose backward pass is the update."""
    _refuse_surroundings()
    if plan is not None:
        for what, value, bound in (
            ("ids", plan.num_ids, bags.indices.shape[0]),
            ("bags", plan.num_segments, bags.num_bags),
            ("rows", plan.num_rows, weight.shape[0]),
        ):
            if value != bound:
                raise refuse("plan_unfit", value=f"{value} {what}", bound=bound)
    return _Fused.apply(weight, bags.weights, bags, kind, plan)


def _refuse_surroundings() -> None:
    if torch.compiler.is_compiling():
        raise refuse("fused_unfit", value="torch.compile")
    if torch._C._are_functorch_transforms_active():
        raise refuse("fused_unfit", value="torch.func")
    if is_in_ddp():
        raise refuse("fused_unfit", value="DistributedDataParallel")
