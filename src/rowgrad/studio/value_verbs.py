"""Verbs about values: parse and upload them, show parts of results, chart them, trace rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._runtime.arrays import Array
from ..errors import InvalidArgumentError
from ..graph.fetches import find
from ..graph.literal import MAX_DEPTH, parse_dtype
from ..graph.nodes import Graph, Output
from ..graph.page import PageError
from ..graph.page_builder import check
from ..graph.session import ClientSession
from ..graph.trace import trace as trace_rows
from .charts import MOST_SERIES, Watched
from .value_input import arrays_of, parse_value, unpacking, value_of_words
from .value_text import (
    MOST_CELLS,
    array_of,
    as_written,
    heat_of,
    info_of,
    is_weak,
    short_text,
    sparse_entries,
    sparse_parts,
    sparse_window,
    texts_of,
    window_of,
)
from .verbs import Asked, Json, verb

# -- Verbs about values ------------------------------------------------------------------------------------------------

# Verbs about values: what is typed, pasted, drawn into a grid or brought in a file becomes what a page holds.

if TYPE_CHECKING:
    from .studio import Studio

MOST_ELEMENTS = 1_000_000  # of what is typed, pasted or filled
MOST_CHARACTERS = 10_000  # of a value's text


@verb("parse")
def parse(studio: Studio, given: Asked) -> Json:
    """A literal as a value."""
    shape = _shape(given) if "shape" in given else None
    return _value_json(studio, parse_value(given.text("text"), given.text("dtype", "", 40), shape))


@verb("cells")
def cells(studio: Studio, given: Asked) -> Json:
    """The cells of a grid as a value."""
    words = given.texts("cells", most=MOST_ELEMENTS)
    return _value_json(studio, value_of_words(words, given.text("dtype", most=40), _shape(given)))


@verb("describe")
def describe(studio: Studio, given: Asked) -> Json:
    """A value as a short text, and what it is; the text of every element too, where there are at most `most`."""
    value = given.value("value")
    array = array_of(value)
    text = short_text(value, given.whole("characters", 1, MOST_CHARACTERS, 200))
    described = {"text": text, "info": info_of(array), "weak": is_weak(value), "cells": None}
    if "most" in given and array.size <= given.whole("most", 0, MOST_CELLS):
        described["cells"] = texts_of(as_written(value).reshape(-1))
    return described


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


def _value_json(studio: Studio, value: Any) -> Json:
    array = array_of(value)
    described = {"value": studio.pool.write_value(value), "text": short_text(value), "info": info_of(array)}
    return described | {"weak": is_weak(value)}


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


# -- Verbs that look ---------------------------------------------------------------------------------------------------

# Verbs that look: at parts of values and results, at maps of them, at numbers over time, at rows and their sources.

if TYPE_CHECKING:
    from .studio import Studio

_FAR = 2**62 - 1
MOST_MAPPED = 1024


@verb("window")
def window(studio: Studio, given: Asked) -> Json:
    """A part of a value, or of a result."""
    age: dict[str, Any] = {"run": None, "stale": False}
    if "value" in given:
        array = array_of(given.value("value"))
    else:
        array = _result(studio, given)
        age = studio.runs.of(given.text("name")).age(given.text("block"), given.text("pin"))
    return window_of(array, _at(given, array), interval(given, "rows"), interval(given, "columns")) | age


@verb("map")
def heat_map(studio: Studio, given: Asked) -> Json:
    """A result as a heat map."""
    array = _result(studio, given)
    return heat_of(array, _at(given, array), given.whole("most", 1, MOST_MAPPED, 256))


@verb("watch")
def watch(studio: Studio, given: Asked) -> Json:
    """Which numbers are recorded from now on; without `series`, those that sessions fetch."""
    name = given.text("name")
    session = studio.runs.session_of(name)
    graph = session.graph if session is not None else check(studio.folder.open(name)[0]).scope.graph
    if "series" not in given:
        return {"series": studio.runs.watch(name, None)}
    asked = given.listed("series", most=MOST_SERIES)
    return {"series": studio.runs.watch(name, [_watched(graph, given, k, entry) for k, entry in enumerate(asked)])}


@verb("trend")
def trend(studio: Studio, given: Asked) -> Json:
    """The numbers recorded after a run."""
    name = given.text("name")
    if studio.runs.session_of(name) is None:
        studio.folder.open(name)  # raises where there is none
    return studio.runs.trend(name, given.whole("since", 0, _FAR, 0))


@verb("trace")
def trace(studio: Studio, given: Asked) -> Json:
    """Which rows of a block's inputs its results were made of."""
    session, block = _session(studio, given), given.text("block")
    _known(session.graph, given, block)
    found = trace_rows(session, block)
    pairs = [[row, source] for row, source in found.pairs]
    traced = {"outputs": found.outputs, "inputs": found.inputs, "pairs": pairs}
    return traced | {"total": found.total, "cut": found.cut}


