"""What each op computes, row by row, in the documented order."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import reduce
from types import SimpleNamespace as Inputs
from typing import Any

import numpy as np

from .arithmetic import (
    INT32_MAX,
    INT64_MAX,
    Array,
    ExpectedError,
    Outputs,
    add,
    add_in_t,
    bag,
    div_no_nan,
    dot,
    flush,
    load,
    matrix,
    mul,
    store,
    sum_from_zero,
    sum_in_lanes,
    sum_in_order,
    sum_one_by_one,
)
from .ids import (
    NOT_IN_DATA,
    NOT_IN_GRAD,
    NOT_IN_OUTPUT,
    NOT_IN_PARAMS,
    NOT_IN_REVERSE,
    NOT_IN_SHAPE,
    all_below,
    below,
    forward_rows,
    gradient_ids,
    grouped,
    sorted_segments,
    workspace,
    wrap,
    zeros,
)


def sparse_segment(kind: str, x: Inputs) -> Outputs:
    limit = INT32_MAX if x.indices.itemsize == 4 else INT64_MAX
    sized_by_data = not hasattr(x, "num_segments")
    rows = forward_rows(x.segment_ids, limit, None if sized_by_data else int(x.num_segments))
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()

    def bags() -> Iterator[tuple[int, list[int]]]:
        for segment, where in sorted_segments(segments, rows):
            for i in where:
                below(len(x.data), NOT_IN_DATA, ids[i], i)
            yield segment, [ids[i] for i in where]

    if sized_by_data and segments and segments[-1] < 0:  # always invalid: found before the output is allocated
        list(bags())
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    raw, wide, out = matrix(x.data), load(x.data), matrix(output)
    for segment, positions in bags():
        out[segment] = bag(kind, raw, wide, positions)
    return (output,)


def sparse_segment_grad_grad(kind: str, x: Inputs) -> Outputs:
    output = zeros((int(x.num_segments), *x.data.shape[1:]), x.data.dtype)
    if len(x.data) == 0:  # the gradient validated no id either
        return (output,)
    ids, segments = x.indices.tolist(), x.segment_ids.tolist()
    for i, (row, segment) in enumerate(zip(ids, segments, strict=True)):
        below(len(x.data), NOT_IN_DATA, row, i)
        below(len(output), NOT_IN_GRAD, segment)
    raw, wide, out = matrix(x.data), load(x.data), matrix(output)
    for segment, where in grouped(segments).items():
        out[segment] = bag(kind, raw, wide, [ids[i] for i in where])
    return (output,)


def sparse_segment_grad(kind: str, x: Inputs, size: int | None = None) -> Outputs:
    unique = hasattr(x, "dense_output_dim0")
    rows, inner = int(x.dense_output_dim0 if unique else x.output_dim0), x.grad.shape[1:]
    output = zeros((0 if unique else rows, *inner), x.grad.dtype)
    if len(x.indices) == 0 or rows == 0:  # nothing else is validated
        return (output, np.zeros(0, x.indices.dtype)) if unique else (output,)
    ids, segments = gradient_ids(x, rows, segments_first=not unique and kind != "Sum")
    groups, sizes = grouped(ids), {s: len(where) for s, where in grouped(segments).items()}
    if size is not None:
        if len(groups) > size:
            raise ExpectedError(f"size must be at least the number of looked-up rows, {len(groups)}, got {size}")
        padded_outputs(x, size)  # outputs are allocated before workspace
    if unique:
        output = zeros((len(groups), *inner), x.grad.dtype)
        groups = {k: groups[row] for k, row in enumerate(sorted(groups))}
    if kind != "Sum":
        workspace(len(x.grad), 8)
    add_gradient(kind, x, {row: [segments[i] for i in where] for row, where in groups.items()}, sizes, output)
    return (output, np.array(sorted(set(ids)), x.indices.dtype)) if unique else (output,)


def sparse_segment_grad_padded(kind: str, x: Inputs) -> Outputs:
    values, ids = sparse_segment_grad(kind, x, int(x.size))
    output, padded = padded_outputs(x, int(x.size))
    count = len(ids)
    output[:count], padded[:count], padded[count:] = values, ids, x.fill_id
    return output, padded


def padded_outputs(x: Inputs, size: int) -> Outputs:
    inner = x.grad.shape[1:]
    if 0 in inner:  # rows without columns are never too large, but their ids may be
        zeros((size,), x.indices.dtype)
    return zeros((size, *inner), x.grad.dtype), zeros((size,), x.indices.dtype)


def add_gradient(kind: str, x: Inputs, groups: dict[int, list[int]], sizes: dict[int, int], output: Array) -> None:
    """Add up output rows from the segments that contribute to them; `sizes` are the segments' numbers of ids."""
    wide, out = load(x.grad), matrix(output)

    def term(segment: int) -> Array:  # the scale is computed in double and rounded once
        scale = 1 / (sizes[segment] if kind == "Mean" else math.sqrt(sizes[segment]))
        return wide[segment] if kind == "Sum" else mul(wide[segment], wide.dtype.type(scale))

    for row, segments in groups.items():
        out[row] = store(sum_in_order(x.order, [term(s) for s in segments], wide[0]), x.grad.dtype)


