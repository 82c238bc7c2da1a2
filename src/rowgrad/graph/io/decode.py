"""Pages from parsed JSON: every field is looked at, and what does not belong is refused with its place.

Whether the ops, pins and attributes are ones the catalogue has is not judged here: a page of another catalogue loads.
"""

from __future__ import annotations

from typing import Any

from ..page import NAME, Block, End, Note, Page, PageError, Project
from . import fields, plain

VERSION = 1
PAGE = "rowgrad-page"
PROJECT = "rowgrad-project"
# The order in which they are written, too.
HEAD = ("format", "version", "name")
BLOCK_OPTIONAL = ("at", "values", "in", "attrs", "hidden")


def decode(tree: Any, read: plain.ArrayReader) -> Page | Project:
    """The page or project of a whole text; `read` makes the arrays of their objects."""
    top = fields.mapping(tree, "")
    for key in HEAD[:2]:
        if key not in top:
            raise PageError(key, "this field is missing")
    kind = top["format"]
    if kind not in (PAGE, PROJECT):
        raise fields.refuse("format", f"{PAGE!r} or {PROJECT!r}", kind)
    # Before anything else: what a newer version has more of is no mistake.
    version = fields.whole(top["version"], "version")
    if version > VERSION:
        newer = fields.described(version)
        raise PageError("version", f"written by a newer rowgrad: version {newer}, this one reads up to {VERSION}")
    if version < 1:
        raise fields.refuse("version", "at least 1", version)
    if kind == PAGE:
        return _page(fields.record(top, "", (*HEAD, "blocks"), ("notes",)), "", read)
    fields.record(top, "", (*HEAD, "pages"))
    pages: dict[str, Page] = {}
    for i, value in enumerate(fields.items(top["pages"], "pages")):
        place = fields.under("pages", i)
        page = _page(fields.record(value, place, ("name", "blocks"), ("notes",)), place, read)
        if page.name in pages:
            first = list(pages).index(page.name)
            raise PageError(fields.under(place, "name"), f"pages[{first}] has the name {page.name!r} already")
        pages[page.name] = page
    return Project(fields.text(top["name"], "name"), list(pages.values()))


def _page(told: dict[str, Any], place: str, read: plain.ArrayReader) -> Page:
    name = fields.text(told["name"], fields.under(place, "name"))
    where = fields.under(place, "blocks")
    blocks: dict[str, Block] = {}
    for i, value in enumerate(fields.items(told["blocks"], where)):
        block = _block(value, fields.under(where, i), read)
        if block.id in blocks:
            first = list(blocks).index(block.id)
            raise PageError(
                fields.under(fields.under(where, i), "id"), f"blocks[{first}] has the id {block.id!r} already"
            )
        blocks[block.id] = block
    for i, block in enumerate(blocks.values()):
        _check_wires(block, blocks, fields.under(fields.under(where, i), "in"), told["blocks"][i])
    where = fields.under(place, "notes")
    notes = [_note(v, fields.under(where, i)) for i, v in enumerate(fields.items(told.get("notes", []), where))]
    return Page(name, list(blocks.values()), notes)


def _block(value: Any, place: str, read: plain.ArrayReader) -> Block:
    told = fields.record(value, place, ("id", "op"), BLOCK_OPTIONAL)
    name = fields.text(told["id"], fields.under(place, "id"))
    if not NAME.fullmatch(name):
        raise fields.refuse(fields.under(place, "id"), "a name: letters, digits and _ . \\ / > -", name)
    block = Block(name, fields.text(told["op"], fields.under(place, "op")))
    if "at" in told:
        block.at = _at(told["at"], fields.under(place, "at"))
    where = fields.under(place, "values")
    for pin, given in fields.mapping(told.get("values", {}), where).items():
        block.values[pin] = plain.decode_value(given, fields.under(where, pin), read)
    where = fields.under(place, "in")
    for pin, given in fields.mapping(told.get("in", {}), where).items():
        at = fields.under(where, pin)
        listed = given if isinstance(given, list) else [given]
        block.wires[pin] = [_end(text, fields.under(at, i) if listed is given else at) for i, text in enumerate(listed)]
    where = fields.under(place, "attrs")
    for attr, given in fields.mapping(told.get("attrs", {}), where).items():
        block.attrs[attr] = plain.decode_attr(given, fields.under(where, attr))
    where = fields.under(place, "hidden")
    hidden = fields.items(told.get("hidden", []), where)
    block.hidden = tuple(fields.text(pin, fields.under(where, i)) for i, pin in enumerate(hidden))
    return block


def _end(value: Any, place: str) -> End:
    text = fields.text(value, place)
    try:
        return End.parse(text)
    except ValueError:  # PageError is one; so is an index of thousands of digits
        raise fields.refuse(place, "block.pin or block.pin[index]", text) from None


def _check_wires(block: Block, blocks: dict[str, Block], place: str, told: dict[str, Any]) -> None:
    for pin, ends in block.wires.items():
        for i, end in enumerate(ends):
            if end.block not in blocks:
                at = fields.under(place, pin)
                at = fields.under(at, i) if isinstance(told["in"][pin], list) else at
                name = fields.described(end.block)
                raise PageError(at, f"there is no block {name}{fields.nearest(end.block, blocks)}")


def _at(value: Any, place: str) -> tuple[float, float]:
    listed = fields.items(value, place)
    if len(listed) != 2:
        raise fields.refuse(place, "[x, y]", listed)
    x, y = (fields.number(v, fields.under(place, i)) + 0.0 for i, v in enumerate(listed))  # a place has no -0.0
    return x, y


def _size(value: Any, place: str) -> tuple[float, float]:
    listed = fields.items(value, place)
    if len(listed) != 2:
        raise fields.refuse(place, "[width, height]", listed)
    width, height = (fields.positive(v, fields.under(place, i)) for i, v in enumerate(listed))
    return width, height


def _note(value: Any, place: str) -> Note:
    told = fields.record(value, place, ("text",), ("at", "size"))
    note = Note(fields.text(told["text"], fields.under(place, "text")))
    if "at" in told:
        note.at = _at(told["at"], fields.under(place, "at"))
    if "size" in told:
        note.size = _size(told["size"], fields.under(place, "size"))
    return note
