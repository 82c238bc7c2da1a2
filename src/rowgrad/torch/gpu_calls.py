"""Lookups and fused steps on a GPU, in one crossing into C++ each.

Only plain, valid calls take this way: everything else goes to the ops, which return the same bits and raise the errors.
So functions return None where they cannot do the job, and do not raise for an argument of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import increment_version

from .._catalog.enums import Order, Reduction
from .._catalog.rules import RULES
from .._catalog.spec import CATALOG, Op
from .._runtime.numpy_runner import constants_of
from ..errors import make_error
from ..lookup import COMBINERS
from . import devices
from .autograd import named
from .bag_lookup import REPLICAS, is_in_ddp
from .bags import Bags
from .device_numbers import numbers_on_device
from .feature_lookup import step_numbers
from .fused import (
    _COMBINER,
    FusedWeight,
    PendingBags,
    add_pending,
    bag_gradients,
    destination,
    is_only_optimizer,
    remove_pending,
    stored_grad,
)
from .gpu_gradients import row_gradient
from .row_gradient import keep_coalesced, valid_rows
from .saved_call import Like
from .tensors import is_eager

_ORDER = {order.name: int(order) for order in Order}
_DATA = frozenset({"data"})
_REDUCTION = {reduction.name: int(reduction) for reduction in Reduction}
_OPS = {kind: CATALOG[f"SparseSegment{kind}WithNumSegments"] for kind in COMBINERS.values()}
_SEGMENTS, _OFFSETS, _OFFSETS_WITH_END = range(3)


class _Caller(NamedTuple):
    """What errors of a call name."""

    name: str
    input_names: tuple[str, ...]


LOOKUP = _Caller("EmbeddingBag", (*_OPS["Sum"].input_names, *CATALOG["SegmentIdsFromOffsets"].input_names))
STEP = _Caller("apply_bags", ("table", "grad", "indices", "segment_ids"))
ROW_STEP = _Caller("apply_rows", ("table", "grad", "row_ids"))
_DENSE_STEP = _Caller("apply_all", ("table", "grad"))


def run_op(op: Op, device: Any, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
    """Run an op whose calls need no preparation; None for all others."""
    reduction = _REDUCTION_OF_OP.get(op.name)
    if reduction is None or device.waits():
        return None
    data, ids, segments, number = arguments.values()
    if type(number) is not int:
        return None
    if "order" in attrs:
        return _unique_rows(op, device, arguments, reduction, int(Order[attrs["order"]]))
    out = device.calls.sum_bags(op, data, ids, segments, _SEGMENTS, number, reduction, False)
    return None if out is None else (out,)


def _unique_rows(
    op: Op, device: Any, arguments: Mapping[str, Any], reduction: int, order: int
) -> tuple[Tensor, ...] | None:
    """Return the gradient by unique rows; waits for their number."""
    if devices.is_captured():
        return None
    made = device.calls.unique_rows(op, *arguments.values(), reduction, order)
    if made is None:
        return None
    values, rows, number, slot = made
    device.ledger.raise_reported(slot)
    if 2 * number < values.shape[0]:  # the rest of the memory is not worth keeping
        return values[:number].clone(), rows[:number].clone()
    return values[:number], rows[:number]


_REDUCTION_OF_OP = {
    op.name: constants_of(op, op.attrs)[0]
    for op in (*_OPS.values(), *(CATALOG[f"SparseSegment{kind}GradV2"] for kind in _OPS))
}


class _Call:
    """A recorded lookup, and what its backward pass needs."""

    __slots__ = ("ids", "kind", "num_bags", "out", "rows", "segments", "weight")

    def __init__(self, weight: Any, kind: str, ids: Tensor, segments: Tensor, out: Tensor, rows: bool) -> None:
        self.weight, self.kind, self.ids, self.segments, self.out, self.rows = weight, kind, ids, segments, out, rows
        self.num_bags = out.shape[0]

    def save(self, ctx: Any) -> Tensor:
        """Save the ids, so that autograd finds out if they are changed; return the output."""
        ctx.call = self
        ctx.save_for_backward(self.ids, self.segments)
        out = self.out
        del self.ids, self.segments, self.out  # `ctx` has them
        return out


def look_up(
    weight: Tensor, mode: str, ids: Tensor, offsets: Any, has_end: bool, rows: bool, fused: bool
) -> Tensor | None:
    """Return the combined rows of bags by offsets, without converting offsets to segment ids.

    Args:
        weight: The table.
        mode: "mean", "sum" or "sqrtn".
        ids: The ids of all bags.
        offsets: Where bags begin.
        has_end: Whether offsets end with the number of ids.
        rows: Whether the gradient of the table is row-sparse.
        fused: Whether the table is fused.
    """
    if type(offsets) is not Tensor or not is_eager():
        return None
    device = devices.device_for(weight)
    if device is None or device.waits():
        return None
    recorded = weight.requires_grad and torch.is_grad_enabled()
    if recorded and (REPLICAS or is_in_ddp()):
        return None  # ranks may have to exchange gradients
    bounds = _OFFSETS_WITH_END if has_end else _OFFSETS
    with DisableTorchFunctionSubclass():
        found = device.calls.sum_bags(LOOKUP, weight, ids, offsets, bounds, 0, _REDUCTION[mode], recorded)
        if found is None or not recorded:
            result: Tensor | None = found
            return result
        out, segments = found
        call = _Call(weight, COMBINERS[mode], ids, segments, out, rows)
        if fused:
            return _FusedLookup.apply(call, weight)
        if rows:
            keep_coalesced(weight)
        return _Lookup.apply(call, weight)


@named("rowgrad::EmbeddingBag")
class _Lookup(_SingleLevelFunction):
    """A lookup of an unfused table whose output is computed."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, call: _Call, weight: Any) -> Tensor:
        call.weight = Like(weight)  # only its shape and dtype matter
        return call.save(ctx)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        call: _Call = ctx.call
        ids, segments = ctx.saved_tensors
        if call.rows:
            arguments = {"data": call.weight, "indices": ids, "segment_ids": segments}
            found = row_gradient(_OPS[call.kind], arguments, ys[0])
            if found is not None:
                return None, found
        bags = Bags(ids, segments, call.num_bags)
        return None, bag_gradients(_DATA, call.weight, ys[0], bags, call.kind, call.rows)["data"]


