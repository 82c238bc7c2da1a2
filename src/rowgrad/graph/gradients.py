"""AddSymbolicGradients: gradients as nodes, by the same adjoints every other caller uses.

An adjoint is handed ops that put nodes into the graph, and wires in place of arrays. So its result is a graph again,
and the gradient of a gradient is nothing special.
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
from .inputs import kind_of, many_values, one_value
from .node_builder import InnerOps, Placing, expands
from .nodes import Node, Output
from .values import check_reach

_FLOATING = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


class Dims(tuple):  # type: ignore[type-arg]
    """A shape as an adjoint reads it: a size that only a run knows is, when asked for by its place, a wire."""

    seen: Seen

    def __getitem__(self, index: Any) -> Any:
        size = super().__getitem__(index)
        if size is None:
            return self.seen.dimension(range(len(self))[index])
        return size


class NoDims:
    """The shape of a wire of unknown rank: single sizes can be asked for, how many there are cannot."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) or index < 0:
            raise self._unknown()
        return self.seen.dimension(index)

    def __contains__(self, size: object) -> bool:
        return size is None

    def __iter__(self) -> Iterator[None]:
        yield None  # like no shape that is known

    def __len__(self) -> int:
        raise self._unknown()

    def _unknown(self) -> OpError:
        return make_error("rank_unknown", argument=self.seen.output.name)


class Seen:
    """A wire as an adjoint sees it: something with a shape and a dtype, to hand to ops."""

    __slots__ = ("_sizes", "ops", "output")

    def __init__(self, ops: InnerOps, output: Output) -> None:
        self.ops = ops
        self.output = output
        self._sizes: dict[int, Seen] = {}

    @property
    def shape(self) -> Dims | NoDims:
        """The shape, as far as it is known."""
        if self.output.shape is None:
            return NoDims(self)
        dims = Dims(self.output.shape)
        dims.seen = self
        return dims

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The dtype's name."""
        return self.output.dtype

    def dimension(self, axis: int) -> Seen:
        """The size of one dimension, as a wire."""
        if axis not in self._sizes:
            self._sizes[axis] = Seen(self.ops, self.ops["Dimension"](self.output, axis=axis))
        return self._sizes[axis]


class SeenOps(Mapping[str, Callable[..., Any]]):
    """The ops adjoints are handed: they take and give `Seen`."""

    def __init__(self, ops: InnerOps) -> None:
        self.ops = ops

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self.ops[name]

        def seeing(*args: Any, **kwargs: Any) -> Any:
            result = function(*map(unseen, args), **{k: unseen(v) for k, v in kwargs.items()})
            if isinstance(result, Output):
                return Seen(self.ops, result)
            return type(result)(*(Seen(self.ops, r) for r in result))

        return seeing

    def __iter__(self) -> Iterator[str]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)


def unseen(value: Any) -> Any:
    """The wire itself."""
    if isinstance(value, Seen):
        return value.output
    return (
        [unseen(v) for v in value]
        if isinstance(value, list | tuple) and any(isinstance(v, Seen) for v in value)
        else value
    )


@expands("AddSymbolicGradients")
def _add_symbolic_gradients(p: Placing) -> dict[str, Any]:
    outputs = _wires(p, "outputs")
    inputs = _wires(p, "inputs")
    seeds: list[Any] = [None] * len(outputs)
    if "grad_inputs" in p.given:
        typed = many_values(p.given["grad_inputs"], "grad_inputs")
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
        # Two inputs may be one wire; each has an entry of its own.
        gradients.append(p.ops["Identity"](gradient) if gradient in gradients or gradient in seeds else gradient)
    return {"grad_outputs": gradients}


def _wires(p: Placing, pin: str) -> list[Output]:
    found = many_values(p.given[pin], pin)
    if not found:
        raise make_error("pin_missing", argument=pin)
    for k, value in enumerate(found):
        if not isinstance(value, Output):
            raise make_error("pin_kind", argument=f"{pin}[{k}]", bound="a wire", value=kind_of(value))
        if value.dtype not in _FLOATING:
            raise make_error("gradient_of_nothing", argument=f"{pin}[{k}]", value=value.name, bound=value.dtype)
    return found


