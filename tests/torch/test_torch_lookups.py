"""Lookups on tensors compared with TensorFlow's results, forward and gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rowgrad as rg
from conformance.test_golden_lookups import FUNCTIONS, arguments, close, is_fixed
from golden_cases import Case, cases, same_bits
from test_embedding_lookup import EXTREME_NORMS
from torch_arrays import to_numpy, to_torch

CASES = [c for c in cases("valid", composites=True) if all(to_torch(a) is not None for a in c.inputs.values())]


def test_torch_supports_the_dtypes_of_all_cases() -> None:
    assert len(CASES) == len(list(cases("valid", composites=True)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lookup(case: Case) -> None:
    (params, ids, weights), options = arguments(case)
    table = to_torch(params).requires_grad_("dy" in case.inputs)
    leaves = {"dparams": table}
    if weights is not None:
        values = to_torch(weights.values)
        weights = rg.SparseTensor(weights.indices, values, weights.dense_shape)
        if values.is_floating_point() and table.requires_grad:
            leaves["dweights"] = values.requires_grad_()
    ids = rg.SparseTensor(ids.indices, to_torch(ids.values), ids.dense_shape)
    y = FUNCTIONS[case.op](table, ids, weights, **options)
    assert isinstance(y, torch.Tensor)
    agree(y, case.outputs["y"], case, "y")
    if "dy" not in case.inputs:
        return
    gradients = torch.autograd.grad(y, leaves.values(), to_torch(case.inputs["dy"]), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        expected_grad = dense(case, name, tuple(leaf.shape))
        if expected_grad is not None:
            agree(gradient.to_dense() if gradient.is_sparse else gradient, expected_grad, case, name)


def dense(case: Case, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return TensorFlow's gradient as a table; duplicate rows are summed in rowgrad's order."""
    if name in case.outputs:
        return case.outputs[name]
    if f"{name}_values" not in case.outputs:
        return None
    rows = rg.IndexedRows(case.outputs[f"{name}_values"], case.outputs[f"{name}_indices"], shape[0])
    return rg.densify(rows)


def agree(got: torch.Tensor, expected: np.ndarray, case: Case, name: str) -> None:
    found = to_numpy(got)
    # torch sums the gradients of duplicate ids in a different order
    repeated = f"{name}_indices" in case.outputs and len(set(case.outputs[f"{name}_indices"].tolist())) < len(
        case.outputs[f"{name}_indices"]
    )
    good = same_bits(found, expected) if is_fixed(case, name) and not repeated else close(found, expected, case)
    assert good, f"{case} {name}\n{found}\n{expected}"


@pytest.mark.parametrize("requires_grad", [True, False])
def test_shards_in_a_parameter_list(requires_grad: bool) -> None:
    shards = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(2, 3), requires_grad) for _ in range(2))
    ids = rg.SparseTensor([[0, 0]], torch.tensor([3]), [1, 1])
    for function in (rg.embedding_lookup_sparse, rg.safe_embedding_lookup_sparse):
        with pytest.raises(
            rg.errors.InvalidArgumentError, match=r"ParameterList of 2 arrays; .* a Python list"
        ) as caught:
            function(shards, ids)
        assert caught.value.argument in ("params", "embedding_weights")
        assert function(list(shards), ids).tolist() == [[1.0, 1.0, 1.0]]


def test_vjp_of_tensors_points_to_autograd() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([1]), [1, 1])
    with pytest.raises(TypeError, match=r"vjp: .* got torch.Tensor; use torch.autograd"):
        rg.vjp(rg.safe_embedding_lookup_sparse, (torch.ones(4, 2), ids), np.ones((1, 2), np.float32))


def test_safe_lookup_keeps_float64_weights_that_float32_cannot_hold() -> None:
    table = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    weights = torch.tensor([1e-50], dtype=torch.float64)
    ids = rg.SparseTensor([[0, 0]], torch.tensor([1]), [1, 1])
    found = rg.safe_embedding_lookup_sparse(table, ids, rg.SparseTensor([[0, 0]], weights, [1, 1]), default_id=2)
    assert found.tolist() == [[2.0]]


@pytest.mark.parametrize(("dtype", "row", "max_norm", "expected", "gradient"), EXTREME_NORMS)
def test_max_norm_of_extreme_numbers(
    dtype: str, row: list[float], max_norm: float, expected: list[float], gradient: list[float]
) -> None:
    params = torch.tensor([row], dtype=getattr(torch, dtype), requires_grad=True)
    ids = rg.SparseTensor([[0, 0]], torch.tensor([0]), [1, 1])
    found = rg.embedding_lookup_sparse(params, ids, None, "sum", max_norm=max_norm)
    found.sum().backward()
    for got, reference in ((found, expected), (params.grad, gradient)):
        numbers = got.detach().to_dense().double().numpy()
        np.testing.assert_allclose(numbers, [reference], rtol=1e-3)
