"""Corruptions of one argument of a call, for any op; the op's record says what the argument is.

`VARIANTS` keep the values, so the result must not change. `corruptions_of` has everything else: wrong ranks and
lengths, numbers out of bounds, unsupported dtypes, and objects that are not arrays. `LISTS` corrupt a list of arrays
as a list; `ATTRIBUTES` are values for an attribute.
"""

from __future__ import annotations

import array
import decimal
import fractions
import tempfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from rowgrad._catalog.spec import Arg

Array = np.ndarray[Any, Any]
Corruption = Callable[[Array, Arg], Any]

# -- the same values, stored differently -----------------------------------------------------------------------------


def unaligned(x: Array) -> Array:
    return np.frombuffer(bytearray(b"?" + x.tobytes()), x.dtype, offset=1).reshape(x.shape)


def read_only(x: Array) -> Array:
    return np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)


def mapped(x: Array) -> Array:
    """Return the array in a memory-mapped file, if it has elements."""
    if x.ndim == 0 or x.size == 0 or x.dtype.hasobject:
        return x
    with tempfile.TemporaryFile() as file:
        copy = np.memmap(file, x.dtype, "w+", shape=x.shape)
    copy[...] = x
    return copy


class RejectsNumpyFunctions(np.ndarray):
    """An array that raises in every NumPy function."""

    __array_ufunc__ = None

    def __array_function__(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("NumPy functions are not supported")


VARIANTS: dict[str, Callable[[Array], Array]] = {
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
    "fortran": lambda x: np.asarray(x, order="F"),
    "reversed_twice": lambda x: x[::-1].copy()[::-1] if x.ndim else x,
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape))[1],
    "unaligned": unaligned,
    "byte_swapped": lambda x: x.astype(x.dtype.newbyteorder()) if x.dtype.kind in "iufc" else x,
    "read_only": read_only,
    "matrix": lambda x: x.view(np.matrix) if x.ndim == 2 else x,
    "memory_mapped": mapped,
    "subclass": lambda x: x.view(RejectsNumpyFunctions),
}

# -- numbers out of bounds -------------------------------------------------------------------------------------------

NUMBERS = (-1, -2, 0, 3, 7, 1000, 2**31 - 2, 2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**62),
           -(2**63))  # fmt: skip


def _put(number: int, where: str) -> Corruption:
    def corrupt(x: Array, arg: Arg) -> Any:
        wide = x.astype(np.int64)
        if where == "all":
            wide[...] = number
        elif x.size:
            wide.reshape(-1)[{"first": 0, "last": -1}[where]] = number
        narrow = x.dtype if x.dtype.kind == "i" else np.dtype(np.int64)
        return wide.astype(narrow) if np.iinfo(narrow).min <= number <= np.iinfo(narrow).max else wide

    return corrupt


def _values(number: float) -> Corruption:
    def corrupt(x: Array, arg: Arg) -> Any:
        made = x.copy()
        made.reshape(-1)[:1] = number
        return made

    return corrupt


# -- other ranks, lengths, dtypes ------------------------------------------------------------------------------------

SHAPES: dict[str, Corruption] = {
    "one_more_dimension": lambda x, arg: x[np.newaxis],
    "one_more_last_dimension": lambda x, arg: x[..., np.newaxis],
    "flat": lambda x, arg: x.reshape(-1),
    "zero_d": lambda x, arg: x.reshape(-1)[:1].reshape(()).copy() if x.size else np.zeros((), x.dtype),
    "shorter": lambda x, arg: x[:-1].copy() if x.ndim else np.zeros(0, x.dtype),
    "longer": lambda x, arg: np.concatenate([x, x[:1]]) if x.ndim else np.stack([x, x]),
    "narrower": lambda x, arg: x[..., :-1].copy() if x.ndim else x.reshape(1),
    "nothing": lambda x, arg: np.zeros((0, *x.shape[1:]), x.dtype),
    "no_columns": lambda x, arg: np.zeros((*x.shape[:-1], 0), x.dtype),
    "no_elements_but_huge": lambda x, arg: np.zeros((0, 2**40), x.dtype),
    "huge_but_no_elements": lambda x, arg: np.zeros((2**40, 0), x.dtype),
    "many_dimensions": lambda x, arg: np.zeros((1,) * 33, x.dtype),
    "unsorted": lambda x, arg: x[::-1].copy() if x.ndim else x,
    "reversed": lambda x, arg: x[..., ::-1] if x.ndim else x,
    "zero_strides": lambda x, arg: np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape) if x.size else x,
}


