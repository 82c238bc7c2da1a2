"""AddSymbolicGradients: gradients as nodes of the graph, by the same adjoints that every other caller uses.

An adjoint gets ops that add nodes to the graph, and wires instead of arrays. Its result is therefore a graph again,
and gradients of gradients need no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._catalog.rows import IndexedRows
from .._catalog.shapes import differ
from .._catalog.spec import Call
from .._runtime.arrays import as_array
from ..errors import OpError, make_error, shape_text
from .blocks import wire
from .inputs import check_overflow, kind_of, many_values, missing_input, one_value
from .node_builder import BlockExpansion, InnerOps, expands
from .nodes import Node, Output

_FLOATING = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


class Dims(tuple):  # type: ignore[type-arg]
    """A shape as an adjoint reads it: indexing returns a wire for a size that only a run knows."""

    wire: TracedWire

    def __getitem__(self, index: Any) -> Any:
        size = super().__getitem__(index)
        if size is None or (self.wire.ops.graph.wires_sizes and isinstance(size, int)):
            return self.wire.dimension(range(len(self))[index])
        return size


class NoDims:
    """The shape of a wire of unknown rank: single sizes can be read, their number cannot."""

    def __init__(self, wire: TracedWire) -> None:
        self.wire = wire

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) or index < 0:
            raise self._unknown()
        return self.wire.dimension(index)

    def __contains__(self, size: object) -> bool:
        return size is None

    def __iter__(self) -> Iterator[None]:
        yield None  # compares unequal to every known shape

    def __len__(self) -> int:
        raise self._unknown()

    def _unknown(self) -> OpError:
        return make_error("rank_unknown", argument=self.wire.output.name)


class TracedWire:
    """A wire as adjoints use it: an argument for ops that has a shape and a dtype."""

    __slots__ = ("_sizes", "ops", "output")

    def __init__(self, ops: InnerOps, output: Output) -> None:
        self.ops = ops
        self.output = output
        self._sizes: dict[int, TracedWire] = {}

    @property
    def shape(self) -> Dims | NoDims:
        """Return the shape, as far as it is known."""
        if self.output.shape is None:
            return NoDims(self)
        dims = Dims(self.output.shape)
        dims.wire = self
        return dims

    @property
    def ndim(self) -> int:
        """Return the number of dimensions; raise if it is unknown."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """Return the name of the dtype."""
        return self.output.dtype

    def dimension(self, axis: int) -> TracedWire:
        """Return the size of one dimension as a wire."""
        if axis not in self._sizes:
            self._sizes[axis] = TracedWire(self.ops, self.ops["Dimension"](self.output, axis=axis))
        return self._sizes[axis]


class TracedOps(Mapping[str, Callable[..., Any]]):
    """The ops that adjoints get: they take and return `TracedWire`."""

    def __init__(self, ops: InnerOps) -> None:
        self.ops = ops

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self.ops[name]

        def traced(*args: Any, **kwargs: Any) -> Any:
            result = function(*map(untraced, args), **{k: untraced(v) for k, v in kwargs.items()})
            if isinstance(result, Output):
                return TracedWire(self.ops, result)
            return type(result)(*(TracedWire(self.ops, r) for r in result))

        return traced

    def __iter__(self) -> Iterator[str]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)


def untraced(value: Any) -> Any:
    """Return the output behind a traced wire, or behind each entry of a list."""
    if isinstance(value, TracedWire):
        return value.output
    return (
        [untraced(v) for v in value]
        if isinstance(value, list | tuple) and any(isinstance(v, TracedWire) for v in value)
        else value
    )


@expands("AddSymbolicGradients")
def _add_symbolic_gradients(p: BlockExpansion) -> dict[str, Any]:
    outputs = _wires(p, "outputs")
    inputs = _wires(p, "inputs")
    seeds: list[Any] = [None] * len(outputs)
    if "grad_inputs" in p.inputs:
        typed = many_values(p.inputs["grad_inputs"], "grad_inputs")
        if len(typed) != len(outputs):
            raise make_error("lengths_match", argument="grad_inputs", value=len(typed), bound=len(outputs))
        seeds = [
            _seed(p, v, output, f"grad_inputs[{k}]") for k, (v, output) in enumerate(zip(typed, outputs, strict=True))
        ]
    found = Backward(p.ops, outputs, inputs, seeds).gradients()
    gradients = []
    for k, (target, gradient) in enumerate(zip(inputs, found, strict=True)):
        if gradient is None:
            if p.attrs["unconnected_gradients"] == "none":
                raise make_error("unconnected", argument=f"inputs[{k}]", value=target.name)
            gradient = p.ops["FullLike"](target, value=0.0)
        # Two inputs may be the same wire, but every gradient is a separate output.
        gradients.append(p.ops["Identity"](gradient) if gradient in gradients or gradient in seeds else gradient)
    return {"grad_outputs": gradients}


def _wires(p: BlockExpansion, pin: str) -> list[Output]:
    found = many_values(p.inputs[pin], pin)
    if not found:
        raise missing_input(next(arg for arg in p.op.inputs if arg.name == pin))
    for k, value in enumerate(found):
        if not isinstance(value, Output):
            raise make_error("pin_kind", argument=f"{pin}[{k}]", bound="a wire", value=kind_of(value))
        if value.dtype not in _FLOATING:
            raise make_error("gradient_of_nothing", argument=f"{pin}[{k}]", value=value.name, bound=value.dtype)
    return found


def _seed(p: BlockExpansion, value: Any, output: Output, argument: str) -> Output:
    """Return the incoming gradient of an output as a wire. Python numbers take the output's dtype."""
    value = one_value(value, argument)
    if not isinstance(value, Output):
        array = as_array(value, argument, output.dtype)
        check_overflow(value, array, argument)
        value = array
    seed = wire(p, value, argument)
    if seed.dtype != output.dtype:
        raise make_error(
            "dtype_expected", argument=argument, value=seed.dtype, bound=output.dtype, why=", as its output"
        )
    if seed.shape is not None and output.shape is not None:
        if len(seed.shape) != len(output.shape) or any(map(differ, seed.shape, output.shape)):
            raise make_error(
                "same_shape", argument=argument, value=shape_text(seed.shape), bound=shape_text(output.shape)
            )
        if None not in (*seed.shape, *output.shape):
            return seed
    # Pack makes the run compare both shapes: adjoints broadcast, so another shape would give a wrong gradient.
    both: Output = p.ops["Pack"]([p.ops["FullLike"](output, value=0.0), seed])
    found: Output = p.ops["PartAt"](both, index=1)
    return found


