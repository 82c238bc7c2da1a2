"""A block as a page holds it, from what a caller gave: this is what lets graphs made in Python be saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..sparse_tensor import SparseTensor
from ..spec import Op
from .given import as_sparse, is_list, is_sparse, is_wire
from .nodes import Graph, Placed
from .page import Block


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
            ends = [graph.ends.get(v) if _hashable(v) else None for v in items]
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


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None and not isinstance(value, str | bytes | int | float | complex)
