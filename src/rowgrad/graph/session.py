"""ClientSession: run the nodes that fetches need, store Variables between runs, and keep the last value of each pin."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np

from .._catalog.spec import Aval
from .._core import memory_limit
from .._runtime.arrays import Array, aval_of
from .._runtime.results import check_size
from .._runtime.validation import infer
from ..errors import OpError, ResourceExhaustedError, make_error
from .blocks import fed_value
from .engine import Engine, open_engine
from .fetches import collect, find, operation_of, output_of, pin_name, unflatten
from .nodes import Graph, Node, Output, Scope, SessionBlock
from .page import PageError
from .schedule import Cost, Program, Step, check_blocks, known_bytes, over_budget, run_measured, run_steps, time_steps
from .state import FinishedRun, FinishedRuns, State
from .variables import advance, random_array

_MOST_PROGRAMS = 256  # cached programs, with the values of their last runs


class ClientSession:
    """Run the graph of a scope.

    A run reads every Variable as it was when the run began. Updates take effect together when the run ends, and not at
    all if it fails. Results are NumPy arrays with every engine. `runs` counts the finished runs.

    Args:
        scope: A scope of the graph.
        engine: The array library that runs the ops: "numpy", "torch", "torch:cuda", or an engine object.
        watch_costs: Whether runs record time and memory of each block, for `costs`.
        memory: The most bytes that values of the session may take, results of earlier runs included. A run that needs
            more first drops results of earlier runs, then raises ResourceExhaustedError before it allocates. The
            default is three quarters of the machine's memory, and no bound for engines on other devices.

    Raises:
        InvalidArgumentError: The engine is unknown or not installed.
        ValueError: `memory` is not a positive integer.

    >>> from rowgrad.graph import Const, Scope, ops
    >>> root = Scope.new_root_scope()
    >>> v = ops.MatMul(root, Const(root, [[3.0, 2.0], [-1.0, 0.0]]), Const(root, [[3.0, 5.0]]), transpose_b=True)
    >>> ClientSession(root).run(v).tolist()
    [[19.0], [-3.0]]
    """

    def __init__(
        self, scope: Scope, engine: str | Engine = "numpy", watch_costs: bool = False, memory: int | None = None
    ) -> None:
        self.graph: Graph = scope.graph
        self.engine = open_engine(engine)
        self.state = State(self.graph, self.engine)
        self.watch_costs = watch_costs
        self.memory = _memory(self.engine) if memory is None else memory
        if isinstance(memory, bool) or not isinstance(self.memory, int) or self.memory <= 0:
            raise ValueError(f"memory must be a positive number of bytes, or None; got {memory!r}")
        self.runs = 0
        # Called after each run for every Variable it updated: name, value before (None without one), value after.
        self.on_update: Callable[[str, Any, Any], None] | None = None
        self._programs: dict[Any, Program] = {}
        self._last = FinishedRuns(self.graph, self.engine)
        self._counters: dict[str, int] = {}  # counters of the run in progress
        self._running: Program | None = None
        self._used = 0  # bytes of the values of the run in progress
        self._others = 0  # bytes of the Variables that run does not read
        self._one_run = threading.RLock()  # threads that share a session take turns

    # -- runs ----------------------------------------------------------------------------------------------------------

    def run(
        self,
        fetches: Any = (),
        feeds: Mapping[Any, Any] | Iterable[Mapping[Any, Any]] | None = None,
        run_outputs: Iterable[Any] = (),
    ) -> Any:
        """Run the graph once per batch of feeds, and return the fetched values.

        Args:
            fetches: An output, a block with one output, or a name (`"v.product"`, or `"v"` if the block has
                one output); or a list or dict of these.
            feeds: Values by placeholder. An iterable of such mappings makes one run each.
            run_outputs: Operations to run for their effect.

        Returns:
            Arrays in the structure of `fetches`; a list of these if `feeds` is an iterable of mappings.

        Raises:
            OpError: A fetch or feed is unknown, or an op failed. Variables are unchanged.
        """
        wanted: list[Output] = []
        structure = collect(self.graph, fetches, wanted)
        runs = [n for k, v in enumerate(run_outputs) if (n := operation_of(self.graph, v, k).node) is not None]
        program = self._program(wanted, runs)
        if feeds is not None and not isinstance(feeds, Mapping):
            return [unflatten(structure, self._run(program, batch)) for batch in _batches(feeds)]
        return unflatten(structure, self._run(program, feeds or {}))

    def run_block(self, name: str | None = None, feeds: Mapping[Any, Any] | None = None) -> dict[str, Array]:
        """Run a ClientSession block of the page with the feeds wired to it; without a name, the only one."""
        block = self.block(name)
        fed = {f.placeholder: f.value for f in block.feeds}
        for key, value in (feeds or {}).items():
            fed[output_of(self.graph, key, "feeds")] = value
        program = self._program(block.fetches, [r.node for r in block.runs if r.node is not None])
        values = self._run(program, fed)
        names = block.names or [pin_name(self.graph, o) for o in block.fetches]
        return dict(zip(names, values, strict=True))

    def block(self, name: str | None = None) -> SessionBlock:
        """Return a ClientSession block by its name, or the only one."""
        sessions = self.graph.sessions
        if name is None and len(sessions) == 1:
            return next(iter(sessions.values()))
        if name not in sessions:
            known = ", ".join(sessions) or "none"
            raise PageError(name or self.graph.name, f"name a ClientSession block of the page; available: {known}")
        return sessions[name]

    def _program(self, fetches: Iterable[Output], runs: Iterable[Node]) -> Program:
        key = (tuple(fetches), frozenset(runs))
        with self._one_run:
            program = self._programs.get(key)
            if program is None:
                if len(self._programs) >= _MOST_PROGRAMS:
                    self._last.forget(self._programs.pop(next(iter(self._programs))))
                program = self._programs[key] = Program(self.graph, self.engine, self._draw, *key)
            return program

    def _run(self, program: Program, feeds: Mapping[Any, Any]) -> list[Array]:
        with self._one_run:
            self._running = program
            try:
                return self._run_alone(program, feeds)
            except OpError:
                raise
            except MemoryError as error:  # not in a block: a feed, or the copy of a result
                raise ResourceExhaustedError(f"OOM: {error}") from error
            finally:
                self._running = None
                if program not in self._last:  # the run failed
                    self._forget_programs()

    def _run_alone(self, program: Program, feeds: Mapping[Any, Any]) -> list[Array]:
        self._reserve(program)
        self._compute_steady(program)
        values = program.start.copy()
        self._feed(program, values, feeds)
        for node, slot in program.variables:
            values[slot] = self.state.value(node, self._initial_value)
        self._counters = {}
        seconds: dict[Node, float] = {}
        self._work(program, program.each, values, seconds)
        check_blocks(program, values)
        updated = {}
        for variable, slot, by in program.updates:
            try:
                self.state.check_new(variable, values[slot])
            except OpError as error:
                raise error.in_call(by.op.name, by.block, f"a value for {variable.name}") from None
            updated[variable.name] = self.engine.keep(values[slot])
        results = [self._out(values[program.slots[o]]) for o in program.fetches]
        before = {name: self.state.values.get(name) for name in updated} if self.on_update is not None else {}
        self.state.values.update(updated)
        self.state.counters.update(self._counters)
        self.runs += 1
        self._last.add(program, FinishedRun(self.runs, values, seconds, self._used))
        if self.on_update is not None:
            for name, value in updated.items():
                self.on_update(name, before[name], value)
        return results

    def _compute_steady(self, program: Program) -> None:
        """Compute, in the program's first run, the values that are the same in every run."""
        if not program.once:
            return
        self._work(program, program.once, program.start, program.steady_seconds)
        program.bytes = self._used  # these sizes are the same in every run
        for step in program.once:
            for slot in step.results:
                program.start[slot] = self.engine.keep(program.start[slot])
        program.once = []

    def _reserve(self, program: Program) -> None:
        """Reserve memory for the values whose size is known, and drop earlier results if they do not fit."""
        used = self._others = self._bytes_of_others(program)
        if program.bytes + used > self.memory:
            for node in program.nodes:
                size = known_bytes(node)
                if used + size > self.memory:
                    raise over_budget(node, size, self.memory - used, self.memory)
                used += size
        self._used = 0
        self._take(program.bytes)

    def _bytes_of_others(self, program: Program) -> int:
        """Return the bytes of Variables with a value that the program does not read. Their shapes never change."""
        values = self.state.values
        mark = id(values), len(values)
        if program.others[0] != mark:
            read = {node.name for node, _ in program.variables}
            program.others = mark, sum(int(v.nbytes) for name, v in values.items() if name not in read)
        return program.others[1]

    def _forget_programs(self) -> None:
        """Drop programs without a finished run, because each holds its steady values."""
        self._programs = {key: p for key, p in self._programs.items() if p in self._last or p is self._running}

    def _reserve_more(self, node: Node, size: int) -> None:
        """Reserve memory for values whose size the run has found."""
        if not self._take(size):
            raise over_budget(node, size, self.memory - self._used - self._others, self.memory)

    def _take(self, size: int) -> bool:
        over = self._used + self._others + size + self._last.bytes - self.memory
        if over > 0:
            free = self._last.free_bytes(over)
            self._forget_programs()
            if free < over:
                return False
        self._used += size
        return True

    def _work(self, program: Program, steps: list[Step], values: list[Any], seconds: dict[Node, float]) -> None:
        """Run steps. Open sizes are inferred from the arguments, once for all feeds of the same shapes."""
        shapes: tuple[Any, ...] = ()
        is_open = bool(program.open) and self.memory < sys.maxsize
        if is_open:
            fed = [values[slot] for _, slot in program.placeholders] if steps is program.each else []
            shapes = tuple(value.shape for value in fed)
            known, used = program.measured or (None, 0)
            is_open = known != shapes or steps is program.once or not self._take(used - self._used)
        if is_open:
            run_measured(program, steps, values, self._reserve_more, seconds if self.watch_costs else None)
            if steps is program.each and not program.is_data_dependent:
                program.measured = shapes, self._used
        elif self.watch_costs:
            time_steps(steps, values, seconds)
        else:
            run_steps(steps, values)

    def _feed(self, program: Program, values: list[Any], feeds: Mapping[Any, Any]) -> None:
        fed: dict[Output, Any] = {}
        for key, value in feeds.items():
            target = output_of(self.graph, key, "feeds")
            if target.node.op.name != "Placeholder":
                raise make_error("fed_not_a_placeholder", argument="feeds", value=target.name)
            if target in fed:
                raise make_error("fed_twice", argument="feeds", value=target.node.name)
            fed[target] = value
        for node, slot in program.placeholders:
            target = node.outputs[0]
            if target not in fed:
                needing = next((n for n in program.nodes if target in n.sources()), node)
                raise make_error("not_fed", argument="feeds", value=node.name, bound=needing.name)
            try:
                values[slot] = self.engine.put(fed_value(target, fed[target], node.name))
            except OpError as error:
                raise error.in_call("Placeholder", node.name, f"{target!r}") from None

    def _initial_value(self, variable: Node) -> Any:
        """Compute a Variable's initial value; random nodes in it start at their seeds."""
        (source,) = variable.inputs
        program = Program(self.graph, self.engine, self._draw_first, [source], [])
        used, others = self._used, self._others
        self._reserve(program)
        self._compute_steady(program)
        values = program.start.copy()
        self._work(program, program.each, values, {})
        self._used, self._others = used, others
        value = values[program.slots[source]]
        self.state.check_new(variable, value)
        return self.engine.keep(value)

    def _draw(self, node: Node, arguments: list[Any]) -> tuple[Any, ...]:
        shape = self._shape_drawn(node, arguments)
        counter = self.state.counters.get(node.name, 0)
        self._counters[node.name] = counter + advance(shape)
        return (self._random(node, shape, counter),)

    def _draw_first(self, node: Node, arguments: list[Any]) -> tuple[Any, ...]:
        return (self._random(node, self._shape_drawn(node, arguments), 0),)

    def _shape_drawn(self, node: Node, arguments: list[Any]) -> tuple[int, ...]:
        """Return the shape of a random node's output, which only the run may know."""
        requested = np.asarray(self.engine.get(arguments[0]))
        shape = tuple(requested.tolist())
        infer(node.op, {"shape": aval_of(requested)}, {"shape": shape}, node.attrs)
        check_size(Aval(node.attrs["dtype"], shape))
        return shape

    def _random(self, node: Node, shape: tuple[int, ...], counter: int) -> Any:
        attrs = node.attrs
        return self.engine.put(
            random_array(node.op.name, attrs["dtype"], shape, attrs["seed"], attrs["seed2"], counter)
        )

    def _out(self, value: Any) -> Array:
        """Return a copy, so that the caller cannot change the session's value."""
        return self.engine.get(value).copy()

    def find(self, name: str) -> Any:
        """Return the block of this name, or the value of the pin `block.pin`."""
        return find(self.graph, name)

    # -- results and state ---------------------------------------------------------------------------------------------

    def result(self, block: str, pin: str) -> Array | list[Array] | None:
        """Return the last value of a block's output pin, or None if no run has computed it."""
        value = self._pin(block, pin)
        if isinstance(value, list):
            found = [self._last.value(v) for v in value]
            return None if any(f is None for f in found) else [f for f in found if f is not None]
        return self._last.value(value) if isinstance(value, Output) else None

    def run_of(self, block: str, pin: str) -> int | None:
        """Return the number of the run that computed a pin's last value, or None; for a list, of its oldest entry."""
        value = self._pin(block, pin)
        found = [self._last.number(v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, Output)]
        numbers = [n for n in found if n is not None]
        return min(numbers) if numbers and len(numbers) == len(found) else None

    def _pin(self, block: str, pin: str) -> Any:
        if block not in self.graph.blocks or pin not in self.graph.blocks[block].pins:
            self.find(f"{block}.{pin}")
        return self.graph.blocks[block].pins[pin]

    def last_call(self, node: Node, result: Node) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return inputs and outputs of `result`, or of a node upstream of it, in its last run; None before any run."""
        return self._last.call(node, result)

    @property
    def costs(self) -> dict[str, Cost]:
        """Return the cost of every block in the last run that computed it, with `watch_costs`.

        Nodes whose value never changes count with the one time they were computed.
        """
        return self._last.costs() if self.watch_costs else {}

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Return the last value of every computed pin, by block and `result_<pin>`."""
        found: dict[str, dict[str, Any]] = {}
        for name, placed in self.graph.blocks.items():
            for pin in placed.pins:
                value = self.result(name, pin)
                if value is not None:
                    found.setdefault(name, {})[f"result_{pin}"] = value
        return found

    @property
    def variables(self) -> dict[str, Array]:
        """Return a copy of every Variable's value, by name."""
        nodes = [n for n in self.graph.nodes if n.op.name == "Variable"]
        with self._one_run:  # a concurrent run could change some of the values, or have its own overwritten
            return {n.name: self._out(self.state.value(n, self._initial_value)) for n in nodes}

    def save(self, path: str | PathLike[str]) -> None:
        """Write Variables and the counters of random numbers into one file."""
        with self._one_run:
            self.variables  # noqa: B018  computes initial values that no run has needed, so that the file is complete
            state = self.state.copy()
        state.save(path)

    def restore(self, path: str | PathLike[str], *, other_page: bool = False) -> None:
        """Read the state that `save` wrote, and drop the results of earlier runs.

        A page is still the same page after renaming it, moving blocks, renaming blocks other than Variables and adding
        blocks, and after changing values in blocks if it has the same name.

        Args:
            path: The file.
            other_page: Whether to accept the state of another page whose Variables fit.

        Raises:
            PageError: The file is damaged, does not fit the graph, or belongs to another page.
        """
        with self._one_run:
            self.state.restore(path, other_page)
            self._last.clear()
            self._programs.clear()

    def reset(self) -> None:
        """Reset Variables and random numbers to their initial state, and drop all results."""
        with self._one_run:
            self.state.reset()
            self._last.clear()
            self._programs.clear()
            self.runs = 0

    def adopt(self, other: ClientSession, unless: Container[str] = ()) -> list[str]:
        """Continue from a session on an earlier version of the page: with its Variables, counters and number of runs.

        Args:
            other: The earlier session. A Variable is adopted if name, dtype and shape are the same.
            unless: Blocks that changed; their Variables start from their initial values.

        Returns:
            The names of the adopted Variables.
        """
        with other._one_run:
            state, runs = other.state.copy(), other.runs
        with self._one_run:
            self.runs = max(self.runs, runs)
            return self.state.adopt(state, unless)


def _memory(engine: Engine) -> int:
    """Return three quarters of the memory of the machine or container; no bound for other devices."""
    device = engine.name.partition(":")[2]
    if device not in ("", "cpu"):
        return sys.maxsize
    most = memory_limit()
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
        most = min(most, int(file.read()))  # the file contains "max" if there is no limit
    return most * 3 // 4


def _batches(feeds: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield the mappings of `feeds`; raise TypeError for anything else."""
    if isinstance(feeds, str) or not isinstance(feeds, Iterable):
        raise TypeError(f"feeds must be a mapping, or an iterable of mappings; got {type(feeds).__name__}")
    for k, batch in enumerate(feeds):
        if not isinstance(batch, Mapping):
            raise TypeError(f"feeds[{k}] must be a mapping of placeholders to values; got {type(batch).__name__}")
        yield batch
