"""Page files: SVG with a `use` for every block and a `pg-link` for every wire."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from ..literal_elements import shown
from ..page import Note, PageError
from .drawn import Drawing, DrawnBlock, DrawnEnd, DrawnPin, DrawnWire, plain_name
from .names import record_of
from .report import Report
from .task_json import offset_of

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_COORDINATE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?:px)?(?=[\s,]|\Z)", re.ASCII)
_TRANSLATE = re.compile(r"translate\(([^()]*)\)")
_HREF = "{http://www.w3.org/1999/xlink}href"
# The type of a `use` that is a block: the plugin's name, "tensorflow" or "enu_tensorflow2_0", of the same libraries.
_BLOCKS = re.compile("tensorflow", re.IGNORECASE)
_NO_PLACE = "places on the page that are no numbers, taken as 0"
_CONTAINERS = ("g", "svg", "a", "switch", "pg-layer")
_PATTERNS = ("defs", "symbol")  # what is in these is drawn only where a `use` names it
_Waiting = tuple[ElementTree.Element, tuple[float, float], ElementTree.Element | None]


class _Builder(ElementTree.TreeBuilder):
    """Refuses declarations where the parser meets one: a search in the text would also find those in comments."""

    def doctype(self, name: str, *_: object) -> None:
        raise PageError("", "<!DOCTYPE: such declarations, and entities, are not read")


def read_page(text: str, report: Report) -> Drawing:
    """The drawing an SVG page shows."""
    try:
        # The text is decoded already, whatever encoding it declares.
        declaration = _DECLARATION.match(text)
        parser = ElementTree.XMLParser(target=_Builder())
        root = ElementTree.fromstring(text[declaration.end() :] if declaration else text.lstrip(), parser)
    except (ElementTree.ParseError, ValueError) as error:
        raise PageError("", f"this is no XML: {error}") from None
    if _local(root) != "svg":
        raise PageError("", f"the outermost element should be svg, and is {_local(root)}")
    drawing = Drawing()
    holders = _holders(root)
    # No recursion: a file may nest deeper than Python calls. The third entry is the line a link belongs to.
    waiting: list[_Waiting] = [(child, (0.0, 0.0), None) for child in reversed(root)]
    while waiting:
        element, origin, line = waiting.pop()
        kind = _local(element)
        if _is_block(element):
            _use(element, origin, drawing, report)
            continue
        if element.get("id"):
            drawing.display.add(element.get("id", ""))
        if kind == "use" and record_of(_symbol(element)) is not None:
            drawing.skipped.append(f"{shown(_symbol(element))} as use of type {shown(element.get('type') or 'none')}")
        elif kind == "use":
            report.count(f"use of type {element.get('type') or 'none'}: for display only, left out")
        elif kind == "text":
            written = "".join(element.itertext()).strip()
            if written:
                drawing.notes.append(Note(written, _at(element, origin, report)))
        elif kind == "pg-link":
            drawing.wires.append(_link(element, line))
        elif kind in _CONTAINERS or (element in holders and kind not in _PATTERNS):
            inner = _at(element, origin, report)
            around = None if kind in _CONTAINERS else element
            waiting.extend((child, inner, around) for child in reversed(element))
        else:
            report.count(f"{kind}: for display only, left out")
    if not drawing.blocks:  # blocks in patterns, which nothing draws
        drawing.skipped += [f"{shown(_symbol(e))} in defs or symbol" for e in root.iter() if _is_block(e)]
    return drawing


def _is_block(element: ElementTree.Element) -> bool:
    return _local(element) == "use" and _BLOCKS.search(element.get("type", "")) is not None


def _symbol(element: ElementTree.Element) -> str:
    return (element.get(_HREF) or element.get("href") or "").removeprefix("#")


def _holders(root: ElementTree.Element) -> set[ElementTree.Element]:
    """All elements with a block or a link somewhere inside."""
    parents = {child: parent for parent in root.iter() for child in parent}
    holders: set[ElementTree.Element] = set()
    for element in root.iter():
        if _local(element) == "pg-link" or _is_block(element):
            above = parents.get(element)
            while above is not None and above not in holders:
                holders.add(above)
                above = parents.get(above)
    return holders


def _use(element: ElementTree.Element, origin: tuple[float, float], drawing: Drawing, report: Report) -> None:
    block = element.get("id", "")
    symbol = _symbol(element)
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
    drawing.blocks.append(DrawnBlock(block, symbol, pins, _at(element, origin, report)))


def _pin(element: ElementTree.Element, block: str) -> DrawnPin:
    name = plain_name(_attribute(element, "variable", block))
    place = f"{block}.{name}"
    # The third generation of files says var-type, the fourth type.
    kind = element.get("type") if element.get("var-type") is None else element.get("var-type")
    if name.startswith("result_"):
        return DrawnPin(name, "", "", "")
    shape = element.get("shape", "")
    # Many pins are never read, outputs and those with a wire; a fault in one of them is none of the page.
    try:
        if kind is None:
            raise PageError(place, "type is missing")
        if element.get("save-type") == "binary":
            return DrawnPin(name, kind, shape, "", offset=offset_of(_attribute(element, "binary-pos", place), place))
        return DrawnPin(name, kind, shape, _attribute(element, "value", place))
    except PageError as error:
        return DrawnPin(name, kind or "", shape, "", fault=error)


def _link(element: ElementTree.Element, line: ElementTree.Element | None = None) -> DrawnWire:
    place = element.get("id", "pg-link")

    def end(block: str, pin: str) -> DrawnEnd:
        return DrawnEnd.parse(_attribute(element, block, place).removeprefix("#"), _attribute(element, pin, place))

    said = [e.get("hidden", "").lower() for e in (element, line) if e is not None]
    return DrawnWire(end("from-id", "param-from"), end("to-id", "param-to"), "true" in said)


def _at(element: ElementTree.Element, origin: tuple[float, float], report: Report) -> tuple[float, float]:
    """Where an element is drawn. No value depends on it, so that text that is no place is 0."""
    x, y = (o + _number(element.get(name) or "0", report) for o, name in zip(origin, "xy", strict=True))
    match = _TRANSLATE.search(element.get("transform", ""))
    if match:
        by = [_number(part, report) for part in match[1].replace(",", " ").split()]
        if not by:
            report.count(_NO_PLACE)
        x, y = x + (by[0] if by else 0.0), y + (by[1] if len(by) > 1 else 0.0)
    return _finite(round(x, 6), report), _finite(round(y, 6), report)


def _number(text: str, report: Report) -> float:
    """The first number of a list, as the studio gives letters of a text a place each; pixels are the unit."""
    match = _COORDINATE.match(text)
    return _finite(float(match[1]) if match else math.nan, report)


def _finite(number: float, report: Report) -> float:
    if math.isfinite(number):
        return number
    report.count(_NO_PLACE)
    return 0.0


def _attribute(element: ElementTree.Element, name: str, place: str) -> str:
    found = element.get(name)
    if found is None:
        raise PageError(place, f"{name} is missing")
    return found


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
