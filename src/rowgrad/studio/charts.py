"""Charts of numbers over the runs of a page: one element of a result per step, the last 100,000 points of each."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._catalog.spec import COMPLEX
from .._runtime.arrays import Array, aval_of
from ..graph.page import End, PageError, Trend
from ..graph.session import ClientSession

MOST_POINTS = 100_000  # points of a series
SENT = 2_000
MOST_SERIES = 64


@dataclass(frozen=True, slots=True)
class Watched:
    """One element of a pin's value, or of an entry of a list pin."""

    block: str
    pin: str
    entry: int | None = None
    at: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Return the label, such as `loss.output` or `table.output[2,0]`."""
        text = str(End(self.block, self.pin, self.entry))
        return text + (f"[{','.join(map(str, self.at))}]" if self.at else "")

    def json(self) -> dict[str, Any]:
        """Return the fields that a browser uses."""
        return {"block": self.block, "pin": self.pin, "entry": self.entry, "at": [*self.at], "label": self.label}

    def read(self, session: ClientSession) -> float:
        """Return the current number, or NaN if no run has computed it."""
        found = session.result(self.block, self.pin)
        if isinstance(found, list):
            entry = self.entry or 0
            found = found[entry] if entry < len(found) else None
        return math.nan if found is None else number(found, self.at)


def number(array: Array, at: Sequence[int]) -> float:
    """Return an element as a float, or NaN if it is not a real number."""
    if array.size == 1 and not at:
        at = (0,) * array.ndim
    if len(at) != array.ndim or any(i >= size for i, size in zip(at, array.shape, strict=True)):
        return math.nan
    if array.dtype.kind in "cOT":  # float() would take the real part of complex numbers and parse strings
        return math.nan
    if array.dtype.names is not None:
        array = array.view(array.dtype[0])
    return float(array[tuple(at)])


def is_number(array: Array) -> bool:
    """Return whether an array is a single real number."""
    return array.size == 1 and aval_of(array).dtype not in (*COMPLEX, "string")


class _Points:
    """A ring buffer of (run, value) that grows as needed."""

    def __init__(self) -> None:
        self._data = np.empty((64, 2))
        self._first = 0
        self._count = 0

    def add(self, run: int, value: float) -> None:
        if self._count == len(self._data) < MOST_POINTS:
            larger = np.empty((min(2 * self._count, MOST_POINTS), 2))
            larger[: self._count] = self.all()
            self._data, self._first = larger, 0
        self._data[(self._first + self._count) % len(self._data)] = run, value
        if self._count == len(self._data):
            self._first = (self._first + 1) % len(self._data)
        else:
            self._count += 1

    def all(self) -> Array:
        return np.roll(self._data, -self._first, axis=0)[: self._count] if self._first else self._data[: self._count]

    def drop_after(self, run: int) -> None:
        earlier = self.all()
        earlier = earlier[earlier[:, 0] <= run].copy()
        self._count, self._first = len(earlier), 0
        self._data = np.empty((max(64, len(earlier)), 2))
        self._data[: len(earlier)] = earlier


class Trends:
    """The series of one page: the chosen ones, by default every number that a session fetches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[Watched] | None = None
        self._points: dict[str, _Points] = {}
        self._fetched: set[str] = set()  # labels of numbers that sessions fetch
        self._of_page: list[Watched] = []  # recorded beside those, until the user chooses

    @property
    def is_chosen(self) -> bool:
        """Return whether the user chose the series."""
        return self._watched is not None

    def watch(self, watched: list[Watched] | None) -> None:
        """Set the series; None records what sessions fetch. Points of unchanged series are not dropped."""
        with self._lock:
            self._watched = watched
            default = self._fetched | {w.label for w in self._of_page}
            labels = default if watched is None else {w.label for w in watched}
            self._points = {label: p for label, p in self._points.items() if label in labels}
            for series in watched or ():
                self._points.setdefault(series.label, _Points())

    def set_page(self, trends: Sequence[Trend]) -> None:
        """Set the series that the page names; they are recorded until the user chooses others."""
        with self._lock:
            self._of_page = [Watched(t.end.block, t.end.pin, t.end.index, t.at) for t in trends[:MOST_SERIES]]

    def begin(self, run: int, session: ClientSession) -> None:
        """Start series without points with the last computed value."""
        with self._lock:
            for watched in self._watched or ():
                points = self._points[watched.label]
                if not len(points.all()) and not math.isnan(value := _current(watched, session)):
                    points.add(run, value)

    def series(self) -> list[dict[str, Any]]:
        """Return the series."""
        with self._lock:
            return [w.json() for w in self._all()]

    def _all(self) -> list[Watched]:
        return self._default() if self._watched is None else self._watched

    def _default(self) -> list[Watched]:
        found = [watched for watched in self._of_page if watched.label in self._points]
        known = {watched.label for watched in found}
        for label in (label for label in self._points if label not in known):
            try:
                end = End.parse(label)
            except PageError:
                continue
            found.append(Watched(end.block, end.pin, end.index))
        return found

    def record(self, run: int, session: ClientSession, fetched: Mapping[str, Array]) -> None:
        """Record the numbers after a step."""
        with self._lock:
            if self._watched is not None:
                for watched in self._watched:
                    self._points[watched.label].add(run, _current(watched, session))
                return
            for watched in self._of_page:
                value = _current(watched, session)
                if watched.label in self._points or not math.isnan(value):
                    self._points.setdefault(watched.label, _Points()).add(run, value)
            own = {watched.label for watched in self._of_page}
            for name, array in fetched.items():
                if name in own:
                    continue
                if name in self._points or (len(self._points) < MOST_SERIES and is_number(array)):
                    self._fetched.add(name)
                    self._points.setdefault(name, _Points()).add(run, number(array, ()))

    def points(self, since: int) -> list[dict[str, Any]]:
        """Return the points of every series after run `since`, evenly sampled if there are many; always the last.

        A series whose label names an element also has the fields of `Watched.json`.
        """
        with self._lock:
            found = {label: points.all().copy() for label, points in self._points.items()}
            known = {w.label: w.json() for w in self._all()}
        return [
            known.get(label, {}) | {"label": label, "points": _sampled(points[points[:, 0] > since])}
            for label, points in found.items()
        ]

    def drop_after(self, run: int) -> None:
        """Drop all points after a run."""
        with self._lock:
            for points in self._points.values():
                points.drop_after(run)

    def clear(self) -> None:
        """Drop all points; the series stay."""
        with self._lock:
            self._points = {} if self._watched is None else {w.label: _Points() for w in self._watched}
            self._fetched = set()


def _current(watched: Watched, session: ClientSession) -> float:
    try:
        return watched.read(session)
    except ValueError:  # the page no longer has such a pin
        return math.nan


def _sampled(points: Array) -> list[list[Any]]:
    if len(points) > SENT:
        points = points[np.unique(np.linspace(0, len(points) - 1, SENT).round().astype(np.int64))]
    return [[int(run), value if math.isfinite(value) else None] for run, value in points.tolist()]
