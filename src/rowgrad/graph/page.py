"""What a page holds, as plain data: blocks, the values typed into them, the wires between them.

A page knows nothing of shapes and runs nothing: `build` puts it into a Scope, `io` reads and writes it, and an editor
changes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgumentError

# What a block may be called: TensorFlow's rule for names of nodes.
NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*")
_END = re.compile(r"(.+)\.(\w+)(?:\[(\d{1,9})\])?")


class PageError(InvalidArgumentError):
    """A page that cannot be read, or does not fit together. `place` says where: `blocks[3].in.a`, or a block's id."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


@dataclass(frozen=True, slots=True)
class End:
    """Where a wire begins: a block's output pin, and which entry of it where the pin is a list."""

    block: str
    pin: str
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> End:
        """`v.product`, `G.grad_outputs[2]`."""
        match = _END.fullmatch(text)
        if match is None or not NAME.fullmatch(match[1]):
            raise PageError("", f"{text!r} is no end of a wire; write block.pin or block.pin[index]")
        return cls(match[1], match[2], None if match[3] is None else int(match[3]))

    def __str__(self) -> str:
        return f"{self.block}.{self.pin}" + ("" if self.index is None else f"[{self.index}]")


@dataclass(slots=True)
class Block:
    """One block: an op of the catalogue under an id.

    `values` are typed into input pins: NumPy arrays, or Python numbers, strings and lists of them that take the dtype
    of what they stand beside. `wires` lead to input pins, in the order they were drawn. `attrs` are plain data:
    numbers, strings, truth values and lists of these. `hidden` names input pins whose wires are not shown.
    """

    id: str
    op: str
    values: dict[str, Any] = field(default_factory=dict)
    wires: dict[str, list[End]] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    at: tuple[float, float] | None = None
    hidden: tuple[str, ...] = ()


@dataclass(slots=True)
class Note:
    """Text on a page. With a `size` it is a frame round blocks, of that width and height."""

    text: str
    at: tuple[float, float] = (0.0, 0.0)
    size: tuple[float, float] | None = None


@dataclass(slots=True)
class Page:
    """Blocks under one Scope of their own."""

    name: str
    blocks: list[Block] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __getitem__(self, block: str) -> Block:
        for found in self.blocks:
            if found.id == block:
                return found
        raise PageError(self.name, f"there is no block {block!r}")


@dataclass(slots=True)
class Project:
    """Pages kept together in one file; each has its own Scope, and wires stay inside a page."""

    name: str
    pages: list[Page] = field(default_factory=list)
