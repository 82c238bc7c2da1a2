"""Every op record is complete: its example runs, its kernels support its dtypes, its adjoint is correct."""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad import _core
from rowgrad._catalog.spec import ALL_DTYPES, CATALOG, Op
from rowgrad._error_messages import MESSAGES
from rowgrad.raw_ops import OPS
from samples import sample

COMPUTED = [op for op in CATALOG.values() if op.layer != "graph"]  # graph ops are not functions
RECORDS = [pytest.param(op, id=op.name) for op in COMPUTED]
LINEAR = [pytest.param(op, id=op.name) for op in COMPUTED if op.linear]
SMOOTH = [pytest.param(op, id=op.name) for op in COMPUTED if op.differentiable and op.adjoint]
KERNELS = [pytest.param(op, id=op.name) for op in COMPUTED if op.layer == "kernel"]


def split(op: Op, x: dict[str, Any], names: tuple[str, ...]) -> tuple[list[np.ndarray], Any]:
    """Return the values of `names`, with lists flattened, and the op's float outputs as a function of them."""

    def function(*values: Any) -> tuple[Any, ...]:
        remaining = iter(values)
        arguments = {n: [next(remaining) for _ in x[n]] if isinstance(x[n], list) else next(remaining) for n in names}
        result = OPS[op.name](**{**x, **arguments})
        results = result if isinstance(result, tuple) else (result,)
        return tuple(r for r in results if is_float(r))

    return [v for n in names for v in (x[n] if isinstance(x[n], list) else [x[n]])], function


def is_float(value: Any) -> bool:
    return np.dtype(value.dtype).kind == "f"


