"""Mesh axes over which arrays vary inside `shard_map`: newer versions of JAX track them in types.

The result of an op varies over the axes of all its operands. Like JAX's own operations, an op first casts operands that
vary over fewer axes. The transpose of that cast is the sum over the axes; without it the gradient of an array that all
devices share would be that of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

_NONE: frozenset[Any] = frozenset()


def axes_of(x: Any) -> frozenset[Any]:
    """Return the axes over which an array or its type varies; the empty set if this JAX does not track them."""
    typeof = getattr(jax, "typeof", None)
    if typeof is None:
        return _NONE
    aval = x if isinstance(x, jax.core.ShapedArray) else typeof(x)
    manual = getattr(aval, "manual_axis_type", None)
    axes: frozenset[Any] = frozenset(getattr(aval, "vma", _NONE) if manual is None else manual.varying)
    return axes


def manual_axes() -> tuple[Any, ...]:
    """Return the mesh axes of the `shard_map` or `pmap` that is being traced."""
    get_mesh = getattr(jax.sharding, "get_abstract_mesh", None)
    if get_mesh is None:
        return tuple(getattr(jax.core, "unsafe_get_axis_names_DO_NOT_USE", tuple)())
    return tuple(getattr(get_mesh(), "manual_axes", ()))


def unchecked_axes() -> frozenset[Any]:
    """Return the manual axes over which JAX does not track variation: `check_vma=False`, `pmap`, older versions."""
    return frozenset(name for name in manual_axes() if not axes_of(jax.lax.axis_index(name)))


def widen(x: Any, axes: frozenset[Any]) -> Any:
    """Return an array that counts as varying over these axes too."""
    missing = tuple(axes - axes_of(x)) if axes else ()
    if missing and hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing) if missing and hasattr(jax.lax, "pvary") else x


def shared_by(operands: Sequence[Any]) -> frozenset[Any]:
    """Return all axes over which any of these varies."""
    return _NONE.union(*map(axes_of, operands))


def together(operands: Sequence[Any]) -> list[Any]:
    """Return the operands, all varying over the same axes."""
    axes = shared_by(operands)
    return [widen(x, axes) for x in operands] if axes else list(operands)


def typed(shape: tuple[Any, ...], dtype: Any, operands: Sequence[Any]) -> Any:
    """Return the type of a result, which varies over the axes of its operands."""
    widest = max(operands, key=lambda x: len(axes_of(x)), default=None)
    if widest is None or not axes_of(widest):
        return jax.core.ShapedArray(shape, dtype)
    sharding = widest.sharding.update(spec=jax.sharding.PartitionSpec(*(None for _ in shape)))
    return widest.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)
