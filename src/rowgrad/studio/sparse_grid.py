"""A sparse matrix as a grid, in which most cells are empty, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import InvalidArgumentError
from ..graph.values import in_dtype
from .literals import array_of_words
from .short_texts import array_of
from .windows import MOST_CELLS, check_cells, clipped, info_of, texts_of


def sparse_window(
    indices: Any, values: Any, dense_shape: Any, rows: Sequence[int], columns: Sequence[int]
) -> dict[str, Any]:
    """The cells in rows [a, b) and columns [c, d): a text where there is an entry, None where there is none.

    Of entries at one place the last is shown.
    """
    places, found, shape = _matrix(indices, values, dense_shape)
    (a, b), (c, d) = (clipped(pair, int(size)) for pair, size in zip((rows, columns), shape, strict=True))
    check_cells(b - a, d - c)
    cells: list[list[str | None]] = [[None] * (d - c) for _ in range(b - a)]
    seen = np.flatnonzero(((places >= (a, c)) & (places < (b, d))).all(axis=1))
    for (row, column), text in zip(places[seen].tolist(), texts_of(found[seen]), strict=True):
        cells[row - a][column - c] = text
    info = _info(found, shape)
    return {"info": info, "rows": [a, b], "columns": [c, d], "of": shape.tolist(), "cells": cells}


def sparse_entries(indices: Any, values: Any, dense_shape: Any, entries: Sequence[int]) -> dict[str, Any]:
    """Entries [first, beyond) in the order they stand in, as [row, column, text]; `total` says how many there are."""
    places, found, shape = _matrix(indices, values, dense_shape)
    first, beyond = clipped(entries, len(found))
    if beyond - first > MOST_CELLS:
        raise _refuse("entries", f"at most {MOST_CELLS} entries", beyond - first)
    texts = texts_of(np.ascontiguousarray(found[first:beyond]))
    listed = [[*place, text] for place, text in zip(places[first:beyond].tolist(), texts, strict=True)]
    told = {"info": _info(found, shape), "first": first, "beyond": beyond, "total": len(found)}
    return told | {"of": shape.tolist(), "entries": listed}


def sparse_parts(dtype: str | None, shape: Sequence[int], entries: list[Any]) -> tuple[Array, Array, Array]:
    """Indices, values and dense shape of the entries of a grid, in the order of rows."""
    places: dict[tuple[int, int], int] = {}
    for k, entry in enumerate(entries):
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], str):
            raise _refuse(f"entries[{k}]", "[row, column, text]", entry)
        for axis, (index, size) in enumerate(zip(entry[:2], shape, strict=True)):
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
                raise _refuse(f"entries[{k}][{axis}]", f"a whole number in [0, {size})", index)
        place = (entry[0], entry[1])
        if place in places:
            raise _refuse(f"entries[{k}]", f"at a place of its own; entries[{places[place]}] is there too", [*place])
        places[place] = k
    order = sorted(places)
    words = [entries[places[place]][2] for place in order]
    values = array_of_words(words, dtype, lambda k: f" at row {order[k][0]}, column {order[k][1]}", "entries")
    return np.array(order, np.int64).reshape(-1, 2), values, np.array(shape, np.int64)


def _matrix(indices: Any, values: Any, dense_shape: Any) -> tuple[Array, Array, Array]:
    """The places, values and shape of a sparse matrix, found to fit one another."""
    places, shape = _placed(indices, "indices"), _placed(dense_shape, "dense_shape")
    found = array_of(values, "values")
    if shape.shape != (2,) or (shape < 0).any():
        raise _refuse("dense_shape", "two sizes from 0: a grid shows a matrix", shape.tolist())
    if found.ndim != 1:
        raise _refuse("values", "a vector", info_of(found)["text"])
    if places.size == 0:
        places = places.reshape(0, 2)
    if places.shape != (len(found), 2):
        raise _refuse("indices", f"of shape [{len(found)},2], two for each value", info_of(places)["text"])
    bad = np.flatnonzero(((places < 0) | (places >= shape)).any(axis=1))
    if len(bad):
        k = int(bad[0])
        raise _refuse(f"indices[{k}]", f"inside dense_shape {shape.tolist()}", places[k].tolist())
    return places, found, shape


def _info(found: Array, shape: Array) -> dict[str, Any]:
    info = info_of(found) | {"kind": "sparse", "shape": shape.tolist()}
    return info | {"text": f"{info['dtype']}[{','.join(map(str, info['shape']))}]"}


def _placed(value: Any, argument: str) -> Array:
    return in_dtype(value, argument, "int64")


def _refuse(name: str, bound: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} must be {bound}; got {value}", argument=name)
