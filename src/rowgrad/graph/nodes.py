"""The graph: nodes, the outputs that connect them, the blocks they belong to, and the scope that names new blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._catalog.spec import Op
from ..errors import make_error
from .page import NAME, Block, End

Array = np.ndarray[Any, Any]


class Output:
    """An output of a node: a value that ops take as input and sessions fetch.

    `dtype` is its dtype. `shape` has None for each size that only a run knows, and is None if the rank is unknown.
    `value` is the array if it is a constant, otherwise None.

    >>> from rowgrad.graph import Const, Scope
    >>> Const(Scope.new_root_scope().with_op_name("a"), [[1.0, 2.0]]).output.shape
    (1, 2)
    """

    __slots__ = ("dtype", "index", "node", "shape", "value")

    def __init__(self, node: Node, index: int, dtype: str, shape: tuple[int | None, ...] | None) -> None:
        self.node = node
        self.index = index
        self.dtype = dtype
        self.shape = shape
        self.value: Array | None = None

    @property
    def name(self) -> str:
        """Return the name, such as `v.product`."""
        return f"{self.node.name}.{self.node.op.outputs[self.index].name}"

    def __repr__(self) -> str:
        return f"<{self.name} {describe(self.dtype, self.shape)}>"

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.name} has no value before a session runs; call ClientSession(scope).run(…)")

    __array_ufunc__ = None
    __iter__ = None  # an Output is one value, although it has a shape


def describe(dtype: str, shape: tuple[int | None, ...] | None) -> str:
    """Return dtype and shape as text: `float32[2,?]`, or `float32[…]` if the rank is unknown."""
    return f"{dtype}[{'…' if shape is None else ','.join('?' if d is None else str(d) for d in shape)}]"


class Check(NamedTuple):
    """A rule for the shapes of a block's inputs that a run applies before it returns or stores anything."""

    op: Op
    inputs: Mapping[str, Any]
    rule: Callable[[Mapping[str, tuple[int, ...]]], object]


class Node:
    """One op in the graph, with its inputs and outputs.

    `inputs` are in the record's order: an Output, an array, or a tuple of these for a list input. `steady` says whether
    the outputs are the same in every run. `check` validates a whole block whose shapes only a run knows.
    """

    __slots__ = ("attrs", "block", "check", "inputs", "name", "op", "order", "outputs", "steady")

    def __init__(self, name: str, block: str, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> None:
        self.name = name
        self.block = block
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.order = -1
        self.check: Check | None = None
        self.outputs: tuple[Output, ...] = ()
        self.steady: bool = all(output.node.steady for output in self.sources())

    def sources(self) -> Iterator[Output]:
        """Yield every Output among the inputs."""
        for value in self.inputs:
            if isinstance(value, Output):
                yield value
            elif isinstance(value, tuple):
                yield from (v for v in value if isinstance(v, Output))

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.name}>"


def is_open(output: Output) -> bool:
    """Return whether only a run knows the output's shape, or a size in it."""
    return output.shape is None or None in output.shape


class Sparse:
    """A sparse tensor on one wire."""

    __slots__ = ("dense_shape", "indices", "values")

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self.indices = indices
        self.values = values
        self.dense_shape = dense_shape


class Feed:
    """A value for a placeholder."""

    __slots__ = ("placeholder", "value")

    def __init__(self, placeholder: Output, value: Array) -> None:
        self.placeholder = placeholder
        self.value = value


class Operation:
    """A node to run for its effect; it has no value."""

    __slots__ = ("node",)

    def __init__(self, node: Node | None) -> None:
        self.node = node


class Placed:
    """A block in a graph, as the functions of `ops` return it.

    Its output pins are attributes. A block with one output can be used in place of that output.

    >>> from rowgrad.graph import Const, Scope
    >>> Const(Scope.new_root_scope().with_op_name("a"), [[1.0, 2.0]]).output
    <a.output float32[1,2]>
    """

    def __init__(self, block: Block, op: Op, pins: dict[str, Any]) -> None:
        self.block = block
        self.op = op
        self.pins = pins

    @property
    def name(self) -> str:
        """Return the block's id."""
        return self.block.id

    def __getattr__(self, pin: str) -> Any:
        try:
            return self.__dict__["pins"][pin]
        except KeyError:
            raise AttributeError(f"{self.__dict__['op'].name} has no output {pin!r}; it has {_names(self)}") from None

    def __iter__(self) -> Iterator[Any]:
        values = list(self.pins.values())
        return iter(values[0] if len(values) == 1 and isinstance(values[0], list) else values)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.pins]

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.name}: {_names(self) or 'no outputs'}>"

    @property
    def only(self) -> Any:
        """Return the block's only output; raise if it has several or none."""
        if len(self.pins) != 1:
            raise make_error("pin_unclear", argument=self.name, value=self.op.name, bound=_names(self) or "none")
        return next(iter(self.pins.values()))


