"""The elements of an array as JSON has them: numbers a browser reads too, and strings for what JSON has no number for.

Both directions work on flat lists. A number is written in the fewest digits that give the same bits back after JSON
has made a float64 of it.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays import NUMPY_DTYPE, Array
from ...spec import COMPLEX, FLOATS, QUANTIZED
from ..page import PageError
from . import fields
from .strict_json import MAX_DIGITS

SAFE = 2**53  # beyond it a browser's numbers skip integers
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS = re.compile(r"-?[0-9]+")
_BFLOAT16 = NUMPY_DTYPE["bfloat16"].type
_PART = {"complex64": "float32", "complex128": "float64"}

Refuse = Callable[[int, str, Any], Exception]  # (which element, what it must be, what it is)


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of the same bits that any reader of .npy files knows, little-endian."""
    if dtype == "bfloat16":
        return np.dtype("<u2")
    known = NUMPY_DTYPE[dtype]
    return (known[0] if dtype in QUANTIZED else known).newbyteorder("<")


def special_text(value: float) -> str:
    """The name of a float that JSON has no number for."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def digits_of(text: str) -> int | None:
    """The integer a string of digits spells, None where it is no such string."""
    return int(text) if len(text) <= MAX_DIGITS and _DIGITS.fullmatch(text) else None


def bytes_of(text: Any, place: str) -> bytes:
    """What `{"base64": text}` stands for."""
    spelt = fields.text(text, place)
    try:
        return base64.b64decode(spelt, validate=True)
    except ValueError:
        raise fields.refuse(place, "base64", text) from None


def to_plain(dtype: str, flat: Array) -> list[Any]:
    """The elements of a flat array, ready for JSON."""
    if dtype == "string":
        return [i if isinstance(i, str) else {"base64": base64.b64encode(i).decode()} for i in flat.tolist()]
    if dtype in COMPLEX:
        parts = _plain_floats(_PART[dtype], flat.view(NUMPY_DTYPE[_PART[dtype]]))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if dtype in FLOATS:
        return _plain_floats(dtype, flat)
    if dtype in QUANTIZED:
        flat = flat.view(NUMPY_DTYPE[dtype][0])
    listed: list[Any] = flat.tolist()
    if flat.dtype.itemsize == 8:
        return [i if -SAFE <= i <= SAFE else str(i) for i in listed]
    return listed


def _plain_floats(dtype: str, flat: Array) -> list[Any]:
    with np.errstate(invalid="ignore"):  # signaling NaNs are data here
        wide: list[float] = flat.astype(np.float64).tolist()
        finite = bool(np.isfinite(flat).all())
    if dtype == "bfloat16":
        wide = [_shortest_bfloat16(x) for x in wide]
    elif dtype != "float64":
        wide = [float(str(x)) for x in flat]  # NumPy's text of a number is the shortest that gives it back
    return list(wide) if finite else [x if math.isfinite(x) else special_text(x) for x in wide]


def _shortest_bfloat16(exact: float) -> float:
    """The float64 of the fewest digits that rounds to this bfloat16; 4 digits tell all of them apart."""
    for digits in range(1, 4):
        short = float(f"{exact:.{digits}g}")
        if float(_BFLOAT16(short)) == exact:
            return short
    return float(f"{exact:.4g}")


def from_plain(dtype: str, items: list[Any], refuse: Refuse) -> Array:
    """The flat array of such elements; `refuse` words the error for the one that is not of the dtype."""
    target = NUMPY_DTYPE[dtype]
    if dtype == "string":
        return _strings(items, refuse)
    if dtype == "bool":
        _every(items, lambda item: item is True or item is False, refuse, "true or false")
        return np.array(items, dtype=target)
    if dtype in FLOATS:
        return _floats(dtype, items, refuse)
    if dtype in COMPLEX:
        _every(items, lambda item: isinstance(item, list) and len(item) == 2, refuse, "[real part, imaginary part]")
        parts = [part for pair in items for part in pair]
        return _floats(_PART[dtype], parts, lambda i, wanted, value: refuse(i // 2, wanted, value)).view(target)
    integers = target[0] if dtype in QUANTIZED else target
    return _integers(dtype, integers, items, refuse).view(target)


def _every(items: list[Any], fits: Callable[[Any], bool], refuse: Refuse, wanted: str) -> None:
    for i, item in enumerate(items):
        if not fits(item):
            raise refuse(i, wanted, item)


def _floats(dtype: str, items: list[Any], refuse: Refuse) -> Array:
    target = NUMPY_DTYPE[dtype]
    values = items
    if set(map(type, items)) - {float}:
        values = [_float(i, item, refuse) for i, item in enumerate(items)]
    wide = np.array(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(target)
    for i in np.flatnonzero(np.isinf(narrow)).tolist():
        # Only a string may stand for infinity: a number that becomes it was too large.
        if not isinstance(items[i], str):
            raise refuse(i, f"in the range of {dtype}", items[i])
    return narrow


def _float(i: int, item: Any, refuse: Refuse) -> float:
    if isinstance(item, float):
        return item
    if isinstance(item, str) and item in SPECIAL:
        return SPECIAL[item]
    if isinstance(item, int) and not isinstance(item, bool):
        try:
            return float(item)
        except OverflowError:
            return math.inf  # and refused as such
    raise refuse(i, 'a number, "NaN", "Infinity" or "-Infinity"', item)


def _integers(dtype: str, target: np.dtype[Any], items: list[Any], refuse: Refuse) -> Array:
    values = items
    if set(map(type, items)) - {int}:
        values = [digits_of(i) if isinstance(i, str) else None if isinstance(i, bool) else i for i in items]
        _every(values, lambda v: isinstance(v, int), lambda i, w, _: refuse(i, w, items[i]), "an integer")
    low, high = np.iinfo(target).min, np.iinfo(target).max
    if values and not (low <= min(values) and max(values) <= high):
        _every(values, lambda v: bool(low <= v <= high), refuse, f"in the range of {dtype}, {low} to {high}")
    return np.array(values, dtype=target)


def _strings(items: list[Any], refuse: Refuse) -> Array:
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        if isinstance(item, dict) and list(item) == ["base64"]:
            try:
                array[i] = bytes_of(item["base64"], "")
            except PageError:
                raise refuse(i, '{"base64": "…"}', item["base64"]) from None
        else:
            try:
                array[i] = fields.text(item, "")
            except PageError:
                raise refuse(i, 'a string or {"base64": "…"}', item) from None
    return array
