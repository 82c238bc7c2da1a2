"""Run one kernel on tensors, without autograd, tracing or copies.

Validated calls are cached: another call with the same dtypes, shapes and sizes skips validation.
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
# torch initializes itself during its first operations, with locks on which a child that is forked meanwhile would wait.
# So the operations that calls use run here once: `dispatch` imports this module while no fork can happen.
torch.zeros_like(torch.ones(1, device=_CPU).expand(2), memory_format=_CONTIGUOUS)
_SMALL = 1 << 20  # bytes; smaller outputs are allocated by torch


class _CpuCall(NamedTuple):
    """A validated kind of call on the CPU."""

    kernel: int
    constants: list[int]
    host: tuple[tuple[int, np.ndarray[Any, Any]], ...]  # the position and value of each host input
    codes: bytes
    outputs: tuple[tuple[tuple[Any, ...], torch.dtype], ...]
    out_codes: bytes
    sized: bool  # output sizes do not depend on data
    fills: bool  # the kernel writes every element
    templates: tuple[Tensor, ...]  # see _output_templates


_CPU_CALLS: dict[Any, _CpuCall] = {}
_MAX_CACHED_CALLS = 4096


def launch(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Run a kernel op on real tensors, Python numbers and lists."""
    for value in arguments.values():
        if type(value) is Tensor or isinstance(value, Tensor):  # the first one decides; _admit checks all
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
                    return _launch_uncached(op, arguments, attrs, None)
                key.append(dtype)
                key.append(shape)
                raw.append((address, *shape))
            else:
                return _launch_uncached(op, arguments, attrs, None)
        if attrs is not op.attrs:
            key += attrs.values()
        full_key = tuple(key)
        prepared = _CPU_CALLS.get(full_key)
        if prepared is None:
            return _launch_uncached(op, arguments, attrs, full_key)
        for i, array in prepared.host:
            raw[i] = array
        return _run(op, prepared, tuple(raw))
    except (RuntimeError, BufferError) as error:  # a sparse tensor, or unaligned memory
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise
        return _launch_uncached(op, arguments, attrs, None)


def _launch_uncached(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any], key: Any) -> tuple[Tensor, ...]:
    """Validate every argument and run the kernel; cache the call under `key` unless arguments were converted."""
    admitted, device = _admit(op, arguments)
    prepared = _prepare(op, admitted, attrs)
    # This list keeps copies alive until the kernel is done.
    inputs = [v if isinstance(v := admitted[name], Host) else _readable_argument(v, name) for name in op.input_names]
    is_unconverted = all(
        type(arguments[a.name]) is int if a.host else admitted[a.name] is arguments[a.name] for a in op.inputs
    )
    if device is not None:
        device_call = _DeviceCall(prepared.constants, prepared.outputs)
        if key is not None and is_unconverted and key[1] is device:
            in_launcher = device.prepare_op(str(op.kernel), prepared.constants, prepared.outputs)
            _cache_call(_DEVICE_CALLS, key, device_call._replace(prepared=in_launcher))
        values = [v.value if isinstance(v, Host) else v for v in inputs]
        return _run_on_device(op, device_call, values, device, next(v for v in inputs if not isinstance(v, Host)))
    raw: list[Any] = [None if isinstance(v, Host) else (v.data_ptr(), *v.shape) for v in inputs]
    for i, array in prepared.host:
        raw[i] = array
    results, fills = _run_in_steps(op, prepared, tuple(raw))
    if key is not None and is_unconverted:
        _cache_call(_CPU_CALLS, key, prepared._replace(fills=fills, templates=_output_templates(prepared)))
    return results