# -- SegmentSum, GatherRows, ScatterRows, RowPositions, dots ---------------------------------------------------------


def segment_sum(x: Inputs) -> Outputs:
    segments = x.segment_ids.tolist()
    rows = segments[-1] + 1 if segments else 0
    if rows > INT64_MAX:
        raise ExpectedError(f"Expected a non-negative size, got {wrap(rows)}")
    if rows <= 0 and segments:
        raise ExpectedError("segment ids must be >= 0")
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    raw, out = matrix(x.data), matrix(output)
    for segment, where in sorted_segments(segments, rows):
        out[segment] = sum_in_lanes([raw[i] for i in where], add_in_t)  # 16-bit floats round at every addition
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
    sorted_ids, positions = x.sorted_ids.tolist(), []
    for i, v in enumerate(x.ids.tolist()):
        positions.append(bisect_left(sorted_ids, v))
        if sorted_ids[positions[-1] :][:1] != [v]:
            raise ExpectedError(f"ids[{i}] = {v} is not one of the {len(sorted_ids)} sorted_ids")
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


def weights_and_sums(
    kind: str, raw: Array, dtype: np.dtype[Any], groups: Groups, rows: int
) -> tuple[Array, dict[int, Array]]:
    """Return the weights in the accumulator's type; Σw or √Σw² of every segment with ids, nothing for plain sums."""
    wide = load(raw)
    weights = flush(wide.astype(dtype), lambda up: (wide * up).astype(dtype))
    if kind == "Sum" or not groups:
        return weights, {}
    workspace(rows, dtype.itemsize)
    terms = weights if kind == "Mean" else mul(weights, weights)
    sums = {segment: sum_from_zero((terms[i] for i in where), terms[0]) for segment, where in groups.items()}
    return weights, sums if kind == "Mean" else {segment: np.sqrt(total) for segment, total in sums.items()}


def weighted_segment(kind: str, x: Inputs) -> Outputs:
    """Compute the forward, or with num_segments the gradient's gradient."""
    ids, transpose = all_below(len(x.data), NOT_IN_PARAMS, x.indices), hasattr(x, "num_segments")
    rows = int(x.num_segments) if transpose else forward_rows(x.segment_ids, INT64_MAX)
    output = zeros((rows, *x.data.shape[1:]), x.data.dtype)
    if transpose:
        groups = grouped(all_below(rows, NOT_IN_GRAD, x.segment_ids))
    else:
        groups = dict(sorted_segments(x.segment_ids.tolist(), rows))
    wide, out = load(x.data), matrix(output)
    weights, totals = weights_and_sums(kind, x.weights, wide.dtype, groups, rows)
    for segment, where in groups.items():
        row = sum_in_lanes([mul(wide[ids[i]], weights[i]) for i in where])
        out[segment] = store(div_no_nan(row, totals[segment]) if totals else row, x.data.dtype)
    return (output,)


def weighted_terms(kind: str, x: Inputs, segments: list[int]) -> list[Array]:
    """Return what each id contributes: its segment's row / the segment's total · its weight."""
    wide = load(x.grad)
    weights, totals = weights_and_sums(kind, x.weights, wide.dtype, grouped(segments), len(x.grad))
    rows = [div_no_nan(wide[s], totals[s]) if totals else wide[s] for s in segments]
    return [mul(row, weight) for row, weight in zip(rows, weights, strict=True)]


def weighted_segment_grad(kind: str, x: Inputs) -> Outputs:
    output = zeros((int(x.output_dim0), *x.grad.shape[1:]), x.grad.dtype)
    if len(x.indices) == 0 or len(output) == 0:
        return (output,)
    ids, segments = gradient_ids(x, len(output), segments_first=False)
    add_weighted(x, grouped(ids), weighted_terms(kind, x, segments), output)
    return (output,)


def add_weighted(x: Inputs, groups: Groups, terms: list[Array], output: Array) -> None:
    """Add up output rows from the ids that contribute to them."""
    out = matrix(output)
    for row, where in groups.items():
        if x.accumulate == "T":  # every product and sum is rounded to T
            out[row] = sum_in_order(x.order, [store(terms[i], x.grad.dtype) for i in where], out[row], add_in_t)
        else:
            out[row] = store(sum_in_order(x.order, [terms[i] for i in where], terms[0]), x.grad.dtype)


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
    sources = [(row, i) for row in range(rows) for i in groups.get(row, [-1])]  # -1: filled
    out_indices = zeros((len(sources), *indices.shape[1:]), np.int64)
    out_values, reverse = zeros((len(sources),), x.values.dtype), zeros((len(indices),), np.int64)
    row_of, source = np.array(sources, np.int64).reshape(len(sources), 2).T
    filled, copied = np.flatnonzero(source < 0), np.flatnonzero(source >= 0)
    out_values[filled], matrix(out_indices)[filled, 0] = x.default_value[()], row_of[filled]
    out_values[copied], out_indices[copied] = x.values[source[copied]], indices[source[copied]]
    reverse[source[copied]] = copied
    return out_indices, out_values, np.array([row not in groups for row in range(rows)], bool), reverse


