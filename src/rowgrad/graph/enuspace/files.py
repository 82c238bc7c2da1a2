"""Parse enuSpace's page files (SVG) and task files (JSON) into drawings."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

from ..literal import quoted
from ..page import Note, PageError
from .drawing import Drawing, DrawnBlock, DrawnEnd, DrawnPin, DrawnWire, Report, plain_name, record_of

# -- page files: SVG with a `use` for every block and a `pg-link` for every wire ---------------------------------------

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_COORDINATE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?:px)?(?=[\s,]|\Z)", re.ASCII)
_TRANSLATE = re.compile(r"translate\(([^()]*)\)")
_HREF = "{http://www.w3.org/1999/xlink}href"
# The type of a `use` that is a block: the plugin's name, "tensorflow" or "enu_tensorflow2_0", of the same libraries.
_BLOCKS = re.compile("tensorflow", re.IGNORECASE)
_BAD_COORDINATES = "coordinates that are not numbers, read as 0"
_CONTAINERS = ("g", "svg", "a", "switch", "pg-layer")
_PATTERNS = ("defs", "symbol")  # their content is drawn only if a `use` names it
_TREND = "trend"  # in the tag of a chart (`pg-trend`), or in the type or symbol of a `use` that is one
# The variable a chart shows, in any of its attributes: `ID_COST.result_output[0][1]`.
_SHOWN = re.compile(r"#?((?:[^.\s\[\]]+\.)+)result_(\w+)((?:\[\d{1,9}\])*)", re.ASCII)
_UNKNOWN = "Unknown"  # the kind of a block that the file does not name
_Waiting = tuple[ElementTree.Element, tuple[float, float], ElementTree.Element | None]


class _Builder(ElementTree.TreeBuilder):
    """Rejects declarations in the parser, because a text search would also find them in comments."""

    def doctype(self, name: str, *_: object) -> None:
        raise PageError("", "<!DOCTYPE is not allowed: declarations and entities are not read")


def read_page(text: str, report: Report) -> Drawing:
    """Parse the drawing of an SVG page."""
    try:
        # The text is already decoded; the encoding it declares does not matter.
        declaration = _DECLARATION.match(text)
        parser = ElementTree.XMLParser(target=_Builder())
        root = ElementTree.fromstring(text[declaration.end() :] if declaration else text.lstrip(), parser)
    except (ElementTree.ParseError, ValueError) as error:
        raise PageError("", f"this is not XML: {error}") from None
    if _local(root) != "svg":
        raise PageError("", f"the outermost element must be svg, not {_local(root)}")
    drawing = Drawing()
    ancestors = _ancestors(root)
    # No recursion, because a file may nest deeper than Python's stack. The third entry is the line of a link.
    waiting: list[_Waiting] = [(child, (0.0, 0.0), None) for child in reversed(root)]
    while waiting:
        element, origin, line = waiting.pop()
        kind = _local(element)
        if _is_block(element):
            _use(element, origin, drawing, report)
            continue
        if element.get("id"):
            drawing.display.add(element.get("id", ""))
        if _is_trend(element):
            _trend(element, drawing)
        if kind == "use" and record_of(_symbol(element)) is not None:
            drawing.skipped.append(f"{quoted(_symbol(element))} as use of type {quoted(element.get('type') or 'none')}")
        elif kind == "use" and not _is_trend(element):
            report.count(f"use of type {element.get('type') or 'none'}: for display only, left out")
        elif kind == "text":
            written = "".join(element.itertext()).strip()
            if written:
                drawing.notes.append(Note(written, _at(element, origin, report)))
        elif kind == "pg-link":
            drawing.wires.append(_link(element, line))
        elif kind in _CONTAINERS or (element in ancestors and kind not in _PATTERNS):
            inner = _at(element, origin, report)
            around = None if kind in _CONTAINERS else element
            waiting.extend((child, inner, around) for child in reversed(element))
        elif not _is_trend(element):
            report.count(f"{kind}: for display only, left out")
    if not drawing.blocks:  # blocks in patterns, which nothing draws
        drawing.skipped += [f"{quoted(_symbol(e))} in defs or symbol" for e in root.iter() if _is_block(e)]
    return drawing


def _is_block(element: ElementTree.Element) -> bool:
    return _local(element) == "use" and _BLOCKS.search(element.get("type", "")) is not None


def _symbol(element: ElementTree.Element) -> str:
    """Return the symbol a `use` names: `Const` for `#Const` or `tf_core.svg#Const`."""
    return (element.get(_HREF) or element.get("href") or "").rpartition("#")[2].strip()


def _is_trend(element: ElementTree.Element) -> bool:
    kind = _local(element)
    named = f"{element.get('type', '')} {_symbol(element)}" if kind == "use" else kind
    return _TREND in named.lower() and (kind == "use" or kind.startswith("pg-"))


def _trend(element: ElementTree.Element, drawing: Drawing) -> None:
    """Note a chart, and the variables that its attributes or those of its children name."""
    drawing.trends.add(element.get("id", ""))
    for part in element.iter():
        for value in part.attrib.values():
            match = _SHOWN.fullmatch(value.strip())
            if match:
                drawing.shown.append((match[1].removesuffix("."), match[2] + match[3]))


def _ancestors(root: ElementTree.Element) -> set[ElementTree.Element]:
    """Return all elements that contain a block or a link at any depth."""
    parents = {child: parent for parent in root.iter() for child in parent}
    ancestors: set[ElementTree.Element] = set()
    for element in root.iter():
        if _local(element) == "pg-link" or _is_block(element):
            above = parents.get(element)
            while above is not None and above not in ancestors:
                ancestors.add(above)
                above = parents.get(above)
    return ancestors


def _use(element: ElementTree.Element, origin: tuple[float, float], drawing: Drawing, report: Report) -> None:
    block = element.get("id", "")
    symbol = _symbol(element)
    if not symbol:
        report.warn(block, f"xlink:href, the kind of the block, is missing; it becomes {_UNKNOWN}")
    pins = []
    for child in element:
        if _local(child) == "pg-set-attribute":
            report.count(f"{plain_name(child.get('variable', ''))}: a setting of enuSpace, left out")
            continue
        if _local(child) != "pg-set-pin":
            report.count(f"{_local(child)}: for display only, left out")
            continue
        if not plain_name(child.get("variable", "")):
            report.warn(block, f"a pin without a name is left out: {quoted(child.get('value', ''))}")
            continue
        pin = _pin(child, block)
        if pin.name.startswith("result_"):
            report.count("results saved in the file are not read")
        else:
            pins.append(pin)
    drawing.blocks.append(DrawnBlock(block, symbol or _UNKNOWN, pins, _at(element, origin, report)))


def _pin(element: ElementTree.Element, block: str) -> DrawnPin:
    name = plain_name(element.get("variable", ""))
    place = f"{block}.{name}"
    # Files of version 3 use var-type, of version 4 type. Without either, the spelling of the value says it.
    kind = element.get("var-type") or element.get("type") or ""
    if name.startswith("result_"):
        return DrawnPin(name, "", "", "")
    shape = element.get("shape", "")
    # Outputs and pins with a wire are never read, so an error in one of them does not make the page invalid.
    try:
        if element.get("save-type") == "binary":
            return DrawnPin(name, kind, shape, "", offset=offset_of(_attribute(element, "binary-pos", place), place))
        return DrawnPin(name, kind, shape, element.get("value", ""))
    except PageError as error:
        return DrawnPin(name, kind, shape, "", fault=error)


def _link(element: ElementTree.Element, line: ElementTree.Element | None = None) -> DrawnWire:
    def end(block: str, pin: str) -> DrawnEnd:
        return DrawnEnd.parse(element.get(block, "").removeprefix("#"), element.get(pin, ""))

    flags = [e.get("hidden", "").lower() for e in (element, line) if e is not None]
    return DrawnWire(end("from-id", "param-from"), end("to-id", "param-to"), "true" in flags)


def _at(element: ElementTree.Element, origin: tuple[float, float], report: Report) -> tuple[float, float]:
    """Return the position of an element; an invalid one is 0, because no value depends on it."""
    x, y = (o + _number(element.get(name) or "0", report) for o, name in zip(origin, "xy", strict=True))
    match = _TRANSLATE.search(element.get("transform", ""))
    if match:
        by = [_number(part, report) for part in match[1].replace(",", " ").split()]
        if not by:
            report.count(_BAD_COORDINATES)
        x, y = x + (by[0] if by else 0.0), y + (by[1] if len(by) > 1 else 0.0)
    return _finite(round(x, 6), report), _finite(round(y, 6), report)


def _number(text: str, report: Report) -> float:
    """Return the first number of a list in pixels; enuSpace writes one position per letter of a text."""
    match = _COORDINATE.match(text)
    return _finite(float(match[1]) if match else math.nan, report)


def _finite(number: float, report: Report) -> float:
    if math.isfinite(number):
        return number
    report.count(_BAD_COORDINATES)
    return 0.0


def _attribute(element: ElementTree.Element, name: str, place: str) -> str:
    found = element.get(name)
    if found is None:
        raise PageError(place, f"{name} is missing")
    return found


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


# -- task files: one JSON object per page, with a pin repeated for each of its wires -----------------------------------

# An unclosed quote matches the rest of the text, so that no text is scanned twice.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)', re.DOTALL)
_INVALID_ESCAPE = re.compile(r'(?:[^\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+\\', re.DOTALL)
_MOST_DIGITS = 1000
_BACKSLASH = re.compile(r'\\(["\\]|)')


def read_task(text: str, report: Report) -> Drawing:
    """Parse the drawing of a task file. It has no positions; these are in the page file."""
    try:
        content = _content(text, report)
    except (ValueError, RecursionError) as error:
        raise PageError("", f"this is not JSON: {error}") from None
    drawing = Drawing()
    output_wires: list[DrawnWire] = []
    for position, item in enumerate(_list(content, "object", "")):
        place = f"object[{position}]"
        block = _text(item, "id", place, "").removeprefix("#")
        symbol = _text(item, "symbol-name", place, "").rpartition("#")[2].strip()
        if not symbol:
            report.warn(block, f"symbol-name, the kind of the block, is missing; it becomes {_UNKNOWN}")
        pins: dict[str, DrawnPin] = {}
        for number, pin in enumerate(_list(item, "input", place, [])):
            read = _task_pin(pin, f"{place}.input[{number}]")
            if not read.name:
                report.warn(block, f"a pin without a name is left out: {quoted(read.text)}")
                continue
            pins.setdefault(read.name, read)
            _wire(pin, f"{place}.input[{number}]", block, True, drawing.wires)
        for number, pin in enumerate(_list(item, "output", place, [])):
            if _text(pin, "pin-name", f"{place}.output[{number}]", "").startswith("result_"):
                report.count("results saved in the file are not read")
            else:
                _wire(pin, f"{place}.output[{number}]", block, False, output_wires)
        drawing.blocks.append(DrawnBlock(block, symbol or _UNKNOWN, list(pins.values())))
    _cross_check(drawing, output_wires, report)
    return drawing


def _content(text: str, report: Report) -> Any:
    """Parse JSON in whose strings enuSpace left line breaks, tabs and the backslashes of paths unescaped."""
    try:
        return json.loads(text, strict=False, parse_int=_integer)
    except ValueError:
        repaired = _STRING.sub(_escape_backslashes, text)
        if repaired == text:
            raise
        content = json.loads(repaired, strict=False, parse_int=_integer)
    report.note("", "invalid escapes in strings are read as plain backslashes")
    return content


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} characters")
    return int(digits)


def _escape_backslashes(string: re.Match[str]) -> str:
    """Escape all backslashes of a string with an invalid escape: it is a path, so `\\new` in it is not an escape."""
    if not _INVALID_ESCAPE.match(string[0]):
        return string[0]
    return _BACKSLASH.sub(lambda m: m[0] if m[1] else "\\\\", string[0])


def _cross_check(drawing: Drawing, output_wires: list[DrawnWire], report: Report) -> None:
    """Merge wires, each of which is listed at its input and at its output. The order at inputs is used."""
    listed = Counter(map(_ends, drawing.wires))
    blocks = {block.id for block in drawing.blocks}
    for wire in output_wires:
        if listed[_ends(wire)] > 0:
            listed[_ends(wire)] -= 1
            continue
        drawing.wires.append(wire)
        if wire.target.block in blocks:  # otherwise to_page reports it
            report.warn(
                wire.target.block, f"{wire.target.pin} does not list its wire from {wire.source}; the wire is imported"
            )


def _ends(wire: DrawnWire) -> tuple[str, ...]:
    """Return a wire without the indices of its ends, which only one of its two entries may have."""
    return wire.source.block, wire.source.pin, wire.target.block, wire.target.pin


def _wire(pin: Any, place: str, block: str, is_input: bool, wires: list[DrawnWire]) -> None:
    other = _text(pin, "in-symbol-id", place, "").removeprefix("#")
    if not other:
        return
    here = DrawnEnd.parse(block, _text(pin, "pin-name", place, ""))
    there = DrawnEnd.parse(other, _text(pin, "in-symbol-pin-name", place, ""))
    wires.append(DrawnWire(there, here) if is_input else DrawnWire(here, there))


def _task_pin(pin: Any, place: str) -> DrawnPin:
    binary = _text(pin, "pin-save", place, "") == "binary"
    offset, fault = None, None
    try:
        offset = offset_of(_text(pin, "pin-binary-pos", place), place) if binary else None
    except PageError as error:
        fault = error  # a pin with a wire is never read
    return DrawnPin(
        plain_name(_text(pin, "pin-name", place, "")),
        _text(pin, "pin-type", place, ""),
        _text(pin, "pin-shape", place, ""),
        "" if binary else _text(pin, "pin-initial", place, ""),
        _text(pin, "pin-datatype", place, ""),
        offset,
        fault,
    )


def offset_of(text: str, place: str) -> int:
    """Parse an offset in the `.dat` file."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise PageError(place, f"{quoted(text)} is not an offset in a file")
    return int(text)


def _list(item: Any, key: str, place: str, default: list[Any] | None = None) -> list[Any]:
    found = _object(item, place).get(key, default)
    if not isinstance(found, list):
        raise PageError(place, f"{key!r} is missing" if found is None else f"{key!r} is not a list")
    return found


def _text(item: Any, key: str, place: str, default: str | None = None) -> str:
    found = _object(item, place).get(key, default)
    if type(found) is int and key == "pin-binary-pos":
        found = str(found)
    if not isinstance(found, str):
        raise PageError(place, f"{key!r} is missing" if found is None else f"{key!r} is not text")
    if any("\ud800" <= c <= "\udfff" for c in found):
        raise PageError(place, f"{key!r} has a lone surrogate: {quoted(found)}")
    return found


def _object(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise PageError(place, f"must be an object, not {quoted(repr(item))}")
    return item
