"""Parse values that users type, paste or upload: braces, brackets, tables, and .npy, .npz, .csv and .tsv files.

A value without a dtype stays without one: `{1, 2}` is a list that takes the dtype of the inputs beside it. A trailing
`f` means float32. Long lists become arrays of the dtype they would have alone. Nothing is ever unpickled.
"""

from __future__ import annotations

import csv
import io
import math
import re
import threading
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from .._catalog.spec import QUANTIZED
from .._runtime.arrays import NUMPY_DTYPE, Array
from ..errors import InvalidArgumentError, OpError
from ..graph.io.arrays import npy_header, validated
from ..graph.literal import MAX_DEPTH, QUOTED, parse_dtype, parse_elements, parse_literal, quoted
from ..graph.page import PageError

# -- typed and pasted text ---------------------------------------------------------------------------------------------

MOST_WEAK = 1024  # elements; a longer list would be JSON text in every page and every response
_TRUTHS = re.compile(r"[\s{},]*+(?:(?:true|false)[\s{},]*+)++;?\s*", re.IGNORECASE)
_BRACKETED = re.compile(rf"[\[\](),]|{QUOTED.pattern}|'[^'\\]*(?:\\.[^'\\]*)*'|[^\[\](),\"'\s]+|[\"'].*", re.DOTALL)


def parse_value(text: str, dtype: str = "", shape: list[int] | None = None) -> Any:
    """Parse a text into an array of `dtype`, or without a dtype into a Python value."""
    try:
        kind = parse_dtype(dtype) if dtype else None
    except PageError as error:
        raise InvalidArgumentError(f"dtype: {error.message}", argument="dtype") from None
    try:
        found, is_truth = _parse(text, kind)
    except PageError as error:
        raise InvalidArgumentError(f"text: {error.message}", argument="text") from None
    if shape is not None:
        found = _in_shape(found, shape)
    return found if kind else _without_dtype(found, is_truth)


def value_of_cells(cells: list[str], dtype: str, shape: list[int], argument: str = "cells") -> Any:
    """Parse a grid of one text per cell, in row order."""
    try:
        kind = parse_dtype(dtype) if dtype else None
    except PageError as error:
        raise InvalidArgumentError(f"dtype: {error.message}", argument="dtype") from None
    if math.prod(shape) != len(cells):
        message = f"{argument} must be {math.prod(shape)} texts, as shape {shape} requires; got {len(cells)}"
        raise InvalidArgumentError(message, argument=argument)
    array = array_of_cells(cells, kind, lambda k: f" in cell {[*map(int, np.unravel_index(k, shape))]}", argument)
    return array.reshape(shape) if kind else _without_dtype(array.reshape(shape), _all_truths(cells))


def array_of_cells(cells: list[str], dtype: str | None, where: Callable[[int], str], argument: str) -> Array:
    """Parse one text per element into a vector; `where` returns the position of an element for an error."""
    if dtype != "string":
        cells = [cell.strip() for cell in cells]
        if "" in cells:
            k = cells.index("")
            raise InvalidArgumentError(f"{argument}: no value{where(k)}", argument=argument)
    try:
        return parse_elements(cells, dtype, where)
    except PageError as error:
        raise InvalidArgumentError(f"{argument}: {error.message}", argument=argument) from None


def _parse(text: str, dtype: str | None) -> tuple[Array, bool]:
    """Parse a text; return the array, and whether all its elements are true or false."""
    bare = text.strip()
    if bare.startswith(("[", "(")):
        bare = _to_braces(bare)
    elif not bare.startswith("{") and not QUOTED.fullmatch(bare):
        table = _table(text.strip(" \r\n"), dtype)  # tabs stay: they delimit empty cells at either end
        if table is not None:
            return table
    return parse_literal(bare, dtype), _TRUTHS.fullmatch(bare) is not None


def _to_braces(text: str) -> str:
    """Replace the brackets of JSON, Python and NumPy by braces, and add the commas that NumPy omits."""
    parts: list[str] = []
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
            raise PageError("", f"write brackets or braces, not both: {quoted(token)}")
        if token not in ")]," and before not in ("", "[", "(", ","):
            parts.append(",")
        if token[0] == "'" and token[-1] == "'" and len(token) > 1:
            token = '"' + token[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        parts.append({"[": "{", "(": "{", "]": "}", ")": "}"}.get(token, token))
        before = token
    return "".join(parts)


def _table(text: str, dtype: str | None) -> tuple[Array, bool] | None:
    """Parse pasted cells, one row per line, separated by tabs, commas, semicolons or spaces; None if it is not a table.

    A single row or column is a vector.
    """
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
    cells = [cell for row in rows for cell in row]

    def where(k: int) -> str:
        return f" in row {k // width}, cell {k % width}"

    for k, cell in enumerate(cells):
        if not cell and dtype != "string":
            raise PageError("", f"no value{where(k)}")
    vector = parse_elements(cells, dtype, where)
    flat = len(rows) == 1 or width == 1
    return (vector if flat else vector.reshape(len(rows), width)), _all_truths(cells)


def rows_of(text: str, separator: str | None = None) -> list[list[str]]:
    """Split a table into rows of cells; the separator is the first of tab, semicolon and comma that occurs."""
    lines = [line for line in text.splitlines() if line.strip()]
    separator = separator or next((s for s in "\t;," if any(s in line.rstrip(s) for line in lines)), None)
    if separator is None and len(lines) > 1:  # one column whose lines all end with a separator
        separator = next((s for s in ";," if all(line.rstrip().endswith(s) for line in lines)), None)
    if separator is None:
        return [line.split() for line in lines]
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if any(c.strip() for c in row)]
    except csv.Error as error:
        raise PageError("", f"this is not a table: {error}") from None
    rows = [[cell.strip() for cell in row] for row in rows]
    if all(len(row) > 1 and row[-1] == "" for row in rows):
        rows = [row[:-1] for row in rows]  # lines end with a separator
    return rows


