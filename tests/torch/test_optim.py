"""The torch optimizers: compared with torch.optim where formulas coincide, and in every part of a training loop."""

from __future__ import annotations

import copy
import io
import math
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.optim.optimizer import (  # noqa: E402
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import rowgrad as rg  # noqa: E402
import rowgrad.torch as rgt  # noqa: E402
from reference import updates as reference  # noqa: E402
from rowgrad.optim import RULES, Step  # noqa: E402
from rowgrad.torch import optim  # noqa: E402

CLASSES = [getattr(optim, spec.class_name) for spec in RULES.values()]
Make = Callable[..., Any]


def sparse(rows: list[int], values: Any, size: int, coalesce: bool = False) -> Any:
    grad = torch.sparse_coo_tensor(torch.tensor([rows]), values, (size, *values.shape[1:]), check_invariants=False)
    return grad.coalesce() if coalesce else grad


def table(dtype: Any = torch.float64, shape: tuple[int, ...] = (12, 5), seed: int = 0) -> Any:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.Parameter(values.to(dtype))


def gradients(count: int, shape: tuple[int, ...] = (12, 5), dtype: Any = torch.float64) -> list[Any]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for _ in range(count)]


def train(param: Any, optimizer: Any, grads: list[Any]) -> Any:
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    return param.detach()


