"""Threads that answer verbs: a bounded number, a bounded queue, and none that keeps the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .refusals import RefusedError

_Job = tuple[Future[Any], Callable[[], Any]]


class Workers:
    """Threads are started as they are needed. One whose client has gone works on and counts until it is done.

    The pools of the standard library and of anyio either wait for such a thread at the end or forget to count it.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._most = name, threads
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._room = threads + waiting
        self._taken = 0  # jobs that wait or run
        self._threads = 0

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Have it done; refused where too many wait already."""
        with self._lock:
            if self._taken >= self._room:
                raise RefusedError(503, "Busy", f"{self._taken} requests wait already; try again", retry_after="1")
            self._taken += 1
            if self._threads < min(self._taken, self._most):
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """Let threads end when they have nothing to do."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while (found := self._jobs.get()) is not None:
            future, job = found
            try:
                if future.set_running_or_notify_cancel():  # or nobody waits for it any more
                    future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._taken -= 1
            del found, future, job  # a thread that waits holds on to no body and no result
