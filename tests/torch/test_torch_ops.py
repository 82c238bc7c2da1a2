"""Every op of the catalogue in torch: registration, first- and second-order gradients, values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rowgrad as rg
import rowgrad.torch  # registers torch.ops.rowgrad
from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.raw_ops import OPS
from samples import sample
from test_input_arrays import EMPTY_LISTS
from torch_arrays import floats, split, to_numpy

KERNEL_OPS = [op for op in CATALOG.values() if op.kernel is not None]
COMPUTED = [op for op in CATALOG.values() if op.layer != "graph"]
DIFFERENTIABLE = [op for op in COMPUTED if op.adjoint is not None]
# What NumPy and torch compute by approximations of their own.
APPROXIMATE = {
    "Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Sigmoid", "Tanh", "Softplus", "Rsqrt", "Pow", "Softmax",
    "LogSoftmax", "SoftmaxCrossEntropyWithLogits", "SigmoidCrossEntropyWithLogits", "Sum", "Mean", "MatMul",
    "L2Loss", "SumLike", "Prod",
}  # fmt: skip


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def tensors(op: Op, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """The differentiable arguments, lists taken apart."""
    return [v for name in op.differentiable for v in listed(inputs[name])]


def recorded(op: Op, inputs: dict[str, Any]) -> dict[str, Any]:
    for tensor in tensors(op, inputs):
        tensor.requires_grad_()
    return inputs


@pytest.mark.parametrize("op", KERNEL_OPS, ids=lambda op: op.name)
def test_opcheck(op: Op) -> None:
    inputs, attrs = split(op)
    inputs = recorded(op, inputs)
    values = (*inputs.values(), *({**op.attrs, **attrs}).values())
    # Its fourth check, of traced values and gradients, is made to the bit in test_compile.py.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(getattr(torch.ops.rowgrad, op.name).default, values, test_utils=checks)


@pytest.mark.parametrize("way", ["raw_ops", "torch.ops"])
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradcheck(op: Op, way: str) -> None:
    if way == "torch.ops" and op.kernel is None:
        return  # torch's own operations
    inputs, attrs = split(op)
    function = OPS[op.name] if way == "raw_ops" else getattr(torch.ops.rowgrad, op.name)
    if op.name == "GatherRows":
        attrs["gradient"] = "dense"

    def run(*values: torch.Tensor) -> Any:
        rest = iter(values)
        again = {
            n: [next(rest) for _ in inputs[n]] if isinstance(inputs[n], list) else next(rest) for n in op.differentiable
        }
        return floats(function(**{**inputs, **again}, **attrs))

    given = tuple(tensors(op, recorded(op, inputs)))
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True)  # along drawn directions, not entry by entry


@pytest.mark.parametrize("op", [op for op in COMPUTED if not all(a.host for a in op.inputs)], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_as_numpy(op: Op, dtype: str) -> None:
    kind = rg._runtime.arrays.NUMPY_DTYPE[dtype]
    drawn = sample(op.name, np.random.default_rng(5), kind)
    expected = OPS[op.name](**drawn)
    inputs, attrs = split(op, kind, seed=5)
    got = OPS[op.name](**inputs, **attrs)
    for e, g in zip(*(x if isinstance(x, tuple) else (x,) for x in (expected, got)), strict=True):
        assert to_numpy(g).dtype == e.dtype
        if op.name in APPROXIMATE:
            step = 2.0**-7 if dtype == "bfloat16" else 2.0**-22
            np.testing.assert_allclose(to_numpy(g).astype(float), e.astype(float), rtol=step, atol=step)
        else:
            assert same_bits(to_numpy(g), e)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_the_same_gradients_as_vjp(op: Op) -> None:
    """Bit for bit: both follow the record's adjoint."""
    kind = np.float32
    drawn = sample(op.name, np.random.default_rng(6), kind)
    attrs = {k: v for k, v in drawn.items() if k in op.attrs}
    arrays = {k: v for k, v in drawn.items() if k not in op.attrs}
    plain = OPS[op.name](**drawn)
    plain = plain if isinstance(plain, tuple) else (plain,)
    rng = np.random.default_rng(7)
    ys = [rng.standard_normal(o.shape).astype(o.dtype) if o.dtype.kind == "f" else None for o in plain]
    expected = rg.vjp(op.name, arrays, tuple(ys) if len(ys) > 1 else ys[0], **attrs)
    inputs, _ = split(op, kind, seed=6)
    outputs = OPS[op.name](**recorded(op, inputs), **attrs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    kept = [(o, torch.from_numpy(y)) for o, y in zip(outputs, ys, strict=True) if y is not None]
    results, cotangents = zip(*kept, strict=True)
    gradients = torch.autograd.grad(results, tensors(op, inputs), cotangents)
    names = [name for name in op.differentiable for _ in listed(inputs[name])]
    found = [g for name in op.differentiable for g in listed(expected[name])]
    for name, gradient, ours in zip(names, gradients, found, strict=True):
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        wanted = np.asarray(rg.densify(ours))
        if op.kernel is None:  # torch differentiates these by itself
            np.testing.assert_allclose(to_numpy(dense), wanted, rtol=2e-6, atol=1e-6, err_msg=name)
        else:
            assert same_bits(to_numpy(dense), wanted), name


@pytest.mark.parametrize(("op", "arguments", "dtypes"), EMPTY_LISTS)
def test_empty_lists_beside_tensors_are_float32(op: str, arguments: dict[str, Any], dtypes: list[str]) -> None:
    record = CATALOG[op]
    tensors = {
        a.name: torch.tensor(arguments[a.name], dtype=torch.int64).reshape(np.shape(arguments[a.name]))
        for a in record.inputs
        if a.type == "int64" and not a.host
    }
    if not tensors:
        tensors = {"segment_ids": torch.tensor(arguments["segment_ids"], dtype=torch.int64)}
    found = OPS[op](**{**arguments, **tensors})
    several = found if isinstance(found, tuple) else (found,)
    assert [str(x.dtype).removeprefix("torch.") for x in several] == dtypes