# -- against torch.optim ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (lambda p: optim.SGD(p, 0.1, weight_decay=0.2), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2)),
        (
            lambda p: optim.Momentum(p, 0.1, weight_decay=0.2),
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.2),
        ),
        (
            lambda p: optim.Momentum(p, 0.1, momentum=0.7, nesterov=True),
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.7, nesterov=True),
        ),
        (
            lambda p: optim.Adagrad(p, 0.1, initial_accumulator_value=0.3, weight_decay=0.1),
            lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.3, weight_decay=0.1),
        ),
        # torch adds eps to √(v / (1 − β₂ᵗ)), rowgrad to √v: with eps=0 they are equal.
        (lambda p: optim.Adam(p, 0.1, eps=0.0), lambda p: torch.optim.Adam(p, 0.1, eps=0.0)),
        (
            lambda p: optim.Adam(p, 0.1, eps=0.0, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, 0.1, eps=0.0, weight_decay=0.1),
        ),
        (
            lambda p: optim.AdamW(p, 0.1, eps=0.0, weight_decay=0.1, betas=(0.5, 0.7)),
            lambda p: torch.optim.AdamW(p, 0.1, eps=0.0, weight_decay=0.1, betas=(0.5, 0.7)),
        ),
    ],
)
def test_dense_steps_equal_torch(ours: Make, theirs: Make) -> None:
    a, b = table(), table()
    torch.testing.assert_close(
        train(a, ours([a]), gradients(7)), train(b, theirs([b]), gradients(7)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (lambda p: optim.Adagrad(p, 0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
        (lambda p: optim.Adam(p, 0.1, eps=1e-3), lambda p: torch.optim.SparseAdam(p, 0.1, eps=1e-3)),
    ],
)
@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # raised inside torch's Adagrad, for other gradients
def test_sparse_steps_equal_torch(ours: Make, theirs: Make, coalesce: bool) -> None:
    grads = [sparse([3, 0, 3, 7], g[:4], 12, coalesce) for g in gradients(5)]
    a, b = table(), table()
    torch.testing.assert_close(train(a, ours([a]), grads), train(b, theirs([b]), grads), rtol=1e-12, atol=1e-12)


def test_adam_with_an_eps_equivalent_to_torchs() -> None:
    """torch's eps and ours are equivalent if ours is eps·√(1 − β₂ᵗ)."""
    a, b = table(), table()
    their = torch.optim.Adam([b], 0.1, eps=1e-2)
    our = optim.Adam([a], 0.1)
    for t, grad in enumerate(gradients(5), start=1):
        our.param_groups[0]["eps"] = 1e-2 * math.sqrt(1 - 0.999**t)
        train(a, our, [grad])
        train(b, their, [grad])
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)


def test_rows_without_a_gradient() -> None:
    """A lazy step leaves them unchanged; otherwise they are updated as by a dense gradient that is zero there."""
    grads = [sparse([2, 5], g[:2], 12) for g in gradients(4)]
    for make in (optim.Adam, optim.AdamW):
        start, lazy, eager, dense = table(), table(), table(), table()
        train(lazy, make([lazy], 0.1), grads)
        untouched = [r for r in range(12) if r not in (2, 5)]
        assert torch.equal(lazy.detach()[untouched], start.detach()[untouched])
        train(eager, make([eager], 0.1, lazy=False), grads)
        train(dense, make([dense], 0.1), [g.to_dense() for g in grads])
        torch.testing.assert_close(eager.detach(), dense.detach(), rtol=1e-12, atol=1e-12)
        once = [
            grads[0],
            *[sparse([2], g[:1], 12) for g in gradients(3)],
        ]  # row 5 has a gradient only in the first step
        rests, fades = table(), table()
        train(rests, make([rests], 0.1), once)
        train(fades, make([fades], 0.1, lazy=False), once)
        assert not torch.equal(rests.detach()[5], fades.detach()[5])


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("make", CLASSES)
def test_duplicate_rows_are_summed_in_rowgrads_order(make: Make, dtype: Any) -> None:
    n = 300
    rows = torch.randint(0, 6, (n,), generator=torch.Generator().manual_seed(3))
    values = torch.randn((n, 5), generator=torch.Generator().manual_seed(4)).to(dtype)
    a, b = table(dtype, (6, 5)), table(dtype, (6, 5))
    train(a, make([a], 0.1), [sparse(rows.tolist(), values, 6)])
    wide = values.double().numpy() if dtype == torch.float64 else values.float().numpy()
    total = np.zeros((6, 5), wide.dtype)
    for row, value in zip(rows.tolist(), wide, strict=True):
        total[row] = total[row] + value
    train(b, make([b], 0.1), [torch.from_numpy(total).to(dtype)])
    assert torch.equal(a.detach(), b.detach())


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize("shape", [(), (7,), (4, 3, 2), (0, 3), (3, 0)])
def test_parameters_of_any_rank(make: Make, shape: tuple[int, ...]) -> None:
    a, b = table(shape=shape), table(shape=shape)
    grads = gradients(3, shape)
    train(a, make([a], 0.1), grads)
    if a.numel() and make is not optim.RowWiseAdagrad:
        flat = torch.nn.Parameter(b.detach().reshape(-1))
        train(flat, make([flat], 0.1), [g.reshape(-1) for g in grads])
        if make is optim.Ftrl:  # TensorFlow uses a different order of operations for single columns
            torch.testing.assert_close(a.detach().reshape(-1), flat.detach(), rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(a.detach().reshape(-1), flat.detach())


@pytest.mark.parametrize("make", CLASSES)
def test_sparse_gradients_of_numbers_and_of_blocks(make: Make) -> None:
    for shape in ((9,), (9, 2, 3)):
        a, b = table(shape=shape), table(shape=shape)
        values = gradients(1, (2, *shape[1:]))[0]
        dense = torch.zeros(shape, dtype=torch.float64)
        dense[[1, 4]] = values
        train(a, make([a], 0.1), [sparse([1, 4], values, 9)])
        train(b, make([b], 0.1), [dense])
        assert torch.equal(a.detach()[[1, 4]], b.detach()[[1, 4]])
        assert torch.equal(a.detach()[[0, 8]], table(shape=shape).detach()[[0, 8]])


@pytest.mark.parametrize("make", CLASSES)
def test_strided_parameters(make: Make) -> None:
    base = table(shape=(5, 12)).detach()
    a, b = torch.nn.Parameter(base.clone().T), torch.nn.Parameter(base.T.contiguous())
    assert not a.is_contiguous()
    grads = [*gradients(2), sparse([2, 0, 2], gradients(1)[0][:3], 12)]
    assert torch.equal(train(a, make([a], 0.1), grads), train(b, make([b], 0.1), grads))


def test_accumulated_sparse_gradients() -> None:
    """torch accumulates sparse gradients by concatenating them; the step sums them in that order."""
    bag = torch.nn.EmbeddingBag(10, 4, mode="sum", sparse=True, dtype=torch.float64)
    once = copy.deepcopy(bag)
    ids = torch.tensor([[1, 2, 2], [3, 1, 9]])
    for part in ids:
        bag(part[None]).pow(2).sum().backward()
    once(ids).pow(2).sum().backward()
    for module in (bag, once):
        optim.RowWiseAdagrad(module.parameters(), 0.1).step()
    torch.testing.assert_close(bag.weight, once.weight, rtol=1e-12, atol=1e-12)


def test_a_step_bumps_the_version_of_its_parameter() -> None:
    w = table()
    loss = (w * w).sum()
    w.grad = torch.ones_like(w)
    optim.SGD([w], 0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- options of torch's optimizers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", CLASSES)
def test_maximize_steps_with_the_negated_gradient(make: Make, dtype: Any) -> None:
    """The same bits, for every kind of gradient; weight decay still shrinks the weights, as in torch."""
    decay = {} if make is optim.Ftrl else {"weight_decay": 0.1}
    values = gradients(1, dtype=dtype)[0]
    grads = [values, sparse([2, 5, 7], values[:3], 12, True), sparse([5, 2, 5], values[:3], 12)]
    a, b = table(dtype), table(dtype)
    up, down = make([a], 0.1, maximize=True, **decay), make([b], 0.1, **decay)
    for grad in grads:
        a.grad, b.grad = grad.clone(), -grad
        up.step()
        down.step()
        assert torch.equal(a.grad.to_dense(), grad.to_dense()), "the gradient is unchanged"
    y, indices, segment_ids, weights = bags()
    for given in (None, weights):
        up.update_from_bags(a, y.to(dtype), indices, segment_ids, "mean", given)
        down.update_from_bags(b, -y.to(dtype), indices, segment_ids, "mean", given)
    assert torch.equal(a.detach(), b.detach())
    assert not torch.equal(a.detach(), table(dtype).detach())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(optim.SGD, torch.optim.SGD), (optim.Adagrad, torch.optim.Adagrad), (optim.AdamW, torch.optim.AdamW)],
)
def test_maximize_is_torchs(ours: Make, theirs: Make) -> None:
    options = {"maximize": True, "weight_decay": 0.1} | ({} if ours is optim.SGD else {"eps": 0.0})
    a, b = table(), table()
    torch.testing.assert_close(
        train(a, ours([a], 0.1, **options), gradients(4)),
        train(b, theirs([b], 0.1, **options), gradients(4)), rtol=1e-12, atol=1e-12,
    )  # fmt: skip


def test_maximize_of_one_group_and_of_fused_tables() -> None:
    up, down = (rgt.nn.EmbeddingBag(5, 2, combiner="sum", fused=True) for _ in range(2))
    other = torch.nn.Parameter(torch.zeros(2))
    groups = [{"params": up.parameters(), "maximize": True}, {"params": [*down.parameters(), other]}]
    optimizer = optim.SGD(groups, 1.0)
    other.grad = torch.ones(2)
    for module in (up, down):
        module.weight.data.zero_()
        module(torch.tensor([[1, 1]])).sum().backward()
    optimizer.step()
    assert [m.weight[1, 0].item() for m in (up, down)] == [2.0, -2.0]
    assert other.tolist() == [-1.0, -1.0]
    state = optimizer.state_dict()
    again = optim.SGD([{"params": up.parameters()}, {"params": [*down.parameters(), other]}], 1.0)
    again.load_state_dict(state)
    assert [group["maximize"] for group in again.param_groups] == [True, False]


@pytest.mark.parametrize("make", CLASSES)
def test_options_that_make_no_difference(make: Make) -> None:
    a, b = table(), table()
    options = {"foreach": True, "fused": True, "differentiable": False, "capturable": False}
    assert torch.equal(
        train(a, make([a], torch.tensor(0.1, dtype=torch.float64), **options), gradients(3)),
        train(b, make([b], 0.1), gradients(3)),
    )


@pytest.mark.parametrize("make", CLASSES)
def test_capturable(make: Make) -> None:
    """The count is a tensor; the steps have the same bits."""
    a, b = table(), table()
    optimizer = make([a], 0.1, capturable=True)
    plain = make([b], 0.1)
    assert torch.equal(train(a, optimizer, gradients(3)), train(b, plain, gradients(3)))
    count = optimizer.state[a]["step"]
    assert isinstance(count, torch.Tensor)
    assert count.item() == 3
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert plain.param_groups[0]["capturable"]
    assert torch.equal(train(a, optimizer, gradients(1)), train(b, plain, gradients(1)))
    assert plain.state[b]["step"].item() == 4
    c, d = (torch.nn.Parameter(table().detach().bfloat16()) for _ in range(2))
    options: dict[str, Any] = {"stochastic_rounding": True, "seed": 4}
    found = [
        train(p, make([p], 0.1, capturable=on, **options), gradients(3, dtype=p.dtype))
        for p, on in ((c, True), (d, False))
    ]
    assert torch.equal(*found)


def test_steps_that_depend_on_their_number_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    w = table()
    optimizer = optim.Adam([w], 0.1)
    w.grad = torch.ones_like(w)
    monkeypatch.setattr("rowgrad.torch.row_optimizer.is_captured", lambda: True)
    with pytest.raises(NotImplementedError, match="does not support a CUDA graph"):
        optimizer.step()
    assert torch.equal(w.detach(), table().detach())


def test_groups_with_their_own_options() -> None:
    """Every option of a group applies to its parameters alone, also when it is changed between steps."""
    params = [table() for _ in range(4)]
    own: list[dict[str, Any]] = [
        {},
        {"lr": 0.5},
        {"weight_decay": 0.5, "betas": (0.5, 0.6)},
        {"eps": 0.1, "lazy": False},
    ]
    optimizer = optim.AdamW([{"params": [p], **o} for p, o in zip(params, own, strict=True)], 0.1)
    optimizer.param_groups[0]["lr"] = 0.2
    for p in params:
        p.grad = gradients(1)[0]
    optimizer.step()
    for p, options in zip(params, ({"lr": 0.2}, *own[1:]), strict=True):
        alone = table()
        assert torch.equal(p.detach(), train(alone, optim.AdamW([alone], **{"lr": 0.1, **options}), gradients(1)))


# -- training loop ----------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """A table with sparse gradients under a small dense network."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = torch.nn.EmbeddingBag(50, 8, mode="sum", sparse=True, dtype=dtype)
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, ids: Any) -> Any:
        return self.head(self.bag(ids).float())[:, 0]


