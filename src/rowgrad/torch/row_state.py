"""Optimizer steps of one torch parameter, with a dense, sparse or bag gradient.

A step is an iterator that yields once, after validation and before it writes. So an optimizer validates all parameters
before any of them changes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from .._catalog.spec import FLOATS, INDEX, PLAN
from ..errors import make_error
from ..optim import (
    RULES,
    Memory,
    Step,
    prepare_all,
    prepare_bags,
    prepare_planned,
    prepare_rows,
    slot_dtype,
    slot_shapes,
)
from ..plan import Plan
from . import devices
from .launch import readable
from .row_gradient import valid_rows
from .tensors import DTYPE, check_storage, is_plain, new_tensor

Tensor = Any  # torch's annotations lack the attributes used here
_DTYPE = {name: DTYPE[name] for name in (*FLOATS, *INDEX)}  # tables, gradients and slots; ids
_NAME = {dtype: name for name, dtype in _DTYPE.items()}


def check_param(rule: str, param: Tensor) -> None:
    """Raise unless a rule can update a parameter in place: a dense float tensor, or DTensor, on the CPU or a GPU."""
    per_row = RULES[rule].per_row
    if is_dtensor(param):
        dims = {getattr(place, "dim", 0) for place in param.placements}
        if any(place.is_partial() for place in param.placements):
            value = f"a DTensor with placements {param.placements}"
            raise make_error("not_here", argument="param", value=value, bound="sharded or replicated, not partial")
        if per_row and dims - {0}:
            value = f"a DTensor with placements {param.placements}"
            bound = f"sharded by rows, Shard(0), because {rule} has state for each row"
            raise make_error("not_here", argument="param", value=value, bound=bound)
        param = param.to_local()
    elif per_row and param.ndim == 1 and getattr(param, "_fsdp_flattened", False):
        bound = f"a table, because {rule} has state for each row; use fully_shard, or a rule without it"
        raise make_error("not_here", argument="param", value="a parameter that FSDP flattened", bound=bound)
    if not is_plain(type(param)):  # such types store their elements elsewhere
        raise make_error("not_here", argument="param", value=f"a {type(param).__name__}", bound="a plain tensor")
    if is_lazy(param):
        raise make_error("not_here", argument="param", value="an uninitialized parameter", bound="initialized")
    if not (param.is_cpu or param.is_cuda):
        raise make_error("not_here", argument="param", value=f"a tensor on {param.device}", bound="on the CPU")
    if param.layout != torch.strided:
        raise make_error("not_here", argument="param", value=f"a tensor of layout {param.layout}", bound="dense")
    if not param.dtype.is_floating_point or param.dtype not in _NAME:
        bound = "float16, bfloat16, float32, float64"
        raise make_error("dtype_not_allowed", argument="param", value=param.dtype, bound=bound)
    if not param.is_contiguous() and _may_overlap(param):
        value = f"a view of strides {param.stride()}, some of whose elements share memory"
        raise make_error("not_here", argument="param", value=value, bound="a tensor without overlapping elements")


def is_dtensor(value: Any) -> bool:
    """Return whether a value is a DTensor, as the parameters of FSDP2 are."""
    module = sys.modules.get("torch.distributed.tensor")  # slow to import, and needed only if a DTensor exists
    return module is not None and isinstance(value, module.DTensor)


def shard_index(param: Tensor) -> int:
    """Return the position of a DTensor's local part among the parts that differ; 0 for other tensors."""
    index = 0
    if is_dtensor(param):
        for dimension, place in enumerate(param.placements):
            if not place.is_replicate():
                index = index * param.device_mesh.size(dimension) + param.device_mesh.get_local_rank(dimension)
    return index


def _may_overlap(tensor: Tensor) -> bool:
    """Return whether two elements may share memory: a stride does not exceed the extent of the smaller strides."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reach:
            return tensor.numel() > 0
        reach += step * (size - 1)
    return False


def _read(tensor: Tensor, argument: str) -> Tensor:
    """Return the tensor as kernels read it, copied if necessary."""
    if tensor.layout != torch.strided:
        raise make_error("not_here", argument=argument, value=f"a tensor of layout {tensor.layout}", bound="dense")
    check_storage(tensor, argument)
    return readable(tensor.detach())


def memory_of(tensor: Tensor, argument: str, device: torch.device) -> Memory:
    """Return the memory of a contiguous tensor on the parameter's device; a scalar becomes a table of one row."""
    if tensor.device != device:
        bound = "on the CPU" if device.type == "cpu" else f"on {device}"
        raise make_error("not_here", argument=argument, value=f"a tensor on {tensor.device}", bound=bound)
    if tensor.dtype not in _NAME:
        raise make_error("dtype_not_allowed", argument=argument, value=tensor.dtype, bound=", ".join(_DTYPE))
    shaped = tensor if tensor.dim() else tensor.reshape(1)
    return Memory(tensor.data_ptr(), _NAME[tensor.dtype], tuple(shaped.shape), devices.device_for(tensor), shaped)


