"""Parse and write values as text: `5` is a number, `{5, 3}` a vector, `{{1, 2}, {3, 4}}` a matrix.

Without a dtype, a double quote means string, `j` complex128, a trailing `f` float32, `.` or `e` float64, and anything
else int32, or int64 if int32 is too small. An explicit dtype overrides these rules. Shapes, names of dtypes and lists
of attributes are parsed here too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np

from .._catalog.spec import ALL_DTYPES, COMPLEX, FLOATS, QUANTIZED
from .._runtime.arrays import NUMPY_DTYPE, Array, aval_of
from .page import PageError

# -- single elements ---------------------------------------------------------------------------------------------------

QUOTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}
_TRUTH = {"true": "1", "false": "0"}


def parse_elements(texts: list[str], dtype: str | None, where: Callable[[int], str] | None = None) -> Array:
    """Parse one text per element into a vector. `where` returns the position of an element for an error message."""
    dtype = _guess_dtype(texts) if dtype is None else dtype

    def fail(position: int, message: str) -> NoReturn:
        place = where(position) if where else f" at element {position}"
        raise PageError("", f"{quoted(texts[position])}{place} {message}")

    if dtype == "string":
        return _strings(texts, fail)
    for position, text in enumerate(texts):
        # Python's int and float accept 1_000 and digits of every script; the grammar has neither.
        if not text.isascii() or "_" in text or text[0] == '"':
            fail(position, f"is not a valid {dtype}")
    if dtype in FLOATS or dtype in COMPLEX:
        return _inexact(texts, dtype, fail)
    return _integers(texts, dtype, fail)


def quoted(text: str) -> str:
    """Quote a text for an error message, shortened if it is long."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _guess_dtype(texts: list[str]) -> str:
    """Return the dtype that the spelling of the elements implies."""
    if any(text[0] == '"' for text in texts):
        return "string"
    joined = "\n".join(texts).lower().replace("true", "1").replace("false", "0") + "\n"
    if "j" in joined:
        return "complex128"
    finite = joined.replace("inf", "nan")
    if "f\n" in finite:
        return "float32"
    if "." in finite or "e" in finite or "nan" in finite:
        return "float64"
    try:
        fits = all(-(2**31) <= v < 2**31 for v in map(int, texts))
    except ValueError:
        fits = True  # the conversion raises the error that names the element
    return "int32" if fits else "int64"


def _normalize(text: str) -> str:
    text = text.lower()
    return _TRUTH.get(text) or (text[:-1] if text[-1] == "f" and not text.endswith("inf") else text)


def _inexact(texts: list[str], dtype: str, fail: Callable[[int, str], NoReturn]) -> Array:
    read: type[Any] = complex if dtype in COMPLEX else float
    try:
        values = list(map(read, texts))
    except ValueError:
        values = []
        for position, text in enumerate(texts):
            try:
                values.append(read(_normalize(text)))
            except ValueError:
                fail(position, f"is not a valid {dtype}")
    with np.errstate(all="ignore"):
        array = np.array(values, dtype=read).astype(NUMPY_DTYPE[dtype])
        for position in np.flatnonzero(np.isinf(array)).tolist():
            if "inf" not in texts[position].lower():
                fail(position, f"is too large for {dtype}")
    return array


def _integers(texts: list[str], dtype: str, fail: Callable[[int, str], NoReturn]) -> Array:
    try:
        values = list(map(int, texts))
    except ValueError:
        values = [_integer(text, dtype, position, fail) for position, text in enumerate(texts)]
    target = NUMPY_DTYPE[dtype]
    if dtype in QUANTIZED:
        target = target[0]
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(target).min), int(np.iinfo(target).max))
    if values and not low <= min(values) <= max(values) <= high:
        position = next(i for i, v in enumerate(values) if not low <= v <= high)
        fail(position, f"is not in [{low}, {high}], the range of {dtype}")
    return np.array(values, dtype=target).view(NUMPY_DTYPE[dtype])


