"""The event hub: a bounded queue per window. A window that does not read loses old events."""

from __future__ import annotations

import queue
import threading
from typing import Any

_MOST = 256  # events a window may be behind
_MOST_WINDOWS = 64


class Listener:
    """The queue of one window; an event replaces a pending one with the same `key`."""

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
        """Return the pending events, after waiting for one if necessary."""
        with self._change:
            self._change.wait_for(lambda: self._events or self.closed, timeout)
            found = list(self._events.values())
            self._events.clear()
            return found

    def close(self) -> None:
        """Close the queue and wake its readers."""
        with self._change:
            self.closed = True
            self._change.notify_all()


class Hub:
    """Sends events to all windows."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def listen(self, window: str) -> Listener:
        """Open a queue for a window; `leave` closes it."""
        with self._lock:
            if len(self._listeners) >= _MOST_WINDOWS:
                raise queue.Full(f"{_MOST_WINDOWS} windows are connected already")
            listener = Listener(window)
            self._listeners.append(listener)
            return listener

    def leave(self, listener: Listener) -> None:
        """Close the queue of a window."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
        listener.close()

    def send(self, event: dict[str, Any], key: object = None) -> None:
        """Send an event to every window; it replaces an unread event with the same key."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.put(event, key)

    def close(self) -> None:
        """Close all queues."""
        for listener in list(self._listeners):
            self.leave(listener)
