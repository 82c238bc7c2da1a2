"""Merge two changed versions of a page with the version both began from, field by field.

A field is an input pin (its value or its wires), an attribute, the position or the visibility of a pin's wires of one
block; or a note. What only one side changed is taken from that side. A field that both changed to different values is a
conflict, and so is a block that one side removed, or gave another op, and the other changed or wired.

Pages are plain data as in files, so that arrays are compared by the names of their files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..graph.page import End, PageError

Tree = dict[str, Any]
Field = tuple[str, str]  # kind and name: ("pin", "x"), ("attr", "dtype"), ("at", ""), ("hidden", "x")
_ABSENT: Any = None  # the value of a field that a block does not have
_BLOCK: Field = ("block", "")
_SHOWN = 200  # characters of a value in a conflict


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that both sides changed. `key` names it in `choices`; `mine` and `theirs` are its values as text."""

    key: str
    block: str
    kind: str
    name: str
    mine: str
    theirs: str

    def json(self) -> dict[str, str]:
        """Return its fields for a browser."""
        return {key: getattr(self, key) for key in ("key", "block", "kind", "name", "mine", "theirs")}


@dataclass(slots=True)
class Merged:
    """A merged page, and the conflicts that no choice decided: their fields have the other side's values."""

    tree: Tree
    conflicts: list[Conflict] = field(default_factory=list)


def merge(base: Tree, mine: Tree, theirs: Tree, choices: Mapping[str, str] | None = None) -> Merged:
    """Merge the pages `mine` and `theirs`, which both began as `base`.

    Args:
        base: The version both began from.
        mine: One changed version.
        theirs: The other; blocks keep its order, and those that only `mine` has come last.
        choices: For keys of conflicts, "mine" or "theirs".
    """
    work = _Merge(choices or {})
    blocks = work.blocks(*({b["id"]: b for b in tree["blocks"]} for tree in (base, mine, theirs)))
    tree = {**theirs, "blocks": blocks}
    for key in ("notes", "trends"):
        listed = work.entries(key, *(tree.get(key, []) for tree in (base, mine, theirs)))
        tree = {k: v for k, v in tree.items() if k != key} | ({key: listed} if listed else {})
    return Merged(tree, work.conflicts)


