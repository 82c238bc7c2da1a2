"""Kernel calls on CUDA devices: their lowering to XLA custom calls, calls outside of `jit`, and the errors of bad ids.

The handler is C++ (`cpp/bind/xla_cuda.cpp`). It opens the driver and compiles kernels when a program first calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._catalog.enums import Fault
from .._catalog.spec import CATALOG, Op
from .._core import cuda_ops, xla_cuda_handler, xla_cuda_open, xla_cuda_reported, xla_cuda_synchronize
from .._runtime.validation import infer
from .arrays import Host, admit_arrays
from .fault_errors import error_of

TARGET = "rowgrad_cuda_kernel"
EARLIER = "in an earlier call on a CUDA device"
KERNELS = frozenset(cuda_ops())
_INT32_MAX = (1 << 31) - 1


def has_kernel(op: Op) -> bool:
    """Return whether XLA can call the op's kernel on CUDA devices."""
    return op.kernel in KERNELS


def synchronize() -> None:
    """Wait for all work on CUDA devices, and raise the oldest fault that kernels reported there.

    Compiled programs cannot raise when their kernels find a bad id: outputs are NaN, and the next call on the device
    raises, or this function. Without a CUDA device it does nothing.

    Raises:
        OpError: If an earlier call had bad ids.

    >>> import rowgrad.jax as rgj
    >>> rgj.synchronize()
    """
    for device in _devices():
        _next(jax.device_put(np.zeros((), np.int32), device)).block_until_ready()  # earlier programs have been queued
    xla_cuda_synchronize()
    raise_reported()


def raise_reported(own: str | None = None) -> None:
    """Raise the oldest reported fault, and drop the others. `own`: the op of the current call, if it waited."""
    reports = xla_cuda_reported()
    if not reports:
        return
    text, got, code, position, value, bound = reports[0]
    error, name, got = error_of(text, got, Fault(code).name, position, value, bound)
    raise error if name == own else error.in_call(name, None, got, context=EARLIER)


def _devices() -> list[Any]:
    try:
        return jax.local_devices(backend="cuda")
    except RuntimeError:  # JAX has no such backend
        return []


@jax.jit
def _next(x: Any) -> Any:
    return x + 1


# -- Calls outside of `jit` -------------------------------------------------------------------------------------------


def is_on_device(values: Iterable[Any]) -> bool:
    """Return whether known arrays are on a CUDA device, so that a call on them stays there."""
    return any(isinstance(x, jax.Array) and all(map(_is_cuda, x.sharding.device_set)) for x in values)


@cache
def _is_cuda(device: Any) -> bool:
    return device.platform == "gpu" and "cuda" in device.client.platform_version.lower()


def call(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Run an op on known arrays of a CUDA device; None for ops, and invalid ids, that the host has to run.

    The call does not wait for its kernels, except if data decides the number of rows.
    """
    if not has_kernel(op):
        return None
    raise_reported()
    admitted = admit_arrays(op, arguments)
    infer(op, admitted.avals, admitted.host_values, attrs)
    with jax.ensure_compile_time_eval():
        if not op.is_data_sized:
            return _run(op, admitted.arrays, admitted.host, attrs)
        if op.padded:
            return _unique_rows(op, admitted.arrays, admitted.host, attrs)
        return _all_segments(op, admitted.arrays, admitted.host, attrs) if op.sized else None


def _run(op: Op, arrays: Mapping[str, Any], host: Mapping[str, Host], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    found = _compiled(*arrays.values(), op=op.name, host=tuple(host.items()), attrs=tuple(attrs.items()))
    return tuple(found)


@partial(jax.jit, static_argnames=("op", "host", "attrs"))
def _compiled(*operands: Any, op: str, host: Any, attrs: Any) -> Any:
    from .primitive import PRIMITIVES  # which imports this module

    return PRIMITIVES[op].bind(*operands, host=host, attrs=attrs)


def _all_segments(op: Op, arrays: Mapping[str, Any], host: Mapping[str, Host], attrs: Mapping[str, Any]) -> Any:
    """Run the op with as many rows as the last segment says; None if the host will reject the segments."""
    last, last_is_valid = -1, True
    if arrays["segment_ids"].shape[0]:
        last, is_ascending = map(int, _last_segment(arrays["segment_ids"]))
        last_is_valid = 0 <= last < _INT32_MAX and is_ascending == 1
    if not last_is_valid:
        return None
    sized = {**host, "num_segments": Host(last + 1, "int32", ())}
    return _run(CATALOG[op.sized], arrays, sized, {k: v for k, v in attrs.items() if k in CATALOG[op.sized].attrs})


@jax.jit
def _last_segment(segments: Any) -> tuple[Any, Any]:
    """Return the last segment, and whether segments ascend from 0: some ops need it only without `num_segments`."""
    return segments[-1], jnp.all(segments[1:] >= segments[:-1]) & (segments[0] >= 0)


def _unique_rows(op: Op, arrays: Mapping[str, Any], host: Mapping[str, Host], attrs: Mapping[str, Any]) -> Any:
    """Run the op padded to as many rows as there can be, and keep those that ids name."""
    rows = host["dense_output_dim0"].value
    assert isinstance(rows, int)
    size = min(arrays["indices"].shape[0], rows)
    more = {"size": Host(size, "int64", ()), "fill_id": Host(rows, "int64", ())}
    if rows > np.iinfo(arrays["indices"].dtype).max:
        return None  # no fill id
    values, ids = _run(CATALOG[op.padded], arrays, {**host, **more}, attrs)
    count = int(_count_below(ids, rows))
    raise_reported(op.padded)
    return values[:count], ids[:count]


@partial(jax.jit, static_argnums=1)
def _count_below(ids: Any, bound: int) -> Any:
    return jnp.sum(ids != bound)


def _load(architecture: str, kernel: str, variant: str) -> tuple[bytes, str, int]:
    """Return a kernel's machine code, the name of its entry and its block size."""
    # Sources are read when a program first calls a kernel.
    from ..cuda import features  # noqa: F401  the kernels of many tables
    from ..cuda.launcher_kernels import load_kernel

    return load_kernel(architecture, kernel, variant)


xla_cuda_open(_load, None)
# JAX keeps this until it has a CUDA backend.
jax.ffi.register_ffi_target(TARGET, xla_cuda_handler(), platform="CUDA")