def batches(count: int, start: int = 0) -> list[tuple[Any, Any]]:
    out = []
    for i in range(start, start + count):
        ids = torch.randint(0, 50, (16, 6), generator=torch.Generator().manual_seed(i))
        out.append((ids, (ids % 3 == 0).float().mean(1)))
    return out


def fit(model: Any, optimizer: Any, data: list[tuple[Any, Any]], scheduler: Any = None) -> list[float]:
    losses = []
    for ids, target in data:

        def closure(ids: Any = ids, target: Any = target) -> Any:
            optimizer.zero_grad()
            loss = (model(ids) - target).pow(2).mean()
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
        if scheduler is not None:
            scheduler.step()
    return losses


def weights(model: Any) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("make", CLASSES)
def test_a_model_learns(make: Make) -> None:
    model = Model()
    losses = fit(model, make(model.parameters(), 0.3 if make is optim.SGD else 0.03), batches(60))
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", CLASSES)
def test_resume_is_bit_identical(make: Make, dtype: Any) -> None:
    def new_run() -> tuple[Any, Any, Any]:
        model = Model(dtype)
        options = {"stochastic_rounding": True, "seed": 3}
        groups = [{"params": model.bag.parameters(), "lr": 0.05}, {"params": model.head.parameters()}]
        optimizer = make(groups, 0.02, **options)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    uninterrupted, optimizer, scheduler = new_run()
    fit(uninterrupted, optimizer, batches(7), scheduler)

    model, optimizer, scheduler = new_run()
    fit(model, optimizer, batches(3), scheduler)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    state_before = copy.deepcopy(saved[1])
    model, optimizer, scheduler = new_run()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    scheduler.load_state_dict(saved[2])
    fit(model, optimizer, batches(4, start=3), scheduler)
    assert all(map(torch.equal, weights(model), weights(uninterrupted)))
    for before, after in zip(state_before["state"].values(), saved[1]["state"].values(), strict=True):
        assert all(torch.equal(before[k], after[k]) for k in before if k != "step")  # loading does not change it


