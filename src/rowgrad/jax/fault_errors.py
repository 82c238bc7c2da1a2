"""Errors of kernels in compiled programs, in terms of what the user wrote: an op, a step, or `table[ids]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from .._catalog.enums import Fault
from .._catalog.rules import number_error
from .._catalog.spec import CATALOG, Op
from ..errors import OpError, make_error

# The arguments by which errors name those of optimizer steps; `row_step` calls them.
STEP_ARGUMENTS = {
    "apply_rows": ("table", "grad", "row_ids"),
    "apply_bags": ("table", "grad", "indices", "segment_ids"),
}
# In a step of several tables, the arguments of each are a line; positions have the number of the table above bit 40.
TABLE_END = "\n"
_TABLE_BIT = 40
_ids_shape: ContextVar[tuple[int, ...] | None] = ContextVar("ids_shape", default=None)


@contextmanager
def row_lookup(shape: tuple[int, ...] | None) -> Iterator[None]:
    """Record that the ops called meanwhile are those of `table[ids]`, for ids of this shape; None: they are not."""
    token = _ids_shape.set(shape)
    try:
        yield
    finally:
        _ids_shape.reset(token)


def current_ids_shape() -> tuple[int, ...] | None:
    """Return the shape of the ids of `table[ids]`; None outside of `row_lookup`."""
    return _ids_shape.get()


def call_text(op: Op, avals: Sequence[Any], ids_shape: tuple[int, ...] | None) -> str:
    """Return the text that identifies a call in a compiled program: the op, and the shape of the ids of `table[ids]`.

    Calls with other ids than `table[ids]` passed, such as those of a device's shard, are identified by the op only.
    """
    arrays = [arg.name for arg in op.inputs if not arg.host]
    if ids_shape is None or "indices" not in arrays or avals[arrays.index("indices")].shape != (prod(ids_shape),):
        return op.name
    return f"{op.name} [{','.join(map(str, ids_shape))}]"


def error_of(text: str, got: str, fault: str, position: int, value: int, bound: int) -> tuple[OpError, str, str]:
    """Return the error of a fault in a call with this text, and the name and the arguments of what the user called."""
    name, _, shape = text.partition(" ")
    if fault == Fault.number_unfit.name:
        return number_error(position, value, bound), name, "" if TABLE_END in got else got
    if name in STEP_ARGUMENTS:
        got = got.split(TABLE_END)[max(position, 0) >> _TABLE_BIT]
        position = position & ((1 << _TABLE_BIT) - 1) if position > 0 else position
    names = STEP_ARGUMENTS[name] if name in STEP_ARGUMENTS else CATALOG[name].input_names
    error = make_error(fault, has=names, position=position, value=value, bound=bound)
    if not shape or error.argument != "indices" or error.position is None:
        return error, name, got
    sizes = [int(size) for size in shape[1:-1].split(",") if size]
    return id_outside(sizes, error.position, value, bound), "table[ids]", ""


def id_outside(shape: Sequence[int], position: int, value: Any, rows: Any) -> OpError:
    """Return the error of a bad id of `table[ids]`: its flat position in ids of this shape, and the table's rows."""
    places = [int(k) for k in np.unravel_index(position, shape)]
    where = places[0] if len(places) == 1 else ", ".join(map(str, places)) or "()"
    return make_error("id_outside", argument="ids", position=where, value=value, bound=rows)
