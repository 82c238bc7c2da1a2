"""What a session keeps from run to run: the values of Variables and how far each random node's counter is."""

from __future__ import annotations

from collections.abc import Callable
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
