"""A matrix as numbers to paint: thinned to what a screen shows, with the bounds of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import Array, aval_of
from ..errors import InvalidArgumentError
from ..spec import COMPLEX, QUANTIZED
from .windows import info_of, matrix_of


def heat_of(array: Array, at: Sequence[int], most: int) -> dict[str, Any]:
    """At most `most` rows and columns, picked evenly: cell [i][j] is element [i * step[0], j * step[1]].

    `low` and `high` are those of the whole array; what is no finite number is null. Complex numbers show their size.
    """
    dtype = aval_of(array).dtype
    if dtype == "string":
        raise InvalidArgumentError("a heat map shows numbers; got string", argument="pin")
    if dtype in QUANTIZED:
        array = array.view(array.dtype[0])
    matrix = matrix_of(array, at)
    rows, columns = matrix.shape
    steps = [max(-(-size // most), 1) for size in (rows, columns)]
    picked = _floats(matrix[:: steps[0], :: steps[1]], dtype)
    low, high = _bounds(array, dtype)
    cells = picked.astype(object)
    cells[~np.isfinite(picked)] = None
    told = {"info": info_of(array), "rows": rows, "columns": columns, "low": low, "high": high}
    if dtype in QUANTIZED:
        told["info"] |= {"dtype": dtype, "text": told["info"]["text"].replace(aval_of(array).dtype, dtype)}
    return told | {"step": steps, "cells": cells.tolist()}


def _floats(array: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return (np.abs(array) if dtype in COMPLEX else array).astype(np.float64)


def _bounds(array: Array, dtype: str) -> tuple[float | None, float | None]:
    """The least and the greatest finite number; in pieces, so that no copy of a large array is made."""
    least, most = np.inf, -np.inf
    flat = array.reshape(-1)
    for start in range(0, flat.size, 1 << 20):
        piece = _floats(flat[start : start + (1 << 20)], dtype)
        piece = piece[np.isfinite(piece)]
        if piece.size:
            least, most = min(least, float(piece.min())), max(most, float(piece.max()))
    return (None, None) if least > most else (least, most)
