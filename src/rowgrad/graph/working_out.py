"""Values that are known before any run: sizes, and small whole numbers made of constants, which shapes are made of."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from ..arrays import NUMPY_DTYPE
from ..errors import OpError
from ..raw_ops import OPS
from .admission import each, frozen, is_integer, known_value
from .nodes import Node

_SMALL = 1024  # elements up to which a value is worked out
_BY_SHAPE = ("Shape", "Size", "Rank", "Dimension")  # known as soon as the input's shape is


def work_out(node: Node) -> None:
    """Give the node's output its value where that is known and small."""
    if node.op.layer != "dense" or len(node.outputs) != 1 or not is_integer(node.outputs[0].dtype):
        return
    value = _of_shape(node) if node.op.name in _BY_SHAPE else _of_values(node)
    if value is not None:
        node.outputs[0].value = frozen(np.array(value, NUMPY_DTYPE[node.outputs[0].dtype]))


def _of_shape(node: Node) -> Any:
    """What an op says of its input's shape, as far as that is known."""
    shape = node.inputs[0].shape
    if shape is None:
        return None
    if node.op.name == "Rank":
        return len(shape)
    if node.op.name == "Dimension":
        return shape[node.attrs["axis"]]
    value = shape if node.op.name == "Shape" else math.prod(d or 0 for d in shape)
    limit = np.iinfo(NUMPY_DTYPE[node.outputs[0].dtype]).max
    fits = None not in shape and max((value,) if isinstance(value, int) else value, default=0) <= limit
    return value if fits else None  # a run says what does not fit


def _of_values(node: Node) -> Any:
    """What an op makes of values that are known."""
    made = node.outputs[0].shape
    if made is None or None in made or math.prod(d for d in made if d is not None) > _SMALL:
        return None
    inputs = [each(v, known_value) for v in node.inputs]
    if any(v is None for i in inputs for v in (i if isinstance(i, tuple) else (i,))):
        return None
    with contextlib.suppress(OpError):  # a run that needs it will say what is wrong
        return OPS[node.op.name](*(list(i) if isinstance(i, tuple) else i for i in inputs), **node.attrs)
    return None
