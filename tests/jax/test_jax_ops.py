"""Every kernel op under JAX's transformations: forward and reverse derivatives; compiled calls equal eager ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.test_util import check_grads

import rowgrad as rg
from golden_cases import same_bits
from jax_arrays import split, x64
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.raw_ops import OPS

KERNELS = [op for op in CATALOG.values() if op.kernel is not None]
DIFFERENTIABLE = [op for op in KERNELS if op.adjoint is not None]
# Ops that differ only in a kernel's constants share their code here, and test_op_records.py checks the second
# derivatives of all adjoints: SqrtN, the longest, is tested instead of Sum and Mean too.
LAST_OF_A_KIND = {(op.kernel, op.input_names, len(op.outputs)): op.name for op in DIFFERENTIABLE}


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def by_name(ops: list[Op]) -> Any:
    return pytest.mark.parametrize("op", ops, ids=lambda op: op.name)


def function_of(op: Op, names: tuple[str, ...]) -> tuple[Callable[..., Any], list[Any]]:
    """Return the op's floating outputs as a function of these arguments of a sample, and those arguments."""
    arguments, attrs = split(op)

    def function(*values: Any) -> Any:
        outputs = OPS[op.name](**{**arguments, **dict(zip(names, values, strict=True))}, **attrs)
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        return [o for o in results if o.dtype.kind == "f"]

    return function, [arguments[name] for name in names]


@by_name(DIFFERENTIABLE)
def test_derivatives(op: Op) -> None:
    function, values = function_of(op, op.differentiable)
    check_grads(function, values, order=2 if op.name in LAST_OF_A_KIND.values() else 1, modes=("fwd", "rev"))


@by_name([op for op in DIFFERENTIABLE if "order" in op.attrs])
def test_derivatives_in_blocks(op: Op) -> None:
    arguments, attrs = split(op)

    def function(grad: Any) -> Any:
        result = OPS[op.name](**{**arguments, "grad": grad}, **{**attrs, "order": "blocked"})
        return result[0] if isinstance(result, tuple) else result

    check_grads(function, (arguments["grad"],), order=1, modes=("fwd", "rev"))


def compile_error(op: Op) -> str:
    """Return the error of compiling a call of this op, or "" if it compiles."""
    arguments, attrs = split(op)
    arrays = {a.name: arguments[a.name] for a in op.inputs if not a.host}
    try:
        jax.eval_shape(lambda x: OPS[op.name](**{**arguments, **x}, **attrs), arrays)
    except rg.errors.InvalidArgumentError as error:
        return error.message
    return ""


def test_compiling_data_sized_ops_raises_with_advice() -> None:
    rejected = {op.name: message for op in KERNELS if (message := compile_error(op))}
    kinds = ("Sum", "Mean", "SqrtN")
    sized = {f"{weighted}SparseSegment{kind}" for weighted in ("", "Weighted") for kind in kinds}
    padded = {f"SparseSegment{kind}GradV2" for kind in kinds}
    others = {"RaggedFillEmptyRows", "RowPlan", "SegmentSum", "SparseAdd", "SparseFillEmptyRows", "SparseSlice"}
    assert rejected.keys() == sized | padded | others
    assert all("depends on data" in message for message in rejected.values())
    assert all(f"use {name}WithNumSegments" in rejected[name] for name in sized)
    assert all("pass size=" in rejected[name] for name in padded)
    assert all("outside of jit" in rejected[name] for name in others)


def test_compiled_calls_are_bitwise_equal_to_eager_ones() -> None:
    """All ops of static size, with their gradients, in one program."""
    ops = [op for op in KERNELS if not compile_error(op)]
    samples = [split(op, np.float32) for op in ops]
    fixed = [
        {a.name: x[a.name] for a in op.inputs if a.host} | attrs for op, (x, attrs) in zip(ops, samples, strict=True)
    ]
    moving = [{a.name: x[a.name] for a in op.inputs if not a.host} for op, (x, _) in zip(ops, samples, strict=True)]

    def one(op: Op, x: dict[str, Any], constants: dict[str, Any]) -> Any:
        def floating(values: list[Any]) -> Any:
            outputs = OPS[op.name](**{**x, **dict(zip(op.differentiable, values, strict=True))}, **constants)
            return outputs if isinstance(outputs, tuple) else (outputs,)

        leaves = [x[name] for name in op.differentiable]
        outputs = floating(leaves)
        if op.adjoint is None:
            return outputs, ()
        _, pull = jax.vjp(lambda v: [o for o in floating(v) if o.dtype.kind == "f"], leaves)
        return outputs, pull([o for o in outputs if o.dtype.kind == "f"])

    def everything(values: list[dict[str, Any]]) -> Any:
        return [one(op, x, constants) for op, x, constants in zip(ops, values, fixed, strict=True)]

    eager, compiled = everything(moving), jax.jit(everything)(moving)
    names = [op.name for op in ops]
    assert len(names) > 40
    for name, a, b in zip(names, eager, compiled, strict=True):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            assert same_bits(np.asarray(x), np.asarray(y)), name


@pytest.mark.parametrize("compiled", [False, True])
def test_empty_lists_next_to_arrays_are_float32(compiled: bool) -> None:
    """As in TensorFlow; only ids as an empty list are integers."""

    def bags(ids: Any) -> Any:
        return rg.raw_ops.SparseSegmentMeanWithNumSegments([[]], ids, [0], 1)

    def gradient(ids: Any) -> Any:
        return rg.raw_ops.SparseSegmentSumGrad([[]], ids[:0], [], 1)

    def fill(ids: Any) -> Any:
        return rg.raw_ops.SparseFillEmptyRowsGrad(ids[:0], [])[1]

    for function in (bags, gradient, fill):
        found = (jax.jit(function) if compiled else function)(jax.numpy.zeros(1, jax.numpy.int32))
        assert found.dtype == jax.numpy.float32
