"""Every kernel op of the catalogue once more, naively: what `tools/fuzz.py` holds the C++ against.

Written from the law (TensorFlow 2.21's observed behaviour) and, for rowgrad's own ops, from their documentation; it
shares no code with the library. `reference(op, inputs, attrs)` gives the outputs or raises a `Refusal` with the
error's class and bare message. Arithmetic goes row by row, elementwise along a row, in the order the law gives.

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


def add_stored(a: Array, b: Array) -> Array:
    """The sum of two vectors in their own type, rounded to it."""
    return store(add(load(a), load(b)), a.dtype)[:, 0]


def sum_from_zero(rows: Iterable[Array], like: Array) -> Array:
    return reduce(add, rows, np.zeros_like(like))


def sum_in_eights(rows: list[Array]) -> Array:
    """SparseSegment*: first n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed on its own."""
    first = len(rows) % 8 + (8 if len(rows) % 8 < 2 else 0)
    blocks = [rows[:first], *(rows[k : k + 8] for k in range(first, len(rows), 8))]
    return reduce(add, (reduce(add, block) for block in blocks))


def sum_in_lanes(rows: list[Array]) -> Array:
    """SegmentSum: from zero; of 16 rows or more, whole 32-byte packets of columns go in four interleaved lanes."""
    if len(rows) == 1:
        return rows[0]
    plain = sum_from_zero(rows, rows[0])
    if len(rows) < 16:
        return plain
    whole, cut = len(rows) // 4 * 4, plain.nbytes // 32 * 32 // plain.itemsize
    lanes = [sum_from_zero(rows[k:whole:4], plain) for k in range(4)]
    return np.concatenate([reduce(add, (*lanes, *rows[whole:]))[:cut], plain[cut:]])


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


# -- checks: lines of `what must hold | the message where it does not`, both Python over the op's inputs -------------

INDICES = "indices.ndim == 1 | indices should be a vector."
SEGMENTS = "segment_ids.ndim == 1 | segment_ids should be a vector."
WEIGHTS = "weights.ndim == 1 | weights should be a vector."
AS_MANY_IDS = "len(segment_ids) == len(indices) | segment_ids and indices should have same size."
AS_MANY_WEIGHTS = "len(segment_ids) == len(weights) | \
    weights and segment_ids should have same size, got {len(weights)} and {len(segment_ids)}"
DATA = "data.ndim > 0 | Shape must be at least rank 1"
GRAD = "grad.ndim > 0 | Index must be less than 0, got 0"
SCALAR = "{0}.ndim == 0 | {0} should be a scalar."
SIZE = "{0} >= 0 | Expected a non-negative size, got {{{0}}}"
MUST_BE = "{0}.ndim == {1} | {0} must be a {{('scalar', 'vector', 'matrix')[{1}]}}, saw: {{text({0}.shape)}}"
LENGTH = "len({0}) == len({1}) | {0} must have length {{len({1})}}, got {{len({0})}}"

NOT_IN_PARAMS = "indices[{i}] = {v} is not in [0, {bound})"
NOT_IN_DATA = "Bad: indices[{i}] == {v} out of range [0, {bound})"
NOT_IN_GRAD = "Segment id {v} out of range [0, {bound})."
NOT_SORTED = "Segment id {v} out of range [0, {bound}), possibly because 'segment_ids' input is not sorted."
NOT_IN_OUTPUT = "Index {v} out of range [0, {bound})."
NOT_IN_SHAPE = "indices({i}, 0) is invalid: {v} >= {bound}"
NOT_IN_REVERSE = "Elements in reverse index must be in [0, {bound}) but got {v}"


@cache
def compiled(lines: str) -> list[tuple[CodeType, CodeType]]:
    pairs = [" ".join(line.split()).split(" | ") for line in lines.splitlines()]
    return [(compile(holds, holds, "eval"), compile(f'f"""{words}"""', words, "eval")) for holds, words in pairs]


def check(x: Inputs, *tables: str, **more: Any) -> None:
    names = {**vars(x), **more}
    for lines in tables:
        for holds, message in compiled(lines):
            if not eval(holds, globals(), names):
                raise Refusal(eval(message, globals(), names))


def below(bound: int, words: str, v: int, i: int = 0) -> None:
    if not 0 <= v < bound:
        raise Refusal(words.format(i=i, v=v, bound=bound))


def all_below(bound: int, words: str, ids: Array) -> list[int]:
    for i, v in enumerate(ids.tolist()):
        below(bound, words, v, i)
    return ids.tolist()


def text(shape: Iterable[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def wrap(value: int, bits: int = 64) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)


def count_elements(shape: Iterable[int], show: Callable[[int], int] = wrap) -> int:
    total = 1
    for d in shape:
        if total * d > INT64_MAX:
            raise Refusal(f"Encountered overflow when multiplying {total} with {d}, result: {show(total * d)}")
        total *= d
    return total


def zeros(shape: Iterable[int], dtype: Any) -> Array:
    """A new output, or the refusal to make one so large."""
    size = count_elements(shape) * np.dtype(dtype).itemsize
    if size <= BUDGET:
        try:
            return np.zeros(shape, dtype)
        except ValueError:  # no elements, but dimensions whose product NumPy cannot hold
            size = MEMORY + 1
    name = np.dtype(dtype).name
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


def forward_rows(segment_ids: Array, limit: int, num_segments: int | None) -> int:
    n, last = len(segment_ids), int(segment_ids[-1]) if len(segment_ids) else 0
    needed = wrap(last + 1, 8 * segment_ids.itemsize) if n else 0
    rows = needed if num_segments is None else wrap(num_segments, 32)
    lines = """last < limit | Last segment id must be < kintmax, got {last} limit {limit}
        rows >= needed | segment ids must be < num_segments
        wanted in (None, rows) | num_segments must be at most {INT32_MAX}, got {wanted}
        rows > 0 or rows == n == 0 | segment ids must be >= 0"""
    check(Inputs(n=n, last=last, limit=limit, rows=rows, needed=needed, wanted=num_segments), lines)
    return rows


def gradient_ids(x: Inputs, rows: int, segments_first: bool) -> tuple[list[int], list[int]]:
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()
    check(x, "segment_ids[-1] < len(grad) | Invalid number of segments")
    if segments_first:
        all_below(len(x.grad), NOT_IN_GRAD, x.segment_ids)
    for row, segment in zip(ids, segments, strict=True):
        below(rows, NOT_IN_OUTPUT, row)
        below(len(x.grad), NOT_IN_GRAD, segment)
    return ids, segments


# -- SparseSegment* --------------------------------------------------------------------------------------------------


def sparse_segment(kind: str, x: Inputs, transpose: bool = False) -> Outputs:
    """The forward, or with `transpose` the gradient's gradient: segments in any order."""
    wanted = None
    if hasattr(x, "num_segments"):
        scalar = "num_segments.ndim == 0 | num_segments should be a scalar, not shape {text(num_segments.shape)}"
        check(x, scalar, "num_segments >= 0 | segment ids must be >= 0")
        wanted = int(x.num_segments)
    check(x, INDICES, SEGMENTS, AS_MANY_IDS, DATA)
    limit = INT32_MAX if x.indices.itemsize == 4 else INT64_MAX
    rows = wanted if transpose and wanted is not None else forward_rows(x.segment_ids, limit, wanted)
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    ids, segments, bound = x.indices.tolist(), x.segment_ids.tolist(), len(x.data)
    if transpose:
        for i in range(len(ids) if bound else 0):  # of an empty table the gradient looked at no id either
            below(bound, NOT_IN_DATA, ids[i], i)
            below(rows, NOT_IN_GRAD, segments[i])
        groups = iter(grouped(segments if bound else []).items())
    else:
        groups = sorted_segments(segments, rows)
    raw, wide, out = matrix(x.data), load(x.data), matrix(output)
    for segment, where in groups:
        for i in where:
            below(bound, NOT_IN_DATA, ids[i], i)
        out[segment] = bag(kind, raw, wide, [ids[i] for i in where])
    return (output,)