@named("rowgrad::FusedLookup")
class _FusedLookup(_SingleLevelFunction):
    """A lookup of a fused table whose output is computed."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, call: _Call, _: Any) -> Tensor:
        return call.save(ctx)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        call: _Call = ctx.call
        weight: Any = call.weight
        target = destination(ctx, weight)
        ids, segments = ctx.saved_tensors
        if target == "nowhere":
            return None, None
        y, bags = ys[0].contiguous(), Bags(ids, segments, call.num_bags)
        if target == "step":
            add_pending([weight], PendingBags(weight, y, bags, call.kind, None))
            return None, None
        return None, bag_gradients(_DATA, weight, y, bags, call.kind)["data"]


class _Numbers(NamedTuple):
    """The state of a parameter, and the numbers of its next step as the launcher takes them."""

    state: dict[str, Any]
    slots: list[Tensor]
    numbers: tuple[Any, ...]
    array: Any  # whose memory the launcher reads


class LoneStep:
    """A validated step of one table, not yet queued.

    Args:
        device: The device of the table.
        queue: Queues the step.
        step: The step in C++.
        param: The table.
        numbers: The numbers of the step.
        gradient: The gradient, whose memory the step reads.
        pending: What the step consumes.
    """

    __slots__ = ("device", "gradient", "numbers", "param", "pending", "queue", "step")

    def __init__(
        self, device: Any, queue: Callable[[Any], bool], step: Any, param: Tensor, numbers: _Numbers, gradient: Any,
        pending: Any = None,
    ) -> None:  # fmt: skip
        self.device, self.queue, self.step, self.param, self.pending = device, queue, step, param, pending
        self.numbers, self.gradient = numbers, gradient  # keep tensors alive that the step reads

    def run(self) -> None:
        """Update the table."""
        if not self.queue(self.step):
            self.device.ledger.raise_reported()
            raise make_error("out_of_memory_between")
        with DisableTorchFunctionSubclass():
            increment_version(self.param)  # so that autograd rejects tensors it saved before
        state = self.numbers.state
        if type(state["step"]) is int:  # else the kernels have counted it
            state["step"] += 1
        if self.pending is not None:
            remove_pending([self.param], self.pending)


def _numbers_of(optimizer: Any, group: Mapping[str, Any], param: Any, index: int) -> _Numbers | None:
    """Return the numbers of a parameter's next step; None if it has to be prepared by the ops."""
    if group["maximize"] is not False:
        return None
    spec, state = RULES[optimizer.rule], optimizer.state[param]
    if "step" not in state:
        optimizer._next_step(group, param, index)  # creates the state
    tensors = numbers_on_device(group, state, param)
    count = 0 if tensors.steps is not None else state["step"]
    if type(count) is not int:
        return None
    if tensors.steps is None and (spec.fades or group["stochastic_rounding"]) and devices.is_captured():
        return None  # a graph would repeat the step's number, which raises
    cache = optimizer.__dict__.setdefault("_joint_cache", {})
    array, lazy, random, _, address = step_numbers(optimizer, group, param, index, param.dtype, cache)
    seed = (group["seed"] + index) % 2**63 if random else 0
    slots = [state[slot.name] for slot in spec.slots]
    return _Numbers(state, slots, (address, bool(lazy), bool(random), seed, count + 1, tensors), array)


