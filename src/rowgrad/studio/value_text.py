"""Arrays for display: short texts, windows of cells, heat maps, and grids of sparse matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._catalog.spec import COMPLEX, QUANTIZED
from .._runtime.arrays import Array, as_array, aval_of
from ..errors import InvalidArgumentError
from ..graph.inputs import in_dtype
from ..graph.io.arrays import to_plain
from ..graph.literal import write_element
from ..graph.nodes import describe
from .value_input import array_of_cells

# -- short texts -------------------------------------------------------------------------------------------------------


def array_of(value: Any, argument: str = "value") -> Array:
    """Return a value as an array; Python values get their default dtype."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return as_array(value, argument)


def is_weak(value: Any) -> bool:
    """Return whether a value has no dtype yet: Python numbers, strings and lists."""
    return not isinstance(value, np.ndarray | np.generic)


def short_text(value: Any, most: int = 200) -> str:
    """Return the value as a literal, cut with … after `most` characters."""
    return literal_text(as_written(value), most)


def as_written(value: Any) -> Array:
    """Return the array whose texts have the digits that were typed: those of Python's floats, not of float32."""
    array = array_of(value)
    return np.array(value, dtype=np.float64) if is_weak(value) and array.dtype == np.float32 else array


def literal_text(array: Array, most: int) -> str:
    """Return the beginning of what `format_literal` returns, without writing the rest."""
    dtype = aval_of(array).dtype
    if array.size == 0:
        return _cut(_empty(array.shape, most), most)
    flat = _first(array, most // 2 + 1)
    texts = [write_element(x, dtype) for x in flat] if dtype in ("string", "float32") else texts_of(flat)
    inner: list[str] = []
    length = 0
    for k, text in enumerate(texts):
        opened = sum(1 for size in _strides(array.shape) if k % size == 0)
        inner.append(("," if k else "") + "{" * opened + text)
        closing = sum(1 for size in _strides(array.shape) if (k + 1) % size == 0)
        inner.append("}" * closing)
        length += len(inner[-2]) + closing
        if length > most:
            break
    text = "".join(inner)
    return text if len(text) <= most and len(texts) == array.size else text[: most - 1] + "…"


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Return the number of elements in the braces at each depth."""
    return [math.prod(shape[k:]) for k in range(len(shape))]


def _empty(shape: tuple[int, ...], most: int) -> str:
    """Return braces without elements, not much longer than `most`: every axis would multiply their length."""
    text = "{}"
    for size in reversed(shape[: shape.index(0)]):
        text = ("{" + ",".join([text] * min(size, most // len(text) + 1)))[: most + len(shape)] + "}"
    return text


def _first(array: Array, count: int) -> Array:
    """Return the first elements for any layout without copying others; NumPy iterates over at most 32 dimensions."""
    return array.flat[:count] if array.ndim <= 32 else array.reshape(-1)[:count]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def preview(array: Array, most: int = 120) -> str:
    """Return the first elements to six digits; fast, because it runs for many blocks many times a second.

    Floats of a small array are shown to three digits rather than cut, so that all of them can be drawn in every run.
    """
    kind = array.dtype.kind  # V for bfloat16, as for structured dtypes
    flat = _first(array, 16)
    if array.dtype.names is not None:
        flat = flat.view(array.dtype[0])
    elif kind == "V":
        kind = "f"
    if kind == "f":
        texts = [f"{x:.6g}" for x in flat.astype(np.float64, copy=False).tolist()]
    elif kind == "O":
        texts = [write_element(x if len(x) <= most else x[:most], "string") for x in flat.tolist()]
    elif kind == "b":
        texts = ["true" if x else "false" for x in flat.tolist()]
    else:
        texts = [str(x).strip("()") for x in flat.tolist()]
    if array.ndim == 0:
        return _cut(texts[0], most)
    row = array.shape[-1] if array.ndim > 1 and array.size else len(texts) or 1
    text = _in_rows(texts, row)
    if flat.size < array.size:
        return _cut(text + " …", most)
    if kind == "f" and len(text) > most:
        return _cut(_in_rows([f"{x:.3g}" for x in flat.astype(np.float64, copy=False).tolist()], row), 2 * most)
    return _cut(text, most)


def _in_rows(texts: Sequence[str], row: int) -> str:
    return "; ".join([", ".join(texts[k : k + row]) for k in range(0, len(texts), row)])


# -- windows: a part of an array of any rank as a matrix of texts ------------------------------------------------------

# With the same dtype, the `cells` verb parses the text of a cell as exactly the same element.

MOST_CELLS = 10_000
_SPECIAL = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def info_of(array: Array) -> dict[str, Any]:
    """Describe an array with the fields of a pin's `Value`."""
    dtype = aval_of(array).dtype
    shape = array.shape
    return {"text": _text(dtype, shape), "kind": "tensor", "dtype": dtype, "shape": [*shape], "ref": False}


_text = lru_cache(4096)(describe)


def matrix_of(array: Array, at: Sequence[int]) -> Array:
    """Return the array as a matrix: `at` indexes all but the last two axes; a vector is a column, a number a cell."""
    leading = max(array.ndim - 2, 0)
    if len(at) != leading:
        raise _error("at", f"{leading} indices, as {describe(aval_of(array).dtype, array.shape)} requires", [*at])
    for axis, index in enumerate(at):
        if not 0 <= index < max(array.shape[axis], 1):
            raise _error(f"at[{axis}]", f"in [0, {array.shape[axis]})", index)
    if 0 in array.shape[:leading]:  # there is no matrix to select
        return array.reshape(0, array.shape[-1])
    if array.ndim < 2:
        return array.reshape(-1, 1)
    picked: Array = array[tuple(at)]
    return picked


def window_of(array: Array, at: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> dict[str, Any]:
    """Return the cells in rows [a, b) and columns [c, d) of the matrix that `at` selects, clipped to its size.

    `of` says how large that matrix is.
    """
    matrix = matrix_of(array, at)
    (a, b), (c, d) = (clip(pair, size) for pair, size in zip((rows, columns), matrix.shape, strict=True))
    check_cells(b - a, d - c)
    flat = texts_of(np.ascontiguousarray(matrix[a:b, c:d]).reshape(-1))
    width = d - c
    cells = [flat[k * width : (k + 1) * width] for k in range(b - a)]
    return {
        "info": info_of(array),
        "at": [*at],
        "rows": [a, b],
        "columns": [c, d],
        "of": [*matrix.shape],
        "cells": cells,
    }


def texts_of(flat: Array) -> list[str]:
    """Return every element of a flat array as text, with the fewest digits that restore its bits."""
    dtype = aval_of(flat).dtype
    if dtype == "bfloat16":
        return [_SPECIAL.get(x, str(x)) for x in to_plain(dtype, flat)]
    if dtype == "string":
        return [string_text(item) for item in flat.tolist()]
    if dtype in QUANTIZED:
        flat = flat.view(flat.dtype[0])
    if flat.dtype.kind in "iu" or dtype == "float64":
        return [str(x) for x in flat.tolist()]
    if flat.dtype.kind == "f":
        return [str(x) for x in flat]  # NumPy writes the shortest text that restores the number
    return [write_element(x, dtype) for x in flat]


def string_text(item: Any) -> str:
    """Return a string, quoted if a part of it would be invisible or be parsed differently."""
    if isinstance(item, str) and item and item.isprintable() and item[0] != '"' and item == item.strip():
        return item
    return write_element(item, "string")


def check_cells(rows: int, columns: int) -> None:
    """Raise if a grid is too large; rows without cells are lists in the response too."""
    if max(rows, 1) * max(columns, 1) > MOST_CELLS:
        raise _error("rows and columns", f"at most {MOST_CELLS} cells", f"{rows} x {columns}")


def clip(pair: Sequence[int], size: int) -> tuple[int, int]:
    """Clip [first, beyond) to [0, size)."""
    first = min(max(pair[0], 0), size)
    return first, min(max(pair[1], first), size)


def _error(name: str, bound: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} must be {bound}; got {value}", argument=name)


# -- heat maps ---------------------------------------------------------------------------------------------------------


def heat_of(array: Array, at: Sequence[int], most: int, peaks: bool = False) -> dict[str, Any]:
    """Sample at most `most` rows and columns evenly: cell [i][j] is element [i * step[0], j * step[1]].

    With `peaks`, for small pictures, it is the element farthest from zero in the rows and columns from there to the
    next cell, and a single row or column is sampled as the least and the greatest element of each part of it. A part
    with an element that is not finite is null.

    `low` and `high` are those of the whole array. Elements that are not finite are null; complex numbers are shown by
    their absolute value.
    """
    dtype = aval_of(array).dtype
    if dtype == "string":
        raise InvalidArgumentError("a heat map shows numbers; got string", argument="pin")
    if dtype in QUANTIZED:
        array = array.view(array.dtype[0])
    matrix = matrix_of(array, at)
    rows, columns = matrix.shape
    steps = [max(-(-size // most), 1) for size in (rows, columns)]
    picked = _peaks(matrix, steps, dtype) if peaks else _floats(matrix[:: steps[0], :: steps[1]], dtype)
    low, high = _bounds(array, dtype)
    cells = picked.astype(object)
    cells[~np.isfinite(picked)] = None
    response = {"info": info_of(array), "rows": rows, "columns": columns, "low": low, "high": high}
    if dtype in QUANTIZED:
        response["info"] |= {"dtype": dtype, "text": response["info"]["text"].replace(aval_of(array).dtype, dtype)}
    return response | {"step": steps, "cells": cells.tolist()}


def _floats(array: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return (np.abs(array) if dtype in COMPLEX else array).astype(np.float64)


def _peaks(matrix: Array, steps: Sequence[int], dtype: str) -> Array:
    rows, columns = (-(-size // step) for size, step in zip(matrix.shape, steps, strict=True))
    if 1 in matrix.shape and max(steps) > 1:
        return _envelope(_floats(matrix, dtype).reshape(-1), 2 * max(steps)).reshape(-1, 1)
    found = np.zeros((rows, columns))
    for i, j in np.ndindex(rows, columns):
        part = _floats(matrix[i * steps[0] : (i + 1) * steps[0], j * steps[1] : (j + 1) * steps[1]], dtype)
        found[i, j] = part.flat[np.argmax(np.abs(part))] if np.isfinite(part).all() else np.nan
    return found


def _envelope(line: Array, step: int) -> Array:
    """Return the least and the greatest number of each `step` neighbours, in their order."""
    found: list[float] = []
    for start in range(0, len(line), step):
        part = line[start : start + step]
        found += part[sorted((np.argmin(part), np.argmax(part)))].tolist() if np.isfinite(part).all() else [np.nan] * 2
    return np.array(found)


def _bounds(array: Array, dtype: str) -> tuple[float | None, float | None]:
    """Return the least and greatest finite number; in parts, to avoid a copy of a large array."""
    least, most = np.inf, -np.inf
    flat = array.reshape(-1)
    for start in range(0, flat.size, 1 << 20):
        piece = _floats(flat[start : start + (1 << 20)], dtype)
        piece = piece[np.isfinite(piece)]
        if piece.size:
            least, most = min(least, float(piece.min())), max(most, float(piece.max()))
    return (None, None) if least > most else (least, most)


# -- sparse matrices as grids ------------------------------------------------------------------------------------------


def sparse_window(
    indices: Any, values: Any, dense_shape: Any, rows: Sequence[int], columns: Sequence[int]
) -> dict[str, Any]:
    """Return the cells in rows [a, b) and columns [c, d): a text for an entry, None for an empty cell.

    If several entries are at one position, the last is shown.
    """
    places, found, shape = _matrix(indices, values, dense_shape)
    (a, b), (c, d) = (clip(pair, int(size)) for pair, size in zip((rows, columns), shape, strict=True))
    check_cells(b - a, d - c)
    cells: list[list[str | None]] = [[None] * (d - c) for _ in range(b - a)]
    visible = np.flatnonzero(((places >= (a, c)) & (places < (b, d))).all(axis=1))
    for (row, column), text in zip(places[visible].tolist(), texts_of(found[visible]), strict=True):
        cells[row - a][column - c] = text
    info = _info(found, shape)
    return {"info": info, "rows": [a, b], "columns": [c, d], "of": shape.tolist(), "cells": cells}


def sparse_entries(indices: Any, values: Any, dense_shape: Any, entries: Sequence[int]) -> dict[str, Any]:
    """Return entries [first, beyond) in their order, as [row, column, text], and the `total` number of entries."""
    places, found, shape = _matrix(indices, values, dense_shape)
    first, beyond = clip(entries, len(found))
    if beyond - first > MOST_CELLS:
        raise _error("entries", f"at most {MOST_CELLS} entries", beyond - first)
    texts = texts_of(np.ascontiguousarray(found[first:beyond]))
    listed = [[*place, text] for place, text in zip(places[first:beyond].tolist(), texts, strict=True)]
    response = {"info": _info(found, shape), "first": first, "beyond": beyond, "total": len(found)}
    return response | {"of": shape.tolist(), "entries": listed}


def sparse_parts(dtype: str | None, shape: Sequence[int], entries: list[Any]) -> tuple[Array, Array, Array]:
    """Return indices, values and dense shape of a grid's entries, sorted by row."""
    places: dict[tuple[int, int], int] = {}
    for k, entry in enumerate(entries):
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], str):
            raise _error(f"entries[{k}]", "[row, column, text]", entry)
        for axis, (index, size) in enumerate(zip(entry[:2], shape, strict=True)):
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
                raise _error(f"entries[{k}][{axis}]", f"an integer in [0, {size})", index)
        place = (entry[0], entry[1])
        if place in places:
            raise _error(f"entries[{k}]", f"at an unused position; entries[{places[place]}] is there already", [*place])
        places[place] = k
    order = sorted(places)
    texts = [entries[places[place]][2] for place in order]
    values = array_of_cells(texts, dtype, lambda k: f" at row {order[k][0]}, column {order[k][1]}", "entries")
    return np.array(order, np.int64).reshape(-1, 2), values, np.array(shape, np.int64)


def _matrix(indices: Any, values: Any, dense_shape: Any) -> tuple[Array, Array, Array]:
    """Validate and return indices, values and shape of a sparse matrix."""
    places, shape = _as_int64(indices, "indices"), _as_int64(dense_shape, "dense_shape")
    found = array_of(values, "values")
    if shape.shape != (2,) or (shape < 0).any():
        raise _error("dense_shape", "two sizes >= 0: a grid shows a matrix", shape.tolist())
    if found.ndim != 1:
        raise _error("values", "a vector", info_of(found)["text"])
    if places.size == 0:
        places = places.reshape(0, 2)
    if places.shape != (len(found), 2):
        raise _error("indices", f"of shape [{len(found)},2], two for each value", info_of(places)["text"])
    bad = np.flatnonzero(((places < 0) | (places >= shape)).any(axis=1))
    if len(bad):
        k = int(bad[0])
        raise _error(f"indices[{k}]", f"inside dense_shape {shape.tolist()}", places[k].tolist())
    return places, found, shape


def _info(found: Array, shape: Array) -> dict[str, Any]:
    info = info_of(found) | {"kind": "sparse", "shape": shape.tolist()}
    return info | {"text": f"{info['dtype']}[{','.join(map(str, info['shape']))}]"}


def _as_int64(value: Any, argument: str) -> Array:
    return in_dtype(value, argument, "int64")
