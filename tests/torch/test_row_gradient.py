"""`RowGradient`: what torch computes of it equals what it computes of the dense gradient, and its class is kept."""

from __future__ import annotations

import copy
import gc
import io
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.torch import row_gradient
from rowgrad.torch.row_gradient import RowGradient, sparse_rows

IDS, VALUES = torch.tensor([1, 3, 4]), torch.tensor([[3.0, -0.5], [0.0, 4.0], [-2.0, 1.5]])
KINDS = ["unique", "repeated", "padded", "whole", "empty"]


def gradient(kind: str = "unique", dtype: torch.dtype = torch.float32) -> Any:
    values = VALUES.to(dtype, copy=True)
    if kind == "unique":
        return RowGradient(IDS.clone(), values, 6)
    if kind == "repeated":
        return RowGradient(torch.tensor([3, 1, 3]), values, 6)
    if kind == "padded":
        ids, rows = torch.cat([IDS, IDS[-1:].expand(2)]), torch.cat([values, torch.zeros(2, 2, dtype=dtype)])
        return sparse_rows(rows, ids, 6, unique=True, count=torch.tensor(3))
    if kind == "whole":
        return RowGradient(torch.arange(3), values, 3)
    return RowGradient(IDS[:0], values[:0], 6)


FUNCTIONS: list[Callable[[Any], Any]] = [
    torch.linalg.vector_norm,
    lambda g: torch.linalg.vector_norm(g, 1),
    lambda g: torch.linalg.vector_norm(g, 0),
    lambda g: torch.linalg.vector_norm(g, -1),
    lambda g: torch.linalg.vector_norm(g, float("inf")),
    lambda g: torch.linalg.vector_norm(g, float("-inf")),
    lambda g: torch.linalg.vector_norm(g, 3, dtype=torch.float64),
    lambda g: torch.linalg.vector_norm(g, keepdim=True),
    torch.linalg.norm,
    torch.norm,
    lambda g: torch.norm(g, 3),
    lambda g: torch.norm(input=g, p=1),
    lambda g: torch.clamp(min=-1, max=1, input=g),
    lambda g: torch.linalg.vector_norm(x=g),
    lambda g: g.norm(),
    lambda g: g.norm(p=1),
    lambda g: torch.stack(torch._foreach_norm([torch.ones(2), g, torch.ones(3)], 2.0)),
    lambda g: g.sum(),
    lambda g: g.mean(),
    torch.max,
    torch.min,
    lambda g: g.abs().max(),
    lambda g: g.amax(),
    lambda g: g.amin(),
    torch.isfinite,
    torch.isnan,
    torch.isinf,
    lambda g: torch.isnan(g.float()).any(),
    lambda g: g.isfinite().all(),
    lambda g: g.any(),
    lambda g: g.all(),
    torch.count_nonzero,
    lambda g: g * 2,
    lambda g: 2 * g,
    lambda g: g / 4,
    operator.neg,
    lambda g: g + g,
    lambda g: g - g,
    lambda g: g.clone().mul_(2),
    lambda g: g.clone().mul_(torch.tensor(2.0)),
    lambda g: g.clone().div_(torch.tensor(2.0)),
    lambda g: operator.imul(g.clone(), 3),
    lambda g: operator.itruediv(g.clone(), 2),
    lambda g: g.clone().add_(g, alpha=2),
    lambda g: operator.iadd(g.clone(), g),
    lambda g: g.clone().clamp_(-1, 1),
    lambda g: g.clone().clamp_(max=1),
    lambda g: g.clone().clamp_min_(-1),
    lambda g: g.clamp(-1, 1),
    lambda g: torch.clip(g, min=-1),
    lambda g: torch._foreach_mul_([torch.ones(2), g.clone()], 0.5)[1],
    lambda g: torch._foreach_div_([torch.ones(2), g.clone()], torch.tensor(0.5))[1],
    lambda g: torch._foreach_clamp_min_([torch.ones(2), g.clone()], -1.0)[1],
    lambda g: torch._foreach_clamp_max_([torch.ones(2), g.clone()], 1.0)[1],
    lambda g: g.to(torch.float64),
    lambda g: g.bfloat16(),
    lambda g: g.detach(),
    lambda g: copy.deepcopy(g),
    lambda g: pickle.loads(pickle.dumps(g)),
    lambda g: g.clone().zero_(),
    lambda g: g.clone().copy_(g),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_functions_equal_those_of_the_dense_gradient(kind: str, function: Callable[[Any], Any]) -> None:
    grad = gradient(kind)
    before = grad.to_dense()
    try:
        expected = function(before)
    except RuntimeError:  # a maximum of nothing
        expected = None
    if expected is None:
        with pytest.raises(RuntimeError):
            function(grad)
        return
    found = function(grad)
    assert not found.is_sparse or type(found) is RowGradient, "the class is kept"
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found.to_dense(), expected, equal_nan=True)
    torch.testing.assert_close(grad.to_dense(), before)


