"""Values for placeholders from the command line: files, typed values, a batch per step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..arrays import NUMPY_DTYPE, Array
from ..errors import refuse
from ..graph.io.array_files import npy_header
from ..graph.literal import parse_literal
from ..graph.nodes import Output, Placed
from ..graph.page import PageError
from ..graph.session import ClientSession
from ..plain_file import open_plain
from .exits import UsageError

_TYPED = tuple("0123456789+-{\"'")  # how a value begins that is typed, not in a file


@dataclass(slots=True)
class Feeds:
    """What one page is fed: the same in every step, and by step."""

    steady: dict[Output, Array] = field(default_factory=dict)
    batches: dict[Output, Batches] = field(default_factory=dict)

    def by_step(self, steps: int) -> Iterator[dict[Output, Array]]:
        """All values of each step."""
        for k in range(steps):
            yield self.steady | {target: values[k] for target, values in self.batches.items()}


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
    return Batches(target, text).all()


def batches(target: Output, text: str) -> Batches:
    """The value of every step, along the first axis."""
    found = Batches(target, text)
    if not found.shape or not len(found):
        raise PageError(text, f"there is no batch for {target.node.name} in shape {list(found.shape)}")
    return found


class Batches:
    """An array in a .npy file, read a batch at a time: it may be larger than memory.

    It is read and not mapped: a file that shrinks under a map ends the process.
    """

    def __init__(self, target: Output, file: str) -> None:
        self._file = open_plain(file)
        self._name = file
        try:
            self.shape, self._fortran, self._dtype = npy_header(self._file)
        except ValueError as error:
            raise self._not_read(str(error)) from None
        if self._dtype.hasobject:
            raise self._not_read("it holds Python objects")
        self._begin, self._stamp = self._file.tell(), self._look()
        size, there = math.prod(self.shape) * self._dtype.itemsize, self._stamp[0] - self._begin
        if size > there:
            raise self._not_read(f"its header promises {size} bytes, but the file has {there}")
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
        """The whole array."""
        found = self._read(0, self.shape[::-1] if self._fortran else self.shape)
        return found.T if self._fortran else found

    def _look(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _read(self, first: int, shape: tuple[int, ...]) -> Array:
        try:
            found = np.empty(shape, self._dtype)
        except (ValueError, OverflowError) as error:
            raise self._not_read(f"no array has its shape: {error}") from None
        octets = found.reshape(-1).view(np.uint8)
        self._file.seek(self._begin + first * self._dtype.itemsize)
        count = self._file.readinto(octets.data) if octets.size else 0
        if count != octets.size or self._look() != self._stamp:
            raise PageError(self._name, "the file was changed while it was read")
        return found

    def _not_read(self, why: str) -> PageError:
        return PageError(self._name, f"this is no .npy file of numbers or strings: {why}")


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
