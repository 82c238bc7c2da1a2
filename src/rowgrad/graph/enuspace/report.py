"""What became of a file: the page, and remarks on what was left out or changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from ..page import Page


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to know about an import. A `warning` may change what the page computes, a `note` does not."""

    place: str
    text: str
    level: Literal["note", "warning"]

    def __str__(self) -> str:
        return f"{self.level}: {self.place}: {self.text}" if self.place else f"{self.level}: {self.text}"


@dataclass(slots=True)
class Imported:
    """A page read from a file of the old tool, and the remarks on it."""

    page: Page
    report: list[Remark]


@dataclass(slots=True)
class Report:
    """Collects remarks; what occurs often is told once, with its number."""

    remarks: list[Remark] = field(default_factory=list)
    often: Counter[str] = field(default_factory=Counter)

    def note(self, place: str, text: str) -> None:
        """A remark that changes nothing in what is computed."""
        self.remarks.append(Remark(place, text, "note"))

    def warn(self, place: str, text: str) -> None:
        """A remark on something that may change what is computed."""
        self.remarks.append(Remark(place, text, "warning"))

    def count(self, what: str, times: int = 1) -> None:
        """One more of a kind that is told once."""
        self.often[what] += times

    def all(self) -> list[Remark]:
        """Every remark, those told once at the end."""
        return self.remarks + [Remark("", f"{what} ({times})", "note") for what, times in self.often.items()]
