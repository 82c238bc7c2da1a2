"""Every kernel op of the catalogue once more, naively: what `tools/fuzz.py` holds the C++ against.

Written from the law (TensorFlow 2.21's observed behaviour) and, for rowgrad's own ops, from their documentation; it
shares no code with the library. `reference(op, inputs, attrs)` gives the outputs or raises a `Refusal` with the
error's class and bare message. An op is a list of checks of its shapes and sizes, and a function that looks at ids and
computes, row by row, elementwise along a row, in the order the law gives.

Where rowgrad differs from TensorFlow on purpose, so does this: RaggedFillEmptyRows of 0 rows gives row ids of rank 1,
an int64 num_segments beyond int32 is refused, the dense gradient of an empty batch is zeros, and thresh has to be of
the values' real type.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial, reduce
from itertools import groupby
from types import CodeType
from types import SimpleNamespace as Inputs
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Outputs = tuple[Array, ...]
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # what asks for more is refused
BUDGET = 50 << 20  # what asks for more than this, but for less than the machine has, is not tried


class Refusal(Exception):
    """The call must be refused with an error of this class and this message."""

    def __init__(self, message: str, kind: str = "InvalidArgumentError") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Unmodelled(Exception):
    """The call needs more memory than a test should take."""


# -- arithmetic: rows of the accumulator's type, in which no subnormal takes part; integers wrap ---------------------

LIMITS = {  # the least normal number, and a power of two that lifts its neighbourhood away from it
    "f": (np.float32(2.0**-126), np.float32(2.0**64)),
    "d": (np.float64(2.0**-1022), np.float64(2.0**200)),
}


def matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)


def load(array: Array) -> Array:
    """The array's rows in the accumulator's type: 16-bit floats as float32, complex numbers as pairs of reals."""
    rows = matrix(array)
    if rows.dtype.name in ("float16", "bfloat16"):
        rows = rows.astype(np.float32)
    elif rows.dtype.kind == "c":
        rows = rows.view(rows.real.dtype)
    return flush(rows)


def store(row: Array, dtype: np.dtype[Any]) -> Array:
    """A row back in its own type: 16-bit floats are rounded to nearest even."""
    return row.view(dtype) if dtype.kind == "c" else row.astype(dtype, copy=False)


def flush(row: Array, lifted: Callable[[Any], Array] | None = None) -> Array:
    """Tiny numbers to zeros of their sign.

    `lifted(up)` gives a rounded result again, times `up`: x86 rounds as if exponents had no end and flushes what is
    tiny then, so rounding among the subnormals must not carry a result up to the least normal number.
    """
    if row.dtype.kind != "f":
        return row
    least, up = LIMITS[row.dtype.char]
    tiny = np.abs(row) <= least
    if not np.count_nonzero(tiny):
        return row
    tiny &= np.abs(row * up if lifted is None else lifted(up)) < least * up
    return np.where(tiny, np.copysign(row.dtype.type(0), row), row)


def add(a: Array, b: Array) -> Array:
    return flush(a + b)  # a sum among subnormals is exact


def mul(a: Array, b: Any) -> Array:
    return flush(a * b, lambda up: (a * up) * b)


def div(a: Array, b: Any) -> Array:
    return flush(a / b, lambda up: (a * up) / b)


def div_no_nan(a: Array, b: Array) -> Array:
    return np.zeros_like(a) if b[0] == 0 else div(a, b)


def add_in_t(a: Array, b: Array) -> Array:
    """The sum of two vectors of type T, rounded to it."""
    return store(add(load(a), load(b)), a.dtype)[:, 0]


def sum_from_zero(rows: Iterable[Array], like: Array, plus: Callable[..., Array] = add) -> Array:
    return reduce(plus, rows, np.zeros_like(like))


def sum_in_eights(rows: list[Array]) -> Array:
    """SparseSegment*: first n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed on its own."""
    first = len(rows) % 8 + (8 if len(rows) % 8 < 2 else 0)
    blocks = [rows[:first], *(rows[k : k + 8] for k in range(first, len(rows), 8))]
    return reduce(add, (reduce(add, block) for block in blocks))


def sum_in_lanes(rows: list[Array], plus: Callable[..., Array] = add) -> Array:
    """SegmentSum: from zero; of 16 rows or more, whole 32-byte packets of columns go in four interleaved lanes."""
    if len(rows) == 1:
        return rows[0]
    plain = sum_from_zero(rows, rows[0], plus)
    if len(rows) < 16:
        return plain
    packet = 32 // max(plain.itemsize, 4)  # a packet of 16-bit floats is one of float32
    whole, cut = len(rows) // 4 * 4, plain.size // packet * packet
    lanes = [sum_from_zero(rows[k:whole:4], plain, plus) for k in range(4)]
    return np.concatenate([reduce(plus, (*lanes, *rows[whole:]))[:cut], plain[cut:]])


def dot(a: Array, b: Array) -> Any:
    """Eight interleaved lanes, then their tree."""
    product, lanes = mul(a, b), np.zeros(8, a.dtype)
    for c in range(0, product.size, 8):
        part = product[c : c + 8]
        lanes[: part.size] = add(lanes[: part.size], part)
    fours = add(lanes[:4], lanes[4:])
    twos = add(fours[:2], fours[2:])
    return add(twos[:1], twos[1:])[0]


def bag(kind: str, raw: Array, wide: Array, rows: list[int]) -> Array:
    """One segment of SparseSegment{kind}: a single row is copied, up to nine are scaled, more are divided."""
    if len(rows) == 1:
        return raw[rows[0]]
    total = sum_in_eights([wide[r] for r in rows])
    if kind != "Sum":
        divisor = total.dtype.type(len(rows) if kind == "Mean" else math.sqrt(len(rows)))
        total = mul(total, 1 / divisor) if len(rows) < 10 else div(total, divisor)
    return store(total, raw.dtype)


# -- sizes and ids ---------------------------------------------------------------------------------------------------


def wrap(value: int, bits: int = 64) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def text(shape: Iterable[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def overflow(*shape: int, show: Callable[[int], int] = wrap) -> str:
    """What is to be said of a shape with too many elements for int64; nothing of others."""
    total = 1
    for d in map(int, shape):
        if total * d > INT64_MAX:
            return f"Encountered overflow when multiplying {total} with {d}, result: {show(total * d)}"
        total *= d
    return ""


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new output, or the refusal to make one so large."""
    dtype = np.dtype(dtype)
    if overflow(*shape):
        raise Refusal(overflow(*shape))
    size = math.prod(shape) * dtype.itemsize
    if size <= BUDGET:
        try:
            return np.zeros(shape, dtype)
        except ValueError:  # no elements, but dimensions whose product NumPy cannot hold
            size = MEMORY + 1
    name = dtype.names[0] if dtype.names else dtype.name
    name = {"float16": "half", "float32": "float", "float64": "double"}.get(name, name)
    where = "on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu"
    message = f"OOM when allocating tensor with shape{text(shape)} and type {name} {where}"
    raise Unmodelled(message) if size <= MEMORY else Refusal(message, "ResourceExhaustedError")


