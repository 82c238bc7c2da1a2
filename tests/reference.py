"""Every kernel op of the catalogue once more, naively: what `tools/fuzz.py` holds the C++ against.

Written from the law (TensorFlow 2.21's observed behaviour) and, for rowgrad's own ops, from their documentation; it
shares no code with the library. `reference(op, inputs, attrs)` returns the outputs or raises a `Refusal` that names
the error's class and its bare message. One row of an array is one step here: arithmetic is elementwise along it, in
the order the law gives, and flushes subnormals as TensorFlow's kernels do.

Where rowgrad differs from TensorFlow on purpose, so does this: RaggedFillEmptyRows of 0 rows gives row ids of rank 1,
an int64 num_segments beyond int32 is refused, the dense gradient of an empty batch is zeros, and thresh has to be of
the values' real type.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import groupby
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # what asks for more is refused
BUDGET = 50 << 20  # what asks for more than this, but less than the machine has, is not tried
MESSAGE_NAME = {"float16": "half", "float32": "float", "float64": "double"}
REAL_OF = {"complex64": "float32", "complex128": "float64"}


class Refusal(Exception):
    """The call must be refused with an error of this class and this message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Unmodelled(Exception):
    """The call needs more memory than a test should take."""


invalid = partial(Refusal, "InvalidArgumentError")


# -- arithmetic ------------------------------------------------------------------------------------------------------
# Rows are held in the accumulator's type: float32 for 16-bit floats, pairs of reals for complex numbers. `load` flushes
# operands and every step its result, so no subnormal takes part. Integers just wrap.

LIMITS = {  # the least normal number, and a power of two that lifts its neighbourhood away from it
    "f": (np.float32(2.0**-126), np.float32(2.0**64)),
    "d": (np.float64(2.0**-1022), np.float64(2.0**200)),
}


def load(array: Array) -> Array:
    """The array's rows in the accumulator's type, subnormals flushed."""
    rows = matrix(array)
    if rows.dtype.name in ("float16", "bfloat16"):
        rows = rows.astype(np.float32)
    elif rows.dtype.kind == "c":
        rows = rows.view(rows.real.dtype)
    return flush(rows)


def store(row: Array, dtype: np.dtype[Any]) -> Array:
    """A row back in its own type: 16-bit floats are rounded to nearest even."""
    return row.view(dtype) if dtype.kind == "c" else row.astype(dtype, copy=False)


def flush(row: Array) -> Array:
    """Subnormals to zeros of their sign."""
    if row.dtype.kind != "f":
        return row
    tiny = np.abs(row) < LIMITS[row.dtype.char][0]
    return np.where(tiny, np.copysign(row.dtype.type(0), row), row) if np.count_nonzero(tiny) else row


def flush_rounded(row: Array, lifted: Callable[[Any], Array]) -> Array:
    """`flush` for results that were rounded: x86 rounds as if exponents had no end, then looks whether that is tiny.

    So a value just below the least normal number stays zero even where rounding to subnormals would reach it.
    `lifted(up)` is the same result times `up`, where that rounding can be seen.
    """
    least, up = LIMITS[row.dtype.char]
    near = np.abs(row) <= least
    if np.count_nonzero(near):
        row = np.where(near & (np.abs(lifted(up)) < least * up), np.copysign(row.dtype.type(0), row), row)
    return row


def add(a: Array, b: Array) -> Array:
    return flush(a + b)  # a sum among subnormals is exact, so nothing was rounded


def mul(a: Array, b: Any) -> Array:
    return flush_rounded(a * b, lambda up: (a * up) * b)


def div(a: Array, b: Any) -> Array:
    return flush_rounded(a / b, lambda up: (a * up) / b)


def div_no_nan(a: Array, b: Array) -> Array:
    return np.zeros_like(a) if b[0] == 0 else div(a, b)


def sum_from_zero(rows: Iterable[Array], like: Array) -> Array:
    return reduce(add, rows, np.zeros_like(like))


def sum_in_eights(rows: list[Array]) -> Array:
    """SparseSegment*: first n mod 8 rows (0 → 8, 1 → 9), then blocks of eight, each summed on its own."""
    first = len(rows) % 8
    first += 8 if first < 2 else 0
    blocks = [rows[:first], *(rows[k : k + 8] for k in range(first, len(rows), 8))]
    return reduce(add, (reduce(add, block) for block in blocks))


def sum_in_lanes(rows: list[Array]) -> Array:
    """SegmentSum: from zero; of 16 rows or more, whole 32-byte packets of columns go in four interleaved lanes."""
    if len(rows) == 1:
        return rows[0]
    plain = sum_from_zero(rows, rows[0])
    if len(rows) < 16:
        return plain
    whole, packet = len(rows) // 4 * 4, 32 // plain.itemsize
    lanes = [sum_from_zero(rows[k:whole:4], plain) for k in range(4)]
    packed = reduce(add, (*lanes, *rows[whole:]))
    cut = plain.size // packet * packet
    return np.concatenate([packed[:cut], plain[cut:]])


