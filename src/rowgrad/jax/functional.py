"""Lookups of bags in JAX: functions over ids, matrices and sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._runtime.bags import check_lengths
from ..errors import make_error
from ..lookup import (
    check_default_id,
    check_rows_are_vectors,
    clip_rows,
    combiner_suffix,
    flat_shape,
    row_number,
    smallest_positive,
)
from ..plan import Plan
from ..raw_ops import OPS
from ..sparse import SparseTensor
from . import masked_bags, partition
from .arrays import as_jax, is_jax, is_traced
from .bags import (
    Bags,
    active_mask,
    are_traced,
    as_integers,
    fill_empty_bags,
    read_bags,
    read_ignore_id,
    read_matrix,
    select_ids,
    to_jax,
)
from .fault_errors import current_ids_shape, row_lookup
from .partition import Rule, replicate
from .table import Table, Tap, bags_of
from .varying import manual_axes

# -- A lookup of a matrix of ids as one primitive, which XLA may split by bags ----------------------------------------

# Each device computes flat ids and segment ids for its own bags. Derivatives are those of the ops in `Call.run`.


class Call(NamedTuple):
    """The options of a lookup."""

    kind: str
    ignored: tuple[int | None, ...]
    default_id: int | None
    max_norm: float | None
    ids_shape: tuple[int, ...] | None = None  # in `table[ids]`

    def run(self, table: Any, ids: Any, *weights: Any) -> tuple[Any]:
        """Run the lookup: [bags, …]."""
        bags = read_matrix(ids, weights[0] if weights else None)
        mask = active_mask(bags.indices, self.ignored)
        with row_lookup(self.ids_shape):
            return (look_up(table, bags, self.kind, mask, self.default_id, self.max_norm),)

    def is_bad(self, table: Any, ids: Any, *_: Any) -> Any:
        """Return whether an active id is out of range."""
        wrong = (ids < 0) | (ids >= table.shape[0])
        mask = active_mask(ids, self.ignored)
        return (wrong if mask is None else wrong & mask).any()


def may_be_split(ids: Any) -> bool:
    """Return whether XLA may have to split a lookup of these ids; inside `shard_map` ids are local already."""
    return isinstance(ids, jax.core.Tracer) and ids.ndim == 2 and 0 not in ids.shape and not manual_axes()


def bind(call: Call, table: Any, ids: Any, weights: Any) -> Any:
    """Bind the primitive: combine the rows of every bag."""
    return BAGS.bind(table, ids, *(() if weights is None else (weights,)), call=call)[0]


def look_up(table: Any, bags: Bags, kind: str, mask: Any, default_id: int | None, max_norm: float | None) -> Any:
    """Look up traced ids: all, or those where the mask is true; with `default_id` in empty bags."""
    if mask is None and default_id is None:
        if max_norm is not None:
            table, bags = masked_bags.clip_to_norm(table, bags._replace(indices=to_jax(bags.indices, "ids")), max_norm)
        return bags_of(table, kind, bags.indices, bags.segment_ids, bags.num_bags, bags.weights)
    return masked_bags.look_up(table, masked_bags.mask_and_fill(bags, mask, default_id), kind, max_norm)


# -- The primitive ----------------------------------------------------------------------------------------------------


def _rule(call: Call, operands: Sequence[Any]) -> Rule:
    inner = partition.columns(len(operands[0].shape))
    dims = ((partition.ROWS, *inner), *((("bags", "places"),) * (len(operands) - 1)))
    columns = inner if call.max_norm is None else ()  # the norm of a row needs all of its columns
    return Rule("embedding_bag", dims, (("bags", *inner),), (*columns, "bags"))


def _abstract(*operands: Any, call: Call) -> list[Any]:
    (output,) = jax.eval_shape(call.run, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands))
    aval = jax.core.ShapedArray(output.shape, output.dtype)
    shardings = [partition.explicit_sharding(x) for x in operands]
    sharding = next((s for s in shardings if s is not None), None)
    if sharding is None:
        return [aval]
    rule = _rule(call, operands)
    specs = [None if s is None else s.spec for s in shardings]
    split = partition.choose_split(rule, specs, [x.shape for x in operands], sharding.mesh)
    return [aval.update(sharding=sharding.update(spec=partition.partition_specs(rule.results, split)[0]))]


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    if partition.is_partitioned(context) and 0 not in context.avals_in[0].shape:
        return partition.lower(context, operands, call.run, _rule(call, context.avals_in), call.is_bad)
    return mlir.lower_fun(call.run, multiple_results=True)(context, *operands)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    (output,) = BAGS.bind(*primals, call=call)
    active = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def run(*active_primals: Any) -> Any:
        operands = list(primals)
        for i, x in zip(active, active_primals, strict=True):
            operands[i] = x
        return call.run(operands[0], *map(partition.replicate, operands[1:]))[0]

    _, tangent = jax.jvp(run, [primals[i] for i in active], [tangents[i] for i in active])
    sharding = partition.explicit_sharding(output)
    if sharding is not None:
        tangent = jax.sharding.reshard(tangent, sharding)
    return [output], [tangent]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    axes = [d if isinstance(d, int) else None for d in dims]
    return jax.vmap(call.run, in_axes=axes)(*operands), [0]


BAGS = Primitive("rowgrad_bags")
BAGS.multiple_results = True
BAGS.def_impl(lambda *operands, call: call.run(*operands))
BAGS.def_abstract_eval(_abstract)
mlir.register_lowering(BAGS, mlir.lower_fun(lambda *operands, call: call.run(*operands), multiple_results=True))
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(BAGS, _lower, platform=_platform)
partition.register(BAGS)
ad.primitive_jvps[BAGS] = _jvp
batching.primitive_batchers[BAGS] = _batch


# -- Lookups as functions of JAX arrays -------------------------------------------------------------------------------


def embedding_bag(
    table: Any,
    ids: Any,
    offsets: Any = None,
    *,
    segment_ids: Any = None,
    num_bags: int | None = None,
    per_sample_weights: Any = None,
    combiner: str = "mean",
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    default_id: int | None = None,
    ignore_id: int | None = None,
    max_norm: float | None = None,
    plan: Plan | None = None,
) -> Any:
    """Look up and combine the rows of every bag: [bags, …] from a table [rows, …].

    Sums of 16-bit rows are accumulated in float32. Under `jit` only sizes must be known: pass `num_bags` with
    `segment_ids`.

    Args:
        table: An array or a `Table`. Inside `value_and_rows` the gradient of a `Table` is row-sparse, and neither
            `max_norm` nor `plan` is supported.
        ids: A vector with `offsets` or `segment_ids`, a matrix (one bag per row), or a rowgrad SparseTensor.
        offsets: Where each bag begins in a vector of ids.
        segment_ids: The bag of each id of a vector, ascending.
        num_bags: The number of bags; by default the last segment id plus one.
        per_sample_weights: A weight for each id.
        combiner: "sum", "mean" or "sqrtn"; with weights these are Σwx, Σwx/Σw and Σwx/√Σw².
        include_last_offset: `offsets` ends with the number of ids.
        padding_idx: A row whose ids are ignored.
        default_id: The row to look up for empty bags; by default their result is zero.
        ignore_id: An id to ignore that is not a row, such as -1.
        max_norm: Shrink longer rows to this norm for this lookup; gradients pass through.
        plan: The Plan of exactly these ids, for a backward pass without a sort.

    Returns:
        A row for each bag.

    Raises:
        InvalidArgumentError: If ids are out of range, or arguments do not fit together.

    >>> import jax.numpy as jnp, rowgrad.jax as rgj
    >>> rgj.embedding_bag(jnp.array([[1.0], [2.0], [4.0]]), [0, 2, 1], [0, 2], combiner="sum").tolist()
    [[5.0], [2.0]]
    """
    kind = combiner_suffix(combiner)
    max_norm = _read_norm(max_norm)
    table = _array_of(table, max_norm, plan)
    padding_idx = row_number("padding_idx", padding_idx, table.shape[0])
    default_id = row_number("default_id", default_id, table.shape[0])
    if plan is not None and not (padding_idx is None and default_id is None):
        raise make_error("plan_of_other_ids", bound="padding_idx or default_id")
    if plan is not None and ignore_id is not None:
        raise make_error("plan_of_other_ids", bound="ignore_id")
    if plan is not None and max_norm is not None:
        raise make_error("plan_of_other_ids", bound="max_norm")
    bags = read_bags(ids, offsets, segment_ids, num_bags, per_sample_weights, include_last_offset)
    ignore_id = read_ignore_id(ignore_id, table.shape[0], bags.indices.dtype)
    mask = active_mask(bags.indices, (padding_idx, ignore_id))
    if mask is not None or default_id is not None:
        check_lengths(bags)
    # Inside value_and_rows ids may be traced in only one of its two runs, but both must make the same lookup.
    if (are_traced(bags) or isinstance(table, Tap)) and plan is None:
        if may_be_split(ids):
            call = Call(kind, (padding_idx, ignore_id), default_id, max_norm, current_ids_shape())
            return _look_up_matrix(table, ids, bags, mask, call)
        return look_up(table, bags, kind, mask, default_id, max_norm)
    if mask is not None:
        bags = select_ids(bags, mask)
    if default_id is not None:
        bags = fill_empty_bags(bags, default_id)
    if max_norm is not None:
        unique, place = np.unique(bags.indices, return_inverse=True)
        table = clip_rows(OPS["GatherRows"](table, unique, gradient="dense"), max_norm)
        bags = bags._replace(indices=place.reshape(-1))
    return _look_up(table, bags, kind, plan)


def _array_of(table: Any, max_norm: float | None, plan: Plan | None) -> Any:
    """Return the array of a table, or its `Tap` inside `value_and_rows`."""
    if not isinstance(table, Table):
        array = as_jax(table, "table")
        if not array.ndim:
            raise make_error("bags_unfit", argument="table", value="a scalar", bound="rank 1 or more, rows first")
        return array
    if table.is_split:
        raise make_error("table_in_parts")
    if not table.is_tapped:
        return table.array
    if max_norm is not None or plan is not None:
        raise make_error("lookup_unfit", argument="max_norm" if plan is None else "plan")
    return table.held


def _read_norm(max_norm: Any) -> Any:
    """Return `max_norm` as a static Python number."""
    if is_traced(max_norm) or np.ndim(max_norm):
        raise make_error("number_unfit", argument="max_norm", value=repr(max_norm)[:80], bound="a number")
    return max_norm.item() if is_jax(max_norm) or isinstance(max_norm, np.ndarray) else max_norm


def _look_up_matrix(table: Any, ids: Any, bags: Bags, mask: Any, call: Call) -> Any:
    """Look up bags that are the rows of a matrix of traced ids."""
    weights = None if bags.weights is None else bags.weights.reshape(ids.shape)
    if not isinstance(table, Tap):
        return bind(call, table, ids, weights)
    output = bind(call, table.table, ids, weights)
    bags = bags._replace(indices=replicate(bags.indices), weights=None if weights is None else replicate(bags.weights))
    mask = None if mask is None else replicate(mask)
    if mask is None and call.default_id is None:
        return table.bags(call.kind, *bags[:3], bags.weights, True, output)
    indices, segments, count, numbers = masked_bags.mask_and_fill(bags, mask, call.default_id)
    return table.bags(call.kind, indices, segments, count + 1, numbers, False, output)


def _look_up(table: Any, bags: Bags, kind: str, plan: Plan | None) -> Any:
    """Run the combiner's op on prepared bags."""
    if plan is not None and plan.num_segments != bags.num_bags:
        raise make_error("plan_unfit", value=f"{plan.num_segments} bags", bound=bags.num_bags)
    if plan is None:
        return bags_of(table, kind, bags.indices, bags.segment_ids, bags.num_bags, bags.weights)
    weights = () if bags.weights is None else (bags.weights,)
    op = OPS[f"{'Weighted' if weights else ''}SparseSegment{kind}WithNumSegments"]
    return op(table, bags.indices, bags.segment_ids, *weights, bags.num_bags, plan=plan)


