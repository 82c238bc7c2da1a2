"""The state of a session: Variables and random counters, their files, and the values of the last finished runs."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Container
from os import PathLike
from typing import Any, NamedTuple

from .._runtime.arrays import Array, aval_of
from ..errors import make_error, shape_text
from .engine import Engine
from .inputs import each
from .io.state_file import Identity, load_state, save_state
from .io.state_file import State as SavedState
from .nodes import Graph, Node, Output
from .page import PageError
from .schedule import Cost, Program, costs_of
from .variables import COUNTERS_END, variable_of

# -- results of finished runs ------------------------------------------------------------------------------------------


class FinishedRun(NamedTuple):
    """A finished run: its number, the value of every slot, the seconds of its nodes if watched, and its bytes."""

    number: int
    values: list[Any]
    seconds: dict[Node, float]
    bytes: int


class FinishedRuns:
    """The last run of each program, in the order they finished."""

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self.graph = graph
        self.engine = engine
        self._last: dict[Program, FinishedRun] = {}  # replaced, never changed in place: other threads may read it

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, program: Program) -> bool:
        return program in self._last

    @property
    def bytes(self) -> int:
        """Return the bytes of all stored values."""
        return sum(done.bytes for done in self._last.values())

    def free_bytes(self, size: int) -> int:
        """Drop runs, the oldest first, until `size` bytes are free; return how many bytes were freed."""
        free = 0
        for program, done in self._last.items():
            if free >= size:
                break
            free += done.bytes
            self.forget(program)
        return free

    def add(self, program: Program, done: FinishedRun) -> None:
        """Store a finished run in place of the program's previous one."""
        self._last = {**{p: v for p, v in self._last.items() if p is not program}, program: done}

    def forget(self, program: Program) -> None:
        """Drop the run of a program."""
        self._last = {p: done for p, done in self._last.items() if p is not program}

    def clear(self) -> None:
        """Drop all runs."""
        self._last = {}

    def value(self, output: Output) -> Array | None:
        """Return the last value of an output, or None if no run has computed it."""
        found = self._find(output)
        return None if found is None else self._view(found[1].values[found[0].slots[output]])

    def number(self, output: Output) -> int | None:
        """Return the number of the last run that computed an output, or None."""
        found = self._find(output)
        return None if found is None else found[1].number

    def call(self, node: Node, result: Node) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return inputs and outputs of a node by name, in the last run that computed the result, or None."""
        found = self._find(result.outputs[0]) if result.outputs else None
        if found is None:
            return None
        inputs = {n: self._value_of(v, *found) for n, v in zip(node.op.input_names, node.inputs, strict=True)}
        return inputs, {o.name: self._value_of(v, *found) for o, v in zip(node.op.outputs, node.outputs, strict=True)}

    def costs(self) -> dict[str, Cost]:
        """Return the cost of every block in the last run that computed it."""
        found: dict[str, Cost] = {}
        for program, done in self._last.items():
            found |= costs_of(self.graph, program, done.values, program.steady_seconds | done.seconds)
        return found

    def _find(self, output: Output) -> tuple[Program, FinishedRun] | None:
        last = self._last
        return next(((p, last[p]) for p in reversed(last) if output in p.slots), None)

    def _value_of(self, value: Any, program: Program, done: FinishedRun) -> Any:
        if isinstance(value, tuple):
            return [self._value_of(v, program, done) for v in value]
        return self._view(done.values[program.slots[value]]) if isinstance(value, Output) else value

    def _view(self, value: Any) -> Array:
        view = self.engine.get(value).view()
        view.flags.writeable = False
        return view


# -- Variables and random counters -------------------------------------------------------------------------------------


class State:
    """Variables by node name, as arrays of the engine, and the counters of random nodes."""

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self.graph = graph
        self.engine = engine
        self.values: dict[str, Any] = {}
        self.counters: dict[str, int] = {}

    def value(self, variable: Node, begin: Callable[[Node], Any]) -> Any:
        """Return a Variable's value; `begin` computes the initial one."""
        found = self.values.get(variable.name)
        if found is None:
            found = self.values[variable.name] = begin(variable)
        return found

    def reset(self) -> None:
        """Drop all values and counters: Variables and random numbers start again."""
        self.values.clear()
        self.counters.clear()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state into one file, atomically."""
        arrays = {name: self.engine.get(value) for name, value in self.values.items()}
        save_state(path, arrays, dict(self.counters), self.graph.name, identity_of(self.graph))

    def restore(self, path: str | PathLike[str], other_page: bool = False) -> None:
        """Read the state from a file, after validating all of it. Variables missing in the file get initial values.

        The state of another page is an error unless `other_page`.
        """
        saved = load_state(path)
        known = {n.name: n for n in self.graph.nodes if n.op.name in ("Variable", "RandomUniform", "RandomNormal")}
        for name, array in saved.variables.items():
            self._check(path, known, name, array)
        for name, count in saved.counters.items():
            if name not in known or known[name].op.name == "Variable":
                raise PageError(f"{path}", f"it has a counter for {name}, which is not a random block of this page")
            if not 0 <= count < COUNTERS_END:
                raise PageError(f"{path}", f"the counter of {name} must be from 0 to 2**128 - 1; got {count}")
        if not other_page:
            self._check_page(path, saved)
        self.values = {name: self.engine.put(array) for name, array in saved.variables.items()}
        self.counters = dict(saved.counters)

    def _check(self, path: Any, known: dict[str, Node], name: str, array: Array) -> None:
        if name not in known or known[name].op.name != "Variable":
            raise PageError(f"{path}", f"it has a value for {name}, which is not a Variable of this page")
        output, saved = known[name].outputs[0], aval_of(array)
        if saved.dtype != output.dtype or saved.shape != output.shape:
            raise PageError(f"{path}", f"{name} is {saved} in the file and {output!r} on this page")

    def _check_page(self, path: Any, saved: SavedState) -> None:
        """Raise for the state of a page that uses its Variables differently.

        A page that was renamed, or in which only values changed, is the same page.
        """
        if saved.identity is None:
            text = f"{path} does not say which page it belongs to; its Variables fit page {self.graph.name!r}"
            warnings.warn(text, stacklevel=4)
            return
        mine = identity_of(self.graph)
        uses = saved.identity.variables
        differ = [name for name in saved.variables if uses.get(name) != mine.variables.get(name)]
        if differ:
            others = "" if len(differ) == 1 else f" and {len(differ) - 1} others"
            why = f"this page computes something else with {differ[0]}{others}"
        elif saved.page != self.graph.name and saved.identity.values != mine.values:
            why = f"page {self.graph.name!r} has other values in its blocks"
        else:
            return
        hint = "pass other_page=True (--other-page) to use it anyway"
        raise PageError(f"{path}", f"it is a state of page {saved.page!r}, and {why}; {hint}")

    def copy(self) -> State:
        """Return a copy that later runs do not change."""
        found = State(self.graph, self.engine)
        found.values, found.counters = dict(self.values), dict(self.counters)
        return found

    def adopt(self, other: State, unless: Container[str]) -> list[str]:
        """Copy the values of another graph's state that still fit; return the names of these Variables."""
        before = {n.name: n for n in other.graph.nodes}
        adopted = []
        for node in self.graph.nodes:
            was, name = before.get(node.name), node.name
            if was is None or was.op is not node.op or node.block in unless:
                continue
            if name in other.counters:
                self.counters[name] = other.counters[name]
            if name in other.values and _same_shape(was, node):
                self.values[name] = self.engine.keep(self.engine.put(other.engine.get(other.values[name])))
                adopted.append(name)
        return adopted

    def check_new(self, variable: Node, value: Any) -> None:
        """Raise if a new value does not have the Variable's shape, which the graph may not know before a run."""
        shape = tuple(value.shape)
        if shape != variable.outputs[0].shape:
            raise make_error(
                "same_shape",
                argument="value",
                value=shape_text(shape),
                bound=f"{shape_text(variable.outputs[0].shape or ())}, that of {variable.name}",
            )