class Backward:
    """One backward pass from outputs to inputs."""

    def __init__(self, ops: InnerOps, outputs: list[Output], inputs: list[Output], seeds: list[Any]) -> None:
        self.ops = TracedOps(ops)
        self.inner = ops
        self.outputs = outputs
        self.inputs = inputs
        self.seeds = seeds
        self.sums: dict[Output, Any] = {}
        self.wires: dict[Output, TracedWire] = {}

    def gradients(self) -> list[Output | None]:
        """Return the gradient of each input, or None if no gradient flows to it."""
        path = self._between()
        for output, seed in zip(self.outputs, self.seeds, strict=True):
            start = self.ops["FullLike"](output, value=1.0) if seed is None else self.trace(seed)
            self._add(output, start)
        for node in reversed(path):
            self._through(node)
        return [None if (g := self.sums.get(i)) is None else untraced(self._dense(g)) for i in self.inputs]

    def trace(self, value: Any) -> Any:
        """Return a traced wire for an output; arrays stay arrays."""
        if isinstance(value, tuple):
            return [self.trace(v) for v in value]
        if not isinstance(value, Output):
            return value
        if value not in self.wires:
            self.wires[value] = TracedWire(self.inner, value)
        return self.wires[value]

    def _between(self) -> list[Node]:
        """Return the nodes on paths from inputs to outputs, in order."""
        graph = self.inner.graph
        self.dependent = set(self.inputs)  # values that depend on an input
        needed = _upstream(self.outputs)
        path = []
        for node in graph.nodes[: max(o.node.order for o in self.outputs) + 1]:
            if node not in needed or node.op.adjoint is None or not any(self._connected(node)):
                continue
            self.dependent.update(o for o in node.outputs if o.dtype in _FLOATING)
            path.append(node)
        return path

    def _connected(self, node: Node) -> list[bool]:
        """Return for each differentiable argument whether it depends on an input."""
        inputs = dict(zip(node.op.input_names, node.inputs, strict=True))
        return [any(v in self.dependent for v in _outputs_in(inputs[name])) for name in node.op.differentiable]

    def _through(self, node: Node) -> None:
        ys = [self.sums.get(o) for o in node.outputs]
        if all(y is None for y in ys):
            return
        op, connected = node.op, self._connected(node)
        arguments = dict(zip(op.input_names, node.inputs, strict=True))
        call = Call(
            {n: self.trace(v) for n, v in arguments.items()},
            node.attrs,
            tuple(map(self.trace, node.outputs)),
            frozenset(n for n, is_connected in zip(op.differentiable, connected, strict=True) if is_connected),
        )
        cotangents = [self._zero(o) if y is None else self._dense(y) for y, o in zip(ys, node.outputs, strict=True)]
        assert op.adjoint is not None  # by _between
        for name, is_connected, gradient in zip(
            op.differentiable, connected, op.adjoint(self.ops, call, *cotangents), strict=True
        ):
            if not is_connected or gradient is None:
                continue
            target = arguments[name]
            pairs = zip(target, gradient, strict=True) if isinstance(target, tuple) else [(target, gradient)]
            for wire_, part in pairs:
                if isinstance(wire_, Output) and wire_ in self.dependent and part is not None:
                    self._add(wire_, part)

    def _add(self, target: Output, gradient: Any) -> None:
        before = self.sums.get(target)
        self.sums[target] = gradient if before is None else self.ops["Add"](self._dense(before), self._dense(gradient))

    def _dense(self, gradient: Any) -> Any:
        if isinstance(gradient, IndexedRows):
            return self.ops["ScatterRows"](gradient.values, gradient.indices, gradient.num_rows)
        return gradient

    def _zero(self, output: Output) -> Any:
        """Return zeros for an output without a gradient, or None if its dtype has none."""
        return self.ops["FullLike"](output, value=0.0) if output.dtype in _FLOATING else None


def _outputs_in(value: Any) -> Iterator[Output]:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, Output):
            yield item


def _upstream(outputs: list[Output]) -> set[Node]:
    found: set[Node] = set()
    waiting = [o.node for o in outputs]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [o.node for o in node.sources()]
    return found
