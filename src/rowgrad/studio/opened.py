"""A page's session as it was opened, and one start of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..arrays import Array
from ..graph.engine import open_engine
from ..graph.loop import Loop
from ..graph.session import ClientSession
from .pacing import Gate
from .prepared import Prepared
from .run_state import costs_json, results_json


@dataclass(slots=True)
class Opened:
    """A session that was opened for a page, and how its runs are counted as steps."""

    prepared: Prepared
    session: ClientSession
    engine: str
    gate: Gate = field(default_factory=Gate)
    # (runs of the session, steps of the page) where a start began, and how many runs make a step from there
    starts: list[tuple[int, int, int]] = field(default_factory=list)
    _shown: tuple[tuple[int, int], dict[str, Any]] | None = None

    @classmethod
    def new(cls, prepared: Prepared, engine: str) -> Opened:
        """A session with Variables at their beginning."""
        session = ClientSession(prepared.checked.scope, open_engine(engine), watch_costs=True)
        return cls(prepared, session, engine)

    def carry_on(self, old: Opened, timeout: float) -> list[str]:
        """Take over Variables whose blocks are what they were; their names. A step in progress is waited for."""
        before = old.prepared.recipes
        changed = {block for block, recipe in self.prepared.recipes.items() if before.get(block) != recipe}
        with old.gate.between(timeout):
            return self.session.adopt(old.session, unless=changed)

    def step_of(self, run: int, most: int) -> int:
        """The step in which the session did its run of this number, of so many that were done."""
        at = bisect_left(self.starts, run, key=lambda start: start[0]) - 1
        if at < 0:
            return 0
        runs, steps, each = self.starts[at]
        return min(steps + -(-(run - runs) // each), most)

    def run_of(self, block: str, pin: str, most: int) -> int | None:
        """The step that computed a pin's value last."""
        number = self.session.run_of(block, pin)
        return None if number is None else self.step_of(number, most)

    def facts(self, run: int) -> dict[str, Any]:
        """What RunState says of it after so many steps; results and costs are made once a run."""
        key, shown = (self.session.runs, run), self._shown
        if shown is None or shown[0] != key:
            results = results_json(self.session, lambda number: self.step_of(number, run))
            shown = self._shown = key, {"costs": costs_json(self.session), "results": results}
        told = {"engine": self.engine, "revision": self.prepared.revision, "recipes": self.prepared.recipes}
        return told | shown[1]


class Work:
    """One start: what a step runs, and how often."""

    def __init__(
        self,
        opened: Opened,
        blocks: list[str],
        mode: str,
        steps: int | None,
        rate: float | None,
        step: Callable[[Work], None],
    ) -> None:
        self.opened = opened
        self.blocks = blocks
        self.mode = mode
        self.steps = steps
        self.rate = rate
        self.at = blocks[0]  # the session that is run, or was run last
        self.loop = Loop(lambda feeds: step(self), rate=rate)

    def facts(self) -> dict[str, Any]:
        """What RunState says of it."""
        return {"mode": self.mode, "steps": self.steps, "rate": self.rate}

    def step(self) -> dict[str, Array]:
        """Every session once; a step that fails changes nothing."""
        session = self.opened.session
        state = session.state
        before = dict(state.values), dict(state.counters)
        found: dict[str, Array] = {}
        try:
            for block in self.blocks:
                self.at = block
                found |= session.run_block(block)
        except BaseException:
            state.values, state.counters = before
            raise
        return found
