"""Pages as JSON: decode and validate parsed JSON, encode pages as plain data, and write their text.

Every field is validated, and errors name its place. Ops, pins and attributes are not looked up in the catalogue, so
that a page of another catalogue loads.
"""

from __future__ import annotations

import json
from typing import Any

import rowgrad.graph.io.fields as fields
import rowgrad.graph.io.plain as plain

from ..page import NAME, Block, End, Note, Page, PageError, Project, Trend
from .arrays import SAFE, Writer

# -- decode ------------------------------------------------------------------------------------------------------------

VERSION = 1
PAGE = "rowgrad-page"
PROJECT = "rowgrad-project"
# Fields are written in this order too.
HEAD = ("format", "version", "name")
PAGE_OPTIONAL = ("notes", "trends")
BLOCK_OPTIONAL = ("at", "values", "in", "attrs", "hidden")


def decode(tree: Any, read: plain.ArrayReader) -> Page | Project:
    """Return the page or project of parsed JSON; `read` decodes the objects of arrays."""
    top = fields.mapping(tree, "")
    for key in HEAD[:2]:
        if key not in top:
            raise PageError(key, "this field is missing")
    kind = top["format"]
    if kind not in (PAGE, PROJECT):
        raise fields.error("format", f"{PAGE!r} or {PROJECT!r}", kind)
    # The version comes first: fields that a newer version adds are not errors.
    version = fields.whole(top["version"], "version")
    if version > VERSION:
        newer = fields.describe(version)
        raise PageError("version", f"written by a newer rowgrad: version {newer}, this one reads up to {VERSION}")
    if version < 1:
        raise fields.error("version", "at least 1", version)
    if kind == PAGE:
        return _page(fields.record(top, "", (*HEAD, "blocks"), PAGE_OPTIONAL), "", read)
    fields.record(top, "", (*HEAD, "pages"))
    pages: dict[str, Page] = {}
    for i, value in enumerate(fields.items(top["pages"], "pages")):
        place = fields.under("pages", i)
        page = _page(fields.record(value, place, ("name", "blocks"), PAGE_OPTIONAL), place, read)
        if page.name in pages:
            first = list(pages).index(page.name)
            raise PageError(fields.under(place, "name"), f"pages[{first}] has the name {page.name!r} already")
        pages[page.name] = page
    return Project(fields.text(top["name"], "name"), list(pages.values()))


def _page(data: dict[str, Any], place: str, read: plain.ArrayReader) -> Page:
    name = fields.text(data["name"], fields.under(place, "name"))
    where = fields.under(place, "blocks")
    blocks: dict[str, Block] = {}
    for i, value in enumerate(fields.items(data["blocks"], where)):
        block = _block(value, fields.under(where, i), read)
        if block.id in blocks:
            first = list(blocks).index(block.id)
            raise PageError(
                fields.under(fields.under(where, i), "id"), f"blocks[{first}] has the id {block.id!r} already"
            )
        blocks[block.id] = block
    for i, block in enumerate(blocks.values()):
        _check_wires(block, blocks, fields.under(fields.under(where, i), "in"), data["blocks"][i])
    where = fields.under(place, "notes")
    notes = [_note(v, fields.under(where, i)) for i, v in enumerate(fields.items(data.get("notes", []), where))]
    where = fields.under(place, "trends")
    trends = [_trend(v, fields.under(where, i)) for i, v in enumerate(fields.items(data.get("trends", []), where))]
    return Page(name, list(blocks.values()), notes, trends)


def _block(value: Any, place: str, read: plain.ArrayReader) -> Block:
    data = fields.record(value, place, ("id", "op"), BLOCK_OPTIONAL)
    name = fields.text(data["id"], fields.under(place, "id"))
    if not NAME.fullmatch(name):
        raise fields.error(fields.under(place, "id"), "a name: letters, digits and _ . \\ / > -", name)
    block = Block(name, fields.text(data["op"], fields.under(place, "op")))
    if "at" in data:
        block.at = _at(data["at"], fields.under(place, "at"))
    where = fields.under(place, "values")
    for pin, entry in fields.mapping(data.get("values", {}), where).items():
        block.values[pin] = plain.decode_value(entry, fields.under(where, pin), read)
    where = fields.under(place, "in")
    for pin, entry in fields.mapping(data.get("in", {}), where).items():
        at = fields.under(where, pin)
        listed = entry if isinstance(entry, list) else [entry]
        block.wires[pin] = [_end(text, fields.under(at, i) if listed is entry else at) for i, text in enumerate(listed)]
    where = fields.under(place, "attrs")
    for attr, entry in fields.mapping(data.get("attrs", {}), where).items():
        block.attrs[attr] = plain.decode_attr(entry, fields.under(where, attr))
    where = fields.under(place, "hidden")
    hidden = fields.items(data.get("hidden", []), where)
    block.hidden = tuple(fields.text(pin, fields.under(where, i)) for i, pin in enumerate(hidden))
    return block


