"""Runs that repeat: a number of steps, a rate, or flat out; paused and gone on with, or cancelled, at any time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Progress = Callable[["Tick"], None]
SLOWEST = 1e-6  # steps per second: no clock is asked to wait for more than days
_NO_MORE: Any = object()  # a batch after the last


@dataclass(frozen=True, slots=True)
class Tick:
    """One step that was done: its number, from 1; how many there will be, if that is known; what it gave."""

    step: int
    steps: int | None
    result: Any
    seconds: float


class Loop:
    """Repeats `step(batch)`: `steps` times, or until cancelled; at `rate` per second, or as fast as it goes.

    `run` works in the caller's thread, `start` in a thread of its own. `pause` stops after the step in progress and
    keeps all state, `resume` goes on, `step_on(n)` does n more steps and pauses again, `cancel` ends, `wait` waits for
    the end and raises what went wrong. A loop that was started waits while it is paused; `run` waits for nobody: a
    pause ends it early, with `paused` true, and the next `run` goes on. After a pause the next step comes at once, and
    the rate counts from there. `feeds` are batches, one per step; when they end, so does the loop.
    """

    def __init__(
        self,
        step: Callable[[Mapping[Any, Any]], Any],
        steps: int | None = None,
        rate: float | None = None,
        feeds: Iterable[Mapping[Any, Any]] | None = None,
        progress: Progress | None = None,
    ) -> None:
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
            raise ValueError(f"steps must be a whole number from 0, or None; got {steps!r}")
        if rate is not None and not _is_rate(rate):
            raise ValueError(f"rate must be a number of steps per second from {SLOWEST:f} up, or None; got {rate!r}")
        self._step = step
        self.steps = steps
        self.rate = rate
        self._feeds: Iterator[Mapping[Any, Any]] | None = None if feeds is None else iter(feeds)
        self._progress = progress
        self.done = 0
        self.result: Any = None
        self._allowed: int | None = None  # steps until the next pause
        self._cancelled = False
        self._ended = False
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._began = 0.0  # when the first step did
        self._worker: int | None = None  # the thread that is at work
        self._thread: threading.Thread | None = None  # that of `start`

    # -- at work -------------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Do all steps, or those until a pause; gives what the last one gave, raises what went wrong."""
        with self._change:
            if self._thread is not None:
                raise RuntimeError("this loop was started in a thread of its own; `wait` waits for its end")
            if self._worker is not None:
                raise RuntimeError("this loop is running already")
            self._worker = threading.get_ident()
            if self._allowed == 0:
                self._allowed = None
        self._work(waits=False)
        return self._outcome()

    def start(self) -> Loop:
        """Work in a thread of its own."""
        with self._change:
            if self._thread is not None:
                raise RuntimeError("this loop was started before")
            if self._worker is not None:
                raise RuntimeError("this loop is running already")
            self._thread = threading.Thread(target=self._work, args=(True,), name="rowgrad-loop", daemon=True)
        self._thread.start()
        return self

    def _work(self, waits: bool) -> None:
        over = True
        try:
            self._worker = threading.get_ident()
            over = self._repeat(waits)
        except BaseException as error:
            self._error = error
        finally:
            with self._change:
                self._ended = over
                self._worker = None
                self._change.notify_all()

    def _repeat(self, waits: bool) -> bool:
        """Steps until the end, or else until a pause; whether it is the end."""
        due = time.perf_counter()
        self._began = self._began or due
        while True:
            with self._change:
                if waits and self.paused:
                    self._change.wait_for(lambda: self._is_over() or self._allowed != 0)
                    due = time.perf_counter()
                if self._is_over() or self._allowed == 0:
                    return self._is_over()
                if self._allowed is not None:
                    self._allowed -= 1
            batch = self._batch()
            if batch is None:
                return True
            result = self._step(batch)
            with self._change:
                self.result = result
                self.done += 1
                self._change.notify_all()
            if self._progress is not None:
                self._progress(Tick(self.done, self.steps, result, time.perf_counter() - self._began))
            if self.rate is not None:
                due = max(due + 1.0 / self.rate, time.perf_counter() - 1.0 / self.rate)
                self._rest(due)

    def _batch(self) -> Mapping[Any, Any] | None:
        """What the next step is fed, None after the last batch."""
        if self._feeds is None:
            return {}
        batch = next(self._feeds, _NO_MORE)
        if batch is None:
            raise ValueError(f"feeds must be mappings, one per step; batch {self.done} is None")
        return None if batch is _NO_MORE else batch

    def _is_over(self) -> bool:
        return self._ended or self._cancelled or (self.steps is not None and self.done >= self.steps)

    def _rest(self, due: float) -> None:
        """Until the next step is due, or something changes."""
        with self._change:
            self._change.wait_for(lambda: self._is_over() or self._allowed == 0, max(0.0, due - time.perf_counter()))

    # -- from outside --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop after the step in progress."""
        with self._change:
            self._allowed = 0
            self._change.notify_all()

    def resume(self) -> None:
        """Go on after a pause."""
        with self._change:
            self._allowed = None
            self._change.notify_all()

    def step_on(self, n: int = 1) -> None:
        """Do n more steps, then pause."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n must be a whole number from 1; got {n!r}")
        with self._change:
            self._allowed = (self._allowed or 0) + n
            self._change.notify_all()

    def cancel(self) -> None:
        """End after the step in progress."""
        with self._change:
            self._cancelled = True
            self._ended = self._ended or (self._worker is None and self._thread is None)
            self._change.notify_all()

    @property
    def paused(self) -> bool:
        """Whether no step will begin until `resume`, `step_on` or the next `run`."""
        return self._allowed == 0 and not self._is_over()

    @property
    def ended(self) -> bool:
        """Whether no more steps will be done."""
        return self._ended

    def wait_for_steps(self, n: int, timeout: float | None = None) -> bool:
        """Until n steps are done, or the loop ends; whether they are."""
        self._is_another()
        with self._change:
            self._change.wait_for(lambda: self.done >= n or self._ended, timeout)
            return self.done >= n

    def wait(self, timeout: float | None = None) -> Any:
        """Until the end, or until `run` returns; raises what went wrong, gives what the last step gave."""
        self._is_another()
        with self._change:
            thread = self._thread
            if not self._change.wait_for(lambda: self._ended or (thread is None and self._worker is None), timeout):
                raise TimeoutError(f"the loop is still at work after {timeout} s, at step {self.done}")
        if thread is not None:
            thread.join()
        return self._outcome()

    def _is_another(self) -> None:
        if self._worker == threading.get_ident():
            raise RuntimeError("a step cannot wait for the loop that does it")

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self.result


def _is_rate(rate: Any) -> bool:
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        return False
    return SLOWEST <= rate <= sys.float_info.max
