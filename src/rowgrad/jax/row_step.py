"""Optimizer steps of some rows of tables, in place: a primitive that XLA runs with the kernels of `rowgrad.optim`.

Tables and slots are operands that are results too, in the same memory; XLA copies them only if they are needed later.
On CUDA devices one call steps tables of one dtype and width. Where there is no kernel, the step is made of JAX
operations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._catalog.enums import Order, Reduction
from .._catalog.rules import NUMBERS, RULES, check_range, slot_dtype
from .._catalog.spec import Aval
from .._core import update_kernels, xla_cuda_step_handler, xla_step_handler
from ..errors import make_error
from ..raw_ops import OPS
from . import order, partition, varying
from .fault_errors import STEP_ARGUMENTS, TABLE_END
from .update_rules import STEPS, Numbers

TARGETS = {"cpu": "rowgrad_step", "cuda": "rowgrad_cuda_step"}
_KERNELS = [name for name, _ in update_kernels()]
_REDUCTIONS = {reduction.op_suffix: int(reduction) for reduction in Reduction}


class Bags(NamedTuple):
    """The lookup that a row-sparse gradient is of: its combiner, the gradient of its result, and its ids."""

    kind: str
    grad: Any
    ids: Any
    segment_ids: Any


class StepOptions(NamedTuple):
    """The hyperparameters of a step: those that are host numbers, and the names of those that are traced."""

    known: tuple[tuple[str, Any], ...]
    traced: tuple[str, ...] = ()
    stochastic_rounding: bool = False


class TableStep(NamedTuple):
    """The step of one table.

    The gradient has unique rows, ascending, then padding whose id is the number of rows; `bags` have the same.
    """

    table: Any
    slots: Sequence[Any]
    gradient: Any
    ids: Any
    bags: Bags | None
    seed: int
    path: str  # of the table among the parameters, for errors

    @property
    def kind(self) -> str | None:
        """The combiner of the bags; None for a gradient of rows."""
        return None if self.bags is None else self.bags.kind

    @property
    def inputs(self) -> list[Any]:
        """The gradient and its ids."""
        if self.bags is None:
            return [self.gradient.astype(self.table.dtype), self.ids]
        return [self.bags.grad, self.bags.ids, self.bags.segment_ids]


def step_tables(
    rule: str, options: StepOptions, values: Sequence[Any], step: Any, tables: Sequence[TableStep]
) -> list[list[Any]]:
    """Return each table and its slots after a step. `values` are the traced hyperparameters, `step` counts from 1."""
    groups: dict[Any, list[int]] = {}  # the tables of each call
    for k, own in enumerate(tables):
        _check_numbers(rule, options, str(own.table.dtype))
        operands = [own.table, *own.slots, *own.inputs, step, *values]
        shardings = [partition.explicit_sharding(x) for x in operands]
        is_split = any(s is not None and any(s.spec) for s in shardings)
        alone = k if is_split else None
        key = (alone, own.kind, str(own.table.dtype), own.table.shape[1:], varying.shared_by(operands))
        groups.setdefault(key, []).append(k)
    found: dict[int, list[Any]] = {}
    for (alone, *_), members in groups.items():
        step_alike = _step_alike if alone is None else partial(_step_alike, call=_portable)  # XLA splits operations
        found |= zip(members, step_alike(rule, options, values, step, [tables[k] for k in members]), strict=True)
    return [found[k] for k in range(len(tables))]


def _step_alike(
    rule: str, options: StepOptions, values: Sequence[Any], step: Any, tables: Sequence[TableStep], call: Any = None
) -> list[list[Any]]:  # fmt: skip
    """Return each table and its slots after a step of tables that one call can step, or the function `call`."""
    wide = arithmetic_dtype(tables[0].table)
    values = [x.astype(wider(x.dtype, jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else wide) for x in values]
    state = [x for own in tables for x in (own.table, *own.slots)]
    operands = [*state, *(x for own in tables for x in own.inputs), step, *values]
    params: dict[str, Any] = {
        "rule": rule,
        "kind": tables[0].kind,
        "options": options,
        "seeds": tuple(own.seed for own in tables),
        "paths": tuple(own.path for own in tables),
    }

    @jax.custom_jvp
    def run(*operands: Any) -> Any:
        return tuple(_STEP.bind(*varying.together(operands), **params))

    @run.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return run(*primals), jax.jvp(partial(_by_operations, **params), primals, tangents)[1]

    found = run(*operands) if call is None else call(*operands, **params)
    each = len(state) // len(tables)
    return [list(found[first : first + each]) for first in range(0, len(state), each)]


def _check_numbers(rule: str, options: StepOptions, dtype: str) -> None:
    """Reject hyperparameters that are not finite in the dtype of the arithmetic, as `rowgrad.optim` does."""
    check_range(rule, _numbers(options), slot_dtype(dtype))


def _numbers(options: StepOptions) -> list[float]:
    """Return the numbers of a step in the order in which kernels read them; 1 in place of a traced number."""
    known = dict(options.known)
    betas = known.get("betas", (0.0, 0.0))
    found = {"beta1": betas[0], "beta2": betas[1], "rate": 0.0}
    return [float(found[n]) if n in found else float(known.get(n, n in options.traced)) for n in NUMBERS]


class _Operands(NamedTuple):
    """The operands of the primitive by name: of each table, the table with its slots, and the gradient with its ids."""

    states: list[Sequence[Any]]
    inputs: list[Sequence[Any]]
    step: Any
    traced: Sequence[Any]


def _named(rule: str, kind: str | None, count: int, operands: Sequence[Any]) -> _Operands:
    """Return the operands by name; `count` is the number of tables."""
    sizes = [1 + len(RULES[rule].slots)] * count + [2 if kind is None else 3] * count
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [operands[first:end] for first, end in pairwise(ends)]
    return _Operands(parts[:count], parts[count:], operands[ends[-1]], operands[ends[-1] + 1 :])


# -- In JAX operations ------------------------------------------------------------------------------------------------


def _by_operations(
    *operands: Any, rule: str, kind: str | None, options: StepOptions, seeds: Sequence[int], paths: Sequence[str]
) -> tuple[Any, ...]:  # fmt: skip
    """Run the steps as `update` and `apply_updates` do."""
    named = _named(rule, kind, len(seeds), operands)
    numbers = numbers_of({**dict(options.known), **dict(zip(options.traced, named.traced, strict=True))}, named.step)
    found: list[Any] = []
    for (table, *slots), inputs in zip(named.states, named.inputs, strict=True):
        if kind is not None:
            grad, ids, segment_ids = inputs
            size = min(ids.shape[0], table.shape[0])
            rows = OPS[f"SparseSegment{kind}GradV2"](grad, ids, segment_ids, table.shape[0], size=size)
            inputs = (rows.output, rows.sorted_unique_indices)
        gradient, ids = inputs
        update, *after = step_rows(rule, numbers, gradient, ids, table, slots)
        current = rows_at(table, ids).astype(update.dtype)
        found += [with_rows(table, ids, current + update), *after]
    return tuple(found)


def numbers_of(options: Mapping[str, Any], step: Any) -> Numbers:
    """Return the hyperparameters as the rules read them; `step` counts from 1."""
    weight_decay = options.get("weight_decay", 0.0)
    decays = not isinstance(weight_decay, int | float) or weight_decay != 0
    return Numbers(step=step, decays=decays, **options)


def step_rows(
    rule: str, numbers: Numbers, gradient: Any, ids: Any, table: Any, slots: Sequence[Any]
) -> tuple[Any, ...]:  # fmt: skip
    """Return the update of some rows, and all slots after the step. A rule that does not read the table takes None."""
    wide = arithmetic_dtype(gradient)
    weights = None if table is None else rows_at(jnp.asarray(table), ids).astype(wide)
    before = [rows_at(jnp.asarray(s), ids) for s in slots]
    update, *after = STEPS[rule](numbers, gradient.astype(wide), weights, *before)
    return update, *(with_rows(x, ids, new) for x, new in zip(slots, after, strict=True))


def arithmetic_dtype(leaf: Any) -> Any:
    """Return the dtype of arithmetic and slots: float64 for float64, else float32."""
    return wider(leaf.dtype, jnp.float32)


def wider(a: Any, b: Any) -> Any:
    """Return the dtype that can represent both, even if JAX is configured not to promote dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(a, b)


# Not `array.at`, for which an id of -1 is the last row, so that the ids would not be sorted.


def rows_at(array: Any, ids: Any) -> Any:
    """Return rows of a table; zeros for ids out of range."""
    if not array.shape[0]:
        return jnp.zeros((ids.shape[0], *array.shape[1:]), array.dtype)
    inner = tuple(range(1, array.ndim))
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=inner, collapsed_slice_dims=(0,), start_index_map=(0,))
    row = (1, *array.shape[1:])
    return jax.lax.gather(array, ids[:, None], numbers, row, mode="fill", fill_value=0, indices_are_sorted=True)


def with_rows(array: Any, ids: Any, values: Any) -> Any:
    """Return the array with these rows replaced; XLA reuses its memory if it was donated."""
    inner = tuple(range(1, array.ndim))
    numbers = jax.lax.ScatterDimensionNumbers(inner, inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    values = values.astype(array.dtype)
    return jax.lax.scatter(array, ids[:, None], values, numbers, mode="drop", indices_are_sorted=True)


def _portable(*operands: Any, **params: Any) -> tuple[Any, ...]:
    options: StepOptions = params["options"]
    if options.stochastic_rounding:
        raise make_error(
            "number_unfit", argument="stochastic_rounding", value="True", bound="False where JAX operations step"
        )
    return _by_operations(*operands, **params)


# -- The primitive ----------------------------------------------------------------------------------------------------

_STEP = Primitive("rowgrad_step")
_STEP.multiple_results = True


def _evaluate(*operands: Any, **params: Any) -> Any:
    return _compiled(*operands, params=tuple(params.items()))


@partial(jax.jit, static_argnames="params")
def _compiled(*operands: Any, params: Any) -> Any:
    return _STEP.bind(*operands, **dict(params))


def _abstract(*operands: Any, rule: str, kind: str | None, seeds: Sequence[int], **_: Any) -> Any:
    states = _named(rule, kind, len(seeds), operands).states
    return [varying.typed(x.shape, x.dtype, operands) for state in states for x in state]


def _batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    """Step one element of the batch after the other."""
    is_batched = [isinstance(d, int) for d in dims]
    moved = [jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True) if isinstance(d, int)]
    shared = [x for x, batched in zip(operands, is_batched, strict=True) if not batched]

    def one(own: Any) -> Any:
        from_batch, others = iter(own), iter(shared)
        return tuple(_STEP.bind(*(next(from_batch if batched else others) for batched in is_batched), **params))

    found = jax.lax.map(one, tuple(moved))
    return found, [0] * len(found)


