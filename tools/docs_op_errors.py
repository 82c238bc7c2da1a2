"""Find the errors of an op by calling its example repeatedly with one argument made wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from docs_examples import bound_example

import rowgrad as rg
from rowgrad._catalog.spec import INDEX, Arg, Op
from rowgrad._runtime.arrays import admit
from rowgrad.raw_ops import OPS

FAR = 99  # no example has as many rows


def errors_of(op: Op) -> dict[str, tuple[str, str]]:
    """Return message -> (change, error class). Changes that the op accepts are omitted."""
    arguments, attrs = bound_example(op)
    arrays = admit(op, dict(arguments))
    found: dict[str, tuple[str, str]] = {}
    reported: set[Any] = set()
    for change in (wrong_number, wrong_length, wrong_rank, wrong_dtype):
        for arg in op.inputs:
            for what, value in change(arg, arrays[arg.name]):
                try:
                    OPS[op.name](**{**arguments, arg.name: value}, **attrs)
                except rg.errors.OpError as error:
                    kind = re.sub(r"-?\d+", "0", error.message)  # the same message with other numbers is omitted
                    if kind not in reported and not (change is wrong_dtype and wrong_dtype in reported):
                        reported |= {kind, change}
                        found[error.message] = (what, type(error).__name__)
    return found


def wrong_number(arg: Arg, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield ids and sizes below 0, ids that are too large, ids out of order."""
    if arg.many or not (arg.role != "values" or arg.type in INDEX):
        return
    array = np.asarray(value)
    for number in (-1,) if arg.host else (-1, FAR):
        if array.ndim == 0:
            yield f"`{arg.name}={number}`", array.dtype.type(number)
        elif array.size:
            yield f"`{arg.name}[{place(array, -1)}] = {number}`", changed(array, -1, number)
    if array.size > 1 and not arg.host:
        yield f"`{arg.name}[{place(array, 0)}] = {FAR}`", changed(array, 0, FAR)


def wrong_length(arg: Arg, value: Any) -> Iterator[tuple[str, Any]]:
    if arg.many:
        yield f"`{arg.name}` empty", []
    elif np.ndim(value):
        yield f"`{arg.name}` without its last row", np.asarray(value)[:-1]


def wrong_rank(arg: Arg, value: Any) -> Iterator[tuple[str, Any]]:
    if arg.many:
        return
    array = np.asarray(value)
    yield f"`{arg.name}` with a dimension more", array[None]
    if array.ndim and array.size:
        yield f"`{arg.name}` as a scalar", array.reshape(-1)[0]


def wrong_dtype(arg: Arg, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield bool, which few ops accept. One such error is enough: the dtypes have their own table."""
    if not arg.many and np.asarray(value).dtype.kind != "b":
        yield f"`{arg.name}` of dtype bool", np.zeros(np.shape(value), bool)


def place(array: np.ndarray, position: int) -> str:
    return ", ".join(str(k) for k in np.unravel_index(position % array.size, array.shape))


def changed(array: np.ndarray, position: int, number: int) -> np.ndarray:
    copy = np.array(array)
    copy.reshape(-1)[position] = number
    return copy
