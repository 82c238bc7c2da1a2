"""Rows, coordinates and ids of bags in plain XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .call import (
    Array,
    Call,
    Kernel,
    Ok,
    Results,
    add_up,
    all_below,
    ids_per_segment,
    is_nondecreasing,
    matrix,
    rows_at,
    run_of_each,
    widen,
)

# -- Gather, scatter, positions, inner products and square roots ------------------------------------------------------


def gather_rows(call: Call) -> Results:
    """Return rows by index."""
    params = call["params"]
    return all_below(call["indices"], params.shape[0]), (rows_at(matrix(params), call["indices"]),)


def scatter_rows(call: Call) -> Results:
    """Return a table of zeros with each row added at its index."""
    indices, rows = call["indices"], call.size("num_rows")
    return all_below(indices, rows), (add_up(widen(matrix(call["grad"])), indices, rows),)


def row_positions(call: Call) -> Results:
    """Return the position of each id in a sorted list; an id that is not listed is a fault."""
    dtype = jnp.promote_types(call["sorted_ids"].dtype, call["ids"].dtype)
    listed, ids = call["sorted_ids"].astype(dtype), call["ids"].astype(dtype)
    places = jnp.searchsorted(listed, ids)
    found = (places < listed.shape[0]) & (rows_at(listed, places) == ids)
    return jnp.all(found), (places,)


def _dots(x: Array, y: Array) -> Array:
    # Not a matrix product, whose factors a GPU may round to fewer bits.
    return jnp.sum(widen(x) * widen(y), axis=1)


def sparse_segment_dot(call: Call) -> Results:
    """Return, for each id, the inner product of its segment's row of `grad` and its row of `data`."""
    grad, data, indices, segments = call["grad"], call["data"], call["indices"], call["segment_ids"]
    ok = all_below(indices, data.shape[0]) & all_below(segments, grad.shape[0])
    return ok, (_dots(rows_at(matrix(grad), segments), rows_at(matrix(data), indices)),)


def row_dot(call: Call) -> Results:
    """Return the inner product of each row of x with the same row of y."""
    return True, (_dots(matrix(call["x"]), matrix(call["y"])),)


def sqrt(call: Call) -> Results:
    """Return square roots; 16-bit floats are computed in float32, then rounded."""
    return True, (jnp.sqrt(widen(call["x"])),)


KERNELS: dict[str, Kernel] = {
    "gather_rows": gather_rows,
    "scatter_rows": scatter_rows,
    "row_positions": row_positions,
    "sparse_segment_dot": sparse_segment_dot,
    "row_dot": row_dot,
    "sqrt": sqrt,
}


# -- The gradient of {Sparse,Ragged}FillEmptyRows, and its transpose --------------------------------------------------


def _is_named(positions: Array, size: int) -> Array:
    return ids_per_segment(positions, size) > 0


def fill_empty_rows_grad(call: Call) -> Results:
    """Return the gradient of each value, and of the default: the sum of entries that no value was copied to.

    The sum is in T: like the kernel, it rounds 16-bit floats at every addition.
    """
    positions, grad = call["reverse_index_map"], call["grad_values"]
    size = grad.shape[0]
    unnamed = jnp.where(_is_named(positions, size), jnp.zeros_like(grad), grad)
    short = widen(grad).dtype != grad.dtype
    total = add_up(unnamed, jnp.zeros(size, jnp.int32), 1, sorted_ids=True)[0] if short else jnp.sum(unnamed)
    return all_below(positions, size), (rows_at(grad, positions), total)


def fill_empty_rows_grad_grad(call: Call) -> Results:
    """Return the values at the positions in the map, the default elsewhere."""
    positions, size = call["reverse_index_map"], call["grad_values"].shape[0]
    values = add_up(widen(call["dd_values"]), positions, size).astype(call["dd_values"].dtype)
    return all_below(positions, size), (jnp.where(_is_named(positions, size), values, call["dd_default_value"]),)


FILL_ROWS_KERNELS: dict[str, Kernel] = {
    "fill_empty_rows_grad": fill_empty_rows_grad,
    "fill_empty_rows_grad_grad": fill_empty_rows_grad_grad,
}


# -- Offsets to segment ids, and bags of many features for one table --------------------------------------------------


