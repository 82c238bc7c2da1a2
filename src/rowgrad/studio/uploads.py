"""Files of numbers and strings that a window sends: .npy, .npz, .csv, .tsv. Nothing is ever unpickled."""

from __future__ import annotations

import io
import math
import threading
import zipfile
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np

from ..arrays import NUMPY_DTYPE, Array
from ..errors import InvalidArgumentError, OpError
from ..graph.io.array_files import npy_header
from ..graph.io.arrays import admitted
from ..graph.literal_elements import parse_words, shown
from ..graph.page import PageError
from ..spec import QUANTIZED
from .literals import as_float32, rows_of

ENDINGS = (".npy", ".npz", ".csv", ".tsv")
MOST_BYTES = 1 << 28  # of all arrays of one file, unpacked: as much as all requests may hold
MOST_MEMBERS = 1000
MOST_CELLS = 4_000_000  # of a table; each takes many times its length in memory
_MEMBER = b"PK\x01\x02"  # what a member's entry in an archive's directory begins with
unpacking = threading.Lock()  # files are unpacked one at a time, so that MOST_BYTES bounds all of them together


def arrays_of(name: str, body: bytes, dtype: str | None = None) -> dict[str, Array]:
    """The arrays in a file, by name; `dtype` is that of a table's cells, where they alone do not say it."""
    path = PurePosixPath(name.replace("\\", "/"))
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InvalidArgumentError(f"name must end in {', '.join(ENDINGS)}; got {name!r}", argument="name")
    if len(body) > MOST_BYTES:
        raise InvalidArgumentError(f"{path.name}: it has {len(body)} bytes; allowed are {MOST_BYTES}", argument="body")
    try:
        if ending == ".npy":
            return {path.stem: _npy(body)}
        if ending == ".npz":
            return _npz(body)
        return {path.stem: _table(body, "\t" if ending == ".tsv" else None, dtype)}
    except OpError as error:
        raise InvalidArgumentError(f"{path.name}: {error.message.strip()}", argument="body") from None
    except (TypeError, ValueError, OverflowError) as error:  # NumPy's, of shapes that no array has
        raise InvalidArgumentError(f"{path.name}: it is no array that can be: {error}", argument="body") from None


def _npy(raw: bytes, told: str | None = None) -> Array:
    """The array of a .npy file; its header is compared with its size before anything is made."""
    stream = io.BytesIO(raw)
    try:
        shape, fortran, dtype = npy_header(stream)
    except ValueError as error:
        raise PageError("", f"this is no .npy file: {error}") from None
    if dtype.hasobject:
        raise PageError("", "it holds Python objects, which are not read; save strings as fixed-width text")
    size = math.prod(shape) * dtype.itemsize
    if stream.tell() + size != len(raw):
        raise PageError("", f"its header tells of {size} bytes, and there are {len(raw) - stream.tell()}")
    flat = np.frombuffer(raw, dtype=dtype, offset=stream.tell(), count=math.prod(shape)) if size else np.empty(0, dtype)
    made: Array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
        made = made.view(NUMPY_DTYPE["bfloat16"])  # .npy files have no name for it
    if told in QUANTIZED or told == "bfloat16":
        stored = np.dtype(np.uint16) if told == "bfloat16" else NUMPY_DTYPE[told][0]
        if dtype.newbyteorder("=") == stored:
            made = made.astype(stored).view(NUMPY_DTYPE[told])
    return admitted(made, "")


