"""Values as short texts: a literal that is cut where it is long, and a preview that costs next to nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import Array, as_array, aval_of
from ..graph.literal_elements import write_word
from .windows import texts_of


def array_of(value: Any, argument: str = "value") -> Array:
    """A value as the array it is, or would be alone."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return as_array(value, argument)


def is_weak(value: Any) -> bool:
    """Whether a value has no dtype of its own."""
    return not isinstance(value, np.ndarray | np.generic)


def short_text(value: Any, most: int = 200) -> str:
    """The value as a literal, cut with … where it is longer than `most`."""
    return literal_text(as_written(value), most)


def as_written(value: Any) -> Array:
    """A value as the array whose texts are what was typed: Python's digits, not those of the float32 it would be."""
    array = array_of(value)
    return np.array(value, dtype=np.float64) if is_weak(value) and array.dtype == np.float32 else array


def literal_text(array: Array, most: int) -> str:
    """What `format_literal` gives, of which no more is written than is shown."""
    dtype = aval_of(array).dtype
    if array.size == 0:
        return _cut(_empty(array.shape, most), most)
    flat = _first(array, most // 2 + 1)
    words = [write_word(x, dtype) for x in flat] if dtype in ("string", "float32") else texts_of(flat)
    inner: list[str] = []
    length = 0
    for k, word in enumerate(words):
        opened = sum(1 for size in _strides(array.shape) if k % size == 0)
        inner.append(("," if k else "") + "{" * opened + word)
        closing = sum(1 for size in _strides(array.shape) if (k + 1) % size == 0)
        inner.append("}" * closing)
        length += len(inner[-2]) + closing
        if length > most:
            break
    text = "".join(inner)
    return text if len(text) <= most and len(words) == array.size else text[: most - 1] + "…"


def _strides(shape: tuple[int, ...]) -> list[int]:
    """How many elements the braces at each depth hold."""
    return [math.prod(shape[k:]) for k in range(len(shape))]


def _empty(shape: tuple[int, ...], most: int) -> str:
    """Braces without an element. What is cut anyway is not written: every axis would make it many times as long."""
    text = "{}"
    for size in reversed(shape[: shape.index(0)]):
        text = ("{" + ",".join([text] * min(size, most // len(text) + 1)))[: most + len(shape)] + "}"
    return text


def _first(array: Array, count: int) -> Array:
    """The first elements, whatever the layout, with nothing else copied; NumPy walks along 32 dimensions at most."""
    return array.flat[:count] if array.ndim <= 32 else array.reshape(-1)[:count]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def preview(array: Array, most: int = 120) -> str:
    """The first elements, quickly and to six digits: for many blocks at once, many times a second."""
    kind = array.dtype.kind  # that of bfloat16 is V, as that of structures is
    flat = _first(array, 16)
    if array.dtype.names is not None:
        flat = flat.view(array.dtype[0])
    elif kind == "V":
        kind = "f"
    if kind == "f":
        words = [f"{x:.6g}" for x in flat.astype(np.float64, copy=False).tolist()]
    elif kind == "O":
        words = [write_word(x if len(x) <= most else x[:most], "string") for x in flat.tolist()]
    elif kind == "b":
        words = ["true" if x else "false" for x in flat.tolist()]
    else:
        words = [str(x).strip("()") for x in flat.tolist()]
    if array.ndim == 0:
        return _cut(words[0], most)
    row = array.shape[-1] if array.ndim > 1 and array.size else len(words) or 1
    text = "; ".join([", ".join(words[k : k + row]) for k in range(0, len(words), row)])
    return _cut(text + (" …" if flat.size < array.size else ""), most)
