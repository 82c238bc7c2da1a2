"""The rows of Variables that each step of a page changed, and how far each moved: the last steps, within bounds."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .._runtime.arrays import Array, aval_of
from ..graph.session import ClientSession

MOST_ELEMENTS = 2**18  # of a Variable whose changes are recorded without a request: comparing it takes about 1 ms
MOST_STEPS = 5_000
MOST_CHANGES = 1_000_000  # changed rows of all Variables of a page
MOST_VARIABLES = 64
HOT = 12  # rows that are named

Updates = dict[str, tuple[Array, Array]]  # the value before a step, and after it


def changed_rows(before: Array, after: Array) -> tuple[Array, Array]:
    """Return the rows whose bits differ, and the Euclidean length of each one's change in float64."""
    words = [_words_of_rows(x) for x in (before, after)]
    rows = np.flatnonzero((words[0] != words[1]).any(axis=1))
    wide = np.complex128 if after.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        change = np.abs(after[rows].astype(wide) - before[rows].astype(wide))
        distances = np.sqrt((change**2).sum(axis=tuple(range(1, change.ndim))))
    return rows, distances


def _words_of_rows(array: Array) -> Array:
    """Return the bits of each row as integers, as wide as they fit."""
    rows, size = len(array), array.nbytes // max(len(array), 1)
    word = next(kind for kind in (np.uint64, np.uint32, np.uint16, np.uint8) if size % np.dtype(kind).itemsize == 0)
    return np.ascontiguousarray(array).reshape(rows, -1).view(np.uint8).view(word)


def has_rows(array: Array) -> bool:
    """Return whether an array has rows of numbers."""
    return array.ndim > 0 and array.size > 0 and aval_of(array).dtype not in ("string", "bool")


class StepUpdates:
    """The Variables that the runs of one step update: their values before the first run and after the last."""

    def __init__(self, session: ClientSession) -> None:
        self._engine = session.engine
        self._found: dict[str, tuple[Any, Any]] = {}
        session.on_update = self._update

    def _update(self, name: str, before: Any, after: Any) -> None:
        first, _ = self._found.get(name, (before, after))
        self._found[name] = first, after

    def take(self) -> Updates:
        """Return the updates since the last call."""
        found, self._found = self._found, {}
        return {name: (self._engine.get(a), self._engine.get(b)) for name, (a, b) in found.items() if a is not None}


class Compared(NamedTuple):
    """A Variable that a step updated; the rows and distances are None if it is too large to be compared unasked."""

    shape: tuple[int, ...]
    dtype: str
    changes: tuple[Array, Array] | None


class _Change(NamedTuple):
    """The rows of a Variable that one step changed, and how far each moved."""

    run: int
    rows: Array
    distances: Array


@dataclass(slots=True)
class _Variable:
    """The recorded steps of one Variable."""

    shape: tuple[int, ...]
    dtype: str
    changes: deque[_Change] = field(default_factory=deque)