def _typed(dtype: Any) -> Corruption:
    def corrupt(x: Array, arg: Arg) -> Any:
        with np.errstate(all="ignore"):
            return x.astype(dtype)

    return corrupt


DTYPES: dict[str, Corruption] = {
    **{name: _typed(name) for name in
       ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "complex64", "complex128", "bool", "longdouble")},
    "bfloat16": _typed(ml_dtypes.bfloat16),
    "float8": _typed(ml_dtypes.float8_e4m3fn),
    "text": lambda x, arg: np.full(x.shape, "1"),
    "bytes": lambda x, arg: np.full(x.shape, b"1"),
    "objects": lambda x, arg: x.astype(object),
    "object_texts": lambda x, arg: np.full(x.shape, "a", object),
    "object_none": lambda x, arg: np.full(x.shape, None),
    "dates": lambda x, arg: np.zeros(x.shape, "M8[s]"),
    "structure": lambda x, arg: np.zeros(x.shape, [("a", "i4"), ("b", "f8")]),
    "durations": lambda x, arg: np.zeros(x.shape, "m8[s]"),
    "string_dtype": lambda x, arg: np.full(x.shape, "a", np.dtypes.StringDType()),
    "void": lambda x, arg: np.zeros(x.shape, "V8"),
    "structure_of_nothing": lambda x, arg: np.zeros(x.shape, []),
    "masked_nothing": lambda x, arg: np.ma.MaskedArray(x),
    "qint8": lambda x, arg: np.zeros(x.shape, [("qint8", "i1")]),
}  # fmt: skip

# -- objects that are not arrays -------------------------------------------------------------------------------------


