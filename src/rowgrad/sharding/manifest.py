"""The layout of a table stored as one file per part, and its manifest: a small JSON file that is written last."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from .._runtime.plain_file import open_plain
from ..errors import make_error
from .div_mod import STRATEGIES
from .files import DTYPES, SHAPE, is_shape

FORMATS = ("npy", "safetensors")
MANIFEST = "parts.json"
MAX_PARTS = 99_999  # names have five digits
TABLE = "table"  # the tensor in a .npy file whose name contains no tensor name
_MAX_BYTES = 1 << 24  # of a manifest
_FORMAT, _VERSION = "rowgrad.parts", 1  # part of the file format
_PART = re.compile(r"part-(\d{5})-of-(\d{5})(?:\.([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?\.(npy|safetensors)")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor of a table in parts.

    With `by_rows` its rows are distributed over the parts, and `shape` is that of the whole; otherwise every part has
    a copy.
    """

    dtype: str
    shape: tuple[int, ...]
    by_rows: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A table in parts: the files' format ("npy" or "safetensors"), the rule, and the tensors by name."""

    format: str
    strategy: str
    parts: int
    rows: int
    tensors: dict[str, TensorLayout]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON data."""
        tensors = {
            name: {"dtype": t.dtype, "shape": list(t.shape), "by_rows": t.by_rows} for name, t in self.tensors.items()
        }
        return {"format": _FORMAT, "version": _VERSION, "files": self.format, "strategy": self.strategy,
                "parts": self.parts, "rows": self.rows, "tensors": tensors}  # fmt: skip


def part_name(number: int, parts: int, format: str, tensor: str = TABLE) -> str:
    """Return the name of a part's file: part-00000-of-00004.npy, or part-00000-of-00004.momentum.npy."""
    tensor_part = f".{tensor}" if format == "npy" and tensor != TABLE else ""
    return f"part-{number:05}-of-{parts:05}{tensor_part}.{format}"


def parse_name(name: str) -> tuple[int, int, str, str] | None:
    """Return number, number of parts, format and tensor from a part's file name; None for any other name."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    number, parts, tensor, format = int(match[1]), int(match[2]), match[3] or TABLE, match[4]
    return (number, parts, format, tensor) if part_name(number, parts, format, tensor) == name else None


def check_name(name: str, folder: Path) -> None:
    """Raise unless the name of a .npy file can contain this tensor's name."""
    if not _NAME.fullmatch(name):
        raise make_error(
            "parts_value",
            file=folder,
            what="name of a tensor",
            value=repr(name),
            bound="letters, digits, _, . and - for .npy files; rename it with tensors=",
        )


def read_manifest(folder: Path) -> Layout | None:
    """Return the layout in a folder's manifest; None if there is no manifest."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    with open_plain(path) as file:
        text = file.read(_MAX_BYTES + 1)
    try:
        fields = json.loads(text.decode("utf-8")) if len(text) <= _MAX_BYTES else None
    except (ValueError, RecursionError) as error:
        raise make_error("parts_malformed", file=path, why=f"not JSON: {error}") from None
    keys = {"format", "version", "files", "strategy", "parts", "rows", "tensors"}
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT or not keys <= set(fields):
        raise make_error("parts_malformed", file=path, why=f"not a manifest: {', '.join(sorted(keys))} in JSON")
    _require(path, "version", fields["version"], fields["version"] == _VERSION, _VERSION)
    _require(path, "files", fields["files"], fields["files"] in FORMATS, " or ".join(FORMATS))
    _require(path, "strategy", fields["strategy"], fields["strategy"] in STRATEGIES, " or ".join(STRATEGIES))
    _require(path, "parts", fields["parts"], _is_count(fields["parts"]) and 1 <= fields["parts"] <= MAX_PARTS,
            f"in [1, {MAX_PARTS}]")  # fmt: skip
    _require(path, "rows", fields["rows"], _is_count(fields["rows"]), "a whole number")
    _require(path, "tensors", fields["tensors"], isinstance(fields["tensors"], dict), "tensors by name")
    tensors = {name: _tensor(path, name, entry, fields["rows"]) for name, entry in fields["tensors"].items()}
    return Layout(fields["files"], fields["strategy"], fields["parts"], fields["rows"], tensors)


def _tensor(path: Path, name: str, entry: Any, rows: int) -> TensorLayout:
    is_complete = isinstance(entry, dict) and {"dtype", "shape", "by_rows"} <= set(entry)
    _require(path, repr(name), entry, is_complete, "dtype, shape and by_rows")
    dtype, shape, by_rows = entry["dtype"], entry["shape"], entry["by_rows"]
    _require(path, f"dtype of {name!r}", dtype, isinstance(dtype, str) and dtype in DTYPES, "a supported dtype")
    _require(path, f"shape of {name!r}", shape, isinstance(shape, list) and is_shape(shape), SHAPE)
    _require(path, f"by_rows of {name!r}", by_rows, isinstance(by_rows, bool), "true or false")
    _require(path, f"shape of {name!r}", shape, not by_rows or shape[:1] == [rows], f"of {rows} rows")
    return TensorLayout(dtype, tuple(shape), by_rows)


def _is_count(value: object) -> bool:
    return is_shape([value])


def _require(path: Path, what: str, value: object, holds: bool, bound: object) -> None:
    if not holds:
        raise make_error("parts_value", file=path, what=what, value=short(value), bound=bound)
