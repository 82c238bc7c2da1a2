"""The options `--feed` and `--feed-batches`: placeholders by name, values as literals or in .npy files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .._runtime.arrays import NUMPY_DTYPE, Array
from .._runtime.plain_file import open_plain
from ..errors import make_error
from ..graph.io.arrays import npy_header
from ..graph.literal import parse_literal
from ..graph.nodes import Output, Placed
from ..graph.page import PageError
from ..graph.session import ClientSession
from .errors import UsageError

_LITERAL = tuple("0123456789+-{\"'")  # the first character of a literal; anything else is a file


@dataclass(slots=True)
class Feeds:
    """The feeds of one page: constant ones, and one value per step."""

    constant: dict[Output, Array] = field(default_factory=dict)
    batches: dict[Output, Batches] = field(default_factory=dict)

    def by_step(self, steps: int) -> Iterator[dict[Output, Array]]:
        """Yield all values of each step."""
        for k in range(steps):
            yield self.constant | {target: values[k] for target, values in self.batches.items()}


def split_feeds(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse `name=value` arguments; each name may occur once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, what = text.partition("=")
        if not (name and equals and what):
            raise UsageError(f"{option} {text}: write name=FILE.npy")
        if name in found:
            raise UsageError(f"{option}: {name} is fed twice")
        found[name] = what
    return found


def placeholder(session: ClientSession, name: str) -> Output:
    """Return a placeholder by its name."""
    found = session.find(name)
    found = found.only if isinstance(found, Placed) and len(found.pins) == 1 else found
    if not isinstance(found, Output) or found.node.op.name != "Placeholder":
        raise make_error("fed_not_a_placeholder", argument="feeds", value=name)
    return found


def constant_value(target: Output, text: str) -> Array:
    """Return the value of a file or a literal."""
    if not Path(text).exists() and text.startswith(_LITERAL):
        try:
            return parse_literal(text, target.dtype)
        except PageError as error:
            raise PageError(target.node.name, str(error)) from None
    return Batches(target, text).all()


def batches(target: Output, text: str) -> Batches:
    """Return the values of all steps, along the first axis."""
    found = Batches(target, text)
    if not found.shape or not len(found):
        raise PageError(text, f"no batches for {target.node.name}: the shape is {list(found.shape)}")
    return found


class Batches:
    """An array in a .npy file, read one batch at a time, so it may be larger than memory.

    It is not memory-mapped: if a mapped file shrinks, the process crashes.
    """

    def __init__(self, target: Output, file: str) -> None:
        self._file = open_plain(file)
        self._name = file
        try:
            self.shape, self._fortran, self._dtype = npy_header(self._file)
        except ValueError as error:
            raise self._error(str(error)) from None
        if self._dtype.hasobject:
            raise self._error("it contains Python objects")
        self._begin, self._stamp = self._file.tell(), self._status()
        size, available = math.prod(self.shape) * self._dtype.itemsize, self._stamp[0] - self._begin
        if size > available:
            raise self._error(f"its header declares {size} bytes, but the file has {available}")
        if self._dtype.kind == "V" and target.dtype == "bfloat16" and self._dtype.itemsize == 2:
            self._dtype = NUMPY_DTYPE["bfloat16"]  # .npy files have no name for it
        self._whole: Array | None = self.all() if self._fortran and len(self.shape) > 1 else None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, step: int) -> Array:
        if self._whole is not None:
            return np.asarray(self._whole[step])
        return self._read(step * math.prod(self.shape[1:]), self.shape[1:])

    def all(self) -> Array:
        """Return the whole array."""
        found = self._read(0, self.shape[::-1] if self._fortran else self.shape)
        return found.T if self._fortran else found

    def _status(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _read(self, first: int, shape: tuple[int, ...]) -> Array:
        try:
            found = np.empty(shape, self._dtype)
        except (ValueError, OverflowError) as error:
            raise self._error(f"its shape is invalid: {error}") from None
        octets = found.reshape(-1).view(np.uint8)
        self._file.seek(self._begin + first * self._dtype.itemsize)
        count = self._file.readinto(octets.data) if octets.size else 0
        if count != octets.size or self._status() != self._stamp:
            raise PageError(self._name, "the file changed while it was read")
        return found

    def _error(self, reason: str) -> PageError:
        return PageError(self._name, f"not a .npy file of numbers or strings: {reason}")


def step_count(requested: int | None, lengths: dict[str, int]) -> int:
    """Return the number of steps: the requested one, or the number of batches."""
    if not lengths:
        return requested or 1
    name, length = min(lengths.items(), key=lambda item: item[1])
    longest = max(lengths, key=lambda n: lengths[n])
    if lengths[longest] != length:
        raise UsageError(f"--feed-batches: {name} has {length} batches, {longest} has {lengths[longest]}")
    if requested is not None and requested > length:
        raise UsageError(f"--steps {requested}: {name} has only {length} batches")
    return requested or length