def dot(a: Array, b: Array) -> Array:
    """Eight interleaved lanes, then their tree."""
    product, lanes = mul(a, b), np.zeros(8, a.dtype)
    for c in range(0, product.size, 8):
        part = product[c : c + 8]
        lanes[: part.size] = add(lanes[: part.size], part)
    fours = add(lanes[:4], lanes[4:])
    twos = add(fours[:2], fours[2:])
    return add(twos[:1], twos[1:])


def bag(kind: str, raw: Array, wide: Array, rows: list[int]) -> Array:
    """One segment of SparseSegment{kind}: a single row is copied, up to nine are scaled, more are divided."""
    n = len(rows)
    if n == 1:
        return raw[rows[0]]
    total = sum_in_eights([wide[r] for r in rows])
    if kind != "Sum":
        divisor = total.dtype.type(n if kind == "Mean" else math.sqrt(n))
        total = mul(total, total.dtype.type(1) / divisor) if n < 10 else div(total, divisor)
    return store(total, raw.dtype)


# -- shapes, sizes, ids ----------------------------------------------------------------------------------------------


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
            raise invalid(f"Encountered overflow when multiplying {total} with {d}, result: {show(total * d)}")
        total *= d
    return total


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new output, or the refusal to make one so large."""
    dtype = np.dtype(dtype)
    size = count_elements(shape) * dtype.itemsize
    if size <= BUDGET:
        try:
            return np.zeros(shape, dtype)
        except ValueError:  # no elements, but dimensions whose product NumPy cannot hold
            size = MEMORY + 1
    if size <= MEMORY:
        raise Unmodelled(text(shape))
    name = dtype.names[0] if dtype.names else dtype.name
    where = "on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu"
    what = f"OOM when allocating tensor with shape{text(shape)} and type {MESSAGE_NAME.get(name, name)}"
    raise Refusal("ResourceExhaustedError", f"{what} {where}")


def workspace(n: int, itemsize: int) -> None:
    """Memory a kernel needs besides its outputs: half the machine at most."""
    if n > MEMORY // 2 // itemsize:
        what = f"OOM when allocating workspace for {n} elements; this machine has {MEMORY} bytes"
        raise Refusal("ResourceExhaustedError", what)
    if n * itemsize > BUDGET:
        raise Unmodelled(f"workspace {n}")


def should_be_vectors(**arrays: Array) -> None:
    for name, array in arrays.items():
        if array.ndim != 1:
            raise invalid(f"{name} should be a vector.")


def must_be(rank: int, **arrays: Array) -> None:
    for name, array in arrays.items():
        if array.ndim != rank:
            raise invalid(f"{name} must be a {('scalar', 'vector', 'matrix')[rank]}, saw: {text(array.shape)}")


def must_have_length(length: int, **arrays: Array) -> None:
    for name, array in arrays.items():
        if len(array) != length:
            raise invalid(f"{name} must have length {length}, got {len(array)}")


def check_bag_shapes(indices: Array | None, segment_ids: Array, weights: Array | None = None) -> None:
    given = {"indices": indices, "segment_ids": segment_ids, "weights": weights}
    should_be_vectors(**{k: v for k, v in given.items() if v is not None})
    n = len(segment_ids)
    if indices is not None and len(indices) != n:
        raise invalid("segment_ids and indices should have same size.")
    if weights is not None and len(weights) != n:
        raise invalid(f"weights and segment_ids should have same size, got {len(weights)} and {n}")


def check_data_rank(data: Array) -> None:
    if data.ndim == 0:
        raise invalid("Shape must be at least rank 1")


def check_grad_rank(grad: Array) -> None:
    if grad.ndim == 0:
        raise invalid("Index must be less than 0, got 0")


def non_negative(size: Array) -> int:
    if size < 0:
        raise invalid(f"Expected a non-negative size, got {size}")
    return int(size)


def scalar_size(name: str, size: Array) -> int:
    if size.ndim != 0:
        raise invalid(f"{name} should be a scalar.")
    return non_negative(size)


def ids_below(bound: int, ids: Array, words: str) -> list[int]:
    listed: list[int] = ids.tolist()
    for i, v in enumerate(listed):
        if not 0 <= v < bound:
            raise invalid(words.format(i=i, v=v, bound=bound))
    return listed


NOT_IN_PARAMS = "indices[{i}] = {v} is not in [0, {bound})"
NOT_IN_GRAD = "Segment id {v} out of range [0, {bound})."
NOT_IN_OUTPUT = "Index {v} out of range [0, {bound})."


def grouped(keys: list[int]) -> dict[int, list[int]]:
    """The positions of every key, in input order."""
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return groups


def sorted_segments(segments: list[int], rows: int) -> Iterator[tuple[int, list[int]]]:
    """Each segment and its positions; a run is compared with the next one, then with the output."""
    for segment, run in groupby(range(len(segments)), segments.__getitem__):
        where = list(run)
        after = where[-1] + 1
        if after < len(segments) and segments[after] < segment:
            raise invalid("segment ids are not increasing")
        if not 0 <= segment < rows:
            why = "possibly because 'segment_ids' input is not sorted."
            raise invalid(f"Segment id {segment} out of range [0, {rows}), {why}")
        yield segment, where


def forward_rows(segment_ids: Array, limit: int, num_segments: int | None) -> int:
    n = len(segment_ids)
    last = int(segment_ids[-1]) if n else 0
    if last >= limit:
        raise invalid(f"Last segment id must be < kintmax, got {last} limit {limit}")
    rows = needed = wrap(last + 1, 8 * segment_ids.itemsize) if n else 0
    if num_segments is not None:
        rows = wrap(num_segments, 32)
        if rows < needed:
            raise invalid("segment ids must be < num_segments")
        if rows != num_segments:
            raise invalid(f"num_segments must be at most {INT32_MAX}, got {num_segments}")
    if rows < 0 or (n and rows == 0):
        raise invalid("segment ids must be >= 0")
    return rows


# -- SparseSegment* --------------------------------------------------------------------------------------------------


def num_segments_of(num_segments: Array) -> int:
    if num_segments.ndim != 0:
        raise invalid(f"num_segments should be a scalar, not shape {text(num_segments.shape)}")
    if num_segments < 0:
        raise invalid("segment ids must be >= 0")
    return int(num_segments)


def sparse_segment(
    kind: str, data: Array, indices: Array, segment_ids: Array, num_segments: Array | None = None, **_: Any
) -> tuple[Array, ...]:
    wanted = None if num_segments is None else num_segments_of(num_segments)
    check_bag_shapes(indices, segment_ids)
    check_data_rank(data)
    rows = forward_rows(segment_ids, INT32_MAX if indices.itemsize == 4 else INT64_MAX, wanted)
    output = zeros((rows, *data.shape[1:]), data.dtype)
    raw, wide, out, ids = matrix(data), load(data), matrix(output), indices.tolist()
    for segment, where in sorted_segments(segment_ids.tolist(), rows):
        for i in where:
            if not 0 <= ids[i] < len(data):
                raise invalid(f"Bad: indices[{i}] == {ids[i]} out of range [0, {len(data)})")
        out[segment] = bag(kind, raw, wide, [ids[i] for i in where])
    return (output,)


def sparse_segment_grad_grad(
    kind: str, data: Array, indices: Array, segment_ids: Array, num_segments: Array
) -> tuple[Array, ...]:
    rows = num_segments_of(num_segments)
    check_bag_shapes(indices, segment_ids)
    check_data_rank(data)
    output = zeros((rows, *data.shape[1:]), data.dtype)
    ids, segments = indices.tolist(), segment_ids.tolist()
    if not len(data):  # the gradient looked at no id either
        return (output,)
    for i, (row, segment) in enumerate(zip(ids, segments, strict=True)):
        if not 0 <= row < len(data):
            raise invalid(f"Bad: indices[{i}] == {row} out of range [0, {len(data)})")
        if not 0 <= segment < rows:
            raise invalid(NOT_IN_GRAD.format(v=segment, bound=rows))
    raw, wide, out = matrix(data), load(data), matrix(output)
    for segment, where in grouped(segments).items():
        out[segment] = bag(kind, raw, wide, [ids[i] for i in where])
    return (output,)


def gradient_ids(
    indices: Array, segment_ids: Array, rows: int, grad_rows: int, segments_first: bool
) -> tuple[list[int], list[int]]:
    ids, segments = indices.tolist(), segment_ids.tolist()
    if segments[-1] >= grad_rows:
        raise invalid("Invalid number of segments")
    if segments_first:
        ids_below(grad_rows, segment_ids, NOT_IN_GRAD)
    for row, segment in zip(ids, segments, strict=True):
        if not 0 <= row < rows:
            raise invalid(NOT_IN_OUTPUT.format(v=row, bound=rows))
        if not 0 <= segment < grad_rows:
            raise invalid(NOT_IN_GRAD.format(v=segment, bound=grad_rows))
    return ids, segments


def sparse_segment_grad(
    kind: str, unique: bool, grad: Array, indices: Array, segment_ids: Array, **size: Array
) -> tuple[Array, ...]:
    ((name, dim0),) = size.items()
    should_be_vectors(indices=indices, segment_ids=segment_ids)
    if dim0.ndim != 0:
        raise invalid(f"{name} should be a scalar.")
    check_bag_shapes(indices, segment_ids)
    rows, inner = non_negative(dim0), grad.shape[1:]
    check_grad_rank(grad)
    count_elements((rows, *inner))
    if not unique:
        output = zeros((rows, *inner), grad.dtype)
    if len(indices) == 0 or rows == 0:
        return (zeros((0, *inner), grad.dtype), zeros((0,), indices.dtype)) if unique else (output,)
    ids, segments = gradient_ids(indices, segment_ids, rows, len(grad), not unique and kind != "Sum")
    places = sorted(set(ids)) if unique else range(rows)
    if unique:
        output = zeros((len(places), *inner), grad.dtype)
        place = dict(zip(places, range(len(places)), strict=True))
        ids = [place[i] for i in ids]
    wide, out = load(grad), matrix(output)
    if kind != "Sum":
        workspace(len(grad), 8)
    count = {segment: len(where) for segment, where in grouped(segments).items()}
    for row, where in grouped(ids).items():
        total = np.zeros_like(wide[0])
        for segment in (segments[i] for i in where):
            term, n = wide[segment], count[segment]
            if kind != "Sum":  # the scale is computed in double and rounded once
                term = mul(term, term.dtype.type(1 / n if kind == "Mean" else 1 / math.sqrt(n)))
            total = add(total, term)
        out[row] = store(total, grad.dtype)
    return (output, np.array(places, indices.dtype)) if unique else (output,)


# -- rows: SegmentSum, GatherRows, ScatterRows, RowPositions, dots ---------------------------------------------------


def segment_sum(data: Array, segment_ids: Array) -> tuple[Array, ...]:
    should_be_vectors(segment_ids=segment_ids)
    check_data_rank(data)
    if len(data) != len(segment_ids):
        raise invalid("segment_ids should be the same size as dimension 0 of input.")
    segments = segment_ids.tolist()
    rows = wrap(segments[-1] + 1) if segments else 0
    if segments and rows <= 0:
        raise invalid("segment ids must be >= 0")
    output = zeros((rows, *data.shape[1:]), data.dtype)
    raw, wide, out = matrix(data), load(data), matrix(output)
    for segment, where in sorted_segments(segments, rows):
        single = len(where) == 1
        out[segment] = raw[where[0]] if single else store(sum_in_lanes([wide[i] for i in where]), data.dtype)
    return (output,)


def gather_rows(params: Array, indices: Array, **_: Any) -> tuple[Array, ...]:
    should_be_vectors(indices=indices)
    check_data_rank(params)
    output = zeros((len(indices), *params.shape[1:]), params.dtype)
    for i, row in enumerate(ids_below(len(params), indices, NOT_IN_PARAMS)):
        output[i] = params[row]
    return (output,)


def scatter_rows(grad: Array, indices: Array, num_rows: Array) -> tuple[Array, ...]:
    should_be_vectors(indices=indices)
    check_grad_rank(grad)
    must_have_length(len(grad), indices=indices)
    rows = scalar_size("num_rows", num_rows)
    output = zeros((rows, *grad.shape[1:]), grad.dtype)
    wide, out = load(grad), matrix(output)
    for row, where in grouped(ids_below(rows, indices, NOT_IN_OUTPUT)).items():
        out[row] = store(sum_from_zero((wide[i] for i in where), wide[0]), grad.dtype)
    return (output,)


def row_positions(sorted_ids: Array, ids: Array) -> tuple[Array, ...]:
    should_be_vectors(sorted_ids=sorted_ids, ids=ids)
    listed, positions = sorted_ids.tolist(), []
    for i, v in enumerate(ids.tolist()):
        positions.append(bisect_left(listed, v))
        if positions[-1] == len(listed) or listed[positions[-1]] != v:
            raise invalid(f"ids[{i}] = {v} is not one of the {len(listed)} sorted_ids")
    return (np.array(positions, np.int64),)


def row_dot(x: Array, y: Array) -> tuple[Array, ...]:
    if x.shape != y.shape:
        raise invalid(f"y must have shape {text(x.shape)}, got {text(y.shape)}")
    a, b = load(x), load(y)
    output = zeros(x.shape[:1], a.dtype)
    out = output.reshape(-1)
    for i in range(len(a) if x.size else 0):
        out[i] = dot(a[i], b[i])[0]
    return (output,)


def sparse_segment_dot(grad: Array, data: Array, indices: Array, segment_ids: Array) -> tuple[Array, ...]:
    check_bag_shapes(indices, segment_ids)
    check_grad_rank(grad)
    check_data_rank(data)
    if grad.shape[1:] != data.shape[1:]:
        raise invalid(f"data must have rows of shape {text(grad.shape[1:])}, got {text(data.shape[1:])}")
    a, b = load(grad), load(data)
    output = zeros(indices.shape, a.dtype)
    for i, (row, segment) in enumerate(zip(indices.tolist(), segment_ids.tolist(), strict=True)):
        if not 0 <= row < len(data):
            raise invalid(NOT_IN_PARAMS.format(i=i, v=row, bound=len(data)))
        if not 0 <= segment < len(grad):
            raise invalid(NOT_IN_GRAD.format(v=segment, bound=len(grad)))
        output[i] = dot(a[segment], b[row])[0]
    return (output,)


# -- WeightedSparseSegment* ------------------------------------------------------------------------------------------


def weights_as(dtype: np.dtype[Any], weights: Array) -> Array:
    """The weights in the accumulator's type, one per row."""
    wide = load(weights)
    if dtype.itemsize < wide.itemsize:
        return flush_rounded(wide.astype(dtype), lambda up: (wide * up).astype(dtype))
    return wide.astype(dtype)


def totals(kind: str, weights: Array, groups: dict[int, list[int]], rows: int) -> dict[int, Array] | None:
    """Σw or √Σw² of every segment that has ids; none for plain sums."""
    if kind == "Sum":
        return None
    workspace(rows, weights.itemsize)
    terms = weights if kind == "Mean" else mul(weights, weights)
    sums = {segment: sum_from_zero((terms[i] for i in where), terms[0]) for segment, where in groups.items()}
    return sums if kind == "Mean" else {segment: np.sqrt(total) for segment, total in sums.items()}


def weighted_segment(
    kind: str, data: Array, indices: Array, segment_ids: Array, weights: Array, num_segments: Array | None = None,
    **_: Any,
) -> tuple[Array, ...]:  # fmt: skip
    check_bag_shapes(indices, segment_ids, weights)
    check_data_rank(data)
    rows = None if num_segments is None else scalar_size("num_segments", num_segments)
    ids, segments = ids_below(len(data), indices, NOT_IN_PARAMS), segment_ids.tolist()
    if rows is None:
        rows = forward_rows(segment_ids, INT64_MAX, None)
        output = zeros((rows, *data.shape[1:]), data.dtype)
        groups = dict(sorted_segments(segments, rows))
    else:
        output = zeros((rows, *data.shape[1:]), data.dtype)
        groups = grouped(ids_below(rows, segment_ids, NOT_IN_GRAD))
    wide, out = load(data), matrix(output)
    w = weights_as(wide.dtype, weights)
    total = totals(kind, w, groups, rows)
    for segment, where in groups.items():
        row = sum_in_lanes([mul(wide[ids[i]], w[i]) for i in where])
        out[segment] = store(row if total is None else div_no_nan(row, total[segment]), data.dtype)
    return (output,)


def weighted_terms(kind: str, grad: Array, segments: list[int], weights: Array) -> Callable[[int], Array]:
    """What each id contributes: its segment's row / the segment's total · its weight."""
    wide = load(grad)
    w = weights_as(wide.dtype, weights)
    total = totals(kind, w, grouped(segments), len(grad))

    def term(i: int) -> Array:
        row = wide[segments[i]]
        return mul(row if total is None else div_no_nan(row, total[segments[i]]), w[i])

    return term


def weighted_segment_grad(
    kind: str, grad: Array, indices: Array, segment_ids: Array, weights: Array, output_dim0: Array, accumulate: str
) -> tuple[Array, ...]:
    check_bag_shapes(indices, segment_ids, weights)
    rows = scalar_size("output_dim0", output_dim0)
    check_grad_rank(grad)
    output = zeros((rows, *grad.shape[1:]), grad.dtype)
    if len(indices) == 0 or rows == 0:
        return (output,)
    ids, segments = gradient_ids(indices, segment_ids, rows, len(grad), False)
    term, out = weighted_terms(kind, grad, segments, weights), matrix(output)

    def rounded(row: Array) -> Array:  # "T" rounds every product and every sum to T
        return load(store(row, grad.dtype)[np.newaxis])[0] if accumulate == "T" else row

    for row, where in grouped(ids).items():
        terms = [rounded(term(i)) for i in where]
        total = reduce(lambda a, b: rounded(add(a, b)), terms, np.zeros_like(terms[0]))
        out[row] = store(total, grad.dtype)
    return (output,)


