"""Steps of one torch parameter: its memory lent to the kernels, its gradient in whatever form it came.

A step is an iterator that stops once, after its checks and before it writes: an optimizer takes all of its parameters
so far before it lets any of them go on.
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

Tensor = Any  # torch's own types say too little to be of help
_DTYPE = {name: DTYPE[name] for name in (*FLOATS, *INDEX)}  # tables, gradients and slots; ids
_NAME = {dtype: name for name, dtype in _DTYPE.items()}


def check_param(param: Tensor) -> None:
    """Only dense float tables, in this machine's memory or on a GPU, can be updated in place."""
    if not is_plain(type(param)):  # FSDP's DTensor and the like keep their numbers elsewhere
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
    """Whether two elements may share memory: no step along a dimension passes all that the smaller steps reach."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reach:
            return tensor.numel() > 0
        reach += step * (size - 1)
    return False


def _read(tensor: Tensor, argument: str) -> Tensor:
    """The tensor as kernels read it; a copy where it has to be."""
    if tensor.layout != torch.strided:
        raise make_error("not_here", argument=argument, value=f"a tensor of layout {tensor.layout}", bound="dense")
    check_storage(tensor, argument)
    return readable(tensor.detach())


def memory_of(tensor: Tensor, argument: str, device: torch.device) -> Memory:
    """Where a contiguous tensor inside its storage lies, on the parameter's device; a scalar is a table of one row."""
    if tensor.device != device:
        bound = "on the CPU" if device.type == "cpu" else f"on {device}"
        raise make_error("not_here", argument=argument, value=f"a tensor on {tensor.device}", bound=bound)
    if tensor.dtype not in _NAME:
        raise make_error("dtype_not_allowed", argument=argument, value=tensor.dtype, bound=", ".join(_DTYPE))
    shaped = tensor if tensor.dim() else tensor.reshape(1)
    return Memory(tensor.data_ptr(), _NAME[tensor.dtype], tuple(shaped.shape), devices.device_for(tensor), shaped)


def new_slots(rule: str, param: Tensor, initial: float) -> dict[str, Tensor]:
    """A parameter's state at the start, by the names of the rule's slots."""
    shapes = slot_shapes(rule, tuple(param.shape) or (1,))
    dtype = _DTYPE[slot_dtype(_NAME[param.dtype])]
    named = zip(RULES[rule].slots, shapes, strict=True)
    return {
        slot.name: torch.full(shape, 0.0 if slot.zeros else initial, dtype=dtype, device=param.device)
        for slot, shape in named
    }


def adopted(saved: Tensor, param: Tensor) -> Tensor:
    """A slot out of a saved state: its own memory, in the type arithmetic is done in and not in the parameter's."""
    return saved.detach().to(device=param.device, dtype=_DTYPE[slot_dtype(_NAME[param.dtype])], copy=True).contiguous()


def step_with_grad(rule: str, param: Tensor, slots: Mapping[str, Tensor], grad: Tensor, step: Step) -> Iterator[None]:
    """One step with a gradient as autograd leaves it: dense, or sparse by rows, whose equal rows are added in order.

    Torch itself lets a dense parameter have no gradient of another layout.
    """
    if grad.layout == torch.sparse_coo:
        yield from _step_with_sparse(rule, param, slots, grad, step)
        return
    grad = _read(grad, "grad")
    table, state = _lent(rule, param, slots)
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
    table, state = _lent(rule, param, slots)
    memory = _memory(table, param)
    memories = memory_of(values, "grad", param.device), memory_of(ids, "grad", param.device)
    if grad.is_coalesced():
        launch = prepare_rows(rule, memory, state, *memories, step)
    else:
        each = torch.arange(ids.shape[0], device=ids.device)  # every entry is a bag of its own
        bags = memory_of(each, "segment_ids", ids.device)
        launch = prepare_bags(rule, memory, state, *memories, bags, step, order=devices.default_order(param))
    yield
    _update(param, table, launch)


def check_row_ids(grad: Tensor) -> None:
    """Reject a sparse gradient with ids outside of the table, as its step would, but before other steps are taken."""
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
    **how: Any,
) -> Iterator[None]:
    """One step with the gradient of bags; `ids` are indices and segment ids, or a Plan."""
    grad = _read(grad, "grad")
    if weights is not None:
        weights = _read(weights, "weights")
        how["weights"] = memory_of(weights, "weights", param.device)
    table, state = _lent(rule, param, slots)
    memory, bags = _memory(table, param), memory_of(grad, "grad", param.device)
    if not isinstance(ids, tuple):
        plan = ids if memory.device is None else _lent_plan(ids, param.device)
        launch = prepare_planned(rule, memory, state, bags, plan, step, **how)
    else:
        indices, segment_ids = _read(ids[0], "indices"), _read(ids[1], "segment_ids")
        named = (
            memory_of(indices, "indices", param.device),
            memory_of(segment_ids, "segment_ids", param.device),
        )
        launch = prepare_bags(rule, memory, state, bags, *named, step, **how)
    yield
    _update(param, table, launch)


def _lent_plan(plan: Any, device: torch.device) -> Any:
    """A plan whose arrays are lent as they lie, on the parameter's device."""
    if any(not isinstance(getattr(plan, name, None), torch.Tensor) for name in PLAN[:-1]):
        return plan  # it is refused by whoever takes it
    arrays = (memory_of(_read(getattr(plan, name), name), name, device) for name in PLAN[:-1])
    return Plan.of(*arrays, plan.num_rows)


def _lent(rule: str, param: Tensor, slots: Mapping[str, Tensor]) -> tuple[Tensor, list[Memory]]:
    """A parameter as kernels update it, and the memory of its slots. One that is not contiguous is a copy."""
    check_param(param)
    table = _read(param, "param")
    lent = []
    for slot in RULES[rule].slots:
        tensor = slots[slot.name]
        if not tensor.is_contiguous() or tensor.is_neg():
            value = f"a view of strides {tensor.stride()}"
            raise make_error("not_here", argument=slot.name, value=value, bound="contiguous")
        check_storage(tensor, slot.name)
        lent.append(memory_of(tensor, slot.name, param.device))
    return table, lent


def _memory(table: Tensor, param: Tensor) -> Memory:
    return memory_of(table, "param", param.device)


def _update(param: Tensor, table: Tensor, launch: Callable[[], None]) -> None:
    """Launch an update of `table`, and write it back where it is a copy."""
    if devices.is_current(table):
        launch()
    else:
        with devices.made_current(table):
            launch()
    if table.data_ptr() != param.data_ptr():
        param.detach().copy_(table)
    else:
        torch.autograd.graph.increment_version(param)  # marks what autograd saved of it before as stale
