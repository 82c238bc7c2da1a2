"""Convert arguments of calls with JAX arrays, and results to JAX arrays.

JAX has no 64-bit dtypes unless `jax_enable_x64` is set. Without it, int32 arrays stand in for arguments and results
that are always int64 in the op; a number that does not fit is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from .._catalog.shapes import check_elements
from .._catalog.spec import QUANTIZED, Arg, Aval, Op, regroup, spread
from .._runtime.arrays import NUMPY_DTYPE, Array, admit, aval_of, fit, host_value, is_masked, plain_array
from .._runtime.results import too_large
from ..errors import make_error

_ELEMENTS = 1 << 59  # of 16 bytes: beyond this, sizes in bytes overflow and XLA aborts the process
NAMES = tuple(n for n in NUMPY_DTYPE if n not in (*QUANTIZED, "string"))
_NAME = {NUMPY_DTYPE[n]: n for n in NAMES}


class Host(NamedTuple):
    """A host input, which decides shapes, so its value is static. Hashable: it is part of the key of compiled calls."""

    value: int | tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]

    @property
    def aval(self) -> Aval:
        """The dtype and shape."""
        return Aval(self.dtype, self.shape)


@dataclass(frozen=True)
class Like:
    """The shape and dtype of an array that is not saved. Ops that need only its size treat it as zeros."""

    __rowgrad_runner__ = "rowgrad.jax"
    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)


class Admitted(NamedTuple):
    """The arguments of a call by name: arrays and tracers, host inputs, and the catalog's view of all of them."""

    arrays: dict[str, Any]
    host: dict[str, Host]
    avals: dict[str, Any]

    @property
    def host_values(self) -> dict[str, Any]:
        """The values of the host inputs."""
        return {name: h.value for name, h in self.host.items()}


def register_for_export(
    kind: type, to_json: Callable[[Any], Any] = lambda static: static, from_json: Callable[[Any], Any] = lambda x: x
) -> None:
    """Let `jax.export` serialize a pytree, if this version of JAX can; its static part becomes JSON."""
    register = getattr(jax.export, "register_pytree_node_serialization", None)
    if register is not None:
        register(
            kind,
            serialized_name=f"rowgrad.{kind.__name__}",
            serialize_auxdata=lambda static: json.dumps(to_json(static)).encode(),
            deserialize_auxdata=lambda data: from_json(json.loads(bytes(data))),
        )


def is_traced(value: Any) -> bool:
    """Return whether JAX traces a value, which then has a shape but no elements."""
    try:
        return _holds_tracer(value)
    except RecursionError:  # a list that contains itself
        return False


def _holds_tracer(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_tracer, value))
    return isinstance(value, jax.core.Tracer)


def is_jax(value: Any) -> bool:
    """Return whether a value is a JAX array, a tracer, or a stand-in for one."""
    return isinstance(value, jax.Array | Like)


def as_jax(value: Any, argument: str) -> Any:
    """Convert a value to a JAX array; the error for anything but numbers names the argument."""
    if is_jax(value):
        return value
    if is_traced(value):
        return jax.numpy.asarray(value)
    array = plain_array(value, argument)
    try:
        return jax.numpy.asarray(array)
    except (TypeError, ValueError):
        kind = type(value).__name__ if array.dtype == object else array.dtype
        raise make_error("not_an_array", argument=argument, value=kind) from None


def canonical_dtype(name: str) -> np.dtype[Any]:
    """Return JAX's dtype for one of the catalog's."""
    dtype: np.dtype[Any] = jax.dtypes.canonicalize_dtype(NUMPY_DTYPE[name])
    return dtype


def canonical_aval(aval: Aval) -> Aval:
    """Return the type of an output in JAX's dtypes."""
    return Aval(_NAME[canonical_dtype(aval.dtype)], aval.shape)


def check_sizes(outputs: Sequence[Aval], advice: str) -> None:
    """Raise unless sizes are static and within the limits of XLA."""
    if any(d is None for o in outputs for d in o.shape):
        raise make_error("size_traced", bound=advice)
    for aval in outputs:
        check_elements(aval.shape)
        if prod(max(d, 1) for d in aval.shape if d is not None) >= _ELEMENTS:
            raise too_large(aval)


