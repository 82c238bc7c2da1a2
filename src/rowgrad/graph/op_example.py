"""The worked example of an op's record as blocks for a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import plan
from .._catalog.spec import CATALOG, find_op
from .._runtime.dispatch import planned
from . import ops
from .new_blocks import UnusedNames, arrange
from .nodes import Placed, Scope
from .page import Block, Page, PageError
from .page_builder import page_of


class _Calls:
    """Functions under the names of ops that add a block where the op itself would compute a result."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getattr__(self, name: str) -> Callable[..., Placed]:
        op = CATALOG[name]

        def call(*args: Any, **kwargs: Any) -> Placed:
            found = planned(op, args, kwargs) if "plan" in kwargs else op
            return ops.function_of(found.name)(self._scope.with_op_name(found.snake_name), *args, **kwargs)

        return call


class _Session:
    """A session that runs nothing: only the blocks of an example are wanted, and blocks for what it feeds."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def run(self, fetches: Any, feeds: Mapping[Placed, Any] | None = None, run_outputs: Any = ()) -> None:
        """Add a FeedType block for every fed value."""
        for placeholder, value in (feeds or {}).items():
            ops.function_of("FeedType")(self._scope, placeholder, value)

    def run_block(self, name: str) -> None:
        """Do nothing: the block is on the page."""


def example_on_page(page: Page, name: str, at: tuple[float, float]) -> list[Block]:
    """Return the blocks of an op's example with ids that are unused on the page, laid out from `at` to the right."""
    blocks = example_blocks(name)
    names = UnusedNames(page)
    ids = {block.id: names.take(block.id.replace(":", "_").lower()) for block in blocks}
    moved = [
        replace(
            block,
            id=ids[block.id],
            wires={pin: [replace(e, block=ids[e.block]) for e in ends] for pin, ends in block.wires.items()},
        )
        for block in blocks
    ]
    arrange(Page(page.name), moved)
    first = moved[0].at or (0.0, 0.0)
    left, top = (min((b.at or first)[k] for b in moved) for k in (0, 1))
    return [replace(b, at=((b.at or first)[0] - left + at[0], (b.at or first)[1] - top + at[1])) for b in moved]


def example_blocks(name: str) -> list[Block]:
    """Return blocks that compute the example of an op, without positions.

    Values of kernel and dense ops are typed on the pins of one block. Examples of session blocks have all their blocks.

    >>> [(b.id, list(b.values)) for b in example_blocks("Neg")]
    [('neg', ['x'])]
    """
    op = find_op(name)
    if op is None:
        raise PageError(name, "there is no such op")
    scope = Scope.new_root_scope("example")
    calls = _Calls(scope)
    known = {
        "np": np,
        "rg": SimpleNamespace(raw_ops=calls, dense_ops=calls, Plan=plan.Plan),
        "ops": ops,
        "Const": ops.function_of("Const"),
        "Scope": SimpleNamespace(new_root_scope=lambda: scope),
        "ClientSession": _Session,
    }
    # Examples are text of the catalogue, which the tests run, and import what is defined here instead.
    lines = [line for line in op.example.splitlines() if not line.startswith(("import ", "from "))]
    exec("\n".join(lines), known)
    return page_of(scope).blocks