def sparse_segment_grad(kind: str, x: Inputs, size: str) -> Outputs:
    unique, rows, inner = size == "dense_output_dim0", getattr(x, size), x.grad.shape[1:]
    check(x, INDICES, SEGMENTS, SCALAR.format(size), AS_MANY_IDS, SIZE.format(size), GRAD)
    count_elements((int(rows), *inner))
    output = zeros((0 if unique else int(rows), *inner), x.grad.dtype)
    if len(x.indices) == 0 or rows == 0:  # nothing else is looked at
        return (output, x.indices[:0].copy()) if unique else (output,)
    ids, segments = gradient_ids(x, int(rows), segments_first=not unique and kind != "Sum")
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
    check(x, SEGMENTS, DATA, "len(data) == len(segment_ids) | \
        segment_ids should be the same size as dimension 0 of input.")  # fmt: skip
    segments = x.segment_ids.tolist()
    rows = wrap(segments[-1] + 1) if segments else 0
    check(x, "rows > 0 or not len(segment_ids) | segment ids must be >= 0", rows=rows)
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    raw, wide, out = matrix(x.data), load(x.data), matrix(output)
    for segment, where in sorted_segments(segments, rows):
        alone = len(where) == 1
        out[segment] = raw[where[0]] if alone else store(sum_in_lanes([wide[i] for i in where]), raw.dtype)
    return (output,)


