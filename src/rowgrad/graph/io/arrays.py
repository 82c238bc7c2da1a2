"""Arrays as objects of JSON: `dtype`, `shape` and one of `data` (readable), `hex` (bit for bit) and `file`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import NUMPY_DTYPE, Array, aval_of, canonical, is_inexact, is_masked
from ...errors import InvalidArgumentError
from ..page import PageError
from . import array_files, elements, fields
from .strict_json import MAX_DEPTH, parse_bytes

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
        self.files: dict[str, array_files.Content] = {}
        self.references: list[Reference] = []

    def encode(self, array: Array, place: str) -> dict[str, Any]:
        """The object of one array."""
        array = admitted(array, place)
        dtype = aval_of(array).dtype
        told = {"dtype": dtype, "shape": list(array.shape)}
        if dtype == "string":
            text = strings_text(array)
            if self._large(len(text.encode())):
                return told | self._kept(array_files.json_content(text))
        elif self._large(array.nbytes):
            return told | self._kept(array_files.npy_content(dtype, array))
        made = told | {"data": _nested(elements.to_plain(dtype, array.reshape(-1)), array.shape)}
        # Text tells numbers, not bits: a NaN with a sign or a payload is one of many, and JavaScript forgets the sign
        # of a zero.
        if dtype != "string":
            bits = array_files.stored(dtype, array).tobytes()
            lost = self.browser and is_inexact(array.dtype) and has_minus_zero(array)
            if lost or array_files.stored(dtype, decode(made, place, None)).tobytes() != bits:
                return told | {"hex": bits.hex()}
        return made

    def refer(self, reference: Reference) -> dict[str, Any]:
        """The object of an array that is a file already."""
        self.references.append(reference)
        return reference.encode()

    def _large(self, size: int) -> bool:
        return self.apart and size > INLINE

    def _kept(self, content: array_files.Content) -> dict[str, Any]:
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
    return _ENCODE(_nested(elements.to_plain("string", array.reshape(-1)), array.shape))


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


def decode(value: Any, place: str, folder: array_files.Folder | None) -> Array:
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

    return elements.from_plain(dtype, flat, refuse).reshape(shape)


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
    plain = elements.stored_dtype(dtype)
    size = math.prod(shape) * plain.itemsize
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise fields.refuse(place, "hexadecimal digits, two for a byte", text) from None
    if len(raw) != size or len(text) != 2 * size:
        raise PageError(place, f"must be {2 * size} digits, as dtype and shape say; got {len(text)}")
    try:
        return array_files.from_stored(dtype, np.frombuffer(raw, dtype=plain).reshape(shape))
    except ValueError as error:
        raise PageError(place, str(error)) from None


def _reference(value: Any, dtype: str, shape: tuple[int, ...], place: str) -> Reference:
    name = fields.text(value, place)
    ending = ".json" if dtype == "string" else ".npy"
    if not array_files.NAME.fullmatch(name) or not name.endswith(ending):
        raise fields.refuse(place, f"64 hexadecimal digits and {ending}, without a folder", name)
    return Reference(dtype, shape, name, place)


def read_reference(told: Reference, folder: array_files.Folder | None) -> Array:
    """The array in a file, not to be written to: arrays of one file share their memory."""
    if folder is None:
        raise PageError(
            told.place, "a page's text alone has no array files; give the page's file, or data in place of this"
        )
    array = _of_file(told, folder)
    array.flags.writeable = False
    return array


def _of_file(told: Reference, folder: array_files.Folder) -> Array:
    if told.dtype != "string":
        return folder.numbers(told.name, told.dtype, told.shape, told.place)
    try:
        text = folder.strings(told.name, math.prod(told.shape), told.place)
        return from_data(parse_bytes(text), told.dtype, told.shape, "")
    except PageError as error:
        if error.place.startswith(told.place):
            raise
        raise PageError(told.place, f"{folder.path / told.name}: {error}") from None
