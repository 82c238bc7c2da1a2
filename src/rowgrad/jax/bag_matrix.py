"""A lookup of ids that are a matrix, a bag per row, as one primitive: devices may split it by bags.

Everything it is made of, flat ids and the bag of each, is made on each device for its own bags. Derivatives are those
of what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import masked, partition
from .bags import Bags, ids_kept, of_matrix, to_jax
from .partition import Rule
from .table import bags_of
from .varying import manual_axes


class Call(NamedTuple):
    """The options of a lookup."""

    kind: str
    ignored: tuple[int | None, ...]
    default_id: int | None
    max_norm: float | None

    def run(self, table: Any, ids: Any, *weights: Any) -> tuple[Any]:
        """The lookup: [bags, …]."""
        bags = of_matrix(ids, None, None, weights[0] if weights else None)
        return (look_up(table, bags, self.kind, ids_kept(bags.indices, self.ignored), self.default_id, self.max_norm),)

    def is_bad(self, table: Any, ids: Any, *_: Any) -> Any:
        """Whether an id that counts is not a row of the table."""
        wrong = (ids < 0) | (ids >= table.shape[0])
        kept = ids_kept(ids, self.ignored)
        return (wrong if kept is None else wrong & kept).any()


def is_usable(ids: Any) -> bool:
    """Whether XLA may have to split a lookup of these ids by itself; inside `shard_map` devices have their own."""
    return isinstance(ids, jax.core.Tracer) and ids.ndim == 2 and 0 not in ids.shape and not manual_axes()


def bind(call: Call, table: Any, ids: Any, weights: Any) -> Any:
    """The rows of every bag combined."""
    return BAGS.bind(table, ids, *(() if weights is None else (weights,)), call=call)[0]


def look_up(table: Any, bags: Bags, kind: str, kept: Any, default_id: int | None, max_norm: float | None) -> Any:
    """Bags of traced ids: all of them or, if `kept` is given, those it names; with `default_id` in empty bags."""
    if kept is None and default_id is None:
        if max_norm is not None:
            table, bags = masked.shortened(table, bags._replace(indices=to_jax(bags.indices, "ids")), max_norm)
        return bags_of(table, kind, bags.indices, bags.segment_ids, bags.num_bags, bags.weights)
    return masked.look_up(table, masked.left_out(bags, kept, default_id), kind, max_norm)


# -- the primitive ----------------------------------------------------------------------------------------------------


def _rule(call: Call, operands: Sequence[Any]) -> Rule:
    inner = partition.columns(len(operands[0].shape))
    dims = ((partition.ROWS, *inner), *((("bags", "places"),) * (len(operands) - 1)))
    kept = inner if call.max_norm is None else ()  # the length of a row is that of all its columns
    return Rule("embedding_bag", dims, (("bags", *inner),), (*kept, "bags"))


def _abstract(*operands: Any, call: Call) -> list[Any]:
    bare = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    (found,) = jax.eval_shape(call.run, *bare)
    aval = jax.core.ShapedArray(found.shape, found.dtype)
    types = [partition.sharding_of(x) for x in operands]
    known = next((t for t in types if t is not None), None)
    if known is None:
        return [aval]
    rule = _rule(call, operands)
    specs = [None if t is None else t.spec for t in types]
    split = partition.split_of(rule, specs, [x.shape for x in operands], known.mesh)
    return [aval.update(sharding=known.update(spec=partition.specs_of(rule.results, split)[0]))]


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    if partition.is_split(context) and 0 not in context.avals_in[0].shape:
        return partition.lower(context, operands, call.run, _rule(call, context.avals_in), call.is_bad)
    return mlir.lower_fun(call.run, multiple_results=True)(context, *operands)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    (output,) = BAGS.bind(*primals, call=call)
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def run(*moved: Any) -> Any:
        operands = list(primals)
        for i, x in zip(moving, moved, strict=True):
            operands[i] = x
        return call.run(operands[0], *map(partition.gathered, operands[1:]))[0]

    _, tangent = jax.jvp(run, [primals[i] for i in moving], [tangents[i] for i in moving])
    known = partition.sharding_of(output)
    if known is not None:
        tangent = jax.sharding.reshard(tangent, known)
    return [output], [tangent]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    axes = [d if isinstance(d, int) else None for d in dims]
    return jax.vmap(call.run, in_axes=axes)(*operands), [0]


BAGS = Primitive("rowgrad_bags")
BAGS.multiple_results = True
BAGS.def_impl(lambda *operands, call: call.run(*operands))
BAGS.def_abstract_eval(_abstract)
mlir.register_lowering(BAGS, mlir.lower_fun(lambda *operands, call: call.run(*operands), multiple_results=True))
mlir.register_lowering(BAGS, _lower, platform="cpu")
partition.register(BAGS)
ad.primitive_jvps[BAGS] = _jvp
batching.primitive_batchers[BAGS] = _batch
