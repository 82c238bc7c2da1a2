"""IndexedRows as JAX's tree of arrays: gradients by rows pass through jit and scan. Its number of rows is static."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from ..rows import IndexedRows


def is_rows(value: Any) -> bool:
    """Whether a value is a gradient by rows: a leaf, where trees of gradients are walked."""
    return isinstance(value, IndexedRows)


def _flatten_with_keys(rows: IndexedRows) -> tuple[list[Any], tuple[int, bool]]:
    keyed = [(tree_util.GetAttrKey(name), getattr(rows, name)) for name in ("values", "indices")]
    return keyed, (rows.num_rows, rows.is_unique)


def _unflatten(known: tuple[int, bool], arrays: Any) -> IndexedRows:
    values, indices = arrays
    return IndexedRows(values, indices, *known)


tree_util.register_pytree_with_keys(IndexedRows, _flatten_with_keys, _unflatten)