def _all_truths(cells: list[str]) -> bool:
    return bool(cells) and all(cell.lower() in ("true", "false") for cell in cells)


def _without_dtype(array: Array, is_truth: bool) -> Any:
    """Return a value without a dtype as Python data; float32 only if an `f` requested it."""
    if is_truth:
        array = array.astype(bool)
    if array.dtype == np.float32:
        return array
    if 0 in array.shape[:-1]:  # a list would lose the sizes after the 0
        return array.astype(np.float32)
    if array.size > MOST_WEAK:
        return _to_float32(array) if array.dtype == np.float64 else array
    return array.tolist()


def _to_float32(array: Array) -> Array:
    try:
        return as_float32(array, lambda k: f" at element {k}")
    except PageError as error:
        raise InvalidArgumentError(f"text: {error.message}", argument="text") from None


def as_float32(array: Array, where: Callable[[int], str]) -> Array:
    """Convert numbers to float32, the default dtype; raise PageError for a number that is too large."""
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    lost = np.isinf(narrow) & np.isfinite(array)
    if lost.any():
        k = int(lost.argmax())
        raise PageError("", f"{array.reshape(-1)[k]}{where(k)} is too large for float32; name a dtype")
    return narrow


def _in_shape(array: Array, shape: list[int]) -> Array:
    if array.size == math.prod(shape):
        return array.reshape(shape)
    if array.size == 1:
        return np.full(shape, array.reshape(-1)[0], dtype=array.dtype)
    message = f"shape {shape} has {math.prod(shape)} elements; the text has {array.size}"
    raise InvalidArgumentError(message, argument="shape")


# -- uploaded files ----------------------------------------------------------------------------------------------------

ENDINGS = (".npy", ".npz", ".csv", ".tsv")
MOST_BYTES = 1 << 28  # of all unpacked arrays of one file: as much as all requests may hold
MOST_MEMBERS = 1000
MOST_CELLS = 4_000_000  # of a table; a cell takes many times its length in memory
_MEMBER = b"PK\x01\x02"  # the signature of an entry in an archive's directory
unpacking = threading.Lock()  # files are unpacked one at a time, so that MOST_BYTES bounds all of them together


def arrays_of(name: str, body: bytes, dtype: str | None = None) -> dict[str, Array]:
    """Return the arrays of a file by name; `dtype` is the dtype of a table's cells."""
    path = PurePosixPath(name.replace("\\", "/"))
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InvalidArgumentError(f"name must end in {', '.join(ENDINGS)}; got {name!r}", argument="name")
    if len(body) > MOST_BYTES:
        raise InvalidArgumentError(
            f"{path.name}: it has {len(body)} bytes; at most {MOST_BYTES} are allowed", argument="body"
        )
    try:
        if ending == ".npy":
            return {path.stem: _npy(body)}
        if ending == ".npz":
            return _npz(body)
        return {path.stem: _table_file(body, "\t" if ending == ".tsv" else None, dtype)}
    except OpError as error:
        raise InvalidArgumentError(f"{path.name}: {error.message.strip()}", argument="body") from None
    except (TypeError, ValueError, OverflowError) as error:  # raised by NumPy for impossible shapes
        raise InvalidArgumentError(f"{path.name}: it has an impossible shape: {error}", argument="body") from None


def _npy(raw: bytes, dtype_name: str | None = None) -> Array:
    """Parse a .npy file; its header is compared with its size before anything is allocated."""
    stream = io.BytesIO(raw)
    try:
        shape, fortran, dtype = npy_header(stream)
    except ValueError as error:
        raise PageError("", f"this is not a .npy file: {error}") from None
    if dtype.hasobject:
        raise PageError("", "it contains Python objects, which are not read; save strings as fixed-width text")
    size = math.prod(shape) * dtype.itemsize
    if stream.tell() + size != len(raw):
        raise PageError("", f"its header declares {size} bytes, but the file has {len(raw) - stream.tell()}")
    flat = np.frombuffer(raw, dtype=dtype, offset=stream.tell(), count=math.prod(shape)) if size else np.empty(0, dtype)
    array: Array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
        array = array.view(NUMPY_DTYPE["bfloat16"])  # .npy files have no name for it
    if dtype_name in QUANTIZED or dtype_name == "bfloat16":
        stored = np.dtype(np.uint16) if dtype_name == "bfloat16" else NUMPY_DTYPE[dtype_name][0]
        if dtype.newbyteorder("=") == stored:
            array = array.astype(stored).view(NUMPY_DTYPE[dtype_name])
    return validated(array, "")


