"""Encode and decode values without a dtype and attributes: Python numbers, strings and lists as JSON.

A number that JSON or a browser cannot represent is an object with one field, such as `{"int": "9007199254740993"}`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import rowgrad.graph.io.arrays as arrays
import rowgrad.graph.io.fields as fields

from ..page import PageError
from .strict_json import MAX_DEPTH, MAX_DIGITS

ArrayReader = Callable[[Any, str], Any]  # (object, its place) -> array
MINUS_ZERO = "-0.0"  # JavaScript writes the number as 0
WRAPPERS = ("int", "float", "complex", "base64")
_LARGEST = 10**MAX_DIGITS // 10  # a sign takes one of the characters


def encode_attr(value: Any, place: str, browser: bool = False, depth: int = 0) -> Any:
    """Encode an attribute."""
    if value is None:
        return None
    if isinstance(value, np.generic | bytes | complex) or not isinstance(
        value, bool | int | float | str | list | tuple
    ):
        raise PageError(place, f"an attribute holds numbers, strings, truth values and lists; got {_kind(value)}")
    if isinstance(value, list | tuple):
        _check_depth(depth, place)
        return [encode_attr(item, fields.under(place, i), browser, depth + 1) for i, item in enumerate(value)]
    return _encode_scalar(value, place, browser)


def encode_value(value: Any, place: str, writer: arrays.Writer, depth: int = 0) -> Any:
    """Encode a value: an array with its dtype, anything else without."""
    if isinstance(value, np.ndarray | np.generic):
        return writer.encode(np.asarray(value) if isinstance(value, np.generic) else value, place)
    if isinstance(value, arrays.Reference):
        return writer.refer(value)
    if isinstance(value, list | tuple):
        _check_depth(depth, place)
        return [encode_value(item, fields.under(place, i), writer, depth + 1) for i, item in enumerate(value)]
    return _encode_scalar(value, place, writer.browser)


def _encode_scalar(value: Any, place: str, browser: bool) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(fields.text(value, place))
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, int):
        if abs(value) >= _LARGEST:
            raise PageError(place, f"an integer of more than {MAX_DIGITS - 1} digits cannot be written")
        return int(value) if abs(value) <= arrays.SAFE else {"int": str(int(value))}
    if isinstance(value, float):
        part = _part(float(value), browser)
        return {"float": part} if browser or isinstance(part, str) else part
    if isinstance(value, complex):
        return {"complex": [_part(value.real, browser), _part(value.imag, browser)]}
    raise PageError(place, f"arrays, numbers, strings and lists can be written; got {_kind(value)}")


def _part(value: float, browser: bool) -> float | str:
    """Encode a float as a number, or as a string if a number would lose it."""
    if not math.isfinite(value):
        return arrays.special_text(value)
    return MINUS_ZERO if browser and arrays.has_minus_zero(value) else value


def decode_attr(value: Any, place: str, depth: int = 0) -> Any:
    """Decode what `encode_attr` wrote."""
    if value is None:
        return None
    if isinstance(value, list):
        _check_depth(depth, place)
        return [decode_attr(item, fields.under(place, i), depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return _unwrap(value, place, ("int", "float"))
    return _decode_scalar(value, place)


def decode_value(value: Any, place: str, read: ArrayReader, depth: int = 0) -> Any:
    """Decode what `encode_value` wrote."""
    if isinstance(value, list):
        _check_depth(depth, place)
        return [decode_value(item, fields.under(place, i), read, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        if any(field in value for field in arrays.FIELDS):
            return read(value, place)
        return _unwrap(value, place, WRAPPERS)
    return _decode_scalar(value, place)


def _decode_scalar(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return fields.text(value, place)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise fields.error(place, "a number, a string, true, false, or a list or an object of the format", value)


def _unwrap(value: dict[str, Any], place: str, known: tuple[str, ...]) -> Any:
    hints = known if known != WRAPPERS else (*known, *arrays.FIELDS)
    for key in value:
        if key not in known:
            meant = fields.nearest(key, hints) or f"; known are {', '.join(hints)}"
            raise PageError(fields.under(place, key), f"an unknown field{meant}")
    if len(value) != 1:
        raise PageError(place, f"must have one of the fields {', '.join(known)}; got {', '.join(value) or 'none'}")
    ((kind, inner),) = value.items()
    where = fields.under(place, kind)
    if kind == "int":
        found = inner if isinstance(inner, int) and not isinstance(inner, bool) else None
        if isinstance(inner, str):
            found = arrays.digits_of(inner)
        if found is None:
            raise fields.error(where, "a string of digits", inner)
        return found
    if kind == "float":
        return _float(inner, where)
    if kind == "base64":
        return arrays.bytes_of(inner, where)
    if not isinstance(inner, list) or len(inner) != 2:
        raise fields.error(where, "[real part, imaginary part]", inner)
    return complex(*(_float(part, fields.under(where, i)) for i, part in enumerate(inner)))


def _float(value: Any, place: str) -> float:
    if isinstance(value, str):
        if value == MINUS_ZERO:
            return -0.0
        if value not in arrays.SPECIAL:
            raise fields.error(place, 'a number, "NaN", "Infinity" or "-Infinity"', value)
        return arrays.SPECIAL[value]
    return fields.number(value, place)


def _check_depth(depth: int, place: str) -> None:
    if depth >= MAX_DEPTH:
        raise PageError(place, f"lists are nested deeper than {MAX_DEPTH}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
