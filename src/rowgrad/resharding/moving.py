"""Rows from parts to parts, through a window of rows in the table's own order.

Every window is read from, and written to, each part as one run, so all files are gone through once, from their
beginning to their end, whatever the rules are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from ..errors import refuse
from ..parts import shard_sizes
from .layout import Layout, TensorLayout
from .source import Part
from .stored import Array, row_bytes, rows_of, size_of
from .target import Target

Progress = Callable[[int, int], object]
_SHARES = 4  # of the memory: a window, rows on their way to it or from it, and what a checkpoint's reader takes
_LONGEST_ROW = 2**31 - 1  # NumPy's for elements of plain bytes


class Cut:
    """How a rule cuts a table: which rows of which parts a run of the table is made of."""

    def __init__(self, layout: Layout) -> None:
        self.parts, self._is_mod = layout.parts, layout.strategy == "mod"
        self._begins = [0, *accumulate(shard_sizes(layout.rows, layout.parts))]

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int, slice]]:
        """Part, its first row, and where in rows [begin, end) of the table these rows are."""
        if self._is_mod:
            for first in range(begin, min(begin + self.parts, end)):
                yield first % self.parts, first // self.parts, slice(first - begin, end - begin, self.parts)
            return
        part = bisect_right(self._begins, begin) - 1  # of parts that begin here only the last is not empty
        first = begin
        while first < end:
            stop = min(end, self._begins[part + 1])
            if first < stop:
                yield part, first - self._begins[part], slice(first - begin, stop - begin)
            part, first = part + 1, stop


def total_bytes(layout: Layout) -> int:
    """Bytes of all tensors, each once."""
    return sum(size_of(tensor.dtype, tensor.shape) for tensor in layout.tensors.values())


def check_memory(layout: Layout, memory: int, where: object) -> None:
    """A few rows have to be held at a time."""
    bound = min(memory // _SHARES, _LONGEST_ROW)
    for name, tensor in layout.tensors.items():
        size = row_bytes(tensor.dtype, tensor.shape)
        if size > bound:
            raise refuse("parts_memory", file=where, what=repr(name), value=size, bound=bound)


def move(parts: Sequence[Part], found: Layout, target: Target, memory: int, progress: Progress) -> None:
    """Write every tensor of the target."""
    total, done = total_bytes(found), 0
    progress(0, total)
    for name, tensor in found.tensors.items():
        size = row_bytes(tensor.dtype, tensor.shape)
        if size == 0:
            continue
        step = _dealt if tensor.by_rows else _copied
        for count in step(name, tensor, parts, found, target, max(1, memory // _SHARES // size)):
            done += count * size
            progress(done, total)


def _dealt(
    name: str, tensor: TensorLayout, parts: Sequence[Part], found: Layout, target: Target, most: int
) -> Iterator[int]:
    """Move a tensor by rows; how many, after each window."""
    most = min(most, max(found.rows, 1))
    window, spare = _bytes(tensor, most), _bytes(tensor, (most + 1) // 2)
    before, after = Cut(found), Cut(target.layout)
    for begin in range(0, found.rows, most):
        end = min(begin + most, found.rows)
        rows = window[: end - begin]
        for part, row, place in before.runs(begin, end):
            into = rows[place]
            if into.flags.c_contiguous:
                parts[part][name].fill(row, into)
            else:
                parts[part][name].fill(row, spare[: len(into)])
                into[:] = spare[: len(into)]
        for part, row, place in after.runs(begin, end):
            out = rows[place]
            if not out.flags.c_contiguous:
                spare[: len(out)] = out
                out = spare[: len(out)]
            target.write(part, name, row, out)
        yield end - begin


def _copied(
    name: str, tensor: TensorLayout, parts: Sequence[Part], found: Layout, target: Target, most: int
) -> Iterator[int]:
    """Copy a tensor that is the same in all parts into all parts; how many rows, after each window."""
    total = rows_of(tensor.shape)
    most = min(most, max(total, 1))
    window, other = _bytes(tensor, most), _bytes(tensor, most)
    for begin in range(0, total, most):
        rows, again = window[: total - begin], other[: total - begin]
        parts[0][name].fill(begin, rows)
        for part in parts[1:]:
            part[name].fill(begin, again)
            if not np.array_equal(rows.view(np.uint8), again.view(np.uint8)):
                raise refuse("parts_differ", file=part[name].where, what=repr(name), value="not the same",
                             bound=parts[0][name].where)  # fmt: skip
        for number in range(target.layout.parts):
            target.write(number, name, begin, rows)
        yield len(rows)


def _bytes(tensor: TensorLayout, rows: int) -> Array:
    """Room for rows, each an element of plain bytes: NumPy moves those in one piece."""
    return np.empty(rows, np.dtype((np.void, row_bytes(tensor.dtype, tensor.shape))))
