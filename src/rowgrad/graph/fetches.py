"""Resolve the fetches, feeds and operations of a session's run, which are objects of the graph or their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._hints import nearest
from .._runtime.arrays import Array
from ..errors import make_error
from .blocks import as_operation
from .nodes import Graph, Operation, Output, Placed, Sparse
from .page import End, PageError


def pin_name(graph: Graph, output: Output) -> str:
    """Return the name `block.pin` under which the page knows an output."""
    end = graph.ends.get(output)
    return output.name if end is None else str(end)


def find(graph: Graph, name: str) -> Any:
    """Return the block of this name, or the value of the pin `block.pin`."""
    blocks = graph.blocks
    if name in blocks:
        return blocks[name]
    try:
        end = End.parse(name)
    except PageError:
        end = End(name, "")
    pins = blocks[end.block].pins if end.block in blocks else {}
    if end.pin in pins:
        value = pins[end.pin]
        if end.index is None:
            return value
        if isinstance(value, list) and end.index < len(value):
            return value[end.index]
    near = nearest(name, [*blocks, *(f"{b}.{p}" for b, placed in blocks.items() for p in placed.pins)])
    raise make_error("fetch_unknown", argument=repr(name), why=f"; did you mean {near[0]!r}?" if near else "")


def output_of(graph: Graph, value: Any, argument: str) -> Output:
    """Return an output of this graph from the output, its block, or a name."""
    value = find(graph, value) if isinstance(value, str) else value
    value = value.only if isinstance(value, Placed) else value
    if not isinstance(value, Output):
        raise make_error("pin_kind", argument=argument, bound="an output or its name", value=type(value).__name__)
    if not graph.owns(value.node):
        raise make_error("pin_of_other_graph", argument=argument, value=value.name)
    return value


def operation_of(graph: Graph, value: Any, k: int) -> Operation:
    """Return the operation of entry k of `run_outputs`."""
    found = as_operation(find(graph, value) if isinstance(value, str) else value, f"run_outputs[{k}]")
    if found.node is not None and not graph.owns(found.node):
        raise make_error("pin_of_other_graph", argument=f"run_outputs[{k}]", value=found.node.name)
    return found


def collect(graph: Graph, fetches: Any, wanted: list[Output]) -> Any:
    """Append the outputs to fetch to `wanted`; return nested fetches with positions in `wanted` as leaves."""
    if isinstance(fetches, str):
        fetches = find(graph, fetches)
    if isinstance(fetches, Placed):
        pins = {k: v for k, v in fetches.pins.items() if not isinstance(v, Sparse)}
        fetches = next(iter(pins.values())) if len(pins) == 1 else pins
    if isinstance(fetches, Sparse):
        fetches = {n: getattr(fetches, n) for n in ("indices", "values", "dense_shape")}
    if isinstance(fetches, Mapping):
        return {k: collect(graph, v, wanted) for k, v in fetches.items()}
    if isinstance(fetches, list | tuple):
        return [collect(graph, v, wanted) for v in fetches]
    wanted.append(output_of(graph, fetches, "fetches"))
    return len(wanted) - 1


def unflatten(structure: Any, values: list[Array]) -> Any:
    """Put values into the nested structure that `collect` returned."""
    if isinstance(structure, dict):
        return {k: unflatten(v, values) for k, v in structure.items()}
    return [unflatten(v, values) for v in structure] if isinstance(structure, list) else values[structure]
