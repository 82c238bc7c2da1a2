"""Run one kernel on tensors: no autograd, no tracing, no copies. Calls like an earlier one skip validation.

CPU tensors are lent to the compiled extension here; those on a GPU go on to `on_device`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._catalog.spec import Aval, Op
from .._core import Job, run_kernel
from .._runtime.numpy_runner import CODE, CODE_NAME, KERNEL, constants_of, raise_fault
from .._runtime.results import check_size, too_large
from .._runtime.validation import infer
from ..errors import make_error
from . import devices
from .tensors import DTYPE, PLAIN, Host, admit_tensors, aval_of, new_tensor

_CPU = torch.device("cpu")
_CONTIGUOUS = torch.contiguous_format
# torch initializes itself at its first operations, under locks that a child forked meanwhile inherits and waits for.
# The operations that calls need run here once: `dispatch` imports this module while no fork can happen.
torch.zeros_like(torch.ones(1, device=_CPU).expand(2), memory_format=_CONTIGUOUS)
_SMALL = 1 << 20  # bytes up to which torch's own memory serves


class _Prepared(NamedTuple):
    """Cached facts about calls of one kind."""

    kernel: int
    constants: list[int]
    host: tuple[tuple[int, np.ndarray[Any, Any]], ...]  # by position
    codes: bytes
    outputs: tuple[tuple[tuple[Any, ...], torch.dtype], ...]
    out_codes: bytes
    sized: bool  # whether all output sizes are known before the kernel has seen the data
    fills: bool  # whether the kernel writes every element
    models: tuple[Tensor, ...]  # see _models


_PREPARED: dict[Any, _Prepared] = {}
_MANY = 4096


def launch(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Run a kernel op on real tensors, Python numbers and lists."""
    for value in arguments.values():
        if type(value) is Tensor or isinstance(value, Tensor):  # one speaks for the others; _admit looks at them all
            device = devices.device_for(value)
            if device is not None:
                return _launch_on_device(op, arguments, attrs, device)
            break
    key: list[Any] = [op.name]
    raw: list[Any] = []
    try:
        for value in arguments.values():
            kind = type(value)
            if kind is int:
                key.append(value)
                raw.append(None)
            elif kind in PLAIN and value.is_cpu and value.is_contiguous() and not value.is_neg():
                dtype, shape, address, storage = value.dtype, value.shape, value.data_ptr(), value.untyped_storage()
                if (
                    address + value.nbytes > storage.data_ptr() + len(storage)  # the storage may have been resized
                    or (dtype.is_complex and value.is_conj())
                ):
                    return _launch_first(op, arguments, attrs, None)
                key.append(dtype)
                key.append(shape)
                raw.append((address, *shape))
            else:
                return _launch_first(op, arguments, attrs, None)
        if attrs is not op.attrs:
            key += attrs.values()
        found = tuple(key)
        prepared = _PREPARED.get(found)
        if prepared is None:
            return _launch_first(op, arguments, attrs, found)
        for i, array in prepared.host:
            raw[i] = array
        return _run(op, prepared, tuple(raw))
    except (RuntimeError, BufferError) as error:  # a sparse tensor, or memory that is not aligned
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise
        return _launch_first(op, arguments, attrs, None)


def _launch_first(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any], key: Any) -> tuple[Tensor, ...]:
    """Validate every argument, run the kernel, and cache what was found under `key` for calls of the same kind."""
    admitted, device = _admit(op, arguments)
    prepared = _prepare(op, admitted, attrs)
    # Tensors that are copied for the call live until it is over.
    held = [v if isinstance(v := admitted[name], Host) else _held(v, name) for name in op.input_names]
    as_came = all(
        type(arguments[a.name]) is int if a.host else admitted[a.name] is arguments[a.name] for a in op.inputs
    )
    if device is not None:
        found = _OnDevice(prepared.constants, prepared.outputs)
        if key is not None and as_came and key[1] is device:
            _remember(_ON_DEVICE, key, found)
        inputs = [v.value if isinstance(v, Host) else v for v in held]
        return _run_on_device(op, found, inputs, device, next(v for v in held if not isinstance(v, Host)))
    raw: list[Any] = [None if isinstance(v, Host) else (v.data_ptr(), *v.shape) for v in held]
    for i, array in prepared.host:
        raw[i] = array
    results, fills = _run_in_steps(op, prepared, tuple(raw))
    if key is not None and as_came:
        _remember(_PREPARED, key, prepared._replace(fills=fills, models=_models(prepared)))
    return results


