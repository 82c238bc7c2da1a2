"""Derivatives of the primitives from the records' adjoints: any order, forward and reverse mode.

The tangents of a call are a linear function of the tangents of its arguments. That function is the primitive
`rowgrad_tangent`, whose parameter describes the call. Its transpose is the record's adjoint. Its value, which only
forward mode needs, is the transpose of the adjoint, which JAX derives. Reverse mode runs only the adjoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._catalog.rows import IndexedRows
from .._catalog.spec import CATALOG, Call, Op
from ..raw_ops import OPS
from . import order, runner, varying
from .arrays import Like
from .primitive import PRIMITIVES, Params, arguments_of, array_names, bind_operands

# JAX has no row-sparse cotangents.
_DENSE = {"sparse_gradient": False, "gradient": "dense"}

TANGENT = Primitive("rowgrad_tangent")
TANGENT.multiple_results = True


class SavedCall(NamedTuple):
    """A call as the primitive of its tangents stores it: hashable, without arrays.

    The operands are the tangents of the arguments `active`, the arguments `saved`, and the integer outputs. Other
    arguments and outputs are represented by their shape and dtype.
    """

    op: str
    host: tuple[Any, ...]
    attrs: tuple[Any, ...]
    active: tuple[str, ...]
    saved: tuple[str, ...]
    shapes: tuple[tuple[str, Any], ...]  # of arguments that are not saved, by name
    outputs: tuple[Any, ...]

    @property
    def floating(self) -> list[int]:
        """Return the outputs that have tangents."""
        return [i for i, o in enumerate(self.outputs) if is_inexact(o)]

    def unpack(self, operands: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], list[Any]]:
        """Return tangents, arguments by name, and outputs; shapes in place of arrays that were not saved."""
        first, end = len(self.active), len(self.active) + len(self.saved)
        arguments = {**dict(self.shapes), **dict(zip(self.saved, operands[first:end], strict=True))}
        arguments |= {name: h.value for name, h in self.host}
        integer_outputs = iter(operands[end:])
        outputs = [o if is_inexact(o) else next(integer_outputs) for o in self.outputs]
        return operands[:first], arguments, outputs

    def backward(self, arguments: Mapping[str, Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return the gradients of `active` by the record's adjoint; `cotangents` belong to floating-point outputs."""
        op = CATALOG[self.op]
        call = Call(arguments, {**dict(self.attrs), **_DENSE}, tuple(outputs), frozenset(self.active))
        remaining = iter(cotangents)
        ys = [next(remaining) if is_inexact(o) else None for o in self.outputs]
        assert op.adjoint is not None
        gradients = dict(zip(op.differentiable, op.adjoint(_AdjointOps(), call, *ys), strict=True))
        return [_dense(gradients[name]) for name in self.active]


class _AdjointOps:
    """The ops as adjoints call them: gradients have the order of the platform, also with other attributes."""

    def __getitem__(self, name: str) -> Any:
        op = CATALOG[name]
        return partial(_call_in_order_of_platform, op) if "order" in op.attrs else OPS[name]


def _call_in_order_of_platform(op: Op, *args: Any, **attrs: Any) -> Any:
    arguments = dict(zip(op.input_names, args, strict=True))
    outputs = runner.call(op, arguments, {**order.leave_open(op, op.attrs), **attrs}, None)
    return outputs if len(outputs) > 1 else outputs[0]


def is_inexact(value: Any) -> bool:
    """Return whether an array can have a tangent."""
    return bool(jax.numpy.issubdtype(value.dtype, jax.numpy.inexact))


def _dense(gradient: Any) -> Any:
    if isinstance(gradient, IndexedRows):
        return OPS["ScatterRows"](gradient.values, gradient.indices, gradient.num_rows)
    return gradient


def _like(x: Any) -> Any:
    return Like(tuple(x.shape), x.dtype)


def save_call(
    op: Op, arrays: Mapping[str, Any], params: Params, active: Sequence[str], outputs: Sequence[Any]
) -> SavedCall:
    """Return the call as its tangents must save it. The adjoint of linear arguments needs only their shapes."""
    shape_only = set(op.linear) if set(active) <= set(op.linear) else set()
    saved = tuple(name for name in arrays if name not in shape_only)
    shapes = tuple((name, _like(x)) for name, x in arrays.items() if name in shape_only)
    return SavedCall(
        op.name, params["host"], params["attrs"], tuple(active), saved, shapes, tuple(map(_like, outputs))
    )  # fmt: skip