def _end(value: Any, place: str) -> End:
    text = fields.text(value, place)
    try:
        return End.parse(text)
    except ValueError:  # PageError is one; so is an index of thousands of digits
        raise fields.error(place, "block.pin or block.pin[index]", text) from None


def _check_wires(block: Block, blocks: dict[str, Block], place: str, data: dict[str, Any]) -> None:
    for pin, ends in block.wires.items():
        for i, end in enumerate(ends):
            if end.block not in blocks:
                at = fields.under(place, pin)
                at = fields.under(at, i) if isinstance(data["in"][pin], list) else at
                name = fields.describe(end.block)
                raise PageError(at, f"there is no block {name}{fields.nearest(end.block, blocks)}")


def _at(value: Any, place: str) -> tuple[float, float]:
    listed = fields.items(value, place)
    if len(listed) != 2:
        raise fields.error(place, "[x, y]", listed)
    x, y = (fields.number(v, fields.under(place, i)) + 0.0 for i, v in enumerate(listed))  # a place has no -0.0
    return x, y


def _size(value: Any, place: str) -> tuple[float, float]:
    listed = fields.items(value, place)
    if len(listed) != 2:
        raise fields.error(place, "[width, height]", listed)
    width, height = (fields.positive(v, fields.under(place, i)) for i, v in enumerate(listed))
    return width, height


def _note(value: Any, place: str) -> Note:
    data = fields.record(value, place, ("text",), ("at", "size"))
    note = Note(fields.text(data["text"], fields.under(place, "text")))
    if "at" in data:
        note.at = _at(data["at"], fields.under(place, "at"))
    if "size" in data:
        note.size = _size(data["size"], fields.under(place, "size"))
    return note


def _trend(value: Any, place: str) -> Trend:
    """Decode a trend. Its block may be missing: an editor removes blocks without knowing what is drawn."""
    data = fields.record(value, place, ("of",), ("at",))
    where = fields.under(place, "at")
    at = tuple(fields.whole(v, fields.under(where, i)) for i, v in enumerate(fields.items(data.get("at", []), where)))
    if any(index < 0 for index in at):
        raise fields.error(where, "indices >= 0", list(at))
    return Trend(_end(data["of"], fields.under(place, "of")), at)


# -- encode ------------------------------------------------------------------------------------------------------------


def encode(what: Page | Project, writer: Writer) -> dict[str, Any]:
    """Return a page or project as plain data; raise PageError if it could not be decoded again."""
    if isinstance(what, Page):
        tree = {"format": PAGE, "version": VERSION} | _encode_page(what, "", writer)
    elif isinstance(what, Project):
        pages = [_encode_page(page, fields.under("pages", i), writer) for i, page in enumerate(what.pages)]
        tree = {"format": PROJECT, "version": VERSION, "name": what.name, "pages": pages}
    else:
        raise TypeError(f"a Page or a Project can be written; got {type(what).__name__}")
    # Validate ids, names and wires as a reader will. Arrays were validated when they were encoded.
    decode(tree, lambda value, place: None)
    return tree


def _encode_page(page: Page, place: str, writer: Writer) -> dict[str, Any]:
    where = fields.under(place, "blocks")
    blocks = [_encode_block(block, fields.under(where, i), writer) for i, block in enumerate(page.blocks)]
    data: dict[str, Any] = {"name": page.name, "blocks": blocks}
    if page.notes:
        data["notes"] = [
            _encode_note(note, f"{fields.under(place, 'notes')}[{i}]") for i, note in enumerate(page.notes)
        ]
    if page.trends:
        data["trends"] = [{"of": str(t.end)} | ({"at": list(t.at)} if t.at else {}) for t in page.trends]
    return data


