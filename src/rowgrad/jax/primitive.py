"""A JAX primitive for every kernel op of the catalogue: evaluation, shapes, lowering and batching.

The operands of a primitive are the op's arrays in order. Host inputs and attributes determine shapes or arithmetic, so
they are parameters: JAX compiles a call for their values. `gradients` adds the derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._catalog.spec import CATALOG, Aval, Op
from .._runtime.validation import infer
from ..errors import OpError
from . import cuda_call, custom_call, eager, order, partition, portable, varying, vmap
from .arrays import Host, admit_arrays, canonical_aval, canonical_dtype, check_sizes
from .fault_errors import current_ids_shape

Params = Mapping[str, Any]  # host: ((name, Host), …), attrs: ((name, value), …), in `table[ids]` the shape of the ids


def bind(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Call an op on arrays of which some are traced."""
    admitted = admit_arrays(op, arguments)
    params: dict[str, Any] = {"host": tuple(admitted.host.items()), "attrs": tuple(attrs.items())}
    if (ids_shape := current_ids_shape()) is not None:
        params["ids_shape"] = ids_shape
    infer(op, admitted.avals, admitted.host_values, attrs)  # raises here rather than inside JAX
    return tuple(bind_operands(op, tuple(admitted.arrays.values()), params))


def bind_operands(op: Op, operands: Sequence[Any], params: Params) -> Any:
    """Bind the op's primitive to its operands."""
    return PRIMITIVES[op.name].bind(*varying.together(operands), **params)


def array_names(op: Op) -> tuple[str, ...]:
    """Return the names of the inputs that are operands."""
    return tuple(a.name for a in op.inputs if not a.host)


def arguments_of(op: Op, operands: Sequence[Any], params: Params) -> dict[str, Any]:
    """Return operands and host values by name, in the op's order."""
    arrays = dict(zip(array_names(op), operands, strict=True))
    host = {name: h.value for name, h in params["host"]}
    return {name: arrays[name] if name in arrays else host[name] for name in op.input_names}


def outputs_of(op: Op, avals: Mapping[str, Aval], params: Params) -> tuple[Aval, ...]:
    """Return the types of the outputs; for a data-dependent size raise an error that names an alternative."""
    host: dict[str, Host] = dict(params["host"])
    outputs = infer(op, avals, {name: h.value for name, h in host.items()}, dict(params["attrs"]))
    check_sizes(outputs, _advice(op))
    return outputs


def _advice(op: Op) -> str:
    if op.sized:
        return f"use {op.sized}, which takes num_segments"
    if op.padded:
        return f"pass size=, the maximum number of rows, or use {op.dense}, which returns all rows"
    return "call it outside of jit, and pass its results in"


def avals_of(op: Op, operands: Sequence[Any], params: Params) -> dict[str, Aval]:
    """Return the operands' types as the op declares them: int64 where JAX may have int32 instead."""
    fixed = {a.name: a.type for a in op.inputs if a.type not in op.types}
    avals: dict[str, Aval] = {name: h.aval for name, h in params["host"]}
    for name, x in zip(array_names(op), operands, strict=True):
        avals[name] = Aval(fixed.get(name, str(x.dtype)), tuple(x.shape))
    return {name: avals[name] for name in op.input_names}


# -- The rules of a primitive -----------------------------------------------------------------------------------------


def _evaluate(op: Op) -> Any:
    def evaluate(*operands: Any, **params: Any) -> Any:
        try:
            return list(eager.call(op, arguments_of(op, operands, params), dict(params["attrs"])))
        except OpError as error:
            raise error.in_call(op.name, None, "") from None

    return evaluate


def _abstract(op: Op) -> Any:
    def abstract(*operands: Any, **params: Any) -> Any:
        outputs = outputs_of(op, avals_of(op, operands, params), params)
        partition.check_shardings(partition.rule_for(op, array_names(op), operands, outputs), operands)
        return [varying.typed(o.shape, canonical_dtype(o.dtype), operands) for o in outputs]

    return abstract


def _lower_to_kernel(op: Op, platform: str) -> Any:
    """Return the lowering to a custom call of the kernel."""
    target = cuda_call.TARGET if platform == "cuda" else custom_call.TARGET

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        avals = avals_of(op, context.avals_in, params)
        outputs = outputs_of(op, avals, params)
        if partition.is_partitioned(context):
            rule = partition.rule_for(op, array_names(op), context.avals_in, outputs)
            if rule is not None:
                return partition.lower(context, operands, partial(_bind_local, op, params), rule, _has_bad_ids)
        attrs = order.choose(dict(params["attrs"]), platform)
        host = dict(params["host"])
        return custom_call.lower(context, operands, op, avals, host, attrs, outputs, target, params.get("ids_shape"))

    return lower


def _bind_local(op: Op, params: Params, *operands: Any) -> tuple[Any, ...]:
    """Call the op on a device's shard of its operands."""
    return tuple(PRIMITIVES[op.name].bind(*operands, **params))


def _has_bad_ids(rows: Any, ids: Any, *_: Any) -> Any:
    """Return whether GatherRows, the only op whose ids may stay split, rejects an id."""
    return ((ids < 0) | (ids >= rows.shape[0])).any()


def _portable(op: Op) -> Any:
    """Return the lowering on other platforms, in JAX's own operations."""

    def run(*operands: Any, **params: Any) -> Any:
        avals = avals_of(op, operands, params)
        outputs = tuple(map(canonical_aval, outputs_of(op, avals, params)))
        arrays = dict(zip(array_names(op), operands, strict=True))
        host = {name: h.value for name, h in params["host"]}
        return portable.run(op, arrays, host, dict(params["attrs"]), outputs)

    return run


def _batch(op: Op) -> Any:
    def batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if isinstance(d, int))
        arrays = array_names(op)
        dim_of = {name: d if isinstance(d, int) else None for name, d in zip(arrays, dims, strict=True)}
        arguments = arguments_of(op, operands, params)
        in_dims = [dim_of.get(name) for name in op.input_names]
        try:
            return vmap.batched(op, dict(params["attrs"]), size, tuple(arguments.values()), in_dims, _run)
        except OpError as error:
            raise error.in_call(op.name, None, "") from None

    return batch


def _run(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    from .runner import call  # imports this module

    return call(op, dict(arguments), attrs, None)


def _make(op: Op) -> Primitive:
    primitive = Primitive(f"rowgrad_{op.name}")
    primitive.multiple_results = True
    primitive.def_impl(_evaluate(op))
    primitive.def_abstract_eval(_abstract(op))
    mlir.register_lowering(primitive, mlir.lower_fun(_portable(op), multiple_results=True))
    mlir.register_lowering(primitive, _lower_to_kernel(op, "cpu"), platform="cpu")
    if cuda_call.has_kernel(op):
        mlir.register_lowering(primitive, _lower_to_kernel(op, "cuda"), platform="cuda")
    batching.primitive_batchers[primitive] = _batch(op)
    partition.register(primitive)
    return primitive


PRIMITIVES: dict[str, Primitive] = {op.name: _make(op) for op in CATALOG.values() if op.kernel is not None}
