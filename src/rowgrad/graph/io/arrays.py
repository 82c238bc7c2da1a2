"""Arrays of pages: their elements as JSON, their files beside the page, and the JSON objects that contain or name them.

An object has `dtype`, `shape` and one of `data` (readable), `hex` (every bit) and `file` (the name of a file).
"""

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

import rowgrad.graph.io.fields as fields

from ..._catalog.spec import COMPLEX, FLOATS, QUANTIZED
from ..._runtime.arrays import NUMPY_DTYPE, Array, aval_of, canonical, is_inexact, is_masked
from ...errors import InvalidArgumentError
from ..page import PageError
from .files import read_regular
from .strict_json import MAX_DEPTH, MAX_DIGITS, parse_bytes

# -- elements as JSON, in flat lists -----------------------------------------------------------------------------------

# A number is written with the fewest digits that restore the same bits after JSON has parsed it as a float64. Values
# that JSON or a browser cannot hold as numbers are written as strings.

SAFE = 2**53  # the largest integer up to which a browser's numbers are exact
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS = re.compile(r"-?[0-9]+")
_BFLOAT16 = NUMPY_DTYPE["bfloat16"].type
_PART = {"complex64": "float32", "complex128": "float64"}

ErrorFor = Callable[[int, str, Any], Exception]  # (position, what the element must be, its value) -> error


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """Return the little-endian dtype of the same bits that every reader of .npy files knows."""
    if dtype == "bfloat16":
        return np.dtype("<u2")
    known = NUMPY_DTYPE[dtype]
    return (known[0] if dtype in QUANTIZED else known).newbyteorder("<")


def special_text(value: float) -> str:
    """Return the name of a float that JSON has no number for."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def digits_of(text: str) -> int | None:
    """Parse a string of digits; return None if it is not one."""
    return int(text) if len(text) <= MAX_DIGITS and _DIGITS.fullmatch(text) else None


def bytes_of(text: Any, place: str) -> bytes:
    """Decode the text of `{"base64": text}`."""
    spelt = fields.text(text, place)
    try:
        return base64.b64decode(spelt, validate=True)
    except ValueError:
        raise fields.error(place, "base64", text) from None


def to_plain(dtype: str, flat: Array) -> list[Any]:
    """Return the elements of a flat array as plain data for JSON."""
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
        wide = [float(str(x)) for x in flat]  # str() of a NumPy float is the shortest text that restores it
    return list(wide) if finite else [x if math.isfinite(x) else special_text(x) for x in wide]


def _shortest_bfloat16(exact: float) -> float:
    """Return the float64 with the fewest digits that rounds to this bfloat16; 4 digits are always enough."""
    for digits in range(1, 4):
        short = float(f"{exact:.{digits}g}")
        if float(_BFLOAT16(short)) == exact:
            return short
    return float(f"{exact:.4g}")


def from_plain(dtype: str, items: list[Any], error_for: ErrorFor) -> Array:
    """Return the flat array of JSON elements; `error_for` makes the error for an element of another dtype."""
    target = NUMPY_DTYPE[dtype]
    if dtype == "string":
        return _strings(items, error_for)
    if dtype == "bool":
        _check_all(items, lambda item: item is True or item is False, error_for, "true or false")
        return np.array(items, dtype=target)
    if dtype in FLOATS:
        return _floats(dtype, items, error_for)
    if dtype in COMPLEX:
        _check_all(
            items, lambda item: isinstance(item, list) and len(item) == 2, error_for, "[real part, imaginary part]"
        )
        parts = [part for pair in items for part in pair]
        return _floats(_PART[dtype], parts, lambda i, wanted, value: error_for(i // 2, wanted, value)).view(target)
    integers = target[0] if dtype in QUANTIZED else target
    return _integers(dtype, integers, items, error_for).view(target)


def _check_all(items: list[Any], fits: Callable[[Any], bool], error_for: ErrorFor, wanted: str) -> None:
    for i, item in enumerate(items):
        if not fits(item):
            raise error_for(i, wanted, item)


def _floats(dtype: str, items: list[Any], error_for: ErrorFor) -> Array:
    target = NUMPY_DTYPE[dtype]
    values = items
    if set(map(type, items)) - {float}:
        values = [_float(i, item, error_for) for i, item in enumerate(items)]
    wide = np.array(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(target)
    for i in np.flatnonzero(np.isinf(narrow)).tolist():
        # Infinity is written as a string: a number that becomes infinite was too large.
        if not isinstance(items[i], str):
            raise error_for(i, f"in the range of {dtype}", items[i])
    return narrow


def _float(i: int, item: Any, error_for: ErrorFor) -> float:
    if isinstance(item, float):
        return item
    if isinstance(item, str) and item in SPECIAL:
        return SPECIAL[item]
    if isinstance(item, int) and not isinstance(item, bool):
        try:
            return float(item)
        except OverflowError:
            return math.inf  # rejected by the caller, because only a string may mean infinity
    raise error_for(i, 'a number, "NaN", "Infinity" or "-Infinity"', item)


def _integers(dtype: str, target: np.dtype[Any], items: list[Any], error_for: ErrorFor) -> Array:
    values = items
    if set(map(type, items)) - {int}:
        values = [digits_of(i) if isinstance(i, str) else None if isinstance(i, bool) else i for i in items]
        _check_all(values, lambda v: isinstance(v, int), lambda i, w, _: error_for(i, w, items[i]), "an integer")
    low, high = np.iinfo(target).min, np.iinfo(target).max
    if values and not (low <= min(values) and max(values) <= high):
        _check_all(values, lambda v: bool(low <= v <= high), error_for, f"in the range of {dtype}, {low} to {high}")
    return np.array(values, dtype=target)


def _strings(items: list[Any], error_for: ErrorFor) -> Array:
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        if isinstance(item, dict) and list(item) == ["base64"]:
            try:
                array[i] = bytes_of(item["base64"], "")
            except PageError:
                raise error_for(i, '{"base64": "…"}', item["base64"]) from None
        else:
            try:
                array[i] = fields.text(item, "")
            except PageError:
                raise error_for(i, 'a string or {"base64": "…"}', item) from None
    return array


# -- files of large arrays, named after the hash of their bytes: .npy for numbers, .json for strings -------------------

NAME = re.compile(r"[0-9a-f]{64}\.(npy|json)")
_LONGEST_HEADER = 1 << 16  # the limit of .npy version 1
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Content:
    """Name and bytes of one file; the buffers share memory with the arrays."""

    name: str
    buffers: tuple[Buffer, ...]

    @property
    def size(self) -> int:
        """Return the file's size in bytes."""
        return sum(len(b) for b in self.buffers)


def _content(ending: str, *buffers: Buffer) -> Content:
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return Content(f"{digest.hexdigest()}.{ending}", buffers)


def json_content(text: str) -> Content:
    """Return the content of a file of strings."""
    return _content("json", text.encode() + b"\n")


def to_stored(dtype: str, array: Array) -> Array:
    """Convert an array to what files store: C order, little-endian, a dtype that every .npy reader knows."""
    plain = stored_dtype(dtype)
    if dtype == "bool":
        return np.ascontiguousarray(array.view(np.uint8) != 0).reshape(array.shape)  # normalizes bytes to 0 or 1
    return array.view(plain.newbyteorder("=")).astype(plain, order="C", copy=False)


def npy_buffers(plain: Array) -> tuple[bytes, memoryview]:
    """Return the header of a .npy file and its data, which is not copied."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(plain))
    return head.getvalue(), plain.reshape(-1).view(np.uint8).data


def npy_content(dtype: str, array: Array) -> Content:
    """Return the content of a file of numbers."""
    return _content("npy", *npy_buffers(to_stored(dtype, array)))


def npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, Fortran order and dtype from the start of a .npy file; raise ValueError if it is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            shape, fortran, dtype = _READ_HEADER[np.lib.format.read_magic(stream)](stream)
    except Exception:  # NumPy's header parser raises many types: SyntaxError, TokenError, KeyError…
        raise ValueError("it is not a .npy file of version 1 or 2") from None
    if any(type(d) is not int or not 0 <= d < 1 << 63 for d in shape):
        raise ValueError(f"its shape is {shape}; must be integers from 0 to 2**63 - 1")
    return shape, fortran, dtype


def npy_data_start(head: bytes, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the offset of the data in a .npy file of `size` bytes; raise ValueError if it is not just this array."""
    stream = io.BytesIO(head)
    header_shape, fortran, found = npy_header(stream)
    if found != dtype or header_shape != shape:
        raise ValueError(f"it holds {found} of shape {list(header_shape)}; must be {dtype} of shape {list(shape)}")
    if fortran and len(shape) > 1:
        raise ValueError("it is in Fortran order; must be in C order")
    if stream.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"it has {size} bytes; its header announces {math.prod(shape) * dtype.itemsize} after itself")
    return stream.tell()


def npy_head_size(first: bytes) -> int:
    """Return the length of the header from the first 12 bytes of a .npy file."""
    return (
        10 + int.from_bytes(first[8:10], "little")
        if first[6:7] == b"\1"
        else 12 + int.from_bytes(first[8:12], "little")
    )


