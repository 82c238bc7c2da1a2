"""What is typed into pins: elements of a host type under a shape, literals, and attributes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import Array
from ...spec import ALL_DTYPES, Op
from ..literal import parse_dtype, parse_literal, parse_shape
from ..literal_elements import QUOTED, parse_words, readable, shown, unquoted
from ..page import PageError
from .binary import DataFile
from .drawn import DrawnPin

HOST_DTYPE = {"double": "float64", "float": "float32", "int": "int32", "bool": "bool", "string": "string"}
_DTYPES = ("dtype", "DstT", "SrcT", "out_type", "output_type")  # attributes that hold a dtype whatever their default


def value_of(pin: DrawnPin, dtype: str | None, holds_text: bool, data: DataFile) -> Array | None:
    """The array typed into an input pin, None if there is none.

    A pin of a numeric host type has flat elements, and its shape rules. On a string pin stands a literal, unless the
    pin `holds_text`: there strings are the elements. `dtype` is what the block or the op says, and beats the rest.
    """
    if pin.type not in HOST_DTYPE:
        raise PageError("", f"{shown(pin.type)} is no type of a pin; known are {', '.join(HOST_DTYPE)}")
    shape = _shape(pin.shape)
    if -1 in shape:
        raise PageError("", f"the shape {shape} leaves a dimension open, and a value has none")
    if pin.offset is not None:
        return _shaped(_converted(data.read(pin.type, shape, pin.offset), dtype), shape)
    text = pin.text.strip()
    if pin.type == "string" and holds_text and not shape:
        return np.array(_string(pin.text), dtype=object)
    if not text and (pin.type == "string" or not shape):
        return None
    if text.rstrip("};, ").endswith("..."):
        raise PageError("", f"the text is cut short; it ends with {shown(text[-20:])}")
    if pin.type == "string" and not holds_text:
        if not shape:
            return parse_literal(text, dtype)
        return _shaped(
            parse_literal(text, dtype) if text.startswith("{") else parse_words(_split(text, dtype), dtype), shape
        )
    dtype = dtype or HOST_DTYPE[pin.type]
    if text.startswith("{"):
        return _shaped(parse_literal(text, dtype), shape)
    words = _split(text, dtype)
    if dtype == "string":
        strings = np.empty(len(words), dtype=object)
        strings[:] = [_string(word) for word in words]
        return _shaped(strings, shape)
    return _shaped(parse_words(words, dtype), shape)


def dtype_of(text: str) -> str:
    """A dtype, which people end with a semicolon as if it were an attribute."""
    return parse_dtype(text.rstrip("; "))


def _shape(text: str) -> list[int]:
    text = text.strip().rstrip("; ")
    return parse_shape(f"{{{text}}}" if text.removeprefix("-").isdecimal() else text)


def _split(text: str, dtype: str | None) -> list[str]:
    """Elements with semicolons between them; a last one ends the last element, and begins none.

    Of strings any but that one may be empty; there are no empty numbers.
    """
    if dtype != "string" and '"' not in text:
        text = text.rstrip("; ")
    return [word.strip() or '""' for word in text.removesuffix(";").split(";")] if text else []


def declared(array: Array, shape: list[int]) -> Array:
    """Initial values under the shape a block declares; one number may stand for all of them."""
    if -1 in shape or not array.ndim:
        return array
    # One number in braces fills as well, and has to be without them for that.
    return array.reshape(()) if array.size == 1 != math.prod(shape) else _shaped(array, shape)


def _string(word: str) -> str | bytes:
    return readable(unquoted(word)) if QUOTED.fullmatch(word) else word


def _shaped(array: Array, shape: list[int]) -> Array:
    if array.size != math.prod(shape):
        raise PageError("", f"the shape {shape} has {math.prod(shape)} elements, and {array.size} are given")
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise PageError("", f"the shape {shape} is none: {error}") from None


def _converted(array: Array, dtype: str | None) -> Array:
    """Elements from a file in the dtype a block names; text is the way on, for it refuses what would be lost."""
    if dtype is None or np.dtype(array.dtype).name == dtype:
        return array
    return parse_words([str(v) for v in array.tolist()], dtype)


def attribute_of(op: Op, name: str, text: str) -> Any:
    """The plain value of an attribute, of the kind its default has."""
    default = op.attrs[name]
    text = text.strip()
    if name in _DTYPES or (isinstance(default, str) and default in ALL_DTYPES):
        return dtype_of(text)
    if name == "shape" or (isinstance(default, list | tuple) and text.startswith("[")):
        return _shape(text)
    if isinstance(default, list | tuple):
        numbers = parse_literal(text, "int64")
        if numbers.ndim > 1:
            raise PageError("", f"{shown(text)} is no list of numbers")
        return numbers.ravel().tolist()
    if isinstance(default, bool):
        return bool(_one(text, "bool"))
    if isinstance(default, int):
        return int(_one(text, "int64"))
    if isinstance(default, float):
        return float(_one(text, "float64"))
    return text


def _one(text: str, dtype: str) -> Any:
    array = parse_literal(text, dtype)
    if array.ndim:
        raise PageError("", f"{shown(text)} is not one {dtype}")
    return array.item()