# -- `safe_embedding_lookup_sparse` of traced ids or weights ----------------------------------------------------------


def lookup_traced(
    shards: list[Any],
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None,
    kind: str,
    default_id: int | None,
    max_norm: float | None,
    accumulate: str,
) -> Any:
    """Run `safe_embedding_lookup_sparse` for `rowgrad.lookup`. `kind` is the suffix of the combiner's ops."""
    if len(shards) != 1:
        raise make_error("shards_traced", value=len(shards))
    num_rows = int(flat_shape(sparse_ids)[0])
    ids = to_jax(as_integers(sparse_ids.values, "sparse_ids"), "sparse_ids")
    check_default_id(default_id, ids.dtype)
    mask, weights = ids >= 0, None
    if sparse_weights is not None:
        weights = jnp.asarray(sparse_weights.values)
        if weights.shape != ids.shape:
            raise ValueError(f"Dimensions {ids.shape[0]} and {weights.shape[0]} are not compatible")
        if kind != "Sum":
            mask &= weights >= smallest_positive(weights.dtype.name)
    if default_id is None:
        check_rows_are_vectors(shards[0])
    bags = masked_bags.mask_ids(Bags(ids, _rows(sparse_ids), num_rows, weights), mask)
    if default_id is not None:
        bags = masked_bags.add_defaults(bags, default_id)
    table = jnp.asarray(shards[0])
    result = masked_bags.look_up(table, masked_bags.sort_by_bag(bags), kind, max_norm, accumulate)
    return result.reshape(*sparse_ids.shape[:-1], *table.shape[1:])


