"""The dense layer on traced arrays: NumPy's values, and the records' gradients through JAX's differentiation."""

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

PER_PROGRAM = 24  # calls compiled together: a program by itself costs more than the calls in it
BY_DATA = ("Where", "Flatnonzero")
BETWEEN = ("int16", "uint16", "uint32")  # narrower and wider ones are computed: of these, types and shapes are asked
DENSE = [op for op in CATALOG.values() if op.layer == "dense" and op.kernel is None and op.name not in BY_DATA]


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def parts(op: Op, x: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is traced, and what stays as it is."""
    names = {a.name: a.many for a in op.inputs if not a.host}
    arrays = {n: [placed(v) for v in x[n]] if many else placed(x[n]) for n, many in names.items()}
    return arrays, {k: v for k, v in x.items() if k not in names}


def groups(calls: list[Any]) -> list[list[Any]]:
    return [calls[i : i + PER_PROGRAM] for i in range(0, len(calls), PER_PROGRAM)]


@pytest.mark.parametrize("calls", groups([p.values for p in CALLS if p.values[0].name not in BY_DATA]))
def test_values_and_gradients(calls: list[tuple[Op, dict[str, Any]]]) -> None:
    given = [(op, *parts(op, inputs_of(op, way))) for op, way in calls]
    made = [several(OPS[op.name](**inputs_of(op, way))) for op, way in calls]
    rng = np.random.default_rng(11)
    cotangents = [tuple(rng.normal(size=o.shape) for o in outputs) for outputs in made]

    def one(op: Op, arrays: dict[str, Any], rest: dict[str, Any], ys: Any) -> Any:
        def function(wanted: dict[str, Any]) -> tuple[Any, ...]:
            return several(OPS[op.name](**{**arrays, **rest, **wanted}))

        if not op.differentiable:
            return function({}), {}
        outputs, pull = jax.vjp(function, {n: arrays[n] for n in op.differentiable})
        return outputs, pull(ys)[0]

    program = jax.jit(
        lambda traced, ys: [one(op, t, rest, y) for (op, _, rest), t, y in zip(given, traced, ys, strict=True)]
    )
    results = program([arrays for _, arrays, _ in given], cotangents)
    for (op, way), (outputs, gradients), expected, ys in zip(calls, results, made, cotangents, strict=True):
        for got, wanted in zip(outputs, expected, strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), op.name
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-12, atol=1e-12, err_msg=op.name)
        x = inputs_of(op, way)
        arrays = {k: v for k, v in x.items() if k not in op.attrs}
        ours = rg.vjp(op.name, arrays, ys if len(ys) > 1 else ys[0], **{k: v for k, v in x.items() if k in op.attrs})
        for name, found in gradients.items():
            for g, e in zip(several(found), several(ours[name]), strict=True):
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
    """Integers and truth values to the bit; floats by approximations of each library's own."""
    ops = [op for op in DENSE if "T" in op.types and dtype in op.dtypes_of("T")]
    ops = [op for op in ops if op.name not in ("ScaleRows", "DivRows")]  # their second type follows T
    calls = [with_dtype(op, dtype) for op in ops]
    given = [parts(op, x) for op, x in zip(ops, calls, strict=True)]

    def program(traced: list[dict[str, Any]]) -> list[Any]:
        return [OPS[op.name](**t, **rest) for op, t, (_, rest) in zip(ops, traced, given, strict=True)]

    run = functools.partial(jax.eval_shape, program) if dtype in BETWEEN else jax.jit(program)
    tolerance = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-6, "complex64": 2e-6}.get(dtype, 1e-12)
    for op, x, outputs in zip(ops, calls, run([arrays for arrays, _ in given]), strict=True):
        for got, made in zip(several(outputs), several(OPS[op.name](**x)), strict=True):
            assert (got.dtype, got.shape) == (made.dtype, made.shape), op.name
            if dtype in BETWEEN:
                continue
            found = np.asarray(got)
            if made.dtype.kind in "iub":
                np.testing.assert_array_equal(found, made, err_msg=op.name)
            else:
                wide = np.complex128 if made.dtype.kind == "c" else np.float64
                np.testing.assert_allclose(
                    found.astype(wide), made.astype(wide), rtol=tolerance, atol=tolerance, err_msg=op.name
                )


@pytest.mark.parametrize("name", BY_DATA)
def test_sizes_by_data_are_refused(name: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="depends on data"):
        jax.jit(OPS[name])(jnp.array([True, False]))
    assert OPS[name](jnp.array([False, True])).ravel().tolist() == [1]
