"""Register every kernel op of the catalog as `torch.ops.rowgrad.…`: schema, kernel, shapes, gradient and vmap.

torch.compile, torch.export and fake tensors trace these operators. The gradient of an operator is its record's adjoint,
which calls such operators again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad

from .._catalog.spec import CATALOG, Arg, Derived, Op
from .._runtime.results import check_size
from .._runtime.validation import infer, validate_attrs
from ..errors import OpError, make_error
from .devices import check_devices
from .launch import launch
from .saved_call import SavedCall, has_tangent, is_float, wanted
from .symbolic_sizes import as_size, infer_outputs
from .tangents import run_jvp, save_for_jvp
from .tensors import DTYPE, NAME, Host, admit_tensors, avals_of

_LIBRARY = torch.library.Library("rowgrad", "DEF")
_ATTR = {bool: "bool", str: "str"}


def schema_of(op: Op) -> str:
    """Return the torch schema of an op: tensors, host inputs as SymInt, attributes with their defaults."""
    inputs = [f"{_type(arg)} {arg.name}" for arg in op.inputs]
    inputs += [f"{_ATTR[type(v)]} {name}={_default(v)}" for name, v in op.attrs.items()]
    outputs = ", ".join("Tensor" for _ in op.outputs)
    return f"{op.name}({', '.join(inputs)}) -> {outputs if len(op.outputs) == 1 else f'({outputs})'}"


def _type(arg: Arg) -> str:
    return "Tensor" if not arg.host else "SymInt[]" if arg.role == "shape" else "SymInt"


def _default(value: Any) -> str:
    return str(value) if isinstance(value, bool) else f'"{value}"'


def call(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run an op through `torch.ops.rowgrad`."""
    result = getattr(torch.ops.rowgrad, op.name)(*_traceable(op, arguments), *attrs.values())
    return result if isinstance(result, tuple) else (result,)


