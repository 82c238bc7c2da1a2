"""State files (a session's Variables and random counters) and result files (arrays by name in an .npz).

A state file is a zip of plain .npy members and a JSON header. NumPy can open it: `numpy.load(path)["variables/0"]`,
with bfloat16 as uint16 and quantized numbers as integers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

import rowgrad.graph.io.arrays as arrays
import rowgrad.graph.io.fields as fields
import rowgrad.graph.io.plain as plain

from ..._catalog.spec import QUANTIZED
from ..._runtime.arrays import Array, aval_of
from ..._runtime.plain_file import open_plain
from ...errors import make_error
from ..page import PageError
from .files import write_atomically
from .strict_json import parse_bytes

# -- state files -------------------------------------------------------------------------------------------------------

FORMAT = "rowgrad-state"
VERSION = 2  # version 1 has no identity of the graph
_WITHOUT_IDENTITY = 1
_HEADER = "state.json"
_LONGEST_HEAD = 1 << 16  # of a .npy member
_PIECE = 1 << 20
Path = str | os.PathLike[str]
Member = tuple[str, tuple[arrays.Buffer, ...]]


@dataclass(frozen=True, slots=True)
class Identity:
    """The graph of a state: digests of how each Variable is used, and of the values it is used with."""

    variables: dict[str, str]
    values: str


@dataclass(slots=True)
class State:
    """The content of a state file. Its arrays are writable."""

    page: str
    variables: dict[str, Array] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    identity: Identity | None = None


def save_state(
    path: Path,
    variables: Mapping[str, Array],
    counters: Mapping[str, int],
    page: str,
    identity: Identity | None = None,
) -> None:
    """Write variables and counters; a crash leaves the old file or the new one."""
    entries: list[dict[str, Any]] = []
    members: list[Member] = []
    for i, (name, value) in enumerate(variables.items()):
        array = arrays.validated(value, fields.under("variables", fields.text(name, "variables")))
        dtype = aval_of(array).dtype
        if dtype == "string":
            buffers: tuple[arrays.Buffer, ...] = (arrays.strings_text(array).encode(),)
        else:
            buffers = arrays.npy_buffers(arrays.to_stored(dtype, array))
        members.append((_member(i, dtype), buffers))
        entries.append({"name": name, "dtype": dtype, "shape": list(array.shape), "member": members[-1][0]})
    counted = {}
    for name, count in counters.items():
        place = fields.under("counters", fields.text(name, "counters"))
        counted[name] = plain.encode_attr(fields.whole(count, place), place)
    version = VERSION if identity is not None else _WITHOUT_IDENTITY
    head: dict[str, Any] = {"format": FORMAT, "version": version, "page": fields.text(page, "page")}
    if identity is not None:
        head["graph"] = {"variables": identity.variables, "values": identity.values}
    head |= {"counters": counted, "variables": entries}
    text = json.dumps(head, ensure_ascii=False, indent=1) + "\n"
    write_atomically(path, partial(_write, members=[(_HEADER, (text.encode(),)), *members]))


def _member(position: int, dtype: str) -> str:
    return f"variables/{position}." + ("json" if dtype == "string" else "npy")


def _write(file: BinaryIO, members: list[Member]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, buffers in members:
            # A ZipInfo without a date makes the same state the same file.
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                for buffer in buffers:
                    member.write(buffer)


def load_state(path: Path) -> State:
    """Read a state file; PageError names the file and the damaged or unexpected member."""
    with _open(path) as file:
        with _name_in_errors(path):
            archive = zipfile.ZipFile(file)
            members = _members(archive, os.fstat(file.fileno()).st_size)
        with _name_in_errors(path, _HEADER):
            state, entries = _header(archive.read(members.pop(_HEADER)))
        for i, (name, dtype, shape) in enumerate(entries):
            with _name_in_errors(path, _member(i, dtype)):
                info = members.pop(_member(i, dtype))
                state.variables[name] = _array(archive, info, dtype, shape)
        for name in members:
            raise PageError(f"{os.fspath(path)}: {fields.shorten(name)}", "the header does not name this member")
    return state


def _open(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise PageError(os.fspath(path), error.strerror or str(error)) from None
        raise


@contextlib.contextmanager
def _name_in_errors(path: Path, member: str = "") -> Iterator[None]:
    """Convert every error of a damaged file to a PageError that names the file and the member."""
    place = f"{os.fspath(path)}: {member}" if member else os.fspath(path)
    try:
        yield
    except PageError as error:
        raise PageError(place, error.message) from None
    except MemoryError:
        raise
    except KeyError:
        raise PageError(place, "this member is missing") from None
    except Exception as error:  # zipfile raises many types: BadZipFile, struct.error, NotImplementedError…
        raise PageError(place, f"damaged, or not a state file: {str(error) or type(error).__name__}") from None


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, after checking that together they are not larger than the file."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise PageError("", "two members have the same name")
    for name, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise PageError(
                "", f"{fields.shorten(name)} is compressed or encrypted; a state file's members are neither"
            )
    if sum(info.file_size for info in members.values()) > size:
        raise PageError("", "its members claim more bytes than the file has")
    return members


def _header(raw: bytes) -> tuple[State, list[tuple[str, str, tuple[int, ...]]]]:
    tree = fields.mapping(parse_bytes(raw), "")
    if tree.get("format") != FORMAT:
        raise fields.error("format", repr(FORMAT), tree.get("format"))
    version = fields.whole(tree.get("version"), "version")
    if version > VERSION:
        newer = fields.describe(version)
        raise PageError("version", f"written by a newer rowgrad: version {newer}, this one reads up to {VERSION}")
    wanted = ("format", "version", "page", "counters", "variables")
    fields.record(tree, "", wanted if version <= _WITHOUT_IDENTITY else (*wanted, "graph"))
    state = State(fields.text(tree["page"], "page"))
    if "graph" in tree:
        graph = fields.record(tree["graph"], "graph", ("variables", "values"))
        uses = fields.mapping(graph["variables"], "graph.variables")
        digests = {name: fields.text(d, fields.under("graph.variables", name)) for name, d in uses.items()}
        state.identity = Identity(digests, fields.text(graph["values"], "graph.values"))
    for name, count in fields.mapping(tree["counters"], "counters").items():
        place = fields.under("counters", name)
        state.counters[name] = fields.whole(plain.decode_attr(count, place), place)
    entries: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    for i, value in enumerate(fields.items(tree["variables"], "variables")):
        place = fields.under("variables", i)
        entry = fields.record(value, place, ("name", "dtype", "shape", "member"))
        dtype, shape = arrays.dtype_and_shape(entry, place)
        name = fields.text(entry["name"], fields.under(place, "name"))
        if entry["member"] != _member(i, dtype):
            raise fields.error(fields.under(place, "member"), repr(_member(i, dtype)), entry["member"])
        if name in entries:
            raise PageError(fields.under(place, "name"), f"{fields.describe(name)} is listed twice")
        entries[name] = (name, dtype, shape)
    return state, list(entries.values())


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype == "string":
        return arrays.from_data(parse_bytes(archive.read(info)), dtype, shape, "data")
    stored = arrays.stored_dtype(dtype)
    with archive.open(info) as member:
        head = member.read(12)
        head += member.read(max(min(arrays.npy_head_size(head), _LONGEST_HEAD) - len(head), 0))
        arrays.npy_data_start(head, info.file_size, stored, shape)  # before anything is allocated
        array = np.empty(shape, dtype=stored)
        target = array.reshape(-1).view(np.uint8)
        at = 0
        while piece := member.read(_PIECE):  # to the end, where the checksum is compared
            target[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            at += len(piece)
        if at != array.nbytes:
            raise PageError("", f"it ends after {at} of {array.nbytes} bytes")
    return arrays.from_stored(dtype, array)


# -- result files: an .npz that NumPy reads without rowgrad ------------------------------------------------------------


def save_arrays(path: str | PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays into an .npz file, atomically.

    A second member describes what NumPy's files cannot: `x.dtype` is "bfloat16" for uint16 bits, or a quantized dtype
    for integers. Strings are fixed-width text, or bytes if one is not text. If a string ends in NUL, which fixed width
    would lose, `x` contains the bytes of all strings, and `x.offsets` where each begins.

    Args:
        path: The file.
        arrays: Arrays by name.

    Raises:
        InvalidArgumentError: Two members have the same name, or a name contains NUL.

    >>> import tempfile, os
    >>> import numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "results.npz")
    >>> save_arrays(path, {"x": np.array([1, 2])})
    >>> np.load(path)["x"].tolist()
    [1, 2]
    """
    members: dict[str, Any] = {}
    for name, value in arrays.items():
        for member, array in _result_members(name, np.asarray(value)).items():
            if member in members or "\0" in member:
                bound = "of names that no other member has, without NUL"
                raise make_error("value_unfit", argument="arrays", bound=bound, value=repr(member))
            members[member] = array

    def write(file: BinaryIO) -> None:
        # Not np.savez, which takes arrays as keyword arguments: a member may be named like one of its parameters.
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_atomically(path, write)


def _result_members(name: str, array: Any) -> dict[str, Any]:
    """Return the members that store one array."""
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