def inner(a: Any, b: Any) -> float:
    return sum(float(np.vdot(rg.densify(p), q)) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("op", RECORDS)
def test_example_runs(op: Op) -> None:
    tree = ast.parse(op.example)
    assert isinstance(tree.body[-1], ast.Expr), "an example ends with the value it shows"
    scope: dict[str, Any] = {}
    exec(compile(ast.Module(tree.body[:-1], []), op.name, "exec"), scope)
    value = eval(compile(ast.Expression(tree.body[-1].value), op.name, "eval"), scope)
    assert value is not None


@pytest.mark.parametrize("op", RECORDS)
def test_record_is_complete(op: Op) -> None:
    assert op.doc
    assert op.category
    assert op.layer in ("kernel", "dense")
    assert op.kernel is not None or op.layer == "dense"
    assert set(op.linear) <= set(op.differentiable) <= set(op.input_names)
    assert all(a.type in op.types or a.type in ALL_DTYPES for a in op.inputs)
    assert all(
        o.type in op.types or o.type in ALL_DTYPES or set(op.choices[o.type]) <= set(ALL_DTYPES) for o in op.outputs
    )
    assert OPS[op.name].__doc__ == op.doc
    assert op.layer != "kernel" or op.rows is not None


@pytest.mark.parametrize("op", KERNELS)
def test_compiled_for_its_dtypes(op: Op) -> None:
    compiled = dict(_core.kernels())[op.kernel]
    kind = "T" if "T" in op.types else "Tidx"  # plans only have ids
    expected = [d for d in op.dtypes_of(kind) if d != "string"]  # strings are moved by position
    moves_bits = len(compiled) == len(_core.dtypes())
    assert set(expected) <= set(compiled) if moves_bits else set(expected) == set(compiled) or is_narrower(op)


def is_narrower(op: Op) -> bool:
    """Return whether the op has fewer dtypes than its kernel: Mean and SqrtN share Sum's; RowPositions' T is of ids."""
    return op.name.startswith(("SparseSegmentMean", "SparseSegmentSqrtN")) or op.name == "SparseSegmentSumWithPlan"


def test_every_kernel_and_fault_is_used() -> None:
    assert {op.kernel for op in CATALOG.values() if op.kernel} == {name for name, _ in _core.kernels()}
    assert {f for f in _core.faults() if f != "none"} <= set(MESSAGES)
    assert [d for d in _core.dtypes() if d not in ALL_DTYPES] == []


def test_catalog_is_plain_data() -> None:
    again = json.loads(json.dumps(rg.catalog()))
    assert [e["name"] for e in again] == list(CATALOG)
    assert CATALOG["SparseSegmentSqrtNGrad"].snake_name == "sparse_segment_sqrt_n_grad"
    assert rg.raw_ops.sparse_segment_sqrt_n_grad is rg.compat.v1.raw_ops.SparseSegmentSqrtNGrad


@pytest.mark.parametrize("op", LINEAR)
def test_adjoint_identity(op: Op) -> None:
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        values, function = split(op, sample(op.name, rng), op.linear)
        outputs = function(*values)
        ys = tuple(rng.normal(size=o.shape) for o in outputs)
        back = rg.vjp(function, values, ys)
        assert inner(outputs, ys) == pytest.approx(inner(back, values), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("op", LINEAR)
def test_transpose_of_the_transpose(op: Op) -> None:
    """The gradient is linear in the cotangent; its own gradient is the op again, twice."""
    rng = np.random.default_rng(2)
    values, function = split(op, sample(op.name, rng), op.linear)
    ys = tuple(rng.normal(size=o.shape) for o in function(*values))

    def gradient(*cotangents: Any) -> tuple[Any, ...]:
        return tuple(rg.densify(g) for g in rg.vjp(function, values, cotangents))

    directions = tuple(rng.normal(size=np.shape(v)) for v in values)
    second = rg.vjp(gradient, ys, directions)
    for got, expected in zip(second, function(*directions), strict=True):
        np.testing.assert_allclose(rg.densify(got), expected, rtol=1e-12, atol=1e-12)

    def gradient_of_gradient(*along: Any) -> tuple[Any, ...]:
        return tuple(rg.densify(g) for g in rg.vjp(gradient, ys, along))

    third = rg.vjp(gradient_of_gradient, directions, ys)
    for got, expected in zip(third, gradient(*ys), strict=True):
        np.testing.assert_allclose(rg.densify(got), expected, rtol=1e-12, atol=1e-12)


def numeric(f: Any, values: list[np.ndarray], directions: list[np.ndarray], step: float = 1e-5) -> float:
    ahead = f(*(v + step * d for v, d in zip(values, directions, strict=True)))
    behind = f(*(v - step * d for v, d in zip(values, directions, strict=True)))
    return (ahead - behind) / (2 * step)


@pytest.mark.parametrize("op", SMOOTH)
def test_first_and_second_derivatives_by_differences(op: Op) -> None:
    rng = np.random.default_rng(3)
    values, function = split(op, sample(op.name, rng), op.differentiable)
    ys = tuple(rng.normal(size=o.shape) for o in function(*values))
    directions = [rng.normal(size=np.shape(v)) for v in values]

    def scalar(*at: Any) -> float:
        return inner(function(*at), ys)

    def slope(*at: Any) -> float:
        found = rg.vjp(function, at, ys)
        return inner([np.zeros(np.shape(a)) if g is None else g for a, g in zip(at, found, strict=True)], directions)

    assert slope(*values) == pytest.approx(numeric(scalar, values, directions), rel=1e-6, abs=1e-7)

    def gradient(*at: Any) -> tuple[Any, ...]:
        return tuple(rg.densify(g) for g in rg.vjp(function, at, ys))

    other = [rng.normal(size=np.shape(v)) for v in values]
    curved = rg.vjp(gradient, values, tuple(directions))
    found = inner([np.zeros(np.shape(v)) if g is None else g for v, g in zip(values, curved, strict=True)], other)
    assert found == pytest.approx(numeric(slope, values, other), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("op", KERNELS)
def test_traced_rows_are_in_range(op: Op) -> None:
    x = sample(op.name, np.random.default_rng(4))
    result = OPS[op.name](**x)
    first = result[1] if isinstance(result, tuple) and op.name.endswith("FillEmptyRows") else result
    rows = (first[0] if isinstance(first, tuple) else first).shape[0]
    pairs = list(op.rows(x))
    assert all(out >= 0 for out, _ in pairs)
    if not op.name.startswith("SparseAdd"):
        assert all(out < rows for out, _ in pairs)
