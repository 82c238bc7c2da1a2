"""Drawings of enuSpace pages: names, binary attributes, and the import report."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from ..._catalog.spec import CATALOG, Op
from ..._runtime.arrays import Array
from ..._runtime.plain_file import open_plain
from ..page import NAME, Note, Page, PageError

# -- The old tool's names of blocks and pins, and those of the catalogue -----------------------------------------------

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


# -- The `.dat` file beside a page -------------------------------------------------------------------------------------

# The `.dat` file beside a page: elements of large arrays, little-endian, one array after the other.

_KINDS = {"int": "<i4", "float": "<f4", "double": "<f8"}


class DataFile:
    """A file that is opened when the first pin asks for elements; many pages have none."""

    def __init__(self, path: Path, follow_links: bool = False) -> None:
        self._path = path
        self._follow_links = follow_links

    def read(self, kind: str, shape: list[int], offset: int) -> Array:
        """The array of a pin of the host type `kind`, as a vector."""
        if kind not in _KINDS:
            raise PageError("", f"elements of type {kind!r} are in no .dat file; int, float and double are")
        count = math.prod(shape)
        dtype = np.dtype(_KINDS[kind])
        need = f"needs {count * dtype.itemsize} bytes from byte {offset} on of {self._path.name}"
        try:
            with open_plain(self._path, follow_links=self._follow_links) as file:
                size = os.fstat(file.fileno()).st_size
                if offset + count * dtype.itemsize > size:
                    raise PageError("", f"{need}, which has {size}")
                file.seek(offset)
                raw = file.read(count * dtype.itemsize)
        except OSError as error:
            raise PageError("", f"{need}, which cannot be read: {error.strerror or error}") from None
        if len(raw) != count * dtype.itemsize:
            raise PageError("", f"{need}, which ended before")
        return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))


# -- What became of a file ---------------------------------------------------------------------------------------------

# What became of a file: the page, and remarks on what was left out or changed.


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to know about an import. A `warning` may change what the page computes, a `note` does not."""

    place: str
    text: str
    level: Literal["note", "warning"]

    def __str__(self) -> str:
        return f"{self.level}: {self.place}: {self.text}" if self.place else f"{self.level}: {self.text}"


@dataclass(slots=True)
class Imported:
    """A page read from a file of the old tool, and the remarks on it."""

    page: Page
    report: list[Remark]


@dataclass(slots=True)
class Report:
    """Collects remarks; what occurs often is told once, with its number."""

    remarks: list[Remark] = field(default_factory=list)
    often: Counter[str] = field(default_factory=Counter)

    def note(self, place: str, text: str) -> None:
        """A remark that changes nothing in what is computed."""
        self.remarks.append(Remark(place, text, "note"))

    def warn(self, place: str, text: str) -> None:
        """A remark on something that may change what is computed."""
        self.remarks.append(Remark(place, text, "warning"))

    def count(self, what: str, times: int = 1) -> None:
        """One more of a kind that is told once."""
        self.often[what] += times

    def all(self) -> list[Remark]:
        """Every remark, those told once at the end."""
        return self.remarks + [Remark("", f"{what} ({times})", "note") for what, times in self.often.items()]


# -- What a file of the old tool says, before anyone asks the catalogue ------------------------------------------------

# What a file of the old tool says, before anyone asks the catalogue: the same for both kinds of files.

_PIN = re.compile(r"(\w+)(?:\[(\d{1,9})\])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DrawnPin:
    """A pin and what is typed into it. `offset` is where its elements begin in the page's `.dat` file, if they do.

    `fault` is what is wrong with a pin that cannot be read; who reads it raises it.
    """

    name: str
    type: str
    shape: str
    text: str
    dtype: str = ""
    offset: int | None = None
    fault: PageError | None = None

    @property
    def filled(self) -> bool:
        """Whether anything stands in it."""
        return bool(self.text.strip()) or self.offset is not None


@dataclass(frozen=True, slots=True)
class DrawnBlock:
    """A block with its pins; files do not all say which of them are inputs."""

    id: str
    symbol: str
    pins: list[DrawnPin]
    at: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class DrawnEnd:
    """One end of a wire, with the index of `grad_outputs[1]`."""

    block: str
    pin: str
    index: int | None = None

    @classmethod
    def parse(cls, block: str, pin: str) -> DrawnEnd:
        """Text that has no such form is kept whole: no block will have a pin of that name."""
        match = _PIN.fullmatch(pin.removeprefix("#"))
        if match is None:
            return cls(block, pin)
        return cls(block, match[1], None if match[2] is None else int(match[2]))

    def __str__(self) -> str:
        return f"{self.block}.{self.pin}" + ("" if self.index is None else f"[{self.index}]")


@dataclass(frozen=True, slots=True)
class DrawnWire:
    """A wire; the order of wires is the order of a list's entries."""

    source: DrawnEnd
    target: DrawnEnd
    hidden: bool = False


@dataclass(slots=True)
class Drawing:
    """All of a file. `display` are the ids of what only shows values, such as trends.

    `skipped` describes elements that name an op of the catalogue without being a block.
    """

    blocks: list[DrawnBlock] = field(default_factory=list)
    wires: list[DrawnWire] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    display: set[str] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)


def plain_name(variable: str) -> str:
    """The pin of `#val[2][2]`; its shape has an attribute of its own."""
    return variable.strip().removeprefix("#").partition("[")[0].strip()


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Errors in a text get the place of the text."""
    try:
        yield
    except PageError as error:
        if error.place:
            raise
        raise PageError(place, error.message) from None