def _npz(raw: bytes) -> dict[str, Array]:
    if raw.count(_MEMBER) > MOST_MEMBERS:  # before the directory is read into memory
        raise PageError("", f"it has more than {MOST_MEMBERS} members")
    try:
        archive = zipfile.ZipFile(io.BytesIO(raw))
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    except Exception:  # zipfile lets many kinds through: BadZipFile, struct.error, NotImplementedError…
        raise PageError("", "this is no .npz file") from None
    if not infos:
        raise PageError("", "there is no .npy member in it")
    names = [info.filename for info in infos]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PageError("", f"{shown(twice)}: two members have this name")
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack beyond what is read
            raise PageError(
                "", f"{shown(info.filename)}: it is packed by method {info.compress_type}; NumPy has 0 and 8"
            )
    if sum(info.file_size for info in infos) > MOST_BYTES:
        raise PageError("", f"its members unpack to more than {MOST_BYTES} bytes")
    members: dict[str, bytes] = {}
    for info in infos:
        try:
            with archive.open(info) as member:
                members[info.filename.removesuffix(".npy")] = member.read(info.file_size + 1)
        except Exception as error:
            raise PageError("", f"{shown(info.filename)}: damaged: {error}") from None
    found: dict[str, Array] = {}
    for name, data in members.items():
        if any(name == f"{other}.{part}" for part in ("dtype", "offsets", "shape") for other in members):
            continue  # it says what another member stands for
        try:
            told = str(_npy(members[f"{name}.dtype"])) if f"{name}.dtype" in members else None
            found[name] = _npy(data, told)
            if f"{name}.offsets" in members and f"{name}.shape" in members:
                found[name] = _strings(found[name], *(_npy(members[f"{name}.{p}"]) for p in ("offsets", "shape")))
        except PageError as error:
            raise PageError("", f"{name}: {error.message}") from None
    return found


def _strings(joined: Array, offsets: Array, shape: Array) -> Array:
    """Strings that end in NUL: all their bytes, and where each begins."""
    sizes, ends = shape.tolist(), offsets.tolist()
    fits = joined.dtype == np.uint8 and all(a.ndim == 1 and a.dtype.kind in "iu" for a in (offsets, shape))
    fits = fits and all(size >= 0 for size in sizes) and len(ends) == math.prod(sizes) + 1 and sorted(ends) == ends
    if not fits or ends[0] < 0 or ends[-1] > joined.size:
        raise PageError("", "its offsets do not fit its bytes")
    data = joined.tobytes()
    made = np.empty(len(ends) - 1, dtype=object)
    made[:] = [data[a:b] for a, b in pairwise(ends)]
    return made.reshape(sizes)


def _table(raw: bytes, separator: str | None, dtype: str | None) -> Array:
    """The cells of a table as a matrix, of one column a vector; a first row of names is left out."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PageError("", f"it is no UTF-8 text: byte {error.start}") from None
    cells = text.count("\n") + sum(text.count(c) for c in ((separator,) if separator else ",;\t "))
    if cells > MOST_CELLS:
        raise PageError("", f"it has about {cells} cells, allowed are {MOST_CELLS}; save it as a .npy file")
    rows = rows_of(text, separator)
    if not rows:
        raise PageError("", "there are no cells in it")
    head = 1 if len(rows) > 1 and not _numeric(rows[0]) and _numeric(rows[1]) and dtype != "string" else 0
    body = rows[head:]
    width = len(body[0])
    for k, row in enumerate(body):
        if len(row) != width:
            raise PageError("", f"row {head + k} has {len(row)} cells where row {head} has {width}")
    words = [cell for row in body for cell in row]
    kind = dtype or (None if _numeric(body[0]) else "string")

    def where(k: int) -> str:
        return f" in row {head + k // width}, cell {k % width}"

    if kind != "string" and "" in words:
        raise PageError("", f"there is nothing{where(words.index(''))}")
    made = parse_words(words, kind, where)
    if kind is None and made.dtype == np.float64:
        made = as_float32(made, where)
    return made if width == 1 else made.reshape(len(body), width)


def _numeric(row: list[str]) -> bool:
    """Whether what is in the cells are numbers; all at once, since a row may have millions."""
    cells = [cell for cell in row if cell]
    try:
        parse_words(cells, "complex128")
    except PageError:
        return all(map(_is_number, cells))  # one may be too large, which is an error and no text
    return bool(cells)


def _is_number(cell: str) -> bool:
    try:
        complex(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell
