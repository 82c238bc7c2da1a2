"""Who may go when: steps by a budget, looks between steps, events not too often; and how fast it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

URGENT = 0.05  # seconds between two events of a page, at the least
USUAL = 0.1  # between those of a run in progress


class Gate:
    """Steps pass one at a time and only as many as are allowed; one who wants to look goes before the next step.

    A step says for whom it is: one of a loop that another has taken the place of does not pass.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._allowed: int | None = 0  # None: any number
        self._owner: object = None
        self._busy = False
        self._waiting = 0

    def allow(self, owner: object, steps: int | None) -> None:
        """From now on so many steps of this owner may pass."""
        with self._change:
            self._owner, self._allowed = owner, steps
            self._change.notify_all()

    def enter(self, owner: object) -> bool:
        """Whether a step may be done; it ends with `leave`."""
        with self._change:
            self._change.wait_for(lambda: not self._busy and not self._waiting)
            if self._owner is not owner or self._allowed == 0:
                return False
            if self._allowed is not None:
                self._allowed -= 1
            self._busy = True
            return True

    def leave(self) -> None:
        """The step is done."""
        with self._change:
            self._busy = False
            self._change.notify_all()

    def is_spent(self, owner: object) -> bool:
        """Whether no step of this owner may pass any more."""
        with self._change:
            return self._owner is not owner or self._allowed == 0

    def rest(self, timeout: float) -> bool:
        """Wait for the step in progress to end; whether it has."""
        with self._change:
            return self._change.wait_for(lambda: not self._busy, timeout)

    @contextmanager
    def between(self, timeout: float) -> Iterator[None]:
        """Between two steps: the one in progress is waited for, the next one waits."""
        with self._change:
            self._waiting += 1
            try:
                if not self._change.wait_for(lambda: not self._busy, timeout):
                    raise TimeoutError(f"the step in progress has not ended within {timeout:g} s")
                self._busy = True
            finally:
                self._waiting -= 1
                self._change.notify_all()
        try:
            yield
        finally:
            self.leave()


class Teller:
    """Calls `send` soon, and not too often: what comes too early is sent when its time has come, the last always."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # an older state never comes after a newer one
        self._last = 0.0
        self._cost = 0.0
        self._timer: threading.Timer | None = None
        self._due = 0.0  # when the timer goes off
        self._closed = False

    def soon(self, urgent: bool = False) -> None:
        """Something has changed. States that are costly are told less often while a run is in progress."""
        now = time.monotonic()
        with self._lock:
            due = self._last + (URGENT if urgent else max(USUAL, 10 * self._cost))
            if self._closed or (self._timer is not None and self._due <= due):
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if now < due:
                self._timer = threading.Timer(due - now, self._fire)
                self._timer.daemon = True
                self._due = due
                self._timer.start()
                return
            self._last = now
        self._now()

    def _fire(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._timer = None
            self._last = time.monotonic()
        self._now()

    def _now(self) -> None:
        with self._sending:
            began = time.monotonic()
            self._send()
            self._cost = time.monotonic() - began

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()


class Clock:
    """How long steps have been done for, pauses left out, and how many a second of late."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None  # when steps began to be done, while they are
        self._marks: list[tuple[float, int]] = []  # moments, and how many steps were done then

    def go(self, runs: bool, steps: int) -> None:
        """From now on steps are done, or none are."""
        now = time.perf_counter()
        if self._since is not None:
            self._before += now - self._since
        self._since = now if runs else None
        self._marks = [(now, steps)]

    @property
    def seconds(self) -> float:
        """The time so far."""
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    def per_second(self, steps: int) -> float:
        """Steps a second over the last two seconds or so; while none are done it is 0."""
        if self._since is None:
            return 0.0
        now = time.perf_counter()
        if now - self._marks[-1][0] > 0.5:
            self._marks = [*self._marks[-4:], (now, steps)]
        began, before = self._marks[0]
        return (steps - before) / (now - began) if now > began else 0.0