def _deep(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def _endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


class InconsistentObject:
    """Claims to be an array, but is not one."""

    dtype, shape, ndim = np.dtype(np.float32), (2, 2), 2

    def __array__(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("not an array")


class ChangingObject:
    """Converts to a different array each time."""

    def __init__(self) -> None:
        self.reads = 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.reads += 1
        return np.zeros(self.reads, np.int64)


THINGS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "integer": lambda: 1,
    "float": lambda: 1.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "complex": lambda: 1 + 2j,
    "huge_integer": lambda: 2**70,
    "huger_integer": lambda: 10**400,
    "negative": lambda: -1,
    "word": lambda: "row",
    "word_of_bytes": lambda: b"row",
    "empty_list": list,
    "empty_tuple": tuple,
    "ragged": lambda: [[1, 2], [3]],
    "ragged_depth": lambda: [[1], 2],
    "list_of_none": lambda: [None, None],
    "list_of_words": lambda: ["a", "b"],
    "list_of_huge": lambda: [2**70, 1],
    "mixed_list": lambda: [1, "a", 2.0],
    "list_of_true": lambda: [True, False],
    "list_of_ragged_arrays": lambda: [np.zeros(2), np.zeros(3)],
    "deep_list": lambda: _deep(80),
    "endless_list": _endless,
    "dict": dict,
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "iterator": lambda: iter([1, 2]),
    "slice": lambda: slice(3),
    "ellipsis": lambda: ...,
    "object": object,
    "type": lambda: int,
    "function": lambda: len,
    "decimal": lambda: decimal.Decimal("1.5"),
    "masked": lambda: np.ma.MaskedArray([1.0, 2.0], [True, False]),
    "matrix": lambda: np.zeros((1, 1)).view(np.matrix),
    "bytearray": lambda: bytearray(b"12345678"),
    "memoryview": lambda: memoryview(b"12345678"),
    "array_module": lambda: array.array("q", [1, 2]),
    "numpy_text": lambda: np.str_("a"),
    "numpy_void": lambda: np.void(b"abc"),
    "liar": InconsistentObject,
    "shifty": ChangingObject,
}


def _thing(make: Callable[[], Any]) -> Corruption:
    return lambda x, arg: make()


INTEGERS: dict[str, Corruption] = {
    f"{where}_is_{n}": _put(n, where) for where in ("first", "last", "all") for n in NUMBERS
}
FLOATS: dict[str, Corruption] = {
    "a_nan": _values(np.nan),
    "an_infinity": _values(np.inf),
    "a_subnormal": _values(1e-310),
    "a_negative_zero": _values(-0.0),
}
ALWAYS: dict[str, Corruption] = {**SHAPES, **DTYPES, **{f"thing_{k}": _thing(v) for k, v in THINGS.items()}}


# -- lists of arrays -------------------------------------------------------------------------------------------------

LISTS: dict[str, Callable[[list[Any]], Any]] = {
    "list_of_nothing": lambda v: [],
    "list_of_one": lambda v: v[:1],
    "list_of_many": lambda v: v * 40,
    "list_of_the_same": lambda v: [v[0]] * len(v),
    "list_in_a_list": lambda v: [v],
    "list_as_tuple": tuple,
    "list_as_iterator": iter,
    "list_as_dict": lambda v: dict(enumerate(v)),
    "list_as_array": lambda v: np.zeros((2, 3), np.float32),
    "list_is_its_first": lambda v: v[0],
    "list_is_none": lambda v: None,
    "list_is_a_word": lambda v: "ab",
    "list_is_a_number": lambda v: 1,
    "list_with_none": lambda v: [*v, None],
    "list_with_a_word": lambda v: [*v, "a"],
    "list_with_a_number": lambda v: [*v, 1],
    "list_with_a_list": lambda v: [*v, [1.0, 2.0]],
    "list_with_a_shorter_one": lambda v: [*v[:-1], v[-1][:-1]],
    "list_with_another_rank": lambda v: [*v[:-1], v[-1][np.newaxis]],
    "list_with_another_dtype": lambda v: [*v[:-1], v[-1].astype(np.int8)],
    "list_with_an_empty_one": lambda v: [*v, np.zeros(0, np.float32)],
}

# -- attributes ------------------------------------------------------------------------------------------------------

_ATTRIBUTE_VALUES: dict[str, Any] = {str(n): n for n in (0, 2, 3, -2, -3, 7, *NUMBERS[5:], 2**63)} | {
    repr(n): n for n in (0.0, -0.0, 0.5, 2.0, -1.5, 1e-310, 1e39, 1e308)
}
_ATTRIBUTE_VALUES |= {
    "enormous_integer": 10**5000,
    "false": False,
    "numpy_integer": np.int64(0),
    "numpy_float": np.float32(1.5),
    "numpy_nan": np.float64("nan"),
    "numpy_true": np.True_,
    "zero_d_array": np.array(0),
    "array": np.array([0, 1]),
    "fraction": fractions.Fraction(1, 3),
    "dtype": np.dtype(np.int32),
    "dtype_class": np.float32,
    "dtype_name": "int32",
    "dtype_unknown": "float7",
    "wrong_case": "Sequential",
    "long_word": "x" * 5000,
    "half_a_character": "\ud800",
    "list_of_zero": [0],
    "tuple_of_zero": (0,),
    "tuple_of_the_same": (0, 0),
    "tuple_far_away": (5,),
    "tuple_of_nan": (float("nan"),),
    "tuple_of_word": ("a",),
    "tuple_of_true": (True,),
    "tuple_of_huge": (2**70,),
    "tuple_of_numpy": (np.int64(-1),),
}
ATTRIBUTES: dict[str, Callable[[], Any]] = {f"thing_{k}": v for k, v in THINGS.items()}
ATTRIBUTES |= {f"given_{k}": (lambda v=v: v) for k, v in _ATTRIBUTE_VALUES.items()}  # type: ignore[misc]


def corruptions_of(arg: Arg, value: Array) -> dict[str, Corruption]:
    """Return all corruptions that apply to an argument."""
    if value.dtype.kind in "iu":
        return ALWAYS | INTEGERS
    return ALWAYS | (FLOATS if value.dtype.kind in "fc" else {})