def workspace(n: int, itemsize: int) -> None:
    """Memory a kernel needs besides its outputs: half the machine at most."""
    if n * itemsize > BUDGET:
        message = f"OOM when allocating workspace for {n} elements; this machine has {MEMORY} bytes"
        fits = n <= MEMORY // 2 // itemsize
        raise Unmodelled(message) if fits else Refusal(message, "ResourceExhaustedError")


NOT_IN_PARAMS = "indices[{i}] = {v} is not in [0, {bound})"
NOT_IN_DATA = "Bad: indices[{i}] == {v} out of range [0, {bound})"
NOT_IN_GRAD = "Segment id {v} out of range [0, {bound})."
NOT_SORTED = "Segment id {v} out of range [0, {bound}), possibly because 'segment_ids' input is not sorted."
NOT_IN_OUTPUT = "Index {v} out of range [0, {bound})."
NOT_IN_SHAPE = "indices({i}, 0) is invalid: {v} >= {bound}"
NOT_IN_REVERSE = "Elements in reverse index must be in [0, {bound}) but got {v}"


def below(bound: int, words: str, v: int, i: int = 0) -> None:
    if not 0 <= v < bound:
        raise Refusal(words.format(i=i, v=v, bound=bound))


def all_below(bound: int, words: str, ids: Array) -> list[int]:
    for i, v in enumerate(ids.tolist()):
        below(bound, words, v, i)
    return ids.tolist()


def grouped(keys: Iterable[int]) -> dict[int, list[int]]:
    """The positions of every key, in input order."""
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return groups


def sorted_segments(segments: list[int], rows: int) -> Iterator[tuple[int, list[int]]]:
    """Each segment and its positions; a run is compared with the next one, then with the output."""
    for segment, run in groupby(range(len(segments)), segments.__getitem__):
        where = list(run)
        if where[-1] + 1 < len(segments) and segments[where[-1] + 1] < segment:
            raise Refusal("segment ids are not increasing")
        below(rows, NOT_SORTED, segment)
        yield segment, where


def forward_rows(segment_ids: Array, limit: int, num_segments: int | None = None) -> int:
    n, last = len(segment_ids), int(segment_ids[-1]) if len(segment_ids) else 0
    if last >= limit:
        raise Refusal(f"Last segment id must be < kintmax, got {last} limit {limit}")
    rows = needed = wrap(last + 1, 8 * segment_ids.itemsize) if n else 0
    if num_segments is not None:
        rows = wrap(num_segments, 32)
        if rows < needed:
            raise Refusal("segment ids must be < num_segments")
        if rows != num_segments:
            raise Refusal(f"num_segments must be at most {INT32_MAX}, got {num_segments}")
    if rows < 0 or (rows == 0 and n):
        raise Refusal("segment ids must be >= 0")
    return rows


