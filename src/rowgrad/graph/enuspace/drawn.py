"""What a file of the old tool says, before anyone asks the catalogue: the same for both kinds of files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..page import Note, PageError

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