@pytest.mark.parametrize("make", CLASSES)
def test_slots_of_16_bit_tables_are_float32(make: Make) -> None:
    w = table(torch.bfloat16)
    optimizer = make([w], 0.1)
    train(w, optimizer, gradients(2, dtype=torch.bfloat16))
    for state in (optimizer.state[w], copy.deepcopy(optimizer).state_dict()["state"].get(0, {})):
        assert {v.dtype for k, v in state.items() if k != "step"} <= {torch.float32}
    again = make([w], 0.1)
    again.load_state_dict(optimizer.state_dict())
    assert all(v.dtype == torch.float32 for k, v in again.state[w].items() if k != "step")
    assert again.state[w]["step"] == 2


def test_groups_and_schedulers() -> None:
    a, b = table(), table()
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "weight_decay": 0.5}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(a.detach(), table().detach() - 1.5, rtol=1e-12, atol=1e-12)
    expected = table().detach()
    for lr in (0.1, 0.05):
        expected = expected - lr * (1 + 0.5 * expected)
    torch.testing.assert_close(b.detach(), expected, rtol=1e-12, atol=1e-12)
    c = table()
    optimizer.add_param_group({"params": [c], "lr": 0.25})
    c.grad = torch.ones_like(c)
    optimizer.step()
    torch.testing.assert_close(c.detach(), table().detach() - 0.25, rtol=1e-12, atol=1e-12)


def test_parameters_without_a_gradient_are_unchanged() -> None:
    a, b = table(), table()
    optimizer = optim.Adam([a, b], 0.1)
    train(a, optimizer, gradients(1))
    assert torch.equal(b.detach(), table().detach())
    assert b not in optimizer.state


def test_stochastic_rounding() -> None:
    def after(**options: Any) -> tuple[Any, Any]:
        a, b = (torch.nn.Parameter(torch.ones((500, 8), dtype=torch.bfloat16)) for _ in range(2))
        optimizer = optim.SGD([a, b], 1e-4, **options)
        for _ in range(50):
            a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
            optimizer.step()
        return a.detach(), b.detach()

    assert after()[0].eq(1).all()
    a, b = after(stochastic_rounding=True)
    assert abs(float(a.double().mean()) - 0.995) < 5e-4
    assert not torch.equal(a, b)  # each parameter has its own random stream
    assert torch.equal(after(stochastic_rounding=True)[0], a)
    assert not torch.equal(after(stochastic_rounding=True, seed=9)[0], a)


# -- fused ------------------------------------------------------------------------------------------------------------