def from_stored(dtype: str, plain: Array) -> Array:
    """Convert a file's data back to an array; raise ValueError if bytes of a bool array are neither 0 nor 1."""
    if dtype == "bool" and plain.size and plain.view(np.uint8).max() > 1:
        raise ValueError("a byte of the bool array is neither 0 nor 1")
    return plain.astype(plain.dtype.newbyteorder("="), copy=False).view(NUMPY_DTYPE[dtype])


class Folder:
    """The array files beside one page; each is read and verified once."""

    def __init__(self, path: Path, follow_links: bool = True) -> None:
        self.path = path
        self._follow_links = follow_links
        self._read: dict[str, bytes] = {}

    def numbers(self, name: str, dtype: str, shape: tuple[int, ...], place: str) -> Array:
        """Read the array in a .npy file."""
        plain = stored_dtype(dtype)
        expected = math.prod(shape) * plain.itemsize
        raw = self._bytes(name, place, lambda size: expected < size <= expected + _LONGEST_HEADER, f"about {expected}")
        try:
            start = npy_data_start(raw[:_LONGEST_HEADER], len(raw), plain, shape)
            return from_stored(dtype, np.frombuffer(raw, dtype=plain, offset=start).reshape(shape))
        except ValueError as error:
            raise PageError(place, f"{self.path / name}: {error}") from None

    def strings(self, name: str, count: int, place: str) -> bytes:
        """Read the text of a .json file with `count` strings."""
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
            raise PageError(place, f"{self.path / name}: wrong size; it must have {wanted} bytes")
        digest = hashlib.sha256(raw).hexdigest()
        if not name.startswith(digest):
            raise PageError(place, f"{self.path / name}: its content is not what its name says; the hash is {digest}")
        self._read[name] = raw
        return raw


def is_there(path: Path, content: Content) -> bool:
    """Return whether a file already has this content."""
    try:
        raw = read_regular(path, lambda size: size == content.size)
    except (OSError, PageError):
        return False
    return raw is not None and content.name.startswith(hashlib.sha256(raw).hexdigest())


# -- arrays as JSON objects --------------------------------------------------------------------------------------------

INLINE = 1024  # bytes; a larger array gets a file
ENCODINGS = ("data", "hex", "file")
FIELDS = ("dtype", "shape", *ENCODINGS)
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Reference:
    """A JSON object that names an array's file, and its place on the page."""

    dtype: str
    shape: tuple[int, ...]
    name: str
    place: str

    def encode(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"dtype": self.dtype, "shape": list(self.shape), "file": self.name}


class Writer:
    """Encodes arrays as JSON objects. With `apart`, large arrays go to `files`, and their objects name the files.

    With `browser`, numbers are written so that JavaScript, which has one number type, returns the same numbers.
    """

    def __init__(self, apart: bool, browser: bool = False) -> None:
        self.apart = apart
        self.browser = browser
        self.files: dict[str, Content] = {}
        self.references: list[Reference] = []

    def encode(self, array: Array, place: str) -> dict[str, Any]:
        """Return the JSON object of an array."""
        array = validated(array, place)
        dtype = aval_of(array).dtype
        head = {"dtype": dtype, "shape": list(array.shape)}
        if dtype == "string":
            text = strings_text(array)
            if self._large(len(text.encode())):
                return head | self._file(json_content(text))
        elif self._large(array.nbytes):
            return head | self._file(npy_content(dtype, array))
        encoded = head | {"data": _nested(to_plain(dtype, array.reshape(-1)), array.shape)}
        # Text loses the sign and payload of a NaN, and JavaScript loses the sign of a zero.
        if dtype != "string":
            bits = to_stored(dtype, array).tobytes()
            lost = self.browser and is_inexact(array.dtype) and has_minus_zero(array)
            if lost or to_stored(dtype, decode(encoded, place, None)).tobytes() != bits:
                return head | {"hex": bits.hex()}
        return encoded

    def refer(self, reference: Reference) -> dict[str, Any]:
        """Return the JSON object of an array that already is a file."""
        self.references.append(reference)
        return reference.encode()

    def _large(self, size: int) -> bool:
        return self.apart and size > INLINE

    def _file(self, content: Content) -> dict[str, Any]:
        self.files[content.name] = content  # one file for all arrays of this content
        return {"file": content.name}


def has_minus_zero(value: Any) -> bool:
    """Return whether a float, or an element of an array, is -0.0."""
    found = np.asarray(value)
    parts = (found.real, found.imag) if found.dtype.kind == "c" else (found,)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        return any(bool(np.any(np.signbit(part) & (part == 0))) for part in parts)


def strings_text(array: Array) -> str:
    """Return the text of a file of strings."""
    return _ENCODE(_nested(to_plain("string", array.reshape(-1)), array.shape))


