"""The NumPy runner: convert and validate arguments, allocate outputs, run the kernel, raise the faults it reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._catalog.kernels import KERNELS
from .._catalog.spec import QUANTIZED, Aval, Op
from .._core import Job, dtypes, kernels
from .._core import num_threads as _num_threads
from .._core import set_num_threads as _set_num_threads
from ..errors import OpError, make_error
from . import numpy_dense
from .arrays import NUMPY_DTYPE, Array, admit, aval_of, base_view, copy_host_inputs, host_value, is_ndarray
from .memory import GradBuffer, new_array
from .results import check_size, copy_to_out, out_buffers, out_views, too_large
from .validation import infer

KERNEL = {name: i for i, (name, _) in enumerate(kernels())}
_NOTHING: tuple[tuple[Array, ...], bytes] = ((), b"")
CODE_NAME = dtypes()
CODE = {name: i for i, name in enumerate(CODE_NAME)}


def set_num_threads(n: int) -> None:
    """Set the number of threads that kernels use. It never changes a result.

    Args:
        n: From 1 to 1024.

    Raises:
        ValueError: If n is not an int from 1 to 1024.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 1024:
        raise ValueError(f"set_num_threads: n must be an int from 1 to 1024; got {n!r}")
    _set_num_threads(n)


def num_threads() -> int:
    """Return the number of threads that kernels use."""
    return int(_num_threads())


def _threads_from_environment() -> None:
    text = os.environ.get("ROWGRAD_NUM_THREADS")
    if text:
        try:
            set_num_threads(int(text))
        except ValueError:
            raise ValueError(f"ROWGRAD_NUM_THREADS must be an int from 1 to 1024; got {text!r}") from None


_threads_from_environment()


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], out: Any) -> tuple[Array, ...]:
    """Run an op on NumPy arrays."""
    if op.kernel is None:
        return numpy_dense.call(op, arguments, attrs, out)
    key = call_key(op, arguments, attrs) if out is None else None
    prepared = _PREPARED.get(key)
    if prepared is not None:
        try:
            return _run_prepared(op, prepared, arguments)
        except (BufferError, ValueError, MemoryError) as error:  # strided, unaligned or too large: take the full path
            if isinstance(error, OpError):
                raise
    buffer_out = None
    if isinstance(out, GradBuffer):  # read attributes and list items, which may run user code, before any array
        buffer_out, out = _BufferOut(out, out.written), out.array
    if out is not None:
        out = out_buffers(out)
    arguments = copy_host_inputs(op, arguments)
    key = None if key is None else call_key(op, arguments, attrs)
    arrays = admit(op, arguments)
    avals = {name: aval_of(a) for name, a in arrays.items()}
    host = {a.name: host_value(arrays[a.name]) for a in op.inputs if a.host and avals[a.name].dtype in CODE}
    outputs = infer(op, avals, host, attrs)
    texts = [a.name for a in op.inputs if avals[a.name].dtype == "string"]
    if buffer_out is not None and (texts or not KERNELS[op.kernel].writes_named_rows):
        raise make_error("out_unfit", argument=op.outputs[0].name, bound="an array", value="a GradBuffer")
    if texts:
        return copy_to_out(op, _launch_strings(op, arrays, attrs, avals, outputs, texts), out, arrays)
    results = _launch(op, arrays, attrs, avals, outputs, out, buffer_out)
    if key is not None and _is_unconverted(op, arrays, arguments):
        _cache_call(key, op, arrays, attrs, avals, outputs, results)
    return results


def constants_of(op: Op, attrs: Mapping[str, Any]) -> list[int]:
    """Return the kernel's numeric parameters: the record's constants, then the call's attributes."""
    return [*op.constants, *(op.choices[k].index(attrs[k]) for k in op.passed)]


class _BufferOut(NamedTuple):
    """A GradBuffer passed as `out`, and its written rows."""

    buffer: GradBuffer
    written: Array


