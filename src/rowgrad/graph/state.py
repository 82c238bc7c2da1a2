"""What a session keeps from run to run: the values of Variables and how far each random node's counter is."""

from __future__ import annotations

from collections.abc import Callable, Container
from os import PathLike
from typing import Any

from ..arrays import Array, aval_of
from ..errors import refuse, shape_text
from .engine import Engine
from .io.state_file import load_state, save_state
from .nodes import Graph, Node
from .page import PageError


class State:
    """Variables by node name, in the engine's arrays; counters of random nodes."""

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self.graph = graph
        self.engine = engine
        self.values: dict[str, Any] = {}
        self.counters: dict[str, int] = {}

    def value(self, variable: Node, begin: Callable[[Node], Any]) -> Any:
        """A Variable's value; `begin` works out the first."""
        found = self.values.get(variable.name)
        if found is None:
            found = self.values[variable.name] = begin(variable)
        return found

    def reset(self) -> None:
        """Variables begin anew, and random numbers too."""
        self.values.clear()
        self.counters.clear()

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything into one file, whole or not at all."""
        arrays = {name: self.engine.get(value) for name, value in self.values.items()}
        save_state(path, arrays, dict(self.counters), self.graph.name)

    def restore(self, path: str | PathLike[str]) -> None:
        """Take everything from a file, if all of it fits the graph; Variables it does not have begin anew."""
        saved = load_state(path)
        known = {n.name: n for n in self.graph.nodes if n.op.name in ("Variable", "RandomUniform", "RandomNormal")}
        for name, array in saved.variables.items():
            self._check(path, known, name, array)
        for name in saved.counters:
            if name not in known or known[name].op.name == "Variable":
                raise PageError(f"{path}", f"it has a counter for {name}, which is no random block of this page")
        self.values = {name: self.engine.put(array) for name, array in saved.variables.items()}
        self.counters = dict(saved.counters)

    def _check(self, path: Any, known: dict[str, Node], name: str, array: Array) -> None:
        if name not in known or known[name].op.name != "Variable":
            raise PageError(f"{path}", f"it has a value for {name}, which is no Variable of this page")
        output, given = known[name].outputs[0], aval_of(array)
        if given.dtype != output.dtype or given.shape != output.shape:
            raise PageError(f"{path}", f"{name} is {given} there and {output!r} on this page")

    def copy(self) -> State:
        """What is kept now, apart from what runs will make of it."""
        found = State(self.graph, self.engine)
        found.values, found.counters = dict(self.values), dict(self.counters)
        return found

    def adopt(self, other: State, unless: Container[str]) -> list[str]:
        """Take over what still fits of another graph's state; the names of the Variables taken."""
        before = {n.name: n for n in other.graph.nodes}
        taken = []
        for node in self.graph.nodes:
            was, name = before.get(node.name), node.name
            if was is None or was.op is not node.op or node.block in unless:
                continue
            if name in other.counters:
                self.counters[name] = other.counters[name]
            if name in other.values and _same_form(was, node):
                self.values[name] = self.engine.keep(self.engine.put(other.engine.get(other.values[name])))
                taken.append(name)
        return taken

    def check_new(self, variable: Node, value: Any) -> None:
        """A value that a Variable is to take has its shape; the graph could not always tell."""
        shape = tuple(value.shape)
        if shape != variable.outputs[0].shape:
            raise refuse(
                "same_shape",
                argument="value",
                value=shape_text(shape),
                bound=f"{shape_text(variable.outputs[0].shape or ())}, that of {variable.name}",
            )


def _same_form(one: Node, other: Node) -> bool:
    """Whether values of one Variable are values of the other."""
    (a,), (b,) = one.outputs, other.outputs
    return a.dtype == b.dtype and a.shape == b.shape