def _admit(op: Op, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Convert and validate arguments; return them, and their `rowgrad.cuda` device or None for the CPU."""
    admitted = admit_tensors(op, arguments)
    first: tuple[str, Tensor] | None = None
    device = None
    for arg in op.inputs:
        value = admitted[arg.name]
        if isinstance(value, Host):
            continue
        own = devices.device_for(value)
        if own is None and not value.is_cpu:
            raise make_error("no_kernel_for_device", argument=arg.name, value=value.device, bound="cpu and cuda")
        if first is None:
            first, device = (arg.name, value), own
        elif own is not device:
            facts = {"value": value.device, "other": first[0], "bound": first[1].device}
            raise make_error("mixed_devices", argument=arg.name, **facts)
    return admitted, device


def _cache_call(calls: dict[Any, Any], key: Any, prepared: Any) -> None:
    if len(calls) >= _MAX_CACHED_CALLS:
        calls.clear()
    calls[key] = prepared


def _prepare(op: Op, admitted: Mapping[str, Any], attrs: Mapping[str, Any]) -> _CpuCall:
    avals = {name: aval_of(value) for name, value in admitted.items()}
    values = {name: value.value for name, value in admitted.items() if isinstance(value, Host)}
    outputs = infer(op, avals, values, attrs)
    host = tuple(
        (i, np.array(values[a.name], avals[a.name].dtype).reshape([d or 0 for d in avals[a.name].shape]))
        for i, a in enumerate(op.inputs)
        if a.host
    )
    sized = not any(None in o.shape for o in outputs)
    return _CpuCall(
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


def _output_templates(p: _CpuCall) -> tuple[Tensor, ...]:
    """Return a one-element tensor expanded to each output's shape: `empty_like` is faster than `empty`.

    Return () if an output is large or its size depends on data, or if torch's constructors are patched.
    """
    if not p.sized or any(prod(shape) * dtype.itemsize >= _SMALL for shape, dtype in p.outputs):
        return ()
    with torch._C.DisableTorchFunction():
        templates = tuple(torch.empty((), dtype=dtype, device=_CPU).expand(shape) for shape, dtype in p.outputs)
    same = all(
        type(m) is Tensor and m.is_cpu and m.dtype is dtype and m.shape == shape
        for m, (shape, dtype) in zip(templates, p.outputs, strict=True)
    )
    return templates if same else ()


def _run(op: Op, p: _CpuCall, raw: tuple[Any, ...]) -> tuple[Tensor, ...]:
    if not p.sized:
        return _run_in_steps(op, p, raw)[0]
    if p.templates:
        make = torch.empty_like if p.fills else torch.zeros_like
        results = tuple([make(model, memory_format=_CONTIGUOUS) for model in p.templates])
    else:
        results = tuple(_allocate(shape, dtype, not p.fills) for shape, dtype in p.outputs)
    outputs = tuple([(r.data_ptr(), *r.shape) for r in results])
    fault = run_kernel(p.kernel, p.constants, raw, p.codes, outputs, p.out_codes, not p.fills)
    if fault is not None:
        raise_fault(op, fault)
    return results


def _run_in_steps(op: Op, p: _CpuCall, raw: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], bool]:
    """Let the kernel count the output rows, allocate the outputs, then run it."""
    job = Job(p.kernel, p.constants, raw, p.codes)
    fault, rows, fills = job.measured
    if fault is not None:
        raise_fault(op, fault)
    results = []
    for (shape, dtype), code in zip(p.outputs, p.out_codes, strict=True):
        full = [rows if d is None else d for d in shape]
        if prod(full) * 16 < _SMALL:  # an element has at most sixteen bytes
            make = torch.empty if fills else torch.zeros
            # Sizes as separate arguments: parsing a list takes half a microsecond longer. A scalar needs the list.
            results.append(make(*(full or [()]), dtype=dtype, device=_CPU))
            continue
        check_size(Aval(CODE_NAME[code], tuple(full)))
        results.append(_allocate(full, dtype, not fills))
    fault = job.run(tuple([(r.data_ptr(), *r.shape) for r in results]), p.out_codes, not fills, (), b"")
    if fault is not None:
        raise_fault(op, fault)
    return tuple(results), fills


# -- On a GPU ---------------------------------------------------------------------------------------------------------


class _DeviceCall(NamedTuple):
    """A validated kind of call on one GPU."""

    constants: list[int]
    outputs: tuple[tuple[tuple[Any, ...], torch.dtype], ...]
    prepared: Any = None  # for the launcher; None if only Python can put the call together


_DEVICE_CALLS: dict[Any, _DeviceCall] = {}


def _launch_on_device(
    op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any], device: Any
) -> tuple[Tensor, ...]:
    outputs = _one_crossing()(op, device, arguments, attrs)
    if outputs is not None:
        return outputs
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
                return _launch_uncached(op, arguments, attrs, None)
            dtype, address, storage = value.dtype, value.data_ptr(), value.untyped_storage()
            if (
                not value.is_contiguous()
                or value.is_neg()
                or (dtype.is_complex and value.is_conj())
                or address % dtype.itemsize
                or not (address or value.numel() == 0)
                or address + value.nbytes > storage.data_ptr() + len(storage)  # the storage may have been resized
            ):
                return _launch_uncached(op, arguments, attrs, None)
            key.append(dtype)
            key.append(value.shape)
            tensor = value
    except RuntimeError:  # a sparse tensor
        return _launch_uncached(op, arguments, attrs, None)
    if attrs is not op.attrs:
        key += attrs.values()
    full_key = tuple(key)
    prepared = _DEVICE_CALLS.get(full_key)
    if prepared is None:
        return _launch_uncached(op, arguments, attrs, full_key)
    return _run_on_device(op, prepared, inputs, device, tensor)


@cache
def _cuda_run() -> Callable[..., tuple[Tensor, ...]]:
    """Return `rowgrad.cuda.run.run`, imported on first use."""
    from ..cuda.run import run

    return run


@cache
def _one_crossing() -> Callable[..., tuple[Tensor, ...] | None]:
    """Return `gpu_calls.run_op`, which imports this module."""
    from .gpu_calls import run_op

    return run_op


def _run_on_device(op: Op, p: _DeviceCall, inputs: list[Any], device: Any, tensor: Tensor) -> tuple[Tensor, ...]:
    if p.prepared is not None and not device.waits():
        outputs: tuple[Tensor, ...] | None = device.calls.run_op(op, p.prepared, inputs)
        if outputs is not None:
            return outputs
    run = _cuda_run()
    if devices.is_current(tensor):
        return run(op, inputs, p.constants, p.outputs, device, devices.is_captured())
    with devices.current_device_of(tensor):
        return run(op, inputs, p.constants, p.outputs, device, devices.is_captured())


def _readable_argument(tensor: Tensor, argument: str) -> Tensor:
    """Return `readable(tensor)`; raise if the copy does not fit in memory, as for an expanded tensor."""
    try:
        return readable(tensor)
    except RuntimeError:
        if not tensor.is_cpu:
            raise
        size = tensor.numel() * tensor.element_size()
        raise make_error("argument_memory", argument=argument, value=size) from None


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor as kernels read it: contiguous, aligned, conjugation and negation resolved."""
    if tensor._is_zerotensor():
        return tensor.clone()
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() and tensor.numel() else tensor


def _allocate(shape: Sequence[int], dtype: torch.dtype, zeros: bool) -> Tensor:
    """Allocate an output; raise if it does not fit in memory."""
    try:
        return new_tensor(shape, dtype, zeros)
    except (MemoryError, ValueError, RuntimeError):
        name = next(n for n, d in DTYPE.items() if d == dtype)
        raise too_large(Aval(name, tuple(shape))) from None