def gradient_ids(x: Inputs, rows: int, segments_first: bool) -> tuple[list[int], list[int]]:
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()
    if segments[-1] >= len(x.grad):
        raise Refusal("Invalid number of segments")
    if segments_first:
        all_below(len(x.grad), NOT_IN_GRAD, x.segment_ids)
    for row, segment in zip(ids, segments, strict=True):
        below(rows, NOT_IN_OUTPUT, row)
        below(len(x.grad), NOT_IN_GRAD, segment)
    return ids, segments


# -- SparseSegment* --------------------------------------------------------------------------------------------------


def sparse_segment(kind: str, x: Inputs) -> Outputs:
    limit = INT32_MAX if x.indices.itemsize == 4 else INT64_MAX
    rows = forward_rows(x.segment_ids, limit, int(x.num_segments) if hasattr(x, "num_segments") else None)
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    raw, wide, out, ids = matrix(x.data), load(x.data), matrix(output), x.indices.tolist()
    for segment, where in sorted_segments(x.segment_ids.tolist(), rows):
        for i in where:
            below(len(x.data), NOT_IN_DATA, ids[i], i)
        out[segment] = bag(kind, raw, wide, [ids[i] for i in where])
    return (output,)


def sparse_segment_grad_grad(kind: str, x: Inputs) -> Outputs:
    output = zeros((int(x.num_segments), *x.data.shape[1:]), x.data.dtype)
    if len(x.data) == 0:  # the gradient looked at no id either
        return (output,)
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()
    for i, (row, segment) in enumerate(zip(ids, segments, strict=True)):
        below(len(x.data), NOT_IN_DATA, row, i)
        below(len(output), NOT_IN_GRAD, segment)
    raw, wide, out = matrix(x.data), load(x.data), matrix(output)
    for segment, where in grouped(segments).items():
        out[segment] = bag(kind, raw, wide, [ids[i] for i in where])
    return (output,)


def sparse_segment_grad(kind: str, x: Inputs) -> Outputs:
    unique = hasattr(x, "dense_output_dim0")
    rows, inner = int(x.dense_output_dim0 if unique else x.output_dim0), x.grad.shape[1:]
    output = zeros((0 if unique else rows, *inner), x.grad.dtype)
    if len(x.indices) == 0 or rows == 0:  # nothing else is looked at
        return (output, np.zeros(0, x.indices.dtype)) if unique else (output,)
    ids, segments = gradient_ids(x, rows, segments_first=not unique and kind != "Sum")
    groups, sizes = grouped(ids), {s: len(where) for s, where in grouped(segments).items()}
    if unique:
        output = zeros((len(groups), *inner), x.grad.dtype)
        groups = {k: groups[row] for k, row in enumerate(sorted(groups))}
    if kind != "Sum":
        workspace(len(x.grad), 8)
    wide, out = load(x.grad), matrix(output)

    def term(segment: int) -> Array:  # the scale is computed in double and rounded once
        scale = 1 / (sizes[segment] if kind == "Mean" else math.sqrt(sizes[segment]))
        return wide[segment] if kind == "Sum" else mul(wide[segment], wide.dtype.type(scale))

    for row, where in groups.items():
        out[row] = store(sum_from_zero((term(segments[i]) for i in where), wide[0]), x.grad.dtype)
    return (output, np.array(sorted(set(ids)), x.indices.dtype)) if unique else (output,)


# -- SegmentSum, GatherRows, ScatterRows, RowPositions, dots ---------------------------------------------------------


def segment_sum(x: Inputs) -> Outputs:
    segments = x.segment_ids.tolist()
    rows = segments[-1] + 1 if segments else 0
    if rows > INT64_MAX:
        raise Refusal(f"Expected a non-negative size, got {wrap(rows)}")
    if rows <= 0 and segments:
        raise Refusal("segment ids must be >= 0")
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    raw, out = matrix(x.data), matrix(output)
    for segment, where in sorted_segments(segments, rows):
        out[segment] = sum_in_lanes([raw[i] for i in where], add_in_t)  # 16-bit floats round at every add
    return (output,)


def gather_rows(x: Inputs) -> Outputs:
    output = zeros((len(x.indices), *x.params.shape[1:]), x.params.dtype)
    for i, row in enumerate(all_below(len(x.params), NOT_IN_PARAMS, x.indices)):
        output[i] = x.params[row]
    return (output,)


def scatter_rows(x: Inputs) -> Outputs:
    output = zeros((int(x.num_rows), *x.grad.shape[1:]), x.grad.dtype)
    wide, out = load(x.grad), matrix(output)
    for row, where in grouped(all_below(len(out), NOT_IN_OUTPUT, x.indices)).items():
        out[row] = store(sum_from_zero((wide[i] for i in where), wide[0]), x.grad.dtype)
    return (output,)


def row_positions(x: Inputs) -> Outputs:
    listed, positions = x.sorted_ids.tolist(), []
    for i, v in enumerate(x.ids.tolist()):
        positions.append(bisect_left(listed, v))
        if listed[positions[-1] :][:1] != [v]:
            raise Refusal(f"ids[{i}] = {v} is not one of the {len(listed)} sorted_ids")
    return (np.array(positions, np.int64),)