def gather_rows(x: Inputs) -> Outputs:
    check(x, INDICES, DATA, data=x.params)
    output = zeros((len(x.indices), *x.params.shape[1:]), x.params.dtype)
    for i, row in enumerate(all_below(len(x.params), NOT_IN_PARAMS, x.indices)):
        output[i] = x.params[row]
    return (output,)


def scatter_rows(x: Inputs) -> Outputs:
    check(x, INDICES, GRAD, LENGTH.format("indices", "grad"), SCALAR.format("num_rows"), SIZE.format("num_rows"))
    output = zeros((int(x.num_rows), *x.grad.shape[1:]), x.grad.dtype)
    wide, out = load(x.grad), matrix(output)
    for row, where in grouped(all_below(len(out), NOT_IN_OUTPUT, x.indices)).items():
        out[row] = store(sum_from_zero((wide[i] for i in where), wide[0]), x.grad.dtype)
    return (output,)


def row_positions(x: Inputs) -> Outputs:
    check(x, INDICES.replace("indices", "sorted_ids"), INDICES.replace("indices", "ids"))
    listed, positions = x.sorted_ids.tolist(), []
    for i, v in enumerate(x.ids.tolist()):
        positions.append(bisect_left(listed, v))
        if listed[positions[-1] :][:1] != [v]:
            raise Refusal(f"ids[{i}] = {v} is not one of the {len(listed)} sorted_ids")
    return (np.array(positions, np.int64),)


def row_dot(x: Inputs) -> Outputs:
    check(x, "x.shape == y.shape | y must have shape {text(x.shape)}, got {text(y.shape)}")
    a, b = load(x.x), load(x.y)
    output = zeros(x.x.shape[:1], a.dtype)
    for i in range(len(a) if a.size else 0):
        output.reshape(-1)[i] = dot(a[i], b[i])
    return (output,)


def sparse_segment_dot(x: Inputs) -> Outputs:
    check(x, INDICES, SEGMENTS, AS_MANY_IDS, GRAD, DATA, "grad.shape[1:] == data.shape[1:] | \
        data must have rows of shape {text(grad.shape[1:])}, got {text(data.shape[1:])}")  # fmt: skip
    a, b = load(x.grad), load(x.data)
    output = zeros(x.indices.shape, a.dtype)
    for i, (row, segment) in enumerate(zip(x.indices.tolist(), x.segment_ids.tolist(), strict=True)):
        below(len(b), NOT_IN_PARAMS, row, i)
        below(len(a), NOT_IN_GRAD, segment)
        output[i] = dot(a[segment], b[row])
    return (output,)


# -- WeightedSparseSegment* ------------------------------------------------------------------------------------------

Totals = dict[int, Array] | None


def weigh(kind: str, given: Array, dtype: np.dtype[Any], groups: dict[int, list[int]], rows: int) -> tuple[Any, Totals]:
    """The weights in the accumulator's type; Σw or √Σw² of every segment that has ids, None for plain sums."""
    wide = load(given)
    weights = flush(wide.astype(dtype), lambda up: (wide * up).astype(dtype))
    if kind == "Sum":
        return weights, None
    workspace(rows, dtype.itemsize)
    terms = weights if kind == "Mean" else mul(weights, weights)
    sums = {segment: sum_from_zero((terms[i] for i in where), terms[0]) for segment, where in groups.items()}
    return weights, sums if kind == "Mean" else {segment: np.sqrt(total) for segment, total in sums.items()}


