"""A SparseTensor as JAX's tree of arrays: indices and values pass through jit, the dense shape is static."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from ..sparse_tensor import SparseTensor
from .arrays import register_for_export


def _flatten_with_keys(sparse: SparseTensor) -> tuple[list[Any], tuple[int, ...]]:
    parts = (("indices", sparse.indices), ("values", sparse.values))
    return [(tree_util.GetAttrKey(name), part) for name, part in parts], sparse.shape


def _unflatten(shape: tuple[int, ...], parts: Any) -> SparseTensor:
    indices, values = parts
    return SparseTensor.of(indices, values, shape)


tree_util.register_pytree_with_keys(SparseTensor, _flatten_with_keys, _unflatten)
register_for_export(SparseTensor, from_json=tuple)