def _admit(op: Op, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return arguments as kernels read them, all on one device, and `rowgrad.cuda`'s device, or None for the CPU."""
    admitted = admit_tensors(op, arguments)
    first: Tensor | None = None
    device = None
    for arg in op.inputs:
        value = admitted[arg.name]
        if isinstance(value, Host):
            continue
        own = devices.device_for(value)
        if own is None and not value.is_cpu:
            raise make_error("no_kernel_for_device", argument=arg.name, value=value.device, bound="cpu and cuda")
        if first is None:
            first, device = value, own
        elif own is not device:
            raise make_error("mixed_devices", argument=arg.name, value=value.device, bound=first.device)
    return admitted, device


def _remember(calls: dict[Any, Any], key: Any, prepared: Any) -> None:
    if len(calls) >= _MANY:
        calls.clear()
    calls[key] = prepared


def _prepare(op: Op, admitted: Mapping[str, Any], attrs: Mapping[str, Any]) -> _Prepared:
    avals = {name: aval_of(value) for name, value in admitted.items()}
    values = {name: value.value for name, value in admitted.items() if isinstance(value, Host)}
    outputs = infer(op, avals, values, attrs)
    host = tuple(
        (i, np.array(values[a.name], avals[a.name].dtype).reshape([d or 0 for d in avals[a.name].shape]))
        for i, a in enumerate(op.inputs)
        if a.host
    )
    sized = not any(None in o.shape for o in outputs)
    return _Prepared(
        KERNEL[str(op.kernel)],
        constants_of(op, attrs),
        host,
        bytes(CODE[avals[name].dtype] for name in op.input_names),
        tuple((o.shape, DTYPE[o.dtype]) for o in outputs),
        bytes(CODE[o.dtype] for o in outputs),
        sized,
        False,
        (),
    )


def _models(p: _Prepared) -> tuple[Tensor, ...]:
    """One-element tensors expanded to the outputs' shapes: `empty_like` is faster than a shape and a dtype.

    Empty if an output is large or its size is not known yet, or if torch's constructors are patched.
    """
    if not p.sized or any(prod(shape) * dtype.itemsize >= _SMALL for shape, dtype in p.outputs):
        return ()
    with torch._C.DisableTorchFunction():
        models = tuple(torch.empty((), dtype=dtype, device=_CPU).expand(shape) for shape, dtype in p.outputs)
    same = all(
        type(m) is Tensor and m.is_cpu and m.dtype is dtype and m.shape == shape
        for m, (shape, dtype) in zip(models, p.outputs, strict=True)
    )
    return models if same else ()


def _run(op: Op, p: _Prepared, raw: tuple[Any, ...]) -> tuple[Tensor, ...]:
    if not p.sized:
        return _run_in_steps(op, p, raw)[0]
    if p.models:
        make = torch.empty_like if p.fills else torch.zeros_like
        results = tuple([make(model, memory_format=_CONTIGUOUS) for model in p.models])
    else:
        results = tuple(_allocate(shape, dtype, not p.fills) for shape, dtype in p.outputs)
    outputs = tuple([(r.data_ptr(), *r.shape) for r in results])
    fault = run_kernel(p.kernel, p.constants, raw, p.codes, outputs, p.out_codes, not p.fills)
    if fault is not None:
        raise_fault(op, fault)
    return results


def _run_in_steps(op: Op, p: _Prepared, raw: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], bool]:
    """Let the kernel count its output rows, allocate them, and let it write them."""
    job = Job(p.kernel, p.constants, raw, p.codes)
    fault, rows, fills = job.measured
    if fault is not None:
        raise_fault(op, fault)
    results = []
    for (shape, dtype), code in zip(p.outputs, p.out_codes, strict=True):
        full = [rows if d is None else d for d in shape]
        if prod(full) * 16 < _SMALL:  # sixteen bytes are the widest number
            make = torch.empty if fills else torch.zeros
            # Sizes one by one: torch parses a list half a microsecond longer. A scalar has only the list.
            results.append(make(*(full or [()]), dtype=dtype, device=_CPU))
            continue
        check_size(Aval(CODE_NAME[code], tuple(full)))
        results.append(_allocate(full, dtype, not fills))
    fault = job.run(tuple([(r.data_ptr(), *r.shape) for r in results]), p.out_codes, not fills, (), b"")
    if fault is not None:
        raise_fault(op, fault)
    return tuple(results), fills