@pytest.mark.parametrize("kind", ["unique", "repeated", "padded"])
def test_functions_of_gradients_with_nan(kind: str) -> None:
    grad = gradient(kind)
    grad.rows()[0, 0] = float("nan")
    assert not torch.isfinite(grad).all()
    assert torch.isnan(grad).any()
    assert torch.isnan(torch.linalg.vector_norm(grad))
    assert torch.isnan(grad.abs().max())


def test_in_place_functions_keep_object_and_order() -> None:
    for kind in ("unique", "repeated", "padded"):
        grad = gradient(kind)
        ids, version, was = grad.ids(), grad._version, grad.is_coalesced()
        assert grad.mul_(2) is grad
        torch._foreach_mul_([grad], 0.5)
        assert grad.div_(2.0) is grad
        grad *= 4
        assert grad.is_coalesced() == was
        assert torch.equal(grad.ids(), ids)
        assert grad._version > version
        assert type(grad) is RowGradient
        assert grad.clamp_(-1.0, 1.0) is grad
        assert type(grad) is RowGradient


def test_copies_know_that_their_rows_are_unique() -> None:
    """So a hook that scales gradients costs no sort, and no wait for a GPU."""
    grad = gradient()
    for copied in (grad * 2, 2 * grad, grad / torch.tensor(2.0), -grad, grad.clone(), grad.double(), grad.clamp(-1, 1)):
        assert copied.is_coalesced()
        assert copied.rows().data_ptr() != grad.rows().data_ptr()
    padded = gradient("padded") * 2
    assert isinstance(padded.count, Tensor)
    assert torch.equal(padded.to_dense(), 2 * grad.to_dense())


def test_clamps_that_would_change_missing_rows_raise() -> None:
    grad = gradient()
    for clamp in (
        lambda: grad.clamp_(min=0.5),
        lambda: grad.clamp(max=-1.0),
        lambda: torch._foreach_clamp_min_([grad], 1.0),
    ):
        with pytest.raises(NotImplementedError, match="would change rows that the gradient does not store"):
            clamp()
    assert torch.equal(grad.rows(), VALUES)


def test_functions_of_dimensions_raise_as_for_sparse_tensors() -> None:
    grad = gradient()
    with pytest.raises(NotImplementedError, match="Sparse"):
        torch.linalg.vector_norm(grad, dim=1)
    with pytest.raises(NotImplementedError, match="Sparse"):
        grad.max(0)
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.linalg.norm(grad, 2)  # the largest singular value


