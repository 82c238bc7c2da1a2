"""Differentiate ops with torch's autograd, by the adjoint of their record.

Three ways lead to the same adjoint. Plain tensors take `_Plain`, the cheapest autograd function torch has. Under
torch.func's transforms `_Transformed` is called, whose parts torch asks for one by one. What is traced (torch.compile,
export, fake tensors) goes to `torch.ops.rowgrad`, which library.py registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_compiling
from torch.nn import Parameter

from .._catalog.spec import CATALOG, Op
from ..errors import make_error
from . import dense, devices, library
from .launch import launch
from .saved_call import Like, SavedCall, is_float, refuse_tangents, wanted
from .tensors import check_storage, checked, is_plain, settled

Run = Callable[[Op, dict[str, Any], Mapping[str, Any]], tuple[Any, ...]]


class _Plain(_SingleLevelFunction):
    """One call on plain tensors. Only differentiable arguments are passed to torch; the rest come in a mapping.

    No transform is at work where it is called, so what `torch.autograd.Function.apply` does for those is left out.
    """

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], *_: Any) -> Any:
        outputs = launch(op, arguments, attrs)
        ctx.saved_call = saved_call = SavedCall(op, attrs, wanted(op.differentiable, ctx.needs_input_grad[3:]))
        ctx.save_for_backward(*saved_call.save(arguments, outputs))
        if len(outputs) == 1:
            return outputs[0]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in outputs if not is_float(o)))
        return outputs

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        if all(y is None for y in ys):
            return (None,) * (3 + len(ctx.saved_call.op.differentiable))
        table = table_for(ys)
        return None, None, None, *ctx.saved_call.backward(table, ctx.saved_tensors, ys, rows=table is TABLE)


class _Transformed(torch.autograd.Function):
    """The same for torch.func's transforms: every argument is torch's, and there is no state but what is saved."""

    @staticmethod
    def forward(op: Op, attrs: Mapping[str, Any], *values: Any) -> Any:
        outputs = call(op, dict(zip(op.input_names, values, strict=True)), attrs)
        return outputs[0] if len(outputs) == 1 else outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        op, attrs, *values = inputs
        outputs = output if isinstance(output, tuple) else (output,)
        needs_grad = dict(zip(op.input_names, ctx.needs_input_grad[2:], strict=True))
        saved_call = SavedCall(op, attrs, wanted(op.differentiable, tuple(needs_grad[n] for n in op.differentiable)))
        ctx.save_for_backward(*saved_call.save(dict(zip(op.input_names, values, strict=True)), outputs))
        ctx.saved_call = saved_call
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in outputs if not is_float(o)))

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        op = ctx.saved_call.op
        if all(y is None for y in ys):
            return (None,) * (2 + len(op.inputs))
        saved = unwrap_dead_wrappers(ctx.saved_tensors)  # torch.func.vjp's function outlives its level
        found = dict(zip(op.differentiable, ctx.saved_call.backward(TABLE, saved, ys, rows=True), strict=True))
        return None, None, *(found.get(name) for name in op.input_names)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], op: Op, attrs: Mapping[str, Any], *values: Any) -> Any:
        from .vmap import batched  # it calls back here

        outputs, out_dims = batched(op, attrs, info.batch_size, values, in_dims[2:])
        return (outputs[0], out_dims[0]) if len(outputs) == 1 else (outputs, out_dims)


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a kernel op on tensors, recorded wherever torch records."""
    if attrs is op.attrs and "order" in attrs:  # nobody asked for one
        attrs = devices.with_order(attrs, arguments.values())
    if is_compiling():
        return library.call(op, arguments, attrs)
    if _get_tracing_state() is not None:  # the tracer would record the memory of results, not who wrote it
        raise make_error("jit_trace")
    if forward_ad._current_level >= 0:
        refuse_tangents(arguments.values())
    if _are_functorch_transforms_active():
        if any(level.key() == TransformType.Functionalize for level in get_interpreter_stack() or ()):
            raise make_error("functionalize")
        result = _Transformed.apply(op, attrs, *settled(op, arguments).values())
        return result if isinstance(result, tuple) else (result,)
    recorded = loose = False
    for value in arguments.values():
        kind = type(value)
        common = kind is Tensor or kind is Parameter
        if common or isinstance(value, Tensor):
            if value.requires_grad:
                recorded = True
            if not value.is_cpu and value.is_meta:
                return library.call_on_meta(op, arguments, attrs)
            if not common and not is_plain(kind):
                for name, other in arguments.items():
                    if isinstance(other, Tensor):
                        checked(other, name)
                return library.call(op, arguments, attrs)
        elif kind is not int:
            loose = True
    if _len_torch_dispatch_stack():
        return library.call(op, arguments, attrs)
    if recorded and torch.is_grad_enabled():
        loose = loose or any(type(arguments[name]) is int for name in _array_names(op.name))
        given = settled(op, arguments) if loose else arguments
        names = op.differentiable
        if len(names) == 1:  # most ops
            result = _Plain.apply(op, given, attrs, given[names[0]])
        else:
            result = _Plain.apply(op, given, attrs, *[given[name] for name in names])
        return result if type(result) is tuple else (result,)
    return launch(op, arguments, attrs)


@cache
def _array_names(op_name: str) -> tuple[str, ...]:
    """Return the arguments that a backward pass saves as tensors, though they may be numbers."""
    return tuple(a.name for a in CATALOG[op_name].inputs if not a.host)


def _table(run: Run) -> dict[str, Any]:
    """The catalog of ops on tensors, as adjoints call it."""
    return {name: _function(op, run) for name, op in CATALOG.items() if op.layer != "graph"}


def _function(op: Op, run: Run) -> Any:
    run = _dense if op.kernel is None else run
    names, several, ordered = op.input_names, len(op.outputs) > 1, "order" in op.attrs

    def function(*args: Any, **attrs: Any) -> Any:
        chosen = {**op.attrs, **attrs} if attrs else op.attrs
        if Like in map(type, args):  # an op that takes a tensor to know how many there are
            args = tuple(a.zeros(args) if type(a) is Like else a for a in args)
        if ordered and "order" not in attrs:
            chosen = devices.with_order(chosen, args)
        outputs = run(op, dict(zip(names, args, strict=True)), chosen)
        return outputs if several else outputs[0]

    return function


def _dense(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a dense op of an adjoint: torch's operations do not notice storages resized since the forward pass."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            check_storage(value, name)
    return dense.call(op, arguments, attrs)


TABLE = _table(call)
_BY_TORCH = _table(library.call)


def table_for(ys: tuple[Any, ...]) -> Mapping[str, Any]:
    """What the adjoint of a call on plain tensors is handed, by its upstream gradients.

    `torch.autograd.grad(is_grads_batched=True)` brings batched tensors that torch.func knows nothing of: torch loops
    over them by itself, if it is handed its own operators.
    """
    for y in ys:
        if y is not None and is_legacy_batchedtensor(y):
            return _BY_TORCH
    return TABLE
