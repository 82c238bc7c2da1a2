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
    matrix,
    never_falls,
    rows_at,
    run_of_each,
    widened,
)

# -- Whole rows -------------------------------------------------------------------------------------------------------

# Whole rows: gathered, scattered, looked for, multiplied with one another; and their roots.


def gather_rows(call: Call) -> Results:
    """The rows named, bit for bit."""
    params = call["params"]
    return all_below(call["indices"], params.shape[0]), (rows_at(matrix(params), call["indices"]),)


def scatter_rows(call: Call) -> Results:
    """A table to which every row is added at its index."""
    indices, rows = call["indices"], call.size("num_rows")
    return all_below(indices, rows), (add_up(widened(matrix(call["grad"])), indices, rows),)


def row_positions(call: Call) -> Results:
    """Where each id stands in the list; one that is not listed is a fault."""
    dtype = jnp.promote_types(call["sorted_ids"].dtype, call["ids"].dtype)
    listed, ids = call["sorted_ids"].astype(dtype), call["ids"].astype(dtype)
    places = jnp.searchsorted(listed, ids)
    found = (places < listed.shape[0]) & (rows_at(listed, places) == ids)
    return jnp.all(found), (places,)


def _dots(x: Array, y: Array) -> Array:
    # Products and a sum, not a matrix product, whose factors a GPU may round to fewer bits.
    return jnp.sum(widened(x) * widened(y), axis=1)


def sparse_segment_dot(call: Call) -> Results:
    """Of every id: the inner product of its segment's row of `grad` and its row of `data`."""
    grad, data, indices, segments = call["grad"], call["data"], call["indices"], call["segment_ids"]
    ok = all_below(indices, data.shape[0]) & all_below(segments, grad.shape[0])
    return ok, (_dots(rows_at(matrix(grad), segments), rows_at(matrix(data), indices)),)


def row_dot(call: Call) -> Results:
    """The inner product of every row of x with the same row of y."""
    return True, (_dots(matrix(call["x"]), matrix(call["y"])),)


def sqrt(call: Call) -> Results:
    """Roots; those of 16-bit floats in float32, then rounded."""
    return True, (jnp.sqrt(widened(call["x"])),)


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
    """Each value's own entry, and the sum of those no value came from.

    That sum is in T: 16-bit floats round at every addition, as the kernel's do.
    """
    positions, grad = call["reverse_index_map"], call["grad_values"]
    size = grad.shape[0]
    unnamed = jnp.where(_is_named(positions, size), jnp.zeros_like(grad), grad)
    short = widened(grad).dtype != grad.dtype
    total = add_up(unnamed, jnp.zeros(size, jnp.int32), 1, sorted_ids=True)[0] if short else jnp.sum(unnamed)
    return all_below(positions, size), (rows_at(grad, positions), total)


def fill_empty_rows_grad_grad(call: Call) -> Results:
    """Entries named by the map get their values, all others the default."""
    positions, size = call["reverse_index_map"], call["grad_values"].shape[0]
    values = add_up(widened(call["dd_values"]), positions, size).astype(call["dd_values"].dtype)
    return all_below(positions, size), (jnp.where(_is_named(positions, size), values, call["dd_default_value"]),)


FILL_ROWS_KERNELS: dict[str, Kernel] = {
    "fill_empty_rows_grad": fill_empty_rows_grad,
    "fill_empty_rows_grad_grad": fill_empty_rows_grad_grad,
}


# -- Bags as offsets --------------------------------------------------------------------------------------------------

# Bags as offsets: turned into segment ids, and bags of many features stacked for one table.


def _are_offsets(offsets: Array, ids: int, has_end: bool) -> Ok:
    """They begin at 0, never fall and end at the number of ids: every id is in one bag."""
    if offsets.shape[0] == 0:
        return ids == 0 and not has_end
    ends = offsets[-1] == ids if has_end else offsets[-1] <= ids
    return (offsets[0] == 0) & never_falls(offsets) & ends