def _names(placed: Placed) -> str:
    return ", ".join(placed.pins)


class SessionBlock:
    """Feeds, fetches and operations of a ClientSession block on a page."""

    __slots__ = ("attrs", "feeds", "fetches", "name", "names", "runs")

    def __init__(
        self, name: str, feeds: list[Feed], fetches: list[Any], runs: list[Operation], attrs: Mapping[str, Any]
    ):
        self.name = name
        self.feeds = feeds
        self.fetches = fetches
        self.runs = runs
        self.attrs = attrs
        self.names: list[str] | None = None  # names of the fetches, if the graph was built from a page


class Graph:
    """Nodes in topological order, and the blocks they belong to.

    `most` bounds the number of nodes of a page's graph, because a page of twenty blocks could expand to billions. Nodes
    of blocks that were removed again count too. With `wires_sizes`, gradients take every size from a wire, even a known
    one: blocks made of them follow a value that gets another shape.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self.name = name
        self.most = most
        self.wires_sizes = False
        self._added = 0
        self.nodes: list[Node] = []
        self.blocks: dict[str, Placed] = {}
        self.sessions: dict[str, SessionBlock] = {}
        self.ends: dict[Any, End] = {}  # the block and pin of each value
        self._names: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return the name, or the first of name_1, name_2, … that is unused."""
        while True:
            count = self._names.get(name)
            self._names[name] = 1 if count is None else count + 1
            if count is None:
                return name
            longer = f"{name}_{count}"
            if longer not in self._names:
                self._names[longer] = 1
                return longer

    def inner(self, block: str, name: str) -> str:
        """Return a name for a node inside a block, which no block can have."""
        return self.unique(f"{block}:{name}")

    def has(self, name: str) -> bool:
        """Return whether a node or block has this name."""
        return name in self._names

    def mark(self) -> tuple[int, int]:
        """Return the current size, for `back_to`."""
        return len(self.nodes), len(self._names)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Remove everything that was added after the mark."""
        nodes, names = mark
        del self.nodes[nodes:]
        while len(self._names) > names:
            self._names.popitem()  # the latest

    def owns(self, node: Node) -> bool:
        """Return whether a node belongs to this graph."""
        return node.order < len(self.nodes) and self.nodes[node.order] is node

    def add(self, node: Node, avals: Any) -> Node:
        """Append a node; `avals` are (dtype, shape) of its outputs."""
        self._added += 1
        if self.most is not None and self._added > self.most:
            raise make_error("page_nodes", bound=self.most)
        node.order = len(self.nodes)
        node.outputs = tuple(Output(node, i, dtype, shape) for i, (dtype, shape) in enumerate(avals))
        self.nodes.append(node)
        return node


class Scope:
    """The graph that new blocks go into, and the name of the next one: the first argument of every op.

    >>> root = Scope.new_root_scope()
    >>> root.new_sub_scope("layer").with_op_name("w").name
    'layer/w'
    """

    __slots__ = ("_name", "_prefix", "graph")

    def __init__(self, graph: Graph, prefix: str = "", name: str = "") -> None:
        self.graph = graph
        self._prefix = prefix
        self._name = name

    @classmethod
    def new_root_scope(cls, name: str = "page") -> Scope:
        """Make a scope with an empty graph; `name` is the name of the page it will be saved as."""
        return cls(Graph(name))

    def new_sub_scope(self, name: str) -> Scope:
        """Return a scope of the same graph in which names begin with `name/`."""
        return Scope(self.graph, self._join(name), "")

    def with_op_name(self, name: str) -> Scope:
        """Return a scope in which the next op is named `name`, or name_1, name_2, … if that is used."""
        return Scope(self.graph, self._prefix, self._check(name))

    @property
    def name(self) -> str:
        """Return the name of the next op, or the prefix of names."""
        return self._join(self._name) if self._name else self._prefix

    def take_name(self, default: str) -> str:
        """Return an unused name, derived from the requested one or from `default`."""
        return self.graph.unique(self._join(self._name or default))

    def _join(self, name: str) -> str:
        return f"{self._prefix}/{self._check(name)}" if self._prefix else self._check(name)

    @staticmethod
    def _check(name: str) -> str:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise make_error("name_unfit", argument="name", value=repr(name), bound=NAME.pattern)
        return name

    def __repr__(self) -> str:
        return f"<Scope {self.name or self.graph.name!r} of {len(self.graph.nodes)} nodes>"
