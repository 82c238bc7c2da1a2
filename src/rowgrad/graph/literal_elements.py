"""The elements of values as text: a word each, to an array and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np

from ..arrays import NUMPY_DTYPE, Array
from ..spec import COMPLEX, FLOATS, QUANTIZED
from .page import PageError

QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}
_TRUTH = {"true": "1", "false": "0"}


def parse_words(words: list[str], dtype: str | None, where: Callable[[int], str] | None = None) -> Array:
    """A vector of elements that are one text each; `where` says in a message where an element stood."""
    dtype = _spelt(words) if dtype is None else dtype

    def fail(position: int, message: str) -> NoReturn:
        place = where(position) if where else f" at element {position}"
        raise PageError("", f"{shown(words[position])}{place} {message}")

    if dtype == "string":
        return _strings(words, fail)
    for position, word in enumerate(words):
        # Python reads 1_000 and the digits of every script; the grammar knows neither.
        if not word.isascii() or "_" in word or word[0] == '"':
            fail(position, f"is no {dtype}")
    if dtype in FLOATS or dtype in COMPLEX:
        return _inexact(words, dtype, fail)
    return _integers(words, dtype, fail)


def shown(text: str) -> str:
    """A text inside a message, cut where it is long."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _spelt(words: list[str]) -> str:
    if any(word[0] == '"' for word in words):
        return "string"
    told = "\n".join(words).lower().replace("true", "1").replace("false", "0") + "\n"
    if "j" in told:
        return "complex128"
    finite = told.replace("inf", "nan")
    if "f\n" in finite:
        return "float32"
    if "." in finite or "e" in finite or "nan" in finite:
        return "float64"
    try:
        fits = all(-(2**31) <= v < 2**31 for v in map(int, words))
    except ValueError:
        fits = True  # the conversion says which word is none
    return "int32" if fits else "int64"


def _bare(word: str) -> str:
    word = word.lower()
    return _TRUTH.get(word) or (word[:-1] if word[-1] == "f" and not word.endswith("inf") else word)


def _inexact(words: list[str], dtype: str, fail: Callable[[int, str], NoReturn]) -> Array:
    read: type[Any] = complex if dtype in COMPLEX else float
    try:
        values = list(map(read, words))
    except ValueError:
        values = []
        for position, word in enumerate(words):
            try:
                values.append(read(_bare(word)))
            except ValueError:
                fail(position, f"is no {dtype}")
    with np.errstate(all="ignore"):
        array = np.array(values, dtype=read).astype(NUMPY_DTYPE[dtype])
        for position in np.flatnonzero(np.isinf(array)).tolist():
            if "inf" not in words[position].lower():
                fail(position, f"is too large for {dtype}")
    return array


def _integers(words: list[str], dtype: str, fail: Callable[[int, str], NoReturn]) -> Array:
    try:
        values = list(map(int, words))
    except ValueError:
        values = [_integer(word, dtype, position, fail) for position, word in enumerate(words)]
    target = NUMPY_DTYPE[dtype]
    if dtype in QUANTIZED:
        target = target[0]
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(target).min), int(np.iinfo(target).max))
    if values and not low <= min(values) <= max(values) <= high:
        position = next(i for i, v in enumerate(values) if not low <= v <= high)
        fail(position, f"is not in [{low}, {high}], which {dtype} holds")
    return np.array(values, dtype=target).view(NUMPY_DTYPE[dtype])


def _integer(word: str, dtype: str, position: int, fail: Callable[[int, str], NoReturn]) -> int:
    bare = _bare(word)
    try:
        number = Decimal(bare)
    except InvalidOperation:
        fail(position, f"is no {dtype}")
    if not number.is_finite() or number != number.to_integral_value():
        fail(position, f"is no whole number, and {dtype} holds no other")
    # What no dtype holds is not written out: its exponent may be huge.
    return int(number) if number.adjusted() < 30 else 10**30 * (-1 if number.is_signed() else 1)


def _strings(words: list[str], fail: Callable[[int, str], NoReturn]) -> Array:
    array = np.empty(len(words), dtype=object)
    for position, word in enumerate(words):
        try:
            array[position] = readable(unquoted(word))
        except ValueError as error:
            fail(position, f"is no text: {error}")
    return array


def readable(text: bytes) -> str | bytes:
    """Text, or the bytes where they are none."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def unquoted(word: str) -> bytes:
    """The bytes of a string in quotes, or of a bare word."""
    coded = word.encode()
    if coded[:1] != b'"':
        return coded

    def escaped(match: re.Match[bytes]) -> bytes:
        if len(match[1]) == 3:
            return bytes.fromhex(match[1][1:].decode())
        if match[1] not in _ESCAPED:
            raise ValueError(f'it has \\{match[1].decode(errors="replace")}, and known are \\" \\\\ \\n \\t \\xNN')
        return _ESCAPED[match[1]]

    return _ESCAPE.sub(escaped, coded[1:-1])


def write_word(value: Any, dtype: str) -> str:
    """The text of one element."""
    if dtype == "string":
        text = (value if isinstance(value, bytes) else value.encode()).decode(errors="surrogateescape")
        return '"' + re.sub(r'["\\\x00-\x1f\x7f\udc80-\udcff]', _escaped, text) + '"'
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in COMPLEX:
        return f"{value.real!s}{'' if str(value.imag)[0] == '-' else '+'}{value.imag!s}j"
    return f"{value!s}f" if dtype == "float32" and np.isfinite(value) else str(value)


def _escaped(match: re.Match[str]) -> str:
    known = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
    return known.get(match[0]) or f"\\x{ord(match[0]) & 0xFF:02x}"