def segment_ids_from_offsets(call: Call) -> Results:
    """The bag of every id. With `include_last_offset` the last offset is the end and begins no bag."""
    offsets, ids, has_end = call["offsets"], call.size("num_ids"), call.attrs["include_last_offset"]
    bags = offsets[:-1] if has_end else offsets
    return _are_offsets(offsets, ids, has_end), (run_of_each(bags, ids),)


def stack_bags(call: Call) -> Results:
    """Ids of many features as ids of one table. Bag b of feature f, of F, becomes segment b·F + f."""
    ids, offsets, feature_rows, first = (call[k] for k in ("indices", "offsets", "feature_rows", "feature_first"))
    n, features = ids.shape[0], feature_rows.shape[0]
    examples = max((offsets.shape[0] - 1) // features, 1)
    bag = run_of_each(offsets[:-1], n)
    feature, example = bag // examples, bag % examples
    limit = min(jnp.iinfo(ids.dtype).max, jnp.iinfo(first.dtype).max)
    there = jnp.all((first >= 0) & (feature_rows >= 0) & (feature_rows <= limit - jnp.maximum(first, 0)))
    inside = jnp.all((ids >= 0) & (ids < rows_at(feature_rows, feature)))
    segments = example * features + feature
    order = jnp.argsort(segments, stable=True)
    stacked = (ids + rows_at(first, feature))[order]
    positions = order if call.attrs["positions"] else order[:0]
    return _are_offsets(offsets, n, has_end=True) & there & inside, (stacked, segments[order], positions)


BAG_IDS_KERNELS: dict[str, Kernel] = {
    "segment_ids_from_offsets": segment_ids_from_offsets,
    "stack_bags": stack_bags,
}


# -- The gradients of SparseSlice and SparseAdd, and their transposes -------------------------------------------------

# Both follow a walk along lists of coordinates, one entry after the other. What the forward ops give is matched at
# once instead: the entries of a slice are those inside its box, and lists of distinct entries in order match where
# they are equal. Only other lists are walked along, which is right for them too but slow on a GPU.


def _sliced(call: Call) -> tuple[Array, Array]:
    """Whether each input entry was taken by an output entry, and how many were taken in all.

    One pass over the input: each output entry, in order, takes the next input entry that it was sliced from.
    """
    given, wanted = call["input_indices"], call["output_indices"] + call["input_start"]
    n, m = given.shape[0], wanted.shape[0]
    if m == 0:
        return jnp.zeros(n, bool), jnp.zeros((), jnp.int32)
    inside = jnp.all((given >= wanted.min(axis=0)) & (given <= wanted.max(axis=0)), axis=1)  # others are not wanted
    place = jnp.cumsum(inside.astype(jnp.int32)) - 1
    same = jnp.all(rows_at(wanted, place) == given, axis=1)
    at_once = jnp.all(same | ~inside) & (place[-1] + 1 <= m)

    def step(taken: Array, entry: Array) -> tuple[Array, Array]:
        takes = (taken < m) & jnp.all(wanted[jnp.minimum(taken, m - 1)] == entry)
        return taken + takes, takes

    def walk(_: Array) -> Array:
        return jax.lax.scan(step, jnp.zeros((), jnp.int32), given)[1]

    taken = jax.lax.cond(at_once, lambda _: inside, walk, inside)
    return taken, jnp.sum(taken, dtype=jnp.int32)


def sparse_slice_grad(call: Call) -> Results:
    """Input entries that were sliced get their gradient, all others 0. An output entry left over is a fault."""
    grad, (taken, count) = call["backprop_val_grad"], _sliced(call)
    place = jnp.cumsum(taken.astype(jnp.int32)) - 1
    return count == grad.shape[0], (jnp.where(taken, rows_at(grad, place), jnp.zeros((), grad.dtype)),)


def sparse_slice_grad_grad(call: Call) -> Results:
    """Of one value per input entry, those that were sliced."""
    grad, (taken, count), m = call["grad"], _sliced(call), call["output_indices"].shape[0]
    place = jnp.where(taken, jnp.cumsum(taken.astype(jnp.int32)) - 1, m)
    return count == m, (jnp.zeros(m, grad.dtype).at[place].set(grad, mode="drop"),)


def _numbered(*lists: Array) -> list[Array]:
    """Every entry's number: equal entries have equal numbers, and numbers compare as entries do, lexicographically."""
    entries = jnp.concatenate(lists)
    numbers = jnp.zeros(entries.shape[0], jnp.int32)
    if entries.size:
        order = jnp.lexsort(entries.T[::-1])
        ordered = entries[order]
        changes = jnp.any(ordered[1:] != ordered[:-1], axis=1)
        numbers = numbers.at[order[1:]].set(jnp.cumsum(changes.astype(jnp.int32)))
    ends = [sum(x.shape[0] for x in lists[: k + 1]) for k in range(len(lists))]
    return jnp.split(numbers, ends[:-1])


def _summed(call: Call) -> tuple[Array, Array]:
    """Of each entry of a and of b the entry of the sum it is matched with; the length of the sum where with none."""
    a, b, total = _numbered(call["a_indices"], call["b_indices"], call["sum_indices"])
    m, numbers = total.shape[0], a.shape[0] + b.shape[0] + total.shape[0]
    if m == 0:
        return jnp.zeros_like(a), jnp.zeros_like(b)

    def at_once() -> tuple[Array, Array]:
        place = jnp.full(numbers, m, jnp.int32).at[total].set(jnp.arange(m, dtype=jnp.int32))
        return place[a], place[b]

    def walk() -> tuple[Array, Array]:
        return _walk(a, b, total)

    in_order = [jnp.all(x[1:] > x[:-1]) for x in (a, b, total)]
    matched: tuple[Array, Array] = jax.lax.cond(in_order[0] & in_order[1] & in_order[2], at_once, walk)
    return matched


def _walk(a: Array, b: Array, total: Array) -> tuple[Array, Array]:
    """TensorFlow's walk: an operand's entry that is behind the sum's is passed while the sum waits."""
    m, operands = total.shape[0], (a, b)

    def goes_on(state: tuple[Array, ...]) -> Array:
        i, j, k, *_ = state
        return (k < m) & ((i < a.shape[0]) | (j < b.shape[0]))

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        heads, k, matched, waits = list(state[:2]), state[2], list(state[3:]), jnp.zeros((), bool)
        for side, entries in enumerate(operands):
            if entries.shape[0] == 0:
                continue
            head = jnp.minimum(heads[side], entries.shape[0] - 1)
            there = heads[side] < entries.shape[0]
            match, behind = there & (entries[head] == total[k]), there & (entries[head] < total[k])
            matched[side] = matched[side].at[head].set(jnp.where(match, k, matched[side][head]))
            heads[side] = heads[side] + (match | behind)
            waits = waits | behind
        return heads[0], heads[1], k + ~waits, matched[0], matched[1]

    zero = jnp.zeros((), jnp.int32)
    none = [jnp.full(x.shape[0], m, jnp.int32) for x in operands]
    end = jax.lax.while_loop(goes_on, step, (zero, zero, zero, *none))
    return end[3], end[4]


def sparse_add_grad(call: Call) -> Results:
    """Every entry of an operand gets the gradient of the sum's entry it went into; what the sum dropped gets 0."""
    grad, m = call["backprop_val_grad"], call["sum_indices"].shape[0]
    zero = jnp.zeros((), grad.dtype)
    return True, tuple(jnp.where(place < m, rows_at(grad, place), zero) for place in _summed(call))


def sparse_add_grad_grad(call: Call) -> Results:
    """Every entry of the sum collects from the entries it came from, that of a first."""
    m = call["sum_indices"].shape[0]
    return True, (add_up(jnp.concatenate([call["da"], call["db"]]), jnp.concatenate(_summed(call)), m),)


COORDINATES_KERNELS: dict[str, Kernel] = {
    "sparse_slice_grad": sparse_slice_grad,
    "sparse_slice_grad_grad": sparse_slice_grad_grad,
    "sparse_add_grad": sparse_add_grad,
    "sparse_add_grad_grad": sparse_add_grad_grad,
}
