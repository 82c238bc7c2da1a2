"""Values that are typed or fed, brought to a dtype without loss: what does not fit is refused, by its place."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._catalog.spec import QUANTIZED
from .._runtime.arrays import NUMPY_DTYPE, Array, as_array, aval_of, fit, is_inexact
from ..errors import make_error


def in_dtype(value: Any, argument: str, dtype: str | None) -> Array:
    """A value as an array of one dtype; None: whichever dtype it has or suggests. Only floats may be rounded."""
    array = as_array(value, argument, dtype)
    check_reach(value, array, argument)
    if array.dtype == object:
        _check_text(array, argument)
    if dtype is None or aval_of(array).dtype == dtype:
        return array
    target, kind = NUMPY_DTYPE[dtype], array.dtype.kind
    if dtype in QUANTIZED and kind in "iu":
        return fit(array, argument, target[0]).view(target)
    if is_inexact(target) and (kind in "iub" or (is_inexact(array.dtype) and (kind != "c" or target.kind == "c"))):
        with np.errstate(over="ignore"):
            found = array.astype(target)
        _check_finite(array, found, argument)
        return found
    if target.kind in "iub" and kind in "iubf" and array.dtype.names is None:
        whole = _whole(array, argument, dtype)
        return _truth(whole, argument) if dtype == "bool" else fit(whole, argument, target)
    raise make_error("dtype_expected", argument=argument, value=aval_of(array).dtype, bound=dtype, why="")


def _check_text(array: Array, argument: str) -> None:
    """Raise if a string has half a character in it, which no file could hold."""
    for position, item in enumerate(array.reshape(-1)):
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                bound = "text without lone surrogates"
                raise make_error(
                    "value_unfit", argument=argument, position=position, bound=bound, value=ascii(item)
                ) from None


def check_reach(value: Any, array: Array, argument: str) -> None:
    """Raise if a finite Python number became infinite in the dtype of the array made of it."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    if isinstance(value, float | complex | list | tuple) and is_inexact(array.dtype) and array.dtype != wide:
        _check_finite(np.asarray(value, wide), array, argument)


def _check_finite(before: Array, after: Array, argument: str) -> None:
    """No finite number became infinite."""
    lost = np.flatnonzero(np.isfinite(before).reshape(-1) & ~np.isfinite(after).reshape(-1))
    if len(lost):
        at, dtype = int(lost[0]), aval_of(after).dtype
        value = before.reshape(-1)[at].item()
        raise make_error("number_does_not_fit", argument=argument, position=at, value=value, bound=dtype)


def _whole(array: Array, argument: str, dtype: str) -> Array:
    """Whole numbers; floats only where they are."""
    if array.dtype.kind != "f":
        return array.astype(np.int64) if array.dtype.kind == "b" else array
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    uneven = np.flatnonzero(whole.reshape(-1) != array.reshape(-1))
    if len(uneven):
        at = int(uneven[0])
        value = array.reshape(-1)[at].item()
        raise make_error("integer_does_not_fit", argument=argument, position=at, value=value, bound=dtype)
    return whole


def _truth(whole: Array, argument: str) -> Array:
    strange = np.flatnonzero((whole != 0).reshape(-1) & (whole != 1).reshape(-1))
    if len(strange):
        at = int(strange[0])
        raise make_error(
            "integer_does_not_fit", argument=argument, position=at, value=whole.reshape(-1)[at].item(), bound="bool"
        )
    return whole.astype(bool)
