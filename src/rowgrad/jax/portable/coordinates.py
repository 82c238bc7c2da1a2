"""The gradients of SparseSlice and SparseAdd, and their transposes.

Both follow a walk along lists of coordinates, one entry after the other. What the forward ops give is matched at once
instead: the entries of a slice are those inside its box, and lists of distinct entries in order match where they are
equal. Only other lists are walked along, which is right for them too but slow on a GPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .call import Array, Call, Kernel, Results
from .ids import rows_at
from .sums import add_up


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


KERNELS: dict[str, Kernel] = {
    "sparse_slice_grad": sparse_slice_grad,
    "sparse_slice_grad_grad": sparse_slice_grad_grad,
    "sparse_add_grad": sparse_add_grad,
    "sparse_add_grad_grad": sparse_add_grad_grad,
}
