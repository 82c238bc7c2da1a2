"""Plan, SparseTensor and IndexedRows as pytrees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any, NamedTuple, Never

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.interpreters import mlir

from .._catalog.rows import IndexedRows
from .._catalog.spec import PLAN
from ..errors import make_error
from ..plan import Plan
from ..sparse import SparseTensor
from .arrays import register_for_export
from .bags import to_jax

# -- Plan: arrays, and a static number of rows ------------------------------------------------------------------------


def _flatten_with_keys(plan: Plan) -> tuple[list[Any], int]:
    *arrays, num_rows = plan.parts()
    return [(tree_util.GetAttrKey(name), a) for name, a in zip(PLAN, arrays, strict=False)], num_rows


def _unflatten(num_rows: int, arrays: Any) -> Plan:
    return Plan.of(*arrays, num_rows)


tree_util.register_pytree_with_keys(Plan, _flatten_with_keys, _unflatten)
register_for_export(Plan)


# -- SparseTensor: indices and values, and a static dense shape -------------------------------------------------------


def _flatten_sparse_with_keys(sparse: SparseTensor) -> tuple[list[Any], tuple[int, ...]]:
    parts = (("indices", sparse.indices), ("values", sparse.values))
    return [(tree_util.GetAttrKey(name), part) for name, part in parts], sparse.shape


def _unflatten_sparse(shape: tuple[int, ...], parts: Any) -> SparseTensor:
    indices, values = parts
    return SparseTensor.of(indices, values, shape)


tree_util.register_pytree_with_keys(SparseTensor, _flatten_sparse_with_keys, _unflatten_sparse)
register_for_export(SparseTensor, from_json=tuple)


# -- IndexedRows: values and ids, and a static number of rows ---------------------------------------------------------

# As a leaf, the ids are an array of an extended dtype, which JAX can move, slice and stack, but not compute with. So a
# function of arrays that is mapped over a tree of gradients (scale, add, clip, psum, norm) raises an error that names
# `rowgrad.jax.rows`; with plain integers it would change the ids together with the values. Operators and methods of
# such a leaf raise `RowArithmeticError`; functions of JAX (`jnp.add`, `jax.lax.psum`) raise JAX's own error, which
# contains the name of the dtype. `IndexedRows.indices` itself is always integers.


def is_rows(value: Any) -> bool:
    """Return whether a value is a row-sparse gradient, which is a leaf of a tree of gradients."""
    return isinstance(value, IndexedRows)


# -- Ids as leaves ----------------------------------------------------------------------------------------------------


def _no_keys(*_: Any, **__: Any) -> Any:
    raise TypeError("row ids of a gradient are not random keys")


class _Carrier(NamedTuple):
    """An extended JAX dtype for ids of one dtype; typed random keys are the only ones that libraries can define."""

    bits: int
    impl: Any
    dtype: Any

    def wrap(self, ids: Any) -> Any:
        """Return ids as a leaf, with inverted bits, so that zeros (`jnp.zeros_like`) mean -1, which is not a row."""
        data = jax.lax.bitcast_convert_type(~ids, jnp.uint32)
        return jax.random.wrap_key_data(data[..., None] if self.bits == 32 else data, impl=self.impl)

    def unwrap(self, leaf: Any) -> Any:
        """Return the ids of a leaf."""
        data = jax.random.key_data(leaf)
        return ~jax.lax.bitcast_convert_type(data[..., 0] if self.bits == 32 else data, f"int{self.bits}")


@cache
def _carrier(bits: int) -> _Carrier:
    unsupported = dict.fromkeys(("seed", "split", "random_bits", "fold_in"), _no_keys)
    shape = (bits // 32,)
    tag = "row ids: use rowgrad.jax.rows.add, scale, clip, psum or on_rows"  # part of the errors that JAX raises
    impl = jax.extend.random.define_prng_impl(key_shape=shape, name=f"rowgrad_row_ids_{bits}", tag=tag, **unsupported)
    data = jax.ShapeDtypeStruct(shape, jnp.uint32)
    return _Carrier(bits, impl, jax.eval_shape(lambda d: jax.random.wrap_key_data(d, impl=impl), data).dtype)


# -- Leaves whose operators and methods raise RowArithmeticError ------------------------------------------------------


_OPERATORS = {
    "add": "add radd sub rsub",
    "scale": "neg mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod matmul rmatmul",
    "global_norm": "abs pow rpow",
    "on_rows": "pos round invert and rand or ror xor rxor lshift rlshift rshift rrshift lt le gt ge",
}
_METHODS = {
    "global_norm": "conj conjugate dot max mean min prod ptp std sum var",
    "clip": "clip",
    "on_rows": "all any argmax argmin argsort astype cumprod cumsum round sort view",
}
_PROPERTIES = {"global_norm": "real imag"}


def _rejecting(operation: str, function: str) -> Callable[..., Never]:
    def reject(*_: Any, **__: Any) -> Never:
        raise make_error("row_ids_arithmetic", what=operation, function=function)

    return reject


def _members() -> dict[str, Any]:
    """Return the attributes of a guarded leaf: arithmetic raises."""
    found: dict[str, Any] = {"__slots__": ()}
    for function, names in _OPERATORS.items():
        found |= {f"__{name}__": _rejecting(f"the operator {name}", function) for name in names.split()}
    for function, names in _METHODS.items():
        found |= {name: _rejecting(f"the method {name}", function) for name in names.split()}
    for function, names in _PROPERTIES.items():
        found |= {name: property(_rejecting(f"the attribute {name}", function)) for name in names.split()}
    return found


_GUARDED: dict[type, type | None] = {}  # JAX's class of leaves -> the class of guarded leaves; None: not guarded
_guarding = Lock()


def _guarded_class(kind: type) -> type | None:
    with _guarding:
        if kind not in _GUARDED:
            members = _members()
            is_traced = issubclass(kind, jax.core.Tracer)
            if not is_traced:
                members["__reduce__"] = _reduced
            made = type("RowIds", (kind,), members)
            _GUARDED[kind] = made if is_traced or _is_known_to_jax(made, kind) else None
            _GUARDED[made] = None
        return _GUARDED[kind]


def _is_known_to_jax(made: type, kind: type) -> bool:
    """Register a subclass of JAX's typed keys in JAX's tables; return False if this version has other tables."""
    keys = sys.modules[kind.__module__]
    try:
        nodes = getattr(keys, "tree_util_internal", keys.tree_util).dispatch_registry
        tables = [keys.core.pytype_aval_mappings, keys.pxla.shard_arg_handlers]
        handlers = [table[kind] for table in tables]
        flatten, unflatten = keys.prngkeyarray_flatten, keys.prngkeyarray_unflatten
        constant = keys.key_array_constant_handler
        canonical = getattr(keys.dtypes, "register_canonicalize_value_handler", None)
        if canonical is None:
            tables.append(keys.xla.canonicalize_dtype_handlers)
            handlers.append(tables[-1][kind])
    except (AttributeError, KeyError):
        return False
    for table, handler in zip(tables, handlers, strict=True):
        table[made] = handler
    if canonical is not None:
        canonical(made, None)
    mlir.register_constant_handler(made, constant)
    nodes.register_node(made, flatten, unflatten)
    return True


def _guard(leaf: Any) -> Any:
    """Change the class of a leaf of row ids so that arithmetic raises RowArithmeticError; return the leaf."""
    kind = type(leaf)
    if _GUARDED.get(kind, kind) is None or not isinstance(leaf, jax.Array) or _carrier_of(leaf) is None:
        return leaf
    made = _guarded_class(kind)
    if made is not None:
        try:
            leaf.__class__ = made
        except TypeError:  # this JAX does not allow it for tracers; its own errors name rowgrad.jax.rows
            _GUARDED[kind] = None
    return leaf


def _reduced(leaf: Any) -> tuple[Any, ...]:
    """Pickle a leaf."""
    data = np.asarray(jax.random.key_data(leaf))
    return _restored, (32 * data.shape[-1], data)


def _restored(bits: int, data: Any) -> Any:
    """Unpickle a leaf."""
    return _guard(jax.random.wrap_key_data(data, impl=_carrier(bits).impl))


def _to_leaf(ids: Any) -> Any:
    """Return ids as a leaf; anything but an array of integers, or its type, is unchanged."""
    if not isinstance(ids, jax.Array | np.ndarray | jax.ShapeDtypeStruct) or not jnp.issubdtype(ids.dtype, jnp.integer):
        return ids
    if isinstance(ids, jax.ShapeDtypeStruct):
        return _retyped(ids, _carrier(64 if ids.dtype == np.int64 else 32).dtype)
    ids = to_jax(ids, "indices")
    if ids.dtype not in (np.int32, np.int64):
        ids = ids.astype(jnp.result_type(int))
    return _carrier(ids.dtype.itemsize * 8).wrap(ids)


def _from_leaf(leaf: Any, values: Any) -> Any:
    """Return the ids of a leaf, the inverse. With NumPy values they become NumPy arrays, as for `jax.device_get`."""
    is_type = isinstance(leaf, jax.ShapeDtypeStruct)
    if not is_type and not isinstance(leaf, jax.Array):
        return leaf
    carrier = _carrier_of(leaf)
    if carrier is None:
        return leaf
    if is_type:
        return _retyped(leaf, np.dtype(f"int{carrier.bits}"))
    ids = carrier.unwrap(leaf)
    is_numpy = isinstance(values, np.ndarray) and not isinstance(ids, jax.core.Tracer)
    return np.asarray(ids) if is_numpy else ids


def _carrier_of(leaf: Any) -> _Carrier | None:
    """Return the extended dtype of an array of ids or of its type; None for anything else."""
    return next((c for c in map(_carrier, (32, 64)) if leaf.dtype == c.dtype), None)


def _retyped(struct: jax.ShapeDtypeStruct, dtype: Any) -> jax.ShapeDtypeStruct:
    if hasattr(struct, "update"):  # not in older versions
        return struct.update(dtype=dtype)
    return jax.ShapeDtypeStruct(struct.shape, dtype, sharding=struct.sharding)


def _leaf_of(rows: IndexedRows) -> Any:
    """Return the ids as a leaf, always the same object, as `equinox.tree_at` expects."""
    if rows._leaf is not None:
        return _guard(rows._leaf)
    leaf = _guard(_to_leaf(rows.indices))
    # A leaf made in a trace inside that of the ids must not outlive it in these rows.
    if not isinstance(leaf, jax.core.Tracer) or leaf._trace is getattr(rows.indices, "_trace", None):
        object.__setattr__(rows, "_leaf", leaf)
    return leaf


@dataclass(frozen=True, slots=True)
class _Known:
    """The static part of row-sparse gradients. `count`, the number of ids, is not part of its equality."""

    num_rows: int
    is_unique: bool
    count: int | None = field(compare=False)

    def is_unique_in(self, ids: Any) -> bool:
        """Return whether ids are still unique after a transformation of the tree: only if their number is unchanged.

        Concatenating gradients, flattening a stack of them, `all_gather` and the `out_specs` of `shard_map` can put
        equal ids into one list.
        """
        shape: tuple[int, ...] = getattr(ids, "shape", ())
        return self.is_unique and (len(shape) != 1 or self.count in (None, shape[0]))


def _flatten_rows_with_keys(rows: IndexedRows) -> tuple[list[Any], _Known]:
    keyed = [(tree_util.GetAttrKey("values"), rows.values), (tree_util.GetAttrKey("indices"), _leaf_of(rows))]
    shape: tuple[int, ...] = getattr(rows.indices, "shape", ())
    return keyed, _Known(rows.num_rows, rows.is_unique, shape[-1] if shape else None)


def _unflatten_rows(known: _Known, leaves: Any) -> IndexedRows:
    values, leaf = leaves
    rows = IndexedRows(values, _from_leaf(leaf, values), known.num_rows, known.is_unique_in(leaf))
    if isinstance(leaf, jax.Array):
        object.__setattr__(rows, "_leaf", leaf)
    return rows


tree_util.register_pytree_with_keys(IndexedRows, _flatten_rows_with_keys, _unflatten_rows)


def _not_exported(_: _Known) -> Never:
    raise make_error("rows_exported")  # JAX has no name for the dtype of their ids in a serialized program


register_for_export(IndexedRows, to_json=_not_exported)
