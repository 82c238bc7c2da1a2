"""Files of variables and of results."""

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

from ..._catalog.spec import QUANTIZED
from ..._runtime.arrays import Array, aval_of
from ..._runtime.plain_file import open_plain
from ...errors import make_error
from ..page import PageError
from . import arrays, fields, plain
from . import arrays as array_files
from . import arrays as elements
from .files import write_atomically
from .strict_json import parse_bytes

# -- A session's variables and counters in one file -------------------------------------------------------------------

# A session's variables and counters in one file: a zip of plain .npy members under a header in JSON.
#
# NumPy opens it too: `numpy.load(path)["variables/0"]`, with bfloat16 as uint16 and quantized numbers as integers.

FORMAT = "rowgrad-state"
VERSION = 2  # 1 has no identity of the graph
_WITHOUT_IDENTITY = 1
_HEADER = "state.json"
_LONGEST_HEAD = 1 << 16  # of a .npy member
_PIECE = 1 << 20
Path = str | os.PathLike[str]
Member = tuple[str, tuple[array_files.Buffer, ...]]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which graph a state belongs to: a digest of how each Variable is used, and one of the values it is used with."""

    variables: dict[str, str]
    values: str


@dataclass(slots=True)
class State:
    """What a state file holds. The arrays are the reader's own, free to be written to."""

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
    """Write variables (of any dtype of the catalogue) and counters; a crash leaves the old file or the new one."""
    told: list[dict[str, Any]] = []
    members: list[Member] = []
    for i, (name, given) in enumerate(variables.items()):
        array = arrays.admitted(given, fields.under("variables", fields.text(name, "variables")))
        dtype = aval_of(array).dtype
        if dtype == "string":
            buffers: tuple[array_files.Buffer, ...] = (arrays.strings_text(array).encode(),)
        else:
            buffers = array_files.npy_buffers(array_files.stored(dtype, array))
        members.append((_member(i, dtype), buffers))
        told.append({"name": name, "dtype": dtype, "shape": list(array.shape), "member": members[-1][0]})
    counted = {}
    for name, count in counters.items():
        place = fields.under("counters", fields.text(name, "counters"))
        counted[name] = plain.encode_attr(fields.whole(count, place), place)
    version = VERSION if identity is not None else _WITHOUT_IDENTITY
    head: dict[str, Any] = {"format": FORMAT, "version": version, "page": fields.text(page, "page")}
    if identity is not None:
        head["graph"] = {"variables": identity.variables, "values": identity.values}
    head |= {"counters": counted, "variables": told}
    text = json.dumps(head, ensure_ascii=False, indent=1) + "\n"
    write_atomically(path, partial(_write, members=[(_HEADER, (text.encode(),)), *members]))


def _member(position: int, dtype: str) -> str:
    return f"variables/{position}." + ("json" if dtype == "string" else "npy")


def _write(file: BinaryIO, members: list[Member]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, buffers in members:
            # A ZipInfo of its own has a fixed date: the same state is the same file.
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                for buffer in buffers:
                    member.write(buffer)


def load_state(path: Path) -> State:
    """The state in a file; PageError names the file and the member that is damaged or does not belong."""
    with _opened(path) as file:
        with _naming(path):
            archive = zipfile.ZipFile(file)
            members = _members(archive, os.fstat(file.fileno()).st_size)
        with _naming(path, _HEADER):
            state, told = _header(archive.read(members.pop(_HEADER)))
        for i, (name, dtype, shape) in enumerate(told):
            with _naming(path, _member(i, dtype)):
                info = members.pop(_member(i, dtype))
                state.variables[name] = _array(archive, info, dtype, shape)
        for name in members:
            raise PageError(f"{os.fspath(path)}: {fields.shortened(name)}", "the header does not name this member")
    return state


def _opened(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise PageError(os.fspath(path), error.strerror or str(error)) from None
        raise


@contextlib.contextmanager
def _naming(path: Path, member: str = "") -> Iterator[None]:
    """Whatever is made of a damaged file becomes one kind of error that names the file and the member."""
    place = f"{os.fspath(path)}: {member}" if member else os.fspath(path)
    try:
        yield
    except PageError as error:
        raise PageError(place, error.message) from None
    except MemoryError:
        raise
    except KeyError:
        raise PageError(place, "this member is missing") from None
    except Exception as error:  # zipfile lets many kinds through: BadZipFile, struct.error, NotImplementedError…
        raise PageError(place, f"damaged, or no state file: {str(error) or type(error).__name__}") from None


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name, none of which tells of more bytes than the file has."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise PageError("", "a member is there twice")
    for name, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise PageError(
                "", f"{fields.shortened(name)} is compressed or encrypted; a state file's members are neither"
            )
    if sum(info.file_size for info in members.values()) > size:
        raise PageError("", "its members tell of more bytes than it has")
    return members


def _header(raw: bytes) -> tuple[State, list[tuple[str, str, tuple[int, ...]]]]:
    tree = fields.mapping(parse_bytes(raw), "")
    if tree.get("format") != FORMAT:
        raise fields.refuse("format", repr(FORMAT), tree.get("format"))
    version = fields.whole(tree.get("version"), "version")
    if version > VERSION:
        newer = fields.described(version)
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
    told: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    for i, value in enumerate(fields.items(tree["variables"], "variables")):
        place = fields.under("variables", i)
        entry = fields.record(value, place, ("name", "dtype", "shape", "member"))
        dtype, shape = arrays.dtype_and_shape(entry, place)
        name = fields.text(entry["name"], fields.under(place, "name"))
        if entry["member"] != _member(i, dtype):
            raise fields.refuse(fields.under(place, "member"), repr(_member(i, dtype)), entry["member"])
        if name in told:
            raise PageError(fields.under(place, "name"), f"{fields.described(name)} is there already")
        told[name] = (name, dtype, shape)
    return state, list(told.values())


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype == "string":
        return arrays.from_data(parse_bytes(archive.read(info)), dtype, shape, "data")
    kept = elements.stored_dtype(dtype)
    with archive.open(info) as member:
        head = member.read(12)
        head += member.read(max(min(array_files.npy_head_size(head), _LONGEST_HEAD) - len(head), 0))
        array_files.npy_data_start(head, info.file_size, kept, shape)  # before anything is allocated
        made = np.empty(shape, dtype=kept)
        room = made.reshape(-1).view(np.uint8)
        at = 0
        while piece := member.read(_PIECE):  # to the end, where the checksum is compared
            room[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            at += len(piece)
        if at != made.nbytes:
            raise PageError("", f"it ends after {at} of {made.nbytes} bytes")
    return array_files.from_stored(dtype, made)


# -- Arrays by name in one .npz that NumPy alone can read -------------------------------------------------------------


def save_arrays(path: str | PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays under their names, whole or not at all.

    What NumPy's files do not know is told by a second member: `x.dtype` says "bfloat16" beside uint16 bits, or a
    quantized dtype beside its integers. Strings are fixed-width text, or bytes where one is not text; where one ends
    in NUL, which that would lose, `x` is all their bytes and `x.offsets` says where each begins.
    """
    members: dict[str, Any] = {}
    for name, value in arrays.items():
        for member, array in _result_members(name, np.asarray(value)).items():
            if member in members or "\0" in member:
                bound = "of names that no other member has, without NUL"
                raise make_error("value_unfit", argument="arrays", bound=bound, value=repr(member))
            members[member] = array

    def write(file: BinaryIO) -> None:
        # Not np.savez, which has arguments of its own that a member could be named after.
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_atomically(path, write)


def _result_members(name: str, array: Any) -> dict[str, Any]:
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
