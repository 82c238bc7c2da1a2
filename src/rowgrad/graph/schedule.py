"""The program of a run: the nodes its fetches need, in order, with a slot for every value between them.

Steps are executed, timed and measured here; the session decides when and with which values.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from .._core import memory_limit
from .._runtime.arrays import NUMPY_DTYPE
from .._runtime.dispatch import describe
from .._runtime.validation import infer
from ..errors import OpError, ResourceExhaustedError, make_error, shape_text
from .engine import Engine
from .inputs import admitted_aval, each, host_value
from .nodes import Check, Graph, Node, Output, is_open
from .variables import variable_of

Draw = Callable[[Node, list[Any]], tuple[Any, ...]]  # (node, [shape]) -> its random numbers
Slots = tuple[Any, ...]  # positions of values; a tuple of positions for a list input


class Step(NamedTuple):
    """One node of a program: a function, the slots of its arguments and of its results."""

    run: Callable[[list[Any]], tuple[Any, ...]]
    arguments: Slots
    results: tuple[int, ...]
    node: Node
    has_lists: bool


class Cost(NamedTuple):
    """The cost of a block in a run: the time of all its nodes, and the bytes of its outputs."""

    seconds: float
    bytes: int


class Update(NamedTuple):
    """A Variable, the slot of its next value, and the node that assigns it."""

    variable: Node
    slot: int
    by: Node


class Program:
    """A run that can be repeated. `start` holds the values that never change, after the steps in `once` have run."""

    def __init__(
        self, graph: Graph, engine: Engine, draw: Draw, fetches: Iterable[Output], runs: Iterable[Node]
    ) -> None:
        self.engine = engine
        self.draw = draw
        self.fetches = tuple(fetches)
        self.start: list[Any] = []
        self.once: list[Step] = []
        self.each: list[Step] = []
        self.placeholders: list[tuple[Node, int]] = []
        self.variables: list[tuple[Node, int]] = []
        self.updates: list[Update] = []
        self.checks: list[tuple[Node, Check, dict[str, int]]] = []  # with the slots of their inputs
        self.slots: dict[Output, int] = {}
        self.steady_seconds: dict[Node, float] = {}  # seconds of the steady nodes, if costs are watched
        self.nodes = needed_nodes(graph, {o.node for o in self.fetches} | set(runs))
        # Nodes with an output whose size only a run knows: the arguments of the last run and the size it had.
        self.open: dict[Node, tuple[Any, int]] = {}
        self.bytes = 0  # bytes of all values whose size is known
        self.others: tuple[Any, int] = (None, 0)  # bytes of Variables it does not read, and the state they belong to
        # Shapes of feeds, and the bytes of all values that depend on them; None before the first run.
        self.measured: tuple[tuple[Any, ...], int] | None = None
        self.is_data_dependent = False  # whether sizes depend on more than the shapes of feeds
        for node in self.nodes:
            self._add(node)
            self.bytes += known_bytes(node)
            if any(is_open(output) for output in node.outputs):
                self.open[node] = (None, 0)
                for arg, value in zip(node.op.inputs, node.inputs, strict=True):
                    sources = value if isinstance(value, tuple) else (value,)
                    if arg.host and not all(s.node.steady for s in sources if isinstance(s, Output)):
                        self.is_data_dependent = True
        _check_single_updates(self.updates)

    def _add(self, node: Node) -> None:
        name = node.op.name
        for output in node.outputs:
            self._slot(output)
        places = tuple(self.slots[o] for o in node.outputs)
        if name == "Const":
            self.start[places[0]] = self.engine.put(node.inputs[0])
        elif name == "Placeholder":
            self.placeholders.append((node, places[0]))
        elif name == "Variable":
            self.variables.append((node, places[0]))
        elif name in ("RandomUniform", "RandomNormal"):
            draw = partial(self.draw, node)
            self.each.append(Step(draw, (self._argument(node.inputs[0]),), places, node, False))
        elif name == "Assign":
            variable = variable_of(node.inputs[0])
            assert variable is not None  # every Assign node has a Variable
            slot = self._argument(node.inputs[1])
            self.slots[node.outputs[0]] = slot  # its output is its input
            self.updates.append(Update(variable, slot, node))
        elif name != "NoOp":
            has_data = any(not arg.host for arg in node.op.inputs)
            arguments = tuple(
                self._argument(v, as_size=arg.host and has_data)
                for arg, v in zip(node.op.inputs, node.inputs, strict=True)
            )
            step = Step(
                self.engine.bind(node.op, node.attrs),
                arguments,
                places,
                node,
                any(isinstance(a, tuple) for a in arguments),
            )
            (self.once if node.steady else self.each).append(step)
        if node.check is not None:
            self.checks.append((node, node.check, {name: self._argument(v) for name, v in node.check.inputs.items()}))

    def _slot(self, output: Output) -> int:
        self.slots[output] = len(self.start)
        self.start.append(None)
        return self.slots[output]

    def _argument(self, value: Any, as_size: bool = False) -> Any:
        """Return the slot of an argument; `as_size`: of one that the op reads on the host, if it is known already."""
        if isinstance(value, tuple):
            return tuple(self._argument(v, as_size) for v in value)
        if isinstance(value, Output):
            if value.value is None or not as_size:
                return self.slots[value]
            value = value.value
        self.start.append(self.engine.put_size(value) if as_size else self.engine.put(value))
        return len(self.start) - 1


def needed_nodes(graph: Graph, wanted: set[Node]) -> list[Node]:
    """Return all nodes upstream, in the graph's order. A block that updates several Variables updates all of them."""
    together: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op.name == "Assign":
            together.setdefault(node.block, []).append(node)
    found: set[Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node.op.name == "Assign":
            waiting += together[node.block]
        if node.op.name != "Variable":  # the initial value is not part of a run
            waiting += [o.node for o in node.sources()]
    return sorted(found, key=lambda n: n.order)


def _check_single_updates(updates: list[Update]) -> None:
    first: dict[Node, Node] = {}
    for variable, _, by in updates:
        other = first.setdefault(variable, by)
        if other is not by:
            raise make_error("updated_twice", value=variable.name, bound=f"{other.block} and {by.block}")


def run_steps(steps: list[Step], values: list[Any]) -> None:
    """Run steps in order."""
    for run, arguments, results, node, has_lists in steps:
        try:
            if has_lists:
                found = run([[values[j] for j in i] if type(i) is tuple else values[i] for i in arguments])
            else:
                found = run([values[i] for i in arguments])
        except Exception as error:
            raise _with_block(error, node, values, arguments) from error.__cause__
        for place, value in zip(results, found, strict=True):
            values[place] = value


def check_blocks(program: Program, values: list[Any]) -> None:
    """Apply the rules of blocks whose shapes only the run knows."""
    for node, check, places in program.checks:
        shapes = {name: tuple(values[place].shape) for name, place in places.items()}
        try:
            check.rule(shapes)
        except OpError as error:
            text = ", ".join(f"{name}={shape_text(shape)}" for name, shape in shapes.items())
            raise error.in_call(check.op.name, node.block, text) from None


def known_bytes(node: Node) -> int:
    """Return the bytes of a node's outputs whose shapes are known. The output of an Assign is its input."""
    if node.op.name == "Assign":
        return 0
    return sum(_bytes_in(o.dtype, o.shape) for o in node.outputs)


def _bytes_in(dtype: str, shape: tuple[int | None, ...] | None) -> int:
    """Return the bytes of an array; 0 if its shape is open, or so large that the op itself raises an error."""
    if shape is None or None in shape:
        return 0
    size = math.prod(d or 0 for d in shape) * int(NUMPY_DTYPE[dtype].itemsize)
    return size if size <= memory_limit() else 0


def over_budget(node: Node, size: int, left: int, most: int) -> OpError:
    """Return the error of a block whose values exceed the memory of a session."""
    error = make_error("session_memory", value=size, why=max(left, 0), bound=most)
    return error.in_call(node.op.name, node.block, ", ".join(map(repr, node.outputs)))


def run_measured(
    program: Program,
    steps: list[Step],
    values: list[Any],
    reserve: Callable[[Node, int], None],
    seconds: dict[Node, float] | None = None,
) -> None:
    """Run steps with open shapes: before each such node, call `reserve` with the bytes of its results."""
    for step in steps:
        node = step.node
        if node in program.open:
            ahead = _bytes_ahead(program, step, values)
            reserve(node, ahead)
        if seconds is None:
            run_steps([step], values)
        else:
            time_steps([step], values, seconds)
        if node in program.open:
            found = sum(_bytes_of(values[p]) for p, o in zip(step.results, node.outputs, strict=True) if is_open(o))
            if found != ahead:
                program.is_data_dependent = True
                reserve(node, found - ahead)


def _bytes_ahead(program: Program, step: Step, values: list[Any]) -> int:
    """Return the bytes of a node's open outputs, inferred from its arguments; 0 for sizes that depend on elements."""
    node, op = step.node, step.node.op
    avals: dict[str, Any] = {}
    host: dict[str, Any] = {}
    for arg, place, source in zip(op.inputs, step.arguments, node.inputs, strict=True):
        if isinstance(place, tuple):
            pairs = zip(place, source, strict=True)
            avals[arg.name] = tuple(admitted_aval(arg, op, s, tuple(values[p].shape)) for p, s in pairs)
        else:
            avals[arg.name] = admitted_aval(arg, op, source, tuple(values[place].shape))
        if arg.host:
            host[arg.name] = each(place, lambda p: host_value(program.engine.get(values[p])))
    key = (tuple(avals.values()), tuple(map(repr, host.values())))
    known, size = program.open[node]
    if key != known:
        size = 0
        with contextlib.suppress(OpError):  # the call itself raises the error
            for output, aval in zip(node.outputs, infer(op, avals, host, node.attrs), strict=True):
                size += _bytes_in(output.dtype, aval.shape) if is_open(output) else 0
        if size > sys.maxsize:
            size = 0  # the call itself raises the error, as TensorFlow does
        program.open[node] = key, size
    return size


def time_steps(steps: list[Step], values: list[Any], seconds: dict[Node, float]) -> None:
    """Run steps in order, and record the seconds of each node."""
    for step in steps:
        began = perf_counter()
        run_steps([step], values)
        seconds[step.node] = perf_counter() - began


def costs_of(graph: Graph, program: Program, values: list[Any], seconds: dict[Node, float]) -> dict[str, Cost]:
    """Sum seconds and bytes by block. A value that several blocks pass on counts for the block that computes it."""
    time: dict[str, float] = {}
    for node in program.nodes:
        time[node.block] = time.get(node.block, 0.0) + seconds.get(node, 0.0)
    size = dict.fromkeys(time, 0)
    for output, slot in program.slots.items():
        end = graph.ends.get(output)
        if end is not None and end.block in size:
            size[end.block] += _bytes_of(values[slot])
    return {block: Cost(time[block], size[block]) for block in time}


_SAMPLED = 1000  # strings of an array from which the size of all is estimated


def _bytes_of(value: Any) -> int:
    """Return the bytes of an array; for strings, an estimate from the first of them."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return int(value.nbytes)
    sizes = [sys.getsizeof(text) for text in islice(value.reshape(-1), _SAMPLED)]
    return int(value.nbytes + (sum(sizes) / len(sizes) * value.size if sizes else 0))


def _with_block(error: Exception, node: Node, values: list[Any], arguments: Slots) -> Exception:
    """Return the error with the block it happened in."""
    if isinstance(error, OpError):
        found = [values[i] if isinstance(i, int) else [values[j] for j in i] for i in arguments]
        inputs = dict(zip(node.op.input_names, found, strict=True))
        return error.in_call(node.op.name, node.block, describe(node.op, inputs, node.attrs))
    if isinstance(error, MemoryError):  # raised by an array library, whose text has the size
        exhausted = ResourceExhaustedError(f"OOM: {error}")
        return exhausted.in_call(node.op.name, node.block, ", ".join(map(repr, node.outputs)))
    error.add_note(f"in block {node.block} ({node.op.name} {node.name})")
    return error
