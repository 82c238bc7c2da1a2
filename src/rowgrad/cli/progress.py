"""How far a run has come, in one line of a terminal that is written over and taken away at the end."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

_AFTER = 0.5  # seconds; what is done sooner needs no line
_EVERY = 0.1
_WIDTH = 24  # of the bar


class Progress:
    """A bar, steps done of all, percent, steps per second, time left; nothing where stderr is no terminal."""

    def __init__(self, total: int, shown: bool, out: TextIO | None = None, unit: str = "steps") -> None:
        self.total, self.done, self._unit = total, 0, unit
        self._out = sys.stderr if out is None else out
        self._shown = shown and self._out is not None and self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._began = self._last = time.monotonic()
        self._written = False

    def step(self, tick: object = None) -> None:
        """One more is done."""
        self.reach(self.done + 1)

    def reach(self, done: int) -> None:
        """So many are done."""
        self.done = done
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._began > _AFTER and now - self._last >= _EVERY:
            self._last = now
            self._out.write(f"\r\x1b[K{self._line(now - self._began)[: self._columns() - 1]}")
            self._out.flush()
            self._written = True

    def _line(self, elapsed: float) -> str:
        part = self.done / max(self.total, 1)
        speed = max(self.done, 1) / elapsed
        bar = "#" * int(part * _WIDTH)
        digits = 0 if speed >= 100 else 1 if speed >= 10 else 2
        pace, left = f"{speed:.{digits}f} {self._unit}/s", clock((self.total - self.done) / speed)
        return f"[{bar:.<{_WIDTH}}] {self.done}/{self.total} {part:4.0%}  {pace}  {left} left"

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def clear(self) -> None:
        """Take the line away."""
        if self._written:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._written = False


def clock(seconds: float) -> str:
    """83 -> 1:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