def _are_offsets(offsets: Array, ids: int, has_end: bool) -> Ok:
    """Return whether offsets begin at 0, do not decrease and end at the number of ids: each id is in one bag."""
    if offsets.shape[0] == 0:
        return ids == 0 and not has_end
    ends = offsets[-1] == ids if has_end else offsets[-1] <= ids
    return (offsets[0] == 0) & is_nondecreasing(offsets) & ends


def segment_ids_from_offsets(call: Call) -> Results:
    """Return the bag of each id. With `include_last_offset` the last offset is the number of ids."""
    offsets, ids, has_end = call["offsets"], call.size("num_ids"), call.attrs["include_last_offset"]
    bags = offsets[:-1] if has_end else offsets
    return _are_offsets(offsets, ids, has_end), (run_of_each(bags, ids),)


def stack_bags(call: Call) -> Results:
    """Convert ids of many features to ids of one table. Bag b of feature f of F becomes segment b·F + f."""
    ids, offsets, feature_rows, first = (call[k] for k in ("indices", "offsets", "feature_rows", "feature_first"))
    n, features = ids.shape[0], feature_rows.shape[0]
    examples = max((offsets.shape[0] - 1) // features, 1)
    bag = run_of_each(offsets[:-1], n)
    feature, example = bag // examples, bag % examples
    limit = min(jnp.iinfo(ids.dtype).max, jnp.iinfo(first.dtype).max)
    features_ok = jnp.all((first >= 0) & (feature_rows >= 0) & (feature_rows <= limit - jnp.maximum(first, 0)))
    ids_ok = jnp.all((ids >= 0) & (ids < rows_at(feature_rows, feature)))
    segments = example * features + feature
    order = jnp.argsort(segments, stable=True)
    stacked = (ids + rows_at(first, feature))[order]
    positions = order if call.attrs["positions"] else order[:0]
    return _are_offsets(offsets, n, has_end=True) & features_ok & ids_ok, (stacked, segments[order], positions)


BAG_IDS_KERNELS: dict[str, Kernel] = {
    "segment_ids_from_offsets": segment_ids_from_offsets,
    "stack_bags": stack_bags,
}


# -- The gradients of SparseSlice and SparseAdd, and their transposes -------------------------------------------------

# The kernels match lists of coordinates entry by entry. Outputs of the forward ops are matched in parallel instead: the
# entries of a slice are those inside its box, and sorted lists of distinct entries match where they are equal. Only
# other lists are matched entry by entry, which is always correct but slow on a GPU.


def _match_slice(call: Call) -> tuple[Array, Array]:
    """Return whether each input entry matches an output entry, and the number of matches.

    One pass over the input: each output entry, in order, matches the next input entry that it was sliced from.
    """
    entries, sliced = call["input_indices"], call["output_indices"] + call["input_start"]
    n, m = entries.shape[0], sliced.shape[0]
    if m == 0:
        return jnp.zeros(n, bool), jnp.zeros((), jnp.int32)
    inside = jnp.all((entries >= sliced.min(axis=0)) & (entries <= sliced.max(axis=0)), axis=1)
    place = jnp.cumsum(inside.astype(jnp.int32)) - 1
    same = jnp.all(rows_at(sliced, place) == entries, axis=1)
    is_parallel = jnp.all(same | ~inside) & (place[-1] + 1 <= m)

    def step(count: Array, entry: Array) -> tuple[Array, Array]:
        matches = (count < m) & jnp.all(sliced[jnp.minimum(count, m - 1)] == entry)
        return count + matches, matches

    def match_in_order(_: Array) -> Array:
        return jax.lax.scan(step, jnp.zeros((), jnp.int32), entries)[1]

    matched = jax.lax.cond(is_parallel, lambda _: inside, match_in_order, inside)
    return matched, jnp.sum(matched, dtype=jnp.int32)


def sparse_slice_grad(call: Call) -> Results:
    """Return the gradient of each input entry, 0 if it was not sliced. An unmatched output entry is a fault."""
    grad, (matched, count) = call["backprop_val_grad"], _match_slice(call)
    place = jnp.cumsum(matched.astype(jnp.int32)) - 1
    return count == grad.shape[0], (jnp.where(matched, rows_at(grad, place), jnp.zeros((), grad.dtype)),)


def sparse_slice_grad_grad(call: Call) -> Results:
    """Return, of one value per input entry, those of entries that were sliced."""
    grad, (matched, count), m = call["grad"], _match_slice(call), call["output_indices"].shape[0]
    place = jnp.where(matched, jnp.cumsum(matched.astype(jnp.int32)) - 1, m)
    return count == m, (jnp.zeros(m, grad.dtype).at[place].set(grad, mode="drop"),)


def _rank_entries(*lists: Array) -> list[Array]:
    """Return the lexicographic rank of each entry; equal entries have equal ranks."""
    entries = jnp.concatenate(lists)
    numbers = jnp.zeros(entries.shape[0], jnp.int32)
    if entries.size:
        order = jnp.lexsort(entries.T[::-1])
        ordered = entries[order]
        changes = jnp.any(ordered[1:] != ordered[:-1], axis=1)
        numbers = numbers.at[order[1:]].set(jnp.cumsum(changes.astype(jnp.int32)))
    ends = [sum(x.shape[0] for x in lists[: k + 1]) for k in range(len(lists))]
    return jnp.split(numbers, ends[:-1])


def _match_sum(call: Call) -> tuple[Array, Array]:
    """Return the position in the sum of each entry of a and of b; the length of the sum for entries left out of it."""
    a, b, total = _rank_entries(call["a_indices"], call["b_indices"], call["sum_indices"])
    m, numbers = total.shape[0], a.shape[0] + b.shape[0] + total.shape[0]
    if m == 0:
        return jnp.zeros_like(a), jnp.zeros_like(b)

    def match_in_parallel() -> tuple[Array, Array]:
        place = jnp.full(numbers, m, jnp.int32).at[total].set(jnp.arange(m, dtype=jnp.int32))
        return place[a], place[b]

    def match_in_order() -> tuple[Array, Array]:
        return _match_sum_in_order(a, b, total)

    is_sorted = [jnp.all(x[1:] > x[:-1]) for x in (a, b, total)]
    matched: tuple[Array, Array] = jax.lax.cond(
        is_sorted[0] & is_sorted[1] & is_sorted[2], match_in_parallel, match_in_order
    )
    return matched


def _match_sum_in_order(a: Array, b: Array, total: Array) -> tuple[Array, Array]:
    """Match like TensorFlow: skip entries of operands that are below the current entry of the sum."""
    m, operands = total.shape[0], (a, b)

    def is_running(state: tuple[Array, ...]) -> Array:
        i, j, k, *_ = state
        return (k < m) & ((i < a.shape[0]) | (j < b.shape[0]))

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        heads, k, matched, waits = list(state[:2]), state[2], list(state[3:]), jnp.zeros((), bool)
        for side, entries in enumerate(operands):
            if entries.shape[0] == 0:
                continue
            head = jnp.minimum(heads[side], entries.shape[0] - 1)
            exists = heads[side] < entries.shape[0]
            match, behind = exists & (entries[head] == total[k]), exists & (entries[head] < total[k])
            matched[side] = matched[side].at[head].set(jnp.where(match, k, matched[side][head]))
            heads[side] = heads[side] + (match | behind)
            waits = waits | behind
        return heads[0], heads[1], k + ~waits, matched[0], matched[1]

    zero = jnp.zeros((), jnp.int32)
    unmatched = [jnp.full(x.shape[0], m, jnp.int32) for x in operands]
    end = jax.lax.while_loop(is_running, step, (zero, zero, zero, *unmatched))
    return end[3], end[4]


def sparse_add_grad(call: Call) -> Results:
    """Return, for each entry of the operands, the gradient of its entry of the sum; 0 if the sum dropped it."""
    grad, m = call["backprop_val_grad"], call["sum_indices"].shape[0]
    zero = jnp.zeros((), grad.dtype)
    return True, tuple(jnp.where(place < m, rows_at(grad, place), zero) for place in _match_sum(call))


def sparse_add_grad_grad(call: Call) -> Results:
    """Return, for each entry of the sum, the values of its entries of a and b, added in this order."""
    m = call["sum_indices"].shape[0]
    return True, (add_up(jnp.concatenate([call["da"], call["db"]]), jnp.concatenate(_match_sum(call)), m),)


COORDINATES_KERNELS: dict[str, Kernel] = {
    "sparse_slice_grad": sparse_slice_grad,
    "sparse_slice_grad_grad": sparse_slice_grad_grad,
    "sparse_add_grad": sparse_add_grad,
    "sparse_add_grad_grad": sparse_add_grad_grad,
}