def weighted_segment_grad_rows(kind: str, grad: Array, segment_ids: Array, weights: Array) -> tuple[Array, ...]:
    check_bag_shapes(None, segment_ids, weights)
    check_grad_rank(grad)
    output = zeros((len(segment_ids), *grad.shape[1:]), grad.dtype)
    term = weighted_terms(kind, grad, ids_below(len(grad), segment_ids, NOT_IN_GRAD), weights)
    out = matrix(output)
    for i in range(len(out)):
        out[i] = store(term(i), grad.dtype)
    return (output,)


# -- {Sparse,Ragged}FillEmptyRows ------------------------------------------------------------------------------------


def fill_empty_rows(ragged: bool, values: Array, default_value: Array, **rest: Array) -> tuple[Array, ...]:
    ids_name, size_name = ("value_rowids", "nrows") if ragged else ("indices", "dense_shape")
    indices, size = rest[ids_name], rest[size_name]
    must_be(0 if ragged else 1, **{size_name: size})
    must_be(1 if ragged else 2, **{ids_name: indices})
    must_be(1, values=values)
    n = len(indices)
    if len(values) != n:
        raise invalid(
            f"The length of `values` ({len(values)}) must match the first dimension of `{ids_name}` ({n})."
        )
    if not ragged and len(size) != indices.shape[1]:
        rank = indices.shape[1]
        raise invalid(
            f"The length of `dense_shape` ({len(size)}) must match the second dimension of `indices` ({rank})."
        )
    must_be(0, default_value=default_value)
    if not ragged and len(size) == 0:
        raise invalid("Dense shape cannot be empty.")
    rows = int(size if ragged else size[0])
    if rows < 0:
        raise invalid(f"Expected shape dimensions to be non-negative, got {rows}")
    if rows == 0 and n:
        raise invalid(f"Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {n}")
    row_ids = ids_below(rows, indices if ragged else indices[:, 0], "indices({i}, 0) is invalid: {v} >= {bound}")
    workspace(rows, 8)
    groups, source = grouped(row_ids), []  # of each output entry: the input entry it is, or the row it fills
    for row in range(rows):
        source += [(i, row) for i in groups.get(row, [None])]
    out_indices = zeros((len(source), *indices.shape[1:]), np.int64)
    out_values = zeros((len(source),), values.dtype)
    empty, reverse = zeros((rows,), bool), zeros((n,), np.int64)
    for k, (i, row) in enumerate(source):
        if i is None:
            out_values[k], empty[row] = default_value, True
            out_indices[k] = row if ragged else [row, *[0] * (indices.shape[1] - 1)]
        else:
            out_indices[k], out_values[k], reverse[i] = indices[i], values[i], k
    return out_indices, out_values, empty, reverse


