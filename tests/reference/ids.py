"""Validation of sizes and ids, with the messages of errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from types import SimpleNamespace as Inputs
from typing import Any

import numpy as np

from .arithmetic import BUDGET, INT32_MAX, INT64_MAX, MEMORY, Array, ExpectedError, NotModelled


def wrap(value: int, bits: int = 64) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def text(shape: Iterable[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def overflow(*shape: int) -> str:
    """Return the message for a shape with too many elements for int64, or ""."""
    total = 1
    for d in map(int, shape):
        if total * d > INT64_MAX:
            result = wrap(total * d) if total * d < 2**64 else -1
            return f"Encountered overflow when multiplying {total} with {d}, result: {result}"
        total *= d
    return ""


def bad_shape(shape: Array) -> str:
    """Return the message for invalid values of a shape, which depends on whether all are small, or ""."""
    if max(shape, default=0) <= 55108:
        negative = next((d for d in shape if d < 0), None)
        return overflow(*shape) if negative is None else f"Expected shape dimensions to be non-negative, got {negative}"
    for k, d in enumerate(shape):
        if d < 0:
            return f"Expected a non-negative size, got {d}"
        if overflow(*shape[: k + 1]):
            return overflow(*shape[: k + 1])
    return ""


def bad_slice(shape: Array, new: list[int]) -> str:
    """Return the message for a shape whose dimensions are replaced one by one; long shapes have their own."""

    def apart(dims: list[int]) -> bool:
        return not any(len(dims) <= n and all(d < limit for d in dims) for n, limit in ((6, 2**16 - 2), (3, 2**32 - 2)))

    dims = list(map(int, shape))
    for k, d in enumerate(new):
        if d < 0:
            return f"Expected a non-negative size, got {d}"
        before = apart(dims)
        dims[k] = d
        if overflow(*dims):
            plain = f"Shape {text(dims)} results in overflow when computing number of elements"
            return plain if before or not apart(dims) else overflow(*dims)
    return ""


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a new output, or raise if it is too large."""
    dtype = np.dtype(dtype)
    if overflow(*shape):
        raise ExpectedError(overflow(*shape))
    size = math.prod(shape) * dtype.itemsize
    if size <= BUDGET:
        try:
            return np.zeros(shape, dtype)
        except ValueError:  # no elements, but dimensions whose product NumPy cannot represent
            size = MEMORY + 1
    name = dtype.names[0] if dtype.names else dtype.name
    name = {"float16": "half", "float32": "float", "float64": "double", "object": "string"}.get(name, name)
    where = "on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu"
    message = f"OOM when allocating tensor with shape{text(shape)} and type {name} {where}"
    raise NotModelled(message) if size <= MEMORY else ExpectedError(message, "ResourceExhaustedError")


def workspace(n: int, itemsize: int) -> None:
    """Raise if a kernel's workspace exceeds half of the machine's memory."""
    if n * itemsize > BUDGET:
        message = f"OOM when allocating workspace for {n} elements; this machine has {MEMORY} bytes"
        fits = n <= MEMORY // 2 // itemsize
        raise NotModelled(message) if fits else ExpectedError(message, "ResourceExhaustedError")


NOT_IN_PARAMS = "indices[{i}] = {v} is not in [0, {bound})"
NOT_IN_DATA = "Bad: indices[{i}] == {v} out of range [0, {bound})"
NOT_IN_GRAD = "Segment id {v} out of range [0, {bound})."
NOT_SORTED = "Segment id {v} out of range [0, {bound}), possibly because 'segment_ids' input is not sorted."
NOT_IN_OUTPUT = "Index {v} out of range [0, {bound})."
NOT_IN_SHAPE = "indices({i}, 0) is invalid: {v} >= {bound}"
NOT_IN_REVERSE = "Elements in reverse index must be in [0, {bound}) but got {v}"


def below(bound: int, message: str, v: int, i: int = 0) -> None:
    if not 0 <= v < bound:
        raise ExpectedError(message.format(i=i, v=v, bound=bound))


def all_below(bound: int, message: str, ids: Array) -> list[int]:
    for i, v in enumerate(ids.tolist()):
        below(bound, message, v, i)
    return ids.tolist()


def grouped(keys: Iterable[int]) -> dict[int, list[int]]:
    """Return the positions of every key, in input order."""
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return groups


def sorted_segments(segments: list[int], rows: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each segment and its positions; a run is compared with the next one, then with the output."""
    for segment, run in groupby(range(len(segments)), segments.__getitem__):
        where = list(run)
        if where[-1] + 1 < len(segments) and segments[where[-1] + 1] < segment:
            raise ExpectedError("segment ids are not increasing")
        below(rows, NOT_SORTED, segment)
        yield segment, where


def forward_rows(segment_ids: Array, limit: int, num_segments: int | None = None) -> int:
    """Return the number of rows of a forward. They are counted in the indices' dtype, whose maximum is `limit`."""
    n, last = len(segment_ids), int(segment_ids[-1]) if len(segment_ids) else 0
    if last >= limit:
        raise ExpectedError(f"Last segment id must be < kintmax, got {last} limit {limit}")
    needed = wrap(last + 1, 8 * segment_ids.itemsize) if n else 0
    rows = wrap(needed, 32 if limit == INT32_MAX else 64)
    if num_segments is not None:
        rows = wrap(num_segments, 32)
        if rows < needed:
            raise ExpectedError("segment ids must be < num_segments")
        if rows != num_segments:
            raise ExpectedError(f"num_segments must be at most {INT32_MAX}, got {num_segments}")
    if rows < 0 or (rows == 0 and n):
        raise ExpectedError("segment ids must be >= 0")
    return rows


def gradient_ids(x: Inputs, rows: int, segments_first: bool) -> tuple[list[int], list[int]]:
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()
    if segments[-1] >= len(x.grad):
        raise ExpectedError("Invalid number of segments")
    if segments_first:
        all_below(len(x.grad), NOT_IN_GRAD, x.segment_ids)
    for row, segment in zip(ids, segments, strict=True):
        below(rows, NOT_IN_OUTPUT, row)
        below(len(x.grad), NOT_IN_GRAD, segment)
    return ids, segments
