"""Lookups by a SparseTensor whose ids are on the device: the results and gradients of ids in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from emulated_call import same_bits
from test_emulated_torch import on_cpu_as_gpu, on_gpu
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt
from conformance.test_golden_lookups import FUNCTIONS, arguments
from golden_cases import Case, cases
from rowgrad.errors import InvalidArgumentError
from rowgrad.torch import device_ids
from torch_arrays import to_torch

CASES = [c for c in cases("valid", composites=True) if all(to_torch(a) is not None for a in c.inputs.values())]


def looked_up(case: Case, place: Any) -> list[Tensor | None]:
    """Return the result and the gradients of a golden case; `place` makes a SparseTensor."""
    (params, ids, weights), options = arguments(case)
    table = to_torch(params).requires_grad_("dy" in case.inputs)
    leaves = [table]
    if weights is not None:
        values = to_torch(weights.values)
        if values.is_floating_point() and table.requires_grad:
            leaves.append(values.requires_grad_())
        weights = place(weights.indices, values, weights.dense_shape)
    y = FUNCTIONS[case.op](table, place(ids.indices, to_torch(ids.values), ids.dense_shape), weights, **options)
    if "dy" not in case.inputs:
        return [y]
    gradients = torch.autograd.grad(y, leaves, to_torch(case.inputs["dy"]), allow_unused=True)
    return [y, *(g.to_dense() if g is not None and g.is_sparse else g for g in gradients)]


def on_device(indices: Any, values: Tensor, dense_shape: Any) -> rg.SparseTensor:
    sparse = rg.SparseTensor(torch.from_numpy(np.array(indices)), values, dense_shape)
    assert isinstance(sparse.indices, Tensor)
    return sparse


@pytest.mark.parametrize("case", CASES, ids=str)
def test_golden_lookups(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_cpu_as_gpu():
        monkeypatch.setattr(device_ids, "id_functions", lambda value: None)
        monkeypatch.setattr(rgt, "id_functions", lambda value: None)
        expected = looked_up(case, rg.SparseTensor)
        monkeypatch.undo()
    with on_gpu():
        got = looked_up(case, on_device)
    for a, b in zip(got, expected, strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and same_bits(a, b)), case


SHAPES = ((6, 4), (3, 2, 4), (5,))
LOOKUPS: tuple[dict[str, Any], ...] = (
    {},
    {"combiner": "sum", "default_id": 2},
    {"max_norm": 1.5},
    {"allow_fast_lookup": True, "combiner": "sqrtn"},
    {"lookup": "unique"},
)


def entries(shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, Tensor, Tensor]:
    """Return distinct indices in random order, ids of which some are negative, and weights of which some are 0."""
    draw = np.random.default_rng(seed)
    count = int(np.prod(shape))
    places = draw.permutation(count)[: draw.integers(0, count + 1)]
    ids = torch.from_numpy(draw.integers(-2, 9, len(places)))
    weights = torch.from_numpy(draw.integers(0, 4, len(places)) / 2).float()
    return np.stack(np.unravel_index(places, shape), 1).astype(np.int64), ids, weights


def train(shape: tuple[int, ...], seed: int, weighted: bool, options: dict[str, Any], place: Any) -> list[Tensor]:
    indices, ids, weights = entries(shape, seed)
    table = torch.randn(9, 5, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    own = weights.requires_grad_() if weighted else None
    sparse_weights = place(indices, own, shape) if weighted else None
    y = rg.safe_embedding_lookup_sparse(table, place(indices, ids, shape), sparse_weights, **options)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return [y.detach(), *(g.to_dense() for g in (table.grad, weights.grad) if g is not None)]


@pytest.mark.parametrize("options", LOOKUPS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_random_lookups(options: dict[str, Any], weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        shape = SHAPES[seed % 3]
        with on_cpu_as_gpu():
            monkeypatch.setattr(rgt, "id_functions", lambda value: None)
            expected = train(shape, seed, weighted, options, rg.SparseTensor)
            monkeypatch.undo()
        with on_gpu():
            got = train(shape, seed, weighted, options, on_device)
        assert len(got) == len(expected)
        assert all(map(same_bits, got, expected)), (shape, seed)


def test_parts_in_host_memory_are_copied_to_the_device() -> None:
    table, ids = torch.arange(8.0).reshape(4, 2), torch.tensor([1, 3])
    with on_gpu() as device:
        for indices, values in (
            (torch.tensor([[0, 0], [1, 0]]), ids.numpy()),
            ([[0, 0], [1, 0]], ids),
            (torch.tensor([[0, 0], [1, 0]], dtype=torch.int32), ids),
        ):
            device.launched.clear()
            found = rg.safe_embedding_lookup_sparse(table, rg.SparseTensor(indices, values, [2, 1]))
            assert found.tolist() == [[2.0, 3.0], [6.0, 7.0]]
            assert any("fill" in name for name in device.launched)


def test_a_gradient_reaches_what_is_copied_to_the_device() -> None:
    """A tensor on another device than the ids stays in autograd's graph."""
    functions = device_ids.DeviceIds(torch.device("meta"))
    weights = torch.ones(3, requires_grad=True)
    assert functions.place(weights, "sparse_weights").grad_fn is not None
    assert functions.read(weights, "sparse_ids").grad_fn is None