NOT_IN_REVERSE = "Elements in reverse index must be in [0, {bound}) but got {v}"


def fill_empty_rows_grad(reverse_index_map: Array, grad_values: Array) -> tuple[Array, ...]:
    must_be(1, reverse_index_map=reverse_index_map, grad_values=grad_values)
    named = set(ids_below(len(grad_values), reverse_index_map, NOT_IN_REVERSE))
    total = np.zeros(1, grad_values.dtype)
    for j in range(len(grad_values)):
        if j not in named:  # in T itself: 16-bit floats are rounded at every step
            total = store(add(load(total)[0], load(grad_values[j : j + 1])[0]), total.dtype)
    return grad_values[reverse_index_map], total[0:1].reshape(())


def fill_empty_rows_grad_grad(
    reverse_index_map: Array, dd_values: Array, dd_default_value: Array, grad_values: Array
) -> tuple[Array, ...]:
    must_be(1, reverse_index_map=reverse_index_map, dd_values=dd_values, grad_values=grad_values)
    must_be(0, dd_default_value=dd_default_value)
    must_have_length(len(reverse_index_map), dd_values=dd_values)
    output = zeros(grad_values.shape, grad_values.dtype)
    output[...] = dd_default_value
    wide, out = load(dd_values), matrix(output)
    for j, where in grouped(ids_below(len(output), reverse_index_map, NOT_IN_REVERSE)).items():
        single = len(where) == 1
        out[j] = dd_values[where[0]] if single else store(reduce(add, (wide[i] for i in where)), output.dtype)
    return (output,)


# -- SparseSlice, SparseAdd ------------------------------------------------------------------------------------------

Entry = tuple[int, ...]


def entries(indices: Array) -> list[Entry]:
    return [tuple(row) for row in indices.tolist()]


def sparse_slice(indices: Array, values: Array, shape: Array, start: Array, size: Array) -> tuple[Array, ...]:
    for name, array, rank in (("indices", indices, 2), ("values", values, 1), ("shape", shape, 1)):
        if array.ndim != rank:
            raise invalid(f"Sparse {name} must be rank {rank} but is rank {array.ndim}")
    if len(indices) != len(values):
        raise invalid(f"Number of elements in indices ({len(indices)}) and values ({len(values)}) do not match")
    if indices.shape[1] != len(shape):
        raise invalid(f"Index rank ({indices.shape[1]}) and shape rank ({len(shape)}) do not match")
    for name, array in (("start", start), ("size", size)):
        if array.ndim != 1:
            raise invalid(f"Input {name} should be a vector but received shape {text(array.shape)}")
    for name, array in (("start", start), ("size", size)):
        if len(array) != len(shape):
            raise invalid(f"Expected {name} to be a vector of length {len(shape)} but got length {len(array)}")
    for dim in shape.tolist():
        if dim < 0:
            raise invalid(f"Expected shape dimensions to be non-negative, got {dim}")
    count_elements(shape.tolist(), show=lambda _: -1)
    box, out_shape = list(zip(start.tolist(), size.tolist(), strict=True)), []
    for dim, (begin, extent) in zip(shape.tolist(), box, strict=True):
        out_dim = extent if begin < wrap(dim - extent) else wrap(dim - begin) if begin < dim else 0
        if out_dim < 0:
            raise invalid(f"Expected a non-negative size, got {out_dim}")
        out_shape.append(out_dim)
    kept = [
        i
        for i, entry in enumerate(entries(indices))
        if all(begin <= v < wrap(begin + extent) for v, (begin, extent) in zip(entry, box, strict=True))
    ]
    return indices[kept] - start, values[kept], np.array(out_shape, np.int64)


def slice_pairs(input_indices: Array, input_start: Array, output_indices: Array) -> list[int]:
    """Of each output entry: the input entry it came from, found in one greedy pass."""
    start, wanted, pairs = input_start.tolist(), entries(output_indices), []
    for i, entry in enumerate(entries(input_indices)):
        if len(pairs) < len(wanted):
            moved = tuple(wrap(v + s) for v, s in zip(wanted[len(pairs)], start, strict=True))
            pairs += [i] if entry == moved else []
    if len(pairs) < len(wanted):
        used = f"Num elements:{len(wanted)}, used: {len(pairs)}"
        raise Refusal("InternalError", f"Elements of backprop_val_grad aren't all propagated. {used}")
    return pairs