def bags() -> tuple[Any, Any, Any, Any]:
    g = torch.Generator().manual_seed(6)
    indices, segment_ids = torch.randint(0, 12, (40,), generator=g), torch.randint(0, 7, (40,), generator=g)
    return torch.randn((7, 5), generator=g), indices, segment_ids, torch.rand((40,), generator=g)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("make", CLASSES)
def test_update_from_bags(make: Make, combiner: str) -> None:
    grad, indices, segment_ids, w = bags()
    name = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}[combiner]
    ids = indices.numpy(), segment_ids.numpy()
    plan = rg.Plan(*ids, 12)
    for weighted in (False, True):
        if weighted:
            op = getattr(rg.raw_ops, f"WeightedSparseSegment{name}Grad")
            dense = torch.from_numpy(op(grad.numpy(), *ids, w.numpy(), 12))
            rows = sorted(set(indices.tolist()))
            plain = sparse(rows, dense[rows], 12, coalesce=True)
        else:
            found = getattr(rg.raw_ops, f"SparseSegment{name}GradV2")(grad.numpy(), *ids, 12)
            rows = found.sorted_unique_indices.tolist()
            plain = sparse(rows, torch.from_numpy(found.output), 12, coalesce=True)
        a, b, c = (table(torch.float32) for _ in range(3))
        train(a, make([a], 0.1), [plain, plain])
        fused, planned = make([b], 0.1), make([c], 0.1)
        for _ in range(2):
            fused.update_from_bags(b, grad, indices, segment_ids, combiner, weights=w if weighted else None)
            planned.update_from_bags(c, grad, None, None, combiner, weights=w if weighted else None, plan=plan)
        assert torch.equal(a.detach(), b.detach())
        assert torch.equal(a.detach(), c.detach())
        assert fused.state[b]["step"] == 2


def test_in_backward() -> None:
    """Update inside a backward pass, as a fused module does: every call is one step."""

    class Bags(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any, indices: Any, segment_ids: Any) -> Any:
            ctx.ids, ctx.weight = (indices, segment_ids), weight
            out = rg.raw_ops.SparseSegmentSumWithNumSegments(
                weight.detach().numpy(), indices.numpy(), segment_ids.numpy(), 7
            )
            return torch.from_numpy(out)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            fused.update_from_bags(ctx.weight, grad, *ctx.ids, "sum")
            return None, None, None

    _, indices, segment_ids, _ = bags()
    segment_ids = segment_ids.sort().values
    a, b = table(torch.float32), table(torch.float32)
    fused, plain = optim.RowWiseAdagrad([a], 0.1), optim.RowWiseAdagrad([b], 0.1)
    for _ in range(3):
        Bags.apply(a, indices, segment_ids).pow(2).sum().backward()
        fused.step()
        plain.zero_grad()
        out = torch.zeros(7, 5).index_add(0, segment_ids, torch.nn.functional.embedding(indices, b, sparse=True))
        out.pow(2).sum().backward()
        plain.step()
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-5, atol=1e-6)
    assert fused.state[a]["step"] == 3


# -- agreement with rowgrad.optim: rules, slots, random rounding ------------------------------------------------------


@pytest.mark.parametrize("make", CLASSES)
def test_steps_equal_the_reference(make: Make) -> None:
    w = table(torch.float32)
    expected = w.detach().numpy().copy()
    optimizer = make([w], 0.1)
    group = optimizer.param_groups[0]
    numbers = {k: group[k] for k in RULES[make.rule].defaults if k != "lr"}
    start = [0.0 if s.zeros else group.get("initial_accumulator_value", 0.0) for s in RULES[make.rule].slots]
    slots: tuple[Any, ...] = ()
    for t, grad in enumerate(gradients(3, dtype=torch.float32), start=1):
        train(w, optimizer, [grad])
        if not slots:
            shapes = [tuple(v.shape) for k, v in optimizer.state[w].items() if k != "step"]
            slots = tuple(np.full(shape, x, np.float32) for shape, x in zip(shapes, start, strict=True))
        reference.apply_rows(make.rule, expected, slots, grad.numpy(), np.arange(12), Step(lr=0.1, step=t, **numbers))
    assert np.array_equal(w.detach().numpy(), expected)


