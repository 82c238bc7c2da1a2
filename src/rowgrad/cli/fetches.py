"""Names on the command line into what a session runs: values under the names they are printed with, and operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import refuse
from ..graph.nodes import Operation, Output, Placed, Sparse
from ..graph.page import PageError
from ..graph.session import ClientSession


@dataclass(slots=True)
class Fetches:
    """What is fetched in every step."""

    values: dict[str, Output] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def add(self, session: ClientSession, name: str) -> None:
        """Fetch what a name means: every value of a block, a pin, or an entry of it."""
        found = session.find(name)
        if isinstance(found, Placed):
            if name in session.graph.sessions:
                raise PageError(name, f"this is a ClientSession block; run it with --session {name}")
            for pin, value in found.pins.items():
                # The parts of a sparse tensor have pins of their own.
                if not isinstance(value, Sparse) or len(found.pins) == 1:
                    self._take(f"{name}.{pin}", value)
        else:
            self._take(name, found)

    def _take(self, name: str, value: Any) -> None:
        if isinstance(value, Output):
            self.values[name] = value
        elif isinstance(value, Operation):
            self.operations.append(value)
        elif isinstance(value, Sparse):
            for part in ("indices", "values", "dense_shape"):
                self._take(f"{name}.{part}", getattr(value, part))
        elif isinstance(value, list):
            for k, item in enumerate(value):
                self._take(f"{name}[{k}]", item)
        else:
            raise refuse("pin_kind", argument=name, bound="a value or an operation", value=type(value).__name__.lower())
