"""Pages as plain data ready for JSON."""

from __future__ import annotations

from typing import Any

from ..page import Block, Note, Page, PageError, Project
from . import fields, plain
from .arrays import Writer
from .decode import PAGE, PROJECT, VERSION, decode
from .elements import SAFE


def encode(what: Page | Project, writer: Writer) -> dict[str, Any]:
    """The data of a page or project; PageError where it could not be read again."""
    if isinstance(what, Page):
        tree = {"format": PAGE, "version": VERSION} | _page(what, "", writer)
    elif isinstance(what, Project):
        pages = [_page(page, fields.under("pages", i), writer) for i, page in enumerate(what.pages)]
        tree = {"format": PROJECT, "version": VERSION, "name": what.name, "pages": pages}
    else:
        raise TypeError(f"a Page or a Project can be written; got {type(what).__name__}")
    # Ids, names, wires: what reading refuses is never written. Arrays were read when they were encoded.
    decode(tree, lambda value, place: None)
    return tree


def _page(page: Page, place: str, writer: Writer) -> dict[str, Any]:
    where = fields.under(place, "blocks")
    blocks = [_block(block, fields.under(where, i), writer) for i, block in enumerate(page.blocks)]
    made: dict[str, Any] = {"name": page.name, "blocks": blocks}
    if page.notes:
        made["notes"] = [_note(note, f"{fields.under(place, 'notes')}[{i}]") for i, note in enumerate(page.notes)]
    return made


def _block(block: Block, place: str, writer: Writer) -> dict[str, Any]:
    made: dict[str, Any] = {"id": block.id, "op": block.op}
    if block.at is not None:
        made["at"] = _at(block.at, fields.under(place, "at"))
    for key, value in (
        ("values", _values(block, fields.under(place, "values"), writer)),
        ("in", {pin: str(ends[0]) if len(ends) == 1 else [str(e) for e in ends] for pin, ends in block.wires.items()}),
        ("attrs", _attrs(block, fields.under(place, "attrs"), writer)),
        ("hidden", list(block.hidden)),
    ):
        if value:
            made[key] = value
    return made


def _values(block: Block, place: str, writer: Writer) -> dict[str, Any]:
    return {pin: plain.encode_value(value, _under(place, pin), writer) for pin, value in block.values.items()}


def _attrs(block: Block, place: str, writer: Writer) -> dict[str, Any]:
    return {attr: plain.encode_attr(value, _under(place, attr), writer.browser) for attr, value in block.attrs.items()}


def _under(place: str, key: Any) -> str:
    return fields.under(place, fields.text(key, place))


def _note(note: Note, place: str) -> dict[str, Any]:
    made: dict[str, Any] = {"text": note.text, "at": _at(note.at, fields.under(place, "at"))}
    if note.size is not None:
        # That it is above 0 is seen when all is decoded.
        made["size"] = _at(note.size, fields.under(place, "size"), "(width, height)")
    return made


def _at(at: tuple[float, float], place: str, wanted: str = "(x, y)") -> list[float]:
    if len(at) != 2:
        raise PageError(place, f"must be {wanted}; got {len(at)} numbers")
    numbers = [fields.number(value, fields.under(place, i)) for i, value in enumerate(at)]
    return [int(x) if x.is_integer() and abs(x) <= SAFE else x for x in numbers]