def _npz(raw: bytes) -> dict[str, Array]:
    if raw.count(_MEMBER) > MOST_MEMBERS:  # before the directory is read into memory
        raise PageError("", f"it has more than {MOST_MEMBERS} members")
    try:
        archive = zipfile.ZipFile(io.BytesIO(raw))
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    except Exception:  # zipfile raises many types: BadZipFile, struct.error, NotImplementedError…
        raise PageError("", "this is not an .npz file") from None
    if not infos:
        raise PageError("", "it has no .npy member")
    names = [info.filename for info in infos]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PageError("", f"{quoted(twice)}: two members have this name")
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack beyond what is read
            raise PageError(
                "",
                f"{quoted(info.filename)}: unsupported compression method {info.compress_type}; NumPy uses 0 and 8",
            )
    if sum(info.file_size for info in infos) > MOST_BYTES:
        raise PageError("", f"its members unpack to more than {MOST_BYTES} bytes")
    members: dict[str, bytes] = {}
    for info in infos:
        try:
            with archive.open(info) as member:
                members[info.filename.removesuffix(".npy")] = member.read(info.file_size + 1)
        except Exception as error:
            raise PageError("", f"{quoted(info.filename)}: damaged: {error}") from None
    found: dict[str, Array] = {}
    for name, data in members.items():
        if any(name == f"{other}.{part}" for part in ("dtype", "offsets", "shape") for other in members):
            continue  # it describes another member
        try:
            dtype_name = str(_npy(members[f"{name}.dtype"])) if f"{name}.dtype" in members else None
            found[name] = _npy(data, dtype_name)
            if f"{name}.offsets" in members and f"{name}.shape" in members:
                found[name] = _strings(found[name], *(_npy(members[f"{name}.{p}"]) for p in ("offsets", "shape")))
        except PageError as error:
            raise PageError("", f"{name}: {error.message}") from None
    return found


def _strings(joined: Array, offsets: Array, shape: Array) -> Array:
    """Return strings that may end in NUL from the bytes of all of them and the offset of each."""
    sizes, ends = shape.tolist(), offsets.tolist()
    fits = joined.dtype == np.uint8 and all(a.ndim == 1 and a.dtype.kind in "iu" for a in (offsets, shape))
    fits = fits and all(size >= 0 for size in sizes) and len(ends) == math.prod(sizes) + 1 and sorted(ends) == ends
    if not fits or ends[0] < 0 or ends[-1] > joined.size:
        raise PageError("", "its offsets do not fit its bytes")
    data = joined.tobytes()
    array = np.empty(len(ends) - 1, dtype=object)
    array[:] = [data[a:b] for a, b in pairwise(ends)]
    return array.reshape(sizes)


def _table_file(raw: bytes, separator: str | None, dtype: str | None) -> Array:
    """Return the cells of a table as a matrix, or a vector for one column; a first row of names is skipped."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PageError("", f"it is not UTF-8 text: byte {error.start}") from None
    count = text.count("\n") + sum(text.count(c) for c in ((separator,) if separator else ",;\t "))
    if count > MOST_CELLS:
        raise PageError("", f"it has about {count} cells; the limit is {MOST_CELLS}; save it as a .npy file")
    rows = rows_of(text, separator)
    if not rows:
        raise PageError("", "it has no cells")
    head = 1 if len(rows) > 1 and not _numeric(rows[0]) and _numeric(rows[1]) and dtype != "string" else 0
    body = rows[head:]
    width = len(body[0])
    for k, row in enumerate(body):
        if len(row) != width:
            raise PageError("", f"row {head + k} has {len(row)} cells where row {head} has {width}")
    cells = [cell for row in body for cell in row]
    kind = dtype or (None if _numeric(body[0]) else "string")

    def where(k: int) -> str:
        return f" in row {head + k // width}, cell {k % width}"

    if kind != "string" and "" in cells:
        raise PageError("", f"no value{where(cells.index(''))}")
    array = parse_elements(cells, kind, where)
    if kind is None and array.dtype == np.float64:
        array = as_float32(array, where)
    return array if width == 1 else array.reshape(len(body), width)


def _numeric(row: list[str]) -> bool:
    """Return whether all cells are numbers; vectorized, because a row may have millions."""
    cells = [cell for cell in row if cell]
    try:
        parse_elements(cells, "complex128")
    except PageError:
        return all(map(_is_number, cells))  # a number that is too large is an error later, not text
    return bool(cells)


def _is_number(cell: str) -> bool:
    try:
        complex(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell
