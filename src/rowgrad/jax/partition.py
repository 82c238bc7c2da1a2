"""How XLA splits a kernel call among devices when arrays are sharded under `jit`, without `shard_map`.

XLA cannot see into a kernel: without a rule it gathers all operands on every device, the table first of all. A rule
names the dimensions of a call. Those it keeps may be split: columns, because kernels treat them alike, and bags that
are rows of a matrix. Rows of a table may not be split, which is an error. Everything else, ids and gradients of a
batch, is gathered, so that sums have the order, and the bits, of one device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import jax
from jax._src.dispatch import prim_requires_devices_during_lowering as _needs_devices  # JAX has no public name for it
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from .._catalog.kernels import KERNELS
from .._catalog.spec import Op
from ..errors import make_error

_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
_no_mesh: Any = nullcontext
if hasattr(jax.sharding, "use_abstract_mesh"):  # where JAX has shardings in types: arrays of one device have none
    _no_mesh = partial(jax.sharding.use_abstract_mesh, jax.sharding.AbstractMesh((), ()))
Dims = tuple[str, ...]  # a name for each dimension; equal names have equal sizes
ROWS, IDS = "rows", "ids"  # of a table, which are never split; of flat ids, which are gathered


class Rule(NamedTuple):
    """The dimensions of a call, and which of them may stay split, the most important first."""

    name: str
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    kept: Dims
    warns: bool = False  # whether gathering ids deserves a warning

    @property
    def tables(self) -> list[int]:
        """The operands that are tables."""
        return [i for i, dims in enumerate(self.operands) if dims[:1] == (ROWS,)]


def columns(rank: int) -> Dims:
    """Names for all dimensions of a table but its first."""
    return tuple(f"column{i}" for i in range(rank - 1))


def rule_of(op: Op, names: Sequence[str], operands: Sequence[Any], results: Sequence[Any]) -> Rule | None:
    """The rule of a kernel op on operands of these shapes; None for ops whose operands are small."""
    mesh = None if op.kernel is None else KERNELS[op.kernel].mesh
    if mesh is None or any(0 in x.shape for x in (*operands, *results)):
        return None
    inner = columns(max(len(x.shape) for n, x in zip(names, operands, strict=True) if n in mesh.arguments))
    dims: list[Dims] = []
    for name, x in zip(names, operands, strict=True):
        if name in mesh.arguments:
            first = mesh.arguments[name]
            if mesh.splits_ids and (len(x.shape) == 1 or x.shape[0] <= operands[1].shape[0]):
                first = name  # not larger than what comes out: weights, or numbers of bags
            dims.append((first, *inner))
        else:
            same = name in ("indices", "segment_ids", "weights")
            dims.append(tuple((IDS if same else name) + (str(i) if i else "") for i in range(len(x.shape))))
    results_dims = [(mesh.result, *(inner if len(x.shape) > 1 else ())) for x in results]
    kept = (*inner, IDS) if mesh.splits_ids else inner
    return Rule(op.name, tuple(dims), tuple(results_dims), kept, mesh.gathers_ids)


# -- which axes go where ----------------------------------------------------------------------------------------------


def split_of(rule: Rule, specs: Sequence[Any], shapes: Sequence[Any], mesh: Any, strict: bool = True) -> dict[str, Any]:
    """The mesh axes over which each dimension that is kept stays split. Operands come before results.

    Raises:
        InvalidArgumentError: If `strict`, a dimension of a table is split that is not kept.
    """
    every = [*rule.operands, *rule.results]
    given = [
        (i, dim, size, axes if isinstance(axes, tuple) else (axes,))
        for i, (dims, spec, shape) in enumerate(zip(every, specs, shapes, strict=False))
        for dim, size, axes in zip(dims, shape, tuple(spec or ()), strict=False)
        if axes not in (None, (), PartitionSpec.UNCONSTRAINED)
    ]
    found: dict[str, Any] = {}
    used: set[Any] = set()
    for kept in rule.kept:
        for _, dim, size, axes in given:
            if dim != kept or kept in found:
                continue
            if size % prod(mesh.shape[a] for a in axes) == 0 and not used & set(axes):
                found[kept] = axes
                used |= set(axes)
    for i, dim, _, axes in given:
        if strict and i in rule.tables and found.get(dim) != axes:
            what = "rows" if dim == ROWS else "columns"
            raise make_error("table_sharded", value=what, bound=", ".join(map(str, axes)))
    return found


def specs_of(dims: Sequence[Dims], split: dict[str, Any]) -> list[PartitionSpec]:
    """The partition specs of arrays with these dimensions."""
    return [PartitionSpec(*(split.get(d) for d in each)) for each in dims]


def check_types(rule: Rule | None, operands: Sequence[Any]) -> None:
    """Reject split tables while JAX traces, where it has shardings in types."""
    if rule is not None:
        types = [sharding_of(x) for x in operands]
        mesh = next((t.mesh for t in types if t is not None), None)
        if mesh is not None:
            split_of(rule, [None if t is None else t.spec for t in types], [x.shape for x in operands], mesh)


def gathered(x: Any) -> Any:
    """An array without a sharding in its type, as it is where JAX has none in types."""
    known = sharding_of(x)
    if known is None or all(axes is None for axes in known.spec):
        return x
    return jax.sharding.reshard(x, known.update(spec=PartitionSpec(*(None for _ in x.shape))))


def sharding_of(x: Any) -> Any:
    """The sharding in the type of an array; None where JAX has none in types."""
    found = getattr(getattr(x, "aval", x), "sharding", None)
    return None if found is None or found.mesh.empty else found


# -- in a program of several devices ----------------------------------------------------------------------------------


def register(primitive: Any) -> None:
    """Have JAX lower a primitive for the devices it is compiled for: rules are for a mesh of them."""
    _needs_devices.add(primitive)


def is_split(context: Any) -> bool:
    """Whether XLA will split the program that is lowered among devices by itself."""
    where = context.module_context.axis_context
    return not hasattr(where, "manual_axes") and (getattr(where, "num_devices", None) or 1) > 1


def lower(
    context: Any,
    operands: Sequence[Any],
    run: Callable[..., Any],
    rule: Rule,
    is_bad: Callable[..., Any] | None = None,
) -> Any:
    """XLA's code for `run`, a function of arrays to a tuple of arrays, with its rule.

    Where devices have different ids, a kernel that refuses those of one device ends the program there, and the others
    would wait for it in the next exchange, until XLA ends the process. So `is_bad` says of a device's operands whether
    a kernel will refuse them, and then all devices run the call of all of them, which is refused everywhere.
    """
    with_rule = custom_partitioning(run)
    x64 = bool(jax.config.jax_enable_x64)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        arrays = [*arguments, *results]
        shardings = [x.sharding for x in arrays]
        if any(not isinstance(s, NamedSharding) and not s.is_fully_replicated for s in shardings):
            raise make_error("mesh_unknown", argument=rule.name)
        split = split_of(rule, [getattr(s, "spec", None) for s in shardings], [x.shape for x in arrays], mesh)
        if rule.warns:
            _warn_of_gathered_ids(rule, shardings)
        summed = [axes for d, axes in split.items() if not any(d in dims for dims in rule.results)]

        def on_each(*local: Any) -> Any:
            with _x64(x64), _no_mesh():  # XLA calls this in a thread of its own, with settings of its own
                found = run(*(local if is_bad is None else _checked(local, run, is_bad, rule, split)))
            return tuple(jax.lax.psum(x, sum(summed, ())) for x in found) if summed else found

        given, out = ([NamedSharding(mesh, s) for s in specs_of(d, split)] for d in (rule.operands, rule.results))
        return mesh, on_each, tuple(out), tuple(given)

    def infer(mesh: Any, arguments: Any, results: Any) -> Any:
        specs = [getattr(x.sharding, "spec", None) for x in arguments]
        split = split_of(rule, specs, [x.shape for x in arguments], mesh, strict=False)  # XLA aborts if this raises
        return tuple(NamedSharding(mesh, s) for s in specs_of(rule.results, split))

    text = " -> ".join(", ".join(" ".join(d) for d in dims) for dims in (rule.operands, rule.results))
    with_rule.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=text)
    bare = {f"avals_{k}": [_bare(a) for a in getattr(context, f"avals_{k}")] for k in ("in", "out")}
    return mlir.lower_fun(with_rule, multiple_results=True)(context.replace(**bare), *operands)


def _checked(
    local: Sequence[Any], run: Callable[..., Any], is_bad: Callable[..., Any], rule: Rule, split: dict[str, Any]
) -> list[Any]:
    """A device's operands, those after the table waiting for what all devices say of theirs."""
    apart = {d: axes for d, axes in split.items() if d in (IDS, "bags")}
    if not apart:
        return list(local)
    everywhere: tuple[Any, ...] = sum(apart.values(), ())

    def refused() -> Any:
        whole = list(local)
        for i, dims in enumerate(rule.operands):
            for k, d in enumerate(dims):
                if d in apart:
                    whole[i] = jax.lax.all_gather(whole[i], apart[d], axis=k, tiled=True)
        return zero_after(run(*whole)[0].ravel()[0]).astype("int32")

    bad = jax.lax.pmax(is_bad(*local).astype("int32"), everywhere)
    zero = jax.lax.cond(bad > 0, refused, lambda: jax.numpy.zeros((), "int32"))
    return [local[0], *(x + zero.astype(x.dtype) for x in local[1:2]), *local[2:]]


@jax.custom_batching.custom_vmap
def zero_after(number: Any) -> Any:
    """False, which the compiler cannot have before the number. Of a batch one number is enough: ids stay shared."""
    bits = jax.lax.bitcast_convert_type(number, f"int{number.dtype.itemsize * 8}").astype("int32")
    return bits * bits == 7 * (bits >> 16) * (bits >> 16) - 1  # squares are 0 or 1 modulo 4, the other side 2 or 3


@zero_after.def_vmap
def _(axis_size: int, _: Any, numbers: Any) -> tuple[Any, bool]:
    return (zero_after(numbers[0]) if axis_size else jax.numpy.zeros((), bool)), False


def _bare(aval: Any) -> Any:
    """A type without a sharding: inside a partitioned call arrays are local."""
    return jax.core.ShapedArray(aval.shape, aval.dtype)


def _warn_of_gathered_ids(rule: Rule, shardings: Sequence[Any]) -> None:
    for dims, sharding in zip(rule.operands, shardings, strict=False):
        if dims == (IDS,) and any(axes is not None for axes in getattr(sharding, "spec", ())):
            warnings.warn(
                f"{rule.name}: ids sharded {sharding.spec} are gathered on every device, because their shards may split"
                " bags; pass ids as a matrix with a bag per row to embedding_bag, or call it inside shard_map",
                stacklevel=2,
            )
            return