def weighted_segment(kind: str, x: Inputs) -> Outputs:
    """The forward, or where num_segments is given the gradient's gradient."""
    check(x, INDICES, SEGMENTS, WEIGHTS, AS_MANY_IDS, AS_MANY_WEIGHTS, DATA)
    transpose = hasattr(x, "num_segments")
    if transpose:
        check(x, SCALAR.format("num_segments"), SIZE.format("num_segments"))
    ids = all_below(len(x.data), NOT_IN_PARAMS, x.indices)
    rows = int(x.num_segments) if transpose else forward_rows(x.segment_ids, INT64_MAX, None)
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    if transpose:
        groups = grouped(all_below(rows, NOT_IN_GRAD, x.segment_ids))
    else:
        groups = dict(sorted_segments(x.segment_ids.tolist(), rows))
    wide, out = load(x.data), matrix(output)
    weights, totals = weigh(kind, x.weights, wide.dtype, groups, rows)
    for segment, where in groups.items():
        row = sum_in_lanes([mul(wide[ids[i]], weights[i]) for i in where])
        out[segment] = store(row if totals is None else div_no_nan(row, totals[segment]), x.data.dtype)
    return (output,)


def weighted_terms(kind: str, x: Inputs, segments: list[int]) -> list[Array]:
    """What each id contributes: its segment's row / the segment's total · its weight."""
    wide = load(x.grad)
    weights, totals = weigh(kind, x.weights, wide.dtype, grouped(segments), len(x.grad))
    rows = [wide[s] if totals is None else div_no_nan(wide[s], totals[s]) for s in segments]
    return [mul(row, weight) for row, weight in zip(rows, weights, strict=True)]


def weighted_segment_grad(kind: str, x: Inputs) -> Outputs:
    check(x, INDICES, SEGMENTS, WEIGHTS, AS_MANY_IDS, AS_MANY_WEIGHTS)
    check(x, SCALAR.format("output_dim0"), SIZE.format("output_dim0"), GRAD)
    output = zeros((int(x.output_dim0), *x.grad.shape[1:]), x.grad.dtype)
    if len(x.indices) == 0 or len(output) == 0:
        return (output,)
    ids, segments = gradient_ids(x, len(output), segments_first=False)
    terms, out = weighted_terms(kind, x, segments), matrix(output)
    for row, where in grouped(ids).items():
        if x.accumulate == "T":  # every product and every sum is rounded to T
            out[row] = reduce(add_stored, (store(terms[i], x.grad.dtype) for i in where), out[row])
        else:
            out[row] = store(sum_from_zero((terms[i] for i in where), terms[0]), x.grad.dtype)
    return (output,)


def weighted_segment_grad_rows(kind: str, x: Inputs) -> Outputs:
    check(x, SEGMENTS, WEIGHTS, AS_MANY_WEIGHTS, GRAD)
    output = zeros((len(x.segment_ids), *x.grad.shape[1:]), x.grad.dtype)
    segments = all_below(len(x.grad), NOT_IN_GRAD, x.segment_ids)
    for i, term in enumerate(weighted_terms(kind, x, segments)):
        matrix(output)[i] = store(term, x.grad.dtype)
    return (output,)


# -- {Sparse,Ragged}FillEmptyRows ------------------------------------------------------------------------------------


def fill_empty_rows(x: Inputs, ids: str, size: str, rank: int) -> Outputs:
    indices, shape = getattr(x, ids), getattr(x, size)
    check(x, MUST_BE.format(size, rank - 1), MUST_BE.format(ids, rank), MUST_BE.format("values", 1))
    n, inner = len(indices), indices.shape[1:]
    lengths = """len(values) == n | \
            The length of `values` ({len(values)}) must match the first dimension of `{ids}` ({n}).
        shape.shape == inner | \
            The length of `dense_shape` ({shape.size}) must match the second dimension of `indices` ({inner[0]})."""
    check(x, lengths, MUST_BE.format("default_value", 0), n=n, inner=inner, ids=ids, shape=shape)
    rows = int(shape.flat[0]) if shape.size else None
    values = """rows is not None | Dense shape cannot be empty.
        rows >= 0 | Expected shape dimensions to be non-negative, got {rows}
        rows > 0 or n == 0 | Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {n}"""
    check(x, values, n=n, rows=rows)
    groups = grouped(all_below(rows, NOT_IN_SHAPE, matrix(indices)[:, 0]))
    workspace(rows, 8)
    sources = [(row, i) for row in range(rows) for i in groups.get(row, [None])]  # None: filled
    out_indices, out_values = zeros((len(sources), *inner), np.int64), zeros((len(sources),), x.values.dtype)
    empty, reverse = zeros((rows,), bool), zeros((n,), np.int64)
    for k, (row, i) in enumerate(sources):
        if i is None:
            empty[row], out_values[k], matrix(out_indices)[k, 0] = True, x.default_value, row
        else:
            reverse[i], out_values[k], out_indices[k] = k, x.values[i], indices[i]
    return out_indices, out_values, empty, reverse


