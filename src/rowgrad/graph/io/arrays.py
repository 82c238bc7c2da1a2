"""Arrays of pages: as JSON elements, as .npy files beside the page, as members of archives."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..._catalog.spec import COMPLEX, FLOATS, QUANTIZED
from ..._runtime.arrays import NUMPY_DTYPE, Array, aval_of, canonical, is_inexact, is_masked
from ...errors import InvalidArgumentError
from ..page import PageError
from . import fields
from .files import read_regular
from .strict_json import MAX_DEPTH, MAX_DIGITS, parse_bytes

# -- The elements of an array as JSON has them -------------------------------------------------------------------------

# The elements of an array as JSON has them: numbers a browser reads too, and strings for what JSON has no number for.
#
# Both directions work on flat lists. A number is written in the fewest digits that give the same bits back after JSON
# has made a float64 of it.

SAFE = 2**53  # beyond it a browser's numbers skip integers
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS = re.compile(r"-?[0-9]+")
_BFLOAT16 = NUMPY_DTYPE["bfloat16"].type
_PART = {"complex64": "float32", "complex128": "float64"}

Refuse = Callable[[int, str, Any], Exception]  # (which element, what it must be, what it is)


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of the same bits that any reader of .npy files knows, little-endian."""
    if dtype == "bfloat16":
        return np.dtype("<u2")
    known = NUMPY_DTYPE[dtype]
    return (known[0] if dtype in QUANTIZED else known).newbyteorder("<")


def special_text(value: float) -> str:
    """The name of a float that JSON has no number for."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def digits_of(text: str) -> int | None:
    """The integer a string of digits spells, None where it is no such string."""
    return int(text) if len(text) <= MAX_DIGITS and _DIGITS.fullmatch(text) else None


def bytes_of(text: Any, place: str) -> bytes:
    """What `{"base64": text}` stands for."""
    spelt = fields.text(text, place)
    try:
        return base64.b64decode(spelt, validate=True)
    except ValueError:
        raise fields.refuse(place, "base64", text) from None


def to_plain(dtype: str, flat: Array) -> list[Any]:
    """The elements of a flat array, ready for JSON."""
    if dtype == "string":
        return [i if isinstance(i, str) else {"base64": base64.b64encode(i).decode()} for i in flat.tolist()]
    if dtype in COMPLEX:
        parts = _plain_floats(_PART[dtype], flat.view(NUMPY_DTYPE[_PART[dtype]]))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if dtype in FLOATS:
        return _plain_floats(dtype, flat)
    if dtype in QUANTIZED:
        flat = flat.view(NUMPY_DTYPE[dtype][0])
    listed: list[Any] = flat.tolist()
    if flat.dtype.itemsize == 8:
        return [i if -SAFE <= i <= SAFE else str(i) for i in listed]
    return listed


def _plain_floats(dtype: str, flat: Array) -> list[Any]:
    with np.errstate(invalid="ignore"):  # signaling NaNs are data here
        wide: list[float] = flat.astype(np.float64).tolist()
        finite = bool(np.isfinite(flat).all())
    if dtype == "bfloat16":
        wide = [_shortest_bfloat16(x) for x in wide]
    elif dtype != "float64":
        wide = [float(str(x)) for x in flat]  # NumPy's text of a number is the shortest that gives it back
    return list(wide) if finite else [x if math.isfinite(x) else special_text(x) for x in wide]


def _shortest_bfloat16(exact: float) -> float:
    """The float64 of the fewest digits that rounds to this bfloat16; 4 digits tell all of them apart."""
    for digits in range(1, 4):
        short = float(f"{exact:.{digits}g}")
        if float(_BFLOAT16(short)) == exact:
            return short
    return float(f"{exact:.4g}")


def from_plain(dtype: str, items: list[Any], refuse: Refuse) -> Array:
    """The flat array of such elements; `refuse` words the error for the one that is not of the dtype."""
    target = NUMPY_DTYPE[dtype]
    if dtype == "string":
        return _strings(items, refuse)
    if dtype == "bool":
        _every(items, lambda item: item is True or item is False, refuse, "true or false")
        return np.array(items, dtype=target)
    if dtype in FLOATS:
        return _floats(dtype, items, refuse)
    if dtype in COMPLEX:
        _every(items, lambda item: isinstance(item, list) and len(item) == 2, refuse, "[real part, imaginary part]")
        parts = [part for pair in items for part in pair]
        return _floats(_PART[dtype], parts, lambda i, wanted, value: refuse(i // 2, wanted, value)).view(target)
    integers = target[0] if dtype in QUANTIZED else target
    return _integers(dtype, integers, items, refuse).view(target)


def _every(items: list[Any], fits: Callable[[Any], bool], refuse: Refuse, wanted: str) -> None:
    for i, item in enumerate(items):
        if not fits(item):
            raise refuse(i, wanted, item)


def _floats(dtype: str, items: list[Any], refuse: Refuse) -> Array:
    target = NUMPY_DTYPE[dtype]
    values = items
    if set(map(type, items)) - {float}:
        values = [_float(i, item, refuse) for i, item in enumerate(items)]
    wide = np.array(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(target)
    for i in np.flatnonzero(np.isinf(narrow)).tolist():
        # Only a string may stand for infinity: a number that becomes it was too large.
        if not isinstance(items[i], str):
            raise refuse(i, f"in the range of {dtype}", items[i])
    return narrow


def _float(i: int, item: Any, refuse: Refuse) -> float:
    if isinstance(item, float):
        return item
    if isinstance(item, str) and item in SPECIAL:
        return SPECIAL[item]
    if isinstance(item, int) and not isinstance(item, bool):
        try:
            return float(item)
        except OverflowError:
            return math.inf  # and refused as such
    raise refuse(i, 'a number, "NaN", "Infinity" or "-Infinity"', item)


def _integers(dtype: str, target: np.dtype[Any], items: list[Any], refuse: Refuse) -> Array:
    values = items
    if set(map(type, items)) - {int}:
        values = [digits_of(i) if isinstance(i, str) else None if isinstance(i, bool) else i for i in items]
        _every(values, lambda v: isinstance(v, int), lambda i, w, _: refuse(i, w, items[i]), "an integer")
    low, high = np.iinfo(target).min, np.iinfo(target).max
    if values and not (low <= min(values) and max(values) <= high):
        _every(values, lambda v: bool(low <= v <= high), refuse, f"in the range of {dtype}, {low} to {high}")
    return np.array(values, dtype=target)


def _strings(items: list[Any], refuse: Refuse) -> Array:
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        if isinstance(item, dict) and list(item) == ["base64"]:
            try:
                array[i] = bytes_of(item["base64"], "")
            except PageError:
                raise refuse(i, '{"base64": "…"}', item["base64"]) from None
        else:
            try:
                array[i] = fields.text(item, "")
            except PageError:
                raise refuse(i, 'a string or {"base64": "…"}', item) from None
    return array


# -- Large arrays as files of their own, named after the hash of their bytes -------------------------------------------

# Large arrays as files of their own, named after the hash of their bytes: .npy for numbers, .json for strings.

NAME = re.compile(r"[0-9a-f]{64}\.(npy|json)")
_LONGEST_HEADER = 1 << 16  # what version 1 of .npy can say
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of one file, still in the arrays they come from."""

    name: str
    buffers: tuple[Buffer, ...]

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return sum(len(b) for b in self.buffers)


def _content(ending: str, *buffers: Buffer) -> Content:
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return Content(f"{digest.hexdigest()}.{ending}", buffers)


def json_content(text: str) -> Content:
    """A file of strings."""
    return _content("json", text.encode() + b"\n")


def stored(dtype: str, array: Array) -> Array:
    """The array in the form files have: in C order, of a dtype every reader knows, little-endian."""
    plain = stored_dtype(dtype)
    if dtype == "bool":
        return np.ascontiguousarray(array.view(np.uint8) != 0).reshape(array.shape)  # a truth value's byte is 0 or 1
    return array.view(plain.newbyteorder("=")).astype(plain, order="C", copy=False)


def npy_buffers(plain: Array) -> tuple[bytes, memoryview]:
    """The header of a .npy file and its data, which is not copied."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(plain))
    return head.getvalue(), plain.reshape(-1).view(np.uint8).data


def npy_content(dtype: str, array: Array) -> Content:
    """A file of numbers."""
    return _content("npy", *npy_buffers(stored(dtype, array)))


def npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype, of a .npy file from its start; ValueError where it is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            shape, fortran, dtype = _READ_HEADER[np.lib.format.read_magic(stream)](stream)
    except Exception:  # NumPy's parser of headers lets many kinds through: SyntaxError, TokenError, KeyError…
        raise ValueError("it is no .npy file of version 1 or 2") from None
    if any(type(d) is not int or not 0 <= d < 1 << 63 for d in shape):
        raise ValueError(f"its shape is {shape}; must be integers from 0 to 2**63 - 1")
    return shape, fortran, dtype


def npy_data_start(head: bytes, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Where the data begins in a .npy file of `size` bytes; ValueError where the file is not just this array."""
    stream = io.BytesIO(head)
    header_shape, fortran, found = npy_header(stream)
    if found != dtype or header_shape != shape:
        raise ValueError(f"it holds {found} of shape {list(header_shape)}; must be {dtype} of shape {list(shape)}")
    if fortran and len(shape) > 1:
        raise ValueError("it is in Fortran order; must be in C order")
    if stream.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"it has {size} bytes; its header tells of {math.prod(shape) * dtype.itemsize} after itself")
    return stream.tell()


def npy_head_size(first: bytes) -> int:
    """How long the header is, of a .npy file's first 12 bytes."""
    return (
        10 + int.from_bytes(first[8:10], "little")
        if first[6:7] == b"\1"
        else 12 + int.from_bytes(first[8:12], "little")
    )


def from_stored(dtype: str, plain: Array) -> Array:
    """An array of the catalogue's dtype from the form files have; ValueError where bytes are no truth values."""
    if dtype == "bool" and plain.size and plain.view(np.uint8).max() > 1:
        raise ValueError("a byte of it is neither true nor false")
    return plain.astype(plain.dtype.newbyteorder("="), copy=False).view(NUMPY_DTYPE[dtype])


class Folder:
    """The files beside one page, each read and verified once."""

    def __init__(self, path: Path, follow_links: bool = True) -> None:
        self.path = path
        self._follow_links = follow_links
        self._read: dict[str, bytes] = {}

    def numbers(self, name: str, dtype: str, shape: tuple[int, ...], place: str) -> Array:
        """The array in a .npy file."""
        plain = stored_dtype(dtype)
        expected = math.prod(shape) * plain.itemsize
        raw = self._bytes(name, place, lambda size: expected < size <= expected + _LONGEST_HEADER, f"about {expected}")
        try:
            start = npy_data_start(raw[:_LONGEST_HEADER], len(raw), plain, shape)
            return from_stored(dtype, np.frombuffer(raw, dtype=plain, offset=start).reshape(shape))
        except ValueError as error:
            raise PageError(place, f"{self.path / name}: {error}") from None

    def strings(self, name: str, count: int, place: str) -> bytes:
        """The text of a .json file of so many strings."""
        return self._bytes(name, place, lambda size: size >= 2 * count, f"at least {2 * count}")

    def _bytes(self, name: str, place: str, fits: Callable[[int], bool], wanted: str) -> bytes:
        raw = self._read.get(name)
        if raw is not None:
            if not fits(len(raw)):
                raise PageError(place, f"{self.path / name}: it has {len(raw)} bytes, must have {wanted}")
            return raw
        try:
            if not self._follow_links and self.path.is_symlink():
                raise PageError(str(self.path), "this is a symbolic link, which is not followed")
            raw = read_regular(self.path / name, fits, self._follow_links)
        except PageError as error:
            raise PageError(place, str(error)) from None
        except OSError as error:
            raise PageError(place, f"{self.path / name}: {error.strerror}") from error
        if raw is None:
            raise PageError(place, f"{self.path / name}: its size does not fit; it must have {wanted} bytes")
        digest = hashlib.sha256(raw).hexdigest()
        if not name.startswith(digest):
            raise PageError(place, f"{self.path / name}: its content is not what its name says; the hash is {digest}")
        self._read[name] = raw
        return raw


def is_there(path: Path, content: Content) -> bool:
    """Whether a file has this content already."""
    try:
        raw = read_regular(path, lambda size: size == content.size)
    except (OSError, PageError):
        return False
    return raw is not None and content.name.startswith(hashlib.sha256(raw).hexdigest())


# -- Arrays as objects of JSON -----------------------------------------------------------------------------------------

# Arrays as objects of JSON: `dtype`, `shape` and one of `data` (readable), `hex` (bit for bit) and `file`.

INLINE = 1024  # bytes; a larger array gets a file
FORMS = ("data", "hex", "file")
FIELDS = ("dtype", "shape", *FORMS)
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Reference:
    """An array that is a file already: what a page says of it, and where on the page that stands."""

    dtype: str
    shape: tuple[int, ...]
    name: str
    place: str

    def encode(self) -> dict[str, Any]:
        """The object that names the file."""
        return {"dtype": self.dtype, "shape": list(self.shape), "file": self.name}


class Writer:
    """Turns arrays into objects; where `apart`, large ones go to `files` and the object only names theirs.

    With `browser`, numbers are written so that JavaScript, which has one kind of them, gives the same ones back.
    """

    def __init__(self, apart: bool, browser: bool = False) -> None:
        self.apart = apart
        self.browser = browser
        self.files: dict[str, Content] = {}
        self.references: list[Reference] = []

    def encode(self, array: Array, place: str) -> dict[str, Any]:
        """The object of one array."""
        array = admitted(array, place)
        dtype = aval_of(array).dtype
        told = {"dtype": dtype, "shape": list(array.shape)}
        if dtype == "string":
            text = strings_text(array)
            if self._large(len(text.encode())):
                return told | self._kept(json_content(text))
        elif self._large(array.nbytes):
            return told | self._kept(npy_content(dtype, array))
        made = told | {"data": _nested(to_plain(dtype, array.reshape(-1)), array.shape)}
        # Text tells numbers, not bits: a NaN with a sign or a payload is one of many, and JavaScript forgets the sign
        # of a zero.
        if dtype != "string":
            bits = stored(dtype, array).tobytes()
            lost = self.browser and is_inexact(array.dtype) and has_minus_zero(array)
            if lost or stored(dtype, decode(made, place, None)).tobytes() != bits:
                return told | {"hex": bits.hex()}
        return made

    def refer(self, reference: Reference) -> dict[str, Any]:
        """The object of an array that is a file already."""
        self.references.append(reference)
        return reference.encode()

    def _large(self, size: int) -> bool:
        return self.apart and size > INLINE

    def _kept(self, content: Content) -> dict[str, Any]:
        self.files[content.name] = content  # one file for all arrays of this content
        return {"file": content.name}


def has_minus_zero(value: Any) -> bool:
    """Whether a float, or one of an array's floats, is the zero below zero."""
    found = np.asarray(value)
    parts = (found.real, found.imag) if found.dtype.kind == "c" else (found,)
    with np.errstate(invalid="ignore"):  # NaNs that signal
        return any(bool(np.any(np.signbit(part) & (part == 0))) for part in parts)


def strings_text(array: Array) -> str:
    """The text of a file of strings."""
    return _ENCODE(_nested(to_plain("string", array.reshape(-1)), array.shape))


def admitted(array: Array, place: str) -> Array:
    """The array as the catalogue has it, strings as objects."""
    if is_masked(array):
        raise PageError(place, "a masked array cannot be written: its mask would be lost")
    try:
        made = canonical(np.asarray(array), place)
        if made.dtype.kind == "T":
            made = canonical(made.astype(object), place)
    except InvalidArgumentError as error:
        raise PageError(place, str(error)) from None
    if made.dtype == object:
        for i, item in enumerate(made.reshape(-1).tolist()):
            if isinstance(item, str):
                fields.text(item, _element(place, made.shape, i))
    return made


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    """Lists in lists as the shape says; of an array without elements always []."""
    if not shape:
        return flat[0]
    if not flat:
        return []
    for size in shape[:0:-1]:
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat


def decode(value: Any, place: str, folder: Folder | None) -> Array:
    """The array of such an object, not to be written to; `folder` has the files that objects may name."""
    found = decode_or_refer(value, place)
    if isinstance(found, Reference):
        found = read_reference(found, folder)
    return found


def decode_or_refer(value: Any, place: str) -> Array | Reference:
    """The array of such an object; of one that names a file, just what it says."""
    told = fields.record(value, place, ("dtype", "shape"), FORMS)
    dtype, shape = dtype_and_shape(told, place)
    forms = [form for form in FORMS if form in told]
    if len(forms) != 1:
        got = " and ".join(forms) or "none of them"
        raise PageError(place, f"an array has one of data, hex and file; got {got}")
    where = fields.under(place, forms[0])
    if forms[0] == "file":
        return _reference(told["file"], dtype, shape, where)
    read = from_data if forms[0] == "data" else _from_hex
    array = read(told[forms[0]], dtype, shape, where)
    array.flags.writeable = False
    return array


