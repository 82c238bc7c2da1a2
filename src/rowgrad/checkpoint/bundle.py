"""A checkpoint's files: where they are, and the bytes and strings of a tensor."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from .._hints import did_you_mean
from .._runtime.plain_file import open_plain
from ..errors import OpError, make_error
from .crc32c import check_checksum, crc32c
from .encoding import Cursor
from .index_file import Entry, Header, read_index

# -- Bytes of a data file ---------------------------------------------------------------------------------------------

# Files are read, not mapped: if a mapped file shrank, the process would crash.

Array = np.ndarray[Any, Any]
Stamp = tuple[int, int, int]
_PIECE = 1 << 22  # bytes to checksum at a time


def size_of(path: Path) -> int:
    """Return the size of a data file; raise if it does not exist."""
    with _opened(path) as file:
        return os.fstat(file.fileno()).st_size


def stamp_of(path: Path) -> Stamp:
    """Return inode, size and modification time of a data file, which change when it is written or replaced."""
    with _opened(path) as file:
        status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


def _opened(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except OSError:
        if os.path.isfile(path):
            raise
        raise make_error("checkpoint_not_there", file=path) from None


def check_place(path: Path, entry: Entry) -> None:
    """Raise unless all bytes of a tensor are in the file."""
    end, bound = entry.offset + entry.size, size_of(path)
    if entry.offset < 0 or entry.size < 0 or end > bound:
        raise make_error("checkpoint_outside", file=path, what=entry.name, begin=entry.offset, value=end, bound=bound)


def read_bytes(path: Path, begin: int, size: int) -> Array:
    """Return bytes of a file as a new array."""
    check_memory(size, path)
    octets = np.empty(size, np.uint8)
    with _opened(path) as file:
        file.seek(begin)
        _fill(file, octets, path)
    return octets


def checksum(path: Path, begin: int, size: int) -> int:
    """Return the checksum of bytes of a file, without reading all of them into memory."""
    octets = np.empty(min(size, _PIECE), np.uint8)
    found = 0
    with _opened(path) as file:
        file.seek(begin)
        for done in range(0, size, _PIECE):
            piece = octets[: size - done]
            _fill(file, piece, path)
            found = crc32c(piece, found)
    return found


def check_memory(size: int, file: object) -> None:
    """Raise if a size that a file claims exceeds this machine's memory."""
    bound = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > bound:
        raise make_error("checkpoint_memory", file=file, value=size, bound=bound)


def _fill(file: BinaryIO, octets: Array, path: Path) -> None:
    view, done = octets.data, 0
    while done < len(octets):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise make_error("checkpoint_value", file=path, what="the file size", value=file.tell(), bound="larger")
        done += count


# -- String tensors ---------------------------------------------------------------------------------------------------

# A string tensor is stored as all lengths, their checksum, and all bytes.

_SHORT = 1 << 32  # lengths below are checksummed as 4 bytes, others as 8


def decode_strings(data: bytes, entry: Entry, path: Path, big_endian: bool, verify: bool) -> Array:
    """Return an array of bytes objects in the shape of the tensor. `path` is the data file, for errors."""
    cursor = Cursor(data, f"{path}: {entry.name}")
    if entry.elements > len(data):  # each length takes at least a byte
        what, bound = f"number of strings in {entry.name}", f"at most {len(data)}"
        raise make_error("checkpoint_value", file=path, what=what, value=entry.elements, bound=bound)
    lengths = [cursor.varint() for _ in range(entry.elements)]
    stored = cursor.take(4)
    begin = cursor.at
    if sum(lengths) != cursor.left:
        what = f"length of all strings in {entry.name}"
        raise make_error("checkpoint_value", file=path, what=what, value=sum(lengths), bound=cursor.left)
    if verify:
        order: Literal["big", "little"] = "big" if big_endian else "little"
        lengths_crc = crc32c(b"".join(n.to_bytes(4 if n < _SHORT else 8, order) for n in lengths))
        check_checksum(lengths_crc, int.from_bytes(stored, order), path, f"the lengths in {entry.name}")
        check_checksum(crc32c(data[begin:], crc32c(stored, lengths_crc)), entry.checksum, path, entry.name)
    strings = np.empty(entry.elements, object)
    for place, length in enumerate(lengths):
        strings[place] = cursor.take(length)
    return strings.reshape(entry.shape)


