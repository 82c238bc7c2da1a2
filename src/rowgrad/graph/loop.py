"""Runs that repeat: a number of steps, a rate, or flat out; paused and gone on with, or cancelled, at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Progress = Callable[["Tick"], None]


@dataclass(frozen=True, slots=True)
class Tick:
    """One step that was done: its number, from 1; how many there will be, if that is known; what it gave."""

    step: int
    steps: int | None
    result: Any
    seconds: float


class Loop:
    """Repeats `step(batch)`: `steps` times, or until cancelled; at `rate` per second, or as fast as it goes.

    `run` works in the caller's thread. `start` works in a thread of its own; `pause` stops after the step in progress
    and keeps all state, `resume` goes on, `step_on(n)` does n more steps and pauses again, `cancel` ends, `wait` waits
    for the end and raises what went wrong. `feeds` are batches, one per step; when they end, so does the loop.
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
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate < float("inf")):
            raise ValueError(f"rate must be a number of runs per second above 0, or None; got {rate!r}")
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
        self._thread: threading.Thread | None = None

    def run(self) -> Any:
        """Do all steps; gives what the last one gave."""
        began = time.perf_counter()
        try:
            due = began
            while self._may_go_on():
                batch = {} if self._feeds is None else next(self._feeds, None)
                if batch is None:
                    break
                self.result = self._step(batch)
                with self._change:
                    self.done += 1
                    if self._allowed is not None:
                        self._allowed -= 1
                    self._change.notify_all()
                if self._progress is not None:
                    self._progress(Tick(self.done, self.steps, self.result, time.perf_counter() - began))
                if self.rate is not None and not self._is_over():
                    due = max(due + 1.0 / self.rate, time.perf_counter() - 1.0 / self.rate)
                    self._rest(due)
        finally:
            with self._change:
                self._ended = True
                self._change.notify_all()
        return self.result

    def _may_go_on(self) -> bool:
        with self._change:
            self._change.wait_for(
                lambda: self._cancelled or self._is_over() or self._allowed is None or self._allowed > 0
            )
            return not (self._cancelled or self._is_over())

    def _is_over(self) -> bool:
        return self._cancelled or (self.steps is not None and self.done >= self.steps)

    def _rest(self, due: float) -> None:
        """Until the next step is due, or something changes."""
        with self._change:
            self._change.wait_for(lambda: self._cancelled, max(0.0, due - time.perf_counter()))

    def start(self) -> Loop:
        """Work in a thread of its own."""
        if self._thread is not None:
            raise RuntimeError("this loop was started before")
        self._thread = threading.Thread(target=self._work, name="rowgrad-loop", daemon=True)
        self._thread.start()
        return self

    def _work(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error

    def pause(self) -> None:
        """Stop after the step in progress."""
        with self._change:
            self._allowed = 0

    def resume(self) -> None:
        """Go on after a pause."""
        with self._change:
            self._allowed = None
            self._change.notify_all()

    def step_on(self, n: int = 1) -> None:
        """Do n more steps, then pause."""
        with self._change:
            self._allowed = (self._allowed or 0) + n
            self._change.notify_all()

    def cancel(self) -> None:
        """End after the step in progress."""
        with self._change:
            self._cancelled = True
            self._change.notify_all()

    @property
    def ended(self) -> bool:
        """Whether no more steps will be done."""
        return self._ended

    def wait_for_steps(self, n: int, timeout: float | None = None) -> bool:
        """Until n steps are done, or the loop ends; whether they are."""
        with self._change:
            self._change.wait_for(lambda: self.done >= n or self._ended, timeout)
            return self.done >= n

    def wait(self, timeout: float | None = None) -> Any:
        """Until the end; raises what went wrong, gives what the last step gave."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"the loop is still at work after {timeout} s, at step {self.done}")
        if self._error is not None:
            raise self._error
        return self.result
