"""Control of a page's run: a gate that admits steps, throttled events, and a clock of the step rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

URGENT = 0.05  # the least seconds between two events of a page
USUAL = 0.1  # the least seconds between events of a run in progress


class Gate:
    """Admits one step at a time, and only as many as are allowed. A waiting reader goes before the next step.

    Every step has an owner: steps of a replaced loop are not admitted.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._allowed: int | None = 0  # None: any number
        self._owner: object = None
        self._busy = False
        self._waiting = 0

    def allow(self, owner: object, steps: int | None) -> None:
        """Admit this many more steps of this owner; None: any number."""
        with self._change:
            self._owner, self._allowed = owner, steps
            self._change.notify_all()

    def enter(self, owner: object) -> bool:
        """Return whether a step may run; `leave` ends it."""
        with self._change:
            self._change.wait_for(lambda: not self._busy and not self._waiting)
            if self._owner is not owner or self._allowed == 0:
                return False
            if self._allowed is not None:
                self._allowed -= 1
            self._busy = True
            return True

    def leave(self) -> None:
        """End the step."""
        with self._change:
            self._busy = False
            self._change.notify_all()

    def is_spent(self, owner: object) -> bool:
        """Return whether no more steps of this owner are admitted."""
        with self._change:
            return self._owner is not owner or self._allowed == 0

    def wait_idle(self, timeout: float) -> bool:
        """Wait for the step in progress to end; return whether it did."""
        with self._change:
            return self._change.wait_for(lambda: not self._busy, timeout)

    @contextmanager
    def between(self, timeout: float) -> Iterator[None]:
        """Hold the gate between two steps: wait for the one in progress, and delay the next."""
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


class EventThrottle:
    """Calls `send` at a limited rate. A call that comes too early is delayed; the last change is always sent."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # an older state is never sent after a newer one
        self._last = 0.0
        self._cost = 0.0
        self._timer: threading.Timer | None = None
        self._due = 0.0  # when the timer goes off
        self._closed = False

    def soon(self, urgent: bool = False) -> None:
        """Send a change soon. States that are expensive to make are sent less often while a run is in progress."""
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
    """Elapsed running time excluding pauses, and the recent step rate."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None  # start of the current period of running
        self._marks: list[tuple[float, int]] = []  # times, and the number of steps at each

    def go(self, runs: bool, steps: int) -> None:
        """Start or stop counting time."""
        now = time.perf_counter()
        if self._since is not None:
            self._before += now - self._since
        self._since = now if runs else None
        self._marks = [(now, steps)]

    @property
    def seconds(self) -> float:
        """Return the elapsed running time."""
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    def per_second(self, steps: int) -> float:
        """Return steps per second over about the last two seconds; 0 while nothing runs."""
        if self._since is None:
            return 0.0
        now = time.perf_counter()
        if now - self._marks[-1][0] > 0.5:
            self._marks = [*self._marks[-4:], (now, steps)]
        began, before = self._marks[0]
        return (steps - before) / (now - began) if now > began else 0.0