def row_dot(x: Inputs) -> Outputs:
    a, b = load(x.x), load(x.y)
    output = zeros(x.x.shape[:1], a.dtype)
    for i in range(len(a) if a.size else 0):
        output[i] = dot(a[i], b[i])
    return (output,)


def sparse_segment_dot(x: Inputs) -> Outputs:
    a, b = load(x.grad), load(x.data)
    output = zeros(x.indices.shape, a.dtype)
    for i, (row, segment) in enumerate(zip(x.indices.tolist(), x.segment_ids.tolist(), strict=True)):
        below(len(b), NOT_IN_PARAMS, row, i)
        below(len(a), NOT_IN_GRAD, segment)
        output[i] = dot(a[segment], b[row])
    return (output,)


# -- WeightedSparseSegment* ------------------------------------------------------------------------------------------

Groups = dict[int, list[int]]


def weigh(kind: str, given: Array, dtype: np.dtype[Any], groups: Groups, rows: int) -> tuple[Array, dict[int, Array]]:
    """The weights in the accumulator's type; Σw or √Σw² of every segment that has ids, nothing for plain sums."""
    wide = load(given)
    weights = flush(wide.astype(dtype), lambda up: (wide * up).astype(dtype))
    if kind == "Sum":
        return weights, {}
    workspace(rows, dtype.itemsize)
    terms = weights if kind == "Mean" else mul(weights, weights)
    sums = {segment: sum_from_zero((terms[i] for i in where), terms[0]) for segment, where in groups.items()}
    return weights, sums if kind == "Mean" else {segment: np.sqrt(total) for segment, total in sums.items()}


def weighted_segment(kind: str, x: Inputs) -> Outputs:
    """The forward, or where num_segments is given the gradient's gradient."""
    ids, transpose = all_below(len(x.data), NOT_IN_PARAMS, x.indices), hasattr(x, "num_segments")
    rows = int(x.num_segments) if transpose else forward_rows(x.segment_ids, INT64_MAX)
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    if transpose:
        groups = grouped(all_below(rows, NOT_IN_GRAD, x.segment_ids))
    else:
        groups = dict(sorted_segments(x.segment_ids.tolist(), rows))
    wide, out = load(x.data), matrix(output)
    weights, totals = weigh(kind, x.weights, wide.dtype, groups, rows)
    for segment, where in groups.items():
        row = sum_in_lanes([mul(wide[ids[i]], weights[i]) for i in where])
        out[segment] = store(div_no_nan(row, totals[segment]) if totals else row, x.data.dtype)
    return (output,)


def weighted_terms(kind: str, x: Inputs, segments: list[int]) -> list[Array]:
    """What each id contributes: its segment's row / the segment's total · its weight."""
    wide = load(x.grad)
    weights, totals = weigh(kind, x.weights, wide.dtype, grouped(segments), len(x.grad))
    rows = [div_no_nan(wide[s], totals[s]) if totals else wide[s] for s in segments]
    return [mul(row, weight) for row, weight in zip(rows, weights, strict=True)]


def weighted_segment_grad(kind: str, x: Inputs) -> Outputs:
    output = zeros((int(x.output_dim0), *x.grad.shape[1:]), x.grad.dtype)
    if len(x.indices) == 0 or len(output) == 0:
        return (output,)
    ids, segments = gradient_ids(x, len(output), segments_first=False)
    terms, out = weighted_terms(kind, x, segments), matrix(output)
    for row, where in grouped(ids).items():
        if x.accumulate == "T":  # every product and every sum is rounded to T
            out[row] = sum_from_zero((store(terms[i], x.grad.dtype) for i in where), out[row], add_in_t)
        else:
            out[row] = store(sum_from_zero((terms[i] for i in where), terms[0]), x.grad.dtype)
    return (output,)


def weighted_segment_grad_rows(kind: str, x: Inputs) -> Outputs:
    output = zeros((len(x.segment_ids), *x.grad.shape[1:]), x.grad.dtype)
    segments = all_below(len(x.grad), NOT_IN_GRAD, x.segment_ids)
    for i, term in enumerate(weighted_terms(kind, x, segments)):
        matrix(output)[i] = store(term, x.grad.dtype)
    return (output,)


# -- {Sparse,Ragged}FillEmptyRows ------------------------------------------------------------------------------------


def fill_empty_rows(x: Inputs) -> Outputs:
    ragged = hasattr(x, "nrows")
    indices, rows = (x.value_rowids, int(x.nrows)) if ragged else (x.indices, int(x.dense_shape[0]))
    groups = grouped(all_below(rows, NOT_IN_SHAPE, matrix(indices)[:, 0]))
    workspace(rows, 8)
    sources = [(row, i) for row in range(rows) for i in groups.get(row, [None])]  # None: filled
    out_indices = zeros((len(sources), *indices.shape[1:]), np.int64)
    out_values, reverse = zeros((len(sources),), x.values.dtype), zeros((len(indices),), np.int64)
    for k, (row, i) in enumerate(sources):
        if i is None:
            out_values[k], matrix(out_indices)[k, 0] = x.default_value[()], row
        else:
            out_values[k], out_indices[k], reverse[i] = x.values[i], indices[i], k
    return out_indices, out_values, np.array([row not in groups for row in range(rows)], bool), reverse


