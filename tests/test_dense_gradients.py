"""Gradients of the dense layer: finite differences for every argument, to second order, also in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from dense_op_calls import CALLS, SMOOTH, inputs_of
from rowgrad._catalog.spec import CATALOG, FLOATS, Aval, Call, Op, find_op
from rowgrad._runtime.dispatch import bind
from rowgrad._runtime.validation import infer
from rowgrad.raw_ops import OPS
from samples import sample


def flat(value: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in value] if isinstance(value, list | tuple) else [np.asarray(value)]


def outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(("op", "way"), CALLS)
def test_gradients_agree_with_finite_differences(op: Op, way: dict[str, Any]) -> None:
    x = inputs_of(op, way)
    rng, step = np.random.default_rng(9), 1e-5
    expected_outputs = outputs(OPS[op.name](**x))
    ys = tuple(rng.normal(size=o.shape) for o in expected_outputs)
    arrays = {k: v for k, v in x.items() if k not in op.attrs}
    attrs = {k: v for k, v in x.items() if k in op.attrs}
    found = rg.vjp(op.name, arrays, ys if len(ys) > 1 else ys[0], **attrs)

    def scalar(name: str, values: list[np.ndarray]) -> float:
        argument = values if isinstance(x[name], list) else values[0]
        return sum(
            float(np.vdot(o, y)) for o, y in zip(outputs(OPS[op.name](**{**x, name: argument})), ys, strict=True)
        )

    for name in op.differentiable:
        if op.name == "Pow" and name == "y" and (x["x"] < 0).any():
            continue  # defined as 0, where there is no derivative
        parts, gradients = flat(x[name]), flat(found[name])
        assert [g.shape for g in gradients] == [p.shape for p in parts]
        along = [rng.normal(size=p.shape) for p in parts]
        ahead = scalar(name, [p + step * d for p, d in zip(parts, along, strict=True)])
        behind = scalar(name, [p - step * d for p, d in zip(parts, along, strict=True)])
        slope = sum(float(np.vdot(g, d)) for g, d in zip(gradients, along, strict=True))
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize(("op", "way"), CALLS)
def test_second_derivatives_agree_with_finite_differences(op: Op, way: dict[str, Any]) -> None:
    x = inputs_of(op, way)
    rng, step = np.random.default_rng(10), 1e-5
    names = [n for n in op.differentiable if not (op.name == "Pow" and n == "y" and (x["x"] < 0).any())]
    ys = tuple(rng.normal(size=o.shape) for o in outputs(OPS[op.name](**x)))
    values = [v for n in names for v in flat(x[n])]
    along = [rng.normal(size=v.shape) for v in values]

    def function(*at: Any) -> Any:
        leaves = iter(at)
        changed = {n: [next(leaves) for _ in x[n]] if isinstance(x[n], list) else next(leaves) for n in names}
        return OPS[op.name](**{**x, **changed})

    def gradient(*at: Any) -> tuple[Any, ...]:
        found = rg.vjp(function, at, ys)
        return tuple(v if g is None else rg.densify(g) for g, v in zip(found, at, strict=True))

    curved = rg.vjp(gradient, values, tuple(along))
    other = [rng.normal(size=v.shape) for v in values]
    found = sum(float(np.vdot(g, d)) for g, d in zip(curved, other, strict=True) if g is not None)

    def slope(sign: int) -> float:
        at = [v + sign * step * d for v, d in zip(values, other, strict=True)]
        return sum(float(np.vdot(g, d)) for g, d in zip(gradient(*at), along, strict=True))

    assert found == pytest.approx((slope(1) - slope(-1)) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d != "float64"])
@pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)
def test_gradients_keep_the_dtype(op: Op, dtype: str) -> None:
    kind = rg._runtime.arrays.NUMPY_DTYPE[dtype]
    x = sample(op.name, np.random.default_rng(8), kind)
    arrays = {k: v for k, v in x.items() if k not in op.attrs}
    ys = tuple(np.ones_like(o) for o in outputs(OPS[op.name](**x)))
    found = rg.vjp(op.name, arrays, ys if len(ys) > 1 else ys[0], **{k: x[k] for k in x if k in op.attrs})
    for name in op.differentiable:
        for gradient, value in zip(flat(found[name]), flat(x[name]), strict=True):
            assert gradient.dtype == value.dtype


class Symbol:
    """A wire of a graph: dtype and shape, with unknown sizes."""

    def __init__(self, aval: Aval) -> None:
        self.dtype, self.shape = aval.dtype, aval.shape


class Symbols(dict[str, Any]):
    """Ops on symbols: only shape rules, so that an adjoint can read neither data nor sizes."""

    def __missing__(self, name: str) -> Any:
        op = find_op(name)
        assert op is not None
        return lambda *args, **attrs: symbolic(op, *bind(op, args, attrs))


def aval(value: Any) -> Any:
    if isinstance(value, Symbol):
        return Aval(value.dtype, value.shape)
    return Aval("int32", np.shape([0 if v is None else v for v in value] if isinstance(value, list | tuple) else 0))


def symbolic(op: Op, arguments: dict[str, Any], attrs: Any) -> Any:
    avals = {a.name: tuple(map(aval, arguments[a.name])) if a.many else aval(arguments[a.name]) for a in op.inputs}
    host = {a.name: arguments[a.name] for a in op.inputs if a.host}
    host = {k: tuple(v) if isinstance(v, list) else v for k, v in host.items()}
    made = tuple(Symbol(o) for o in infer(op, avals, host, attrs))
    return made if len(made) > 1 else made[0]


@pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)
def test_adjoints_work_with_unknown_sizes(op: Op) -> None:
    x = sample(op.name, np.random.default_rng(8))

    def unknown(value: Any) -> Symbol:
        array = np.asarray(value)
        return Symbol(Aval(rg._runtime.arrays.aval_of(array).dtype, (None,) * array.ndim))

    given = {
        a.name: x[a.name] if a.host else tuple(map(unknown, x[a.name])) if a.many else unknown(x[a.name])
        for a in op.inputs
    }
    attrs = {**op.attrs, **{k: v for k, v in x.items() if k in op.attrs}}
    made = outputs(symbolic(op, given, attrs))
    upstream = [Symbol(Aval(o.dtype, o.shape)) for o in made]
    assert op.adjoint is not None
    found = op.adjoint(Symbols(), Call(given, attrs, made), *upstream)
    for name, gradient in zip(op.differentiable, found, strict=True):
        pairs = zip(gradient, given[name], strict=True) if isinstance(gradient, list) else [(gradient, given[name])]
        for g, value in pairs:
            assert (g.dtype, len(g.shape)) == (value.dtype, len(value.shape)), name


def test_unknown_sizes_broadcast() -> None:
    def z(x: Any, y: Any) -> Any:
        return infer(CATALOG["Add"], {"x": Aval("float32", x), "y": Aval("float32", y)}, {}, {})[0].shape

    assert z((None, 3), (1, 1)) == (None, 3)
    assert z((None,), (4,)) == (4,)
    assert z((None, 1), (None, 5)) == (None, 5)
    assert z((), (None,)) == (None,)


def test_unknown_axis() -> None:
    def shape(axis: Any, **attrs: Any) -> Any:
        avals = {"input": Aval("float32", (2, 3)), "axis": Aval("int32", axis)}
        return infer(CATALOG["Sum"], avals, {"axis": None}, {"keep_dims": False, **attrs})[0].shape

    assert shape((), keep_dims=True) == (None, None)
    assert shape(()) == (None,)
    assert shape((2,)) == ()
    with pytest.raises(rg.errors.InvalidArgumentError, match="Enter its value, or wire a Const"):
        shape((None,))


def test_gradient_of_a_product_that_overflows() -> None:
    cases = [
        ([1e-25, 1e-25, 1.0, 1.0], [1e-25, 1e-25, 0.0, 0.0]),
        ([1e20, 1e20, 1e-30], [1e-10, 1e-10, np.inf]),
        ([np.nan, 1.0, 2.0, 2.0], [4.0, np.nan, np.nan, np.nan]),
        ([0.0, 2.0, 3.0], [6.0, 0.0, 0.0]),
    ]
    for numbers, expected in cases:
        x = np.array(numbers, np.float32)
        found = rg.vjp("Prod", {"input": x, "axis": 0}, np.float32(1))["input"]
        np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-6)


@pytest.mark.parametrize("numbers", [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0, 5.0], [1.5, -2.0, 3.0], [2.0]])
def test_second_and_third_derivatives_of_a_product(numbers: list[float]) -> None:
    x = np.array(numbers)
    n = len(x)

    def gradient(x: Any) -> Any:
        return rg.dense_ops.ProdOthers([x], 0)

    def hessian(x: Any, w: Any) -> Any:
        return rg.vjp(gradient, (x,), w)[0]

    for i in range(n):
        second = hessian(x, np.eye(n)[i])
        assert second.tolist() == [0.0 if i == j else np.prod(np.delete(x, [i, j])) for j in range(n)]
        for j in range(n):
            third = rg.vjp(hessian, (x, np.eye(n)[i]), np.eye(n)[j])[0]
            expected = [0.0 if len({i, j, k}) < 3 else np.prod(np.delete(x, [i, j, k])) for k in range(n)]
            assert third.tolist() == expected


def test_rank_of_a_product_of_others_is_bounded() -> None:
    x = np.ones(20)
    assert rg.dense_ops.ProdOthers([x] * 9, 0)[0] == np.prod(np.arange(12.0, 20.0))  # ways to place eight weights
    with pytest.raises(ValueError, match="at most 8 weights; got 40"):
        rg.dense_ops.ProdOthers([x] * 41, 0)
