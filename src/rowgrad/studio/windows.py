"""A part of an array as a grid of texts: arrays of any rank are seen as matrices, and every cell is exact.

The text of a cell is what the `cells` verb reads as the same element, if it is told the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays import Array, aval_of
from ..errors import InvalidArgumentError
from ..graph.io.elements import to_plain
from ..graph.literal_elements import write_word
from ..graph.nodes import describe
from ..spec import QUANTIZED

MOST_CELLS = 10_000
_SPECIAL = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def info_of(array: Array) -> dict[str, Any]:
    """What an array is, in the form of a pin's `Value`."""
    dtype = aval_of(array).dtype
    shape = array.shape
    return {"text": _text(dtype, shape), "kind": "tensor", "dtype": dtype, "shape": [*shape], "ref": False}


_text = lru_cache(4096)(describe)


def matrix_of(array: Array, at: Sequence[int]) -> Array:
    """The array as a matrix: `at` picks the axes before the last two; a vector is one column, a number one cell."""
    leading = max(array.ndim - 2, 0)
    if len(at) != leading:
        raise _refuse("at", f"{leading} indices, as {describe(aval_of(array).dtype, array.shape)} asks for", [*at])
    for axis, index in enumerate(at):
        if not 0 <= index < max(array.shape[axis], 1):
            raise _refuse(f"at[{axis}]", f"in [0, {array.shape[axis]})", index)
    if 0 in array.shape[:leading]:  # there is no matrix to pick, and none of its rows
        return array.reshape(0, array.shape[-1])
    if array.ndim < 2:
        return array.reshape(-1, 1)
    picked: Array = array[tuple(at)]
    return picked


def window_of(array: Array, at: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> dict[str, Any]:
    """The cells in rows [a, b) and columns [c, d) of the matrix that `at` picks, clipped to what there is.

    `of` says how large that matrix is.
    """
    matrix = matrix_of(array, at)
    (a, b), (c, d) = (clipped(pair, size) for pair, size in zip((rows, columns), matrix.shape, strict=True))
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
    """Every element of a flat array as text, in the fewest digits that give its bits back."""
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
        return [str(x) for x in flat]  # NumPy's text of a narrow number is the shortest that gives it back
    return [write_word(x, dtype) for x in flat]


def string_text(item: Any) -> str:
    """A string as it is, or in quotes where something in it would not be seen or would be read otherwise."""
    if isinstance(item, str) and item and item.isprintable() and item[0] != '"' and item == item.strip():
        return item
    return write_word(item, "string")


def check_cells(rows: int, columns: int) -> None:
    """Refuse a grid that is too large; rows without a cell are lists in the answer, too."""
    if max(rows, 1) * max(columns, 1) > MOST_CELLS:
        raise _refuse("rows and columns", f"at most {MOST_CELLS} cells", f"{rows} x {columns}")


def clipped(pair: Sequence[int], size: int) -> tuple[int, int]:
    """The part of [first, beyond) that is inside of [0, size)."""
    first = min(max(pair[0], 0), size)
    return first, min(max(pair[1], first), size)


def _refuse(name: str, bound: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} must be {bound}; got {value}", argument=name)
