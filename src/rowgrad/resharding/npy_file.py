"""The header of a .npy file, read with care and written; the rows after it are moved by others.

bfloat16, which the format has no name for, is `<V2`, as `numpy.save` writes it.
"""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from reprlib import repr as short

import numpy as np

from ..errors import refuse
from ..plain_file import open_plain
from .stored import DTYPES, SHAPE, InFile, is_shape, size_of, stamp_of

_LONGEST = 1 << 16  # of a header
_BFLOAT16 = "<V2"
_NAMES = {_BFLOAT16: "bfloat16", "|V2": "bfloat16"}
_NAMES |= {dtype.newbyteorder("<").str: name for name, dtype in DTYPES.items() if name != "bfloat16"}
_DESCR = {name: descr for descr, name in _NAMES.items()} | {"bfloat16": _BFLOAT16}


def read_header(path: Path) -> InFile:
    """The array of a file; it is all the file holds."""
    stamp = stamp_of(path)
    with open_plain(path) as file:
        stream = io.BytesIO(file.read(_LONGEST))
        size = os.fstat(file.fileno()).st_size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            version = np.lib.format.read_magic(stream)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = read(stream)
    except Exception:  # NumPy's parser of headers lets many kinds through: SyntaxError, TokenError, KeyError…
        raise refuse("parts_malformed", file=path, why="it is no .npy file of version 1 or 2") from None
    if dtype.str not in _NAMES or dtype.names is not None:
        raise refuse("parts_dtype", file=path, what="the array", value=dtype.str, bound="parts in .npy")
    if not is_shape(shape):
        raise refuse("parts_value", file=path, what="shape", value=short(shape), bound=SHAPE)
    if fortran and sum(d > 1 for d in shape) > 1:
        raise refuse("parts_value", file=path, what="order of the array", value="Fortran's", bound="C's")
    name, offset = _NAMES[dtype.str], stream.tell()
    wanted = offset + size_of(name, shape)
    if size != wanted:
        raise refuse("parts_value", file=path, what="number of bytes", value=size, bound=wanted)
    return InFile(path, offset, name, shape, stamp)


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes before the rows."""
    stream = io.BytesIO()
    told = {"descr": _DESCR[dtype], "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, told)
    return stream.getvalue()