def _jvp(op: Op) -> Any:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        outputs = bind_operands(op, primals, params)
        names = array_names(op)
        active = {n: t for n, t in zip(names, tangents, strict=True) if n in op.differentiable and not _is_zero(t)}
        results: list[Any] = [_zero(o) for o in outputs]
        if active:
            arrays = dict(zip(names, primals, strict=True))
            saved_call = save_call(op, arrays, params, tuple(active), outputs)
            operands = [*active.values(), *(arrays[n] for n in saved_call.saved)]
            operands += [o for o in outputs if not is_inexact(o)]
            found = TANGENT.bind(*varying.together(operands), call=saved_call)
            for i, tangent in zip(saved_call.floating, found, strict=True):
                results[i] = tangent
        return outputs, results

    return jvp


def _zero(x: Any) -> Any:
    return ad.Zero(jax.core.ShapedArray(x.shape, x.dtype if is_inexact(x) else jax.dtypes.float0))


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero)


def _transpose(op: Op) -> Any:
    """Return the transpose rule of an op that is linear in the requested operands. JAX transposes adjoints with it."""

    def transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Any:
        names = array_names(op)
        unknown = [n for n, x in zip(names, operands, strict=True) if ad.is_undefined_primal(x)]
        arrays = {n: _like(x.aval) if n in unknown else x for n, x in zip(names, operands, strict=True)}
        avals = [y.aval if _is_zero(y) else y for y in cotangents]
        saved_call = save_call(op, arrays, params, unknown, avals)
        outputs: Sequence[Any] = saved_call.outputs
        if len(saved_call.floating) < len(outputs):  # integer outputs do not depend on linear arguments
            zeros = [jax.numpy.zeros(x.shape, x.dtype) if n in unknown else x for n, x in arrays.items()]
            outputs = bind_operands(op, zeros, params)
        arguments = arguments_of(op, tuple(arrays.values()), params)
        ys = [ad.instantiate_zeros(cotangents[i]) for i in saved_call.floating]
        found = dict(zip(unknown, saved_call.backward(arguments, outputs, ys), strict=True))
        return [found.get(name) for name in names]

    return transpose


# -- The primitive of tangents ----------------------------------------------------------------------------------------


def _forward(*operands: Any, call: SavedCall) -> Any:
    """Return the tangents of the outputs: the transpose of the adjoint."""
    tangents, arguments, outputs = call.unpack(operands)

    def adjoint(*ys: Any) -> list[Any]:
        return call.backward(arguments, outputs, ys)

    axes = varying.shared_by(operands)
    examples = [
        varying.widen(jax.numpy.zeros(y.shape, y.dtype), axes) for y in (call.outputs[i] for i in call.floating)
    ]
    return list(jax.linear_transpose(adjoint, *examples)(list(tangents)))


def _tangent_abstract(*operands: Any, call: SavedCall) -> Any:
    return [varying.typed(call.outputs[i].shape, call.outputs[i].dtype, operands) for i in call.floating]


def _tangent_transpose(cotangents: Sequence[Any], *operands: Any, call: SavedCall) -> Any:
    _, arguments, outputs = call.unpack(operands)
    found = call.backward(arguments, outputs, [ad.instantiate_zeros(y) for y in cotangents])
    return [*found, *(None for _ in operands[len(found) :])]


def _tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: SavedCall) -> Any:
    """Differentiate the ops in `_forward`, each of which has its own rule."""
    active = [i for i, t in enumerate(tangents) if not _is_zero(t)]

    def function(*active_primals: Any) -> Any:
        operands = list(primals)
        for i, x in zip(active, active_primals, strict=True):
            operands[i] = x
        return _forward(*operands, call=call)

    return jax.jvp(function, [primals[i] for i in active], [tangents[i] for i in active])


def _tangent_batch(operands: Sequence[Any], dims: Sequence[Any], *, call: SavedCall) -> Any:
    axes = [d if isinstance(d, int) else None for d in dims]
    results = jax.vmap(lambda *xs: _forward(*xs, call=call), in_axes=axes)(*operands)
    return results, [0] * len(results)


TANGENT.def_impl(_forward)
TANGENT.def_abstract_eval(_tangent_abstract)
mlir.register_lowering(TANGENT, mlir.lower_fun(_forward, multiple_results=True))
ad.primitive_transposes[TANGENT] = _tangent_transpose
ad.primitive_jvps[TANGENT] = _tangent_jvp
batching.primitive_batchers[TANGENT] = _tangent_batch

for _op in CATALOG.values():
    if _op.kernel is not None:
        ad.primitive_jvps[PRIMITIVES[_op.name]] = _jvp(_op)
        if _op.adjoint is not None:
            ad.primitive_transposes[PRIMITIVES[_op.name]] = _transpose(_op)