# -- Finding a checkpoint: a prefix, its `.index` file, or a directory that names its latest --------------------------

_STATE_FILE = "checkpoint"
_STATE_SIZE = 1 << 20  # bytes to read: the first line names the latest checkpoint
_LATEST = re.compile(rb'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_INDEX = ".index"
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_OTHER_FORMATS = {
    ".keras": "a Keras archive", ".h5": "an HDF5 file", ".hdf5": "an HDF5 file", ".pb": "a graph without variables",
    ".safetensors": "a safetensors file", ".npz": "a NumPy archive", ".pt": "a PyTorch file", ".pth": "a PyTorch file",
}  # fmt: skip
_SHOWN = 5  # names of checkpoints in an error


def find_prefix(path: str | os.PathLike[str], follow_links: bool = False) -> Path:
    """Return the common prefix of a checkpoint's files; for a directory, inside of it unless `follow_links`."""
    prefix = Path(path)
    if prefix.name.endswith(_INDEX) and os.path.isfile(prefix):
        return prefix.with_name(prefix.name.removesuffix(_INDEX))
    if not _exists(prefix) and os.path.isdir(prefix):
        prefix = _latest(prefix, follow_links)
    if not _exists(prefix):
        raise _not_a_checkpoint(prefix)
    return prefix


def _not_a_checkpoint(prefix: Path) -> OpError:
    """Return the error for a path without an index: another format, a missing shard, or a misspelled name."""
    if os.path.isfile(prefix):
        if (kind := _OTHER_FORMATS.get(prefix.suffix)) is not None:
            return make_error("checkpoint_format", file=prefix, value=kind)
        if _DATA.search(prefix.name) and _exists(bare := prefix.with_name(_DATA.sub("", prefix.name))):
            return make_error("checkpoint_data_file", file=prefix, value=repr(str(bare)))
    return make_error(
        "checkpoint_not_there", file=index_path(prefix), advice=did_you_mean(prefix.name, _prefixes_in(prefix.parent))
    )


def _prefixes_in(directory: Path) -> list[str]:
    """Return the names of the checkpoints in a directory, by their index files."""
    try:
        names = sorted(os.listdir(directory))
    except (OSError, ValueError):
        return []
    return [name.removesuffix(_INDEX) for name in names if name.endswith(_INDEX) and name != _INDEX]


def index_path(prefix: Path) -> Path:
    """Return the path of the index, which lists the tensors."""
    return Path(f"{prefix}{_INDEX}")


def data_path(prefix: Path, number: int, count: int) -> Path:
    """Return the path of one of the data files, which contain the tensors' bytes."""
    return Path(f"{prefix}.data-{number:05}-of-{count:05}")


def _latest(directory: Path, follow_links: bool) -> Path:
    state = directory / _STATE_FILE
    if not os.path.isfile(state):
        return _only(directory, state)
    with open_plain(state) as file:
        named = _LATEST.search(file.read(_STATE_SIZE))
    if named is None:
        raise make_error("checkpoint_state", file=state)
    latest = directory / os.fsdecode(_ESCAPE.sub(_unescaped, named[1]))  # an absolute path replaces the directory
    beside = directory / latest.name
    inside = follow_links or _is_inside(latest, directory)
    # In a directory that was moved, the file still has the old path.
    if _exists(beside) and not (inside and _exists(latest)):
        return beside
    if not inside:
        raise make_error("checkpoint_elsewhere", file=state, value=repr(str(latest)))
    return latest


def _only(directory: Path, state: Path) -> Path:
    """Return the checkpoint of a directory that does not name its latest one; raise unless it has exactly one."""
    found = _prefixes_in(directory)
    if len(found) == 1:
        return directory / found[0]
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise make_error("checkpoint_several", file=directory, value=len(found), bound=shown)
    variables = directory / "variables" / "variables"  # of a SavedModel
    is_model = _exists(variables)
    advice = f"It is a SavedModel: pass {str(variables)!r}." if is_model else "The folder has no .index file either."
    raise make_error("checkpoint_not_there", file=state, advice=advice)


def _is_inside(prefix: Path, directory: Path) -> bool:
    folder = os.path.realpath(directory)
    try:
        return os.path.commonpath([os.path.realpath(prefix.parent), folder]) == folder
    except ValueError:  # a name that no file can have, or another drive
        return False


def _exists(prefix: Path) -> bool:
    return os.path.isfile(index_path(prefix))  # False for invalid names, for which Path.is_file raises


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 0xFF]) if code.isdigit() else code