def dtype_and_shape(told: dict[str, Any], place: str) -> tuple[str, tuple[int, ...]]:
    """A dtype of the catalogue, and a shape whose array can be."""
    where = fields.under(place, "dtype")
    dtype = fields.text(told["dtype"], where)
    if dtype not in NUMPY_DTYPE:
        meant = fields.nearest(dtype, NUMPY_DTYPE) or f"; known are {', '.join(NUMPY_DTYPE)}"
        raise PageError(where, f"there is no dtype {fields.described(dtype)}{meant}")
    place = fields.under(place, "shape")
    listed = fields.items(told["shape"], place)
    if len(listed) > MAX_DEPTH:
        raise PageError(place, f"an array has at most {MAX_DEPTH} dimensions; got {len(listed)}")
    for i, size in enumerate(listed):
        if fields.whole(size, fields.under(place, i)) < 0:
            raise fields.refuse(fields.under(place, i), "at least 0", size)
    # NumPy counts a dimension of 0 as 1 here: even an empty array's strides must be numbers it has.
    if math.prod(max(size, 1) for size in listed) * NUMPY_DTYPE[dtype].itemsize > sys.maxsize:
        raise PageError(place, "an array of this shape has more bytes than can be counted")
    return dtype, tuple(listed)


def _element(place: str, shape: tuple[int, ...], position: int) -> str:
    """The place of an element given by its position in the flat array."""
    indices = []
    for size in reversed(shape):
        position, index = divmod(position, size)
        indices.append(index)
    return place + "".join(f"[{i}]" for i in reversed(indices))


def from_data(value: Any, dtype: str, shape: tuple[int, ...], place: str) -> Array:
    """The array of lists in lists."""
    flat: list[Any] = []
    if value != [] or 0 not in shape:
        _flatten(value, shape, place, flat)

    def refuse(position: int, wanted: str, found: Any) -> PageError:
        return fields.refuse(_element(place, shape, position), wanted, found)

    return from_plain(dtype, flat, refuse).reshape(shape)


def _flatten(value: Any, shape: tuple[int, ...], place: str, flat: list[Any]) -> None:
    if not shape:
        flat.append(value)
        return
    listed = fields.items(value, place)
    if len(listed) != shape[0]:
        raise PageError(place, f"must be a list of {shape[0]}, as the shape says; got {len(listed)}")
    if len(shape) == 1:
        flat.extend(listed)
        return
    for i, item in enumerate(listed):
        _flatten(item, shape[1:], fields.under(place, i), flat)


def _from_hex(value: Any, dtype: str, shape: tuple[int, ...], place: str) -> Array:
    text = fields.text(value, place)
    if dtype == "string":
        raise PageError(place, "strings are not written as hex")
    plain = stored_dtype(dtype)
    size = math.prod(shape) * plain.itemsize
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise fields.refuse(place, "hexadecimal digits, two for a byte", text) from None
    if len(raw) != size or len(text) != 2 * size:
        raise PageError(place, f"must be {2 * size} digits, as dtype and shape say; got {len(text)}")
    try:
        return from_stored(dtype, np.frombuffer(raw, dtype=plain).reshape(shape))
    except ValueError as error:
        raise PageError(place, str(error)) from None


def _reference(value: Any, dtype: str, shape: tuple[int, ...], place: str) -> Reference:
    name = fields.text(value, place)
    ending = ".json" if dtype == "string" else ".npy"
    if not NAME.fullmatch(name) or not name.endswith(ending):
        raise fields.refuse(place, f"64 hexadecimal digits and {ending}, without a folder", name)
    return Reference(dtype, shape, name, place)


def read_reference(told: Reference, folder: Folder | None) -> Array:
    """The array in a file, not to be written to: arrays of one file share their memory."""
    if folder is None:
        raise PageError(
            told.place, "a page's text alone has no array files; give the page's file, or data in place of this"
        )
    array = _of_file(told, folder)
    array.flags.writeable = False
    return array


def _of_file(told: Reference, folder: Folder) -> Array:
    if told.dtype != "string":
        return folder.numbers(told.name, told.dtype, told.shape, told.place)
    try:
        text = folder.strings(told.name, math.prod(told.shape), told.place)
        return from_data(parse_bytes(text), told.dtype, told.shape, "")
    except PageError as error:
        if error.place.startswith(told.place):
            raise
        raise PageError(told.place, f"{folder.path / told.name}: {error}") from None
