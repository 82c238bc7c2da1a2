"""What a session has seen: of every program the last run that was finished, with the values of all its pins."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays import Array
from .engine import Engine
from .nodes import Graph, Node, Output
from .schedule import Cost, Program, costs_of


class Done(NamedTuple):
    """A finished run: its number, the value in every place, and the seconds of its nodes where they are watched."""

    number: int
    values: list[Any]
    seconds: dict[Node, float]
    bytes: int


class Finished:
    """The last run of each program, the latest at the end."""

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self.graph = graph
        self.engine = engine
        self._last: dict[Program, Done] = {}  # never changed but put in its place, as other threads may be looking

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, program: Program) -> bool:
        return program in self._last

    @property
    def bytes(self) -> int:
        """The size of all values that are held."""
        return sum(done.bytes for done in self._last.values())

    def make_room(self, size: int) -> int:
        """Forget runs, the oldest first, until so many bytes are free; how many are."""
        free = 0
        for program, done in self._last.items():
            if free >= size:
                break
            free += done.bytes
            self.forget(program)
        return free

    def add(self, program: Program, done: Done) -> None:
        """A run has been finished."""
        self._last = {**{p: v for p, v in self._last.items() if p is not program}, program: done}

    def forget(self, program: Program) -> None:
        """Nobody will ask for what this program computed."""
        self._last = {p: done for p, done in self._last.items() if p is not program}

    def clear(self) -> None:
        """Forget every run."""
        self._last = {}

    def value(self, output: Output) -> Array | None:
        """The last value of an output, or None where no run has computed it."""
        seen = self._seen(output)
        return None if seen is None else self._look(seen[1].values[seen[0].slots[output]])

    def number(self, output: Output) -> int | None:
        """The number of the last run that computed an output."""
        seen = self._seen(output)
        return None if seen is None else seen[1].number

    def call(self, node: Node, result: Node) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What a node was given and what it gave in the last run that computed the result, by the record's names."""
        seen = self._seen(result.outputs[0]) if result.outputs else None
        if seen is None:
            return None
        inputs = {n: self._held(v, *seen) for n, v in zip(node.op.input_names, node.inputs, strict=True)}
        return inputs, {o.name: self._held(v, *seen) for o, v in zip(node.op.outputs, node.outputs, strict=True)}

    def costs(self) -> dict[str, Cost]:
        """What every block took in the last run that computed it."""
        found: dict[str, Cost] = {}
        for program, done in self._last.items():
            found |= costs_of(self.graph, program, done.values, program.settled | done.seconds)
        return found

    def _seen(self, output: Output) -> tuple[Program, Done] | None:
        last = self._last
        return next(((p, last[p]) for p in reversed(last) if output in p.slots), None)

    def _held(self, value: Any, program: Program, done: Done) -> Any:
        if isinstance(value, tuple):
            return [self._held(v, program, done) for v in value]
        return self._look(done.values[program.slots[value]]) if isinstance(value, Output) else value

    def _look(self, value: Any) -> Array:
        view = self.engine.get(value).view()
        view.flags.writeable = False
        return view
