"""Arrays by name in one .npz that NumPy alone can read."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from ...arrays import aval_of
from ...errors import refuse
from ...spec import QUANTIZED
from .files import write_atomically


def save_arrays(path: str | PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays under their names, whole or not at all.

    What NumPy's files do not know is told by a second member: `x.dtype` says "bfloat16" beside uint16 bits, or a
    quantized dtype beside its integers. Strings are fixed-width text, or bytes where one is not text; where one ends
    in NUL, which that would lose, `x` is all their bytes and `x.offsets` says where each begins.
    """
    members: dict[str, Any] = {}
    for name, value in arrays.items():
        for member, array in _members(name, np.asarray(value)).items():
            if member in members or "\0" in member:
                bound = "of names that no other member has, without NUL"
                raise refuse("value_unfit", argument="arrays", bound=bound, value=repr(member))
            members[member] = array

    def write(file: BinaryIO) -> None:
        # Not np.savez, which has arguments of its own that a member could be named after.
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_atomically(path, write)


def _members(name: str, array: Any) -> dict[str, Any]:
    """The members that hold one array."""
    dtype = aval_of(array).dtype
    if dtype == "bfloat16":
        return {name: array.view(np.uint16), f"{name}.dtype": np.array(dtype)}
    if dtype in QUANTIZED:
        return {name: array.view(array.dtype[0]), f"{name}.dtype": np.array(dtype)}
    return _strings(name, array) if dtype == "string" else {name: array}


def _strings(name: str, array: Any) -> dict[str, Any]:
    items = array.ravel().tolist()
    coded = [i.encode() if isinstance(i, str) else i for i in items]
    if any(c.endswith(b"\0") for c in coded):
        offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
        joined = np.frombuffer(b"".join(coded), np.uint8)
        return {name: joined, f"{name}.offsets": offsets, f"{name}.shape": np.array(array.shape, np.int64)}
    is_text = all(isinstance(i, str) for i in items)
    return {name: np.array(items if is_text else coded, dtype=str if is_text else bytes).reshape(array.shape)}
