"""Every op of the catalogue in torch: registration, values, first- and second-order gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rowgrad as rg
import rowgrad.torch as rgt  # registers torch.ops.rowgrad
from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.raw_ops import OPS
from samples import sample
from test_input_arrays import EMPTY_LISTS
from torch_arrays import floats, split, to_numpy

KERNEL_OPS = [op for op in CATALOG.values() if op.kernel is not None]
COMPUTED = [op for op in CATALOG.values() if op.layer != "graph"]
DIFFERENTIABLE = [op for op in COMPUTED if op.adjoint is not None]
# NumPy and torch use different approximations for these.
APPROXIMATE = {
    "Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Sigmoid", "Tanh", "Softplus", "Rsqrt", "Pow", "Softmax",
    "LogSoftmax", "SoftmaxCrossEntropyWithLogits", "SigmoidCrossEntropyWithLogits", "Sum", "Mean", "MatMul",
    "L2Loss", "SumLike", "Prod", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "Conv2DInputLike",
    "Conv2DFilterLike",
}  # fmt: skip


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def tensors(op: Op, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the differentiable arguments, with lists flattened."""
    return [v for name in op.differentiable for v in as_list(inputs[name])]


def with_gradients(op: Op, inputs: dict[str, Any]) -> dict[str, Any]:
    for tensor in tensors(op, inputs):
        tensor.requires_grad_()
    return inputs


@pytest.mark.parametrize("op", KERNEL_OPS, ids=lambda op: op.name)
def test_opcheck(op: Op) -> None:
    inputs, attrs = split(op)
    inputs = with_gradients(op, inputs)
    values = (*inputs.values(), *({**op.attrs, **attrs}).values())
    # test_compile.py does opcheck's fourth check, traced values and gradients, to the bit.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(getattr(torch.ops.rowgrad, op.name).default, values, test_utils=checks)


@pytest.mark.parametrize("way", ["raw_ops", "torch.ops"])
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradcheck(op: Op, way: str) -> None:
    if way == "torch.ops" and op.kernel is None:
        return  # computed by torch's own operations
    inputs, attrs = split(op)
    function = OPS[op.name] if way == "raw_ops" else getattr(torch.ops.rowgrad, op.name)
    if op.name == "GatherRows":
        attrs["gradient"] = "dense"

    def run(*values: torch.Tensor) -> Any:
        leaves = iter(values)
        again = {
            n: [next(leaves) for _ in inputs[n]] if isinstance(inputs[n], list) else next(leaves)
            for n in op.differentiable
        }
        return floats(function(**{**inputs, **again}, **attrs))

    leaves_of_call = tuple(tensors(op, with_gradients(op, inputs)))
    assert torch.autograd.gradcheck(run, leaves_of_call)
    assert torch.autograd.gradgradcheck(
        run, leaves_of_call, fast_mode=True
    )  # along random directions, not entry by entry


@pytest.mark.parametrize("op", [op for op in COMPUTED if not all(a.host for a in op.inputs)], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_are_bitwise_those_of_numpy(op: Op, dtype: str) -> None:
    kind = rg._runtime.arrays.NUMPY_DTYPE[dtype]
    sampled = sample(op.name, np.random.default_rng(5), kind)
    expected = OPS[op.name](**sampled)
    inputs, attrs = split(op, kind, seed=5)
    got = OPS[op.name](**inputs, **attrs)
    for e, g in zip(*(x if isinstance(x, tuple) else (x,) for x in (expected, got)), strict=True):
        assert to_numpy(g).dtype == e.dtype
        if op.name in APPROXIMATE:
            single = 1e-5 if op.name.startswith("Conv2D") else 2.0**-22  # products of many terms
            step = 2.0**-7 if dtype == "bfloat16" else single
            np.testing.assert_allclose(to_numpy(g).astype(float), e.astype(float), rtol=step, atol=step)
        else:
            assert same_bits(to_numpy(g), e)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradients_are_bitwise_those_of_vjp(op: Op) -> None:
    """Both follow the adjoint in the catalogue."""
    kind = np.float32
    sampled = sample(op.name, np.random.default_rng(6), kind)
    attrs = {k: v for k, v in sampled.items() if k in op.attrs}
    arrays = {k: v for k, v in sampled.items() if k not in op.attrs}
    plain = OPS[op.name](**sampled)
    plain = plain if isinstance(plain, tuple) else (plain,)
    rng = np.random.default_rng(7)
    ys = [rng.standard_normal(o.shape).astype(o.dtype) if o.dtype.kind == "f" else None for o in plain]
    expected = rg.vjp(op.name, arrays, tuple(ys) if len(ys) > 1 else ys[0], **attrs)
    inputs, _ = split(op, kind, seed=6)
    outputs = OPS[op.name](**with_gradients(op, inputs), **attrs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    differentiable_outputs = [(o, torch.from_numpy(y)) for o, y in zip(outputs, ys, strict=True) if y is not None]
    results, cotangents = zip(*differentiable_outputs, strict=True)
    gradients = torch.autograd.grad(results, tensors(op, inputs), cotangents)
    names = [name for name in op.differentiable for _ in as_list(inputs[name])]
    found = [g for name in op.differentiable for g in as_list(expected[name])]
    for name, gradient, ours in zip(names, gradients, found, strict=True):
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        ours_dense = np.asarray(rg.densify(ours))
        if op.kernel is None:  # torch differentiates these itself
            np.testing.assert_allclose(to_numpy(dense), ours_dense, rtol=2e-6, atol=1e-6, err_msg=name)
        else:
            assert same_bits(to_numpy(dense), ours_dense), name


@pytest.mark.parametrize(("op", "arguments", "dtypes"), EMPTY_LISTS)
def test_empty_lists_next_to_tensors_are_float32(op: str, arguments: dict[str, Any], dtypes: list[str]) -> None:
    record = CATALOG[op]
    tensors = {
        a.name: torch.tensor(arguments[a.name], dtype=torch.int64).reshape(np.shape(arguments[a.name]))
        for a in record.inputs
        if a.type == "int64" and not a.host
    }
    if not tensors:
        tensors = {"segment_ids": torch.tensor(arguments["segment_ids"], dtype=torch.int64)}
    found = OPS[op](**{**arguments, **tensors})
    outputs = found if isinstance(found, tuple) else (found,)
    assert [str(x.dtype).removeprefix("torch.") for x in outputs] == dtypes


def test_profiles_name_the_op() -> None:
    """Every recorded call has the name of its op in profiles, forward and backward."""
    table = torch.ones(5, 2, requires_grad=True)
    ids, segments = torch.tensor([0, 3]), torch.tensor([0, 0])
    with torch.profiler.profile() as profile:
        for name in ("SparseSegmentMean", "SparseSegmentSqrtN"):
            getattr(rg.raw_ops, name)(table, ids, segments).sum().backward()
        bag = rgt.nn.EmbeddingBag(5, 2)
        bag(ids[None]).sum().backward()
    names = {event.name for event in profile.events()}
    expected = {"rowgrad::SparseSegmentMean", "rowgrad::SparseSegmentSqrtN", "rowgrad::EmbeddingBags"}
    assert names >= expected | {f"{name}Backward" for name in expected}