def fill_empty_rows_grad(x: Inputs) -> Outputs:
    named = all_below(len(x.grad_values), NOT_IN_REVERSE, x.reverse_index_map)
    rest = (x.grad_values[j : j + 1] for j in sorted(set(range(len(x.grad_values))) - set(named)))
    total = sum_from_zero(rest, np.zeros(1, x.grad_values.dtype), add_in_t)  # 16-bit floats round at every add
    return x.grad_values[named], total.reshape(())


def fill_empty_rows_grad_grad(x: Inputs) -> Outputs:
    output, wide = zeros(x.grad_values.shape, x.grad_values.dtype), load(x.dd_values)
    output[...] = x.dd_default_value
    for j, where in grouped(all_below(len(output), NOT_IN_REVERSE, x.reverse_index_map)).items():
        alone = len(where) == 1  # then its bits are kept
        terms = (wide[i] for i in where)
        output[j] = x.dd_values[where[0]] if alone else store(reduce(add, terms), output.dtype)[0]
    return (output,)


# -- SparseSlice, SparseAdd ------------------------------------------------------------------------------------------


def entries(indices: Array) -> list[tuple[int, ...]]:
    return [tuple(row) for row in indices.tolist()]


def slice_shape(shape: Array, start: Array, size: Array) -> list[int]:
    def extent(dim: int, begin: int, length: int) -> int:
        return length if begin < wrap(dim - length) else wrap(dim - begin) if begin < dim else 0

    return list(map(extent, shape.tolist(), start.tolist(), size.tolist()))


def sparse_slice(x: Inputs) -> Outputs:
    box = [(begin, wrap(begin + length)) for begin, length in zip(x.start.tolist(), x.size.tolist(), strict=True)]
    inside = [all(p <= v < q for v, (p, q) in zip(entry, box, strict=True)) for entry in entries(x.indices)]
    kept = np.array(inside, bool)  # nothing, where an end has wrapped
    return x.indices[kept] - x.start, x.values[kept], np.array(slice_shape(x.shape, x.start, x.size), np.int64)


def slice_pairs(x: Inputs) -> list[int]:
    """Of each output entry the input entry it came from: in one pass, each takes the next that equals it."""
    moved, pairs = entries(x.output_indices + x.input_start), []
    for i, entry in enumerate(entries(x.input_indices)):
        if len(pairs) < len(moved) and entry == moved[len(pairs)]:
            pairs.append(i)
    if len(pairs) < len(moved):
        counts = f"Num elements:{len(moved)}, used: {len(pairs)}"
        raise Refusal(f"Elements of backprop_val_grad aren't all propagated. {counts}", "InternalError")
    return pairs


def sparse_slice_grad(x: Inputs) -> Outputs:
    output = zeros((len(x.input_indices),), x.backprop_val_grad.dtype)
    output[slice_pairs(x)] = x.backprop_val_grad
    return (output,)


def sparse_slice_grad_grad(x: Inputs) -> Outputs:
    return (x.grad[slice_pairs(x)],)


def reaches(total: Array, thresh: Array) -> bool:
    """thresh <= abs(total), never for NaN; the least int32 and int64 have no absolute value."""
    if total.dtype.kind == "i":
        return int(thresh) <= wrap(abs(int(total[0])), max(8 * total.itemsize, 32))
    parts = load(total)[0]
    return bool(load(thresh)[0, 0] <= (np.hypot(*parts) if parts.size == 2 else abs(parts[0])))


def sparse_add(x: Inputs) -> Outputs:
    a, b, merged, i, j = entries(x.a_indices), entries(x.b_indices), [], 0, 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] < b[j]):
            merged.append((a[i], x.a_values[i : i + 1]))
            i += 1
        elif i == len(a) or b[j] < a[i]:
            merged.append((b[j], x.b_values[j : j + 1]))
            j += 1
        else:
            total = add_in_t(x.a_values[i : i + 1], x.b_values[j : j + 1])
            merged += [(a[i], total)] if reaches(total, x.thresh) else []
            i, j = i + 1, j + 1
    indices = np.array([entry for entry, _ in merged], np.int64).reshape(len(merged), x.a_indices.shape[1])
    return indices, np.concatenate([x.a_values[:0], *(value for _, value in merged)]), x.a_shape.copy()


def sum_walk(x: Inputs) -> Iterator[tuple[int, int, int]]:
    """(operand, its entry, the sum's entry) for every match TensorFlow's walk along the three lists finds."""
    operands, total = (entries(x.a_indices), entries(x.b_indices)), entries(x.sum_indices)
    heads, k = [0, 0], 0
    while k < len(total) and (heads[0] < len(operands[0]) or heads[1] < len(operands[1])):
        wait = False
        for side, operand in enumerate(operands):
            head = heads[side]
            if head < len(operand) and operand[head] <= total[k]:
                heads[side] += 1
                wait |= operand[head] < total[k]
                if operand[head] == total[k]:
                    yield side, head, k
        k += not wait