class RowChanges:
    """The changed rows of one page's Variables. Large Variables are recorded once a window has requested it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._variables: dict[str, _Variable] = {}
        self._requested: set[str] = set()
        self._count = 0

    def request(self, name: str) -> None:
        """Record a Variable of any size from the next step on."""
        with self._lock:
            self._requested.add(name)

    def compare(self, updates: Updates) -> dict[str, Compared]:
        """Compare the values of a step's updates; this takes time for large Variables, and changes nothing."""
        found = {}
        for name, (before, after) in updates.items():
            if has_rows(after) and before.shape == after.shape and before.dtype == after.dtype:
                changes = changed_rows(before, after) if self._is_recorded(name, after.shape) else None
                found[name] = Compared(after.shape, aval_of(after).dtype, changes)
        return found

    def add(self, run: int, compared: Mapping[str, Compared]) -> None:
        """Record a step."""
        with self._lock:
            for name, (shape, dtype, changes) in compared.items():
                known = self._variables.get(name)
                if known is None or (known.shape, known.dtype) != (shape, dtype):
                    self._forget(name)
                    if len(self._variables) >= MOST_VARIABLES:
                        continue
                    known = self._variables[name] = _Variable(shape, dtype)
                if changes is not None:
                    known.changes.append(_Change(run, *changes))
                    self._count += len(changes[0])
            self._drop_old()

    def _is_recorded(self, name: str, shape: tuple[int, ...]) -> bool:
        return math.prod(shape) <= MOST_ELEMENTS or name in self._requested

    def _drop_old(self) -> None:
        for one in self._variables.values():
            while len(one.changes) > MOST_STEPS:
                self._count -= len(one.changes.popleft().rows)
        while self._count > MOST_CHANGES:
            # All Variables forget the oldest steps together, so that their pictures cover the same ones.
            oldest = min((one for one in self._variables.values() if one.changes), key=lambda one: one.changes[0].run)
            if len(oldest.changes) == 1:  # a single step of more rows than the bound
                break
            self._count -= len(oldest.changes.popleft().rows)

    def _forget(self, name: str) -> None:
        found = self._variables.pop(name, None)
        if found is not None:
            self._count -= sum(len(change.rows) for change in found.changes)

    def drop_after(self, run: int) -> None:
        """Drop the changes of all steps after a run."""
        with self._lock:
            for one in self._variables.values():
                while one.changes and one.changes[-1].run > run:
                    self._count -= len(one.changes.pop().rows)

    def clear(self) -> None:
        """Drop all changes."""
        with self._lock:
            self._variables, self._count = {}, 0

    def variables(self) -> list[dict[str, Any]]:
        """Return the Variables that steps have updated."""
        with self._lock:
            return [
                {
                    "variable": name,
                    "dtype": one.dtype,
                    "shape": list(one.shape),
                    "steps": len(one.changes),
                    "recorded": self._is_recorded(name, one.shape),
                }
                for name, one in self._variables.items()
            ]

    def picture(self, name: str, cells: int) -> dict[str, Any]:
        """Return the changes of a Variable as a grid of rows × steps, and the rows that moved farthest in total.

        A cell is `[down, across, changes, distance]`: how often its rows changed in its steps, and how far they moved
        in total. Numbers that are not finite are None.
        """
        with self._lock:
            found = self._variables[name]
            changes = list(found.changes)
        size = found.shape[0]
        first, last = (changes[0].run, changes[-1].run) if changes else (0, -1)
        span = last - first + 1
        down, across = max(1, min(size, cells)), max(1, min(span, cells))
        rows = _joined((change.rows for change in changes), np.int64)
        distances = _joined((change.distances for change in changes), np.float64)
        steps = np.repeat([change.run - first for change in changes], [len(change.rows) for change in changes])
        place = rows * down // size * across + steps.astype(np.int64) * across // max(span, 1)
        counts = np.bincount(place, minlength=down * across)
        moved = np.bincount(place, distances, minlength=down * across)
        filled = np.flatnonzero(counts)
        times = np.bincount(rows, minlength=size)
        total = np.bincount(rows, distances, minlength=size)
        # NaN sorts last, so rows that are no longer numbers come first in the reverse order: they are worth a look.
        hot = np.argsort(total, kind="stable")[::-1][:HOT]
        return {
            "rows": size,
            "steps": len(changes),
            "first": first,
            "last": last,
            "down": down,
            "across": across,
            "cells": [
                [int(k // across), int(k % across), int(counts[k]), _finite(float(moved[k]))] for k in filled.tolist()
            ],
            "most": _finite(float(np.max(moved[np.isfinite(moved)], initial=0.0))),
            "changed": int(np.count_nonzero(times)),
            "hot": [[row, int(times[row]), _finite(float(total[row]))] for row in hot.tolist() if times[row]],
        }


def _joined(parts: Iterable[Array], dtype: Any) -> Array:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None
