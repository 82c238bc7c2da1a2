"""A page made ready to run: judged once a revision, and the sessions that are wanted found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import InvalidArgumentError, OpError
from ..graph.build import Checked, check
from ..graph.page import Block, End, Page
from ..graph.summary import pin_of, recipes
from ..spec import find_op

# What each block computes, and the blocks its wires begin at: two of these may compute the same and yet be two.
Logic = dict[str, tuple[str, dict[str, list[End]]]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A page of one revision with its graph, what each block computes, and the blocks that run it."""

    page: Page
    revision: str
    checked: Checked
    recipes: dict[str, str]
    logic: Logic
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
                raise _named(error, blocks[block])


def logic_of(page: Page, known: Mapping[str, str] | None = None) -> Logic:
    """What a page computes; its looks have no part in it. `known` are its recipes, where they were worked out."""
    found = recipes(page) if known is None else known
    return {b.id: (found[b.id], {pin: list(ends) for pin, ends in b.wires.items()}) for b in page.blocks}


def prepare(page: Page, revision: str) -> Prepared:
    """Judge a page."""
    found = recipes(page)
    sessions = [b.id for b in page.blocks if (op := find_op(b.op)) is not None and op.runs]
    return Prepared(page, revision, check(page), found, logic_of(page, found), sessions)


def _named(error: OpError, block: Block) -> OpError:
    """The error, with the block and pin it belongs to where it does not say them itself."""
    error.name = error.name or block.id
    error.argument = error.argument or pin_of(block, error)
    return error