def sparse_add_grad(x: Inputs) -> Outputs:
    outputs = [zeros((len(i),), x.backprop_val_grad.dtype) for i in (x.a_indices, x.b_indices)]
    for side, i, k in sum_walk(x):
        outputs[side][i] = x.backprop_val_grad[k]
    return tuple(outputs)


def sparse_add_grad_grad(x: Inputs) -> Outputs:
    output, seen = zeros((len(x.sum_indices),), x.da.dtype), set()
    for side, i, k in sum_walk(x):
        value, place = (x.da, x.db)[side][i : i + 1], slice(k, k + 1)
        output[place] = add_in_t(output[place], value) if k in seen else value
        seen.add(k)
    return (output,)


# -- checks of shapes and sizes, in order: what must hold, and the message where it does not, over the op's inputs ---

Check = tuple[str, str]


def vectors(*names: str) -> list[Check]:
    return [(f"{name}.ndim == 1", f"{name} should be a vector.") for name in names]


def must_be(rank: int, *names: str) -> list[Check]:
    what = ("scalar", "vector", "matrix")[rank]
    return [(f"{name}.ndim == {rank}", f"{name} must be a {what}, saw: {{text({name}.shape)}}") for name in names]


def as_long_as(other: str, *names: str) -> list[Check]:
    return [(f"len({n}) == len({other})", f"{n} must have length {{len({other})}}, got {{len({n})}}") for n in names]


def scalar(name: str) -> list[Check]:
    return [(f"{name}.ndim == 0", f"{name} should be a scalar.")]


def non_negative(name: str) -> list[Check]:
    return [(f"{name} >= 0", f"Expected a non-negative size, got {{{name}}}")]


def no_overflow(*shape: str, more: str = "") -> list[Check]:
    call = f"overflow({', '.join(shape)}{more})"
    return [(f"not {call}", f"{{{call}}}")]


def first(flags: Array) -> int:
    return int(np.flatnonzero(flags)[0])


DATA, PARAMS, X, Y = ([(f"{n}.ndim > 0", "Shape must be at least rank 1")] for n in ("data", "params", "x", "y"))
GRAD = [("grad.ndim > 0", "Index must be less than 0, got 0")]
IDS = vectors("indices", "segment_ids")
SAME_IDS = [("len(indices) == len(segment_ids)", "segment_ids and indices should have same size.")]
SAME_WEIGHTS = [
    ("len(weights) == len(segment_ids)",
     "weights and segment_ids should have same size, got {len(weights)} and {len(segment_ids)}"),
]  # fmt: skip
WEIGHTED = [*IDS, *vectors("weights"), *SAME_IDS, *SAME_WEIGHTS]
NUM_SEGMENTS = [
    ("num_segments.ndim == 0", "num_segments should be a scalar, not shape {text(num_segments.shape)}"),
    ("num_segments >= 0", "segment ids must be >= 0"),
]
SEGMENT_SUM = [
    ("data.ndim > 0", "input must be at least rank 1"),
    *vectors("segment_ids"),
    ("len(data) == len(segment_ids)", "segment_ids should be the same size as dimension 0 of input."),
]
SAME_ROWS = [("grad.shape[1:] == data.shape[1:]",
              "data must have rows of shape {text(grad.shape[1:])}, got {text(data.shape[1:])}")]  # fmt: skip
SAME_SHAPE = [("x.shape == y.shape", "y must have shape {text(x.shape)}, got {text(y.shape)}")]


def fill_checks(ids: str, size: str, rank: int) -> list[Check]:
    rows, count = f"{size}.flat[0]", f"len({ids})"
    columns = "`dense_shape` ({size.size}) must match the second dimension of `indices` ({indices.shape[1]})."
    return [
        *must_be(rank - 1, size),
        *must_be(rank, ids),
        *must_be(1, "values"),
        (f"len(values) == {count}",
         f"The length of `values` ({{len(values)}}) must match the first dimension of `{ids}` ({{{count}}})."),
        (f"{size}.shape == {ids}.shape[1:]", f"The length of {columns.replace('size.', f'{size}.')}"),
        *must_be(0, "default_value"),
        (f"{size}.size > 0", "Dense shape cannot be empty."),
        (f"{rows} >= 0", f"Expected shape dimensions to be non-negative, got {{{rows}}}"),
        (f"{rows} > 0 or {count} == 0",
         f"Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {{{count}}}"),
    ]  # fmt: skip


