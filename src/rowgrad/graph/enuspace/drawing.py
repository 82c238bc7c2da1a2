"""Content of an enuSpace file before it becomes a page: blocks, pins, wires, `.dat` file, names, import report."""

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

# -- names of blocks and pins, mapped to the catalogue's ---------------------------------------------------------------

# Names in enuSpace's library or code that differ from the op's. A name that the record has is never looked up here.
_PINS = {
    "ExpandDims": {"axis": "dim"},
    "SparseSegmentMeanGrad": {"data": "grad"},
    "SparseSegmentSqrtNGrad": {"data": "grad"},
    "ClientSession": {"SHOW_DEBUG": "show_debug", "INFINITE_LOOP": "infinite_loop"},
}
_SYMBOLS = {"Where3": "Select"}
# Pins without a value: a page is a Scope and needs no wire for it; a session raises errors instead of a status.
NO_VALUE = ("scope", "status")


def name_of(symbol: str) -> str:
    """Return the op name of a symbol: its own name if the catalogue has it."""
    return symbol if symbol in CATALOG else _SYMBOLS.get(symbol, symbol)


def record_of(symbol: str) -> Op | None:
    """Return the op of a symbol by its name or an alias, or None."""
    symbol = name_of(symbol)
    found = CATALOG.get(symbol)
    return found or next((op for op in CATALOG.values() if symbol in op.aliases), None)


def pin_of(op: Op, name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` (inputs, outputs or attributes of the op) of a file's pin, or None."""
    known = tuple(known)
    if name in known:
        return name
    renamed = _PINS.get(op.name, {}).get(name)
    if renamed in known:
        return renamed
    # Names may differ in case, or in a trailing underscore.
    alike = [k for k in known if k.lower() == name.rstrip("_").lower()]
    return alike[0] if len(alike) == 1 else None


def valid_ids(names: Iterable[str]) -> dict[str, str]:
    """Map every id to a unique id that a page allows, itself if possible."""
    names = list(names)
    used = {name for name in names if NAME.fullmatch(name)}
    chosen = {name: name for name in used}
    numbers: dict[str, int] = {}  # the last suffix tried for each base
    for name in names:
        if name in chosen:
            continue
        base = "".join(c if NAME.fullmatch("_" + c) else "_" for c in name)
        base = base if NAME.fullmatch(base) else "_" + base
        number = numbers.get(base, 1)
        free = base if number == 1 else f"{base}_{number}"
        while free in used:
            number += 1
            free = f"{base}_{number}"
        numbers[base] = number
        used.add(free)
        chosen[name] = free
    return chosen


# -- the `.dat` file beside a page: elements of large arrays, little-endian, one array after the other -----------------

_KINDS = {"int": "<i4", "float": "<f4", "double": "<f8"}


class DataFile:
    """A `.dat` file, opened only when a pin needs its elements, because many pages do not have one."""

    def __init__(self, path: Path, follow_links: bool = False) -> None:
        self._path = path
        self._follow_links = follow_links

    def read(self, kind: str, shape: list[int], offset: int) -> Array:
        """Read the array of a pin of the host type `kind`, as a vector."""
        if kind not in _KINDS:
            raise PageError("", f"a .dat file cannot hold elements of type {kind!r}, only int, float and double")
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
            raise PageError("", f"{need}, which ends earlier")
        return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))


# -- the import report -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on an import. A `warning` may change what the page computes, a `note` does not."""

    place: str
    text: str
    level: Literal["note", "warning"]

    def __str__(self) -> str:
        return f"{self.level}: {self.place}: {self.text}" if self.place else f"{self.level}: {self.text}"


@dataclass(slots=True)
class Imported:
    """A page read from an enuSpace file, and the remarks on what was omitted or changed."""

    page: Page
    report: list[Remark]


@dataclass(slots=True)
class Report:
    """Collects remarks; frequent ones are merged into one with a count."""

    remarks: list[Remark] = field(default_factory=list)
    often: Counter[str] = field(default_factory=Counter)

    def note(self, place: str, text: str) -> None:
        """Add a remark that does not affect what is computed."""
        self.remarks.append(Remark(place, text, "note"))

    def warn(self, place: str, text: str) -> None:
        """Add a remark on something that may change what is computed."""
        self.remarks.append(Remark(place, text, "warning"))

    def count(self, what: str, times: int = 1) -> None:
        """Count one more occurrence of a frequent remark."""
        self.often[what] += times

    def all(self) -> list[Remark]:
        """Return all remarks, counted ones at the end."""
        return self.remarks + [Remark("", f"{what} ({times})", "note") for what, times in self.often.items()]


# -- blocks, pins and wires, the same for page files and task files ----------------------------------------------------

_PIN = re.compile(r"(\w+)(?:\[(\d{1,9})\])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DrawnPin:
    """A pin and what is typed into it. `offset` is where its elements begin in the page's `.dat` file, if they do.

    `fault` is the error of a pin that cannot be read; it is raised when the pin is used.
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
        """Return whether the pin has a value."""
        return bool(self.text.strip()) or self.offset is not None


@dataclass(frozen=True, slots=True)
class DrawnBlock:
    """A block with all its pins, because some files do not say which of them are inputs."""

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
        """Parse `block.pin[index]`. Any other text becomes the name of a pin, which no block has."""
        match = _PIN.fullmatch(pin.removeprefix("#"))
        if match is None:
            return cls(block, pin)
        return cls(block, match[1], None if match[2] is None else int(match[2]))

    def __str__(self) -> str:
        return f"{self.block}.{self.pin}" + ("" if self.index is None else f"[{self.index}]")


@dataclass(frozen=True, slots=True)
class DrawnWire:
    """A wire; the order of wires is the order of entries in a list pin."""

    source: DrawnEnd
    target: DrawnEnd
    hidden: bool = False


@dataclass(slots=True)
class Drawing:
    """The content of a file. `display` has the ids of elements that only display values, such as trends.

    `trends` are those that are charts, and `shown` the (block, output pin with indices) that charts name themselves.
    `skipped` describes elements that name an op of the catalogue without being a block.
    """

    blocks: list[DrawnBlock] = field(default_factory=list)
    wires: list[DrawnWire] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    display: set[str] = field(default_factory=set)
    trends: set[str] = field(default_factory=set)
    shown: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def plain_name(variable: str) -> str:
    """Return the pin name of `#val[2][2]`; the file has the shape in a separate attribute."""
    return variable.strip().removeprefix("#").partition("[")[0].strip()


@contextmanager
def place_errors(place: str) -> Iterator[None]:
    """Add a place to errors that name no place."""
    try:
        yield
    except PageError as error:
        if error.place:
            raise
        raise PageError(place, error.message) from None