def _integer(text: str, dtype: str, position: int, fail: Callable[[int, str], NoReturn]) -> int:
    bare = _normalize(text)
    try:
        number = Decimal(bare)
    except InvalidOperation:
        fail(position, f"is not a valid {dtype}")
    if not number.is_finite() or number != number.to_integral_value():
        fail(position, f"is not an integer, which {dtype} requires")
    # A number beyond every dtype is not expanded, because its exponent may be huge.
    return int(number) if number.adjusted() < 30 else 10**30 * (-1 if number.is_signed() else 1)


def _strings(texts: list[str], fail: Callable[[int, str], NoReturn]) -> Array:
    array = np.empty(len(texts), dtype=object)
    for position, text in enumerate(texts):
        try:
            array[position] = decode_text(unquote(text))
        except ValueError as error:
            fail(position, f"is not text: {error}")
    return array


def decode_text(text: bytes) -> str | bytes:
    """Decode UTF-8; return the bytes unchanged if they are not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def unquote(text: str) -> bytes:
    """Return the bytes of a quoted string, or of a text without quotes."""
    coded = text.encode()
    if coded[:1] != b'"':
        return coded

    def escaped(match: re.Match[bytes]) -> bytes:
        if len(match[1]) == 3:
            return bytes.fromhex(match[1][1:].decode())
        if match[1] not in _ESCAPED:
            raise ValueError(f'unknown escape \\{match[1].decode(errors="replace")}; known are \\" \\\\ \\n \\t \\xNN')
        return _ESCAPED[match[1]]

    return _ESCAPE.sub(escaped, coded[1:-1])


def write_element(value: Any, dtype: str) -> str:
    """Write one element as text."""
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


# -- whole values, shapes, dtypes and attributes -----------------------------------------------------------------------

MAX_DEPTH = 32
# An unclosed quote matches the rest of the text, so that no text is scanned twice.
_TOKEN = re.compile(rf'[{{}},]|{QUOTED.pattern}|".*|[^{{}},"\s](?:[^{{}},"]*[^{{}},"\s])?', re.DOTALL)
_SHAPE = re.compile(r"(?:\[\s*-?\d{1,18}\s*\]\s*)+|\{\s*-?\d{1,18}\s*(?:,\s*-?\d{1,18}\s*)*,?\s*\}|\{\s*\}|", re.ASCII)
_NUMBER = re.compile(r"-?\d+")
_ATTR = re.compile(rf'((?:[^;"]|{QUOTED.pattern})*)(?:;|\Z)', re.DOTALL)
_DTYPE_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "int": "int32"}


def parse_literal(text: str, dtype: str | None = None) -> Array:
    """Parse a text into an array of `dtype`, or of the dtype that its spelling implies."""
    # Texts copied from code or attributes end with a semicolon. In an unquoted string it is part of the value.
    if text.rstrip().endswith(("};", '";')) or dtype is None or parse_dtype(dtype) != "string":
        text = text.rstrip().removesuffix(";")
    elements, shape = _parse_braces(text)

    def where(position: int) -> str:
        starts = (m.start() for m in _TOKEN.finditer(text) if m[0] not in "{},")
        return f" at character {next(s for i, s in enumerate(starts) if i == position) + 1}"

    return parse_elements(elements, None if dtype is None else parse_dtype(dtype), where).reshape(shape)


def _parse_braces(text: str) -> tuple[list[str], list[int]]:
    """Return the elements in order, and the shape that their braces describe."""
    elements: list[str] = []
    counts: list[int] = []  # entries so far in each open brace
    sizes: list[int | None] = []  # entries of the braces at each depth, once one of them is closed
    element_depth = -1
    before = ""

    def fail(token: int, message: str) -> NoReturn:
        starts = [m.start() for m in _TOKEN.finditer(text)]
        place = starts[token] + 1 if token < len(starts) else len(text) + 1
        raise PageError("", f"{message}, at character {place} of {quoted(text)}")

    tokens = _TOKEN.findall(text)
    for i, token in enumerate(tokens):
        if token == ",":
            if not counts or before in ("", ",", "{"):
                fail(i, "a comma where a value should be" if counts else "a comma outside of braces")
        elif token == "}":
            if not counts:  # a trailing comma is allowed, as in code
                fail(i, "a closing brace without an opening one")
            count = counts.pop()
            size = sizes[len(counts)]
            if size is None:
                sizes[len(counts)] = count
            elif size != count:
                fail(i, f"these braces have {count} entries, those before have {size}")
        else:
            if before not in ("", ",", "{") or (i and not counts):
                fail(i, "a comma is missing before this" if counts else "nothing may follow the value")
            if counts:
                counts[-1] += 1
            if token == "{":
                if element_depth >= 0 and len(counts) >= element_depth:
                    fail(i, "braces beside values")
                counts.append(0)
                if len(counts) > len(sizes):
                    sizes.append(None)
                    if len(sizes) > MAX_DEPTH:
                        fail(i, f"more than {MAX_DEPTH} braces inside one another")
            else:
                if len(counts) != element_depth:
                    if element_depth >= 0 or len(counts) < len(sizes):
                        fail(i, "a value beside braces")
                    element_depth = len(counts)
                if token[0] == '"' and not QUOTED.fullmatch(token):
                    fail(i, "a quote is not closed")
                elements.append(token)
        before = token
    if not tokens:
        raise PageError("", "there is no value: the text is empty")
    if counts:
        fail(len(tokens), "a brace is not closed")
    return elements, [size or 0 for size in sizes]


def parse_shape(text: str) -> list[int]:
    """Parse `[2][2]` or `{2,2}` as [2, 2], and an empty text as []. A size of -1 is open."""
    text = text.strip()
    sizes = [int(n) for n in _NUMBER.findall(text)] if _SHAPE.fullmatch(text) else None
    if sizes is None or any(size < -1 for size in sizes):
        raise PageError("", f"{quoted(text)} is not a shape; write [2][2] or {{2,2}}")
    if len(sizes) > MAX_DEPTH:
        raise PageError("", f"{quoted(text)} has {len(sizes)} dimensions; at most {MAX_DEPTH} are allowed")
    return sizes


def parse_dtype(text: str) -> str:
    """Return the catalogue's name of a dtype such as `DT_INT64`, `int64`, `DT_HALF` or `double`."""
    name = text.strip().lower().removeprefix("dt_")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in ALL_DTYPES:
        raise PageError("", f"{quoted(text)} is not a dtype; allowed are {', '.join(ALL_DTYPES)}")
    return name