class _Merge:
    def __init__(self, choices: Mapping[str, str]) -> None:
        self.conflicts: list[Conflict] = []
        self._choices = choices

    def one(self, block: str, key: Field, versions: tuple[Any, ...], show: Callable[[Any], str]) -> Any:
        """Return the value of one field from its values in base, mine and theirs."""
        base, mine, theirs = versions
        if _same(mine, theirs) or _same(mine, base):
            return theirs
        if _same(theirs, base):
            return mine
        text = json.dumps([block, *key], ensure_ascii=False)
        choice = self._choices.get(text)
        if choice is None:
            self.conflicts.append(Conflict(text, block, *key, show(mine), show(theirs)))
        return mine if choice == "mine" else theirs

    # -- blocks --------------------------------------------------------------------------------------------------------

    def blocks(self, base: dict[str, Tree], mine: dict[str, Tree], theirs: dict[str, Tree]) -> list[Tree]:
        """Return the merged blocks in order."""
        names = [*theirs, *(name for name in mine if name not in theirs)]
        merged: dict[str, Tree] = {}
        for name in names:
            block = self._block(name, base.get(name), mine.get(name), theirs.get(name))
            if block is not None:
                merged[name] = block
        self._keep_sources(merged, base, mine, theirs)
        order = {name: k for k, name in enumerate(names)}
        return sorted(merged.values(), key=lambda block: order[block["id"]])

    def _block(self, name: str, base: Tree | None, mine: Tree | None, theirs: Tree | None) -> Tree | None:
        present = [block for block in (base, mine, theirs) if block is not None]
        if len(present) < 3 or len({block["op"] for block in present}) > 1:
            found: Tree | None = self.one(name, _BLOCK, (base, mine, theirs), _block_text)
            return found
        parts = [_fields(block) for block in present]
        keys = dict.fromkeys([*parts[2], *parts[1], *parts[0]])
        values = {key: self.one(name, key, tuple(p.get(key, _ABSENT) for p in parts), _field_text) for key in keys}
        return _block_of(name, present[0]["op"], values)

    def _keep_sources(
        self, merged: dict[str, Tree], base: dict[str, Tree], mine: dict[str, Tree], theirs: dict[str, Tree]
    ) -> None:
        """Decide about blocks that one side removed and to whose pins the other drew wires.

        Restoring a block may bring back wires that begin at further removed blocks.
        """
        waiting = list(merged)
        while waiting:
            block = merged.get(waiting.pop(0))
            for source in _sources(block) if block is not None else ():
                if source in merged:
                    continue
                removed_here = source not in mine
                kept = theirs.get(source) if removed_here else mine.get(source)
                kept = kept or base.get(source)
                sides: tuple[Any, ...] = ({}, None, kept) if removed_here else ({}, kept, None)
                found = self.one(source, ("removed", ""), sides, _block_text)
                if found is None and not any(c.block == source and c.kind == "removed" for c in self.conflicts):
                    _without_source(merged, source)
                else:  # until it is decided, a page needs the block
                    merged[source] = kept if kept is not None else {"id": source, "op": "Unknown"}
                    waiting.append(source)

    # -- notes and trends, which have no names -------------------------------------------------------------------------

    def entries(self, key: str, base: list[Any], mine: list[Any], theirs: list[Any]) -> list[Any]:
        """Return the merged list: by position if no side added or removed any, otherwise as sets of entries."""
        if key == "notes" and len(base) == len(mine) == len(theirs):
            triples = zip(base, mine, theirs, strict=True)
            return [self.one("", ("note", str(k)), three, _field_text) for k, three in enumerate(triples)]
        removed = _subtract(base, mine)
        added = _subtract(mine, base)
        return [*_subtract(theirs, removed), *_subtract(added, _subtract(theirs, base))]


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are written alike: 1 and 1.0 and true differ, which == does not say."""
    return a is b or _text(a) == _text(b)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _subtract(items: list[Any], others: list[Any]) -> list[Any]:
    """Return the items without one occurrence of each of the others."""
    left = [_text(other) for other in others]
    found = []
    for item in items:
        text = _text(item)
        if text in left:
            left.remove(text)
        else:
            found.append(item)
    return found


# -- the fields of a block ---------------------------------------------------------------------------------------------


def _fields(block: Tree) -> dict[Field, Any]:
    found: dict[Field, Any] = {}
    values, wires = block.get("values", {}), block.get("in", {})
    for pin in dict.fromkeys([*values, *wires]):
        found["pin", pin] = {k: v[pin] for k, v in (("value", values), ("wires", wires)) if pin in v}
    for name, value in block.get("attrs", {}).items():
        found["attr", name] = {"value": value}
    for pin in block.get("hidden", []):
        found["hidden", pin] = True
    if "at" in block:
        found["at", ""] = block["at"]
    return found


def _block_of(name: str, op: str, fields: Mapping[Field, Any]) -> Tree:
    block: Tree = {"id": name, "op": op}
    parts: dict[str, Any] = {"values": {}, "in": {}, "attrs": {}, "hidden": []}
    for (kind, key), value in fields.items():
        if value is _ABSENT:
            continue
        if kind == "at":
            block["at"] = value
        elif kind == "hidden":
            parts["hidden"].append(key)
        elif kind == "attr":
            parts["attrs"][key] = value["value"]
        else:
            for part, where in (("value", "values"), ("wires", "in")):
                if part in value:
                    parts[where][key] = value[part]
    return block | {key: part for key, part in parts.items() if part}


def _sources(block: Tree) -> list[str]:
    """Return the blocks at which the wires of a block begin."""
    ends = [end for found in block.get("in", {}).values() for end in (found if isinstance(found, list) else [found])]
    return list(dict.fromkeys(_source(end) for end in ends))


def _source(end: str) -> str:
    try:
        return End.parse(end).block
    except PageError:
        return ""


def _without_source(merged: dict[str, Tree], source: str) -> None:
    """Remove the wires that begin at a block."""
    for name, block in merged.items():
        wires = {}
        for pin, found in block.get("in", {}).items():
            ends = [end for end in (found if isinstance(found, list) else [found]) if _source(end) != source]
            if ends:
                wires[pin] = ends if len(ends) > 1 else ends[0]
        if wires != block.get("in", {}):
            merged[name] = {k: v for k, v in block.items() if k != "in"} | ({"in": wires} if wires else {})


# -- values in conflicts, for a dialog ---------------------------------------------------------------------------------


def _block_text(block: Tree | None) -> str:
    return "removed" if not block else _shortened(_text({k: v for k, v in block.items() if k not in ("id", "at")}))


def _field_text(value: Any) -> str:
    if value is _ABSENT:
        return "removed"
    if isinstance(value, dict) and value.keys() <= {"value", "wires"}:
        return _shortened(", ".join(_plain_text(part) for part in value.values()))
    return _shortened(_plain_text(value))


def _plain_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and "text" in value:
        return f"“{value['text']}” at {_text(value.get('at', []))}"
    if isinstance(value, dict) and "dtype" in value:
        data = value.get("data")
        shape = ",".join(map(str, value.get("shape", [])))
        return f"{value['dtype']}[{shape}]" + ("" if data is None else f" {_text(data)}")
    return _text(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
