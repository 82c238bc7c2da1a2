"""Draw a page: positions of its blocks, an SVG picture, and a graph for Graphviz."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape as _escaped
from xml.sax.saxutils import quoteattr

from ..._catalog.spec import Arg, find_op
from ..page import Block, Page, PageError
from ..page_order import ends_of, in_order

# -- positions of blocks -----------------------------------------------------------------------------------------------

# Studio shows values and results on its blocks, which are then up to 390 wide.
WIDTH, GAP, ROW, PIN, ROW_GAP = 240.0, 190.0, 34.0, 22.0, 50.0


def height_of(pins: int) -> float:
    """Return the height of a block with this many pins on its longer side."""
    return ROW + PIN * max(pins, 1) + 8.0


def within(x: float) -> float:
    """Clamp a coordinate to the range of a drawing."""
    return min(max(x, -1e7), 1e7)


def positions(page: Page, heights: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the upper left corner of every block: the page's, or in columns from left to right along the wires."""
    # Larger coordinates cannot be viewed, and their sums overflow.
    placed = {b.id: (within(b.at[0]), within(b.at[1])) for b in page.blocks if b.at is not None}
    if len(placed) == len(page.blocks):
        return placed
    right = max((x for x, _ in placed.values()), default=-WIDTH - GAP) + WIDTH + GAP
    columns: dict[int, list[Block]] = {}
    depth: dict[str, int] = {}
    try:
        order = in_order(page)
    except PageError:  # blocks in a circle have no order
        order = page.blocks
    for block in order:
        before = [depth.get(e.block, -1) for ends in block.wires.values() for e in ends]
        depth[block.id] = max(before, default=-1) + 1
        if block.id not in placed:
            columns.setdefault(depth[block.id], []).append(block)
    for column, blocks in columns.items():
        y = 20.0
        for block in blocks:
            placed[block.id] = (right + 20.0 + column * (WIDTH + GAP), y)
            y += heights[block.id] + ROW_GAP
    return placed


# -- SVG: blocks with their pins, wires and notes, without scripts -----------------------------------------------------

# As in Studio (web/src/palette/families.ts and web/src/styles/theme.css, light): by category of op, and by what a wire
# carries.
_FAMILIES = {
    "#0b7269": ("Sparse segment",),
    "#0b6c8c": ("Weighted segment",),
    "#3d6b2c": ("Empty rows",),
    "#93387c": ("Sparse tensor",),
    "#6d5a17": ("Plan",),
    "#23629f": ("Rows", "Bags", "Dense rows"),
    "#56637a": ("Arithmetic", "Elementwise", "Comparison", "Conversion"),
    "#9c4327": ("Reduction", "Losses"),
    "#6c49ad": ("Matrix", "Images"),
    "#5d6470": ("Arrangement", "Picking", "Sizes"),
    "#a04a06": ("Session",),
    "#7a36c9": ("State",),
    "#b01957": ("Embedding",),
    "#8a5a08": ("Random",),
}
FAMILY_COLOURS = {category: colour for colour, listed in _FAMILIES.items() for category in listed}
OTHER_FAMILY = "#5b626c"
WIRE_COLOURS = {
    "values": "#1f66cc",
    "ids": "#b4540a",
    "size": "#6a7382",
    "variable": "#7a36c9",
    "operation": "#0a7a87",
    "feed": "#157a3b",
    "sparse": "#a52d8c",
    "any": "#667085",
}
_PAPER, _TEXT, _QUIET, _FRAME = "#ffffff", "#182030", "#566379", "#0b5f8a"
_HEAD = ROW - 6.0


def _family_colour(op: str) -> str:
    record = find_op(op)
    return OTHER_FAMILY if record is None else FAMILY_COLOURS.get(record.category, OTHER_FAMILY)


def _carried(arg: Arg | None) -> str:
    """Return what the wires of a pin carry."""
    if arg is None or arg.type == "any":
        return "any"
    if arg.type in ("operation", "feed", "sparse"):
        return arg.type
    return "variable" if arg.ref else "size" if arg.host else "ids" if arg.role == "ids" else "values"


_STYLE = "font-family: sans-serif; font-size: 11px"