def identity_of(graph: Graph) -> Identity:
    """Return digests of what a graph computes with its Variables.

    A Variable's digest covers everything its next values are computed from: ops, attributes and wires, but no values
    and no names of blocks. In a graph without updates, it covers the nodes that read the Variable. `values` is the
    digest that includes values.
    """
    shapes: dict[Node, bytes] = {}
    whole: dict[Node, bytes] = {}
    updates: dict[str, list[Node]] = {}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:  # each comes after its inputs
        if node.op.name == "Variable":
            (output,) = node.outputs
            shapes[node] = whole[node] = _digest(node.name, output.dtype, output.shape)
            continue
        attrs = sorted((name, repr(value)) for name, value in node.attrs.items())
        shapes[node] = _digest(node.op.name, attrs, [each(v, lambda v: _part(v, shapes, False)) for v in node.inputs])
        whole[node] = _digest(node.op.name, attrs, [each(v, lambda v: _part(v, whole, True)) for v in node.inputs])
        if node.op.name == "Assign" and (variable := variable_of(node.inputs[0])) is not None:
            updates.setdefault(variable.name, []).append(node)
        for output in node.sources():
            if output.node.op.name == "Variable":
                readers.setdefault(output.node.name, []).append(node)
    uses = updates or readers
    names = [node.name for node in graph.nodes if node.op.name == "Variable"]
    variables = {name: _digest(*sorted(shapes[n] for n in uses.get(name, ()))).hex() for name in names}
    values = _digest(*((name, *sorted(whole[n] for n in uses.get(name, ()))) for name in sorted(names)))
    return Identity(variables, values.hex())


def _part(value: Any, digests: dict[Node, bytes], with_values: bool) -> Any:
    if isinstance(value, Output):
        return digests[value.node], value.index
    if with_values:
        plain = value.tolist() if value.dtype == object else value.tobytes()
        return str(value.dtype), value.shape, _digest(plain)
    return str(value.dtype), value.ndim


def _digest(*parts: Any) -> bytes:
    """Hash bytes as they are, and any other value by its repr."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else repr(part).encode(errors="replace"))
        hasher.update(b"\0")
    return hasher.digest()


def _same_shape(one: Node, other: Node) -> bool:
    """Return whether two Variables have the same dtype and shape."""
    (a,), (b,) = one.outputs, other.outputs
    return a.dtype == b.dtype and a.shape == b.shape
