"""The gradient of {Sparse,Ragged}FillEmptyRows, and its transpose."""

from __future__ import annotations

import jax.numpy as jnp

from .call import Array, Call, Kernel, Results
from .ids import all_below, rows_at
from .sums import add_up, ids_per_segment, widened


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


KERNELS: dict[str, Kernel] = {
    "fill_empty_rows_grad": fill_empty_rows_grad,
    "fill_empty_rows_grad_grad": fill_empty_rows_grad_grad,
}
