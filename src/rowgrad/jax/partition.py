"""How XLA splits a kernel call among devices when arrays are sharded under `jit`, without `shard_map`.

XLA cannot look inside a kernel, so without a partitioning rule it gathers all operands, including the table, on every
device. A rule names the dimensions of a call and says which of them may stay split: columns, which are independent, and
bags that are rows of a matrix. A table split by rows is an error. Other dimensions (ids and gradients of a batch) are
gathered, so that sums have the order and the bits of one device.
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
if hasattr(jax.sharding, "use_abstract_mesh"):  # this JAX has shardings in types; arrays local to a device have none
    _no_mesh = partial(jax.sharding.use_abstract_mesh, jax.sharding.AbstractMesh((), ()))
Dims = tuple[str, ...]  # a name for each dimension; equal names have equal sizes
ROWS = "rows"  # rows of a table, never split
IDS = "ids"  # flat ids, usually gathered


class Rule(NamedTuple):
    """A partitioning rule: the dimensions of a call, and those that may stay split, in order of priority."""

    name: str
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    splittable: Dims
    warn_on_gather: bool = False  # warn if sharded ids are gathered

    @property
    def tables(self) -> list[int]:
        """The positions of the operands that are tables."""
        return [i for i, dims in enumerate(self.operands) if dims[:1] == (ROWS,)]


def columns(rank: int) -> Dims:
    """Return names for all dimensions of a table but the first."""
    return tuple(f"column{i}" for i in range(rank - 1))


def rule_for(op: Op, names: Sequence[str], operands: Sequence[Any], results: Sequence[Any]) -> Rule | None:
    """Return the rule of a kernel op for operands of these shapes; None for ops whose operands are small."""
    mesh = None if op.kernel is None else KERNELS[op.kernel].mesh
    if mesh is None or any(0 in x.shape for x in (*operands, *results)):
        return None
    inner = columns(max(len(x.shape) for n, x in zip(names, operands, strict=True) if n in mesh.arguments))
    dims: list[Dims] = []
    for name, x in zip(names, operands, strict=True):
        if name in mesh.arguments:
            first = mesh.arguments[name]
            if mesh.splits_ids and (len(x.shape) == 1 or x.shape[0] <= operands[1].shape[0]):
                first = name  # not larger than the output: weights, or numbers of bags
            dims.append((first, *inner))
        else:
            first = IDS if name in ("indices", "segment_ids", "weights") else name
            dims.append(tuple(first + (str(i) if i else "") for i in range(len(x.shape))))
    results_dims = [(mesh.result, *(inner if len(x.shape) > 1 else ())) for x in results]
    splittable = (*inner, IDS) if mesh.splits_ids else inner
    return Rule(op.name, tuple(dims), tuple(results_dims), splittable, mesh.gathers_ids)


# -- Mesh axes of each dimension --------------------------------------------------------------------------------------


def choose_split(
    rule: Rule, specs: Sequence[Any], shapes: Sequence[Any], mesh: Any, strict: bool = True
) -> dict[str, Any]:
    """Return the mesh axes over which each splittable dimension stays split. Operands have priority over results.

    Raises:
        InvalidArgumentError: If `strict` and a table is split along a dimension that cannot stay split.
    """
    sharded = [
        (i, dim, size, axes if isinstance(axes, tuple) else (axes,))
        for i, (dims, spec, shape) in enumerate(zip([*rule.operands, *rule.results], specs, shapes, strict=False))
        for dim, size, axes in zip(dims, shape, tuple(spec or ()), strict=False)
        if axes not in (None, (), PartitionSpec.UNCONSTRAINED)
    ]
    split: dict[str, Any] = {}
    used: set[Any] = set()
    for splittable in rule.splittable:
        for _, dim, size, axes in sharded:
            if dim != splittable or dim in split:
                continue
            if size % prod(mesh.shape[a] for a in axes) == 0 and not used & set(axes):
                split[dim] = axes
                used |= set(axes)
    for i, dim, _, axes in sharded:
        if strict and i in rule.tables and split.get(dim) != axes:
            what = "rows" if dim == ROWS else "columns"
            raise make_error("table_sharded", value=what, bound=", ".join(map(str, axes)))
    return split


def partition_specs(dims: Sequence[Dims], split: dict[str, Any]) -> list[PartitionSpec]:
    """Return the partition specs of arrays with these dimensions."""
    return [PartitionSpec(*(split.get(d) for d in each)) for each in dims]


def check_shardings(rule: Rule | None, operands: Sequence[Any]) -> None:
    """Reject split tables at trace time, if this JAX has shardings in types."""
    if rule is not None:
        types = [explicit_sharding(x) for x in operands]
        mesh = next((t.mesh for t in types if t is not None), None)
        if mesh is not None:
            choose_split(rule, [None if t is None else t.spec for t in types], [x.shape for x in operands], mesh)


def replicate(x: Any) -> Any:
    """Return an array whose type has no split dimension."""
    sharding = explicit_sharding(x)
    if sharding is None or all(axes is None for axes in sharding.spec):
        return x
    return jax.sharding.reshard(x, sharding.update(spec=PartitionSpec(*(None for _ in x.shape))))


def explicit_sharding(x: Any) -> Any:
    """Return the sharding in the type of an array; None if it has none."""
    if not _HAS_EXPLICIT:
        return None
    sharding = getattr(getattr(x, "aval", x), "sharding", None)
    return None if sharding is None or sharding.mesh.empty else sharding


# JAX before 0.7 has shardings in types, also of arrays that `jit` splits by itself, but not the functions for them.
_HAS_EXPLICIT = hasattr(jax.sharding, "reshard")


# -- Lowering for several devices -------------------------------------------------------------------------------------


def register(primitive: Any) -> None:
    """Make JAX lower a primitive once its devices are known: rules apply to a mesh of them."""
    _needs_devices.add(primitive)


def is_partitioned(context: Any) -> bool:
    """Return whether XLA will partition the program being lowered automatically."""
    where = context.module_context.axis_context
    return not hasattr(where, "manual_axes") and (getattr(where, "num_devices", None) or 1) > 1


def lower(
    context: Any,
    operands: Sequence[Any],
    run: Callable[..., Any],
    rule: Rule,
    is_bad: Callable[..., Any] | None = None,
) -> Any:
    """Lower `run`, a function of arrays that returns a tuple of arrays, with its partitioning rule.

    If devices have different ids, a kernel that rejects those of one device ends the program there. The others would
    wait for it in the next collective until XLA aborts the process. So `is_bad` returns whether a kernel will reject a
    device's operands; if one will, all devices run the call on the gathered operands, which raises on all of them.
    """
    with_rule = custom_partitioning(run)
    x64 = bool(jax.config.jax_enable_x64)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        arrays = [*arguments, *results]
        shardings = [x.sharding for x in arrays]
        if any(not isinstance(s, NamedSharding) and not s.is_fully_replicated for s in shardings):
            raise make_error("mesh_unknown", argument=rule.name)
        split = choose_split(rule, [getattr(s, "spec", None) for s in shardings], [x.shape for x in arrays], mesh)
        if rule.warn_on_gather:
            _warn_about_gathered_ids(rule, shardings)
        summed = [axes for d, axes in split.items() if not any(d in dims for dims in rule.results)]

        def run_on_device(*local: Any) -> Any:
            with _x64(x64), _no_mesh():  # XLA calls this in its own thread, which has other settings
                outputs = run(*(local if is_bad is None else _check_everywhere(local, run, is_bad, rule, split)))
            return tuple(jax.lax.psum(x, sum(summed, ())) for x in outputs) if summed else outputs

        inputs, outputs = (
            tuple(NamedSharding(mesh, s) for s in partition_specs(dims, split))
            for dims in (rule.operands, rule.results)
        )
        return mesh, run_on_device, outputs, inputs

    def infer(mesh: Any, arguments: Any, results: Any) -> Any:
        specs = [getattr(x.sharding, "spec", None) for x in arguments]
        split = choose_split(rule, specs, [x.shape for x in arguments], mesh, strict=False)  # XLA aborts if this raises
        return tuple(NamedSharding(mesh, s) for s in partition_specs(rule.results, split))

    text = " -> ".join(", ".join(" ".join(d) for d in dims) for dims in (rule.operands, rule.results))
    with_rule.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=text)
    avals = {f"avals_{k}": [_without_sharding(a) for a in getattr(context, f"avals_{k}")] for k in ("in", "out")}
    return mlir.lower_fun(with_rule, multiple_results=True)(context.replace(**avals), *operands)


def _check_everywhere(
    local: Sequence[Any], run: Callable[..., Any], is_bad: Callable[..., Any], rule: Rule, split: dict[str, Any]
) -> list[Any]:
    """Return a device's operands; the ids depend on a collective check of the operands of all devices."""
    batch_axes = {d: axes for d, axes in split.items() if d in (IDS, "bags")}
    if not batch_axes:
        return list(local)

    def raise_everywhere() -> Any:
        whole = list(local)
        for i, dims in enumerate(rule.operands):
            for k, d in enumerate(dims):
                if d in batch_axes:
                    whole[i] = jax.lax.all_gather(whole[i], batch_axes[d], axis=k, tiled=True)
        return zero_after(run(*whole)[0].ravel()[0]).astype("int32")

    axes: tuple[Any, ...] = sum(batch_axes.values(), ())
    bad = jax.lax.pmax(is_bad(*local).astype("int32"), axes)
    zero = jax.lax.cond(bad > 0, raise_everywhere, lambda: jax.numpy.zeros((), "int32"))
    return [local[0], *(x + zero.astype(x.dtype) for x in local[1:2]), *local[2:]]