def call_on_meta(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Validate an op's arguments and run it on meta tensors."""
    admitted = admit_tensors(op, arguments)
    host = {name: v.value for name, v in admitted.items() if isinstance(v, Host)}
    check_devices(admitted)
    for aval in infer(op, avals_of(admitted), host, attrs):
        if None in aval.shape:
            raise make_error("size_traced", bound="call it on concrete tensors")
        if all(type(n) is int for n in aval.shape):
            check_size(aval, elsewhere=True)
    return call(op, {**admitted, **host}, attrs)


def _traceable(op: Op, arguments: Mapping[str, Any]) -> list[Any]:
    """Return arguments as tensors and sizes; numbers and lists get the dtype of the tensors."""
    bound = {a.type: arguments[a.name].dtype for a in op.inputs if isinstance(arguments[a.name], Tensor)}
    tensors = (arguments[a.name] for a in op.inputs if not a.host and isinstance(arguments[a.name], Tensor))
    device = next((t.device for t in tensors), None)
    values: list[Any] = []
    for arg in op.inputs:
        value = arguments[arg.name]
        if arg.host:
            values.append(as_size(value))
        elif isinstance(value, Tensor):
            values.append(value)
        else:
            listed = op.types.get(arg.type)
            wanted = bound.get(arg.type, DTYPE.get(arg.type))
            if wanted is None and isinstance(listed, Derived) and listed.of in bound:
                wanted = DTYPE[listed[NAME[bound[listed.of]]]]
            values.append(torch.as_tensor(value, dtype=wanted, device=device))
    return values


# -- Registered functions ---------------------------------------------------------------------------------------------


def _arguments(op: Op, args: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments and attributes by name; torch omits attributes that have default values."""
    names = op.input_names
    attrs = dict(zip(op.attrs, (*args[len(names) :], *tuple(op.attrs.values())[len(args) - len(names) :]), strict=True))
    return dict(zip(names, args, strict=False)), attrs


def _kernel(op: Op) -> Callable[..., Any]:
    def kernel(*args: Any) -> Any:
        arguments, attrs = _arguments(op, args)
        try:
            attrs = validate_attrs(op, attrs)
            outputs = launch(op, arguments, attrs)
        except OpError as error:
            raise error.in_call(op.name, None, "") from None
        return outputs[0] if len(outputs) == 1 else outputs

    return kernel


def _fake(op: Op) -> Callable[..., Any]:
    def fake(*args: Any) -> Any:
        arguments, attrs = _arguments(op, args)
        device = check_devices(arguments)
        rows = None
        results = []
        for aval in infer_outputs(op, arguments, attrs):
            if None in aval.shape and rows is None:
                rows = torch.library.get_ctx().new_dynamic_size()
            shape = [rows if d is None else d for d in aval.shape]
            results.append(torch.empty(shape, dtype=DTYPE[aval.dtype], device=device))
        return results[0] if len(results) == 1 else tuple(results)

    return fake


def _autograd(op: Op, overload: Any) -> Callable[..., Any]:
    """Return the Autograd kernel; torch's own helper does not support torch.func and silently drops tangents."""

    def below(keyset: Any, args: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    class RecordedCall(torch.autograd.function._SingleLevelFunction):
        _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

        @staticmethod
        def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
            # torch disables both modes here, but an outer level of torch.func may need them.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                result = below(keyset, args)
            outputs = result if isinstance(result, tuple) else (result,)
            arguments, attrs = _arguments(op, args)
            needs_grad = dict(zip(op.input_names, ctx.needs_input_grad[1:], strict=False))
            needed = wanted(op.differentiable, tuple(needs_grad[n] for n in op.differentiable))
            saved_call = SavedCall(op, attrs, needed)
            ctx.save_for_backward(*saved_call.save(arguments, outputs))
            ctx.saved_call, ctx.count = saved_call, len(args)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*(o for o in outputs if not is_float(o)))
            save_for_jvp(ctx, op, arguments, attrs, outputs)
            return result

        @staticmethod
        def jvp(ctx: Any, _keyset: Any, *tangents: Any) -> Any:
            from .autograd import LIBRARY_TABLE  # circular import

            return run_jvp(ctx, LIBRARY_TABLE, dict(zip(op.input_names, tangents, strict=False)))

        @staticmethod
        def backward(ctx: Any, *ys: Any) -> Any:
            from .autograd import table_for  # circular import

            if all(y is None for y in ys):
                return (None,) * (1 + ctx.count)
            saved = unwrap_dead_wrappers(ctx.saved_tensors)  # torch.func.vjp's function outlives its level
            gradients = ctx.saved_call.backward(table_for(ys), saved, ys, rows=False)
            by_name = dict(zip(op.differentiable, gradients, strict=True))
            return None, *(by_name.get(name) for name in op.input_names), *(None,) * (ctx.count - len(op.inputs))

    def autograd(keyset: Any, *args: Any) -> Any:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)) or has_tangent(tensors):
            with enable_single_level_autograd_function():
                return RecordedCall.apply(keyset, *args)
        return below(keyset, args)

    return autograd


def _batching(op: Op) -> Callable[..., Any]:
    def batching(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        from .vmap import batched  # circular import

        arguments, attrs = _arguments(op, args)
        try:
            attrs = validate_attrs(op, attrs)
            dims = in_dims[: len(op.inputs)]
            outputs, out_dims = batched(op, attrs, info.batch_size, tuple(arguments.values()), dims, call)
        except OpError as error:
            raise error.in_call(op.name, None, "") from None
        return (outputs[0], out_dims[0]) if len(outputs) == 1 else (outputs, out_dims)

    return batching


def _register(op: Op) -> None:
    _LIBRARY.define(schema_of(op), tags=(torch.Tag.pt2_compliant_tag,))
    kernel = _kernel(op)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(op.name, kernel, key)
    torch.library.register_fake(f"rowgrad::{op.name}", _fake(op), lib=_LIBRARY)
    torch.library.register_vmap(f"rowgrad::{op.name}", _batching(op), lib=_LIBRARY)
    if op.adjoint is not None:
        overload = getattr(torch.ops.rowgrad, op.name).default
        _LIBRARY.impl(op.name, _autograd(op, overload), "Autograd", with_keyset=True)


for _op in CATALOG.values():
    if _op.kernel is not None:
        _register(_op)