def test_rows_ids_and_count() -> None:
    grad = gradient()
    assert grad.is_coalesced()
    assert (grad.ids().tolist(), grad.rows().tolist(), grad.count) == (IDS.tolist(), VALUES.tolist(), 3)
    assert {type(grad.ids()), type(grad.rows()), type(grad.values()), type(grad.to_dense())} == {Tensor}
    assert gradient("repeated").count == 3
    assert not gradient("repeated").is_coalesced()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], VALUES[:1], 6), "ids must be a tensor"),
        ((IDS.float(), VALUES, 6), "ids must be a vector of int32 or int64"),
        ((IDS[None], VALUES, 6), "ids must be a vector"),
        ((IDS, VALUES[:2], 6), "rows must be a tensor of 3 rows"),
        ((IDS, VALUES, 4), "Index 4 out of range"),
        ((IDS - 2, VALUES, 6), "Index -1 out of range"),
    ],
)
def test_invalid_gradients_raise(arguments: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        RowGradient(*arguments)


# -- padding ----------------------------------------------------------------------------------------------------------


def test_padding_changes_nothing() -> None:
    grad = gradient("padded")
    assert not grad.is_coalesced()
    assert isinstance(grad.count, Tensor)
    assert grad.count.item() == 3
    assert torch.equal(grad.to_dense(), gradient().to_dense())
    assert torch.equal(grad.coalesce().values(), VALUES)
    assert grad.coalesce().count == 3
    for make in (rgt.optim.SGD, rgt.optim.Adagrad, rgt.optim.RowWiseAdagrad, rgt.optim.Adam, torch.optim.SparseAdam):
        weights = []
        for kind in ("unique", "padded"):
            weight = torch.nn.Parameter(torch.ones(6, 2))
            optimizer = make([weight], lr=0.1)
            weight.grad = gradient(kind)
            assert torch.nn.utils.clip_grad_norm_([weight], 1.0) == torch.linalg.vector_norm(VALUES)
            optimizer.step()
            weights.append(weight.detach())
        assert torch.equal(*weights), make


def test_padding_is_known_after_autograd_stored_the_gradient() -> None:
    class Padded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor) -> Tensor:
            return weight.sum()

        @staticmethod
        def backward(ctx: Any, y: Tensor) -> Any:
            return gradient("padded")

    weight = torch.nn.Parameter(torch.ones(6, 2))
    row_gradient.keep_coalesced(weight)
    Padded.apply(weight).backward()
    assert type(weight.grad) is RowGradient
    assert isinstance(weight.grad.count, Tensor)
    Padded.apply(weight).backward()  # a sum of both: rows repeat
    assert type(weight.grad) is RowGradient
    assert torch.equal(weight.grad.to_dense(), 2 * gradient().to_dense())
    assert torch.equal(weight.grad.clamp(-4, 4).to_dense(), (2 * gradient().to_dense()).clamp(-4, 4))


# -- gradients of modules ---------------------------------------------------------------------------------------------


def bag(**options: Any) -> Any:
    return rgt.nn.EmbeddingBag(6, 2, combiner="sum", **({"grad": "rows"} | options))


def test_every_gradient_of_rows_has_the_class() -> None:
    module = bag()
    out = module(torch.tensor([[1, 3], [3, 4]]))
    (grad,) = torch.autograd.grad(out.sum(), module.weight, retain_graph=True)
    seen: list[Any] = []
    module.weight.register_hook(seen.append)
    for factor in (1, 2):
        out.sum().backward(retain_graph=True)
        for found in (grad, seen[-1], module.weight.grad):
            assert type(found) is RowGradient
            assert found.is_coalesced()
        assert torch.equal(module.weight.grad.to_dense(), factor * grad.to_dense())
    fused = bag(fused=True, grad="rows")
    _optimizer = rgt.optim.SGD(fused.parameters(), lr=0.1)
    fused(torch.tensor([[1, 3], [3, 4]])).sum().backward()
    assert type(fused.weight.grad) is RowGradient
    many = rgt.nn.Embeddings([rgt.nn.Table("a", 6, 2)])
    many({"a": torch.tensor([[1, 3]])})["a"].sum().backward()
    assert type(next(many.parameters()).grad) is RowGradient


