"""The old tool's names of blocks and pins, and those of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from ...spec import CATALOG, Op
from ..page import NAME

# What its library or its code call differently from the op. A name the record has itself is never looked up here.
_PINS = {
    "ExpandDims": {"axis": "dim"},
    "SparseSegmentMeanGrad": {"data": "grad"},
    "SparseSegmentSqrtNGrad": {"data": "grad"},
    "ClientSession": {"SHOW_DEBUG": "show_debug", "INFINITE_LOOP": "infinite_loop"},
}
_SYMBOLS = {"Where3": "Select"}
# A page is a Scope and needs no wire for it; a session's status says nothing that its errors do not.
NO_VALUE = ("scope", "status")


def name_of(symbol: str) -> str:
    """The name a block has on a page: the symbol's, unless the catalogue does not know that name."""
    return symbol if symbol in CATALOG else _SYMBOLS.get(symbol, symbol)


def record_of(symbol: str) -> Op | None:
    """The op a symbol stands for, by its name or one of its other names."""
    symbol = name_of(symbol)
    found = CATALOG.get(symbol)
    return found or next((op for op in CATALOG.values() if symbol in op.aliases), None)


def pin_of(op: Op, name: str, known: Iterable[str]) -> str | None:
    """The name among `known` (inputs, outputs or attributes of the op) that a file's pin means."""
    known = tuple(known)
    if name in known:
        return name
    renamed = _PINS.get(op.name, {}).get(name)
    if renamed in known:
        return renamed
    # Names that differ in their capitals alone, or in the underscore attributes end in.
    alike = [k for k in known if k.lower() == name.rstrip("_").lower()]
    return alike[0] if len(alike) == 1 else None


def legal(names: Iterable[str]) -> dict[str, str]:
    """For every id one that a page allows: itself where possible, and no two the same."""
    names = list(names)
    taken = {name for name in names if NAME.fullmatch(name)}
    chosen = {name: name for name in taken}
    numbers: dict[str, int] = {}  # the last one tried, of each base
    for name in names:
        if name in chosen:
            continue
        base = "".join(c if NAME.fullmatch("_" + c) else "_" for c in name)
        base = base if NAME.fullmatch(base) else "_" + base
        number = numbers.get(base, 1)
        free = base if number == 1 else f"{base}_{number}"
        while free in taken:
            number += 1
            free = f"{base}_{number}"
        numbers[base] = number
        taken.add(free)
        chosen[name] = free
    return chosen