def _seed(p: Placing, value: Any, output: Output, argument: str) -> Output:
    """The gradient that flows into an output. Python numbers take the output's dtype."""
    value = one_value(value, argument)
    if not isinstance(value, Output):
        array = as_array(value, argument, output.dtype)
        check_reach(value, array, argument)
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
    # The run compares the shapes: adjoints broadcast, and a seed of another shape would give a wrong gradient.
    both: Output = p.ops["Pack"]([p.ops["FullLike"](output, value=0.0), seed])
    found: Output = p.ops["PartAt"](both, index=1)
    return found


class Backward:
    """One walk back from outputs to inputs."""

    def __init__(self, ops: InnerOps, outputs: list[Output], inputs: list[Output], seeds: list[Any]) -> None:
        self.ops = SeenOps(ops)
        self.inner = ops
        self.outputs = outputs
        self.inputs = inputs
        self.seeds = seeds
        self.sums: dict[Output, Any] = {}
        self.seen: dict[Output, Seen] = {}

    def gradients(self) -> list[Output | None]:
        """The gradient for each input, or None where none flows there."""
        path = self._between()
        for output, seed in zip(self.outputs, self.seeds, strict=True):
            start = self.ops["FullLike"](output, value=1.0) if seed is None else self.see(seed)
            self._add(output, start)
        for node in reversed(path):
            self._through(node)
        return [None if (g := self.sums.get(i)) is None else unseen(self._dense(g)) for i in self.inputs]

    def see(self, value: Any) -> Any:
        """A wire as adjoints see it; arrays as they are."""
        if isinstance(value, tuple):
            return [self.see(v) for v in value]
        if not isinstance(value, Output):
            return value
        if value not in self.seen:
            self.seen[value] = Seen(self.inner, value)
        return self.seen[value]

    def _between(self) -> list[Node]:
        """The nodes that lead from inputs to outputs, in order."""
        graph = self.inner.graph
        self.leads = set(self.inputs)  # values that depend on an input
        needed = _upstream(self.outputs)
        path = []
        for node in graph.nodes[: max(o.node.order for o in self.outputs) + 1]:
            if node not in needed or node.op.adjoint is None or not any(self._wanted(node)):
                continue
            self.leads.update(o for o in node.outputs if o.dtype in _FLOATING)
            path.append(node)
        return path

    def _wanted(self, node: Node) -> list[bool]:
        """For each differentiable argument, whether an input can be reached through it."""
        given = dict(zip(node.op.input_names, node.inputs, strict=True))
        return [any(v in self.leads for v in _outputs_in(given[name])) for name in node.op.differentiable]

    def _through(self, node: Node) -> None:
        ys = [self.sums.get(o) for o in node.outputs]
        if all(y is None for y in ys):
            return
        op, wanted = node.op, self._wanted(node)
        arguments = dict(zip(op.input_names, node.inputs, strict=True))
        made = Call(
            {n: self.see(v) for n, v in arguments.items()},
            node.attrs,
            tuple(map(self.see, node.outputs)),
            frozenset(n for n, asked in zip(op.differentiable, wanted, strict=True) if asked),
        )
        cotangents = [self._zero(o) if y is None else self._dense(y) for y, o in zip(ys, node.outputs, strict=True)]
        assert op.adjoint is not None  # by _between
        for name, asked, gradient in zip(
            op.differentiable, wanted, op.adjoint(self.ops, made, *cotangents), strict=True
        ):
            if not asked or gradient is None:
                continue
            target = arguments[name]
            pairs = zip(target, gradient, strict=True) if isinstance(target, tuple) else [(target, gradient)]
            for wire_, part in pairs:
                if isinstance(wire_, Output) and wire_ in self.leads and part is not None:
                    self._add(wire_, part)

    def _add(self, target: Output, gradient: Any) -> None:
        before = self.sums.get(target)
        self.sums[target] = gradient if before is None else self.ops["Add"](self._dense(before), self._dense(gradient))

    def _dense(self, gradient: Any) -> Any:
        if isinstance(gradient, IndexedRows):
            return self.ops["ScatterRows"](gradient.values, gradient.indices, gradient.num_rows)
        return gradient

    def _zero(self, output: Output) -> Any:
        """What stands for an output without a gradient, where an adjoint looks at it."""
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
