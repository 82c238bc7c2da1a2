"""Verbs that look: at parts of values and results, at maps of them, at numbers over time, at rows and their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arrays import Array
from ..errors import InvalidArgumentError
from ..graph.build import check
from ..graph.naming import find
from ..graph.nodes import Graph, Output
from ..graph.session import ClientSession
from ..graph.tracing import trace as trace_rows
from .asked import Asked
from .heat import heat_of
from .short_texts import array_of
from .trends import MOST_SERIES, Watched
from .value_verbs import interval
from .verbs import Json, verb
from .windows import window_of

if TYPE_CHECKING:
    from .studio import Studio

_FAR = 2**62 - 1
MOST_MAPPED = 1024


@verb("window")
def window(studio: Studio, given: Asked) -> Json:
    """A part of a value, or of a result."""
    told: dict[str, Any] = {"run": None, "stale": False}
    if "value" in given:
        array = array_of(given.value("value"))
    else:
        array = _result(studio, given)
        told = studio.runs.of(given.text("name")).age(given.text("block"), given.text("pin"))
    return window_of(array, _at(given, array), interval(given, "rows"), interval(given, "columns")) | told


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
    told = {"outputs": found.outputs, "inputs": found.inputs, "pairs": pairs}
    return told | {"total": found.total, "cut": found.cut}


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
