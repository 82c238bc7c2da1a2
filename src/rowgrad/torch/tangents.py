"""Forward mode: the tangents of a call's outputs, from the record of its op.

An op that is linear in the arguments that have tangents is applied to the tangents. Everywhere else the tangents are
the transpose of the record's adjoint, which is linear in the cotangents. To transpose it, the adjoint runs on
cotangents without values (`Like`); the ops that depend on them are recorded, and their adjoints run in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, zeros_like
from torch.autograd import forward_ad

from .._catalog.spec import CATALOG, Call, Op
from .saved_call import DENSE, Like, as_torch, is_float, unpack_dual
from .symbolic_sizes import infer_outputs
from .tensors import DTYPE


def save_for_jvp(ctx: Any, op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any], outputs: Any) -> None:
    """Save a call for `run_jvp`, which torch calls right after the forward pass if an argument has a tangent."""
    tensors = {name: v for name, v in arguments.items() if isinstance(v, Tensor)}
    ctx.save_for_forward(*tensors.values(), *outputs)  # torch frees them after the call of jvp
    ctx.jvp_call = op, attrs, {name: None if name in tensors else v for name, v in arguments.items()}


def run_jvp(ctx: Any, ops: Mapping[str, Any], tangents: Mapping[str, Tensor | None]) -> Any:
    """Return the tangents of the outputs for those of the arguments: the result of an autograd function's jvp."""
    op, attrs, arguments = ctx.jvp_call
    defined = {name: t for name in op.differentiable if (t := tangents.get(name)) is not None}
    with forward_ad._set_fwd_grad_enabled(True):  # torch disables it here, which would drop tangents of outer levels
        saved = iter([unpack_dual(t)[0] if is_float(t) else t for t in ctx.saved_tensors])
        arguments = {name: next(saved) if v is None else v for name, v in arguments.items()}
        results = output_tangents(ops, op, arguments, attrs, tuple(saved), defined)
    return results[0] if len(results) == 1 else results


def output_tangents(
    ops: Mapping[str, Any],
    op: Op,
    arguments: Mapping[str, Any],
    attrs: Mapping[str, Any],
    outputs: tuple[Tensor, ...],
    tangents: Mapping[str, Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the tangent of each output of a call; None for integers.

    Args:
        ops: The functions of all ops, as adjoints call them.
        op: The op.
        arguments: Its arguments, without tangents.
        attrs: Its attributes.
        outputs: The outputs of the call, without tangents.
        tangents: The tangents of differentiable arguments, by name.
    """
    # Values determine the sparsity of data-sized ops, so applying them to tangents may select different rows.
    if not op.is_data_sized and set(tangents) <= set(op.linear):
        moved = {name: tangents[name] if name in tangents else zeros_like(arguments[name]) for name in op.linear}
        results = ops[op.name](*{**arguments, **moved}.values(), **attrs)
        return tuple(_tangent(o, r) for o, r in zip(outputs, _as_tuple(results), strict=True))
    call = Call(arguments, {**attrs, **DENSE}, outputs, frozenset(tangents))
    cotangents = [Like(o) if is_float(o) else None for o in outputs]
    tape = _Tape(ops)
    assert op.adjoint is not None
    for name, gradient in zip(op.differentiable, op.adjoint(tape, call, *cotangents), strict=True):
        if name in tangents:
            assert gradient is None or type(gradient) is Like, f"{op.name}: the adjoint for {name} is not linear"
            tape.add(gradient, tangents[name])
    tape.run_backwards()
    return tuple(_tangent(o, tape.take(y)) for o, y in zip(outputs, cotangents, strict=True))


def _tangent(output: Tensor, tangent: Tensor | None) -> Tensor | None:
    """Return the tangent of an output, in its layout; torch does not convert traced tensors of symbolic size."""
    if not is_float(output):
        return None
    return zeros_like(output) if tangent is None else tangent.contiguous()


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


class _Tape(dict[str, Any]):
    """The functions of all ops; records the calls that depend on cotangents instead of running them."""

    def __init__(self, ops: Mapping[str, Any]) -> None:
        super().__init__()
        self._ops = ops
        self._calls: list[tuple[Op, Call, tuple[Like, ...]]] = []
        self._gradients: dict[int, Tensor] = {}  # by the id of a Like, which the tape and its caller keep alive

    def __missing__(self, name: str) -> Callable[..., Any]:
        op, run = CATALOG[name], self._ops[name]

        def function(*args: Any, **attrs: Any) -> Any:
            arguments = dict(zip(op.input_names, args, strict=True))
            linear = frozenset(n for n in op.differentiable if type(arguments[n]) is Like)
            if not linear:  # at most, the op reads the shape or dtype of a cotangent
                return run(*args, **attrs)
            chosen = {**op.attrs, **attrs}
            results = tuple(Like.of(a.shape, DTYPE[a.dtype]) for a in infer_outputs(op, arguments, chosen))
            self._calls.append((op, Call(arguments, {**chosen, **DENSE}, results, linear), results))
            return results if len(results) > 1 else results[0]

        self[name] = function
        return function

    def add(self, value: Any, gradient: Any) -> None:
        """Add to the gradient of a value, if it depends on a cotangent."""
        if type(value) is Like and gradient is not None:
            dense = as_torch(self._ops, gradient, rows=False)
            before = self._gradients.get(id(value))
            self._gradients[id(value)] = dense if before is None else before + dense

    def take(self, value: Like | None) -> Tensor | None:
        """Return the sum of the gradients of a value; None if it has no gradient."""
        return self._gradients.pop(id(value), None)

    def run_backwards(self) -> None:
        """Run the adjoints of the recorded calls, last first."""
        for op, call, results in reversed(self._calls):
            ys = [self.take(r) for r in results]
            if all(y is None for y in ys):
                continue
            ys = [r.zeros(ys) if y is None else y for y, r in zip(ys, results, strict=True)]
            assert op.adjoint is not None
            for name, gradient in zip(op.differentiable, op.adjoint(self._ops, call, *ys), strict=True):
                if call.wants(name):
                    self.add(call.arguments[name], gradient)