# -- rejected arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.SGD(p, -1.0), "lr must be a finite number of at least 0; got -1.0"),
        (lambda p: optim.Adam(p, betas=(0.9, 1.0)), "betas must be two numbers"),
        (lambda p: optim.Adagrad(p, eps=-1.0), "eps must be"),
        (lambda p: optim.SGD(p, seed=-1), "seed must be an int"),
        (lambda p: optim.SGD(p, "fast"), "lr must be a finite number; got 'fast'"),
        (lambda p: optim.SGD(p, torch.ones(2)), "lr must be a finite number"),
        (lambda p: optim.SGD(p, stochastic_rounding="no"), "stochastic_rounding must be True or False; got 'no'"),
        (lambda p: optim.Adam(p, lazy="false"), "lazy must be True or False"),
        (lambda p: optim.SGD(p, maximize=1), "maximize must be True or False; got 1"),
        (lambda p: optim.SGD(p, foreach="yes"), "foreach must be True, False or None; got 'yes'"),
        (lambda p: optim.SGD(p, fused=1), "fused must be True, False or None; got 1"),
        (lambda p: optim.SGD(p, capturable=None), "capturable must be True or False; got None"),
        (lambda p: optim.SGD([{"params": p, "maximize": None}]), "maximize must be True or False; got None"),
        (lambda p: optim.SGD([{"params": p, "lr": float("nan")}]), "lr must be"),
        (
            lambda p: optim.SGD([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))]),
            "param must be one of float16",
        ),
    ],
)
def test_invalid_options_raise_in_the_constructor(make: Make, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        make([table()])


def test_differentiable_steps_raise() -> None:
    for make in (
        lambda p: optim.SGD(p, differentiable=True),
        lambda p: optim.SGD([{"params": p, "differentiable": True}]),
    ):
        with pytest.raises(NotImplementedError, match="differentiable=True is not supported: a step updates"):
            make([table()])


def test_invalid_parameter_groups_raise() -> None:
    optimizer = optim.SGD([table()])
    with pytest.raises(TypeError, match="param_group must be a dict with 'params', got list"):
        optimizer.add_param_group([table()])
    with pytest.raises(rg.errors.UnimplementedError, match="an uninitialized parameter"):
        optimizer.add_param_group({"params": [torch.nn.LazyLinear(3).weight]})
    assert len(optimizer.param_groups) == 1


def test_parameters_on_unsupported_devices_raise() -> None:
    with pytest.raises(NotImplementedError, match="param must be on the CPU; got a tensor on meta"):
        optim.SGD([torch.nn.Parameter(torch.ones(3, device="meta"))])


def test_invalid_gradients_raise() -> None:
    w = table()
    optimizer = optim.SGD([w], 0.1)
    w.grad = torch.eye(12, 5, dtype=torch.float64).to_sparse()
    with pytest.raises(NotImplementedError, match=r"SGD.step: grad must be sparse in dimension 0 only"):
        optimizer.step()
    w.grad = None
    grad, indices, segment_ids, _ = bags()
    with pytest.raises(rg.errors.InvalidArgumentError, match="grad must be float64, as the table; got float32"):
        optimizer.update_from_bags(w, grad, indices, segment_ids, "sum")
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"update_from_bags.*param must be a parameter of this"):
        optimizer.update_from_bags(table(), grad.double(), indices, segment_ids, "sum")
    with pytest.raises(rg.errors.InvalidArgumentError, match="None, and no plan"):
        optimizer.update_from_bags(w, grad.double(), None, None, "sum")
    other = rg.Plan(indices.flip(0), segment_ids, len(w), len(grad))  # same number of ids and bags, other order
    for ids in ((indices, segment_ids), (indices, None), (None, segment_ids)):
        with pytest.raises(rg.errors.InvalidArgumentError, match="a plan replaces indices and segment_ids"):
            optimizer.update_from_bags(w, grad.double(), *ids, "sum", plan=other)
    with pytest.raises(rg.errors.InvalidArgumentError, match="indices must be a tensor; got list"):
        optimizer.update_from_bags(w, grad.double(), [1], segment_ids, "sum")
    with pytest.raises(rg.errors.InvalidArgumentError, match="Index 99 out of range"):
        optimizer.update_from_bags(w, grad.double(), indices * 0 + 99, segment_ids, "sum")
    for wrong in ({"grad": grad.double().to_sparse()}, {"indices": indices.to_sparse()}, {"weights": grad.to_sparse()}):
        ids = {"grad": grad.double(), "indices": indices, "segment_ids": segment_ids, "combiner": "sum", **wrong}
        with pytest.raises(rg.errors.UnimplementedError, match="must be dense; got a tensor of layout"):
            optimizer.update_from_bags(w, **ids)
    assert torch.equal(w.detach(), table().detach())
    assert optimizer.state[w]["step"] == 0


