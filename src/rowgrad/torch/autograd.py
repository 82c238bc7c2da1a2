"""Differentiate ops with torch's autograd, using the adjoints of their records.

A call takes one of three paths: `_PlainFunction`, the cheapest kind of autograd function, for plain tensors;
`_TransformFunction` under torch.func's transforms; `torch.ops.rowgrad` (library.py) if torch traces.
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
from .saved_call import Like, SavedCall, has_tangent, is_float, wanted
from .tangents import run_jvp, save_for_jvp
from .tensors import check_storage, check_tensor, copy_for_backward, is_plain

Run = Callable[[Op, dict[str, Any], Mapping[str, Any]], tuple[Any, ...]]


def named(name: str) -> Callable[[Any], Any]:
    """Set the name that profiles and `grad_fn` show for an autograd function, and for its backward pass."""

    def decorate(function: Any) -> Any:
        function.__name__ = name
        backward = function._backward_cls
        backward.__name__ = backward.__qualname__ = f"{name}Backward"
        return function

    return decorate


class _PlainFunction(_SingleLevelFunction):
    """A call on plain tensors. torch gets only the differentiable arguments; `arguments` has all of them.

    No transform of torch.func is active, so this omits the work that `torch.autograd.Function.apply` does for them.
    """

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], *_: Any) -> Any:
        outputs = launch(op, arguments, attrs)
        ctx.saved_call = saved_call = SavedCall(op, attrs, wanted(op.differentiable, ctx.needs_input_grad[3:]))
        ctx.save_for_backward(*saved_call.save(arguments, outputs))
        if forward_ad._current_level >= 0:
            save_for_jvp(ctx, op, arguments, attrs, outputs)
        if len(outputs) == 1:
            return outputs[0]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in outputs if not is_float(o)))
        return outputs

    @staticmethod
    def jvp(ctx: Any, _op: None, _arguments: None, _attrs: None, *tangents: Any) -> Any:
        return run_jvp(ctx, table_for(tangents), dict(zip(ctx.saved_call.op.differentiable, tangents, strict=True)))

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        if all(y is None for y in ys):
            return (None,) * (3 + len(ctx.saved_call.op.differentiable))
        table = table_for(ys)
        return None, None, None, *ctx.saved_call.backward(table, ctx.saved_tensors, ys, rows=table is TABLE)


@cache
def _recorded(op_name: str) -> Any:
    """Return a `_PlainFunction` that has the name of the op in profiles."""
    return named(f"rowgrad::{op_name}")(type(op_name, (_PlainFunction,), {}))


@named("rowgrad::transformed")
class _TransformFunction(torch.autograd.Function):
    """A call under torch.func's transforms: torch gets every argument, and `ctx` is filled from saved values only."""

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
        save_for_jvp(ctx, op, dict(zip(op.input_names, values, strict=True)), attrs, outputs)

    @staticmethod
    def jvp(ctx: Any, _op: None, _attrs: None, *tangents: Any) -> Any:
        return run_jvp(ctx, TABLE, dict(zip(ctx.saved_call.op.input_names, tangents, strict=True)))

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
        from .vmap import batched  # circular import

        outputs, out_dims = batched(op, attrs, info.batch_size, values, in_dims[2:])
        return (outputs[0], out_dims[0]) if len(outputs) == 1 else (outputs, out_dims)


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a kernel op on tensors; record it if autograd, torch.func or a tracer is active."""
    if attrs is op.attrs and "order" in attrs:  # no attribute was passed
        attrs = devices.with_order(attrs, arguments.values())
    if is_compiling():
        return library.call(op, arguments, attrs)
    if _get_tracing_state() is not None:  # the tracer would record results as constants
        raise make_error("jit_trace")
    if _are_functorch_transforms_active():
        if any(level.key() == TransformType.Functionalize for level in get_interpreter_stack() or ()):
            raise make_error("functionalize")
        result = _TransformFunction.apply(op, attrs, *copy_for_backward(op, arguments).values())
        return result if isinstance(result, tuple) else (result,)
    needs_grad = needs_copy = False
    for value in arguments.values():
        kind = type(value)
        is_common = kind is Tensor or kind is Parameter
        if is_common or isinstance(value, Tensor):
            if value.requires_grad:
                needs_grad = True
            if not value.is_cpu and value.is_meta:
                return library.call_on_meta(op, arguments, attrs)
            if not is_common and not is_plain(kind):
                for name, other in arguments.items():
                    if isinstance(other, Tensor):
                        check_tensor(other, name)
                return library.call(op, arguments, attrs)
        elif kind is not int:
            needs_copy = True
    if _len_torch_dispatch_stack():
        return library.call(op, arguments, attrs)
    if (needs_grad and torch.is_grad_enabled()) or (forward_ad._current_level >= 0 and has_tangent(arguments.values())):
        if needs_copy or any(type(arguments[name]) is int for name in _array_names(op.name)):
            arguments = copy_for_backward(op, arguments)
        names = op.differentiable
        if len(names) == 1:  # most ops
            result = _recorded(op.name).apply(op, arguments, attrs, arguments[names[0]])
        else:
            result = _recorded(op.name).apply(op, arguments, attrs, *[arguments[name] for name in names])
        return result if type(result) is tuple else (result,)
    return launch(op, arguments, attrs)


@cache
def _array_names(op_name: str) -> tuple[str, ...]:
    """Return the arguments that a backward pass saves as tensors, even if they were passed as numbers."""
    return tuple(a.name for a in CATALOG[op_name].inputs if not a.host)


def _table(run: Run) -> dict[str, Any]:
    """Return a function for each op, as adjoints call them."""
    return {name: _function(op, run) for name, op in CATALOG.items() if op.layer != "graph"}


def _function(op: Op, run: Run) -> Any:
    run = _dense if op.kernel is None else run
    names, several, ordered = op.input_names, len(op.outputs) > 1, "order" in op.attrs

    def function(*args: Any, **attrs: Any) -> Any:
        chosen = {**op.attrs, **attrs} if attrs else op.attrs
        if Like in map(type, args):  # the op only reads the shape
            args = tuple(a.zeros(args) if type(a) is Like else a for a in args)
        if ordered and "order" not in attrs:
            chosen = devices.with_order(chosen, args)
        outputs = run(op, dict(zip(names, args, strict=True)), chosen)
        return outputs if several else outputs[0]

    return function


def _dense(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a dense op of an adjoint. Check storages first: torch ignores that one was resized since the forward pass."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            check_storage(value, name)
    return dense.call(op, arguments, attrs)


TABLE = _table(call)
LIBRARY_TABLE = _table(library.call)


def table_for(ys: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return the ops for the adjoint of a call, depending on its upstream gradients.

    `torch.autograd.grad(is_grads_batched=True)` passes batched tensors that torch.func does not know. torch loops over
    them itself if the ops are its own operators.
    """
    for y in ys:
        if y is not None and is_legacy_batchedtensor(y):
            return LIBRARY_TABLE
    return TABLE