def fill_empty_rows_grad(x: Inputs) -> Outputs:
    check(x, MUST_BE.format("reverse_index_map", 1), MUST_BE.format("grad_values", 1))
    named = all_below(len(x.grad_values), NOT_IN_REVERSE, x.reverse_index_map)
    rest = (x.grad_values[j : j + 1] for j in sorted(set(range(len(x.grad_values))) - set(named)))
    total = reduce(add_stored, rest, np.zeros(1, x.grad_values.dtype))  # in T: 16-bit floats round at every step
    return x.grad_values[named], total.reshape(())


def fill_empty_rows_grad_grad(x: Inputs) -> Outputs:
    check(x, *(MUST_BE.format(name, 1) for name in ("reverse_index_map", "dd_values", "grad_values")))
    check(x, MUST_BE.format("dd_default_value", 0), LENGTH.format("dd_values", "reverse_index_map"))
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


def sparse_slice(x: Inputs) -> Outputs:
    ranks = """indices.ndim == 2 | Sparse indices must be rank 2 but is rank {indices.ndim}
        values.ndim == 1 | Sparse values must be rank 1 but is rank {values.ndim}
        shape.ndim == 1 | Sparse shape must be rank 1 but is rank {shape.ndim}
        len(indices) == len(values) | \
            Number of elements in indices ({len(indices)}) and values ({len(values)}) do not match
        indices.shape[1] == len(shape) | Index rank ({indices.shape[1]}) and shape rank ({len(shape)}) do not match
        start.ndim == 1 | Input start should be a vector but received shape {text(start.shape)}
        size.ndim == 1 | Input size should be a vector but received shape {text(size.shape)}
        len(start) == len(shape) | Expected start to be a vector of length {len(shape)} but got length {len(start)}
        len(size) == len(shape) | Expected size to be a vector of length {len(shape)} but got length {len(size)}"""
    check(x, ranks)
    for dim in x.shape.tolist():
        check(x, "dim >= 0 | Expected shape dimensions to be non-negative, got {dim}", dim=dim)
    count_elements(x.shape.tolist(), show=lambda _: -1)
    box, out_shape = list(zip(x.start.tolist(), x.size.tolist(), strict=True)), []
    for dim, (begin, extent) in zip(x.shape.tolist(), box, strict=True):
        out_shape.append(extent if begin < wrap(dim - extent) else wrap(dim - begin) if begin < dim else 0)
        check(x, SIZE.format("out_dim"), out_dim=out_shape[-1])

    def inside(entry: tuple[int, ...]) -> bool:  # an end that wraps keeps nothing
        return all(begin <= v < wrap(begin + extent) for v, (begin, extent) in zip(entry, box, strict=True))

    kept = np.array([inside(entry) for entry in entries(x.indices)], bool)
    return x.indices[kept] - x.start, x.values[kept], np.array(out_shape, np.int64)


