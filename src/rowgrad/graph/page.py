"""Pages as plain data: blocks, the values typed into them, and the wires between them.

A page has no shapes and does not run: `build` makes a graph of it, `io` reads and writes it, and an editor changes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgumentError

# Valid ids of blocks: TensorFlow's rule for names of nodes.
NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*")
_END = re.compile(r"(.+)\.(\w+)(?:\[(\d{1,9})\])?")


class PageError(InvalidArgumentError):
    """Error of a page that cannot be read or is inconsistent.

    Args:
        place: Where the error is: a path such as `blocks[3].in.a`, or a block's id. Empty if unknown.
        message: What is wrong.

    >>> raise PageError("net", "two blocks have this id")
    Traceback (most recent call last):
    ...
    rowgrad.graph.page.PageError: net: two blocks have this id
    """

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


@dataclass(frozen=True, slots=True)
class End:
    """The output pin that a wire begins at, and the index of the entry if the pin is a list.

    >>> End.parse("G.grad_outputs[2]")
    End(block='G', pin='grad_outputs', index=2)
    """

    block: str
    pin: str
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> End:
        """Parse `block.pin` or `block.pin[index]`; raise PageError for any other text."""
        match = _END.fullmatch(text)
        if match is None or not NAME.fullmatch(match[1]):
            raise PageError("", f"{text!r} is not an output pin; write block.pin or block.pin[index]")
        return cls(match[1], match[2], None if match[3] is None else int(match[3]))

    def __str__(self) -> str:
        return f"{self.block}.{self.pin}" + ("" if self.index is None else f"[{self.index}]")


@dataclass(slots=True)
class Block:
    """One block of a page: an op of the catalogue under an id.

    Args:
        id: The block's name, unique on its page.
        op: The name of the op.
        values: Values by input pin: NumPy arrays, or Python numbers, strings and lists of them, which take the dtype of
            the inputs beside them.
        wires: Wires by input pin, in the order they were drawn.
        attrs: Attributes: numbers, strings, booleans and lists of these.
        at: Position of the block in an editor, or None.
        hidden: Input pins whose wires an editor does not show.

    >>> Block("sum", "Add", values={"y": [1.0]}, wires={"x": [End("a", "output")]}).wires["x"][0].block
    'a'
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
    """Text on a page, or a frame around blocks if it has a size.

    Args:
        text: The text.
        at: Position of the upper left corner.
        size: Width and height of the frame, or None for plain text.

    >>> Note("inputs", at=(0.0, 40.0)).size is None
    True
    """

    text: str
    at: tuple[float, float] = (0.0, 0.0)
    size: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Trend:
    """A number that an editor draws over the runs of a page: an output, or one of its elements.

    Args:
        end: The output pin. An editor ignores a trend whose block or pin the page does not have.
        at: The indices of the element; empty for an output with a single element.

    >>> str(Trend(End("W", "ref"), (0, 1)))
    'W.ref[0,1]'
    """

    end: End
    at: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.end}" + (f"[{','.join(map(str, self.at))}]" if self.at else "")


@dataclass(slots=True)
class Page:
    """A page: named blocks with wires between them, and notes.

    Args:
        name: The page's name.
        blocks: The blocks; `page[id]` finds one and raises PageError for an unknown id.
        notes: Texts and frames.
        trends: Numbers to draw over the runs, beside those that sessions fetch.

    >>> page = Page("net", [Block("a", "Const", values={"val": [1.0, 2.0]})])
    >>> page["a"].op
    'Const'
    """

    name: str
    blocks: list[Block] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    trends: list[Trend] = field(default_factory=list)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __getitem__(self, block: str) -> Block:
        for found in self.blocks:
            if found.id == block:
                return found
        raise PageError(self.name, f"there is no block {block!r}")


@dataclass(slots=True)
class Project:
    """Several pages in one file. Each page has its own Scope, and no wire leaves its page.

    Args:
        name: The project's name.
        pages: The pages.

    >>> [page.name for page in Project("both", [Page("train"), Page("test")]).pages]
    ['train', 'test']
    """

    name: str
    pages: list[Page] = field(default_factory=list)
