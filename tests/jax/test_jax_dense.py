"""The dense layer on traced arrays: NumPy's values, and the catalogue's gradients through JAX's differentiation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
from dense_op_calls import CALLS, inputs_of
from jax_arrays import placed, x64
from rowgrad._catalog.spec import CATALOG, QUANTIZED, Op
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.raw_ops import OPS
from samples import sample

PER_PROGRAM = 24  # a program has a fixed cost, more than that of the calls in it
BY_DATA = ("Where", "Flatnonzero")
BETWEEN = ("int16", "uint16", "uint32")  # only shapes and dtypes are compared; narrower and wider types are computed
DENSE = [op for op in CATALOG.values() if op.layer == "dense" and op.kernel is None and op.name not in BY_DATA]


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def parts(op: Op, x: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the traced arguments and the constant ones."""
    names = {a.name: a.many for a in op.inputs if not a.host}
    arrays = {n: [placed(v) for v in x[n]] if many else placed(x[n]) for n, many in names.items()}
    return arrays, {k: v for k, v in x.items() if k not in names}


def groups(calls: list[Any]) -> list[list[Any]]:
    return [calls[i : i + PER_PROGRAM] for i in range(0, len(calls), PER_PROGRAM)]


@pytest.mark.parametrize("calls", groups([p.values for p in CALLS if p.values[0].name not in BY_DATA]))
def test_values_and_gradients(calls: list[tuple[Op, dict[str, Any]]]) -> None:
    prepared = [(op, *parts(op, inputs_of(op, way))) for op, way in calls]
    numpy_outputs = [as_tuple(OPS[op.name](**inputs_of(op, way))) for op, way in calls]
    rng = np.random.default_rng(11)
    cotangents = [tuple(rng.normal(size=o.shape) for o in outputs) for outputs in numpy_outputs]

    def one(op: Op, arrays: dict[str, Any], fixed: dict[str, Any], ys: Any) -> Any:
        def function(values: dict[str, Any]) -> tuple[Any, ...]:
            return as_tuple(OPS[op.name](**{**arrays, **fixed, **values}))

        if not op.differentiable:
            return function({}), {}
        outputs, pull = jax.vjp(function, {n: arrays[n] for n in op.differentiable})
        return outputs, pull(ys)[0]

    program = jax.jit(
        lambda traced, ys: [one(op, t, fixed, y) for (op, _, fixed), t, y in zip(prepared, traced, ys, strict=True)]
    )
    results = program([arrays for _, arrays, _ in prepared], cotangents)
    for (op, way), (outputs, gradients), expected, ys in zip(calls, results, numpy_outputs, cotangents, strict=True):
        for got, reference in zip(outputs, expected, strict=True):
            assert (got.shape, got.dtype) == (reference.shape, reference.dtype), op.name
            np.testing.assert_allclose(np.asarray(got), reference, rtol=1e-12, atol=1e-12, err_msg=op.name)
        x = inputs_of(op, way)
        arrays = {k: v for k, v in x.items() if k not in op.attrs}
        ours = rg.vjp(op.name, arrays, ys if len(ys) > 1 else ys[0], **{k: v for k, v in x.items() if k in op.attrs})
        for name, found in gradients.items():
            for g, e in zip(as_tuple(found), as_tuple(ours[name]), strict=True):
                np.testing.assert_allclose(np.asarray(g), np.asarray(e), rtol=1e-12, atol=1e-12, err_msg=op.name)


def with_dtype(op: Op, dtype: str) -> dict[str, Any]:
    kind = NUMPY_DTYPE[dtype]
    floats = {a.name for a in op.inputs if a.type == "T"}

    def cast(value: Any) -> Any:
        if isinstance(value, list):
            return [cast(v) for v in value]
        return np.asarray(abs(value) + 1 if kind.kind in "iub" else value).astype(kind)

    return {k: cast(v) if k in floats else v for k, v in sample(op.name, np.random.default_rng(5)).items()}


@pytest.mark.parametrize("dtype", [d for d in NUMPY_DTYPE if d not in ("string", *QUANTIZED)])
def test_every_dtype(dtype: str) -> None:
    """Integers and booleans must be equal; floats only close, because each library approximates differently."""
    ops = [op for op in DENSE if "T" in op.types and dtype in op.dtypes_of("T")]
    ops = [op for op in ops if op.name not in ("ScaleRows", "DivRows")]  # their second type depends on T
    calls = [with_dtype(op, dtype) for op in ops]
    prepared = [parts(op, x) for op, x in zip(ops, calls, strict=True)]

    def program(traced: list[dict[str, Any]]) -> list[Any]:
        return [OPS[op.name](**t, **fixed) for op, t, (_, fixed) in zip(ops, traced, prepared, strict=True)]

    run = functools.partial(jax.eval_shape, program) if dtype in BETWEEN else jax.jit(program)
    tolerance = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-6, "complex64": 2e-6}.get(dtype, 1e-12)
    for op, x, outputs in zip(ops, calls, run([arrays for arrays, _ in prepared]), strict=True):
        for got, numpy_outputs in zip(as_tuple(outputs), as_tuple(OPS[op.name](**x)), strict=True):
            assert (got.dtype, got.shape) == (numpy_outputs.dtype, numpy_outputs.shape), op.name
            if dtype in BETWEEN:
                continue
            found = np.asarray(got)
            if numpy_outputs.dtype.kind in "iub":
                np.testing.assert_array_equal(found, numpy_outputs, err_msg=op.name)
            else:
                wide = np.complex128 if numpy_outputs.dtype.kind == "c" else np.float64
                np.testing.assert_allclose(
                    found.astype(wide), numpy_outputs.astype(wide), rtol=tolerance, atol=tolerance, err_msg=op.name
                )


@pytest.mark.parametrize("name", BY_DATA)
def test_data_dependent_sizes_raise(name: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="depends on data"):
        jax.jit(OPS[name])(jnp.array([True, False]))
    assert OPS[name](jnp.array([False, True])).ravel().tolist() == [1]