REVERSE = must_be(1, "reverse_index_map", "grad_values")
REVERSE_TRANSPOSE = [
    *must_be(1, "reverse_index_map", "dd_values", "grad_values"),
    *must_be(0, "dd_default_value"),
    *as_long_as("reverse_index_map", "dd_values"),
]
SLICE = [
    ("indices.ndim == 2", "Sparse indices must be rank 2 but is rank {indices.ndim}"),
    ("values.ndim == 1", "Sparse values must be rank 1 but is rank {values.ndim}"),
    ("shape.ndim == 1", "Sparse shape must be rank 1 but is rank {shape.ndim}"),
    ("len(indices) == len(values)",
     "Number of elements in indices ({len(indices)}) and values ({len(values)}) do not match"),
    ("indices.shape[1] == len(shape)",
     "Index rank ({indices.shape[1]}) and shape rank ({len(shape)}) do not match"),
    ("start.ndim == 1", "Input start should be a vector but received shape {text(start.shape)}"),
    ("size.ndim == 1", "Input size should be a vector but received shape {text(size.shape)}"),
    ("len(start) == len(shape)",
     "Expected start to be a vector of length {len(shape)} but got length {len(start)}"),
    ("len(size) == len(shape)",
     "Expected size to be a vector of length {len(shape)} but got length {len(size)}"),
    ("all(shape >= 0)", "Expected shape dimensions to be non-negative, got {shape[first(shape < 0)]}"),
    *no_overflow("*shape", more=", show=lambda _: -1"),
    ("all(d >= 0 for d in slice_shape(shape, start, size))",
     "Expected a non-negative size, got {next(d for d in slice_shape(shape, start, size) if d < 0)}"),
]  # fmt: skip
BACKPROP = [
    ("backprop_val_grad.ndim == 1",
     "Input backprop_val_grad should be a vector but received shape: {text(backprop_val_grad.shape)}"),
]  # fmt: skip
SLICE_MATRICES = [("input_indices.ndim == output_indices.ndim == 2",
                   "Input and output indices should be matrices but received shapes: "
                   "{text(input_indices.shape)} and {text(output_indices.shape)}")]  # fmt: skip
SLICE_COUNTS = [
    ("input_indices.shape[1] == output_indices.shape[1]",
     "The input and output should have the same ndims: got: {input_indices.shape[1]} and {output_indices.shape[1]}"),
    ("len(output_indices) <= len(input_indices)",
     "# rows of output_indices should be not greater than of input_indices, "
     "got {len(output_indices)} and {len(input_indices)}"),
]  # fmt: skip
SLICE_VALUES = [("len(backprop_val_grad) == len(output_indices)",
                 "# elements of backprop_val_grad and # rows of output_indices should match (#nnz of sum): "
                 "got {len(backprop_val_grad)} and {len(output_indices)}")]  # fmt: skip
SLICE_START = [
    ("input_start.ndim == 1", "The input_start should be a vector but received shape {text(input_start.shape)}"),
    ("len(input_start) == input_indices.shape[1]",
     "Expected input_start to be a vector of length {input_indices.shape[1]} but got length {len(input_start)}"),
]  # fmt: skip
ADD = [
    ("thresh.dtype == a_values.real.dtype",
     "thresh must be {a_values.real.dtype}, the type that goes with T = {a_values.dtype}; got {thresh.dtype}"),
    ("a_indices.ndim == b_indices.ndim == 2",
     "Input indices should be matrices but received shapes: {text(a_indices.shape)} and {text(b_indices.shape)}"),
    ("a_indices.shape[1] == b_indices.shape[1]",
     "Input indices must have the same dimension, got {a_indices.shape[1]} and {b_indices.shape[1]}"),
    ("a_values.ndim == b_values.ndim == 1",
     "Input values should be vectors but received shapes: {text(a_values.shape)} and {text(b_values.shape)}"),
    ("len(a_values) == len(a_indices) and len(b_values) == len(b_indices)",
     "Expected {len(a_indices)} and {len(b_indices)} non-empty input values, "
     "got {len(a_values)} and {len(b_values)}"),
    ("a_shape.ndim == b_shape.ndim == 1",
     "Input shapes should be a vector but received shapes {text(a_shape.shape)} and {text(b_shape.shape)}"),
    ("a_indices.shape[1] == len(a_shape)",
     "Second dimension of a_indices and length of a_shape must match, got {a_indices.shape[1]} and {len(a_shape)}"),
    ("len(a_shape) > 0", "Tesors must not be empty"),
    ("len(a_shape) == len(b_shape)",
     "Operands do not have the same ranks; got shapes: "
     "{' '.join(map(str, a_shape))} and {' '.join(map(str, b_shape))}"),
    ("all(a_shape == b_shape)",
     "Operands' shapes do not match: got {a_shape[first(a_shape != b_shape)]} and {b_shape[first(a_shape != b_shape)]} "
     "for dimension {first(a_shape != b_shape)}"),
    ("thresh.ndim == 0", "The magnitude threshold must be a scalar: got shape {text(thresh.shape)}"),
]  # fmt: skip
SUM_MATRICES = [("a_indices.ndim == b_indices.ndim == sum_indices.ndim == 2",
                 "Input indices should be matrices but received shapes: "
                 "{text(a_indices.shape)} and {text(b_indices.shape)} and {text(sum_indices.shape)}")]  # fmt: skip
SUM_RANKS = [("a_indices.shape[1] == b_indices.shape[1] == sum_indices.shape[1]",
              "The densified operands should have the same ndims; for A, B, sum got: "
              "{a_indices.shape[1]}{b_indices.shape[1]}{sum_indices.shape[1]}")]  # fmt: skip