_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Escape text for XML, which allows no control characters."""
    return _escaped(_NO_XML.sub("�", text))


def to_svg(page: Page, thumbnail: bool = False) -> str:
    """Return the page as the text of an SVG file; as a thumbnail, with the names of ops as its only text."""
    pins = _pins(page)
    heights = {name: height_of(max(len(i), len(o))) for name, (i, o) in pins.items()}
    at = positions(page, heights)
    draw = _card if thumbnail else _block
    parts = [draw(b, at[b.id], heights[b.id], *pins[b.id]) for b in page.blocks]
    wires = [
        _wire(
            _pin_at(at[e.block], pins[e.block][1], e.pin, WIDTH),
            _pin_at(at[b.id], pins[b.id][0], pin, 0.0),
            pins[e.block][1].get(e.pin),
            pin in hidden,
            4.0 if thumbnail else 1.5,
        )
        for b in page.blocks
        for hidden in (set(b.hidden),)
        for pin, ends in b.wires.items()
        for e in ends
        if e.block in at
    ]
    framed = [("" if thumbnail else n.text, _rectangle(n.at, n.size)) for n in page.notes if n.size]
    noted = [(n.text, (within(n.at[0]), within(n.at[1]))) for n in page.notes if not n.size and not thumbnail]
    notes = [f'<text x="{x:g}" y="{y:g}" fill="{_QUIET}">{_lines(text, x)}</text>' for text, (x, y) in noted]
    corners = [(x, y, x + WIDTH, y + heights[b]) for b, (x, y) in at.items()]
    corners += [(x, y, x + width, y + height) for _, (x, y, width, height) in framed]
    corners += [(x, y, x + 7.0 * max(map(len, text.splitlines() or [""])), y + 14.0) for text, (x, y) in noted]
    left, top = (min((c[k] for c in corners), default=0.0) - 20.0 for k in (0, 1))
    right, bottom = (max((c[k] for c in corners), default=100.0) + 20.0 for k in (2, 3))
    box = f"{left:g} {top:g} {right - left:g} {bottom - top:g}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" style="{_STYLE}" role="img"'
            f' width="{right - left:g}" height="{bottom - top:g}">',
            f"<title>{escape(page.name)}</title>",
            *(_frame(text, *where) for text, where in framed),
            *wires,
            *parts,
            *notes,
            "</svg>",
            "",
        ]
    )


def _rectangle(at: tuple[float, float], size: tuple[float, float]) -> tuple[float, float, float, float]:
    return within(at[0]), within(at[1]), within(size[0]), within(size[1])


def _frame(text: str, x: float, y: float, width: float, height: float) -> str:
    """Draw a rounded rectangle behind blocks, with its text along the upper edge."""
    rect = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10"'
    label = f'<text x="{x + 10:g}" y="{y + 2:g}" fill="{_QUIET}">{_lines(text, x + 10)}</text>'
    return f'{rect} fill="{_FRAME}" fill-opacity="0.06" stroke="{_FRAME}" stroke-opacity="0.5"/>{label}'


class _Pin(NamedTuple):
    row: int
    carries: str


_Rows = dict[str, _Pin]  # the pins on one side of a block


def _pins(page: Page) -> dict[str, tuple[_Rows, _Rows]]:
    """Return input and output pins of every block: those of its op, then those that only wires name."""
    wired: dict[str, set[str]] = {b.id: set() for b in page.blocks}
    for block in page.blocks:
        for end in ends_of(block):
            if end.block in wired:
                wired[end.block].add(end.pin)
    found = {}
    for block in page.blocks:
        op = find_op(block.op)
        inputs: dict[str, Arg | None] = {arg.name: arg for arg in op.inputs} if op else {}
        outputs: dict[str, Arg | None] = {arg.name: arg for arg in op.outputs} if op else {}
        inputs |= {name: None for name in block.wires if name not in inputs}
        outputs |= {name: None for name in sorted(wired[block.id]) if name not in outputs}
        found[block.id] = _rows(inputs), _rows(outputs)
    return found


def _rows(args: Mapping[str, Arg | None]) -> _Rows:
    return {name: _Pin(row, _carried(arg)) for row, (name, arg) in enumerate(args.items())}


def _opened(block: Block, at: tuple[float, float]) -> str:
    label = f"<title>{escape(f'{block.op} {block.id}')}</title>"
    return f'<g id={quoteattr(block.id)} transform="translate({at[0]:g} {at[1]:g})">{label}'


def _block(block: Block, at: tuple[float, float], height: float, inputs: _Rows, outputs: _Rows) -> str:
    colour = _family_colour(block.op)
    parts = [
        _opened(block, at),
        f'<rect width="{WIDTH:g}" height="{height:g}" rx="8" fill="{colour}"/>',
        f'<rect x="1" y="{_HEAD:g}" width="{WIDTH - 2:g}" height="{height - _HEAD - 1:g}" rx="7" fill="{_PAPER}"/>',
        f'<text x="10" y="19" fill="{_PAPER}" font-weight="600">{escape(_short(block.op, 34))}</text>',
    ]
    for pins, side in ((inputs, 0.0), (outputs, WIDTH)):
        for name, pin in pins.items():
            anchor, dx = ("start", 10.0) if side == 0.0 else ("end", -10.0)
            cy = ROW + PIN * (pin.row + 0.5)
            parts.append(f'<circle cx="{side:g}" cy="{cy:g}" r="4.5" fill="{WIRE_COLOURS[pin.carries]}"/>')
            where = f'x="{side + dx:g}" y="{cy + 4:g}" text-anchor="{anchor}"'
            parts.append(f'<text {where} fill="{_TEXT}">{escape(_short(name, 17))}</text>')
    parts.append(f'<text x="4" y="-5" fill="{_QUIET}">{escape(_short(block.id, 34))}</text></g>')
    return "".join(parts)


_WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])")
_LETTERS = 12  # of a line of a card


def _card(block: Block, at: tuple[float, float], height: float, inputs: _Rows, outputs: _Rows) -> str:
    """Draw a block that is too small for its pins: its colour and the name of its op, as Studio does."""
    lines: list[str] = []
    for word in _WORD.split(_short(block.op, 3 * _LETTERS)):
        if lines and len(lines[-1]) + len(word) <= _LETTERS:
            lines[-1] += word
        else:
            lines.append(word)
    size = min(31.0, (height - 8.0) / (1.15 * len(lines)), WIDTH / (0.82 * max(map(len, lines))))
    top = height / 2 - size * 1.15 * (len(lines) - 1) / 2 + size * 0.35
    texts = "".join(
        f'<tspan x="{WIDTH / 2:g}" y="{top + k * size * 1.15:g}">{escape(line)}</tspan>' for k, line in enumerate(lines)
    )
    text = f'<text text-anchor="middle" font-weight="700" font-size="{size:g}" fill="{_PAPER}">{texts}</text>'
    rect = f'<rect width="{WIDTH:g}" height="{height:g}" rx="12" fill="{_family_colour(block.op)}"/>'
    return f"{_opened(block, at)}{rect}{text}</g>"


def _pin_at(at: tuple[float, float], rows: _Rows, pin: str, side: float) -> tuple[float, float]:
    k = rows[pin].row if pin in rows else 0
    return at[0] + side, at[1] + ROW + PIN * (k + 0.5)


def _wire(
    begin: tuple[float, float], end: tuple[float, float], source: _Pin | None, hidden: bool, thickness: float
) -> str:
    bend = max(30.0, abs(end[0] - begin[0]) / 2)
    dashes = ' stroke-dasharray="4 3" opacity="0.5"' if hidden else ""
    (x, y), (u, v) = begin, end
    path = f"M{x:g} {y:g}C{x + bend:g} {y:g} {u - bend:g} {v:g} {u:g} {v:g}"
    colour = WIRE_COLOURS[source.carries if source else "any"]
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{thickness:g}"{dashes}/>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lines(text: str, x: float) -> str:
    return "".join(f'<tspan x="{x:g}" dy="1.2em">{escape(line)}</tspan>' for line in text.splitlines())


# -- Graphviz ----------------------------------------------------------------------------------------------------------


def to_dot(page: Page) -> str:
    """Return the page as a directed graph in DOT: a record per block, an edge per wire."""
    lines = [f"digraph {_quoted(page.name)} {{", "  rankdir=LR;", '  node [shape=record, fontname="sans-serif"];']
    lines += [f"  {_quoted(b.id)} [label={_label_quoted(_label(b))}];" for b in page.blocks]
    for block in page.blocks:
        hidden = set(block.hidden)
        for pin, ends in block.wires.items():
            for end in ends:
                style = " [style=dashed]" if pin in hidden else ""
                ends_at = f"{_quoted(block.id)}:{_quoted('in_' + pin)}"
                lines.append(f"  {_quoted(end.block)}:{_quoted('out_' + end.pin)} -> {ends_at}{style};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """Quote a name."""
    return _label_quoted(text.replace("\\", "\\\\"))


def _label_quoted(text: str) -> str:
    """Quote a label, in which backslashes are escapes."""
    return '"' + text.replace('"', '\\"') + '"'


def _label(block: Block) -> str:
    op = find_op(block.op)
    inputs = "|".join(f"<in_{a.name}> {a.name}" for a in op.inputs) if op else ""
    outputs = "|".join(f"<out_{o.name}> {o.name}" for o in op.outputs) if op else ""
    title = f"{_escaped_dot(block.op)}\\n{_escaped_dot(block.id)}"
    return "|".join(filter(None, [f"{{{inputs}}}" if inputs else "", title, f"{{{outputs}}}" if outputs else ""]))


def _escaped_dot(text: str) -> str:
    return "".join(f"\\{c}" if c in "{}|<>\\" else c for c in text)