def _launch(
    op: Op,
    arrays: dict[str, Array],
    attrs: Mapping[str, Any],
    avals: Mapping[str, Aval],
    outputs: Sequence[Aval],
    out: tuple[Any, ...] | None = None,
    buffer_out: _BufferOut | None = None,
) -> tuple[Array, ...]:
    inputs = _raw(arrays.values(), avals.values())
    try:
        job = Job(KERNEL[str(op.kernel)], constants_of(op, attrs), *inputs, tuple(a.shape for a in avals.values()))
    except (BufferError, ValueError):  # an array changed after it was validated
        raise make_error("argument_changed") from None
    raise_fault(op, job.fault)
    sized = [Aval(o.dtype, tuple(job.rows if d is None else d for d in o.shape)) for o in outputs]
    for aval in sized:
        check_size(aval)
    views = None if out is None else out_views(op, sized, out, arrays)
    results = views or tuple(_allocate(a, job.fills) for a in sized)
    stale = _NOTHING if buffer_out is None else _stale_rows(buffer_out)
    zeros = buffer_out is not None or (views is None and not job.fills)
    raise_fault(op, job.run(*_raw(results, sized), zeros, *stale))
    if buffer_out is not None and not (job.wrote_all and stale[0][0].shape[0] == results[0].shape[0]):
        buffer_out.buffer._remember(job.written())
    return out if out is not None else results


def _stale_rows(buffer_out: _BufferOut) -> tuple[tuple[Array, ...], bytes]:
    """Return the rows that the kernel has to clear in a GradBuffer."""
    rows = base_view(buffer_out.written) if is_ndarray(buffer_out.written) else None
    if rows is None or rows.ndim != 1 or rows.dtype not in (np.int32, np.int64) or not rows.flags.c_contiguous:
        raise make_error(
            "out_unfit", argument="out", bound="an intact GradBuffer", value="one whose `written` is not row numbers"
        )
    return (rows,), bytes([CODE[rows.dtype.name]])


def _raw(arrays: Iterable[Array], avals: Iterable[Aval]) -> tuple[tuple[Array, ...], bytes]:
    """Return the arrays as dtypes of the buffer protocol, and their dtype codes."""
    views, codes = [], bytearray()
    for a, aval in zip(arrays, avals, strict=True):
        name = aval.dtype
        if name == "string":  # kernels move the positions of strings
            name = "int64"
        if name == "bfloat16":
            a = a.view(np.uint16)
        elif name in QUANTIZED:
            a = a.view(a.dtype[0])
        views.append(a)
        codes.append(CODE[name])
    return tuple(views), bytes(codes)


def raise_fault(op: Op, fault: tuple[str, int, int, int] | None) -> None:
    """Raise the error of a fault that a kernel reported."""
    if fault is not None:
        key, position, value, bound = fault
        raise make_error(key, has=op.input_names, position=position, value=value, bound=bound)


def _allocate(aval: Aval, filled: bool) -> Array:
    shape = tuple(int(d) for d in aval.shape if d is not None)
    try:
        # Strings stay in Python: kernels move their positions.
        return new_array(shape, np.dtype(np.int64) if aval.dtype == "string" else NUMPY_DTYPE[aval.dtype], not filled)
    except (MemoryError, ValueError):  # NumPy raises ValueError for a shape it cannot index
        raise too_large(aval) from None


def _launch_strings(
    op: Op,
    arrays: dict[str, Array],
    attrs: Mapping[str, Any],
    avals: Mapping[str, Aval],
    outputs: Sequence[Aval],
    texts: list[str],
) -> tuple[Array, ...]:
    """Run the kernel on positions 0, 1, 2, … instead of strings, then look up the strings."""
    dtype = arrays[texts[0]].dtype  # object or StringDType, as the values
    pool = np.concatenate([_strings_as(dtype, arrays[name].reshape(-1), name) for name in texts])
    stand_in, start = dict(arrays), 0
    for name in texts:
        n = arrays[name].size
        stand_in[name] = np.arange(start, start + n, dtype=np.int64).reshape(arrays[name].shape)
        start += n
    results = _launch(op, stand_in, attrs, avals, outputs)
    return tuple(pool[r] if o.dtype == "string" else r for r, o in zip(results, outputs, strict=True))


