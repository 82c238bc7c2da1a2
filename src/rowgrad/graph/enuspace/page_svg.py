"""Page files: SVG with a `use` for every block and a `pg-link` for every wire."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from ..literal_elements import shown
from ..page import Note, PageError
from .drawn import Drawing, DrawnBlock, DrawnEnd, DrawnPin, DrawnWire, plain_name
from .report import Report
from .task_json import offset_of

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_FORBIDDEN = re.compile(r"<!(DOCTYPE|ENTITY)", re.IGNORECASE)
_TRANSLATE = re.compile(r"translate\(([^()]*)\)")
_HREF = "{http://www.w3.org/1999/xlink}href"
_BLOCKS = "tensorflow"  # the type of a `use` that is a block


def read_page(text: str, report: Report) -> Drawing:
    """The drawing an SVG page shows."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        raise PageError("", f"{forbidden[0]} at character {forbidden.start() + 1}: such declarations are not read")
    try:
        # The text is decoded already, whatever encoding it declares.
        root = ElementTree.fromstring(_DECLARATION.sub("", text, count=1))
    except (ElementTree.ParseError, ValueError) as error:
        raise PageError("", f"this is no XML: {error}") from None
    if _local(root) != "svg":
        raise PageError("", f"the outermost element should be svg, and is {_local(root)}")
    drawing = Drawing()
    # No recursion: a file may nest deeper than Python calls.
    waiting = [(child, (0.0, 0.0)) for child in reversed(root)]
    while waiting:
        element, origin = waiting.pop()
        kind = _local(element)
        if kind == "use" and element.get("type") == _BLOCKS:
            _use(element, origin, drawing, report)
            continue
        drawing.display.add(element.get("id", ""))
        if kind == "use":
            report.count(f"use of type {element.get('type') or 'none'}: for display only, left out")
        elif kind == "text":
            written = "".join(element.itertext()).strip()
            if written:
                drawing.notes.append(Note(written, _at(element, origin)))
        elif kind == "pg-link":
            drawing.wires.append(_link(element))
        elif kind == "g":
            inner = _at(element, origin)
            waiting.extend((child, inner) for child in reversed(element))
        else:
            links = [child for child in element if _local(child) == "pg-link"]
            drawing.wires.extend(_link(link, element) for link in links)
            if not links:
                report.count(f"{kind}: for display only, left out")
    return drawing


def _use(element: ElementTree.Element, origin: tuple[float, float], drawing: Drawing, report: Report) -> None:
    block = element.get("id", "")
    symbol = (element.get(_HREF) or element.get("href") or "").removeprefix("#")
    if not symbol:
        raise PageError(block, "a block that does not say of which kind it is: xlink:href is missing")
    pins = []
    for child in element:
        if _local(child) != "pg-set-pin":
            report.count(f"{_local(child)}: for display only, left out")
            continue
        pin = _pin(child, block)
        if pin.name.startswith("result_"):
            report.count("results saved in the file are not read")
        else:
            pins.append(pin)
    drawing.blocks.append(DrawnBlock(block, symbol, pins, _at(element, origin)))


def _pin(element: ElementTree.Element, block: str) -> DrawnPin:
    name = plain_name(_attribute(element, "variable", block))
    place = f"{block}.{name}"
    # The third generation of files says var-type, the fourth type.
    kind = element.get("type") if element.get("var-type") is None else element.get("var-type")
    if name.startswith("result_"):
        return DrawnPin(name, "", "", "")
    if kind is None:
        raise PageError(place, "type is missing")
    binary = element.get("save-type") == "binary"
    return DrawnPin(
        name,
        kind,
        element.get("shape", ""),
        "" if binary else _attribute(element, "value", place),
        offset=offset_of(_attribute(element, "binary-pos", place), place) if binary else None,
    )


def _link(element: ElementTree.Element, line: ElementTree.Element | None = None) -> DrawnWire:
    place = element.get("id", "pg-link")

    def end(block: str, pin: str) -> DrawnEnd:
        return DrawnEnd.parse(_attribute(element, block, place).removeprefix("#"), _attribute(element, pin, place))

    said = [e.get("hidden", "").lower() for e in (element, line) if e is not None]
    return DrawnWire(end("from-id", "param-from"), end("to-id", "param-to"), "true" in said)


def _at(element: ElementTree.Element, origin: tuple[float, float]) -> tuple[float, float]:
    place = element.get("id", _local(element))
    x, y = (o + _number(element.get(name) or "0", place) for o, name in zip(origin, "xy", strict=True))
    match = _TRANSLATE.search(element.get("transform", ""))
    if match:
        by = [_number(part, place) for part in match[1].replace(",", " ").split()]
        if not 1 <= len(by) <= 2:
            raise PageError(place, f"{shown(match[0])} is no translation")
        x, y = x + by[0], y + (by[1] if len(by) == 2 else 0.0)
    return round(x, 6), round(y, 6)


def _number(text: str, place: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PageError(place, f"{shown(text)} is no number")
    return number


def _attribute(element: ElementTree.Element, name: str, place: str) -> str:
    found = element.get(name)
    if found is None:
        raise PageError(place, f"{name} is missing")
    return found


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