# -- on a GPU ---------------------------------------------------------------------------------------------------------


class _OnDevice(NamedTuple):
    """Cached facts about calls of one kind on one GPU."""

    constants: list[int]
    outputs: tuple[tuple[tuple[Any, ...], torch.dtype], ...]


_ON_DEVICE: dict[Any, _OnDevice] = {}


def _launch_on_device(
    op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any], device: Any
) -> tuple[Tensor, ...]:
    key: list[Any] = [op.name, device]
    inputs = list(arguments.values())
    tensor: Any = None
    try:
        for value in inputs:
            kind = type(value)
            if kind is int:
                key.append(value)
                continue
            if kind not in PLAIN or devices.device_for(value) is not device:
                return _launch_first(op, arguments, attrs, None)
            dtype, address, storage = value.dtype, value.data_ptr(), value.untyped_storage()
            if (
                not value.is_contiguous()
                or value.is_neg()
                or (dtype.is_complex and value.is_conj())
                or address % dtype.itemsize
                or not (address or value.numel() == 0)
                or address + value.nbytes > storage.data_ptr() + len(storage)  # the storage may have been resized
            ):
                return _launch_first(op, arguments, attrs, None)
            key.append(dtype)
            key.append(value.shape)
            tensor = value
    except RuntimeError:  # a sparse tensor
        return _launch_first(op, arguments, attrs, None)
    if attrs is not op.attrs:
        key += attrs.values()
    found = tuple(key)
    prepared = _ON_DEVICE.get(found)
    if prepared is None:
        return _launch_first(op, arguments, attrs, found)
    return _run_on_device(op, prepared, inputs, device, tensor)


@cache
def _loaded() -> Callable[..., tuple[Tensor, ...]]:
    """Return the launcher of GPU kernels, imported when it is first needed."""
    from ..cuda.run import run

    return run


def _run_on_device(op: Op, p: _OnDevice, inputs: list[Any], device: Any, tensor: Tensor) -> tuple[Tensor, ...]:
    run = _loaded()
    if devices.is_current(tensor):
        return run(op, inputs, p.constants, p.outputs, device, devices.is_captured())
    with devices.made_current(tensor):
        return run(op, inputs, p.constants, p.outputs, device, devices.is_captured())


def _held(tensor: Tensor, argument: str) -> Tensor:
    """Return `readable`, or raise: an expanded tensor may be larger than memory."""
    try:
        return readable(tensor)
    except RuntimeError:
        if not tensor.is_cpu:
            raise
        size = tensor.numel() * tensor.element_size()
        raise make_error("argument_memory", argument=argument, value=size) from None


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor as kernels read it: contiguous, aligned, without pending conjugation or negation."""
    if tensor._is_zerotensor():
        return tensor.clone()
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() and tensor.numel() else tensor


def _allocate(shape: Sequence[int], dtype: torch.dtype, zeros: bool) -> Tensor:
    """Allocate an output; raise if it does not fit."""
    try:
        return new_tensor(shape, dtype, zeros)
    except (MemoryError, ValueError, RuntimeError):
        name = next(n for n, d in DTYPE.items() if d == dtype)
        raise too_large(Aval(name, tuple(shape))) from None
