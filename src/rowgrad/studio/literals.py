"""Values as people type and paste them: braces, brackets, and rows of a table.

What has no dtype of its own stays without one: `{1, 2}` is a list that takes the dtype of what it stands beside. A `f`
at the end says float32. Long ones become arrays, of the dtype they would have alone.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import InvalidArgumentError
from ..graph.literal import MAX_DEPTH, parse_dtype, parse_literal
from ..graph.literal_elements import QUOTED, parse_words, shown
from ..graph.page import PageError

MOST_WEAK = 1024  # elements; a longer list would be JSON text in every page and every answer
_TRUTHS = re.compile(r"[\s{},]*+(?:(?:true|false)[\s{},]*+)++;?\s*", re.IGNORECASE)
_BRACKETED = re.compile(rf"[\[\](),]|{QUOTED.pattern}|'[^'\\]*(?:\\.[^'\\]*)*'|[^\[\](),\"'\s]+|[\"'].*", re.DOTALL)


def parse_value(text: str, dtype: str = "", shape: list[int] | None = None) -> Any:
    """The value a text stands for: an array of `dtype`, or without one what the text itself says."""
    try:
        kind = parse_dtype(dtype) if dtype else None
    except PageError as error:
        raise InvalidArgumentError(f"dtype: {error.message}", argument="dtype") from None
    try:
        found, is_truth = _parsed(text, kind)
    except PageError as error:
        raise InvalidArgumentError(f"text: {error.message}", argument="text") from None
    if shape is not None:
        found = _in_shape(found, shape)
    return found if kind else _weak(found, is_truth)


def value_of_words(words: list[str], dtype: str, shape: list[int], argument: str = "cells") -> Any:
    """The value of a grid, given as one text per cell in the order of rows."""
    try:
        kind = parse_dtype(dtype) if dtype else None
    except PageError as error:
        raise InvalidArgumentError(f"dtype: {error.message}", argument="dtype") from None
    if math.prod(shape) != len(words):
        message = f"{argument} must be {math.prod(shape)} texts, as shape {shape} asks for; got {len(words)}"
        raise InvalidArgumentError(message, argument=argument)
    array = array_of_words(words, kind, lambda k: f" in cell {[*map(int, np.unravel_index(k, shape))]}", argument)
    return array.reshape(shape) if kind else _weak(array.reshape(shape), _all_truths(words))


def array_of_words(words: list[str], dtype: str | None, where: Callable[[int], str], argument: str) -> Array:
    """A vector of elements, one text each; an error says where the text stood."""
    if dtype != "string":
        words = [word.strip() for word in words]
        if "" in words:
            k = words.index("")
            raise InvalidArgumentError(f"{argument}: there is nothing{where(k)}", argument=argument)
    try:
        return parse_words(words, dtype, where)
    except PageError as error:
        raise InvalidArgumentError(f"{argument}: {error.message}", argument=argument) from None


# -- reading -----------------------------------------------------------------------------------------------------------


def _parsed(text: str, dtype: str | None) -> tuple[Array, bool]:
    """The array of a text, and whether it is all true and false."""
    bare = text.strip()
    if bare.startswith(("[", "(")):
        bare = _braced(bare)
    elif not bare.startswith("{") and not QUOTED.fullmatch(bare):
        table = _table(text.strip(" \r\n"), dtype)  # an empty cell at either end is one
        if table is not None:
            return table
    return parse_literal(bare, dtype), _TRUTHS.fullmatch(bare) is not None


def _braced(text: str) -> str:
    """`[[1, 2], [3, 4]]`, as JSON, Python and NumPy write it, with braces; NumPy leaves out the commas."""
    made: list[str] = []
    before = ""
    opened: list[str] = []
    for token in _BRACKETED.findall(text):
        if token in "[(":
            opened.append(token)
            if len(opened) > MAX_DEPTH:
                raise PageError("", f"more than {MAX_DEPTH} brackets inside one another")
        elif token in "])":
            if opened and opened.pop() + token not in ("[]", "()"):
                raise PageError("", f"{token!r} closes a bracket of another kind")
        elif token[0] not in "\"'" and ("{" in token or "}" in token):
            raise PageError("", f"write brackets or braces, not both: {shown(token)}")
        if token not in ")]," and before not in ("", "[", "(", ","):
            made.append(",")
        if token[0] == "'" and token[-1] == "'" and len(token) > 1:
            token = '"' + token[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        made.append({"[": "{", "(": "{", "]": "}", ")": "}"}.get(token, token))
        before = token
    return "".join(made)


def _table(text: str, dtype: str | None) -> tuple[Array, bool] | None:
    """Pasted cells: rows in lines, cells apart by tabs, commas, semicolons or spaces. One row or column is a vector."""
    lines = text.splitlines()
    if dtype == "string" and len(lines) < 2 and "\t" not in text:
        return None
    if len(lines) < 2 and not re.search(r"[\t,]|\S\s+\S", text.rstrip(";")):
        return None
    rows = rows_of(text)
    width = len(rows[0])
    for k, row in enumerate(rows):
        if len(row) != width:
            raise PageError("", f"row {k} has {len(row)} cells where row 0 has {width}")
    words = [cell for row in rows for cell in row]

    def where(k: int) -> str:
        return f" in row {k // width}, cell {k % width}"

    for k, word in enumerate(words):
        if not word and dtype != "string":
            raise PageError("", f"there is nothing{where(k)}")
    vector = parse_words(words, dtype, where)
    flat = len(rows) == 1 or width == 1
    return (vector if flat else vector.reshape(len(rows), width)), _all_truths(words)


def rows_of(text: str, separator: str | None = None) -> list[list[str]]:
    """The cells of a table, by row; the separator is the first of tab, semicolon and comma that is there."""
    lines = [line for line in text.splitlines() if line.strip()]
    separator = separator or next((s for s in "\t;," if any(s in line.rstrip(s) for line in lines)), None)
    if separator is None and len(lines) > 1:  # one column, every line of which ends in a separator
        separator = next((s for s in ";," if all(line.rstrip().endswith(s) for line in lines)), None)
    if separator is None:
        return [line.split() for line in lines]
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if any(c.strip() for c in row)]
    except csv.Error as error:
        raise PageError("", f"this is no table: {error}") from None
    rows = [[cell.strip() for cell in row] for row in rows]
    if all(len(row) > 1 and row[-1] == "" for row in rows):
        rows = [row[:-1] for row in rows]  # lines that end in a separator
    return rows


def _all_truths(words: list[str]) -> bool:
    return bool(words) and all(word.lower() in ("true", "false") for word in words)


def _weak(array: Array, is_truth: bool) -> Any:
    """What the text said without a dtype, as Python has it; float32 only where an `f` said so."""
    if is_truth:
        array = array.astype(bool)
    if array.dtype == np.float32:
        return array
    if 0 in array.shape[:-1]:  # a list would lose the sizes behind the 0
        return array.astype(np.float32)
    if array.size > MOST_WEAK:
        return _narrowed(array) if array.dtype == np.float64 else array
    return array.tolist()


def _narrowed(array: Array) -> Array:
    try:
        return as_float32(array, lambda k: f" at element {k}")
    except PageError as error:
        raise InvalidArgumentError(f"text: {error.message}", argument="text") from None


def as_float32(array: Array, where: Callable[[int], str]) -> Array:
    """Numbers as float32, which they become where nothing says more; one that it does not reach is an error."""
    with np.errstate(over="ignore"):
        made = array.astype(np.float32)
    lost = np.isinf(made) & np.isfinite(array)
    if lost.any():
        k = int(lost.argmax())
        raise PageError("", f"{array.reshape(-1)[k]}{where(k)} is too large for float32; name a dtype")
    return made


def _in_shape(array: Array, shape: list[int]) -> Array:
    if array.size == math.prod(shape):
        return array.reshape(shape)
    if array.size == 1:
        return np.full(shape, array.reshape(-1)[0], dtype=array.dtype)
    message = f"shape {shape} has {math.prod(shape)} elements, and the text {array.size}"
    raise InvalidArgumentError(message, argument="shape")
