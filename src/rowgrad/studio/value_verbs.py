"""Verbs about values: parse and upload them, show parts of values and results, chart numbers."""

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
from .charts import MOST_SERIES, Watched
from .value_input import arrays_of, parse_value, unpacking, value_of_cells
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
from .verbs import Arguments, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

# -- values that users type, paste, edit in a grid or upload -----------------------------------------------------------

MOST_ELEMENTS = 1_000_000  # of what is typed, pasted or filled
MOST_CHARACTERS = 10_000  # of a value's text


@verb("parse")
def parse(studio: Studio, args: Arguments) -> Json:
    """Parse a literal."""
    shape = _shape(args) if "shape" in args else None
    return _value_json(studio, parse_value(args.text("text"), args.text("dtype", "", 40), shape))


@verb("cells")
def cells(studio: Studio, args: Arguments) -> Json:
    """Parse the cells of a grid."""
    texts = args.texts("cells", most=MOST_ELEMENTS)
    return _value_json(studio, value_of_cells(texts, args.text("dtype", most=40), _shape(args)))


@verb("describe")
def describe(studio: Studio, args: Arguments) -> Json:
    """Return a value's short text and dtype, and the text of every element if there are at most `most`."""
    value = args.value("value")
    array = array_of(value)
    text = short_text(value, args.whole("characters", 1, MOST_CHARACTERS, 200))
    described = {"text": text, "info": info_of(array), "weak": is_weak(value), "cells": None}
    if "most" in args and array.size <= args.whole("most", 0, MOST_CELLS):
        described["cells"] = texts_of(as_written(value).reshape(-1))
    return described


@verb("upload", takes_file=True)
def upload(studio: Studio, args: Arguments) -> Json:
    """Add the arrays of a file to the pool."""
    with unpacking:
        found = arrays_of(args.text("name", most=1000), args.body, _dtype(args))
        return {
            "arrays": [
                {"name": name, "value": studio.pool.write_value(array), "info": info_of(array)}
                for name, array in found.items()
            ]
        }


@verb("sparse")
def sparse(studio: Studio, args: Arguments) -> Json:
    """Return a sparse matrix as a grid."""
    indices, values, dense_shape = (args.value(part) for part in ("indices", "values", "dense_shape"))
    return sparse_window(indices, values, dense_shape, interval(args, "rows"), interval(args, "columns"))


@verb("sparse_list")
def sparse_list(studio: Studio, args: Arguments) -> Json:
    """Return a range of entries of a sparse matrix."""
    indices, values, dense_shape = (args.value(part) for part in ("indices", "values", "dense_shape"))
    return sparse_entries(indices, values, dense_shape, interval(args, "entries"))


@verb("sparse_cells")
def sparse_cells(studio: Studio, args: Arguments) -> Json:
    """Parse a grid as a sparse matrix."""
    shape = _sizes(args)
    if len(shape) != 2:
        raise args.error("shape", "[rows, columns]", shape)
    parts = sparse_parts(_dtype(args), shape, args.listed("entries", most=MOST_ELEMENTS))
    names = ("indices", "values", "dense_shape")
    return {name: studio.pool.write_value(part) for name, part in zip(names, parts, strict=True)}


def interval(args: Arguments, name: str) -> list[int]:
    """Return the argument `[first, beyond]`, a half-open interval."""
    found = args.wholes(name, most=2)
    if len(found) != 2 or found[0] > found[1]:
        raise args.error(name, "[first, beyond] with first <= beyond", found)
    return found


def _value_json(studio: Studio, value: Any) -> Json:
    array = array_of(value)
    described = {"value": studio.pool.write_value(value), "text": short_text(value), "info": info_of(array)}
    return described | {"weak": is_weak(value)}


def _dtype(args: Arguments) -> str | None:
    """Return the dtype argument, or None if it is not set."""
    text = args.text("dtype", "", 40)
    try:
        return parse_dtype(text) if text else None
    except PageError as error:
        raise args.error("dtype", error.message.partition("; ")[2] or "a dtype", text) from None


def _sizes(args: Arguments) -> list[int]:
    return args.wholes("shape", most=MAX_DEPTH)


def _shape(args: Arguments) -> list[int]:
    """Return the shape argument, bounded for a typed value."""
    shape = _sizes(args)
    if math.prod(max(size, 1) for size in shape) > MOST_ELEMENTS:  # rows without elements are lists too
        raise args.error("shape", f"of at most {MOST_ELEMENTS} elements", shape)
    return shape


# -- parts of values and results, heat maps, and charts ----------------------------------------------------------------

_FAR = 2**62 - 1
MOST_MAPPED = 1024


