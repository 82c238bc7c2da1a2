"""A page's session as it was opened, and one start of it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ..graph.engine import open_engine
from ..graph.loop import Loop
from ..graph.session import ClientSession
from .pacing import Gate
from .prepared import Prepared


@dataclass(slots=True)
class Opened:
    """A session that was opened for a page, and how its runs are counted as steps."""

    prepared: Prepared
    session: ClientSession
    engine: str
    gate: Gate = field(default_factory=Gate)
    # (runs of the session, steps of the page) where a start began, and how many runs make a step from there
    starts: list[tuple[int, int, int]] = field(default_factory=list)

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
