"""Values that are known before any run: sizes, and small whole numbers made of constants, which shapes are made of."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..arrays import NUMPY_DTYPE
from ..errors import OpError
from ..raw_ops import OPS
from .admission import each, frozen, is_integer, known_value
from .nodes import Node, Output

_SMALL = 1024  # elements up to which a value is worked out
_BY_SHAPE = ("Shape", "Size", "Rank", "Dimension")  # known as soon as the input's shape is


def work_out(node: Node) -> None:
    """Small whole numbers that are known already: sizes and shapes that other nodes' shapes are made of."""
    op = node.op
    if op.layer != "dense" or len(node.outputs) != 1 or not is_integer(node.outputs[0].dtype):
        return
    if op.name in _BY_SHAPE:
        given = node.inputs[0]
        if given.shape is None or any(given.shape[k] is None for k in _sizes_seen(node, len(given.shape))):
            return
        dtype = NUMPY_DTYPE[given.dtype] if isinstance(given, Output) else given.dtype
        shape = [d or 0 for d in given.shape]
        if math.prod(shape) >= 1 << 58:  # beyond what NumPy can index
            return
        inputs: list[Any] = [np.broadcast_to(np.zeros((), dtype), shape)]
    else:
        made = node.outputs[0].shape
        if made is None or None in made or math.prod(d for d in made if d is not None) > _SMALL:
            return
        inputs = [each(v, known_value) for v in node.inputs]
    if any(v is None for i in inputs for v in (i if isinstance(i, tuple) else (i,))):
        return
    with contextlib.suppress(OpError):  # a run that needs it will say what is wrong
        node.outputs[0].value = frozen(np.asarray(OPS[op.name](*map(_listed, inputs), **node.attrs)))


def _sizes_seen(node: Node, rank: int) -> Iterable[int]:
    """The dimensions whose sizes the node's value is made of."""
    if node.op.name == "Dimension":
        return (range(rank)[node.attrs["axis"]],)
    return () if node.op.name == "Rank" else range(rank)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