# -- The files of a checkpoint ----------------------------------------------------------------------------------------

Span = tuple[int, int]  # the first row, and the one after the last


class Bundle:
    """The files of one checkpoint. Every read opens and closes them."""

    def __init__(self, prefix: Path, verify: bool) -> None:
        self.prefix, self.verify = prefix, verify
        self.file = str(index_path(prefix))
        self.values = read_index(index_path(prefix))
        header = self.values.pop(b"", None)
        if header is None:
            raise make_error("checkpoint_value", file=self.file, what="first key", value="a name", bound="empty")
        self.header = Header.read(header, f"{self.file}: header")
        self._verified: dict[bytes, Stamp] = {}  # tensors read by rows -> stamp of the data file when it was verified

    def entry(self, key: bytes, name: str) -> Entry:
        """Return the index entry of an existing key; `name` is for errors."""
        return Entry.read(self.values[key], self.file, name)

    def data_path(self, entry: Entry) -> Path:
        """Return the data file of an entry; raise unless it contains all bytes of the tensor."""
        files = self.header.data_files
        if not 0 <= entry.data_file < files:
            what, bound = "number of the data file", f"in [0, {files})"
            raise make_error("checkpoint_value", file=entry.where, what=what, value=entry.data_file, bound=bound)
        path = data_path(self.prefix, entry.data_file, files)
        check_place(path, entry)
        return path

    def read(self, key: bytes, entry: Entry, span: Span | None) -> Array:
        """Read a tensor that is stored contiguously, or some of its rows."""
        if entry.dtype.hasobject:
            return self._strings(entry, span)
        size = entry.elements * entry.dtype.itemsize
        if entry.size != size:
            raise make_error("checkpoint_value", file=entry.where, what="number of bytes", value=entry.size, bound=size)
        path = self.data_path(entry)
        if span is None:
            octets = read_bytes(path, entry.offset, size)
            if self.verify:
                check_checksum(crc32c(octets), entry.checksum, path, entry.name)
            return self._numbers(octets, entry).reshape(entry.shape)
        stamp = stamp_of(path)
        if self.verify and self._verified.get(key) != stamp:
            check_checksum(checksum(path, entry.offset, size), entry.checksum, path, entry.name)
            self._verified[key] = stamp
        begin, end = span
        row = size // max(entry.shape[0], 1)
        octets = read_bytes(path, entry.offset + begin * row, (end - begin) * row)
        if self.verify and stamp_of(path) != stamp:
            raise make_error("checkpoint_changed", file=path)
        return self._numbers(octets, entry).reshape(end - begin, *entry.shape[1:])

    def _strings(self, entry: Entry, span: Span | None) -> Array:
        """Read all strings: where one begins depends on the lengths of all before it."""
        path = self.data_path(entry)
        data = read_bytes(path, entry.offset, entry.size).tobytes()
        strings = decode_strings(data, entry, path, self.header.big_endian, self.verify)
        return strings if span is None else strings[slice(*span)]

    def _numbers(self, octets: Array, entry: Entry) -> Array:
        """Return bytes as numbers in this machine's byte order."""
        dtype = entry.dtype
        if dtype == np.bool_:
            return np.not_equal(octets, 0)  # NumPy requires 0 and 1, a file may contain any byte
        if self.header.big_endian != (sys.byteorder == "big"):
            width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
            octets = octets.view(f"u{width}").byteswap()
        return octets.view(dtype)