def _strings_as(dtype: np.dtype[Any], strings: Array, argument: str) -> Array:
    """Convert strings to this dtype; raise if it cannot represent one."""
    if strings.dtype == dtype:
        return strings
    if hasattr(strings.dtype, "na_object"):  # a missing value would become text, or an object that is not a string
        for position, item in enumerate(strings.astype(object)):
            if not isinstance(item, str):
                raise make_error("string_missing", argument=argument, position=position, value=repr(item))
    try:
        return strings.astype(dtype)
    except UnicodeDecodeError:
        value = "bytes that are not UTF-8"
        raise make_error(
            "dtype_expected", argument=argument, value=value, bound="text", why=", as the values"
        ) from None


# -- Prepared calls: validated once for equal dtypes, shapes, host values and attributes ------------------------------


class _Prepared(NamedTuple):
    kernel: int
    constants: list[int]
    views: tuple[np.dtype[Any] | None, ...] | None  # the view dtype of each input; None: none needs a view
    host: tuple[tuple[int, Array], ...]  # host inputs by position; the key contains their values
    codes: bytes
    shapes: tuple[tuple[Any, ...], ...]
    outputs: tuple[tuple[tuple[Any, ...], np.dtype[Any], np.dtype[Any] | None], ...]
    out_codes: bytes


_PREPARED: dict[Any, _Prepared] = {}
_MAX_PREPARED = 4096
# Exact types: the value of a subclass may differ each time it is read.
_INTEGERS = frozenset((int, bool, *(np.dtype(c).type for c in "bBhHiIlLqQ")))


def call_key(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any]) -> Any:
    """Return all that determines a call except its data; None if an argument is not a plain array or number."""
    key: list[Any] = [op.name]
    for arg, value in zip(op.inputs, arguments.values(), strict=True):
        if type(value) is np.ndarray:
            key.append(value.dtype)
            key.append(value.shape)
            if arg.host:
                key.append(value.tobytes())
        elif arg.host and type(value) in _INTEGERS:
            key.append(type(value))  # a bool is not the int it equals
            key.append(int(value))
        else:
            return None
    if attrs is not op.attrs:
        key += attrs.values()
    return tuple(key)


def _is_unconverted(op: Op, arrays: dict[str, Array], arguments: dict[str, Any]) -> bool:
    """Return whether no argument was converted: only then may later calls with this key skip `admit`."""
    return all(arg.host or arrays[arg.name] is arguments[arg.name] for arg in op.inputs)


def _cache_call(
    key: Any,
    op: Op,
    arrays: dict[str, Array],
    attrs: Mapping[str, Any],
    avals: Mapping[str, Aval],
    outputs: Sequence[Aval],
    results: Any,
) -> None:
    if len(_PREPARED) >= _MAX_PREPARED:
        _PREPARED.clear()
    inputs, codes = _raw(arrays.values(), avals.values())
    views = tuple(None if i is a else i.dtype for i, a in zip(inputs, arrays.values(), strict=True))
    raw, out_codes = _raw(results, outputs)

    _PREPARED[key] = _Prepared(
        KERNEL[str(op.kernel)],
        constants_of(op, attrs),
        views if any(v is not None for v in views) else None,
        tuple((i, inputs[i].copy()) for i, arg in enumerate(op.inputs) if arg.host),
        codes,
        tuple(a.shape for a in avals.values()),
        tuple((o.shape, r.dtype, None if v is r else v.dtype) for o, r, v in zip(outputs, results, raw, strict=True)),
        out_codes,
    )


def _run_prepared(op: Op, p: _Prepared, arguments: dict[str, Any]) -> tuple[Array, ...]:
    inputs = list(arguments.values())
    for i, array in p.host:
        inputs[i] = array
    if p.views is not None:
        inputs = [a if v is None else a.view(v) for a, v in zip(inputs, p.views, strict=True)]
    job = Job(p.kernel, p.constants, tuple(inputs), p.codes, p.shapes)
    if job.fault is not None:
        raise_fault(op, job.fault)
    results: list[Array] = []
    raw: list[Array] = []
    for shape, dtype, view in p.outputs:
        if None in shape:
            shape = tuple(job.rows if d is None else d for d in shape)
            check_size(Aval(CODE_NAME[p.out_codes[len(results)]], shape))
        result = new_array(shape, dtype, not job.fills)
        results.append(result)
        raw.append(result if view is None else result.view(view))
    fault = job.run(tuple(raw), p.out_codes, not job.fills, *_NOTHING)
    if fault is not None:
        raise_fault(op, fault)
    return tuple(results)
