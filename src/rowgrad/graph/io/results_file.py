"""Arrays by name in one .npz that NumPy alone can read."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from ...arrays import aval_of
from ...spec import QUANTIZED
from .files import write_atomically


def save_arrays(path: str | PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays under their names, whole or not at all.

    What NumPy's files do not know is told by a second member: `x.dtype` says "bfloat16" beside uint16 bits, or a
    quantized dtype beside its integers. Strings are fixed-width text, or bytes where one is not text.
    """
    members: dict[str, Any] = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        dtype = aval_of(array).dtype
        if dtype == "bfloat16":
            members[name], members[f"{name}.dtype"] = array.view(np.uint16), np.array(dtype)
        elif dtype in QUANTIZED:
            members[name], members[f"{name}.dtype"] = array.view(array.dtype[0]), np.array(dtype)
        elif dtype == "string":
            members[name] = _fixed_width(array)
        else:
            members[name] = array

    def write(file: BinaryIO) -> None:
        np.savez(file, allow_pickle=False, **members)

    write_atomically(path, write)


def _fixed_width(array: Any) -> Any:
    items = array.ravel().tolist()
    if all(isinstance(i, str) for i in items):
        return np.array(items, dtype=str).reshape(array.shape)
    return np.array([i.encode() if isinstance(i, str) else i for i in items], dtype=bytes).reshape(array.shape)