def _encode_block(block: Block, place: str, writer: Writer) -> dict[str, Any]:
    data: dict[str, Any] = {"id": block.id, "op": block.op}
    if block.at is not None:
        data["at"] = _encode_position(block.at, fields.under(place, "at"))
    for key, value in (
        ("values", _values(block, fields.under(place, "values"), writer)),
        ("in", {pin: str(ends[0]) if len(ends) == 1 else [str(e) for e in ends] for pin, ends in block.wires.items()}),
        ("attrs", _attrs(block, fields.under(place, "attrs"), writer)),
        ("hidden", list(block.hidden)),
    ):
        if value:
            data[key] = value
    return data


def _values(block: Block, place: str, writer: Writer) -> dict[str, Any]:
    return {pin: plain.encode_value(value, _under(place, pin), writer) for pin, value in block.values.items()}


def _attrs(block: Block, place: str, writer: Writer) -> dict[str, Any]:
    return {attr: plain.encode_attr(value, _under(place, attr), writer.browser) for attr, value in block.attrs.items()}


def _under(place: str, key: Any) -> str:
    return fields.under(place, fields.text(key, place))


def _encode_note(note: Note, place: str) -> dict[str, Any]:
    data: dict[str, Any] = {"text": note.text, "at": _encode_position(note.at, fields.under(place, "at"))}
    if note.size is not None:
        # `encode` decodes the result, which rejects sizes that are not positive.
        data["size"] = _encode_position(note.size, fields.under(place, "size"), "(width, height)")
    return data


def _encode_position(at: tuple[float, float], place: str, wanted: str = "(x, y)") -> list[float]:
    if len(at) != 2:
        raise PageError(place, f"must be {wanted}; got {len(at)} numbers")
    numbers = [fields.number(value, fields.under(place, i)) for i, value in enumerate(at)]
    return [int(x) if x.is_integer() and abs(x) <= SAFE else x for x in numbers]


# -- text: one block per line, so that diffs show one line per changed block -------------------------------------------

WIDTH = 160  # characters with the comma; a block whose line would be longer is spread over lines
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_LISTS = ("pages", "blocks", "notes", "trends")


def text_of(tree: dict[str, Any]) -> str:
    """Write the plain data of a page or project as text."""
    return _container(tree, 0) + "\n"


def _container(tree: dict[str, Any], indent: int) -> str:
    """Write a project or page: short fields on one line, then its lists with one or more lines per entry."""
    pad = " " * (indent + 1)
    head = ", ".join(f"{_ENCODE(key)}: {_ENCODE(value)}" for key, value in tree.items() if key not in _LISTS)
    parts = [pad + head]
    for key in _LISTS:
        if key in tree:
            put = _container if key == "pages" else _spread
            lines = ",\n".join(f"{pad} {put(entry, indent + 2)}" for entry in tree[key])
            parts.append(f'{pad}"{key}": [\n{lines}\n{pad}]' if lines else f'{pad}"{key}": []')
    return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"


def _spread(value: Any, indent: int, before: int = 0) -> str:
    """Write a value on one line if it is short enough, otherwise one line per entry; `before` characters precede it."""
    line = _ENCODE(value)
    if indent + before + len(line) < WIDTH or not value or not isinstance(value, dict | list):
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            name = _ENCODE(key) + ": "
            entries.append(pad + name + _spread(entry, indent + 1, len(name)))
        return "{\n" + ",\n".join(entries) + "\n" + " " * indent + "}"
    if any(isinstance(entry, dict | list) for entry in value):
        entries = [pad + _spread(entry, indent + 1) for entry in value]
    else:
        strings = any(isinstance(entry, str) for entry in value)  # strings may contain ", "
        texts = [_ENCODE(entry) for entry in value] if strings else line[1:-1].split(", ")
        entries = [pad + entry for entry in _filled(texts, WIDTH - indent - 2)]
    return "[\n" + ",\n".join(entries) + "\n" + " " * indent + "]"


def _filled(texts: list[str], width: int) -> list[str]:
    """Put as many numbers or strings on a line as fit."""
    lines: list[str] = []
    line: list[str] = []
    length = 0
    for text in texts:
        if line and length + len(text) > width:
            lines.append(", ".join(line))
            line, length = [], 0
        line.append(text)
        length += len(text) + 2
    lines.append(", ".join(line))
    return lines
