"""Lookups and fused steps on a GPU, in one crossing into C++ each.

Only plain, valid calls take this way: everything else goes to the ops, which return the same bits and raise the errors.
So functions return None where they cannot do the job, and do not raise for an argument of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.autograd.graph import increment_version

from .._catalog.enums import Order, Reduction
from .._catalog.rules import RULES
from .._catalog.spec import CATALOG, Op
from .._runtime.numpy_runner import constants_of
from ..errors import make_error
from . import devices
from .autograd import _PlainFunction
from .bag_lookup import REPLICAS, is_in_ddp
from .bags import Bags
from .device_numbers import OnDevice, numbers_on_device
from .feature_lookup import step_numbers
from .fused import (
    FusedWeight,
    Pending,
    _Fused,
    is_only_optimizer,
    remove_pending,
    stored_grad,
)
from .row_gradient import keep_coalesced, valid_rows
from .saved_call import SavedCall
from .tensors import is_eager

_REDUCTION = {"Sum": int(Reduction.sum), "Mean": int(Reduction.mean), "SqrtN": int(Reduction.sqrtn)}
_OPS = {kind: CATALOG[f"SparseSegment{kind}WithNumSegments"] for kind in _REDUCTION}
_SEGMENTS, _OFFSETS, _OFFSETS_WITH_END = range(3)


class _Caller(NamedTuple):
    """What errors of a call name."""

    name: str
    input_names: tuple[str, ...]


LOOKUP = _Caller("EmbeddingBag", (*_OPS["Sum"].input_names, *CATALOG["SegmentIdsFromOffsets"].input_names))
STEP = _Caller("apply_bags", ("table", "grad", "indices", "segment_ids"))
ROW_STEP = _Caller("apply_rows", ("table", "grad", "row_ids"))


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
    made = device.calls.row_gradient(op, *arguments.values(), reduction, order, False)
    if made is None:
        return None
    values, rows, count, slot = made
    number = int(count)
    device.ledger.raise_reported(slot)
    number = max(number, 0)
    if 2 * number < values.shape[0]:  # the rest of the memory is not worth keeping
        return values[:number].clone(), rows[:number].clone()
    return values[:number], rows[:number]


_REDUCTION_OF_OP = {
    op.name: constants_of(op, op.attrs)[0]
    for op in (*_OPS.values(), *(CATALOG[f"SparseSegment{kind}GradV2"] for kind in _REDUCTION))
}


def look_up(
    weight: Tensor, inputs: tuple[Any, ...], kind: str, rows: bool, fused: bool, sparse_in_ddp: bool
) -> Tensor | None:
    """Return the combined rows of bags by offsets, without converting offsets to segment ids."""
    ids, offsets, segment_ids, num_bags, _, has_end = inputs
    if segment_ids is not None or num_bags is not None or type(offsets) is not Tensor or not is_eager():
        return None
    device = devices.device_for(weight)
    if device is None or device.waits():
        return None
    recorded = weight.requires_grad and torch.is_grad_enabled()
    if recorded and (REPLICAS or is_in_ddp()):
        return None  # ranks may have to exchange gradients
    form = _OFFSETS_WITH_END if has_end else _OFFSETS
    with DisableTorchFunctionSubclass():
        found = device.calls.sum_bags(LOOKUP, weight, ids, offsets, form, 0, _REDUCTION[kind], recorded)
    if found is None or not recorded:
        result: Tensor | None = found
        return result
    out, segments = found
    bags = Bags(ids, segments, out.shape[0])
    if fused:
        return _FusedLookup.apply(weight, None, bags, kind, None, out)
    if rows:
        keep_coalesced(weight)
    op = _OPS[kind]
    arguments = {"data": weight, "indices": ids, "segment_ids": segments, "num_segments": bags.num_bags}
    attrs = {**op.attrs, "sparse_gradient": rows}
    return _Lookup.apply(op, arguments, attrs, weight, out)


class _FusedLookup(_Fused):
    """A lookup of a fused table whose output is computed."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, weight: Any, weights: None, bags: Bags, kind: str, plan: None, out: Tensor
    ) -> Tensor:
        ctx.weight, ctx.kind, ctx.plan, ctx.num_bags = weight, kind, plan, bags.num_bags
        ctx.version = weight._version
        ctx.save_for_backward(bags.indices, bags.segment_ids, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        return *_Fused.backward(ctx, *ys), None


class _Lookup(_PlainFunction):
    """A lookup of an unfused table whose output is computed."""

    @staticmethod
    def forward(ctx: Any, op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], _: Any, out: Tensor) -> Tensor:
        ctx.saved_call = saved_call = SavedCall(op, attrs, frozenset({"data"}))
        ctx.save_for_backward(*saved_call.save(arguments, (out,)))
        return out

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        return *_PlainFunction.backward(ctx, *ys), None


