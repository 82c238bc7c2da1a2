"""The header of a .safetensors file, read with care and written; the rows after it are moved by others.

A file is 8 bytes that say how long the header is, the header in JSON, and the tensors' bytes without a gap.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any

from ..errors import refuse
from ..plain_file import open_plain
from .stored import DTYPES, SHAPE, InFile, is_shape, size_of, stamp_of

METADATA = "__metadata__"
_LONGEST = 100_000_000  # of a header, as the format's own reader has it
_NAMES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
          "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
          "F64": "float64", "C64": "complex64"}  # fmt: skip
CODES = {name: code for code, name in _NAMES.items()}
_ALIGNED = 8


def read_header(path: Path) -> tuple[dict[str, InFile], dict[str, str]]:
    """The tensors of a file in the order of their bytes, and its metadata."""
    stamp = stamp_of(path)
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_LONGEST, size - 8):
            bound = f"at most {max(0, min(_LONGEST, size - 8))}"
            raise refuse("parts_value", file=path, what="length of the header", value=length, bound=bound)
        told = _parsed(path, file.read(length))
    metadata = told.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise refuse("parts_value", file=path, what=METADATA, value=short(metadata), bound="strings by name")
    begin = 8 + length
    found = {name: _tensor(path, name, entry, begin, stamp) for name, entry in told.items()}
    found = dict(sorted(found.items(), key=lambda item: (item[1].offset, size_of(item[1].dtype, item[1].shape))))
    end = begin
    for name, tensor in found.items():
        if tensor.offset != end:
            what, given = f"beginning of {name!r}", tensor.offset - begin
            raise refuse("parts_value", file=path, what=what, value=given, bound=end - begin)
        end += size_of(tensor.dtype, tensor.shape)
    if end != size:
        raise refuse("parts_value", file=path, what="number of bytes", value=size, bound=end)
    return found, metadata


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    def unlike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name stands twice")
        return made

    try:
        told = json.loads(text.decode("utf-8"), object_pairs_hook=unlike)
    except (ValueError, RecursionError) as error:
        raise refuse("parts_malformed", file=path, why=f"the header is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise refuse("parts_malformed", file=path, why="the header is no JSON object")
    return told


def _tensor(path: Path, name: str, entry: Any, begin: int, stamp: tuple[int, int, int]) -> InFile:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise refuse("parts_value", file=path, what=repr(name), value=short(entry),
                     bound="dtype, shape and data_offsets")  # fmt: skip
    code, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise refuse("parts_dtype", file=path, what=repr(name), value=short(code), bound="parts in .safetensors")
    for what, numbers in (("shape", shape), ("data_offsets", span)):
        if not isinstance(numbers, list) or not is_shape(numbers):
            raise refuse("parts_value", file=path, what=f"{what} of {name!r}", value=short(numbers),
                         bound=SHAPE)  # fmt: skip
    size = size_of(_NAMES[code], tuple(shape))
    if len(span) != 2 or span[1] - span[0] != size:
        bound = f"two that are {size} apart"
        raise refuse("parts_value", file=path, what=f"data_offsets of {name!r}", value=short(span), bound=bound)
    return InFile(path, begin + span[0], _NAMES[code], tuple(shape), stamp)


def header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """The bytes before the rows, and where in the file each tensor begins: wide dtypes first, so all are aligned."""
    told: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offsets, end = {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-DTYPES[item[1][0]].itemsize, item[0])):
        begin, end = end, end + size_of(dtype, shape)
        offsets[name] = begin
        told[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text, {name: 8 + len(text) + begin for name, begin in offsets.items()}
