"""Validate a call by dtypes, shapes, host values and attributes, and infer its outputs. Data is never read."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from .._catalog.spec import TENSORFLOW_NAME, Aval, Derived, Known, Op, spread, value_text
from .._hints import did_you_mean
from ..errors import OpError, make_error


def infer(op: Op, avals: Mapping[str, Any], host: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Aval, ...]:
    """Return the avals of the outputs; data-dependent dimensions are None.

    Args:
        op: The record.
        avals: The avals of the arguments; a tuple for a list.
        host: The values of host inputs, where known.
        attrs: The attributes.

    Raises:
        OpError: If the call is invalid.
    """
    dtypes = output_dtypes(op, avals, attrs)
    try:
        shapes = op.shape(Known(avals, host, attrs))
    except OpError as error:
        if error.argument is not None and error.argument.partition("[")[0] not in {*avals, *attrs}:
            error.argument = None
        raise
    return tuple(map(Aval, dtypes, shapes))


def output_dtypes(op: Op, avals: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dtypes of the outputs, which do not depend on shapes."""
    bound = bind_types(op, avals)
    # The type of an output may be an attribute that names a dtype.
    return tuple(bound.get(o.type) or attrs.get(o.type, o.type) for o in op.outputs)


def bind_types(op: Op, avals: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtype of each type variable; raise for the first argument that does not match."""
    bound: dict[str, str] = {}
    inputs, flat = spread(op, avals) if op.has_lists else (op.inputs, avals)
    for arg in inputs:
        dtype = flat[arg.name].dtype
        listed = op.types.get(arg.type)
        if listed is None:
            if dtype != arg.type:
                raise make_error("dtype_expected", argument=arg.name, value=dtype, bound=arg.type, why="")
        elif isinstance(listed, Derived):
            expected = listed[bound[listed.of]]
            if listed.declared and dtype not in listed.declared:
                names = [TENSORFLOW_NAME.get(d, d) for d in (dtype, *listed.declared)]
                allowed = ", ".join(names[1:])
                raise make_error("attr_dtype", argument=arg.name, attr=arg.type, value=names[0], bound=allowed)
            if dtype != expected:
                why = f", the type that goes with {listed.of} = {bound[listed.of]}"
                raise make_error("dtype_expected", argument=arg.name, value=dtype, bound=expected, why=why)
        elif dtype not in listed:
            key = "dtype_without_kernel" if arg.type in op.unlisted else "dtype_not_allowed"
            advice = integer_advice(dtype) if set(listed) == {"int32", "int64"} else ""
            raise make_error(key, argument=arg.name, value=dtype, bound=", ".join(listed), advice=advice)
        elif bound.setdefault(arg.type, dtype) != dtype:
            why = f", the {arg.type} of the arguments before it"
            raise make_error("dtype_expected", argument=arg.name, value=dtype, bound=bound[arg.type], why=why)
    for variable, listed in op.types.items():
        if isinstance(listed, Derived):
            bound[variable] = listed[bound[listed.of]]
    return bound


def integer_advice(dtype: str) -> str:
    """Return what to do with an array of this dtype where int32 or int64 is needed; "" if nothing can be done."""
    if "bool" in dtype:
        return "For a mask, pass the positions of its True elements."
    return "Convert it to int64." if "int" in dtype or "float" in dtype else ""


def validate_attrs(op: Op, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return validated attributes: one of the allowed values, or a value of the default's type.

    Numbers become plain Python numbers and bools are rejected as numbers: in cache keys, 0, 0.0 and False are equal.
    """
    return {name: _validate_attr(op, name, attrs[name]) for name in op.attrs}


def _validate_attr(op: Op, name: str, value: Any) -> Any:
    choices = op.choices.get(name)
    if choices is not None:
        if not any(value is c or (type(value) is type(c) and value == c) for c in choices):
            bound = ", ".join(map(repr, choices))
            advice = did_you_mean(value, [c for c in choices if isinstance(c, str)])
            raise make_error("attr_not_allowed", argument=name, value=value_text(value), bound=bound, advice=advice)
        return value
    default = op.attrs[name]
    if isinstance(default, bool | str):
        if isinstance(value, type(default)):
            return value
    elif isinstance(default, int):
        if _is_whole(value):
            return _to_int64(name, value)
    elif isinstance(default, float):
        if _is_whole(value):
            return int(value)
        if isinstance(value, (float, numbers.Real)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, numbers.Complex) and not isinstance(value, bool) and _is_complex(op):
            return complex(value)
    elif value is None:
        return default
    elif isinstance(value, (list, tuple)) and all(map(_is_whole, value)):
        return tuple(_to_int64(name, v) for v in value)
    kind = "a list of whole numbers" if default is None else _KINDS[type(default)]
    raise make_error("attr_kind", argument=name, value=value_text(value), bound=kind)


_KINDS = {bool: "bool", str: "str", int: "a whole number", float: "a number", tuple: "a list of whole numbers"}


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, numbers.Integral)) and not isinstance(value, bool)


def _to_int64(name: str, value: Any) -> int:
    """Return an int; raise if it does not fit int64."""
    if not -(1 << 63) <= value < 1 << 63:
        raise make_error("integer_does_not_fit", argument=name, value=value_text(int(value)), bound="int64")
    return int(value)


def _is_complex(op: Op) -> bool:
    """Return whether an op accepts complex numbers."""
    return any("complex64" in listed for listed in op.types.values() if not isinstance(listed, Derived))