def fill_empty_rows_grad(x: Inputs) -> Outputs:
    mapped = all_below(len(x.grad_values), NOT_IN_REVERSE, x.reverse_index_map)
    unmapped = x.grad_values[sorted(set(range(len(x.grad_values))) - set(mapped))]
    return x.grad_values[mapped], sum_one_by_one(unmapped)


def fill_empty_rows_grad_grad(x: Inputs) -> Outputs:
    output, wide = zeros(x.grad_values.shape, x.grad_values.dtype), load(x.dd_values)
    output[...] = x.dd_default_value
    for j, where in grouped(all_below(len(output), NOT_IN_REVERSE, x.reverse_index_map)).items():
        alone = len(where) == 1  # then its bits are unchanged
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
    ends = [wrap(begin + length) for begin, length in zip(x.start.tolist(), x.size.tolist(), strict=True)]
    inside = ((x.start <= x.indices) & (x.indices < ends)).all(axis=1)  # empty if an end has wrapped
    return x.indices[inside] - x.start, x.values[inside], np.array(slice_shape(x.shape, x.start, x.size), np.int64)


def slice_pairs(x: Inputs) -> list[int]:
    """Return the input entry of each output entry: in one pass, each takes the next equal one."""
    moved, pairs = entries(x.output_indices + x.input_start), []
    for i, entry in enumerate(entries(x.input_indices)):
        if len(pairs) < len(moved) and entry == moved[len(pairs)]:
            pairs.append(i)
    if len(pairs) < len(moved):
        counts = f"Num elements:{len(moved)}, used: {len(pairs)}"
        raise ExpectedError(f"Elements of backprop_val_grad aren't all propagated. {counts}", "InternalError")
    return pairs


def sparse_slice_grad(x: Inputs) -> Outputs:
    output = zeros((len(x.input_indices),), x.backprop_val_grad.dtype)
    output[slice_pairs(x)] = x.backprop_val_grad
    return (output,)


def sparse_slice_grad_grad(x: Inputs) -> Outputs:
    return (x.grad[slice_pairs(x)],)


def reaches(totals: Array, thresh: Array) -> Array:
    """Return thresh <= abs(total), false for NaN; the smallest int32 and int64 have no absolute value."""
    if totals.dtype.kind == "i":
        return np.array([int(thresh) <= wrap(abs(v), max(8 * totals.itemsize, 32)) for v in totals.tolist()], bool)
    parts = load(totals)
    return load(thresh)[0, 0] <= (np.hypot(*parts.T) if parts.shape[1] == 2 else np.abs(parts[:, 0]))


def sparse_add(x: Inputs) -> Outputs:
    a, b, merged, i, j = entries(x.a_indices), entries(x.b_indices), [], 0, 0  # entry, its position in a and in b or -1
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] < b[j]):
            merged.append((a[i], i, -1))
            i += 1
        elif i == len(a) or b[j] < a[i]:
            merged.append((b[j], -1, j))
            j += 1
        else:
            merged.append((a[i], i, j))
            i, j = i + 1, j + 1
    indices = np.array([entry for entry, _, _ in merged], np.int64).reshape(len(merged), x.a_indices.shape[1])
    in_a, in_b = np.array([where for _, *where in merged], np.int64).reshape(len(merged), 2).T
    values, kept, both = zeros((len(merged),), x.a_values.dtype), np.ones(len(merged), bool), (in_a >= 0) & (in_b >= 0)
    values[in_a >= 0] = x.a_values[in_a[in_a >= 0]]
    values[in_a < 0] = x.b_values[in_b[in_a < 0]]
    values[both] = add_in_t(x.a_values[in_a[both]], x.b_values[in_b[both]])
    kept[both] = reaches(values[both], x.thresh)
    return indices[kept], values[kept], x.a_shape.copy()


def sum_walk(x: Inputs) -> Iterator[tuple[int, int, int]]:
    """Yield (operand, its entry, the sum's entry) for every match of TensorFlow's walk along the three lists."""
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
    terms: dict[int, list[tuple[int, int]]] = {}  # the terms of each entry of the sum
    for side, i, k in sum_walk(x):
        terms.setdefault(k, []).append((side, i))
    output = zeros((len(x.sum_indices),), x.da.dtype)
    turn = 0
    while terms:  # all first terms, then all second ones
        for side, values in enumerate((x.da, x.db)):
            some = [(k, found[turn][1]) for k, found in terms.items() if found[turn][0] == side]
            places, sources = [k for k, _ in some], [i for _, i in some]
            output[places] = add_in_t(output[places], values[sources]) if turn else values[sources]
        turn += 1
        terms = {k: found for k, found in terms.items() if len(found) > turn}
    return (output,)
