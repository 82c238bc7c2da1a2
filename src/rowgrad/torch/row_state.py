"""Optimizer steps of one torch parameter, with a dense, sparse or bag gradient.

A step is an iterator that yields once, after validation and before it writes. So an optimizer validates all parameters
before any of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
from .tensors import DTYPE, check_storage, is_plain

Tensor = Any  # torch's annotations lack the attributes used here
_DTYPE = {name: DTYPE[name] for name in (*FLOATS, *INDEX)}  # tables, gradients and slots; ids
_NAME = {dtype: name for name, dtype in _DTYPE.items()}


def check_param(param: Tensor) -> None:
    """Raise unless a parameter can be updated in place: a dense float tensor on the CPU or a GPU."""
    if not is_plain(type(param)):  # DTensor and similar types store their elements elsewhere
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
    """Return a parameter's initial state by slot name."""
    shapes = slot_shapes(rule, tuple(param.shape) or (1,))
    dtype = _DTYPE[slot_dtype(_NAME[param.dtype])]
    named = zip(RULES[rule].slots, shapes, strict=True)
    return {
        slot.name: torch.full(shape, 0.0 if slot.zeros else initial, dtype=dtype, device=param.device)
        for slot, shape in named
    }


def load_slot(saved: Tensor, param: Tensor) -> Tensor:
    """Copy a slot of a saved state, in the dtype of the arithmetic, which may differ from the parameter's."""
    return saved.detach().to(device=param.device, dtype=_DTYPE[slot_dtype(_NAME[param.dtype])], copy=True).contiguous()


def step_with_grad(rule: str, param: Tensor, slots: Mapping[str, Tensor], grad: Tensor, step: Step) -> Iterator[None]:
    """Step with a gradient of autograd: dense, or row-sparse, whose duplicate rows are added in order.

    torch itself rejects gradients of other layouts.
    """
    if grad.layout == torch.sparse_coo:
        yield from _step_with_sparse(rule, param, slots, grad, step)
        return
    grad = _read(grad, "grad")
    table, state = _table_and_slots(rule, param, slots)
    launch = prepare_all(rule, _memory(table, param), state, memory_of(grad, "grad", param.device), step)
    yield
    _update(param, table, launch)


def _step_with_sparse(
    rule: str, param: Tensor, slots: Mapping[str, Tensor], grad: Tensor, step: Step
) -> Iterator[None]:
    if grad.sparse_dim() != 1:
        value = f"a sparse tensor of {grad.sparse_dim()} sparse dimensions"
        raise make_error("not_here", argument="grad", value=value, bound="sparse in dimension 0 only")
    ids, values = _read(grad._indices(), "grad")[0], _read(grad._values(), "grad")
    table, state = _table_and_slots(rule, param, slots)
    memory = _memory(table, param)
    memories = memory_of(values, "grad", param.device), memory_of(ids, "grad", param.device)
    if grad.is_coalesced():
        launch = prepare_rows(rule, memory, state, *memories, step)
    else:
        each = torch.arange(ids.shape[0], device=ids.device)  # each entry is its own bag
        bags = memory_of(each, "segment_ids", ids.device)
        launch = prepare_bags(rule, memory, state, *memories, bags, step, order=devices.default_order(param))
    yield
    _update(param, table, launch)


def check_row_ids(grad: Tensor) -> None:
    """Raise if a sparse gradient has ids out of range. Its step would too, but after the steps of other parameters."""
    ids = grad._indices()
    if not ids.is_cpu or ids.numel() == 0 or grad.sparse_dim() != 1:
        return
    check_storage(ids, "grad")
    if grad.is_coalesced():
        falls = ids[0, 1:] <= ids[0, :-1]
        if bool(falls.any()):
            at = int(torch.nonzero(falls)[0]) + 1
            raise make_error("row_ids", argument="grad", position=at, value=int(ids[0, at]), bound=grad.shape[0])
        low, high = ids[0, 0], ids[0, -1]
    else:
        low, high = torch.aminmax(ids)
    if low.item() < 0 or high.item() >= grad.shape[0]:
        at = int(torch.nonzero((ids[0] < 0) | (ids[0] >= grad.shape[0]))[0])
        raise make_error(
            "index_not_in_output", argument="grad", position=at, value=int(ids[0, at]), bound=grad.shape[0]
        )


def step_with_bags(
    rule: str,
    param: Tensor,
    slots: Mapping[str, Tensor],
    grad: Tensor,
    ids: tuple[Tensor, Tensor] | Any,
    step: Step,
    weights: Tensor | None,
    **options: Any,
) -> Iterator[None]:
    """Step with the gradient of bags; `ids` are indices and segment ids, or a Plan."""
    grad = _read(grad, "grad")
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
    check_param(param)
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