def test_errors_name_the_lookup() -> None:
    with on_gpu():
        sparse = rg.SparseTensor(torch.tensor([[0, 0]]), torch.tensor([7]), [1, 1])
        rg.safe_embedding_lookup_sparse(torch.ones(4, 2), sparse, combiner="sum", default_id=0)
        with pytest.raises(InvalidArgumentError) as caught:
            rgt.synchronize()
        assert caught.value.value == 7
        assert caught.value.bound == 4
        with pytest.raises(InvalidArgumentError, match="one of int32, int64; got float32"):
            rg.safe_embedding_lookup_sparse(
                torch.ones(4, 2), rg.SparseTensor(torch.tensor([[0, 0]]), torch.ones(1), [1, 1])
            )
        with pytest.raises(InvalidArgumentError, match=r"indices.*float32"):
            rg.SparseTensor(torch.zeros(1, 2), torch.tensor([7]), [1, 1])
        with pytest.raises(InvalidArgumentError, match="a matrix"):
            rg.SparseTensor(torch.tensor([0, 0]), torch.tensor([7]), [1, 1])


def test_modules_take_them() -> None:
    indices, ids = torch.tensor([[0, 0], [0, 1], [2, 0]]), torch.tensor([1, 3, 1])
    weights = rg.SparseTensor(indices, torch.tensor([1.0, 2.0, 3.0]), [3, 2])
    with on_gpu():
        module = rgt.nn.EmbeddingBag(4, 2, mode="sum", _weight=torch.arange(8.0).reshape(4, 2))
        sparse = rg.SparseTensor(indices, ids, [3, 2])
        assert module(sparse).tolist() == [[8.0, 10.0], [0.0, 0.0], [2.0, 3.0]]
        assert module(sparse, per_sample_weights=weights).tolist() == [[14.0, 17.0], [0.0, 0.0], [6.0, 9.0]]
        other = rg.SparseTensor(indices.flip(0), weights.values, [3, 2])
        with pytest.raises(InvalidArgumentError, match="other indices"):
            module(sparse, per_sample_weights=other)


def test_sparse_ops_stay_on_the_device() -> None:
    indices, values = torch.tensor([[0, 1], [1, 0], [2, 3]]), torch.tensor([5.0, 7.0, 9.0])
    with on_gpu():
        sparse = rg.SparseTensor(indices, values, torch.tensor([4, 4]))
        assert isinstance(sparse.dense_shape, np.ndarray)
        for found, expected in (
            (rg.sparse.slice(sparse, [1, 0], [2, 4]), [[7.0, 0, 0, 0], [0, 0, 0, 9.0]]),
            (rg.sparse.add(sparse, sparse), [[0, 10.0, 0, 0], [14.0, 0, 0, 0], [0, 0, 0, 18.0], [0] * 4]),
            (rg.sparse.fill_empty_rows(sparse, 1.0).tensor, [[0, 5.0, 0, 0], [7.0, 0, 0, 0], [0, 0, 0, 9.0],
                                                             [1.0, 0, 0, 0]]),
        ):  # fmt: skip
            assert isinstance(found.indices, Tensor)
            assert found.to_dense().tolist() == expected
            assert found.to_scipy().toarray().tolist() == expected
