"""Run a page step by step: `PageStep` is one step of its sessions, `Loop` repeats any step.

A loop runs a number of steps or until it is cancelled, at a rate or as fast as possible, and can be paused and resumed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._runtime.arrays import Array
from .fetches import output_of
from .nodes import Operation, Output
from .session import ClientSession

Progress = Callable[["Tick"], None]
SLOWEST = 1e-6  # steps per second, so that no step waits for more than days
_NO_MORE: Any = object()  # returned instead of a batch after the last one


class StepResult(NamedTuple):
    """The values of one step: by ClientSession block and name, and the other fetches by name."""

    sessions: dict[str, dict[str, Array]]
    fetched: dict[str, Array]


class PageStep:
    """One step of a page: run ClientSession blocks in order, then fetch values and run operations.

    `feeds` are for the fetches and operations; ClientSession blocks have feeds of their own.

    A step takes effect as a whole: after an error, Variables and random counters are as they were before the step.
    `block` is the ClientSession block that is running or ran last: errors that name no block belong to it.
    """

    def __init__(
        self,
        session: ClientSession,
        blocks: Iterable[str],
        fetches: Mapping[str, Output] | None = None,
        operations: Iterable[Operation] = (),
        feeds: Mapping[Output, Any] | None = None,
    ) -> None:
        self.session = session
        self.blocks = list(blocks)
        self.fetches = dict(fetches or {})
        self.operations = list(operations)
        self.feeds = dict(feeds or {})
        self.block: str | None = self.blocks[0] if self.blocks else None

    def run(self, feeds: Mapping[Any, Any] | None = None) -> StepResult:
        """Run the step; raise the error of the first block that fails."""
        state = self.session.state
        before = state.copy()
        result = StepResult({}, {})
        try:
            for block in self.blocks:
                self.block = block
                result.sessions[block] = self.session.run_block(block, feeds)
            if self.fetches or self.operations:
                fed = self.feeds | {output_of(self.session.graph, k, "feeds"): v for k, v in (feeds or {}).items()}
                result.fetched.update(self.session.run(self.fetches, fed, self.operations))
        except BaseException:
            state.values, state.counters = before.values, before.counters
            raise
        return result


@dataclass(frozen=True, slots=True)
class Tick:
    """A finished step: its number from 1, the number of steps if known, its result, and seconds since the start."""

    step: int
    steps: int | None
    result: Any
    seconds: float


class Loop:
    """Repeat a step, with control from other threads.

    `run` works in the caller's thread, `start` in a new one. `pause` stops after the step in progress,
    `resume` continues, `step_on(n)` runs n more steps and pauses again, `cancel` ends the loop, `wait` waits for
    its end and raises the error of a failed step. A started loop waits while it is paused. `run` does not wait: a pause
    makes it return early with `paused` true, and the next `run` continues. After a pause the next step runs at once,
    and the rate counts from there.

    Args:
        step: Called with one batch of feeds per step.
        steps: The number of steps; None repeats until the loop is cancelled.
        rate: Steps per second; None runs as fast as possible.
        feeds: Batches, one per step; the loop ends after the last. None passes an empty mapping.
        progress: Called with a `Tick` after every step.

    Raises:
        ValueError: `steps` is negative, or `rate` is not a positive number.

    >>> batches = [{"x": 1}, {"x": 2}, {"x": 3}]
    >>> Loop(lambda batch: batch["x"] * 10, feeds=batches).run()
    30
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
            raise ValueError(f"steps must be an integer >= 0, or None; got {steps!r}")
        if rate is not None and not _is_rate(rate):
            raise ValueError(f"rate must be a number of steps per second >= {SLOWEST:f}, or None; got {rate!r}")
        self._step = step
        self.steps = steps
        self.rate = rate
        self._feeds: Iterator[Mapping[Any, Any]] | None = None if feeds is None else iter(feeds)
        self._progress = progress
        self.done = 0
        self.result: Any = None
        self._allowed: int | None = None  # steps until the next pause; None: no pause
        self._cancelled = False
        self._ended = False
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._began = 0.0  # when the first step began
        self._worker: int | None = None  # the thread that runs steps now
        self._thread: threading.Thread | None = None  # the thread of `start`

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Run all steps, or those until a pause; return the result of the last, or raise its error."""
        with self._change:
            if self._thread is not None:
                raise RuntimeError("this loop was started in another thread; call `wait` to wait for its end")
            if self._worker is not None:
                raise RuntimeError("this loop is running already")
            self._worker = threading.get_ident()
            if self._allowed == 0:
                self._allowed = None
        self._work(waits=False)
        return self._outcome()

    def start(self) -> Loop:
        """Run the steps in a new thread, and return the loop."""
        with self._change:
            if self._thread is not None:
                raise RuntimeError("this loop was started already")
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
        """Run steps until the end, or until a pause unless `waits`; return whether the loop is over."""
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
        """Return the feeds of the next step, or None after the last batch."""
        if self._feeds is None:
            return {}
        batch = next(self._feeds, _NO_MORE)
        if batch is None:
            raise ValueError(f"feeds must be mappings, one per step; batch {self.done} is None")
        return None if batch is _NO_MORE else batch

    def _is_over(self) -> bool:
        return self._ended or self._cancelled or (self.steps is not None and self.done >= self.steps)

    def _rest(self, due: float) -> None:
        """Wait until the next step is due, or the loop is paused or cancelled."""
        with self._change:
            self._change.wait_for(lambda: self._is_over() or self._allowed == 0, max(0.0, due - time.perf_counter()))

    # -- control from other threads ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop after the step in progress."""
        with self._change:
            self._allowed = 0
            self._change.notify_all()

    def resume(self) -> None:
        """Continue after a pause."""
        with self._change:
            self._allowed = None
            self._change.notify_all()

    def step_on(self, n: int = 1) -> None:
        """Run n more steps, then pause."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n must be an integer >= 1; got {n!r}")
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
        """Return whether no step begins until `resume`, `step_on` or the next `run`."""
        return self._allowed == 0 and not self._is_over()

    @property
    def ended(self) -> bool:
        """Return whether no more steps will run."""
        return self._ended

    def wait_for_steps(self, n: int, timeout: float | None = None) -> bool:
        """Wait until n steps are done or the loop ends; return whether they are done."""
        self._check_thread()
        with self._change:
            self._change.wait_for(lambda: self.done >= n or self._ended, timeout)
            return self.done >= n

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the loop ends or `run` returns; return the result of the last step, or raise its error."""
        self._check_thread()
        with self._change:
            thread = self._thread
            if not self._change.wait_for(lambda: self._ended or (thread is None and self._worker is None), timeout):
                raise TimeoutError(f"the loop is still running after {timeout} s, at step {self.done}")
        if thread is not None:
            thread.join()
        return self._outcome()

    def _check_thread(self) -> None:
        if self._worker == threading.get_ident():
            raise RuntimeError("a step cannot wait for the loop that runs it")

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self.result


def _is_rate(rate: Any) -> bool:
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        return False
    return SLOWEST <= rate <= sys.float_info.max
