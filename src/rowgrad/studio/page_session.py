"""The run of one page: its validated graph, its session, the loop that repeats its steps, and its state as JSON."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._catalog.spec import find_op
from .._hints import nearest
from .._runtime.arrays import Array
from ..errors import InvalidArgumentError, OpError
from ..graph.engine import open_engine
from ..graph.fixes import fetch_fix, fixes_of
from ..graph.leaves import Leaves, leaves_of
from ..graph.nodes import Output
from ..graph.page import End, Page
from ..graph.page_builder import Checked, check
from ..graph.page_summary import recipes
from ..graph.run_loop import Loop, PageStep
from ..graph.session import ClientSession
from .charts import Trends, Watched
from .row_changes import RowChanges, StepUpdates
from .run_control import Clock, EventThrottle, Gate
from .value_text import info_of, preview
from .verbs import error_json

# -- a page prepared for running, validated once per revision ----------------------------------------------------------

# The recipe of each block, and the pins its wires begin at: two different blocks may have the same recipe.
Logic = dict[str, tuple[str, dict[str, list[End]]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run computes: ClientSession blocks, or the leaves of a page without one.

    `variables` are those that a run would change although no ClientSession says so: the user must agree first.
    """

    blocks: list[str]
    leaves: Leaves = field(default_factory=Leaves)
    variables: list[str] = field(default_factory=list)

    def question(self) -> dict[str, Any]:
        """Return what a window asks the user before the run."""
        return {"variables": self.variables, "fixes": [fetch_fix(self.leaves.ends).json()]}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A page of one revision with its graph, the recipes of its blocks, and its ClientSession blocks."""

    page: Page
    revision: str
    checked: Checked
    recipes: dict[str, str]
    logic: Logic
    sessions: list[str]

    def plan(self, named: Sequence[str] = (), change: bool = False) -> Plan:
        """Return what a run computes; raise the first fault that prevents it.

        With ClientSession blocks these are the named ones, or all, in the page's order; otherwise every block that
        nothing consumes. Such a run changes Variables only with `change`: otherwise the plan says what it needs.
        """
        if not self.sessions and not named:
            return self._plan_leaves(change)
        for name in named:
            if name not in self.sessions:
                near = nearest(name, self.sessions)
                hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(self.sessions) or 'none'}"
                message = f"sessions: {name!r} is not a ClientSession block of this page; {hint}"
                raise InvalidArgumentError(message, argument="sessions")
        found = [s for s in self.sessions if s in named or not named]
        skipped = [] if named else [s for s in found if s in self.checked.foreign]
        if len(skipped) < len(found):  # the others do not need the ops that rowgrad lacks
            found = [s for s in found if s not in skipped]
        self._raise_first_fault(found)
        return Plan(found, Leaves(left_out=skipped))

    def _plan_leaves(self, change: bool) -> Plan:
        leaves = leaves_of(self.checked)
        if leaves.is_empty:
            self._raise_first_fault([b.id for b in self.page.blocks])
            message = "this page has no block to run" if not self.page.blocks else "no block of this page has a value"
            raise InvalidArgumentError(message, argument="name")
        variables = [] if change else leaves.changed_variables(self.checked.scope.graph)
        return Plan([], leaves, variables)

    def _raise_first_fault(self, blocks: Sequence[str]) -> None:
        fault = self.checked.first_fault(blocks)
        if fault is not None:
            fault.error.argument = fault.error.argument or fault.pin
            raise fault.error


def logic_of(page: Page, known: Mapping[str, str] | None = None) -> Logic:
    """Return what a page computes, without its layout. `known` are its recipes, if they were computed before."""
    found = recipes(page) if known is None else known
    return {b.id: (found[b.id], {pin: list(ends) for pin, ends in b.wires.items()}) for b in page.blocks}


def prepare(page: Page, revision: str) -> Prepared:
    """Validate a page."""
    found = recipes(page)
    sessions = [b.id for b in page.blocks if (op := find_op(b.op)) is not None and op.runs]
    return Prepared(page, revision, check(page), found, logic_of(page, found), sessions)


# -- the session of a page, and one start of it ------------------------------------------------------------------------


@dataclass(slots=True)
class PageSession:
    """The session of a page, and how its runs are counted as steps."""

    prepared: Prepared
    session: ClientSession
    engine: str
    updates: StepUpdates
    gate: Gate = field(default_factory=Gate)
    # Runs of the session and steps of the page at each start, and the runs per step from there
    starts: list[tuple[int, int, int]] = field(default_factory=list)
    _cached: tuple[tuple[int, int], dict[str, Any]] | None = None

    @classmethod
    def new(cls, prepared: Prepared, engine: str) -> PageSession:
        """Open a session whose Variables have their initial values."""
        session = ClientSession(prepared.checked.scope, open_engine(engine), watch_costs=True)
        return cls(prepared, session, engine, StepUpdates(session))

    def adopt_variables(self, old: PageSession, timeout: float) -> list[str]:
        """Copy the Variables of unchanged blocks after the step in progress; return their names."""
        before = old.prepared.recipes
        changed = {block for block, recipe in self.prepared.recipes.items() if before.get(block) != recipe}
        with old.gate.between(timeout):
            return self.session.adopt(old.session, unless=changed)

    def step_of(self, run: int, most: int) -> int:
        """Return the page's step of a run of the session, at most `most`."""
        at = bisect_left(self.starts, run, key=lambda start: start[0]) - 1
        if at < 0:
            return 0
        runs, steps, each = self.starts[at]
        return min(steps + -(-(run - runs) // each), most)

    def run_of(self, block: str, pin: str, most: int) -> int | None:
        """Return the step that last computed a pin's value, or None."""
        number = self.session.run_of(block, pin)
        return None if number is None else self.step_of(number, most)

    def facts(self, run: int) -> dict[str, Any]:
        """Return its part of RunState after `run` steps; results and costs are computed once per run."""
        key, cached = (self.session.runs, run), self._cached
        if cached is None or cached[0] != key:
            results = results_json(self.session, lambda number: self.step_of(number, run))
            cached = self._cached = key, {"costs": costs_json(self.session), "results": results}
        facts = {"engine": self.engine, "revision": self.prepared.revision, "recipes": self.prepared.recipes}
        return facts | cached[1]


class Work:
    """One start of a page: the step, and how often it runs."""

    def __init__(
        self,
        opened: PageSession,
        plan: Plan,
        mode: str,
        steps: int | None,
        rate: float | None,
        step: Callable[[Work], None],
    ) -> None:
        self.opened = opened
        self.mode = mode
        self.steps = steps
        self.rate = rate
        leaves = plan.leaves
        self.step = PageStep(opened.session, plan.blocks, leaves.values, leaves.operations, leaves.feeds)
        self.left_out = leaves.left_out
        self.loop = Loop(lambda feeds: step(self), rate=rate)

    def facts(self) -> dict[str, Any]:
        """Return its part of RunState."""
        return {"mode": self.mode, "steps": self.steps, "rate": self.rate, "left_out": self.left_out}


# -- results, costs and errors as JSON, for hundreds of blocks and many times a second ---------------------------------

Json = dict[str, Any]


def results_json(session: ClientSession, step_of: Callable[[int], int]) -> dict[str, Json]:
    """Return every computed pin by block; `step_of` maps a run of the session to the page's step."""
    with np.errstate(all="ignore"):  # results may contain signaling NaNs
        return _results(session, step_of)


def _results(session: ClientSession, step_of: Callable[[int], int]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, placed in session.graph.blocks.items():
        pins: Json = {}
        for pin, value in placed.pins.items():
            if not isinstance(value, Output | list):
                continue
            result = session.result(name, pin)
            number = None if result is None else session.run_of(name, pin)
            if result is None or number is None:
                continue
            run, steady = step_of(number), is_steady(session, name, pin)
            pins[pin] = (
                [_one(r, run, steady) for r in result] if isinstance(result, list) else _one(result, run, steady)
            )
        if pins:
            found[name] = pins
    return found


def is_steady(session: ClientSession, block: str, pin: str) -> bool:
    """Return whether a pin has the same value in every run, so that an earlier one is never stale."""
    value = session.graph.blocks[block].pins[pin]
    outputs = value if isinstance(value, list) else [value]
    return all(isinstance(output, Output) and output.node.steady for output in outputs)


def costs_json(session: ClientSession) -> dict[str, Json]:
    """Return the cost of each block."""
    return {block: {"seconds": cost.seconds, "bytes": cost.bytes} for block, cost in session.costs.items()}


def failure_json(error: BaseException, block: str | None, checked: Checked) -> Json:
    """Return the error of a run, with its known fixes. It belongs to the block it names, or else to the session."""
    facts = error_json(error)
    if not isinstance(error, OpError):
        facts["message"] = str(error) or type(error).__name__
    fixes = [fix.json() for fix in fixes_of(checked, facts["block"], error)]
    return facts | {"block": facts["block"] or block, "fixes": fixes}


def _one(array: Array, run: int, steady: bool) -> Json:
    return {"info": info_of(array), "run": run, "steady": steady, "preview": preview(array)}


# -- the run -----------------------------------------------------------------------------------------------------------

# Nothing here waits for another page. Control calls take turns, and wait for a step in progress only for a short time.

MODES = ("once", "steps", "rate", "flat")
# Seconds that a response waits, so that it has the results of a short step.
_RUN_WAIT = 2.0  # for a single run
_PAUSE_WAIT = 2.0  # for the step in progress when a run is paused
_STOP_WAIT = 0.25  # for the step in progress when a run is stopped
SAVE_WAIT = 30.0
EDITED = "the page was edited"
_NO_WORK: dict[str, Any] = {"mode": None, "steps": None, "rate": None, "left_out": []}
_NO_SESSION: dict[str, Any] = {"engine": None, "revision": None, "recipes": {}, "costs": {}, "results": {}}


class PageRun:
    """The run of one page; `Runs` passes its calls on by the page's name."""

    def __init__(
        self,
        name: str,
        send_event: Callable[[dict[str, Any], object], None],
        saved: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.saved = saved  # the latest snapshot of an earlier start of Studio, until the page runs
        self.is_unsaved = False  # whether a step ended since the last snapshot
        self.trends = Trends()
        self.row_changes = RowChanges()
        self.phase = "idle"
        self.run = 0
        self.done = 0  # steps since this start
        self.restored: str | None = None
        self.opened: PageSession | None = None
        self.latest: dict[str, str] | None = None  # recipes of the saved page, if it differs from the one that runs
        self._work: Work | None = None
        self._prepared: Prepared | None = None
        self._closed = False
        self._control = threading.Lock()  # one control call at a time
        self._lock = threading.RLock()  # guards the fields; never held while a step runs
        self._change = threading.Condition(self._lock)
        self._error: dict[str, Any] | None = None
        self._message: str | None = None
        self._carried: list[str] = []
        self._clock = Clock()
        self._send_event = send_event
        self._throttle = EventThrottle(self._send)

    # -- control -------------------------------------------------------------------------------------------------------

    def start(
        self,
        page: Page,
        revision: str,
        sessions: Sequence[str] = (),
        mode: str = "once",
        steps: int | None = None,
        rate: float | None = None,
        engine: str = "numpy",
        change: bool = False,
    ) -> dict[str, Any] | None:
        """Run the page with its current Variables, or return what the user must agree to first."""
        with self._control:
            if self._closed:  # a run started now could not be stopped
                message = f"name: page {self.name!r} is no longer in this project"
                raise InvalidArgumentError(message, argument="name")
            prepared = self._prepare(page, revision)
            plan = prepared.plan(sessions, change)
            if plan.variables:
                return plan.question()
            opened, carried = self._open(prepared, engine)
            budget = 1 if mode == "once" else steps
            work = Work(opened, plan, mode, budget, rate, self._step)
            with self._lock:
                if opened is not self.opened:
                    self._carried, self.restored = carried, None
                self.opened, self._work = opened, work
                opened.starts.append((opened.session.runs, self.run, len(plan.blocks) or 1))
                self._begin(self.run, self._carried)
                opened.gate.allow(work, budget)
                self._enter_phase("running")
            if budget is not None:
                work.loop.step_on(budget)
            work.loop.start()
        self._throttle.soon(urgent=True)
        self._wait_for_end({"once": _RUN_WAIT, "steps": 0.25}.get(mode, 0.0))
        return None

    def pause(self) -> None:
        """Stop after the step in progress. A single run ends by itself."""
        with self._control:
            work = self._work
            if work is None or work.mode == "once" or self.phase != "running":
                return
            work.opened.gate.allow(work, 0)
            work.loop.pause()
            work.opened.gate.wait_idle(_PAUSE_WAIT)
            with self._lock:
                if self._work is work and self.phase == "running":
                    self._enter_phase("paused")
        self._throttle.soon(urgent=True)

    def resume(self) -> None:
        """Continue after a pause. A run with a number of steps becomes continuous."""
        with self._control:
            work = self._live_work()
            if work.mode == "once":
                return
            with self._lock:
                if work.mode == "steps":
                    work.mode, work.steps = "flat", None
                work.opened.gate.allow(work, None)
                self._enter_phase("running")
            work.loop.resume()
        self._throttle.soon(urgent=True)

    @property
    def is_alive(self) -> bool:
        """Return whether a run is running or paused."""
        return self._work is not None and self.phase in ("running", "paused")

    def step(self, steps: int) -> None:
        """Run some more steps, then pause."""
        with self._control:
            work = self._live_work()
            with self._lock:
                if work.mode in ("once", "steps"):
                    work.mode, work.steps = "steps", steps
                work.opened.gate.allow(work, steps)
                self._enter_phase("running")
            work.loop.pause()
            work.loop.step_on(steps)
        self._wait_for_end(0.25)
        self._throttle.soon(urgent=True)

    def stop(self, message: str | None = None) -> None:
        """End the run; results stay available."""
        with self._control:
            work = self._work
            self._cancel()
            if work is not None:
                work.opened.gate.wait_idle(_STOP_WAIT)
            self._stop(message)
        self._throttle.soon(urgent=True)

    def reset(self) -> None:
        """Reset Variables to their initial values, and drop results and charts."""
        with self._control:
            self._cancel()
            with self._lock:
                self.opened, self._work, self.restored, self.is_unsaved = None, None, None, False
                self._begin(0, [])
                self._enter_phase("idle")
                self.trends.clear()
                self.row_changes.clear()
        self._throttle.soon(urgent=True)

    def restore(self, page: Page, revision: str, path: Path, run: int, snapshot: str) -> None:
        """Restore a snapshot; the run in progress ends."""
        with self._control:
            prepared = self._prepare(page, revision)
            engine = "numpy" if self.opened is None else self.opened.engine
            opened = PageSession.new(prepared, engine)  # a new session, which a step still in progress cannot change
            opened.session.restore(path, other_page=True)  # a snapshot of this page, which may have been edited since
            opened.starts.append((opened.session.runs, run, 1))
            self._cancel()
            with self._lock:
                self.opened, self._work = opened, None
                self.restored, self.is_unsaved = snapshot, False
                self._begin(run, [])
                self._enter_phase("stopped")
                self.trends.drop_after(run)
                self.row_changes.drop_after(run)
        self._throttle.soon(urgent=True)

    def edited(self, page: Page, revision: str, recipes: Mapping[str, str] | None = None) -> None:
        """Handle a saved change of the page: a run in progress ends if the page computes something else."""
        opened, self.latest = self.opened, None
        if opened is None or revision == opened.prepared.revision:
            return
        logic = logic_of(page, recipes)
        self.latest = {block: recipe for block, (recipe, _) in logic.items()}
        if logic != opened.prepared.logic and self.is_alive:
            self.stop(EDITED)

    def close(self) -> None:
        """End the run, and send no more events."""
        self._throttle.close()
        with self._control:
            self._closed = True
            self._stop(None)

    def state(self) -> dict[str, Any]:
        """Return the RunState as plain data."""
        with self._lock:
            opened, run = self.opened, self.run
            facts: dict[str, Any] = {"phase": self.phase, "run": run, "done": self.done}
            facts |= {"per_second": self._clock.per_second(run), "seconds": self._clock.seconds}
            facts |= {"error": self._error, "message": self._message, "carried": list(self._carried)}
            # Responses and events may arrive out of order; the serial number says which is newer.
            facts["saved"] = self.saved
            facts["serial"] = time.monotonic_ns() // 1000
            facts |= _NO_WORK if self._work is None else self._work.facts()
        return facts | (_NO_SESSION if opened is None else opened.facts(run))

    def age(self, block: str, pin: str) -> dict[str, Any]:
        """Return the run that last computed a pin's value, and whether the current page would compute another."""
        opened = self.opened
        run = None if opened is None else opened.run_of(block, pin, self.run)
        if opened is None or run is None or (run < self.run and not is_steady(opened.session, block, pin)):
            return {"run": run, "stale": True}
        latest = self.latest
        edited = latest is not None and latest.get(block) != opened.prepared.recipes.get(block)
        return {"run": run, "stale": edited}

    def _live_work(self) -> Work:
        if self._work is None or not self.is_alive:
            message = f"name: page {self.name!r} is {self.phase}: nothing to resume"
            raise InvalidArgumentError(message, argument="name")
        return self._work

    def watch(self, watched: list[Watched] | None) -> list[dict[str, Any]]:
        """Set the series to record, starting with their current values; None records what sessions fetch."""
        with self._lock:
            self.trends.watch(watched)
            if self.opened is not None and self.run:
                self.trends.begin(self.run, self.opened.session)
        return self.trends.series()

    # -- steps and phases ----------------------------------------------------------------------------------------------

    def _prepare(self, page: Page, revision: str) -> Prepared:
        if self._prepared is None or self._prepared.revision != revision:
            self._prepared = prepare(page, revision)
        return self._prepared

    def _open(self, prepared: Prepared, engine: str) -> tuple[PageSession, list[str]]:
        """Return the current session if the page computes the same, else a new one with its Variables.

        The run in progress ends.
        """
        old = self.opened
        if old is not None and old.engine == engine and old.prepared.logic == prepared.logic:
            self._stop(None)
            old.prepared = prepared  # only its layout, and with it the revision, may differ
            return old, []
        opened = PageSession.new(prepared, engine)
        self._stop(None)
        return opened, [] if old is None else opened.adopt_variables(old, SAVE_WAIT)

    def _step(self, work: Work) -> None:
        """Run one step, in the loop's thread."""
        opened = work.opened
        if not opened.gate.enter(work):
            return
        try:
            opened.updates.take()  # of a step that failed
            result = work.step.run()
            changes = self.row_changes.compare(opened.updates.take())
            found = result.fetched | {name: v for values in result.sessions.values() for name, v in values.items()}
            with self._lock:
                if self.opened is opened:
                    self.run += 1
                    self.is_unsaved = True
                    self.done += self._work is work
                    self.trends.set_page(opened.prepared.page.trends)
                    self.trends.record(self.run, opened.session, found)
                    self.row_changes.add(self.run, changes)
        except BaseException as error:
            self._fail(work, error)
        finally:
            opened.gate.leave()
        self._after_step(work)

    def _after_step(self, work: Work) -> None:
        """Update the phase after a step, and send an event."""
        with self._lock:
            over = self._work is work and self.phase == "running" and work.opened.gate.is_spent(work)
            if over:
                self._enter_phase("done" if work.mode == "once" else "paused")
                if work.mode == "once":
                    work.loop.cancel()
        self._throttle.soon(urgent=over)

    def _fail(self, work: Work, error: BaseException) -> None:
        work.loop.cancel()  # the next step would fail too
        with self._lock:
            if self._work is not work:
                return
            self._error = failure_json(error, work.step.block, work.opened.prepared.checked)
            self._enter_phase("failed")
        self._throttle.soon(urgent=True)

    def _begin(self, run: int, carried: list[str]) -> None:
        """Set the number of steps, and clear errors and messages."""
        self.run, self.done, self.latest, self._carried, self.saved = run, 0, None, carried, None
        self._error, self._message, self._clock = None, None, Clock()

    def _stop(self, message: str | None) -> None:
        was_alive = self.is_alive
        self._cancel()
        with self._lock:
            if was_alive:
                self._message = message
                self._enter_phase("stopped")

    def _cancel(self) -> None:
        """Prevent further steps of the current run."""
        work = self._work
        if work is not None:
            work.opened.gate.allow(None, 0)
            work.loop.cancel()

    def _wait_for_end(self, seconds: float) -> None:
        """Wait for the run to end, so that the response of a short run has its results."""
        with self._change:
            self._change.wait_for(lambda: self.phase != "running", seconds)

    def _enter_phase(self, phase: str) -> None:
        """Enter a phase; the clock counts while steps run."""
        self._clock.go(phase == "running", self.run)
        self.phase = phase
        self._change.notify_all()

    def _send(self) -> None:
        self._send_event({"event": "run", "name": self.name, "state": self.state()}, ("run", self.name))