def test_storing_a_gradient_does_not_read_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it would wait for the device."""
    module = bag()
    monkeypatch.setattr(row_gradient, "_mark_if_ascending", lambda grad: pytest.fail("read the ids"))
    for _ in range(2):
        module.zero_grad()
        module(torch.tensor([[1, 3], [3, 4]])).sum().backward()
        assert module.weight.grad.is_coalesced()
        assert torch.nn.utils.clip_grad_norm_([module.weight], 1.0) > 1


def test_storing_a_gradient_does_not_copy_it() -> None:
    module = bag()
    places: list[int] = []
    module.weight.register_hook(lambda grad: places.append(grad._values().data_ptr()))
    module(torch.tensor([[1, 3], [3, 4]])).sum().backward()
    assert module.weight.grad.rows().data_ptr() == places[0]


def test_foreign_ids_at_a_known_address_are_not_trusted() -> None:
    """Ids are recognized by their storage, not by an address that may be used again."""
    known = sparse_rows(VALUES, IDS.clone(), 6, unique=True)
    ids = known._indices()[0]
    key = next(reversed(row_gradient._KNOWN_IDS))
    assert row_gradient._recall(known) is not None
    part = torch.sparse_coo_tensor(ids[None, :2], VALUES[:2], (6, 2), check_invariants=False)
    assert row_gradient._recall(part) is None
    del known, ids, part
    gc.collect()
    assert key not in row_gradient._KNOWN_IDS or row_gradient._KNOWN_IDS[key].storage.expired()


def test_forgotten_gradients_do_not_accumulate() -> None:
    for _ in range(2000):
        sparse_rows(VALUES, IDS.clone(), 6, unique=True)
    assert len(row_gradient._KNOWN_IDS) < 600


def test_double_backward_through_norms() -> None:
    module, dense = bag(dtype=torch.float64), bag(grad="dense", dtype=torch.float64)
    dense.load_state_dict(module.state_dict())
    found = []
    for m in (module, dense):
        out = m(torch.tensor([[1, 3], [3, 4]])).pow(3).sum()
        (grad,) = torch.autograd.grad(out, m.weight, create_graph=True)
        (second,) = torch.autograd.grad(torch.linalg.vector_norm(grad), m.weight)
        found.append(second.to_dense())
    torch.testing.assert_close(*found)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind: str) -> None:
    grad = gradient(kind)
    file = io.BytesIO()
    torch.save({"grad": grad}, file)
    file.seek(0)
    for found in (torch.load(file, weights_only=True)["grad"], copy.deepcopy([grad, grad])[1]):
        assert type(found) is RowGradient
        assert found.is_coalesced() == grad.is_coalesced()
        assert torch.equal(found.rows(), grad.rows())
        assert torch.equal(found.ids(), grad.ids())
        assert found.rows().data_ptr() != grad.rows().data_ptr() or not grad.rows().numel()


@pytest.mark.parametrize("coalesced", [False, True])
def test_invalid_files(coalesced: bool) -> None:
    """torch validates loaded sparse tensors if its checks are on; a step of rowgrad's optimizers always does."""
    file = io.BytesIO()
    torch.save(sparse_rows(VALUES.clone(), IDS + 10, 6, unique=coalesced), file)
    file.seek(0)
    with torch.sparse.check_sparse_tensor_invariants(), pytest.raises(RuntimeError, match="inconsistent with indices"):
        torch.load(file, weights_only=True)
    file.seek(0)
    weight = torch.nn.Parameter(torch.ones(6, 2))
    weight.grad = torch.load(file, weights_only=True)
    with pytest.raises(rg.errors.OpError, match="11"):
        rgt.optim.SGD([weight], 0.1).step()
    assert weight.eq(1).all()


def test_torch_does_not_warn_about_sparse_tensors() -> None:
    """torch warns once in a process, from inside its own Adagrad."""
    program = """
import torch, rowgrad.torch as rgt
bag = rgt.nn.EmbeddingBag(6, 2, grad="rows")
optimizer = torch.optim.Adagrad(bag.parameters())
bag(torch.tensor([[1, 2]])).sum().backward()
optimizer.step()
print(torch.sparse.check_sparse_tensor_invariants.is_enabled())
torch.sparse.check_sparse_tensor_invariants.enable()
bag(torch.tensor([[1, 2]])).sum().backward()
print(torch.sparse.check_sparse_tensor_invariants.is_enabled())
"""
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stderr
