"""Task files: one JSON object per page, with a pin repeated once for each of its wires."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from ..literal_elements import shown
from ..page import PageError
from .drawn import Drawing, DrawnBlock, DrawnEnd, DrawnPin, DrawnWire, plain_name
from .report import Report

# An open quote takes the rest of the text, so that no text is scanned twice.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)', re.DOTALL)
_LONE = re.compile(r'(?:[^\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+\\', re.DOTALL)
_MOST_DIGITS = 1000
_KEPT = re.compile(r'\\(["\\]|)')


def read_task(text: str, report: Report) -> Drawing:
    """The drawing a task file describes. It has no positions: the page file keeps those."""
    try:
        content = _content(text, report)
    except (ValueError, RecursionError) as error:
        raise PageError("", f"this is no JSON: {error}") from None
    drawing = Drawing()
    far_ends: list[DrawnWire] = []
    for position, item in enumerate(_list(content, "object", "")):
        place = f"object[{position}]"
        block = _text(item, "id", place).removeprefix("#")
        symbol = _text(item, "symbol-name", place).removeprefix("#")
        pins: dict[str, DrawnPin] = {}
        for number, pin in enumerate(_list(item, "input", place)):
            read = _pin(pin, f"{place}.input[{number}]")
            pins.setdefault(read.name, read)
            _wire(pin, f"{place}.input[{number}]", block, True, drawing.wires)
        for number, pin in enumerate(_list(item, "output", place)):
            if _text(pin, "pin-name", f"{place}.output[{number}]").startswith("result_"):
                report.count("results saved in the file are not read")
            else:
                _wire(pin, f"{place}.output[{number}]", block, False, far_ends)
        drawing.blocks.append(DrawnBlock(block, symbol, list(pins.values())))
    _cross_check(drawing, far_ends, report)
    return drawing


def _content(text: str, report: Report) -> Any:
    """Line breaks and tabs may stand in strings, and paths with backslashes that nobody escaped."""
    try:
        return json.loads(text, strict=False, parse_int=_integer)
    except ValueError:
        mended = _STRING.sub(_doubled, text)
        if mended == text:
            raise
        content = json.loads(mended, strict=False, parse_int=_integer)
    report.note("", "backslashes in texts that JSON does not allow there are taken as they stand")
    return content


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} characters")
    return int(digits)


def _doubled(string: re.Match[str]) -> str:
    """A string with one backslash that escapes nothing is a path: then the one in `\\new` escapes nothing either."""
    if not _LONE.match(string[0]):
        return string[0]
    return _KEPT.sub(lambda m: m[0] if m[1] else "\\\\", string[0])


def _cross_check(drawing: Drawing, far_ends: list[DrawnWire], report: Report) -> None:
    """Every wire stands twice, with its input and with its output. The inputs' order rules; none gets lost."""
    listed = Counter(map(_ends, drawing.wires))
    blocks = {block.id for block in drawing.blocks}
    for wire in far_ends:
        if listed[_ends(wire)] > 0:
            listed[_ends(wire)] -= 1
            continue
        drawing.wires.append(wire)
        if wire.target.block in blocks:  # else to_page has something to say about it
            report.warn(wire.target.block, f"{wire.target.pin} does not list its wire from {wire.source}; it is kept")


def _ends(wire: DrawnWire) -> tuple[str, ...]:
    """A wire without the indices of its ends, which may stand at one place only."""
    return wire.source.block, wire.source.pin, wire.target.block, wire.target.pin


def _wire(pin: Any, place: str, block: str, is_input: bool, wires: list[DrawnWire]) -> None:
    other = _text(pin, "in-symbol-id", place, "").removeprefix("#")
    if not other:
        return
    here = DrawnEnd.parse(block, _text(pin, "pin-name", place))
    there = DrawnEnd.parse(other, _text(pin, "in-symbol-pin-name", place))
    wires.append(DrawnWire(there, here) if is_input else DrawnWire(here, there))


def _pin(pin: Any, place: str) -> DrawnPin:
    binary = _text(pin, "pin-save", place, "") == "binary"
    offset, fault = None, None
    try:
        offset = offset_of(_text(pin, "pin-binary-pos", place), place) if binary else None
    except PageError as error:
        fault = error  # a pin with a wire is never read
    return DrawnPin(
        plain_name(_text(pin, "pin-name", place)),
        _text(pin, "pin-type", place),
        _text(pin, "pin-shape", place),
        "" if binary else _text(pin, "pin-initial", place),
        _text(pin, "pin-datatype", place, ""),
        offset,
        fault,
    )


def offset_of(text: str, place: str) -> int:
    """A place in the `.dat` file."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise PageError(place, f"{shown(text)} is no place in a file")
    return int(text)


def _list(item: Any, key: str, place: str) -> list[Any]:
    found = _object(item, place).get(key)
    if not isinstance(found, list):
        raise PageError(place, f"{key!r} is missing" if found is None else f"{key!r} is no list")
    return found


def _text(item: Any, key: str, place: str, default: str | None = None) -> str:
    found = _object(item, place).get(key, default)
    if type(found) is int and key == "pin-binary-pos":
        found = str(found)
    if not isinstance(found, str):
        raise PageError(place, f"{key!r} is missing" if found is None else f"{key!r} is no text")
    if any("\ud800" <= c <= "\udfff" for c in found):
        raise PageError(place, f"{key!r} has half a character: {shown(found)}")
    return found


def _object(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise PageError(place, f"an object should be here, not {shown(repr(item))}")
    return item
