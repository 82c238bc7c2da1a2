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

from .._catalog.spec import CATALOG, Arg, Aval, Derived, Op
from .._runtime.results import check_size
from .._runtime.validation import infer, validate_attrs
from ..errors import OpError, make_error
from .launch import launch
from .saved_call import SavedCall, is_float, reject_tangents, wanted
from .tensors import DTYPE, NAME, Host, admit_tensors, avals_of, is_size

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
    device = None
    for name, value in admitted.items():
        if isinstance(value, Tensor):
            device = device or value.device
            if value.device != device:
                raise make_error("mixed_devices", argument=name, value=value.device, bound=device)
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
            values.append(_size(value))
        elif isinstance(value, Tensor):
            values.append(value)
        else:
            listed = op.types.get(arg.type)
            wanted = bound.get(arg.type, DTYPE.get(arg.type))
            if wanted is None and isinstance(listed, Derived) and listed.of in bound:
                wanted = DTYPE[listed[NAME[bound[listed.of]]]]
            values.append(torch.as_tensor(value, dtype=wanted, device=device))
    return values


def _size(value: Any) -> Any:
    if is_size(value):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.ndim == 0 else value.tolist()
    return [int(v) for v in value] if hasattr(value, "__len__") else int(value)


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


class _Dim:
    """A symbolic size for shape rules: comparisons that torch cannot decide without data count as valid."""

    __slots__ = ("size",)

    def __init__(self, size: Any) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return _decide(self.size == _unwrap(other))

    def __ne__(self, other: object) -> bool:
        return _decide(self.size != _unwrap(other))

    def __lt__(self, other: Any) -> bool:
        return _decide(self.size < _unwrap(other))

    def __gt__(self, other: Any) -> bool:
        return _decide(self.size > _unwrap(other))

    def __ge__(self, other: Any) -> bool:
        return _decide(self.size >= _unwrap(other))

    def __le__(self, other: Any) -> bool:
        return _decide(self.size <= _unwrap(other))

    def __bool__(self) -> bool:
        return _decide(self.size != 0)

    def __hash__(self) -> int:
        return id(self)

    def __mul__(self, other: Any) -> _Dim:
        return _Dim(self.size * _unwrap(other))

    def __add__(self, other: Any) -> _Dim:
        return _Dim(self.size + _unwrap(other))

    def __sub__(self, other: Any) -> _Dim:
        return _Dim(self.size - _unwrap(other))

    def __mod__(self, other: Any) -> _Dim:
        divisor = _unwrap(other)
        if isinstance(divisor, int) and divisor >= 1 << 63:  # a shape rule wraps to 64 bits; sizes fit
            return _Dim(self.size)
        return _Dim(self.size % divisor)

    __rmul__, __radd__ = __mul__, __add__

    def __rsub__(self, other: Any) -> _Dim:
        return _Dim(_unwrap(other) - self.size)

    def __str__(self) -> str:
        return str(self.size)


def _unwrap(value: Any) -> Any:
    return value.size if isinstance(value, _Dim) else value


def _decide(condition: Any) -> bool:
    """Return whether a condition holds; False if that depends on data."""
    from torch.fx.experimental import symbolic_shapes  # slow: imports sympy

    try:
        return bool(condition)
    except symbolic_shapes.GuardOnDataDependentSymNode:
        return False


def wrap_sizes(value: Any) -> Any:
    """Wrap symbolic sizes for shape rules."""
    if isinstance(value, list | tuple):
        return tuple(wrap_sizes(v) for v in value)
    return _Dim(value) if isinstance(value, torch.SymInt) else value


def _fake(op: Op) -> Callable[..., Any]:
    def fake(*args: Any) -> Any:
        arguments, attrs = _arguments(op, args)
        avals: dict[str, Aval] = {}
        host: dict[str, Any] = {}
        device = None
        for arg in op.inputs:
            value = arguments[arg.name]
            if isinstance(value, Tensor):
                avals[arg.name] = Aval(NAME[value.dtype], wrap_sizes(tuple(value.shape)))
                if device is not None and device != value.device:
                    raise make_error("mixed_devices", argument=arg.name, value=value.device, bound=device)
                device = value.device
            else:
                dtype = arg.type if arg.type not in op.types else "int64"
                avals[arg.name] = Aval(dtype, (len(value),) if isinstance(value, list | tuple) else ())
                host[arg.name] = wrap_sizes(value)
        outputs = infer(op, avals, host, attrs)
        rows = None
        results = []
        for aval in outputs:
            if None in aval.shape and rows is None:
                rows = torch.library.get_ctx().new_dynamic_size()
            shape = [rows if d is None else _unwrap(d) for d in aval.shape]
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
            with torch.enable_grad():  # torch disables it here, but an outer level of torch.func may record
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
            return result

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
        reject_tangents(tensors)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
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