def check_slice_walk(
    values: Array, input_indices: Array, input_start: Array, output_indices: Array, backward: bool
) -> None:
    given, wanted = input_indices.shape, output_indices.shape
    if len(given) != 2 or len(wanted) != 2:
        shapes = f"{text(given)} and {text(wanted)}"
        raise invalid(f"Input and output indices should be matrices but received shapes: {shapes}")
    if not backward:
        must_be(1, grad=values)
    elif values.ndim != 1:
        raise invalid(f"Input backprop_val_grad should be a vector but received shape: {text(values.shape)}")
    if given[1] != wanted[1]:
        raise invalid(f"The input and output should have the same ndims: got: {given[1]} and {wanted[1]}")
    if wanted[0] > given[0]:
        counts = f"got {wanted[0]} and {given[0]}"
        raise invalid(f"# rows of output_indices should be not greater than of input_indices, {counts}")
    if not backward:
        must_have_length(given[0], grad=values)
    elif len(values) != wanted[0]:
        what = "# elements of backprop_val_grad and # rows of output_indices should match (#nnz of sum)"
        raise invalid(f"{what}: got {len(values)} and {wanted[0]}")
    if input_start.ndim != 1:
        raise invalid(f"The input_start should be a vector but received shape {text(input_start.shape)}")
    if len(input_start) != given[1]:
        raise invalid(f"Expected input_start to be a vector of length {given[1]} but got length {len(input_start)}")


def sparse_slice_grad(
    backprop_val_grad: Array, input_indices: Array, input_start: Array, output_indices: Array
) -> tuple[Array, ...]:
    check_slice_walk(backprop_val_grad, input_indices, input_start, output_indices, backward=True)
    output = zeros((len(input_indices),), backprop_val_grad.dtype)
    output[slice_pairs(input_indices, input_start, output_indices)] = backprop_val_grad
    return (output,)


def sparse_slice_grad_grad(
    grad: Array, input_indices: Array, input_start: Array, output_indices: Array
) -> tuple[Array, ...]:
    check_slice_walk(grad, input_indices, input_start, output_indices, backward=False)
    return (grad[slice_pairs(input_indices, input_start, output_indices)],)


def check_all_rank(rank: int, words: str, *arrays: Array) -> None:
    if any(a.ndim != rank for a in arrays):
        raise invalid(words + " and ".join(text(a.shape) for a in arrays))


def reaches(total: Array, thresh: Array) -> bool:
    """thresh <= abs(total), never for NaN; the least int32 and int64 have no absolute value."""
    if total.dtype.kind == "c":
        parts = load(total)[0]
        return bool(flush(thresh.reshape(1))[0] <= np.hypot(parts[0], parts[1]))
    if total.dtype.kind in "iu":
        value = abs(int(total[0]))
        bits = 8 * total.itemsize
        return int(thresh) <= (value if bits < 32 or total.dtype.kind == "u" else wrap(value, bits))
    return bool(load(thresh)[0, 0] <= abs(load(total)[0, 0]))


def sparse_add(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array, thresh: Array
) -> tuple[Array, ...]:
    name, wanted = a_values.dtype.name, REAL_OF.get(a_values.dtype.name, a_values.dtype.name)
    if thresh.dtype.name != wanted:
        raise invalid(f"thresh must be {wanted}, the type that goes with T = {name}; got {thresh.dtype.name}")
    check_all_rank(2, "Input indices should be matrices but received shapes: ", a_indices, b_indices)
    rank, b_rank = a_indices.shape[1], b_indices.shape[1]
    if rank != b_rank:
        raise invalid(f"Input indices must have the same dimension, got {rank} and {b_rank}")
    check_all_rank(1, "Input values should be vectors but received shapes: ", a_values, b_values)
    if len(a_values) != len(a_indices) or len(b_values) != len(b_indices):
        expected = f"Expected {len(a_indices)} and {len(b_indices)} non-empty input values"
        raise invalid(f"{expected}, got {len(a_values)} and {len(b_values)}")
    check_all_rank(1, "Input shapes should be a vector but received shapes ", a_shape, b_shape)
    if rank != len(a_shape):
        raise invalid(f"Second dimension of a_indices and length of a_shape must match, got {rank} and {len(a_shape)}")
    if rank == 0:
        raise invalid("Tesors must not be empty")
    if len(a_shape) != len(b_shape):
        shapes = " and ".join(" ".join(map(str, s.tolist())) for s in (a_shape, b_shape))
        raise invalid(f"Operands do not have the same ranks; got shapes: {shapes}")
    for d, (p, q) in enumerate(zip(a_shape.tolist(), b_shape.tolist(), strict=True)):
        if p != q:
            raise invalid(f"Operands' shapes do not match: got {p} and {q} for dimension {d}")
    if thresh.ndim != 0:
        raise invalid(f"The magnitude threshold must be a scalar: got shape {text(thresh.shape)}")
    a, b = entries(a_indices), entries(b_indices)
    merged: list[tuple[Entry, Array]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] < b[j]):
            merged.append((a[i], a_values[i : i + 1]))
            i += 1
        elif i == len(a) or b[j] < a[i]:
            merged.append((b[j], b_values[j : j + 1]))
            j += 1
        else:
            total = store(add(load(a_values[i : i + 1])[0], load(b_values[j : j + 1])[0]), a_values.dtype)
            merged += [(a[i], total)] if reaches(total, thresh) else []
            i, j = i + 1, j + 1
    out_indices = np.array([entry for entry, _ in merged], np.int64).reshape(len(merged), rank)
    return out_indices, np.concatenate([a_values[:0], *(value for _, value in merged)]), a_shape.copy()