@pytest.mark.parametrize("wrong", ["lr", "text", "seed", "ids", "mark", "layout", "slots", "fused"])
def test_a_rejected_step_changes_no_parameter(wrong: str) -> None:
    """All parameters are validated before the first one is updated."""
    first, second = torch.nn.Parameter(torch.ones(4, 2)), torch.nn.Parameter(torch.ones(4, 2))
    bag = rg.torch.nn.EmbeddingBag(4, 2, fused=True)
    optimizer = optim.Adam([{"params": [bag.weight, first]}, {"params": [second]}], 0.1)
    for _ in range(2):
        bag(torch.tensor([[1, 2]])).sum().backward()
        first.grad, second.grad = torch.ones(4, 2), torch.ones(4, 2)
        optimizer.step()
    bag(torch.tensor([[1, 2]])).sum().backward()
    ids = torch.tensor([0, 9]).view(1, 2)
    if wrong == "lr":
        optimizer.param_groups[1]["lr"] = float("nan")
    elif wrong == "text":
        optimizer.param_groups[1]["lr"] = "fast"
    elif wrong == "seed":
        optimizer.param_groups[1]["seed"] = "abc"
    elif wrong == "mark":  # its rows are not ascending
        second.grad = torch.sparse_coo_tensor(
            torch.tensor([[2, 1]]), torch.ones(2, 2), (4, 2), is_coalesced=True, check_invariants=False
        )
    elif wrong == "ids":
        second.grad = torch.sparse_coo_tensor(ids, torch.ones(2, 2), (4, 2), check_invariants=False)
    elif wrong == "layout":
        second.grad = torch.eye(4, 2).to_sparse()
    elif wrong == "slots":
        optimizer.state[second]["exp_avg"] = torch.zeros(4, 2, dtype=torch.float64)
    else:
        optimizer.state[bag.weight]["exp_avg"] = torch.zeros(3, 2)
    tensors = [t for p in (first, second, bag.weight) for t in (p, *optimizer.state[p].values())]
    before = copy.deepcopy([t.detach() if isinstance(t, torch.Tensor) else t for t in tensors])
    with pytest.raises(rg.errors.OpError):
        optimizer.step()
    after = [t for p in (first, second, bag.weight) for t in (p, *optimizer.state[p].values())]
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["state"][0].update(sum=torch.ones(2, 5)), r"'sum' of param.* 0 must have shape .*, got \(2, 5\)"),
        (lambda s: s["state"][0].pop("sum"), "parameter 0 has no 'sum'. Its state needs 'step' and 'sum'"),
        (lambda s: s["state"][0].pop("step"), "'step' of parameter 0 is missing. Pass the number of steps"),
        (lambda s: s["state"][0].update(step="abc"), "'step' of parameter 0 must be a whole number of at least 0, got"),
        (lambda s: s["state"][0].update(step=torch.tensor([1, 2])), "must be a whole number"),
        (lambda s: s["state"][0].update(step=float("nan")), "must be a whole number"),
        (lambda s: s["state"][0].update(step=float("inf")), "must be a whole number"),
        (lambda s: s["state"][0].update(step=2.5), "must be a whole number"),
        (lambda s: s["state"][0].update(step=-5), "must be a whole number"),
        (lambda s: s["state"][0].update(sum=s["state"][0]["sum"].to_sparse()), "must be a dense tensor of floats"),
        (lambda s: s["state"][0].update(sum=s["state"][0]["sum"].to("meta")), "float64 on meta"),
        (lambda s: s["state"][0].update(sum=s["state"][0]["sum"].to(torch.complex64)), "dtype torch.complex64"),
        (lambda s: s["state"].update({0: "abc"}), "the state of parameter 0 must be a dict, got str"),
        (lambda s: s.pop("state"), "must have 'state' and 'param_groups'"),
        (lambda s: s["param_groups"][0].update(lr=-1.0), "lr must be a finite number of at least 0"),
        (lambda s: s["param_groups"][0].update(maximize="yes"), "maximize must be True or False"),
        (lambda s: s["param_groups"][0].update(amsgrad=True), "saved with amsgrad=True"),
        (lambda s: s["param_groups"][0].update(differentiable=True), "differentiable=True is not supported"),
        (lambda s: s["param_groups"][0].update(lr_decay=0.1), "saved with lr_decay=0.1"),
    ],
)
def test_a_rejected_state_dict_changes_nothing(change: Any, message: str) -> None:
    w = table()
    optimizer = optim.Adagrad([w], 0.1)
    w.grad = torch.ones_like(w)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    other = copy.deepcopy(before)
    other["param_groups"][0]["lr"] = 0.7
    other["state"][0]["sum"] += 1
    change(other)
    with pytest.raises((ValueError, NotImplementedError), match=message):
        optimizer.load_state_dict(other)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["state"][0]["sum"], before["state"][0]["sum"])
    assert after["state"][0]["step"] == before["state"][0]["step"]


