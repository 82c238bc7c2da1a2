"""A page made ready to run: judged once a revision, and the sessions that are wanted found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import InvalidArgumentError, OpError
from ..graph.build import Checked, check
from ..graph.page import Page
from ..graph.summary import summarize


@dataclass(frozen=True, slots=True)
class Prepared:
    """A page of one revision with its graph, what each block computes, and the blocks that run it."""

    page: Page
    revision: str
    checked: Checked
    recipes: dict[str, str]
    sessions: list[str]

    def wanted(self, named: Sequence[str] = ()) -> list[str]:
        """The sessions to run, in the page's order: those named, or all. What is wrong before one of them is raised."""
        for name in named:
            if name not in self.sessions:
                near = get_close_matches(name, self.sessions, 1)
                meant = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self.sessions) or 'none'}"
                message = f"sessions: {name!r} is no block of this page that runs it; {meant}"
                raise InvalidArgumentError(message, argument="sessions")
        found = [s for s in self.sessions if s in named or not named]
        if not found:
            message = "there is no block on this page that runs it"
            raise InvalidArgumentError(message, argument="sessions")
        for session in found:
            self._refuse_faults(session)
        return found

    def _refuse_faults(self, session: str) -> None:
        """The first error among all that a session needs."""
        errors = self.checked.errors
        if session not in errors and session not in self.checked.waiting:
            return
        blocks = {b.id: b for b in self.page.blocks}
        needed, todo = {session}, [session]
        while todo:
            for ends in blocks[todo.pop()].wires.values():
                new = {end.block for end in ends if end.block in blocks} - needed
                needed |= new
                todo += new
        for block, error in errors.items():
            if block in needed:
                raise named_error(error, block)


def prepare(page: Page, revision: str) -> Prepared:
    """Judge a page."""
    checked = check(page)
    told = summarize(checked)
    return Prepared(page, revision, checked, told["recipes"], list(told["sessions"]))


def named_error(error: BaseException, block: str | None) -> BaseException:
    """The error, with the block and pin it belongs to where it does not say them itself."""
    if isinstance(error, OpError) and block is not None:
        place = getattr(error, "place", "")
        error.name = error.name or block
        if error.argument is None and place.startswith(f"{block}."):
            error.argument = place.removeprefix(f"{block}.")
    return error