class _Numbers(NamedTuple):
    """The state of a parameter, and the numbers of its next step."""

    hyperparameters: Any  # an array, whose memory is at `address`
    state: dict[str, Any]
    slots: list[Tensor]
    address: int
    lazy: bool
    random: bool
    seed: int
    step: int
    tensors: OnDevice


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
    if tensors.steps is None and devices.is_captured() and (spec.fades or group["stochastic_rounding"]):
        return None  # a graph would repeat the step's number, which raises
    cache = optimizer.__dict__.setdefault("_joint_cache", {})
    array, lazy, random, _, address = step_numbers(optimizer, group, param, index, param.dtype, cache)
    seed = (group["seed"] + index) % 2**63 if random else 0
    slots = [state[slot.name] for slot in spec.slots]
    return _Numbers(array, state, slots, address, bool(lazy), bool(random), seed, count + 1, tensors)


def fused_step(optimizer: Any, group: Mapping[str, Any], param: FusedWeight, index: int) -> Iterator[None] | None:
    """Return the step of a table with its pending gradient; None if it has to be prepared by the ops."""
    waiting = param.rowgrad_pending
    if len(waiting) != 1 or type(pending := waiting[0]) is not Pending or pending.batch is None:
        return None
    device = devices.device_for(param)
    if device is None or device.waits() or stored_grad(param) is not None or not is_only_optimizer(param):
        return None
    numbers = _numbers_of(optimizer, group, param, index)
    if numbers is None:
        return None
    y, bags, kind = pending.batch
    _, _, slots, *rest = numbers
    with DisableTorchFunctionSubclass():
        step = device.calls.prepare_step(
            STEP, RULES[optimizer.rule].number, param, slots, y, bags.indices, bags.segment_ids, *rest,
            _REDUCTION[kind], int(Order[devices.default_order(param)]),
        )  # fmt: skip
    if step is None:
        return None
    return _run(device, device.calls.run_step, step, param, numbers, lambda: remove_pending([param], pending))


def row_step(optimizer: Any, group: Mapping[str, Any], param: Any, index: int, grad: Tensor) -> Iterator[None] | None:
    """Return the step of a table with its row-sparse gradient; None if it has to be prepared by the ops."""
    device = devices.device_for(param)
    if device is None or device.waits():
        return None
    with DisableTorchFunctionSubclass():
        if grad.layout is not torch.sparse_coo or grad.sparse_dim() != 1 or grad.shape != param.shape:
            return None
        count = None
        if not grad.is_coalesced():
            count = valid_rows(grad)
            if count is None:
                return None
        numbers = _numbers_of(optimizer, group, param, index)
        if numbers is None:
            return None
        _, _, slots, *rest = numbers
        step = device.calls.prepare_rows(
            ROW_STEP, RULES[optimizer.rule].number, param, slots, grad._values(), grad._indices(), count, *rest
        )
    return None if step is None else _run(device, device.calls.run_rows, step, param, numbers, lambda: None)


def _run(
    device: Any, run: Callable[[Any], bool], step: Any, param: Tensor, numbers: _Numbers, done: Callable[[], None]
) -> Iterator[None]:
    yield
    if not run(step):
        device.ledger.raise_reported()
        raise make_error("out_of_memory_between")
    with DisableTorchFunctionSubclass():
        increment_version(param)  # so that autograd rejects tensors it saved before
    if type(numbers.state["step"]) is int:  # else the kernels have counted it
        numbers.state["step"] += 1
    done()