def validated(array: Array, place: str) -> Array:
    """Return the array in a dtype of the catalogue, strings as objects; raise PageError for any other dtype."""
    if is_masked(array):
        raise PageError(place, "a masked array cannot be written: its mask would be lost")
    try:
        found = canonical(np.asarray(array), place)
        if found.dtype.kind == "T":
            found = canonical(found.astype(object), place)
    except InvalidArgumentError as error:
        raise PageError(place, str(error)) from None
    if found.dtype == object:
        for i, item in enumerate(found.reshape(-1).tolist()):
            if isinstance(item, str):
                fields.text(item, _element(place, found.shape, i))
    return found


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    """Nest a flat list by the shape; an array without elements is always []."""
    if not shape:
        return flat[0]
    if not flat:
        return []
    for size in shape[:0:-1]:
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat


def decode(value: Any, place: str, folder: Folder | None) -> Array:
    """Return the read-only array of a JSON object; `folder` has the files that objects may name."""
    found = decode_or_refer(value, place)
    if isinstance(found, Reference):
        found = read_reference(found, folder)
    return found


def decode_or_refer(value: Any, place: str) -> Array | Reference:
    """Return the array of a JSON object, or a Reference if the object names a file."""
    data = fields.record(value, place, ("dtype", "shape"), ENCODINGS)
    dtype, shape = dtype_and_shape(data, place)
    encodings = [encoding for encoding in ENCODINGS if encoding in data]
    if len(encodings) != 1:
        got = " and ".join(encodings) or "none of them"
        raise PageError(place, f"an array has one of data, hex and file; got {got}")
    where = fields.under(place, encodings[0])
    if encodings[0] == "file":
        return _reference(data["file"], dtype, shape, where)
    read = from_data if encodings[0] == "data" else _from_hex
    array = read(data[encodings[0]], dtype, shape, where)
    array.flags.writeable = False
    return array


def dtype_and_shape(data: dict[str, Any], place: str) -> tuple[str, tuple[int, ...]]:
    """Validate dtype and shape of a JSON object."""
    where = fields.under(place, "dtype")
    dtype = fields.text(data["dtype"], where)
    if dtype not in NUMPY_DTYPE:
        meant = fields.nearest(dtype, NUMPY_DTYPE) or f"; known are {', '.join(NUMPY_DTYPE)}"
        raise PageError(where, f"there is no dtype {fields.describe(dtype)}{meant}")
    place = fields.under(place, "shape")
    listed = fields.items(data["shape"], place)
    if len(listed) > MAX_DEPTH:
        raise PageError(place, f"an array has at most {MAX_DEPTH} dimensions; got {len(listed)}")
    for i, size in enumerate(listed):
        if fields.whole(size, fields.under(place, i)) < 0:
            raise fields.error(fields.under(place, i), "at least 0", size)
    # NumPy counts a dimension of 0 as 1, because even an empty array's strides must fit its integers.
    if math.prod(max(size, 1) for size in listed) * NUMPY_DTYPE[dtype].itemsize > sys.maxsize:
        raise PageError(place, "an array of this shape is too large to address")
    return dtype, tuple(listed)


def _element(place: str, shape: tuple[int, ...], position: int) -> str:
    """Return the place of an element from its position in the flat array."""
    indices = []
    for size in reversed(shape):
        position, index = divmod(position, size)
        indices.append(index)
    return place + "".join(f"[{i}]" for i in reversed(indices))


def from_data(value: Any, dtype: str, shape: tuple[int, ...], place: str) -> Array:
    """Return the array of nested lists."""
    flat: list[Any] = []
    if value != [] or 0 not in shape:
        _flatten(value, shape, place, flat)

    def error_for(position: int, wanted: str, found: Any) -> PageError:
        return fields.error(_element(place, shape, position), wanted, found)

    return from_plain(dtype, flat, error_for).reshape(shape)


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
        raise fields.error(place, "hexadecimal digits, two for a byte", text) from None
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
        raise fields.error(place, f"64 hexadecimal digits and {ending}, without a folder", name)
    return Reference(dtype, shape, name, place)


def read_reference(reference: Reference, folder: Folder | None) -> Array:
    """Read the array of a file, read-only because arrays of one file share memory."""
    if folder is None:
        raise PageError(
            reference.place, "a page's text alone has no array files; load the page's file, or write data here"
        )
    array = _of_file(reference, folder)
    array.flags.writeable = False
    return array


def _of_file(reference: Reference, folder: Folder) -> Array:
    if reference.dtype != "string":
        return folder.numbers(reference.name, reference.dtype, reference.shape, reference.place)
    try:
        text = folder.strings(reference.name, math.prod(reference.shape), reference.place)
        return from_data(parse_bytes(text), reference.dtype, reference.shape, "")
    except PageError as error:
        if error.place.startswith(reference.place):
            raise
        raise PageError(reference.place, f"{folder.path / reference.name}: {error}") from None