@jax.custom_batching.custom_vmap
def zero_after(number: Any) -> Any:
    """Return False, computed from the number in a way that no compiler simplifies: a data dependency.

    For a batch it depends on one of the numbers only, so that unbatched ids stay unbatched.
    """
    bits = jax.lax.bitcast_convert_type(number, f"int{number.dtype.itemsize * 8}").astype("int32")
    return bits * bits == 7 * (bits >> 16) * (bits >> 16) - 1  # modulo 4, the left is 0 or 1 and the right 2 or 3


@zero_after.def_vmap
def _(axis_size: int, _: Any, numbers: Any) -> tuple[Any, bool]:
    return (zero_after(numbers[0]) if axis_size else jax.numpy.zeros((), bool)), False


def _without_sharding(aval: Any) -> Any:
    """Return the type without its sharding: arrays in a partitioned call are local."""
    return jax.core.ShapedArray(aval.shape, aval.dtype)


def _warn_about_gathered_ids(rule: Rule, shardings: Sequence[Any]) -> None:
    for dims, sharding in zip(rule.operands, shardings, strict=False):
        if dims == (IDS,) and any(axes is not None for axes in getattr(sharding, "spec", ())):
            warnings.warn(
                f"{rule.name}: ids sharded by {sharding.spec} are gathered on every device, because a bag may be split"
                " over shards. Pass ids to embedding_bag as a matrix with one bag per row, or call it in shard_map.",
                stacklevel=2,
            )
            return