def _session(studio: Studio, given: Asked) -> ClientSession:
    name = given.text("name")
    session = studio.runs.session_of(name)
    if session is None:
        studio.folder.open(name)  # raises where there is none
        raise given.refuse("name", "a page that has been run: there is nothing to look at", name)
    return session


def _known(graph: Graph, given: Asked, block: str, place: str = "block") -> None:
    if block not in graph.blocks:
        raise given.refuse(place, "a block of the page that was run", block)


def _result(studio: Studio, given: Asked) -> Array:
    """The array that a pin had in the last run."""
    session, block, pin = _session(studio, given), given.text("block"), given.text("pin")
    _known(session.graph, given, block)
    pins = session.graph.blocks[block].pins
    if pin not in pins:
        raise given.refuse("pin", f"an output of {block}, which has {', '.join(pins) or 'none'}", pin)
    entry = given.whole("entry", 0, _FAR) if "entry" in given else None
    if isinstance(pins[pin], list) and entry is None:
        entry = 0 if len(pins[pin]) == 1 else given.whole("entry", 0, len(pins[pin]) - 1)
    if isinstance(pins[pin], Output) and entry is not None:
        raise given.refuse("entry", f"left out: {block}.{pin} is no list", entry)
    found = session.result(block, pin)
    if isinstance(found, list):
        if entry is None or entry >= len(found):
            raise given.refuse("entry", f"in [0, {len(found)})", entry)
        return found[entry]
    if found is None:
        raise given.refuse("pin", f"one that a run has computed; no run has computed {block}.{pin}", pin)
    return found


def _at(given: Asked, array: Array) -> list[int]:
    """Where on the leading axes; the first place of each where nothing is said."""
    return given.wholes("at", [0] * max(array.ndim - 2, 0))


def _watched(graph: Graph, given: Asked, k: int, entry: Any) -> Watched:
    """One entry of `series`."""
    place = f"series[{k}]"
    if not isinstance(entry, dict) or entry.keys() - {"block", "pin", "entry", "at", "label"}:
        raise given.refuse(place, "an object with block, pin, and where needed entry and at", entry)
    inner = Asked(f"watch: {place}", entry, b"", given.pool)
    made = Watched(
        inner.text("block"),
        inner.text("pin"),
        inner.whole("entry", 0, _FAR) if "entry" in inner else None,
        tuple(inner.wholes("at", [])),
    )
    _known(graph, given, made.block, f"{place}.block")
    try:
        value = find(graph, f"{made.block}.{made.pin}" + ("" if made.entry is None else f"[{made.entry}]"))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"watch: {place}: {error.message}", argument=place) from None
    if not isinstance(value, Output):
        raise given.refuse(place, "one array: say which entry of the list", f"{made.block}.{made.pin}")
    if value.shape is not None and made.at and len(made.at) != len(value.shape):
        raise given.refuse(f"{place}.at", f"{len(value.shape)} indices, as {value!r} asks for", list(made.at))
    return made
