"""What holds of a page: a fault ends a run only where the run needs the block; others are told and left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import OpError
from ..graph.build import Checked, check
from ..graph.nodes import Scope
from ..graph.ordering import ends_of
from ..graph.page import Page
from ..spec import find_op
from .failures import sentence


def scope_of(page: Page, names: Iterable[str], tell: Callable[[str], None]) -> Scope:
    """The page's scope, or the fault in what is to run: the blocks or pins `names`, without any every session."""
    checked = check(page)
    asked = list(names)
    wanted = [b.id for b in page.blocks if any(n == b.id or n.startswith(f"{b.id}.") for n in asked)]
    if not asked:
        wanted = [b.id for b in page.blocks if b.wires and (op := find_op(b.op)) and op.name == "ClientSession"]
        if not wanted and checked.errors:
            wanted = list(checked.errors)
    for name in wanted:
        error = _fault(checked, name)
        if error is not None:
            raise error
    for name in checked.errors:
        tell(f"left out, as nothing that runs needs it: {sentence(_named(checked, name))}")
    return checked.scope


def _fault(checked: Checked, name: str) -> OpError | None:
    """What is wrong with a block, or with the first it needs that something is wrong with."""
    blocks = {b.id: b for b in checked.page.blocks}
    seen, waiting = set(), [name]
    while waiting:
        found = waiting.pop(0)
        if found in checked.errors:
            return _named(checked, found)
        if found in blocks and found not in seen:
            seen.add(found)
            waiting += [e.block for e in ends_of(blocks[found])]
    return None


def _named(checked: Checked, name: str) -> OpError:
    error = checked.errors[name]
    error.name = error.name or name
    return error