def test_a_rejected_state_names_the_parameter() -> None:
    groups = torch.nn.ParameterDict({"kernel": torch.ones(3, 1), "words": torch.ones(5, 4)})
    optimizer = optim.Adagrad(groups.named_parameters(), 0.1)
    state = {i: {"step": 1, "sum": torch.ones_like(w)} for i, w in enumerate(reversed(list(groups.values())))}
    message = re.escape("'sum' of parameter 0 (kernel) must have shape (3, 1), got (5, 4). States have the numbers of")
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def test_state_of_many_tables_is_that_of_ordinary_parameters() -> None:
    tables = [rgt.nn.Table(name, 4, 2) for name in ("a", "b")]

    def trained(tables: Any) -> tuple[Any, Any]:
        module = rgt.nn.Embeddings(tables)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        module({"a": torch.tensor([[1]]), "b": torch.tensor([[2]])})["a"].sum().backward()
        optimizer.step()
        return module, optimizer

    module, optimizer = trained(tables)
    state = optimizer.state_dict()
    for same in (trained(tables)[0], copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        other = rgt.optim.Adagrad(same.parameters(), lr=0.1)
        other.load_state_dict(state)
        loaded = other.state_dict()["state"]
        assert list(loaded) == [0]  # the other table had no gradient
        assert loaded[0].keys() == state["state"][0].keys() == {"step", "sum"}
        assert torch.equal(loaded[0]["sum"], state["state"][0]["sum"])


def test_state_entries_without_a_parameter_are_loaded_as_they_are() -> None:
    """The same as torch's optimizers do."""
    optimizer = optim.Adagrad([torch.nn.Parameter(torch.ones(3))], 0.1)
    state = optimizer.state_dict()
    state["state"]["names"] = ["a"]
    optimizer.load_state_dict(state)
    assert optimizer.state["names"] == ["a"]


# -- zero_grad --------------------------------------------------------------------------------------------------------


def test_zero_grad_removes_gradients_of_every_group_or_sets_them_to_zero() -> None:
    params = [table(seed=seed) for seed in range(3)]
    optimizer = optim.SGD([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}], lr=0.2)
    for param in params[1:]:
        param.grad = torch.ones_like(param)
    optimizer.zero_grad(set_to_none=False)
    assert params[0].grad is None
    assert all(not param.grad.any() for param in params[1:])
    optimizer.zero_grad()
    assert all(param.grad is None for param in params)


def test_zero_grad_has_a_name_in_profiles() -> None:
    optimizer = optim.SGD([table()], lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.zero_grad()
    assert any("zero_grad" in event.name for event in profile.events())


# -- hooks and profiles of step ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["optimizer", "all optimizers"])
def test_hooks_run_around_step_as_those_of_torch(where: str) -> None:
    def log_of(module: Any) -> list[Any]:
        param, log = table(), []
        optimizer = module.SGD([param], lr=0.5)
        before, after = (
            (optimizer.register_step_pre_hook, optimizer.register_step_post_hook)
            if where == "optimizer"
            else (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
        )

        def changed() -> bool:
            return not torch.equal(param, start)

        def closure() -> float:
            log.append(("closure", torch.is_grad_enabled()))
            return 3.0

        handles = [
            before(lambda own, args, options: log.append(("before", own is optimizer, len(args), options, changed()))),
            after(lambda own, args, options: log.append(("after", own is optimizer, len(args), options, changed()))),
        ]
        try:
            start, param.grad = param.detach().clone(), torch.ones_like(param)
            log.append(optimizer.step())
            log.append(optimizer.step(closure))
        finally:
            for handle in handles:
                handle.remove()
        log.append(optimizer.step())
        return log

    ours = log_of(optim)
    assert ours == log_of(torch.optim)
    assert [entry[0] for entry in ours if isinstance(entry, tuple)] == ["before", "after", "before", "closure", "after"]


def test_step_has_a_name_in_profiles() -> None:
    optimizer = optim.RowWiseAdagrad([table()], lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert any(event.name == "Optimizer.step#RowWiseAdagrad.step" for event in profile.events())


def test_step_leaves_the_mode_of_gradients_as_it_was_also_after_an_error() -> None:
    optimizer = optim.SGD([table()], lr=0.1)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            optimizer.step()
            assert torch.is_grad_enabled() is enabled
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
            assert torch.is_grad_enabled() is enabled


def test_a_schedule_sees_the_steps() -> None:
    param = table()
    optimizer = optim.SGD([param], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "lr_scheduler.step() before optimizer.step()"
        for _ in range(3):
            param.grad = torch.ones_like(param)
            optimizer.step()
            schedule.step()
    assert schedule.get_last_lr() == [0.125]


@pytest.mark.parametrize("options", [{"fused": True}, {"grad": "rows"}, {"grad": "dense"}], ids=str)
@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_step_inside_of_a_compiled_function(options: dict[str, Any], rule: str) -> None:
    """It runs between the graphs; Adam's bias correction cannot be traced."""

    def trained(compiled: bool) -> Any:
        torch.manual_seed(0)
        module = rgt.nn.EmbeddingBag(20, 4, mode="mean", **options)
        optimizer = getattr(optim, rule)(module.parameters(), lr=0.1)

        def step(log: list[int]) -> None:
            log.append(len(log))
            optimizer.step()
            log.append(len(log))

        run, log = torch.compile(step, backend="eager") if compiled else step, []
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.tensor([1, 2, 3]), torch.tensor([0, 2])).sum().backward()
            run(log)
        assert log == list(range(6))
        return module.weight.detach()

    assert torch.equal(trained(True), trained(False))
