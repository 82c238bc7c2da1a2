"""Ctrl-C and SIGTERM during a run: the step in progress finishes first; a second signal ends at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from .exits import StoppedError

if TYPE_CHECKING:
    from ..graph.loop import Loop  # commands that know no pages load no graphs


class Stopping:
    """Watches for signals while a `with` lasts; `number` is the first that came."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._loop: Loop | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def watch(self, loop: Loop) -> Loop:
        """The loop that a signal is to end."""
        self._loop = loop
        if self.number is not None:
            loop.cancel()
        return loop

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise StoppedError(number)
        self.number = number
        if self._loop is not None:
            self._loop.cancel()