def sparse_slice_grad(x: Inputs, values: str) -> Outputs:
    """val_grad of one value per output entry; or of one value per input entry ("grad") the transpose."""
    matrices = "input_indices.ndim == output_indices.ndim == 2 | Input and output indices should be matrices \
        but received shapes: {text(input_indices.shape)} and {text(output_indices.shape)}"
    vector = "backprop_val_grad.ndim == 1 | \
        Input backprop_val_grad should be a vector but received shape: {text(backprop_val_grad.shape)}"
    columns = """columns == output_indices.shape[1] | \
            The input and output should have the same ndims: got: {columns} and {output_indices.shape[1]}
        m <= n | # rows of output_indices should be not greater than of input_indices, got {m} and {n}"""
    length = "len(backprop_val_grad) == m | # elements of backprop_val_grad and # rows of output_indices \
        should match (#nnz of sum): got {len(backprop_val_grad)} and {m}"
    start = """input_start.ndim == 1 | The input_start should be a vector but received shape {text(input_start.shape)}
        len(input_start) == columns | \
            Expected input_start to be a vector of length {columns} but got length {len(input_start)}"""
    check(x, matrices, MUST_BE.format("grad", 1) if values == "grad" else vector)
    (n, width), m, given = x.input_indices.shape, len(x.output_indices), getattr(x, values)
    length = LENGTH.format("grad", "input_indices") if values == "grad" else length
    check(x, columns, length, start, n=n, m=m, columns=width)
    moved, pairs = entries(x.output_indices + x.input_start), []  # each takes the next input entry that equals it
    for i, entry in enumerate(entries(x.input_indices)):
        if len(pairs) < m and entry == moved[len(pairs)]:
            pairs.append(i)
    if len(pairs) < m:
        counts = f"Num elements:{m}, used: {len(pairs)}"
        raise Refusal(f"Elements of backprop_val_grad aren't all propagated. {counts}", "InternalError")
    output = zeros((n,), given.dtype)
    output[pairs] = given[pairs] if values == "grad" else given
    return (given[pairs] if values == "grad" else output,)


MATRICES = "all(i.ndim == 2 for i in matrices) | \
    Input indices should be matrices but received shapes: {' and '.join(text(i.shape) for i in matrices)}"


def reaches(total: Array, thresh: Array) -> bool:
    """thresh <= abs(total), never for NaN; the least int32 and int64 have no absolute value."""
    if total.dtype.kind == "i":
        return int(thresh) <= wrap(abs(int(total[0])), max(8 * total.itemsize, 32))
    parts = load(total)[0]
    return bool(load(thresh)[0, 0] <= (np.hypot(*parts) if parts.size == 2 else abs(parts[0])))


def sparse_add(x: Inputs) -> Outputs:
    name = x.a_values.dtype.name
    real = {"complex64": "float32", "complex128": "float64"}.get(name, name)
    lines = """columns == b_indices.shape[1] | \
            Input indices must have the same dimension, got {columns} and {b_indices.shape[1]}
        a_values.ndim == b_values.ndim == 1 | \
            Input values should be vectors but received shapes: {text(a_values.shape)} and {text(b_values.shape)}
        (len(a_values), len(b_values)) == (n, m) | \
            Expected {n} and {m} non-empty input values, got {len(a_values)} and {len(b_values)}
        a_shape.ndim == b_shape.ndim == 1 | \
            Input shapes should be a vector but received shapes {text(a_shape.shape)} and {text(b_shape.shape)}
        columns == len(a_shape) | \
            Second dimension of a_indices and length of a_shape must match, got {columns} and {len(a_shape)}
        columns > 0 | Tesors must not be empty
        len(a_shape) == len(b_shape) | Operands do not have the same ranks; got shapes: \
            {' '.join(map(str, a_shape))} and {' '.join(map(str, b_shape))}"""
    words = "thresh must be {real}, the type that goes with T = {name}; got {thresh.dtype.name}"
    check(x, f"thresh.dtype.name == real | {words}", real=real, name=name)
    check(x, MATRICES, matrices=(x.a_indices, x.b_indices))
    (n, columns), m = x.a_indices.shape, len(x.b_indices)
    check(x, lines, n=n, m=m, columns=columns)
    for d, (p, q) in enumerate(zip(x.a_shape.tolist(), x.b_shape.tolist(), strict=True)):
        check(x, "p == q | Operands' shapes do not match: got {p} and {q} for dimension {d}", p=p, q=q, d=d)
    check(x, "thresh.ndim == 0 | The magnitude threshold must be a scalar: got shape {text(thresh.shape)}")
    a, b, merged, i, j = entries(x.a_indices), entries(x.b_indices), [], 0, 0
    while i < n or j < m:
        if j == m or (i < n and a[i] < b[j]):
            merged.append((a[i], x.a_values[i : i + 1]))
            i += 1
        elif i == n or b[j] < a[i]:
            merged.append((b[j], x.b_values[j : j + 1]))
            j += 1
        else:
            total = add_stored(x.a_values[i : i + 1], x.b_values[j : j + 1])
            merged += [(a[i], total)] if reaches(total, x.thresh) else []
            i, j = i + 1, j + 1
    indices = np.array([entry for entry, _ in merged], np.int64).reshape(len(merged), columns)
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


