"""`safe_embedding_lookup_sparse` where JAX traces ids or weights: the same rules, in shapes that are known before."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..errors import refuse
from ..lookup_options import check_default_id, check_rows_are_vectors, flat_shape, smallest_positive
from ..sparse_tensor import SparseTensor
from . import masked
from .bags import Bags, integers, to_jax


def lookup_traced(
    shards: list[Any],
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None,
    kind: str,
    default_id: int | None,
    max_norm: float | None,
    accumulate: str,
) -> Any:
    """The lookup as `rowgrad.embedding` asks for it. `kind` is the ops' name for the combiner."""
    if len(shards) != 1:
        raise refuse("shards_traced", value=len(shards))
    num_rows = int(flat_shape(sparse_ids)[0])
    ids = to_jax(integers(sparse_ids.values, "sparse_ids"), "sparse_ids")
    check_default_id(default_id, ids.dtype)
    kept, weights = ids >= 0, None
    if sparse_weights is not None:
        weights = jnp.asarray(sparse_weights.values)
        if weights.shape != ids.shape:
            raise ValueError(f"Dimensions {ids.shape[0]} and {weights.shape[0]} are not compatible")
        if kind != "Sum":
            kept &= weights >= smallest_positive(weights.dtype.name)
    if default_id is None:
        check_rows_are_vectors(shards[0])
    bags = masked.leave_out(Bags(ids, _rows(sparse_ids), num_rows, weights), kept)
    if default_id is not None:
        bags = masked.fill(bags, default_id)
    table = jnp.asarray(shards[0])
    result = masked.look_up(table, masked.in_order(bags), kind, max_norm, accumulate)
    return result.reshape(*sparse_ids.shape[:-1], *table.shape[1:])


def _rows(sparse: SparseTensor) -> Any:
    """The row of the result every id belongs to: all its coordinates but the last, counted row by row.

    A last coordinate beyond its size counts on into the rows after, as it does where TensorFlow reshapes. An id whose
    row is no number of the indices' type has the row -1, which is refused: a number that wrapped could be some row.
    """
    indices = to_jax(integers(sparse.indices, "indices"), "indices")
    if len(sparse.shape) == 2:
        return indices[:, 0]
    largest = int(jnp.iinfo(indices.dtype).max)
    rows, fits = jnp.zeros_like(indices[:, 0]), jnp.ones(indices.shape[0], bool)
    for column, size in enumerate(sparse.shape[:-1]):
        limit = largest // max(size, 1)
        fits &= (rows >= -limit) & (rows <= limit)
        rows, fits = _sum(rows * min(size, largest), indices[:, column], fits)
    last, size = indices[:, -1], max(sparse.shape[-1], 1)
    if size > largest:  # no coordinate reaches it
        further, is_between = jnp.where(last < 0, -1, 0).astype(last.dtype), last < 0
    else:
        further, is_between = last // size, last % size != 0
    rows, fits = _sum(rows, further, fits)
    rows = jnp.where((rows == -1) & is_between, 0, rows)  # what is divided is rounded towards zero, as C does
    return jnp.where(fits, rows, -1)


def _sum(a: Any, b: Any, fits: Any) -> tuple[Any, Any]:
    """a + b, and whether it fits its type, as what came before did: a wrong sum has a sign neither of them has."""
    total = a + b
    return total, fits & (((a ^ total) & (b ^ total)) >= 0)
