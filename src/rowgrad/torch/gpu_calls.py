"""Lookups and fused steps on a GPU, in one crossing into C++ each.

Only plain, valid calls take this way: everything else goes to the ops, which return the same bits and raise the errors.
So functions return None where they cannot do the job, and do not raise for an argument of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from .feature_lookup import is_eager, step_numbers
from .fused import (
    FusedWeight,
    Pending,
    _Fused,
    is_only_optimizer,
    remove_pending,
    stored_grad,
)
from .row_gradient import keep_coalesced
from .saved_call import SavedCall

_REDUCTION = {"Sum": int(Reduction.sum), "Mean": int(Reduction.mean), "SqrtN": int(Reduction.sqrtn)}
_OPS = {kind: CATALOG[f"SparseSegment{kind}WithNumSegments"] for kind in _REDUCTION}
_SEGMENTS, _OFFSETS, _OFFSETS_WITH_END = range(3)


class _Caller(NamedTuple):
    """What errors of a call name."""

    name: str
    input_names: tuple[str, ...]


LOOKUP = _Caller("EmbeddingBag", (*_OPS["Sum"].input_names, *CATALOG["SegmentIdsFromOffsets"].input_names))
STEP = _Caller("apply_bags", ("table", "grad", "indices", "segment_ids"))


def run_op(op: Op, device: Any, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
    """Run an op whose calls need no preparation; None for all others."""
    reduction = _REDUCTION_OF_OP.get(op.name)
    if reduction is None or device.waits():
        return None
    data, ids, segments, bags = arguments.values()
    if type(bags) is not int:
        return None
    out = device.calls.sum_bags(op, data, ids, segments, _SEGMENTS, bags, reduction, False)
    return None if out is None else (out,)


_REDUCTION_OF_OP = {op.name: constants_of(op, op.attrs)[0] for op in _OPS.values()}


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


def fused_step(optimizer: Any, group: Mapping[str, Any], param: FusedWeight, index: int) -> Iterator[None] | None:
    """Return the step of a table with its pending gradient; None if it has to be prepared by the ops."""
    waiting = param.rowgrad_pending
    if len(waiting) != 1 or type(pending := waiting[0]) is not Pending or pending.batch is None:
        return None
    if group["maximize"] is not False or group["capturable"] is not False or devices.is_captured():
        return None
    device, spec = devices.device_for(param), RULES[optimizer.rule]
    if device is None or device.waits() or stored_grad(param) is not None or not is_only_optimizer(param):
        return None
    state = optimizer.state[param]
    if "step" not in state:
        optimizer._next_step(group, param, index)  # creates the state
    count = state["step"]
    if type(count) is not int:
        return None
    cache = optimizer.__dict__.setdefault("_joint_cache", {})
    numbers = step_numbers(optimizer, group, param, index, param.dtype, cache)
    random = bool(numbers[2])
    seed = (group["seed"] + index) % 2**63 if random else 0
    y, bags, kind = pending.batch
    slots = [state[slot.name] for slot in spec.slots]
    with DisableTorchFunctionSubclass():
        step = device.calls.prepare_step(
            STEP, spec.number, param, slots, y, bags.indices, bags.segment_ids, numbers[4], bool(numbers[1]), random,
            seed, count + 1, _REDUCTION[kind], int(Order[devices.default_order(param)]),
        )  # fmt: skip
    return None if step is None else _run_step(device, step, param, pending, state)


def _run_step(device: Any, step: Any, param: FusedWeight, pending: Pending, state: dict[str, Any]) -> Iterator[None]:
    yield
    if not device.calls.run_step(step):
        device.ledger.raise_reported()
        raise make_error("out_of_memory_between")
    with DisableTorchFunctionSubclass():
        increment_version(param)  # so that autograd rejects tensors it saved before
    state["step"] += 1
    remove_pending([param], pending)
