"""A block as a page holds it, from what a caller gave: this is what lets graphs made in Python be saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import refuse
from ..sparse_tensor import SparseTensor
from ..spec import Op
from .given import as_sparse, is_list, is_sparse, is_wire, kind_of
from .nodes import Feed, Graph, Operation, Output, Placed
from .page import Block


def refuse_foreign(graph: Graph, op: Op, name: str, given: Mapping[str, Any]) -> None:
    """Whatever comes out of a block comes out of one of this graph."""
    for pin, value in given.items():
        for item in _flat(value):
            node = item.placeholder.node if isinstance(item, Feed) else getattr(item, "node", None)
            if is_wire(item) and node is not None and not graph.owns(node):
                raise refuse("pin_of_other_graph", argument=pin, value=node.name).in_call(op.name, name, kind_of(item))


def write_down(graph: Graph, block: Block, op: Op, given: Mapping[str, Any]) -> None:
    """The block as a page holds it: wires by the ends they come from, the rest as values."""
    for arg in op.inputs:
        if arg.name not in given:
            continue
        value = given[arg.name]
        if is_sparse(value) and not isinstance(value, SparseTensor):
            ends = [graph.ends.get(as_sparse(value))]
        else:
            items = _flat(value) if arg.many else [_first(value)]
            ends = [graph.ends.get(v) if isinstance(v, Output | Operation | Feed) else None for v in items]
        if all(e is not None for e in ends):
            block.wires[arg.name] = [e for e in ends if e is not None]
        else:
            block.values[arg.name] = _own(value)


def _own(value: Any) -> Any:
    """A typed value that nobody else can change."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    return [_own(v) for v in value] if isinstance(value, list | tuple) else value


def _flat(value: Any) -> list[Any]:
    """A list pin's wires one by one; whether a block with several outputs may stand there, its expansion says."""
    if is_sparse(value) and not isinstance(value, SparseTensor):
        parts = as_sparse(value)
        return [parts.indices, parts.values, parts.dense_shape]
    inside = list(value.pins.values()) if isinstance(value, Placed) else value
    if isinstance(inside, list | tuple) and (
        isinstance(value, Placed) or any(is_wire(v) or is_list(v) for v in inside)
    ):
        return [v for item in inside for v in _flat(item)]
    return [value]


def _first(value: Any) -> Any:
    value = value.only if isinstance(value, Placed) and len(value.pins) == 1 else value
    return value[0] if isinstance(value, list) and len(value) == 1 and is_wire(value[0]) else value