def check_sum(x: Inputs, *tables: str) -> None:
    matrices = (x.a_indices, x.b_indices, x.sum_indices)
    check(x, MATRICES, *tables, matrices=matrices)
    check(x, "len(set(ranks)) == 1 | The densified operands should have the same ndims; for A, B, sum got: \
        {''.join(map(str, ranks))}", ranks=[i.shape[1] for i in matrices])  # fmt: skip


def sparse_add_grad(x: Inputs) -> Outputs:
    check_sum(x, "backprop_val_grad.ndim == 1 | \
        Input backprop_val_grad should be a vector but received shape: {text(backprop_val_grad.shape)}")  # fmt: skip
    check(x, "n == len(sum_indices) | # elements of backprop_val_grad and # rows of sum_indices should match \
        (#nnz of sum): got {n} and {len(sum_indices)}", n=len(x.backprop_val_grad))  # fmt: skip
    outputs = [zeros((len(i),), x.backprop_val_grad.dtype) for i in (x.a_indices, x.b_indices)]
    for side, i, k in sum_walk(x):
        outputs[side][i] = x.backprop_val_grad[k]
    return tuple(outputs)


def sparse_add_grad_grad(x: Inputs) -> Outputs:
    check_sum(x)
    for name in ("da", "db"):
        check(x, MUST_BE.format(name, 1), LENGTH.format(name, f"{name[1]}_indices"))
    output, seen = zeros((len(x.sum_indices),), x.da.dtype), set()
    for side, i, k in sum_walk(x):
        value, place = (x.da, x.db)[side][i : i + 1], slice(k, k + 1)
        output[place] = add_stored(output[place], value) if k in seen else value
        seen.add(k)
    return (output,)


# -- the table -------------------------------------------------------------------------------------------------------

OPS: dict[str, Callable[[Inputs], Outputs]] = {
    "SegmentSum": segment_sum,
    "GatherRows": gather_rows,
    "ScatterRows": scatter_rows,
    "RowPositions": row_positions,
    "RowDot": row_dot,
    "SparseSegmentDot": sparse_segment_dot,
    "SparseSlice": sparse_slice,
    "SparseSliceGrad": partial(sparse_slice_grad, values="backprop_val_grad"),
    "SparseSliceGradGrad": partial(sparse_slice_grad, values="grad"),
    "SparseAdd": sparse_add,
    "SparseAddGrad": sparse_add_grad,
    "SparseAddGradGrad": sparse_add_grad_grad,
    "SparseFillEmptyRows": partial(fill_empty_rows, ids="indices", size="dense_shape", rank=2),
    "RaggedFillEmptyRows": partial(fill_empty_rows, ids="value_rowids", size="nrows", rank=1),
}
for _family in ("Sparse", "Ragged"):
    OPS[f"{_family}FillEmptyRowsGrad"] = fill_empty_rows_grad
    OPS[f"{_family}FillEmptyRowsGradGrad"] = fill_empty_rows_grad_grad
for _kind in ("Sum", "Mean", "SqrtN"):
    OPS[f"SparseSegment{_kind}"] = OPS[f"SparseSegment{_kind}WithNumSegments"] = partial(sparse_segment, _kind)
    OPS[f"SparseSegment{_kind}Grad"] = partial(sparse_segment_grad, _kind, size="output_dim0")
    OPS[f"SparseSegment{_kind}GradV2"] = partial(sparse_segment_grad, _kind, size="dense_output_dim0")
    OPS[f"SparseSegment{_kind}GradGrad"] = partial(sparse_segment, _kind, transpose=True)
    OPS[f"WeightedSparseSegment{_kind}"] = partial(weighted_segment, _kind)
    OPS[f"WeightedSparseSegment{_kind}Grad"] = partial(weighted_segment_grad, _kind)
    OPS[f"WeightedSparseSegment{_kind}GradRows"] = partial(weighted_segment_grad_rows, _kind)
    OPS[f"WeightedSparseSegment{_kind}GradGrad"] = partial(weighted_segment, _kind)


def reference(op_name: str, inputs: dict[str, Array], attrs: dict[str, Any]) -> Outputs:
    """The outputs of a call, or its Refusal."""
    with np.errstate(all="ignore"):
        return OPS[op_name](Inputs(**inputs, **attrs))