SUM_VALUES = [("len(backprop_val_grad) == len(sum_indices)",
               "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): "
               "got {len(backprop_val_grad)} and {len(sum_indices)}")]  # fmt: skip
DA_DB = [*must_be(1, "da"), *as_long_as("a_indices", "da"), *must_be(1, "db"), *as_long_as("b_indices", "db")]


# -- the table -------------------------------------------------------------------------------------------------------

OPS: dict[str, tuple[list[Check], Callable[[Inputs], Outputs]]] = {
    "SegmentSum": (SEGMENT_SUM, segment_sum),
    "GatherRows": ([*vectors("indices"), *PARAMS], gather_rows),
    "ScatterRows": (
        [*vectors("indices"), *GRAD, *as_long_as("grad", "indices"), *scalar("num_rows"), *non_negative("num_rows")],
        scatter_rows,
    ),
    "RowPositions": (vectors("sorted_ids", "ids"), row_positions),
    "RowDot": ([*X, *Y, *SAME_SHAPE], row_dot),
    "SparseSegmentDot": ([*IDS, *SAME_IDS, *GRAD, *DATA, *SAME_ROWS], sparse_segment_dot),
    "SparseSlice": (SLICE, sparse_slice),
    "SparseSliceGrad": ([*SLICE_MATRICES, *BACKPROP, *SLICE_COUNTS, *SLICE_VALUES, *SLICE_START], sparse_slice_grad),
    "SparseSliceGradGrad": (
        [*SLICE_MATRICES, *must_be(1, "grad"), *SLICE_COUNTS, *as_long_as("input_indices", "grad"), *SLICE_START],
        sparse_slice_grad_grad,
    ),
    "SparseAdd": (ADD, sparse_add),
    "SparseAddGrad": ([*SUM_MATRICES, *BACKPROP, *SUM_RANKS, *SUM_VALUES], sparse_add_grad),
    "SparseAddGradGrad": ([*SUM_MATRICES, *SUM_RANKS, *DA_DB], sparse_add_grad_grad),
    "SparseFillEmptyRows": (fill_checks("indices", "dense_shape", 2), fill_empty_rows),
    "RaggedFillEmptyRows": (fill_checks("value_rowids", "nrows", 1), fill_empty_rows),
}
for _family in ("Sparse", "Ragged"):
    OPS[f"{_family}FillEmptyRowsGrad"] = (REVERSE, fill_empty_rows_grad)
    OPS[f"{_family}FillEmptyRowsGradGrad"] = (REVERSE_TRANSPOSE, fill_empty_rows_grad_grad)
for _kind in ("Sum", "Mean", "SqrtN"):
    _op = f"SparseSegment{_kind}"
    OPS[_op] = ([*IDS, *SAME_IDS, *DATA], partial(sparse_segment, _kind))
    OPS[f"{_op}WithNumSegments"] = ([*NUM_SEGMENTS, *IDS, *SAME_IDS, *DATA], partial(sparse_segment, _kind))
    OPS[f"{_op}GradGrad"] = ([*NUM_SEGMENTS, *IDS, *SAME_IDS, *DATA], partial(sparse_segment_grad_grad, _kind))
    for _suffix, _size in (("Grad", "output_dim0"), ("GradV2", "dense_output_dim0")):
        _checks = [*IDS, *scalar(_size), *SAME_IDS, *non_negative(_size), *GRAD, *no_overflow(_size, "*grad.shape[1:]")]
        OPS[_op + _suffix] = (_checks, partial(sparse_segment_grad, _kind))
    _checks = [*WEIGHTED, *scalar("output_dim0"), *non_negative("output_dim0"), *GRAD]
    OPS[f"Weighted{_op}Grad"] = (_checks, partial(weighted_segment_grad, _kind))
    _checks = [*vectors("segment_ids", "weights"), *SAME_WEIGHTS, *GRAD]
    OPS[f"Weighted{_op}GradRows"] = (_checks, partial(weighted_segment_grad_rows, _kind))
    _checks = [*WEIGHTED, *DATA, *scalar("num_segments"), *non_negative("num_segments")]
    OPS[f"Weighted{_op}GradGrad"] = (_checks, partial(weighted_segment, _kind))
    OPS[f"Weighted{_op}"] = ([*WEIGHTED, *DATA], partial(weighted_segment, _kind))


@cache
def compiled(op_name: str) -> list[tuple[CodeType, CodeType]]:
    checks = OPS[op_name][0]
    return [(compile(holds, holds, "eval"), compile(f'f"""{words}"""', words, "eval")) for holds, words in checks]


def reference(op_name: str, inputs: dict[str, Array], attrs: dict[str, Any]) -> Outputs:
    """The outputs of a call, or its Refusal."""
    for holds, message in compiled(op_name):
        if not eval(holds, globals(), inputs):
            raise Refusal(eval(message, globals(), inputs))
    with np.errstate(all="ignore"):
        return OPS[op_name][1](Inputs(**inputs, **attrs))
