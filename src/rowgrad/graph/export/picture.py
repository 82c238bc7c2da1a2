"""Draw a page: positions of its blocks, an SVG picture, and a graph for Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape as _escaped
from xml.sax.saxutils import quoteattr

from ..._catalog.spec import find_op
from ..page import Block, Page, PageError
from ..page_order import ends_of, in_order

# -- positions of blocks -----------------------------------------------------------------------------------------------

# Studio shows values and results on its blocks, which are then up to 330 wide.
WIDTH, GAP, ROW, PIN, ROW_GAP = 240.0, 130.0, 34.0, 22.0, 50.0


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

_COLOURS = {
    "box": "#2a2a2a",
    "edge": "#ffbf28",
    "title": "#00aeee",
    "in": "#ffff31",
    "out": "#8acf57",
    "wire": "#0077bd",
    "frame": "#888888",
}
_STYLE = "font-family: sans-serif; font-size: 11px"


_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Escape text for XML, which allows no control characters."""
    return _escaped(_NO_XML.sub("�", text))


def to_svg(page: Page) -> str:
    """Return the page as the text of an SVG file."""
    pins = _pins(page)
    heights = {name: height_of(max(len(i), len(o))) for name, (i, o) in pins.items()}
    at = positions(page, heights)
    parts = [_block(b, at[b.id], heights[b.id], *pins[b.id]) for b in page.blocks]
    wires = [
        _wire(
            _pin_at(at[e.block], pins[e.block][1], e.pin, WIDTH),
            _pin_at(at[b.id], pins[b.id][0], pin, 0.0),
            pin in hidden,
        )
        for b in page.blocks
        for hidden in (set(b.hidden),)
        for pin, ends in b.wires.items()
        for e in ends
        if e.block in at
    ]
    framed = [(n.text, _rectangle(n.at, n.size)) for n in page.notes if n.size]
    noted = [(n.text, (within(n.at[0]), within(n.at[1]))) for n in page.notes if not n.size]
    notes = [f'<text x="{x:g}" y="{y:g}" fill="#555">{_lines(text, x)}</text>' for text, (x, y) in noted]
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
    label = f'<text x="{x + 10:g}" y="{y + 2:g}" fill="#555">{_lines(text, x + 10)}</text>'
    return f'{rect} fill="{_COLOURS["frame"]}" fill-opacity="0.08" stroke="{_COLOURS["frame"]}"/>{label}'


_Rows = dict[str, int]  # rows of the pins on one side of a block


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
        inputs = dict.fromkeys([*(op.input_names if op else ()), *block.wires])
        outputs = dict.fromkeys([*(o.name for o in op.outputs)] if op else ())
        outputs |= dict.fromkeys(sorted(wired[block.id].difference(outputs)))
        found[block.id] = _rows(inputs), _rows(outputs)
    return found


def _rows(names: Iterable[str]) -> _Rows:
    return {name: row for row, name in enumerate(names)}


def _block(block: Block, at: tuple[float, float], height: float, inputs: _Rows, outputs: _Rows) -> str:
    x, y = at
    parts = [
        f'<g id={quoteattr(block.id)} transform="translate({x:g} {y:g})">',
        f'<rect width="{WIDTH:g}" height="{height:g}" rx="6" fill="{_COLOURS["box"]}" stroke="{_COLOURS["edge"]}"/>',
        f'<text x="8" y="21" fill="{_COLOURS["title"]}">{escape(_short(block.op, 34))}</text>',
        f"<title>{escape(f'{block.op} {block.id}')}</title>",
    ]
    for names, side, colour in ((inputs, 0.0, "in"), (outputs, WIDTH, "out")):
        for k, name in enumerate(names):
            anchor, dx = ("start", 8.0) if side == 0.0 else ("end", -8.0)
            cy = ROW + PIN * (k + 0.5)
            parts.append(f'<circle cx="{side:g}" cy="{cy:g}" r="4" fill="{_COLOURS[colour]}"/>')
            where = f'x="{side + dx:g}" y="{cy + 4:g}" text-anchor="{anchor}"'
            parts.append(f'<text {where} fill="#ddd">{escape(_short(name, 17))}</text>')
    parts.append(f'<text x="8" y="-4" fill="#555">{escape(_short(block.id, 34))}</text></g>')
    return "".join(parts)


def _pin_at(at: tuple[float, float], rows: _Rows, pin: str, side: float) -> tuple[float, float]:
    k = rows.get(pin, 0)
    return at[0] + side, at[1] + ROW + PIN * (k + 0.5)


def _wire(begin: tuple[float, float], end: tuple[float, float], hidden: bool) -> str:
    bend = max(30.0, abs(end[0] - begin[0]) / 2)
    dashes = ' stroke-dasharray="4 3" opacity="0.5"' if hidden else ""
    (x, y), (u, v) = begin, end
    path = f"M{x:g} {y:g}C{x + bend:g} {y:g} {u - bend:g} {v:g} {u:g} {v:g}"
    return f'<path d="{path}" fill="none" stroke="{_COLOURS["wire"]}" stroke-width="1.5"{dashes}/>'


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