@verb("window")
def window(studio: Studio, args: Arguments) -> Json:
    """Return a part of a value or result."""
    age: dict[str, Any] = {"run": None, "stale": False}
    if "value" in args:
        array = array_of(args.value("value"))
    else:
        array = _result(studio, args)
        age = studio.runs.of(args.text("name")).age(args.text("block"), args.text("pin"))
    return window_of(array, _at(args, array), interval(args, "rows"), interval(args, "columns")) | age


@verb("map")
def heat_map(studio: Studio, args: Arguments) -> Json:
    """Return a result as a heat map."""
    array = _result(studio, args)
    most = args.whole("most", 1, MOST_MAPPED, 256)
    return heat_of(array, _at(args, array), most, args.truth("peaks", False))


@verb("watch")
def watch(studio: Studio, args: Arguments) -> Json:
    """Set the numbers to record; without `series`, those that sessions fetch."""
    name = args.text("name")
    session = studio.runs.session_of(name)
    graph = session.graph if session is not None else check(studio.folder.open(name)[0]).scope.graph
    if "series" not in args:
        return {"series": studio.runs.watch(name, None)}
    requested = args.listed("series", most=MOST_SERIES)
    return {"series": studio.runs.watch(name, [_watched(graph, args, k, entry) for k, entry in enumerate(requested)])}


@verb("trend")
def trend(studio: Studio, args: Arguments) -> Json:
    """Return the recorded numbers."""
    name = args.text("name")
    if studio.runs.session_of(name) is None:
        studio.folder.open(name)  # raises if there is no such page
    return studio.runs.trend(name, args.whole("since", 0, _FAR, 0))


def run_session(studio: Studio, args: Arguments) -> ClientSession:
    """Return the session of a page that has been run."""
    name = args.text("name")
    session = studio.runs.session_of(name)
    if session is None:
        studio.folder.open(name)  # raises if there is no such page
        raise args.error("name", "a page that has been run", name)
    return session


def check_block(graph: Graph, args: Arguments, block: str, place: str = "block") -> None:
    """Raise unless the page that was run has this block."""
    if block not in graph.blocks:
        raise args.error(place, "a block of the page that was run", block)


def _result(studio: Studio, args: Arguments) -> Array:
    """Return the array of a pin in the last run."""
    session, block, pin = run_session(studio, args), args.text("block"), args.text("pin")
    check_block(session.graph, args, block)
    pins = session.graph.blocks[block].pins
    if pin not in pins:
        raise args.error("pin", f"an output of {block}, which has {', '.join(pins) or 'none'}", pin)
    entry = args.whole("entry", 0, _FAR) if "entry" in args else None
    if isinstance(pins[pin], list) and entry is None:
        entry = 0 if len(pins[pin]) == 1 else args.whole("entry", 0, len(pins[pin]) - 1)
    if isinstance(pins[pin], Output) and entry is not None:
        raise args.error("entry", f"left out: {block}.{pin} is not a list", entry)
    found = session.result(block, pin)
    if isinstance(found, list):
        if entry is None or entry >= len(found):
            raise args.error("entry", f"in [0, {len(found)})", entry)
        return found[entry]
    if found is None:
        raise args.error("pin", f"one that a run has computed; no run has computed {block}.{pin}", pin)
    return found


def _at(args: Arguments, array: Array) -> list[int]:
    """Return the indices on the leading axes, by default 0."""
    return args.wholes("at", [0] * max(array.ndim - 2, 0))


def _watched(graph: Graph, args: Arguments, k: int, entry: Any) -> Watched:
    """Validate one entry of `series`."""
    place = f"series[{k}]"
    if not isinstance(entry, dict) or entry.keys() - {"block", "pin", "entry", "at", "label"}:
        raise args.error(place, "an object with block, pin, and where needed entry and at", entry)
    inner = Arguments(f"watch: {place}", entry, b"", args.pool)
    watched = Watched(
        inner.text("block"),
        inner.text("pin"),
        inner.whole("entry", 0, _FAR) if "entry" in inner else None,
        tuple(inner.wholes("at", [])),
    )
    check_block(graph, args, watched.block, f"{place}.block")
    try:
        value = find(graph, f"{watched.block}.{watched.pin}" + ("" if watched.entry is None else f"[{watched.entry}]"))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"watch: {place}: {error.message}", argument=place) from None
    if not isinstance(value, Output):
        raise args.error(place, "one array: name an entry of the list", f"{watched.block}.{watched.pin}")
    if value.shape is not None and watched.at and len(watched.at) != len(value.shape):
        raise args.error(f"{place}.at", f"{len(value.shape)} indices, as {value!r} requires", list(watched.at))
    return watched
