"""One kernel on CPU tensors: no autograd, no tracing, no copies. Calls like an earlier one skip its judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._core import Job
from ..check import infer
from ..errors import refuse
from ..native import CODE, CODE_NAME, KERNEL, check_size, constants_of, raise_fault, too_large
from ..spec import Aval, Op
from .tensors import CODE_OF, DTYPE, Host, admit_tensors, aval_of, new_tensor

PLAIN = (Tensor, torch.nn.Parameter)


class _Prepared(NamedTuple):
    kernel: int
    constants: list[int]
    host: tuple[tuple[int, np.ndarray[Any, Any]], ...]  # by position
    codes: bytes
    outputs: tuple[tuple[tuple[Any, ...], torch.dtype], ...]
    out_codes: bytes


_PREPARED: dict[Any, _Prepared] = {}
_MANY = 4096


def launch(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Run a kernel op on real tensors, Python numbers and lists."""
    key, given = _key(op, arguments, attrs)
    prepared = _PREPARED.get(key) if key is not None else None
    if prepared is None:
        admitted = admit_tensors(op, arguments)
        for arg in op.inputs:
            value = admitted[arg.name]
            if not isinstance(value, Host) and not value.is_cpu:
                raise refuse("no_kernel_for_device", argument=arg.name, value=value.device, bound="cpu")
        prepared = _prepare(op, admitted, attrs)
        taken = [admitted[name] for name in op.input_names]
        if key is not None and all(arg.host or t is v for arg, t, v in zip(op.inputs, taken, given, strict=True)):
            if len(_PREPARED) >= _MANY:
                _PREPARED.clear()
            _PREPARED[key] = prepared
        return _run(op, prepared, taken, judged=False)
    return _run(op, prepared, given, judged=True)


def _key(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """What decides a call apart from its data, or None where an argument is no plain CPU tensor or size."""
    key: list[Any] = [op.name]
    given = list(arguments.values())
    for arg, value in zip(op.inputs, given, strict=True):
        kind = type(value)
        if kind is int and arg.host:
            key.append(value)
        elif kind in PLAIN and not arg.host and value.is_cpu and value.layout is torch.strided:
            key.append(value.dtype)
            key.append(value.shape)
        else:
            return None, given
    if attrs is not op.attrs:
        key += attrs.values()
    return tuple(key), given


def _prepare(op: Op, admitted: Mapping[str, Any], attrs: Mapping[str, Any]) -> _Prepared:
    avals = {name: aval_of(value) for name, value in admitted.items()}
    values = {name: value.value for name, value in admitted.items() if isinstance(value, Host)}
    outputs = infer(op, avals, values, attrs)
    host = tuple(
        (i, np.array(values[arg.name], avals[arg.name].dtype).reshape([d or 0 for d in avals[arg.name].shape]))
        for i, arg in enumerate(op.inputs)
        if arg.host
    )
    return _Prepared(
        KERNEL[str(op.kernel)],
        constants_of(op, attrs),
        host,
        bytes(CODE[avals[name].dtype] for name in op.input_names),
        tuple((o.shape, DTYPE[o.dtype]) for o in outputs),
        bytes(CODE[o.dtype] for o in outputs),
    )


def _run(op: Op, p: _Prepared, given: Sequence[Any], judged: bool) -> tuple[Tensor, ...]:
    held = [v if isinstance(v, Host | int) else readable(v) for v in given]
    raw: list[Any] = [None if isinstance(v, Host | int) else (v.data_ptr(), *v.shape) for v in held]
    for i, array in p.host:
        raw[i] = array
    job = Job(p.kernel, p.constants, tuple(raw), p.codes)
    if job.fault is not None:
        raise_fault(op, job.fault)
    results = []
    for k, (shape, dtype) in enumerate(p.outputs):
        open_rows = None in shape
        if open_rows:
            shape = tuple(job.rows if d is None else d for d in shape)
        if open_rows or not judged:
            check_size(Aval(CODE_NAME[p.out_codes[k]], shape))
        results.append(allocate(shape, dtype, not job.fills, p.out_codes[k]))
    fault = job.run(tuple((r.data_ptr(), *r.shape) for r in results), p.out_codes, not job.fills, (), b"")
    if fault is not None:
        raise_fault(op, fault)
    return tuple(results)


def readable(tensor: Tensor) -> Tensor:
    """The tensor as kernels read it: contiguous, with no conjugation or sign left to do, aligned."""
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() and tensor.numel() else tensor


def allocate(shape: Sequence[int], dtype: torch.dtype, zeros: bool, code: int) -> Tensor:
    """Memory for an output, or the refusal that says it does not fit."""
    try:
        return new_tensor(shape, dtype, zeros)
    except (MemoryError, ValueError, RuntimeError):
        raise too_large(Aval(CODE_NAME[code], tuple(shape))) from None


def code_of(tensor: Tensor) -> int:
    """The kernels' number for a tensor's dtype."""
    return CODE_OF[tensor.dtype]