def _one_by_one(*operands: Any, rule: str, kind: str | None, seeds: Any, paths: Any, **params: Any) -> list[Any]:
    named = _named(rule, kind, len(seeds), operands)
    found: list[Any] = []
    for state, inputs, seed, path in zip(named.states, named.inputs, seeds, paths, strict=True):
        own = (*state, *inputs, named.step, *named.traced)
        found += _STEP.bind(*own, rule=rule, kind=kind, seeds=(seed,), paths=(path,), **params)
    return found


_lower_by_operations = mlir.lower_fun(_portable, multiple_results=True)
_lower_one_by_one = mlir.lower_fun(_one_by_one, multiple_results=True)


def _argument(name: str, path: str, aval: Aval) -> str:
    return f"{name}{path}={aval}"


def _lower_to_kernel(platform: str) -> Any:
    """Return the lowering to a custom call, with the attributes that `cpp/bind/xla_steps.h` describes."""

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        rule, kind, options, seeds, paths = (params[n] for n in ("rule", "kind", "options", "seeds", "paths"))
        if set(options.traced) - {"lr"} or partition.is_partitioned(context):
            return _lower_by_operations(context, *operands, **params)
        if platform == "cpu" and len(seeds) > 1:  # XLA runs calls of a program concurrently there
            return _lower_one_by_one(context, *operands, **params)
        avals = _named(rule, kind, len(seeds), [Aval(str(x.dtype), tuple(x.shape)) for x in context.avals_in])
        kernel = "apply_rows" if kind is None else "apply_bags"
        attrs = [RULES[rule].number, 0, 1, int(options.stochastic_rounding), 0, 0]
        if kind is not None:
            chosen = order.choose({"order": None}, platform)["order"]
            attrs += [_REDUCTIONS[kind], 0, 0, int(Order[chosen])]
        script = [_KERNELS.index(kernel), len(attrs), *attrs, len(seeds), *seeds, len(options.traced)]
        script += [struct.unpack("q", struct.pack("d", n))[0] for n in _numbers(options)]
        got = [
            ", ".join(map(_argument, STEP_ARGUMENTS[kernel], (path, "", "", ""), (state[0], *inputs)))
            for path, state, inputs in zip(paths, avals.states, avals.inputs, strict=True)
        ]
        count = sum(map(len, avals.states))
        call = jax.ffi.ffi_lowering(TARGETS[platform], operand_output_aliases={k: k for k in range(count)})
        return call(context, *operands, call=np.array(script, np.int64), got=TABLE_END.join(got), op=kernel)

    return lower


_STEP.def_impl(_evaluate)
_STEP.def_abstract_eval(_abstract)
batching.primitive_batchers[_STEP] = _batch
partition.register(_STEP)
mlir.register_lowering(_STEP, _lower_by_operations)
for _platform in TARGETS:
    mlir.register_lowering(_STEP, _lower_to_kernel(_platform), platform=_platform)
jax.ffi.register_ffi_target(TARGETS["cpu"], xla_step_handler(), platform="cpu")
jax.ffi.register_ffi_target(TARGETS["cuda"], xla_cuda_step_handler(), platform="CUDA")