def _rows(sparse: SparseTensor) -> Any:
    """Return the row of the result of each id: the row-major position of all its coordinates but the last.

    A last coordinate beyond its size continues in the following rows, as in TensorFlow's reshape. A row that does not
    fit the indices' dtype becomes -1, which is rejected later; a wrapped number could be a valid row.
    """
    indices = to_jax(as_integers(sparse.indices, "indices"), "indices")
    if len(sparse.shape) == 2:
        return indices[:, 0]
    largest = int(jnp.iinfo(indices.dtype).max)
    rows, fits = jnp.zeros_like(indices[:, 0]), jnp.ones(indices.shape[0], bool)
    for column, size in enumerate(sparse.shape[:-1]):
        limit = largest // max(size, 1)
        fits &= (rows >= -limit) & (rows <= limit)
        rows, fits = _sum(rows * min(size, largest), indices[:, column], fits)
    last, size = indices[:, -1], max(sparse.shape[-1], 1)
    if size > largest:  # larger than any coordinate
        carry, has_remainder = jnp.where(last < 0, -1, 0).astype(last.dtype), last < 0
    else:
        carry, has_remainder = last // size, last % size != 0
    rows, fits = _sum(rows, carry, fits)
    rows = jnp.where((rows == -1) & has_remainder, 0, rows)  # TensorFlow's division rounds towards zero, as in C
    return jnp.where(fits, rows, -1)


def _sum(a: Any, b: Any, fits: Any) -> tuple[Any, Any]:
    """Return a + b, and whether no addition overflowed: an overflowed sum has a sign that neither operand has."""
    total = a + b
    return total, fits & (((a ^ total) & (b ^ total)) >= 0)