def sum_walk(a: list[Entry], b: list[Entry], total: list[Entry]) -> Iterator[tuple[int, int, int]]:
    """(operand, its entry, the sum's entry) for every match TensorFlow's walk along the three lists finds."""
    operands, heads, k = (a, b), [0, 0], 0
    while k < len(total) and (heads[0] < len(a) or heads[1] < len(b)):
        wait = False
        for side, operand in enumerate(operands):
            if heads[side] < len(operand) and operand[heads[side]] <= total[k]:
                if operand[heads[side]] == total[k]:
                    yield side, heads[side], k
                else:
                    wait = True
                heads[side] += 1
        k += not wait


def check_add_walk(a_indices: Array, b_indices: Array, sum_indices: Array) -> None:
    ranks = [i.shape[1] for i in (a_indices, b_indices, sum_indices)]
    if len(set(ranks)) > 1:
        numbers = "".join(map(str, ranks))
        raise invalid(f"The densified operands should have the same ndims; for A, B, sum got: {numbers}")


def sparse_add_grad(
    backprop_val_grad: Array, a_indices: Array, b_indices: Array, sum_indices: Array
) -> tuple[Array, ...]:
    check_all_rank(2, "Input indices should be matrices but received shapes: ", a_indices, b_indices, sum_indices)
    grad = backprop_val_grad
    if grad.ndim != 1:
        raise invalid(f"Input backprop_val_grad should be a vector but received shape: {text(grad.shape)}")
    check_add_walk(a_indices, b_indices, sum_indices)
    if len(grad) != len(sum_indices):
        what = "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum)"
        raise invalid(f"{what}: got {len(grad)} and {len(sum_indices)}")
    outputs = zeros((len(a_indices),), grad.dtype), zeros((len(b_indices),), grad.dtype)
    for side, i, k in sum_walk(entries(a_indices), entries(b_indices), entries(sum_indices)):
        outputs[side][i] = grad[k]
    return outputs


def sparse_add_grad_grad(
    da: Array, db: Array, a_indices: Array, b_indices: Array, sum_indices: Array
) -> tuple[Array, ...]:
    check_all_rank(2, "Input indices should be matrices but received shapes: ", a_indices, b_indices, sum_indices)
    check_add_walk(a_indices, b_indices, sum_indices)
    for name, values, indices in (("da", da, a_indices), ("db", db, b_indices)):
        must_be(1, **{name: values})
        must_have_length(len(indices), **{name: values})
    output, seen = zeros((len(sum_indices),), da.dtype), set()
    for side, i, k in sum_walk(entries(a_indices), entries(b_indices), entries(sum_indices)):
        value = (da, db)[side][i : i + 1]
        if k in seen:
            value = store(add(load(output[k : k + 1])[0], load(value)[0]), output.dtype)
        output[k], _ = value[0], seen.add(k)
    return (output,)


# -- the table -------------------------------------------------------------------------------------------------------

OPS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "SegmentSum": segment_sum,
    "GatherRows": gather_rows,
    "ScatterRows": scatter_rows,
    "RowPositions": row_positions,
    "RowDot": row_dot,
    "SparseSegmentDot": sparse_segment_dot,
    "SparseSlice": sparse_slice,
    "SparseSliceGrad": sparse_slice_grad,
    "SparseSliceGradGrad": sparse_slice_grad_grad,
    "SparseAdd": sparse_add,
    "SparseAddGrad": sparse_add_grad,
    "SparseAddGradGrad": sparse_add_grad_grad,
}
for _family in ("Sparse", "Ragged"):
    OPS[f"{_family}FillEmptyRows"] = partial(fill_empty_rows, _family == "Ragged")
    OPS[f"{_family}FillEmptyRowsGrad"] = fill_empty_rows_grad
    OPS[f"{_family}FillEmptyRowsGradGrad"] = fill_empty_rows_grad_grad
for _kind in ("Sum", "Mean", "SqrtN"):
    OPS[f"SparseSegment{_kind}"] = partial(sparse_segment, _kind)
    OPS[f"SparseSegment{_kind}WithNumSegments"] = partial(sparse_segment, _kind)
    OPS[f"SparseSegment{_kind}Grad"] = partial(sparse_segment_grad, _kind, False)
    OPS[f"SparseSegment{_kind}GradV2"] = partial(sparse_segment_grad, _kind, True)
    OPS[f"SparseSegment{_kind}GradGrad"] = partial(sparse_segment_grad_grad, _kind)
    OPS[f"WeightedSparseSegment{_kind}"] = partial(weighted_segment, _kind)
    OPS[f"WeightedSparseSegment{_kind}Grad"] = partial(weighted_segment_grad, _kind)
    OPS[f"WeightedSparseSegment{_kind}GradRows"] = partial(weighted_segment_grad_rows, _kind)
    OPS[f"WeightedSparseSegment{_kind}GradGrad"] = partial(weighted_segment, _kind)


def reference(op_name: str, inputs: dict[str, Array], attrs: dict[str, Any]) -> tuple[Array, ...]:
    """The outputs of a call, or its Refusal."""
    with np.errstate(all="ignore"):
        return OPS[op_name](**inputs, **attrs)
