"""How far a run has come, told on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """A counter over known steps; on a terminal one line that is written over, elsewhere a line per step."""

    def __init__(self, total: int, out: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self._out = out or sys.stderr
        self._started = time.monotonic()

    def begin(self, what: str) -> None:
        """Say which step begins now, how long it took so far and how long the rest may take."""
        elapsed = time.monotonic() - self._started
        left = f", about {clock(elapsed / self.done * (self.total - self.done))} left" if self.done else ""
        width = len(str(self.total))
        text = f"[{self.done + 1:{width}}/{self.total}] {what}  {clock(elapsed)} elapsed{left}"
        self._out.write(f"\r\x1b[K{text}" if self._out.isatty() else f"{text}\n")
        self._out.flush()
        self.done += 1

    def clear(self) -> None:
        """Take the line off a terminal, so that something else can be printed."""
        if self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()


def clock(seconds: float) -> str:
    """83 -> 1:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
