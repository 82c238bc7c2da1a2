"""What a run of a page without a ClientSession computes: every block that nothing consumes, and so all others too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._runtime.arrays import Array
from ..errors import make_error
from .nodes import Feed, Graph, Operation, Output, Sparse
from .page import End
from .page_builder import Checked
from .page_order import ends_of
from .schedule import needed_nodes
from .variables import variable_of

SPARSE_PARTS = ("indices", "values", "dense_shape")


@dataclass(slots=True)
class Leaves:
    """The values, operations and feeds of a run without a ClientSession.

    Args:
        values: The outputs that nothing consumes, by the name of their pin.
        operations: The operations that nothing consumes.
        feeds: The values of feed blocks that nothing consumes, by placeholder.
        ends: The output pins of `values` and `operations`, in the page's order: what a ClientSession would fetch.
        feed_ends: The output pins of `feeds`.
        left_out: The blocks that cannot run, because they or blocks upstream are faulty.
    """

    values: dict[str, Output] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    feeds: dict[Output, Array] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    feed_ends: list[End] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to run."""
        return not (self.values or self.operations)

    def changed_variables(self, graph: Graph) -> list[str]:
        """Return the names of the Variables that a run changes."""
        wanted = {o.node for o in self.values.values()} | {o.node for o in self.operations if o.node is not None}
        changed = [variable_of(n.inputs[0]) for n in needed_nodes(graph, wanted) if n.op.name == "Assign"]
        return list(dict.fromkeys(v.name for v in changed if v is not None))


def leaves_of(checked: Checked) -> Leaves:
    """Return what a run of a validated page without a ClientSession computes.

    Faulty blocks consume nothing, so a valid block in front of one is computed.
    """
    blocks = checked.scope.graph.blocks
    consumed = {(e.block, e.pin, e.index) for b in checked.page.blocks if b.id in blocks for e in ends_of(b)}
    found = Leaves(left_out=[b.id for b in checked.page.blocks if b.id not in blocks])
    for block in checked.page.blocks:
        pins = blocks[block.id].pins if block.id in blocks else {}
        is_split = len(pins) > 1  # the components of a sparse tensor are pins too
        for pin, value in pins.items():
            if (block.id, pin, None) in consumed or (is_split and isinstance(value, Sparse)):
                continue
            if isinstance(value, list):
                for k, item in enumerate(value):
                    if (block.id, pin, k) not in consumed:
                        _add(found, End(block.id, pin, k), item)
            else:
                _add(found, End(block.id, pin), value)
    return found


def _add(found: Leaves, end: End, value: Any) -> None:
    if isinstance(value, Feed):
        if value.placeholder in found.feeds:
            raise make_error("fed_twice", argument=str(end), value=value.placeholder.node.name)
        found.feeds[value.placeholder] = value.value
        found.feed_ends.append(end)
        return
    if isinstance(value, Operation):
        found.operations.append(value)
    elif isinstance(value, Sparse):
        for part in SPARSE_PARTS:
            found.values[f"{end}.{part}"] = getattr(value, part)
    elif isinstance(value, Output):
        found.values[str(end)] = value
    else:
        return
    found.ends.append(end)