def new_slots(rule: str, param: Tensor, initial: float) -> dict[str, Tensor]:
    """Return a parameter's initial state by slot name; that of a DTensor is sharded in the same way."""
    whole = slot_shapes(rule, tuple(param.shape) or (1,))
    local = param.to_local() if is_dtensor(param) else param
    dtype = _DTYPE[slot_dtype(_NAME[param.dtype])]
    slots = {
        slot.name: _full(shape, 0.0 if slot.zeros else initial, dtype, local.device)
        for slot, shape in zip(RULES[rule].slots, slot_shapes(rule, tuple(local.shape) or (1,)), strict=True)
    }
    if local is param:
        return slots
    return {
        name: type(param).from_local(
            slot, param.device_mesh, param.placements, run_check=False, shape=torch.Size(shape),
            stride=torch.empty(shape, device="meta").stride(),
        )
        for (name, slot), shape in zip(slots.items(), whole, strict=True)
    }  # fmt: skip


def _full(shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a filled tensor; like tables on large pages if possible, because rows are accessed at random."""
    if device.type != "cpu":
        return torch.full(shape, value, dtype=dtype, device=device)
    slot = new_tensor(shape, dtype, zeros=True)
    return slot if value == 0.0 and not math.copysign(1.0, value) < 0 else slot.fill_(value)


def load_slot(saved: Tensor, param: Tensor) -> Tensor:
    """Copy a slot of a saved state, in the dtype of the arithmetic, which may differ from the parameter's."""
    if is_dtensor(param) and saved.placements != param.placements:
        saved = saved.redistribute(param.device_mesh, param.placements)
    return saved.detach().to(device=param.device, dtype=_DTYPE[slot_dtype(_NAME[param.dtype])], copy=True).contiguous()


def step_with_grad(
    rule: str, param: Tensor, slots: Mapping[str, Tensor], grad: Tensor, step: Step, *, negate: bool = False
) -> Iterator[None]:
    """Step with a gradient of autograd: dense, or row-sparse, whose duplicate rows are added in order.

    torch itself rejects gradients of other layouts. `negate` reverses the sign of the gradient.
    """
    if is_dtensor(param):
        parts = {slot.name: slots[slot.name].to_local() for slot in RULES[rule].slots}
        check_param(rule, param)
        yield from step_with_grad(rule, param.to_local(), parts, _local_gradient(param, grad), step, negate=negate)
        torch.autograd.graph.increment_version(param)
        return
    if not is_plain(type(grad)):
        raise make_error("not_here", argument="grad", value=f"a {type(grad).__name__}", bound="a plain tensor")
    rows = sparse_parts(grad)
    values = _read(grad if rows is None else rows.values, "grad")
    if negate:
        values = values.neg()
    table, state = _table_and_slots(rule, param, slots)
    memory, gradient = _memory(table, param), memory_of(values, "grad", param.device)
    if rows is None:
        launch = prepare_all(rule, memory, state, gradient, step)
    else:
        ids = _read(rows.ids, "grad")
        named = memory_of(ids, "grad", param.device)
        count = None
        if rows.valid is not None and memory.device is not None:
            count = memory_of(rows.valid, "count", param.device)
        if rows.is_coalesced or count is not None:
            launch = prepare_rows(rule, memory, state, gradient, named, step, count)
        else:
            each = torch.arange(ids.shape[0], device=ids.device)  # each entry is its own bag
            bags = memory_of(each, "segment_ids", ids.device)
            launch = prepare_bags(rule, memory, state, gradient, named, bags, step, order=devices.default_order(param))
    yield
    _update(param, table, launch)


def _local_gradient(param: Tensor, grad: Tensor) -> Tensor:
    """Return the part of a DTensor's gradient that belongs to the local part of the parameter."""
    if not is_dtensor(grad):
        value = "a row-sparse gradient" if grad.is_sparse else f"a {type(grad).__name__}"
        raise make_error("not_here", argument="grad", value=value, bound="a DTensor, as the parameter")
    if grad.device_mesh != param.device_mesh:
        value = f"a DTensor on {grad.device_mesh}"
        raise make_error("not_here", argument="grad", value=value, bound=f"on {param.device_mesh}, as the parameter")
    if tuple(grad.placements) != tuple(param.placements):
        grad = grad.redistribute(placements=param.placements)
    local = grad.to_local()
    return local.wait() if hasattr(local, "wait") else local  # a collective may still be running


class _Rows(NamedTuple):
    """The parts of a row-sparse gradient."""

    ids: Tensor
    values: Tensor
    is_coalesced: bool
    valid: Tensor | None  # how many there are before padding, if only the device knows it


def sparse_parts(grad: Tensor) -> _Rows | None:
    """Return ids and values of a row-sparse gradient; None for a gradient of another layout."""
    with torch._C.DisableTorchFunctionSubclass():  # faster for a RowGradient
        if grad.layout != torch.sparse_coo:
            return None
        if grad.sparse_dim() != 1:
            value = f"a sparse tensor of {grad.sparse_dim()} sparse dimensions"
            raise make_error("not_here", argument="grad", value=value, bound="sparse in dimension 0 only")
        ids = grad._indices()
        check_storage(ids, "grad")
        is_coalesced = grad.is_coalesced()
        return _Rows(ids[0], grad._values(), is_coalesced, None if is_coalesced else valid_rows(grad))


def check_row_ids(grad: Tensor) -> None:
    """Raise if a sparse gradient has ids out of range. Its step would too, but after the steps of other parameters."""
    rows = sparse_parts(grad)
    if rows is None or not rows.ids.is_cpu or rows.ids.numel() == 0:
        return
    ids, bound = rows.ids, grad.shape[0]
    if rows.is_coalesced:
        falls = ids[1:] <= ids[:-1]
        if bool(falls.any()):
            at = int(torch.nonzero(falls)[0]) + 1
            raise make_error("row_ids", argument="grad", position=at, value=int(ids[at]), bound=bound)
        low, high = ids[0], ids[-1]
    else:
        low, high = torch.aminmax(ids)
    if low.item() < 0 or high.item() >= bound:
        at = int(torch.nonzero((ids < 0) | (ids >= bound))[0])
        raise make_error("index_not_in_output", argument="grad", position=at, value=int(ids[at]), bound=bound)


def step_with_bags(
    rule: str,
    param: Tensor,
    slots: Mapping[str, Tensor],
    grad: Tensor,
    ids: tuple[Tensor, Tensor] | Any,
    step: Step,
    weights: Tensor | None,
    *,
    negate: bool = False,
    **options: Any,
) -> Iterator[None]:
    """Step with the gradient of bags; `ids` are indices and segment ids, or a Plan; `negate` reverses its sign."""
    if is_dtensor(param):
        raise make_error("not_here", argument="param", value="a DTensor", bound="a plain tensor")
    grad = _read(grad, "grad")
    if negate:
        grad = grad.neg()
    if weights is not None:
        weights = _read(weights, "weights")
        options["weights"] = memory_of(weights, "weights", param.device)
    table, state = _table_and_slots(rule, param, slots)
    memory, bags = _memory(table, param), memory_of(grad, "grad", param.device)
    if not isinstance(ids, tuple):
        plan = ids if memory.device is None else _plan_memory(ids, param.device)
        launch = prepare_planned(rule, memory, state, bags, plan, step, **options)
    else:
        indices, segment_ids = _read(ids[0], "indices"), _read(ids[1], "segment_ids")
        named = (
            memory_of(indices, "indices", param.device),
            memory_of(segment_ids, "segment_ids", param.device),
        )
        launch = prepare_bags(rule, memory, state, bags, *named, step, **options)
    yield
    _update(param, table, launch)


def _plan_memory(plan: Any, device: torch.device) -> Any:
    """Return a plan of the arrays' memory on the parameter's device."""
    if any(not isinstance(getattr(plan, name, None), torch.Tensor) for name in PLAN[:-1]):
        return plan  # `prepare_planned` rejects it
    arrays = (memory_of(_read(getattr(plan, name), name), name, device) for name in PLAN[:-1])
    return Plan.of(*arrays, plan.num_rows)


def _table_and_slots(rule: str, param: Tensor, slots: Mapping[str, Tensor]) -> tuple[Tensor, list[Memory]]:
    """Return the table that kernels update, a copy if the parameter is not contiguous, and the memory of its slots."""
    check_param(rule, param)
    table = _read(param, "param")
    memories = []
    for slot in RULES[rule].slots:
        tensor = slots[slot.name]
        if not tensor.is_contiguous() or tensor.is_neg():
            value = f"a view of strides {tensor.stride()}"
            raise make_error("not_here", argument=slot.name, value=value, bound="contiguous")
        check_storage(tensor, slot.name)
        memories.append(memory_of(tensor, slot.name, param.device))
    return table, memories


def _memory(table: Tensor, param: Tensor) -> Memory:
    return memory_of(table, "param", param.device)


def _update(param: Tensor, table: Tensor, launch: Callable[[], None]) -> None:
    """Launch an update of `table`; copy it back if it is a copy of the parameter."""
    if devices.is_current(table):
        launch()
    else:
        with devices.current_device_of(table):
            launch()
    if table.data_ptr() != param.data_ptr():
        param.detach().copy_(table)
    else:
        torch.autograd.graph.increment_version(param)  # so that autograd rejects tensors it saved before
