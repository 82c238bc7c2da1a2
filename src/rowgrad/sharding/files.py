"""Files of shards: folders written atomically, and the headers of .npy and .safetensors files."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import math
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._catalog.spec import QUANTIZED
from .._runtime.arrays import NUMPY_DTYPE
from .._runtime.plain_file import open_plain
from ..errors import make_error

# -- Folders written atomically ---------------------------------------------------------------------------------------

_AT_FDCWD, _EXCHANGE = -100, 2  # arguments of Linux's renameat2


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside the target and remove it at the end.

    Folders that a killed process left behind are removed first. A folder in use is locked until its process ends.
    """
    _remove_abandoned(target)
    folder, lock = _locked_folder(target)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(target: Path) -> tuple[Path, int]:
    while True:
        folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        folder.mkdir()
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process considered it abandoned
            continue
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, handle
        os.close(handle)


def _remove_abandoned(target: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for name in os.listdir(target.parent):
        if pattern.fullmatch(name):
            with contextlib.suppress(OSError):
                handle = os.open(target.parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(target.parent / name, ignore_errors=True)
                finally:
                    os.close(handle)


def put_in_place(folder: Path, target: Path, overwrite: bool) -> None:
    """Rename a folder to its target. With `overwrite` it replaces an existing folder in one step."""
    if overwrite and target.is_dir():
        os.chmod(folder, target.stat().st_mode & 0o7777)
        if not _exchange(folder, target):
            # Not .tmp, which is cleaned up: after a kill between the two renames this is the only copy.
            aside = folder.with_suffix(".old")
            os.rename(target, aside)
            try:
                os.rename(folder, target)
            except BaseException:
                os.rename(aside, target)
                raise
            shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(folder, target)  # replaces an empty folder; raises for anything else
    sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return False where the system cannot."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    if call is None:
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return int(call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)) == 0


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- One tensor of one shard ------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

Array = np.ndarray[Any, Any]
DTYPES = {name: dtype for name, dtype in NUMPY_DTYPE.items() if name != "string" and name not in QUANTIZED}
Stamp = tuple[int, int, int]
_MAX_RANK = 64  # NumPy's
SHAPE = f"at most {_MAX_RANK} whole numbers in [0, 2**63)"


class Stored(Protocol):
    """A tensor of one shard, in a file or a checkpoint, that can be read by rows."""

    @property
    def where(self) -> str:
        """The file that errors name."""

    @property
    def dtype(self) -> str:
        """The catalog's name of its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in this shard."""

    def fill(self, begin: int, rows: Array) -> None:
        """Read rows from row `begin` on into an array with one element of raw bytes per row."""

    def check_unchanged(self) -> None:
        """Raise if the file changed since its header was read."""


def is_shape(shape: Iterable[object]) -> bool:
    """Return whether the sizes in a file can be an array's shape; the product of others could overflow."""
    sizes = list(shape)
    return len(sizes) <= _MAX_RANK and all(type(n) is int and 0 <= n < 2**63 for n in sizes)


def rows_of(shape: tuple[int, ...]) -> int:
    """Return the number of rows; a scalar counts as one."""
    return shape[0] if shape else 1


def row_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the number of bytes of a row."""
    return math.prod(shape[1:]) * DTYPES[dtype].itemsize


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the number of bytes of a tensor."""
    return math.prod(shape) * DTYPES[dtype].itemsize


def stamp_of(path: Path) -> Stamp:
    """Return inode, size and modification time, which change when a file is written."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class InFile:
    """A tensor stored contiguously in a file. Each read opens and closes it, so any number may exist."""

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stamp: Stamp

    @property
    def where(self) -> str:
        """The file."""
        return str(self.path)

    def fill(self, begin: int, rows: Array) -> None:
        """Read rows. The file is not mapped: if a mapped file shrank, the process would crash."""
        view, done = rows.view(np.uint8).data, 0
        with open_plain(self.path) as file:
            file.seek(self.offset + begin * rows.itemsize)
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise make_error(
                        "parts_value", file=self.path, what="the file size", value=file.tell(), bound="larger"
                    )
                done += count

    def check_unchanged(self) -> None:
        """Raise if inode, size or modification time changed."""
        if stamp_of(self.path) != self.stamp:
            raise make_error("parts_malformed", file=self.path, why="the file changed while it was read")


@dataclass(frozen=True, slots=True)
class InCheckpoint:
    """A tensor of a TensorFlow checkpoint, or a shard of one that was saved in slices, which begins at row `first`."""

    checkpoint: Checkpoint
    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int = 0

    @property
    def where(self) -> str:
        """The checkpoint and the name."""
        return f"{self.checkpoint.prefix}: {self.name}"

    def fill(self, begin: int, rows: Array) -> None:
        """Read rows with the checkpoint's reader, which verifies checksums first."""
        begin += self.first
        span = slice(begin, begin + len(rows)) if self.shape else None
        rows.view(np.uint8)[:] = self.checkpoint.read(self.name, span).reshape(-1).view(np.uint8)

    def check_unchanged(self) -> None:
        """Do nothing: the reader verified the checksum."""


# -- Headers of .npy files --------------------------------------------------------------------------------------------

# The format has no name for bfloat16: it is `<V2`, as `numpy.save` writes it.

_MAX_NPY_HEADER = 1 << 16
_BFLOAT16 = "<V2"
_NAMES = {_BFLOAT16: "bfloat16", "|V2": "bfloat16"}
_NAMES |= {dtype.newbyteorder("<").str: name for name, dtype in DTYPES.items() if name != "bfloat16"}
_DESCR = {name: descr for descr, name in _NAMES.items()} | {"bfloat16": _BFLOAT16}


def read_npy_header(path: Path) -> InFile:
    """Return the array of a file; raise if the file contains anything else."""
    stamp = stamp_of(path)
    with open_plain(path) as file:
        stream = io.BytesIO(file.read(_MAX_NPY_HEADER))
        size = os.fstat(file.fileno()).st_size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            version = np.lib.format.read_magic(stream)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = read(stream)
    except Exception:  # NumPy's header parser raises many kinds: SyntaxError, TokenError, KeyError…
        raise make_error("parts_malformed", file=path, why="not a .npy file of version 1 or 2") from None
    if dtype.str not in _NAMES or dtype.names is not None:
        raise make_error("parts_dtype", file=path, what="the array", value=dtype.str, bound=".npy")
    if not is_shape(shape):
        raise make_error("parts_value", file=path, what="shape", value=short(shape), bound=SHAPE)
    if fortran and sum(d > 1 for d in shape) > 1:
        raise make_error("parts_value", file=path, what="the memory order", value="Fortran order", bound="C order")
    name, offset = _NAMES[dtype.str], stream.tell()
    expected = offset + size_of(name, shape)
    if size != expected:
        raise make_error("parts_value", file=path, what="number of bytes", value=size, bound=expected)
    return InFile(path, offset, name, shape, stamp)


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes that precede the rows."""
    stream = io.BytesIO()
    header = {"descr": _DESCR[dtype], "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


# -- Headers of .safetensors files ------------------------------------------------------------------------------------

# A file is the length of the header in 8 bytes, the header in JSON, and the tensors' bytes without gaps.

METADATA = "__metadata__"
_MAX_JSON = 100_000_000  # bytes of a header, as in the format's own reader
_SAFETENSORS_DTYPES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
          "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
          "F64": "float64", "C64": "complex64"}  # fmt: skip
CODES = {name: code for code, name in _SAFETENSORS_DTYPES.items()}
_ALIGNMENT = 8


def read_safetensors_header(path: Path) -> tuple[dict[str, InFile], dict[str, str]]:
    """Return the tensors of a file in the order of their bytes, and its metadata."""
    stamp = stamp_of(path)
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MAX_JSON, size - 8):
            bound = f"at most {max(0, min(_MAX_JSON, size - 8))}"
            raise make_error("parts_value", file=path, what="length of the header", value=length, bound=bound)
        header = _parse_json(path, file.read(length))
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise make_error("parts_value", file=path, what=METADATA, value=short(metadata), bound="a mapping of strings")
    begin = 8 + length
    found = {name: _tensor(path, name, entry, begin, stamp) for name, entry in header.items()}
    found = dict(sorted(found.items(), key=lambda item: (item[1].offset, size_of(item[1].dtype, item[1].shape))))
    end = begin
    for name, tensor in found.items():
        if tensor.offset != end:
            what, value = f"beginning of {name!r}", tensor.offset - begin
            raise make_error("parts_value", file=path, what=what, value=value, bound=end - begin)
        end += size_of(tensor.dtype, tensor.shape)
    if end != size:
        raise make_error("parts_value", file=path, what="number of bytes", value=size, bound=end)
    return found, metadata


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name occurs twice")
        return made

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise make_error("parts_malformed", file=path, why=f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise make_error("parts_malformed", file=path, why="the header is not a JSON object")
    return header


def _tensor(path: Path, name: str, entry: Any, begin: int, stamp: tuple[int, int, int]) -> InFile:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise make_error("parts_value", file=path, what=repr(name), value=short(entry),
                         bound="dtype, shape and data_offsets")  # fmt: skip
    code, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _SAFETENSORS_DTYPES:
        raise make_error("parts_dtype", file=path, what=repr(name), value=short(code), bound=".safetensors")
    for what, numbers in (("shape", shape), ("data_offsets", span)):
        if not isinstance(numbers, list) or not is_shape(numbers):
            raise make_error("parts_value", file=path, what=f"{what} of {name!r}", value=short(numbers),
                             bound=SHAPE)  # fmt: skip
    size = size_of(_SAFETENSORS_DTYPES[code], tuple(shape))
    if len(span) != 2 or span[1] - span[0] != size:
        bound = f"a begin and an end that are {size} apart"
        raise make_error("parts_value", file=path, what=f"data_offsets of {name!r}", value=short(span), bound=bound)
    return InFile(path, begin + span[0], _SAFETENSORS_DTYPES[code], tuple(shape), stamp)


def safetensors_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the bytes that precede the rows, and where in the file each tensor begins.

    Wide dtypes come first, so that all tensors are aligned.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offsets, end = {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-DTYPES[item[1][0]].itemsize, item[0])):
        begin, end = end, end + size_of(dtype, shape)
        offsets[name] = begin
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, {name: 8 + len(text) + begin for name, begin in offsets.items()}
