"""Verbs about values: what is typed, pasted, drawn into a grid or brought in a file becomes what a page holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..graph.literal import MAX_DEPTH, parse_dtype
from ..graph.page import PageError
from .asked import Asked
from .literals import parse_value, value_of_words
from .short_texts import array_of, as_written, is_weak, short_text
from .sparse_grid import sparse_entries, sparse_parts, sparse_window
from .uploads import arrays_of, unpacking
from .verbs import Json, verb
from .windows import MOST_CELLS, info_of, texts_of

if TYPE_CHECKING:
    from .studio import Studio

MOST_ELEMENTS = 1_000_000  # of what is typed, pasted or filled
MOST_CHARACTERS = 10_000  # of a value's text


@verb("parse")
def parse(studio: Studio, given: Asked) -> Json:
    """A literal as a value."""
    shape = _shape(given) if "shape" in given else None
    return _told(studio, parse_value(given.text("text"), given.text("dtype", "", 40), shape))


@verb("cells")
def cells(studio: Studio, given: Asked) -> Json:
    """The cells of a grid as a value."""
    words = given.texts("cells", most=MOST_ELEMENTS)
    return _told(studio, value_of_words(words, given.text("dtype", most=40), _shape(given)))


@verb("describe")
def describe(studio: Studio, given: Asked) -> Json:
    """A value as a short text, and what it is; the text of every element too, where there are at most `most`."""
    value = given.value("value")
    array = array_of(value)
    text = short_text(value, given.whole("characters", 1, MOST_CHARACTERS, 200))
    told = {"text": text, "info": info_of(array), "weak": is_weak(value), "cells": None}
    if "most" in given and array.size <= given.whole("most", 0, MOST_CELLS):
        told["cells"] = texts_of(as_written(value).reshape(-1))
    return told


@verb("upload", takes_file=True)
def upload(studio: Studio, given: Asked) -> Json:
    """The arrays of a file, put into the pool."""
    with unpacking:
        found = arrays_of(given.text("name", most=1000), given.body, _dtype(given))
        return {
            "arrays": [
                {"name": name, "value": studio.pool.write_value(array), "info": info_of(array)}
                for name, array in found.items()
            ]
        }


@verb("sparse")
def sparse(studio: Studio, given: Asked) -> Json:
    """A sparse matrix as a grid."""
    indices, values, dense_shape = (given.value(part) for part in ("indices", "values", "dense_shape"))
    return sparse_window(indices, values, dense_shape, interval(given, "rows"), interval(given, "columns"))


@verb("sparse_list")
def sparse_list(studio: Studio, given: Asked) -> Json:
    """The entries of a sparse matrix, from the first to beyond the last that are asked for."""
    indices, values, dense_shape = (given.value(part) for part in ("indices", "values", "dense_shape"))
    return sparse_entries(indices, values, dense_shape, interval(given, "entries"))


@verb("sparse_cells")
def sparse_cells(studio: Studio, given: Asked) -> Json:
    """A grid as a sparse matrix."""
    shape = _sizes(given)
    if len(shape) != 2:
        raise given.refuse("shape", "[rows, columns]", shape)
    parts = sparse_parts(_dtype(given), shape, given.listed("entries", most=MOST_ELEMENTS))
    names = ("indices", "values", "dense_shape")
    return {name: studio.pool.write_value(part) for name, part in zip(names, parts, strict=True)}


def interval(given: Asked, name: str) -> list[int]:
    """`[first, beyond]`."""
    found = given.wholes(name, most=2)
    if len(found) != 2 or found[0] > found[1]:
        raise given.refuse(name, "[first, beyond], the first not after the other", found)
    return found


def _told(studio: Studio, value: Any) -> Json:
    array = array_of(value)
    told = {"value": studio.pool.write_value(value), "text": short_text(value), "info": info_of(array)}
    return told | {"weak": is_weak(value)}


def _dtype(given: Asked) -> str | None:
    """A dtype of the catalogue, or None where none is given."""
    text = given.text("dtype", "", 40)
    try:
        return parse_dtype(text) if text else None
    except PageError as error:
        raise given.refuse("dtype", error.message.partition("; ")[2] or "a dtype", text) from None


def _sizes(given: Asked) -> list[int]:
    return given.wholes("shape", most=MAX_DEPTH)


def _shape(given: Asked) -> list[int]:
    """A shape that a typed value may have."""
    shape = _sizes(given)
    if math.prod(max(size, 1) for size in shape) > MOST_ELEMENTS:  # rows without an element are lists, too
        raise given.refuse("shape", f"of at most {MOST_ELEMENTS} elements", shape)
    return shape
