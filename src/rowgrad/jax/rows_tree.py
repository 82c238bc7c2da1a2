"""IndexedRows as a pytree: row gradients pass through jit, scan and the like. The number of rows is static.

As a leaf, the ids are an array of an extended dtype that JAX moves, slices and stacks but computes nothing with. So a
function of arrays that is mapped over a tree of gradients (scale, add, clip, psum, norm) raises an error that names
`rowgrad.jax.rows`; with plain integers it would change the ids together with the values. `IndexedRows.indices` itself
is always integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from ..rows import IndexedRows
from .bags import to_jax


def is_rows(value: Any) -> bool:
    """Whether a value is a gradient by rows: a leaf, where trees of gradients are walked."""
    return isinstance(value, IndexedRows)


# -- ids as leaves ----------------------------------------------------------------------------------------------------


def _no_keys(*_: Any, **__: Any) -> Any:
    raise TypeError("row ids of a gradient are not random keys")


class _Carrier(NamedTuple):
    """An extended dtype of JAX for ids of one dtype. Typed keys are the only such dtypes that others may define."""

    bits: int
    impl: Any
    dtype: Any

    def wrap(self, ids: Any) -> Any:
        """Ids as a leaf: inverted, so that zeros (`jnp.zeros_like`) stand for -1, which is not a row."""
        words = jax.lax.bitcast_convert_type(~ids, jnp.uint32)
        return jax.random.wrap_key_data(words[..., None] if self.bits == 32 else words, impl=self.impl)

    def unwrap(self, leaf: Any) -> Any:
        """The ids of a leaf."""
        words = jax.random.key_data(leaf)
        return ~jax.lax.bitcast_convert_type(words[..., 0] if self.bits == 32 else words, f"int{self.bits}")


@cache
def _carrier(bits: int) -> _Carrier:
    never = dict.fromkeys(("seed", "split", "random_bits", "fold_in"), _no_keys)
    shape = (bits // 32,)
    tag = "row ids: use rowgrad.jax.rows"  # is part of the errors that JAX raises for arithmetic on such arrays
    impl = jax.extend.random.define_prng_impl(key_shape=shape, name=f"rowgrad_row_ids_{bits}", tag=tag, **never)
    words = jax.ShapeDtypeStruct(shape, jnp.uint32)
    return _Carrier(bits, impl, jax.eval_shape(lambda w: jax.random.wrap_key_data(w, impl=impl), words).dtype)


def _to_leaf(ids: Any) -> Any:
    """Ids as a leaf; what is neither an array of integers nor the type of one stays as it is."""
    if not isinstance(ids, jax.Array | np.ndarray | jax.ShapeDtypeStruct) or ids.dtype.kind not in "iu":
        return ids
    if isinstance(ids, jax.ShapeDtypeStruct):
        return _retyped(ids, _carrier(64 if ids.dtype == np.int64 else 32).dtype)
    ids = to_jax(ids, "indices")
    if ids.dtype not in (np.int32, np.int64):
        ids = ids.astype(jnp.result_type(int))
    return _carrier(ids.dtype.itemsize * 8).wrap(ids)


def _from_leaf(leaf: Any, values: Any) -> Any:
    """The reverse. Ids beside values of NumPy become NumPy's, as `jax.device_get` wants it."""
    is_type = isinstance(leaf, jax.ShapeDtypeStruct)
    if not is_type and not isinstance(leaf, jax.Array):
        return leaf
    for carrier in map(_carrier, (32, 64)):
        if leaf.dtype == carrier.dtype:
            if is_type:
                return _retyped(leaf, np.dtype(f"int{carrier.bits}"))
            ids = carrier.unwrap(leaf)
            is_numpy = isinstance(values, np.ndarray) and not isinstance(ids, jax.core.Tracer)
            return np.asarray(ids) if is_numpy else ids
    return leaf


def _retyped(struct: jax.ShapeDtypeStruct, dtype: Any) -> jax.ShapeDtypeStruct:
    if hasattr(struct, "update"):  # which older versions do not have
        return struct.update(dtype=dtype)
    return jax.ShapeDtypeStruct(struct.shape, dtype, sharding=struct.sharding)


def _leaf_of(rows: IndexedRows) -> Any:
    """The ids as a leaf: the same object every time, as `equinox.tree_at` and others that compare leaves expect."""
    if rows._leaf is not None:
        return rows._leaf
    leaf = _to_leaf(rows.indices)
    # A leaf made in a trace inside that of the ids must not outlive it in these rows.
    if not isinstance(leaf, jax.core.Tracer) or leaf._trace is getattr(rows.indices, "_trace", None):
        object.__setattr__(rows, "_leaf", leaf)
    return leaf


@dataclass(frozen=True, slots=True)
class _Known:
    """What is static in row gradients. `count`, how many ids a gradient had, does not tell trees apart."""

    num_rows: int
    is_unique: bool
    count: int | None = field(compare=False)

    def is_unique_in(self, ids: Any) -> bool:
        """Whether ids that came back are still distinct: not if a function of arrays changed how many there are.

        Concatenating gradients, flattening a stack of them, `all_gather` and the `out_specs` of `shard_map` put equal
        ids into one list.
        """
        shape: tuple[int, ...] = getattr(ids, "shape", ())
        return self.is_unique and (len(shape) != 1 or self.count in (None, shape[0]))


def _flatten_with_keys(rows: IndexedRows) -> tuple[list[Any], _Known]:
    keyed = [(tree_util.GetAttrKey("values"), rows.values), (tree_util.GetAttrKey("indices"), _leaf_of(rows))]
    shape: tuple[int, ...] = getattr(rows.indices, "shape", ())
    return keyed, _Known(rows.num_rows, rows.is_unique, shape[-1] if shape else None)


def _unflatten(known: _Known, leaves: Any) -> IndexedRows:
    values, leaf = leaves
    rows = IndexedRows(values, _from_leaf(leaf, values), known.num_rows, known.is_unique_in(leaf))
    if isinstance(leaf, jax.Array):
        object.__setattr__(rows, "_leaf", leaf)
    return rows


tree_util.register_pytree_with_keys(IndexedRows, _flatten_with_keys, _unflatten)