def admit_arrays(op: Op, arguments: Mapping[str, Any]) -> Admitted:
    """Convert arguments: JAX arrays stay as they are, other values are converted as by NumPy's runner."""
    inputs, values = spread(op, arguments) if op.has_lists else (op.inputs, arguments)
    stand_ins: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for arg in inputs:
        value = values[arg.name]
        if arg.host:
            stand_ins[arg.name] = _known(arg, value)
        elif is_jax(value):
            arrays[arg.name] = _filled(value)
            stand_ins[arg.name] = np.zeros((0,) * value.ndim, _dtype(value, arg.name))
        else:
            stand_ins[arg.name] = _narrowed(value, arg.name)
    admitted = admit(op, regroup(op, stand_ins)) if op.has_lists else admit(op, stand_ins)
    converted = spread(op, admitted)[1] if op.has_lists else admitted
    host: dict[str, Host] = {}
    avals: dict[str, Aval] = {}
    for arg in inputs:
        array = converted[arg.name]
        aval = aval_of(array)
        if aval.dtype not in NAMES:
            raise make_error("dtype_not_allowed", argument=arg.name, value=aval.dtype, bound=", ".join(NAMES))
        if arg.host:
            host[arg.name] = Host(host_value(array), aval.dtype, array.shape)
            avals[arg.name] = aval
            continue
        dtype = canonical_dtype(aval.dtype)
        if arg.name not in arrays:
            fitted = _fitted(array, arg.name, dtype)
            # A derivative may be computed later, after the caller changed the array.
            arrays[arg.name] = fitted.copy() if np.may_share_memory(fitted, array) else fitted
        elif arrays[arg.name].dtype != dtype:
            arrays[arg.name] = arrays[arg.name].astype(dtype)
        # The dtype that the op declares, even if JAX has a narrower one.
        avals[arg.name] = Aval(aval.dtype, tuple(arrays[arg.name].shape))
    arrays = {arg.name: arrays[arg.name] for arg in inputs if not arg.host}
    if not op.has_lists:
        return Admitted(arrays, host, avals)
    lists = regroup(op, {**arrays, **host})
    return Admitted({name: x for name, x in lists.items() if name not in host}, host, regroup(op, avals))


def _dtype(value: Any, argument: str) -> np.dtype[Any]:
    check_present(value, argument)
    dtype = np.dtype(value.dtype) if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else None
    if dtype not in _NAME:
        raise make_error("dtype_not_allowed", argument=argument, value=value.dtype, bound=", ".join(NAMES))
    return dtype


def check_present(value: Any, argument: str) -> None:
    """Raise if an array was donated to a compiled call, or deleted."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.is_deleted():
        raise make_error("no_memory", argument=argument)


def _filled(value: Any) -> Any:
    """Return zeros for a value that is only a shape, for ops that need only the size of an array."""
    return jax.numpy.zeros(value.shape, value.dtype) if isinstance(value, Like) else value


def _known(arg: Arg, value: Any) -> Any:
    """Return the value of a host input; raise for a tracer."""
    if is_traced(value):
        raise make_error("host_traced", argument=arg.name)
    check_present(value, arg.name)
    return np.asarray(value) if isinstance(value, jax.Array) else value


def _narrowed(value: Any, argument: str) -> Any:
    """Convert a NumPy array to the dtype that JAX would use."""
    if is_masked(value):
        return value  # NumPy's runner rejects it
    if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype in _NAME:
        array = np.asarray(value)
        return _fitted(array, argument, jax.dtypes.canonicalize_dtype(array.dtype))
    return value


def _fitted(array: Array, argument: str, dtype: np.dtype[Any]) -> Array:
    if array.dtype == dtype:
        return array
    return fit(array, argument, dtype) if dtype.kind in "iu" else array.astype(dtype)


def to_numpy(value: Any, argument: str) -> Any:
    """Return a JAX array as a NumPy array, sharing host memory; NumPy's floats in JAX's dtype."""
    try:
        return _to_numpy(value, argument)
    except RecursionError:  # a list that contains itself, which NumPy's runner rejects
        return value


def _to_numpy(value: Any, argument: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value if value.dtype.kind in "iub" else _narrowed(value, argument)
    if isinstance(value, list | tuple):
        return type(value)(_to_numpy(v, argument) for v in value)
    if not is_jax(value):
        return value
    dtype = _dtype(value, argument)
    return np.asarray(value) if isinstance(value, jax.Array) else np.zeros(value.shape, dtype)


def from_numpy(array: Array, name: str, device: Any = None) -> Any:
    """Convert a result that has no other owner to a JAX array, sharing memory if JAX can."""
    array = _fitted(array, name, jax.dtypes.canonicalize_dtype(array.dtype))
    with jax.ensure_compile_time_eval():  # known arrays stay out of the program being traced
        return jax.device_put(array, device)