def parse_attrs(text: str) -> dict[str, str]:
    """Parse `transpose_a_ = false; transpose_b_ = true;` into values by name, without trailing underscores."""
    attrs: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _ATTR.match(text, at)
        name, equals, value = match[1].partition("=") if match else ("", "", "")
        name, value = name.strip(), value.strip()
        if match is None or (match[1].strip() and not (equals and name.isidentifier())):
            raise PageError("", f"{quoted(text[at:])} at character {at + 1} is not an attribute; write name = value;")
        at = match.end()
        if not name:
            continue
        name = name.rstrip("_") or name
        try:
            value = unquote(value).decode() if QUOTED.fullmatch(value) else value
        except ValueError as error:
            raise PageError("", f"{quoted(value)} of attribute {name} is not text: {error}") from None
        if attrs.setdefault(name, value) != value:
            raise PageError("", f"attribute {name} is set twice: {quoted(attrs[name])} and {quoted(value)}")
    return attrs


def format_literal(array: Array) -> str:
    """Write an array as the text that `parse_literal` reads with the same dtype.

    The dtype may be omitted for int32, float32 and float64, which the spelling implies.
    """
    dtype = aval_of(array).dtype
    if 0 in array.shape[:-1]:
        why = "empty braces cannot contain braces"
        raise PageError("", f"an array of shape {list(array.shape)} cannot be written as text: {why}")
    if dtype in QUANTIZED:
        array = array.view(array.dtype[0])
    if dtype == "bfloat16":
        array = array.astype(np.float32)
    parts = [write_element(value, dtype) for value in array.ravel()]
    shape = array.shape
    if array.size == 0:
        parts, shape = ["{}"] * math.prod(shape[:-1]), shape[:-1]
    for size in reversed(shape):
        parts = ["{" + ",".join(parts[i : i + size]) + "}" for i in range(0, len(parts), size)]
    return parts[0]
