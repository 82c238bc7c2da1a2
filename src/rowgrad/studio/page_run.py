"""The run of one page: its session, the loop that repeats it, and what is told of it.

Nothing here waits for another page. Calls from outside take turns; a step in progress holds none of them up for long.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..arrays import Array
from ..errors import InvalidArgumentError
from ..graph.engine import open_engine
from ..graph.loop import Loop
from ..graph.page import Page
from ..graph.session import ClientSession
from .pacing import Gate, Teller
from .prepared import Prepared, logic_of, prepare
from .run_state import costs_json, failure_json, is_steady, results_json
from .trends import Trends, Watched

MODES = ("once", "steps", "rate", "flat")
_ANSWERS_WITHIN = 2.0  # seconds that a caller waits for a single run, so that small ones answer with their results
_RESTS_WITHIN = 2.0  # and for the step in progress where a run is paused
_SAVES_WITHIN = 30.0
EDITED = "the page was edited"


@dataclass(slots=True)
class Opened:
    """A session that was opened for a page, and how its runs are counted as steps."""

    prepared: Prepared
    session: ClientSession
    engine: str
    gate: Gate = field(default_factory=Gate)
    # (runs of the session, steps of the page) where a start began, and how many runs make a step from there
    starts: list[tuple[int, int, int]] = field(default_factory=list)

    def step_of(self, run: int) -> int:
        """The step in which the session did its run of this number."""
        at = bisect_left(self.starts, run, key=lambda start: start[0]) - 1
        if at < 0:
            return 0
        runs, steps, each = self.starts[at]
        return steps + -(-(run - runs) // each)


@dataclass(eq=False, slots=True)
class Work:
    """One start: what a step runs, and how."""

    opened: Opened
    blocks: list[str]
    mode: str
    steps: int | None
    rate: float | None
    loop: Loop | None = None


class PageRun:
    """See `Runs`, whose calls come here by the page's name."""

    def __init__(self, name: str, tell: Callable[[dict[str, Any], object], None]) -> None:
        self.name = name
        self.trends = Trends()
        self.phase = "idle"
        self.run = 0
        self.done = 0  # steps of this start
        self.restored: str | None = None
        self.opened: Opened | None = None
        self.latest: dict[str, str] | None = None  # recipes of the page as it was saved last, where that is another
        self._work: Work | None = None
        self._prepared: Prepared | None = None
        self._control = threading.Lock()  # one call from outside at a time
        self._lock = threading.RLock()  # guards the fields; never held while a step is at work
        self._change = threading.Condition(self._lock)
        self._error: dict[str, Any] | None = None
        self._message: str | None = None
        self._carried: list[str] = []
        self._seconds = 0.0
        self._since: float | None = None  # when steps began to be done, while they are
        self._marks: list[tuple[float, int]] = []  # moments and how many steps were done then
        self._shown: tuple[Any, dict[str, Any]] | None = None
        self._tell = tell
        self._teller = Teller(self._send)

    # -- from outside --------------------------------------------------------------------------------------------------

    def start(
        self,
        page: Page,
        revision: str,
        sessions: Sequence[str] = (),
        mode: str = "once",
        steps: int | None = None,
        rate: float | None = None,
        engine: str = "numpy",
    ) -> None:
        """Run the page, on from where its Variables are."""
        with self._control:
            prepared = self._prepare(page, revision)
            blocks = prepared.wanted(sessions)
            opened, carried = self._open(prepared, engine)
            budget = 1 if mode == "once" else steps
            work = Work(opened, blocks, mode, budget, rate)
            loop = work.loop = Loop(lambda feeds: self._step(work), rate=rate)
            with self._lock:
                if opened is not self.opened:
                    self._carried, self.restored = carried, self.restored if carried else None
                self.opened, self._work, self.latest = opened, work, None
                opened.starts.append((opened.session.runs, self.run, len(blocks)))
                self.done, self._error, self._message, self._seconds = 0, None, None, 0.0
                self._go("running")
            opened.gate.allow(work, budget)
            if budget is not None:
                loop.step_on(budget)
            loop.start()
        self._teller.soon(urgent=True)
        if mode in ("once", "steps"):
            self._settle(_ANSWERS_WITHIN if mode == "once" else 0.25)

    def pause(self) -> None:
        """Stop after the step in progress, keep everything."""
        with self._control:
            work = self._work
            if work is None or work.loop is None or self.phase != "running":
                return
            work.opened.gate.allow(work, 0)
            work.loop.pause()
            work.opened.gate.rest(_RESTS_WITHIN)
            with self._lock:
                if self._work is work and self.phase == "running":
                    self._go("paused")
        self._teller.soon(urgent=True)

    def resume(self) -> None:
        """Go on after a pause. A run that was to do so many steps goes on without end."""
        with self._control:
            work = self._work
            if work is None or work.loop is None or self.phase not in ("paused", "running"):
                message = f"name: page {self.name!r} is {self.phase}: there is nothing to go on with"
                raise InvalidArgumentError(message, argument="name")
            with self._lock:
                if work.mode == "steps":
                    work.mode, work.steps = "flat", None
                self._go("running")
            work.opened.gate.allow(work, None)
            work.loop.resume()
        self._teller.soon(urgent=True)

    @property
    def is_alive(self) -> bool:
        """Whether there is a run to go on with."""
        return self._work is not None and self.phase in ("running", "paused")

    def step(self, steps: int) -> None:
        """So many steps more, then pause."""
        with self._control:
            work = self._work
            if work is None or work.loop is None or not self.is_alive:
                message = f"name: page {self.name!r} is {self.phase}: there is nothing to go on with"
                raise InvalidArgumentError(message, argument="name")
            with self._lock:
                self._go("running")
            work.opened.gate.allow(work, steps)
            work.loop.pause()
            work.loop.step_on(steps)
        self._settle(0.25)
        self._teller.soon(urgent=True)

    def stop(self, message: str | None = None) -> None:
        """End; what was computed stays to be looked at."""
        with self._control:
            self._stop(message)
        self._teller.soon(urgent=True)

    def reset(self) -> None:
        """Variables begin anew, results and trends are forgotten."""
        with self._control:
            self._cancel()
            with self._lock:
                self.opened, self._work, self.restored, self._shown = None, None, None, None
                self.run = self.done = 0
                self._error, self._message, self._carried, self._seconds = None, None, [], 0.0
                self._go("idle")
                self.trends.clear()
        self._teller.soon(urgent=True)

    def save(self, keep: Callable[[ClientSession, int], None]) -> None:
        """Let `keep` have the session between two steps."""
        opened = self.opened
        if opened is None:
            message = f"name: page {self.name!r} has not been run: there is nothing to keep"
            raise InvalidArgumentError(message, argument="name")
        with opened.gate.between(_SAVES_WITHIN):
            keep(opened.session, self.run)

    def restore(self, page: Page, revision: str, path: Path, run: int, snapshot: str) -> None:
        """Go back to a state that was kept; the run in progress ends."""
        with self._control:
            prepared = self._prepare(page, revision)
            engine = "numpy" if self.opened is None else self.opened.engine
            # A session of its own: a step that is still at work changes nothing in it.
            session = ClientSession(prepared.checked.scope, engine, watch_costs=True)
            session.restore(path)
            self._cancel()
            with self._lock:
                self.opened, self._work, self._shown = Opened(prepared, session, engine), None, None
                self.opened.starts.append((session.runs, run, 1))
                self.run, self.done, self.restored, self.latest = run, 0, snapshot, None
                self._error, self._message, self._carried, self._seconds = None, None, [], 0.0
                self._go("stopped")
                self.trends.go_back(run)
        self._teller.soon(urgent=True)

    def edited(self, page: Page, revision: str, recipes: Mapping[str, str] | None = None) -> None:
        """The page was saved; where it computes something else, a run in progress ends."""
        opened = self.opened
        if opened is None or revision == opened.prepared.revision:
            self.latest = None
            return
        logic = logic_of(page, recipes)
        self.latest = {block: recipe for block, (recipe, _) in logic.items()}
        if logic != opened.prepared.logic and self.is_alive:
            self.stop(EDITED)

    def close(self) -> None:
        """End, and tell nothing more."""
        self._teller.close()
        with self._control:
            self._stop(None)

    def state(self) -> dict[str, Any]:
        """RunState, as docs of the studio's verbs have it."""
        with self._lock:
            opened, work = self.opened, self._work
            told: dict[str, Any] = {
                "phase": self.phase,
                "run": self.run,
                "done": self.done,
                "steps": None if work is None else work.steps,
                "mode": None if work is None else work.mode,
                "rate": None if work is None else work.rate,
                "per_second": self._per_second(),
                "seconds": self._seconds + (0.0 if self._since is None else time.perf_counter() - self._since),
                "engine": None if opened is None else opened.engine,
                "error": self._error,
                "message": self._message,
                "revision": None if opened is None else opened.prepared.revision,
                "recipes": {} if opened is None else opened.prepared.recipes,
                "carried": list(self._carried),
                # Replies and events overtake each other on their way; this tells which was made later.
                "serial": time.monotonic_ns() // 1000,
            }
        told |= {"costs": {}, "results": {}} if opened is None else self._seen(opened)
        return told

    def run_of(self, block: str, pin: str) -> int | None:
        """The step that computed a pin's value last."""
        opened = self.opened
        number = None if opened is None else opened.session.run_of(block, pin)
        return None if opened is None or number is None else min(opened.step_of(number), self.run)

    def is_stale(self, block: str, pin: str) -> bool:
        """Whether a result is not what the page as it is now would give, or an earlier run's that may have changed."""
        opened, run = self.opened, self.run_of(block, pin)
        if opened is None or run is None or (run < self.run and not is_steady(opened.session, block, pin)):
            return True
        return self.latest is not None and self.latest.get(block) != opened.prepared.recipes.get(block)

    def watch(self, watched: list[Watched] | None) -> list[dict[str, Any]]:
        """Record these from now on, beginning with what they are now; None: every number that a session fetches."""
        with self._lock:
            self.trends.watch(watched)
            if self.opened is not None and self.run:
                self.trends.begin(self.run, self.opened.session)
        return self.trends.series()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _prepare(self, page: Page, revision: str) -> Prepared:
        if self._prepared is None or self._prepared.revision != revision:
            self._prepared = prepare(page, revision)
        return self._prepared

    def _open(self, prepared: Prepared, engine: str) -> tuple[Opened, list[str]]:
        """The session there is, where the page computes the same; or one that goes on with its Variables.

        The run in progress ends.
        """
        old = self.opened
        if old is not None and old.engine == engine and old.prepared.logic == prepared.logic:
            self._stop(None)
            old.prepared = prepared  # only its looks may be others, which the revision tells of
            return old, []
        session = ClientSession(prepared.checked.scope, open_engine(engine), watch_costs=True)
        self._stop(None)
        carried: list[str] = []
        if old is not None:
            before = old.prepared.recipes
            changed = {block for block, recipe in prepared.recipes.items() if before.get(block) != recipe}
            with old.gate.between(_SAVES_WITHIN):
                carried = session.adopt(old.session, unless=changed)
        return Opened(prepared, session, engine), carried

    def _step(self, work: Work) -> None:
        """In the loop's thread: every session once."""
        opened = work.opened
        if not opened.gate.enter(work):
            return
        state, block = opened.session.state, work.blocks[0]
        before = dict(state.values), dict(state.counters)
        found: dict[str, Array] = {}
        try:
            for block in work.blocks:
                found |= opened.session.run_block(block)
        except BaseException as error:
            state.values, state.counters = before  # a step that fails changes nothing
            self._failed(work, error, block)
        else:
            self._done(work, found)
        finally:
            opened.gate.leave()
        self._stepped(work)

    def _done(self, work: Work, found: Mapping[str, Array]) -> None:
        with self._lock:
            if self.opened is work.opened:
                self.run += 1
                self.done += self._work is work
                self.trends.record(self.run, work.opened.session, found)

    def _stepped(self, work: Work) -> None:
        """After a step: the run may be over, or paused; windows hear of it."""
        over = work.opened.gate.is_spent(work)
        with self._lock:
            over = over and self._work is work and self.phase == "running"
            if over:
                self._go("done" if work.mode == "once" else "paused")
                if work.mode == "once" and work.loop is not None:
                    work.loop.cancel()
        self._teller.soon(urgent=over)

    def _failed(self, work: Work, error: BaseException, block: str) -> None:
        with self._lock:
            if work.loop is not None:
                work.loop.cancel()  # it would fail again
            if self._work is not work:
                return
            self._error = failure_json(error, block)
            self._go("failed")
        self._teller.soon(urgent=True)

    def _stop(self, message: str | None) -> None:
        was_alive = self.is_alive
        self._cancel()
        with self._lock:
            if was_alive:
                self._message = message
                self._go("stopped")

    def _cancel(self) -> None:
        """No step of the run there is begins any more."""
        work = self._work
        if work is not None and work.loop is not None:
            work.opened.gate.allow(None, 0)
            work.loop.cancel()

    def _settle(self, seconds: float) -> None:
        """Wait a little for steps that are soon done."""
        with self._change:
            self._change.wait_for(lambda: self.phase != "running", seconds)

    def _go(self, phase: str) -> None:
        """Take a phase; time is counted while steps are done."""
        now = time.perf_counter()
        if self._since is not None:
            self._seconds += now - self._since
        self._since = now if phase == "running" else None
        if phase == "running":
            self._marks = [(now, self.run)]
        self.phase = phase
        self._change.notify_all()

    def _per_second(self) -> float:
        """Steps a second over the last few; while none are done it is 0."""
        if self._since is None:
            return 0.0
        now = time.perf_counter()
        if now - self._marks[-1][0] > 0.5:
            self._marks = [*self._marks[-4:], (now, self.run)]
        (began, steps) = self._marks[0]
        return (self.run - steps) / (now - began) if now > began else 0.0

    def _seen(self, opened: Opened) -> dict[str, Any]:
        """Results and costs, made once a run."""
        key = (id(opened), opened.session.runs, self.run)
        shown = self._shown
        if shown is None or shown[0] != key:
            most = self.run
            results = results_json(opened.session, lambda number: min(opened.step_of(number), most))
            shown = self._shown = key, {"costs": costs_json(opened.session), "results": results}
        return shown[1]

    def _send(self) -> None:
        self._tell({"event": "run", "name": self.name, "state": self.state()}, ("run", self.name))
