"""The height of a block in an editor, with its typed values and the results of a run, for which layouts leave space.

The numbers agree with Studio's style sheet and with `web/src/canvas/layout.ts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._catalog.spec import find_op
from .page import Block

LABEL = 18.0  # the name above a block
_HEAD, _PIN, _FOOT, _BUTTONS = 42.0, 22.0, 28.0, 30.0
_LINE, _ROW, _PICTURE = 24.0, 17.0, 40.0  # of a result: its name, a row of a small table, a heat map or line
_MOST_ROWS, _MOST_COLUMNS, _MOST_TEXT = 6, 8, 24  # more are drawn as a picture

Described = Mapping[str, Any]  # of one pin by `page_summary`: a value, or the values of a list


def block_height(block: Block, outputs: Described | None = None) -> float:
    """Return the height of a block after a run.

    Args:
        block: The block.
        outputs: The values at its output pins, as `page_summary` describes them. Without them, or where a shape is
            unknown, the result has the height of a picture.
    """
    op = find_op(block.op)
    inputs = [pin.name for pin in op.inputs] if op else [*block.wires, *block.values]
    results = [one for name in ([o.name for o in op.outputs] if op else [""]) for one in _values(outputs, name)]
    typed = [np.shape(x) for value in block.values.values() for x in _arrays(value)] if not block.wires else []
    left = sum(_PIN if name not in block.values else _value_height(block.values[name]) for name in inputs)
    right = _PIN * (len(results) + (len(results) > 1))
    buttons = _BUTTONS if op is not None and op.runs else 0.0
    return _HEAD + max(left, right, _PIN) + buttons + sum(_result_height(one, typed) for one in results) + _FOOT


def _values(outputs: Described | None, name: str) -> list[Described]:
    found = (outputs or {}).get(name)
    return found if isinstance(found, list) else [found or {"shape": None, "ref": False}]


def _arrays(value: Any) -> Sequence[Any]:
    """Return the typed value of a pin, or those of a pin that takes several arrays, whose shapes may differ."""
    return value if isinstance(value, list) and any(isinstance(x, np.ndarray) for x in value) else [value]


def _value_height(value: Any) -> float:
    arrays = _arrays(value)
    if len(arrays) > 1:
        return sum(map(_value_height, arrays))
    shape = np.shape(value)
    if len(shape) < 2 and np.size(value) <= _MOST_COLUMNS:
        return _PIN + (8.0 if len(str(np.asarray(value).tolist())) > _MOST_TEXT else 0.0)
    return 22.0 + _matrix_height(shape)


def _result_height(result: Described, typed: Sequence[tuple[int, ...]]) -> float:
    shape = result["shape"]
    if len(shape or ()) == 2 and tuple(shape) in typed and not result["ref"]:
        return _LINE  # the typed value shows the same table
    if shape is not None and (len(shape) == 0 or (len(shape) == 1 and (shape[0] or _MOST_COLUMNS) < _MOST_COLUMNS)):
        return _LINE + _ROW
    return _LINE + _matrix_height(shape)


def _matrix_height(shape: Sequence[int | None] | None) -> float:
    """Return the height of a small table, or of a picture of more."""
    rows, columns = shape if shape is not None and len(shape) == 2 else (None, None)
    if rows is None and columns is not None:  # how many rows there are depends on the data
        rows = _MOST_ROWS
    if rows is None or rows > _MOST_ROWS or (columns or 0) > _MOST_COLUMNS:
        return _PICTURE
    return max(_PICTURE, _ROW * rows)