def fused_step(optimizer: Any, group: Mapping[str, Any], param: FusedWeight, index: int) -> LoneStep | None:
    """Return the step of a table with its pending gradient; None if it has to be prepared by the ops."""
    waiting = param.rowgrad_pending
    if len(waiting) != 1 or type(pending := waiting[0]) is not PendingBags or pending.plan is not None:
        return None
    y, bags = pending.y, pending.bags
    if bags.weights is not None:
        return None
    device = devices.device_for(param)
    if device is None or device.waits() or stored_grad(param) is not None or not is_only_optimizer(param):
        return None
    found = _numbers_of(optimizer, group, param, index)
    if found is None:
        return None
    with DisableTorchFunctionSubclass():
        prepared = device.calls.prepare_step(
            STEP, RULES[optimizer.rule].number, param, found.slots, y, bags.indices, bags.segment_ids, *found.numbers,
            _REDUCTION[_COMBINER[pending.kind]], _ORDER[devices.default_order(param)],
        )  # fmt: skip
    if prepared is None:
        return None
    return LoneStep(device, device.calls.run_step, prepared, param, found, y, pending)


def grad_step(optimizer: Any, group: Mapping[str, Any], param: Any, index: int, grad: Tensor) -> LoneStep | None:
    """Return the step of a parameter with its stored gradient; None if it has to be prepared by the ops."""
    device = devices.device_for(param)
    if device is None or device.waits():
        return None
    with DisableTorchFunctionSubclass():
        if grad.shape != param.shape:
            return None
        caller, values, ids, count = _DENSE_STEP, grad, None, None
        if grad.layout is not torch.strided:
            if grad.layout is not torch.sparse_coo or grad.sparse_dim() != 1:
                return None
            if not grad.is_coalesced():
                count = valid_rows(grad)
                if count is None:
                    return None
            caller, values, ids = ROW_STEP, grad._values(), grad._indices()
        found = _numbers_of(optimizer, group, param, index)
        if found is None:
            return None
        prepared = device.calls.prepare_rows(
            caller, RULES[optimizer.rule].number, param, found.slots, values, ids, count, *found.numbers
        )
    if prepared is None:
        return None
    return LoneStep(device, device.calls.run_rows, prepared, param, found, (values, ids, count))
