"""Values for placeholders from the command line: files, typed values, a batch per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from ..arrays import NUMPY_DTYPE, Array
from ..errors import refuse
from ..graph.literal import parse_literal
from ..graph.nodes import Output, Placed
from ..graph.page import PageError
from ..graph.session import ClientSession
from ..plain_file import open_plain
from .exits import UsageError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_TYPED = tuple("0123456789+-{\"'")  # how a value begins that is typed, not in a file


@dataclass(slots=True)
class Feeds:
    """What one page is fed: the same in every step, and by step."""

    steady: dict[Output, Array] = field(default_factory=dict)
    batches: dict[Output, Array] = field(default_factory=dict)

    def by_step(self, steps: int) -> Iterator[dict[Output, Array]]:
        """All values of each step."""
        for k in range(steps):
            yield self.steady | {target: np.asarray(values[k]) for target, values in self.batches.items()}


def split_feeds(option: str, given: Sequence[str]) -> dict[str, str]:
    """`name=what` by name, each once."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, what = text.partition("=")
        if not (name and equals and what):
            raise UsageError(f"{option} {text}: write name=FILE.npy")
        if name in found:
            raise UsageError(f"{option}: {name} is fed twice")
        found[name] = what
    return found


def placeholder(session: ClientSession, name: str) -> Output:
    """The placeholder of a name."""
    found = session.find(name)
    found = found.only if isinstance(found, Placed) and len(found.pins) == 1 else found
    if not isinstance(found, Output) or found.node.op.name != "Placeholder":
        raise refuse("fed_not_a_placeholder", argument="feeds", value=name)
    return found


def steady_value(target: Output, text: str) -> Array:
    """The value in a file, or the one that is typed."""
    if not Path(text).exists() and text.startswith(_TYPED):
        try:
            return parse_literal(text, target.dtype)
        except PageError as error:
            raise PageError(target.node.name, str(error)) from None
    return _array(target, text)


def batches(target: Output, text: str) -> Array:
    """The value of every step, along the first axis."""
    found = _array(target, text)
    if found.ndim == 0 or len(found) == 0:
        raise PageError(text, f"there is no batch for {target.node.name} in shape {list(found.shape)}")
    return found


def _array(target: Output, file: str) -> Array:
    try:
        # Mapped: batches may be larger than memory, and a header that promises too much fails at once.
        with open_plain(file) as opened:
            found: Array = _mapped(opened)
    except ValueError as error:
        raise PageError(file, f"this is no .npy file of numbers or strings: {error}") from None
    if found.dtype.kind == "V" and target.dtype == "bfloat16" and found.dtype.itemsize == 2:
        return found.view(NUMPY_DTYPE["bfloat16"])  # .npy files have no name for it
    return found


def _mapped(opened: BinaryIO) -> Array:
    """What `np.lib.format.open_memmap` gives, of a file that is open: a name might be another file's by now."""
    version = np.lib.format.read_magic(opened)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not known")
    shape, fortran, dtype = _HEADERS[version](opened)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    order: Literal["F", "C"] = "F" if fortran else "C"
    return np.memmap(opened, dtype, "r", opened.tell(), shape, order)


def step_count(asked: int | None, lengths: dict[str, int]) -> int:
    """How many steps: as many as were asked for, or as there are batches."""
    if not lengths:
        return asked or 1
    name, length = min(lengths.items(), key=lambda item: item[1])
    longest = max(lengths, key=lambda n: lengths[n])
    if lengths[longest] != length:
        raise UsageError(f"--feed-batches: {name} has {length} batches, {longest} has {lengths[longest]}")
    if asked is not None and asked > length:
        raise UsageError(f"--steps {asked}: {name} has {length} batches only")
    return asked or length
