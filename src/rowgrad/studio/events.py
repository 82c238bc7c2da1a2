"""Events for every window that listens. A window that does not read loses old events, never memory."""

from __future__ import annotations

import queue
import threading
from typing import Any

_MOST = 256  # events a window may be behind
_MOST_WINDOWS = 64


class Listener:
    """One window's queue; of events with the same `key` only the latest waits in it."""

    def __init__(self, window: str) -> None:
        self.window = window
        self._events: dict[object, dict[str, Any]] = {}
        self._change = threading.Condition()
        self.closed = False

    def put(self, event: dict[str, Any], key: object = None) -> None:
        """Add an event."""
        with self._change:
            key = object() if key is None else key
            self._events.pop(key, None)
            while len(self._events) >= _MOST:
                self._events.pop(next(iter(self._events)))
            self._events[key] = event
            self._change.notify_all()

    def take(self, timeout: float) -> list[dict[str, Any]]:
        """What has come, waiting for it if there is nothing yet."""
        with self._change:
            self._change.wait_for(lambda: self._events or self.closed, timeout)
            found = list(self._events.values())
            self._events.clear()
            return found

    def close(self) -> None:
        """Wake whoever waits; nothing more will come."""
        with self._change:
            self.closed = True
            self._change.notify_all()


class Hub:
    """Where events are told and listened to."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def listen(self, window: str) -> Listener:
        """A queue of its own for a window; `leave` gives it back."""
        with self._lock:
            if len(self._listeners) >= _MOST_WINDOWS:
                raise queue.Full(f"{_MOST_WINDOWS} windows listen already")
            listener = Listener(window)
            self._listeners.append(listener)
            return listener

    def leave(self, listener: Listener) -> None:
        """The window is gone."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
        listener.close()

    def tell(self, event: dict[str, Any], key: object = None) -> None:
        """Tell every window; an event replaces one with the same key that a window has not read yet."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.put(event, key)

    def close(self) -> None:
        """Wake all."""
        for listener in list(self._listeners):
            self.leave(listener)
