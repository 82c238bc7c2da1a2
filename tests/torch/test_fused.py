"""Fused tables are bitwise equal to the unfused step, whatever happens between backward and step."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from test_nn import ROWS, bags

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.optim import RULES
from rowgrad.torch import feature_lookup

OPTIMIZERS = [
    rgt.optim.SGD,
    rgt.optim.Adagrad,
    rgt.optim.RowWiseAdagrad,
    rgt.optim.Adam,
    rgt.optim.AdamW,
]


def pair(make: Any, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any, Any, Any]:
    plain = rgt.nn.EmbeddingBag(ROWS, 9, grad="rows", dtype=dtype, **options)
    fused = rgt.nn.EmbeddingBag(ROWS, 9, fused=True, dtype=dtype, **options)
    fused.load_state_dict(plain.state_dict())
    return plain, make(plain.parameters(), lr=0.1), fused, make(fused.parameters(), lr=0.1)


@pytest.mark.parametrize("way", ["ids", "plan", "weighted", "default_id"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_fused_equals_the_unfused_step(make: Any, dtype: torch.dtype, way: str) -> None:
    options = {"default_id": 3} if way == "default_id" else {}
    plain, first, fused, second = pair(make, dtype, combiner="sqrtn", **options)
    for seed in range(3):
        ids, offsets = bags(seed)
        weights = torch.rand(len(ids)) if way == "weighted" else None
        plan: dict[str, Any] = {}
        if way == "plan":
            closed = torch.cat([offsets, torch.tensor([len(ids)])])
            segments = torch.arange(len(offsets)).repeat_interleave(closed.diff())
            plan["plan"] = rg.Plan(ids, segments, ROWS, len(offsets))
        twin = None
        if weights is not None:
            weights.requires_grad_()
            twin = weights.detach().clone().requires_grad_()
        outs = plain(ids, offsets, weights, **plan), fused(ids, offsets, twin, **plan)
        assert torch.equal(*outs)
        y = torch.rand_like(outs[0])
        for out in outs:
            out.backward(y)
        if weights is not None:
            assert torch.equal(weights.grad, twin.grad)
        assert torch.equal(plain.weight, fused.weight), "nothing changes before step()"
        assert len(fused.weight.rowgrad_pending) == 1
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
        assert torch.equal(plain.weight, fused.weight)
    states = [list(o.state_dict()["state"][0].items()) for o in (first, second)]
    for (name, a), (other, b) in zip(*states, strict=True):
        assert name == other
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_fused_embeddings_equal_unfused_ones() -> None:
    tables = [rgt.nn.Table("user", 30, 8), rgt.nn.Table("item", 20, 8, features=("seen", "bought"))]
    plain, fused = rgt.nn.Embeddings(tables), rgt.nn.Embeddings(tables, fused=True)
    fused.load_state_dict(plain.state_dict())
    optimizers = [rgt.optim.RowWiseAdagrad(m.parameters(), lr=0.1) for m in (plain, fused)]
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        ids = {f: torch.randint(0, 20, (6, 3), generator=g) for f in plain.features}
        for module, optimizer in zip((plain, fused), optimizers, strict=True):
            out = module(ids)
            sum((o * o).sum() for o in out.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(plain.weight("user"), fused.weight("user"))
    assert torch.equal(plain.weight("item"), fused.weight("item"))


def fresh() -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    module = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
    return module, rgt.optim.SGD(module.parameters(), lr=0.1), *bags()


def train_both(
    train: Callable[[Any, Any], None], make: Any = rgt.optim.Adagrad, dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """Run the same training on an unfused and a fused module; every bit of tables and state must agree."""
    plain, first, fused, second = pair(make, dtype)
    before = plain.weight.detach().clone()
    for module, optimizer in ((plain, first), (fused, second)):
        train(module, optimizer)
    assert torch.equal(plain.weight, fused.weight)
    assert not torch.equal(plain.weight, before), "the training did something"
    states = [o.state_dict()["state"][0] for o in (first, second)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][name])), name
    return plain, fused


def loss_of(module: Any, seed: int = 0) -> torch.Tensor:
    out = module(*bags(seed))
    return (out * out).mean()


@pytest.mark.parametrize("make", [rgt.optim.SGD, rgt.optim.Adagrad, rgt.optim.Adam])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grad_scaler(make: Any, dtype: torch.dtype) -> None:
    def train(module: Any, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu")
        for seed in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(module, seed)).backward()
            scaler.step(optimizer)
            scaler.update()

    plain, _ = train_both(train, make, dtype)
    unscaled = rgt.nn.EmbeddingBag(ROWS, 9, grad="rows", dtype=dtype)
    assert plain.weight.isfinite().all()
    assert (plain.weight - unscaled.weight).abs().max() < 100


def test_grad_scaler_skips_steps_with_infinite_gradients() -> None:
    module, optimizer, ids, offsets = fresh()
    before = module.weight.detach().clone()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(module(ids, offsets).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(module.weight, before)
    assert scaler.get_scale() == 2.0**15
    optimizer.zero_grad()
    assert module.weight.grad is None


def test_clipping_between_backward_and_step() -> None:
    def by_norm(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        assert rgt.clip.clip_grad_norm_(module.parameters(), 1e-3) > 1e-3
        optimizer.step()

    def by_value(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        rgt.clip.clip_grad_value_(module.parameters(), 1e-4)
        optimizer.step()

    def under_a_scaler(module: Any, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(module)).backward()
        scaler.unscale_(optimizer)
        rgt.clip.clip_grad_norm_(module.parameters(), 1e-3)
        scaler.step(optimizer)

    def by_torch(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        assert torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-3) > 1e-3
        torch.nn.utils.clip_grad_value_(module.parameters(), 1e-4)
        optimizer.step()

    def by_torch_under_a_scaler(module: Any, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(module)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
        scaler.step(optimizer)

    def in_a_closure(module: Any, optimizer: Any) -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(module)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
            return loss

        for _ in range(2):
            optimizer.step(closure)

    for train in (by_norm, by_value, under_a_scaler, by_torch, by_torch_under_a_scaler, in_a_closure):
        train_both(train)


@pytest.mark.parametrize("second_optimizer", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [rgt.optim.SGD, rgt.optim.RowWiseAdagrad, rgt.optim.Adam])
def test_clipped_tables_step_in_one_call(
    make: Any, dtype: torch.dtype, second_optimizer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [rgt.nn.Table("user", 30, 8), rgt.nn.Table("item", 20, 8, features=("seen", "bought"))]
    plain = rgt.nn.Embeddings(tables, dtype=dtype)
    fused = rgt.nn.Embeddings(tables, dtype=dtype, fused=True)
    fused.load_state_dict(plain.state_dict())
    makers = [make, rgt.optim.Adagrad] if second_optimizer else [make]
    optimizers = [[maker(m.parameters(), lr=0.5) for maker in makers] for m in (plain, fused)]
    before = fused.weight("item").detach().clone()
    monkeypatch.setattr(rgt.row_optimizer, "step_with_grad", lambda *_, **__: pytest.fail("a table stepped by itself"))
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        batch = {f: torch.randint(0, 20, (6, 3), generator=g) for f in plain.features}
        for module, own in zip((plain, fused), optimizers, strict=True):
            module.zero_grad()
            sum((o * o).sum() for o in module(batch).values()).backward()
            assert torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0) > 1.0
            for optimizer in own:
                optimizer.step()
        for name in ("user", "item"):
            assert torch.equal(plain.weight(name), fused.weight(name))
            assert (fused.weight(name).grad is None) == (not second_optimizer), "a single optimizer consumes it"
    assert not torch.equal(fused.weight("item"), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_accumulate(dtype: torch.dtype) -> None:
    def backwards(module: Any, optimizer: Any) -> None:
        for seed in range(3):
            loss_of(module, seed).backward()
        optimizer.step()

    def lookups_first(module: Any, optimizer: Any) -> None:
        losses = [loss_of(module, seed) for seed in range(2)]
        for loss in losses:
            loss.backward()
        optimizer.step()

    def in_one_loss(module: Any, optimizer: Any) -> None:
        sum(loss_of(module, seed) for seed in range(2)).backward()
        optimizer.step()

    def twice_through_one_graph(module: Any, optimizer: Any) -> None:
        loss = loss_of(module)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()

    def read_between(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        assert module.weight.grad.is_sparse
        loss_of(module, 1).backward()
        optimizer.step()

    def dropped(module: Any, optimizer: Any) -> None:
        for seed, zero in ((0, optimizer.zero_grad), (1, module.zero_grad), (2, None)):
            loss_of(module, seed).backward()
            if zero is not None:
                zero()
        optimizer.step()

    def zeroed(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        optimizer.zero_grad(set_to_none=False)
        loss_of(module, 1).backward()
        optimizer.step()

    for train in (backwards, lookups_first, in_one_loss, twice_through_one_graph, read_between, dropped, zeroed):
        train_both(train, dtype=dtype)


def test_float16_gradients_accumulate() -> None:
    """torch itself cannot add sparse float16 tensors on the CPU."""
    plain, first, fused, second = pair(rgt.optim.SGD, torch.float16)
    found = []
    for seed in range(3):
        loss_of(fused, seed).backward()
        loss_of(plain, seed).backward()
        found.append(plain.weight.grad)
        plain.weight.grad = None
    ids = torch.cat([g.indices() for g in found], 1)
    values = torch.cat([g.values() for g in found])
    plain.weight.grad = torch.sparse_coo_tensor(ids, values, plain.weight.shape, check_invariants=True)
    first.step()
    second.step()
    assert torch.equal(plain.weight, fused.weight)


def test_reading_grad_returns_the_unfused_bits() -> None:
    plain, _, fused, _ = pair(rgt.optim.SGD)
    for module in (plain, fused):
        loss_of(module).backward()
    assert fused.weight.grad.is_coalesced()
    assert torch.equal(plain.weight.grad.indices(), fused.weight.grad.indices())
    assert torch.equal(plain.weight.grad.values(), fused.weight.grad.values())
    assert not fused.weight.rowgrad_pending


def test_a_step_consumes_the_gradient() -> None:
    for read in (False, True):
        module, optimizer, ids, offsets = fresh()
        module(ids, offsets).sum().backward()
        assert not read or module.weight.grad is not None
        optimizer.step()
        assert module.weight.grad is None
        after = module.weight.detach().clone()
        optimizer.step()
        assert torch.equal(module.weight, after)


def test_only_backward_passes_for_the_table_update_it() -> None:
    plain, first, fused, second = pair(rgt.optim.Adagrad)
    for module, optimizer in ((plain, first), (fused, second)):
        ids, offsets = bags()
        weights = torch.rand(len(ids)).requires_grad_()
        out = module(ids, offsets, weights)
        torch.autograd.grad(out.sum(), weights, retain_graph=True)
        optimizer.step()
        assert "step" not in optimizer.state[module.weight]
        out.sum().backward(inputs=[weights])
        optimizer.step()
        assert "step" not in optimizer.state[module.weight]
    outs = [m(*bags()).square().sum() for m in (plain, fused)]
    grads = [torch.autograd.grad(out, m.weight)[0] for out, m in zip(outs, (plain, fused), strict=True)]
    assert torch.equal(grads[0].indices(), grads[1].indices())
    assert torch.equal(grads[0].values(), grads[1].values())
    assert fused.weight.grad is None
    outs = [m(*bags()).square().sum() for m in (plain, fused)]
    for out, m in zip(outs, (plain, fused), strict=True):
        out.backward(inputs=[m.weight])
    first.step()
    second.step()
    assert torch.equal(plain.weight, fused.weight)


def test_hooks_get_the_gradient() -> None:
    def scaled(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()  # pending when the hook is registered
        handle = module.weight.register_hook(lambda grad: grad * 3)
        loss_of(module, 1).backward()
        handle.remove()
        loss_of(module, 2).backward()
        optimizer.step()

    def stepped(module: Any, optimizer: Any) -> None:
        def step(_: Any) -> None:
            optimizer.step()
            optimizer.zero_grad()

        module.weight.register_post_accumulate_grad_hook(step)
        for seed in range(2):
            loss_of(module, seed).backward()

    for train in (scaled, stepped):
        train_both(train)


def test_multi_grad_hooks_get_the_gradient() -> None:
    found = []
    plain, _, fused, _ = pair(rgt.optim.SGD)
    for module in (plain, fused):
        for mode in ("all", "any"):
            hook = (lambda grads: found.append(grads[0])) if mode == "all" else found.append
            torch.autograd.graph.register_multi_grad_hook([module.weight], hook, mode=mode)
        loss_of(module).backward()
    assert len(found) == 4
    for grad in found:
        assert torch.equal(grad.to_dense(), found[0].to_dense())


def test_hooks_of_autograd_nodes_do_not_get_the_gradient() -> None:
    """torch does not report whether a node has hooks; docs/reference/torch.md lists the hooks that work."""
    received: list[Any] = []
    module, optimizer, ids, offsets = fresh()
    before = module.weight.detach().clone()
    node = torch.autograd.graph.get_gradient_edge(module.weight).node
    node.register_prehook(lambda grads: received.append(grads[0]))
    node.register_hook(lambda _, grads: received.append(grads[0]))
    out = module(ids, offsets)
    out.grad_fn.register_hook(lambda grads, _: received.append(grads[0]))
    out.sum().backward()
    assert received == [None] * 3
    optimizer.step()
    assert not torch.equal(module.weight, before)


def test_torch_versions_that_do_not_report_running_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this private torch function, results are the same but the row-sparse gradient is materialized."""
    monkeypatch.delattr(torch._C, "_will_engine_execute_node")

    def train(module: Any, optimizer: Any) -> None:
        for seed in range(3):
            weights = torch.linspace(0.5, 1, 60).requires_grad_()
            out = module(*bags(seed), weights)
            torch.autograd.grad(out.sum(), weights, retain_graph=True)
            out.square().sum().backward(inputs=[weights], retain_graph=True)
            assert module.weight.grad is None
            grad = torch.autograd.grad(out.sum(), module.weight, retain_graph=True)[0]
            assert grad.is_sparse
            out.square().sum().backward()
            assert module.weight.grad.is_sparse
            assert not getattr(module.weight, "rowgrad_pending", ())
            optimizer.step()
            optimizer.zero_grad()

    train_both(train)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_double_backward() -> None:
    plain, _, fused, _ = pair(rgt.optim.SGD, torch.float64)
    found = []
    for module in (plain, fused):
        ids, offsets = bags()
        weights = torch.linspace(0.5, 1, len(ids), dtype=torch.float64).requires_grad_()
        out = module(ids, offsets, weights).pow(3).sum()
        grad, to_weights = torch.autograd.grad(out, (module.weight, weights), create_graph=True)
        values = grad.to_dense().square().sum() + to_weights.square().sum()
        found += [g.to_dense() for g in torch.autograd.grad(values, (module.weight, weights))]
        module(ids, offsets).pow(3).sum().backward(create_graph=True)
        assert module.weight.grad.to_dense().requires_grad
        module.weight.grad = None
    for a, b in zip(found[:2], found[2:], strict=True):
        assert torch.equal(a, b)


def test_two_optimizers_share_one_table() -> None:
    def train(module: Any, optimizer: Any) -> None:
        other = rgt.optim.Adam(module.parameters(), lr=0.01)
        for seed in range(2):
            loss_of(module, seed).backward()
            optimizer.step()
            other.step()
            module.zero_grad()

    train_both(train)


def test_a_table_frozen_after_its_lookup() -> None:
    module, optimizer, ids, offsets = fresh()
    before = module.weight.detach().clone()
    weights = torch.rand(len(ids)).requires_grad_()
    out = module(ids, offsets, weights)
    module.weight.requires_grad_(False)
    out.sum().backward()
    optimizer.step()
    assert weights.grad is not None
    assert torch.equal(module.weight, before)


def test_learning_rate_of_zero() -> None:
    plain, first, fused, second = pair(rgt.optim.Adagrad)
    for module, optimizer in ((plain, first), (fused, second)):
        optimizer.param_groups[0]["lr"] = 0.0
        loss_of(module).backward()
        optimizer.step()
    assert torch.equal(plain.weight, fused.weight)
    assert torch.equal(first.state[plain.weight]["sum"], second.state[fused.weight]["sum"])


@pytest.mark.parametrize(("which", "by_segment"), [("ids", True), ("y", True), ("y", False)])
def test_overwritten_ids_and_gradients_are_rejected(which: str, by_segment: bool) -> None:
    module, optimizer, ids, offsets = fresh()
    before = module.weight.detach().clone()
    head = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [head]})
    head.grad = torch.ones(3)
    y = torch.ones(len(offsets), 9)
    segments = torch.repeat_interleave(torch.diff(offsets, append=torch.tensor([len(ids)])))
    place = {"segment_ids": segments, "num_bags": len(offsets)} if by_segment else {"offsets": offsets}
    module(ids, **place).backward(y)
    {"ids": ids, "y": y}[which].zero_()
    with pytest.raises(rg.errors.OpError, match="overwritten in place between backward and step"):
        optimizer.step()
    with pytest.raises(rg.errors.OpError, match="overwritten in place between backward and step"):
        _ = module.weight.grad
    assert torch.equal(module.weight, before)
    assert torch.equal(head.detach(), torch.ones(3)), "nothing was written"
    optimizer.zero_grad()
    loss_of(module).backward()
    optimizer.step()


def test_ids_may_be_overwritten_after_a_lookup_that_copied_them() -> None:
    steps = []
    for overwrites in (False, True):
        module, optimizer, ids, offsets = fresh()
        found = module(ids, offsets)
        if overwrites:
            ids.zero_()
            offsets.zero_()
        found.sum().backward()
        optimizer.step()
        steps.append(module.weight.detach().clone())
    assert torch.equal(*steps)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("way", ["optimizer", "module", "model", "torch's optimizer"])
def test_zeroing_overwritten_gradients(way: str, set_to_none: bool) -> None:
    """Dropped gradients are never computed, so ids that were overwritten do not raise."""

    def train(module: Any, optimizer: Any) -> None:
        owners = {
            "optimizer": optimizer,
            "module": module,
            "model": torch.nn.Sequential(module, torch.nn.Linear(9, 1)),
            "torch's optimizer": torch.optim.SGD(module.parameters(), lr=0.1),
        }
        ids, offsets = bags()
        for seed in range(2):
            (module(ids, offsets) ** 2).mean().backward()
            ids.copy_(bags(seed)[0])
            owners[way].zero_grad(set_to_none=set_to_none)
            assert (module.weight.grad is None) == set_to_none
            assert set_to_none or module.weight.grad.to_dense().count_nonzero() == 0
            optimizer.step()
            loss_of(module, seed).backward()
            optimizer.step()

    train_both(train, rgt.optim.Adam)


def test_zeroing_does_not_compute_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, ids, offsets = fresh()
    module(ids, offsets).sum().backward()
    monkeypatch.setattr(rgt.fused, "_store_pending", lambda weight: pytest.fail("computed"))
    module.zero_grad()
    assert not module.weight.rowgrad_pending


STATE_DICTS = "torch.distributed.checkpoint.state_dict"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("make", [getattr(rgt.optim, spec.class_name) for spec in RULES.values()])
def test_state_dicts_of_torch_distributed(make: Any) -> None:
    """`get_state_dict` makes a new optimizer create its state by a step, which must change and count nothing."""
    state_dicts = pytest.importorskip(STATE_DICTS)

    def fresh_pair(options: dict[str, Any]) -> tuple[Any, Any]:
        torch.manual_seed(0)
        bag = rgt.nn.EmbeddingBag(ROWS, 9, **options)
        model = torch.nn.ModuleDict({"bag": bag, "head": torch.nn.Linear(9, 2)})
        return model, make(model.parameters(), 0.1, **({} if make is rgt.optim.Ftrl else {"weight_decay": 0.1}))

    def train(model: Any, optimizer: Any, seeds: range) -> None:
        for seed in seeds:
            model["head"](model["bag"](*bags(seed))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    for options in ({"grad": "rows"}, {"fused": True}, {"grad": "dense"}):
        model, optimizer = fresh_pair(options)
        before = copy.deepcopy(model.state_dict())
        empty = state_dicts.get_optimizer_state_dict(model, optimizer)["state"]
        assert sorted(empty) == ["bag.weight", "head.bias", "head.weight"]
        assert all(state["step"] == 0 for state in empty.values())
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])
        assert all(p.grad is None for p in model.parameters())
        assert optimizer.param_groups[0]["lr"] == 0.1
        train(model, optimizer, range(2))
        uninterrupted, other = fresh_pair(options)
        train(uninterrupted, other, range(2))
        saved = copy.deepcopy(state_dicts.get_state_dict(model, optimizer))
        resumed, third = fresh_pair(options)
        state_dicts.set_state_dict(resumed, third, model_state_dict=saved[0], optim_state_dict=saved[1])
        for m, o in ((model, optimizer), (uninterrupted, other), (resumed, third)):
            train(m, o, range(2, 4))
        for a, b, c in zip(*(m.parameters() for m in (model, uninterrupted, resumed)), strict=True):
            assert torch.equal(a, b), "reading the state before training changes nothing"
            assert torch.equal(a, c)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_state_dicts_between_backward_and_step() -> None:
    """A pending gradient is neither lost nor replaced."""
    state_dicts = pytest.importorskip(STATE_DICTS)

    def train(module: Any, optimizer: Any) -> None:
        for seed in range(2):
            loss_of(module, seed).backward()
            state_dicts.get_state_dict(module, optimizer)
            optimizer.step()
            optimizer.zero_grad()

    train_both(train)


def test_zero_learning_rates_are_steps() -> None:
    """A step with a learning rate and gradients of zero is counted, except for the one of `get_state_dict`."""
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = rgt.optim.Momentum([weight], lr=0.0, weight_decay=0.5)
    weight.grad = torch.zeros(3, 2)
    optimizer.step()
    assert optimizer.state[weight]["step"] == 1
    assert optimizer.state[weight]["momentum_buffer"].eq(0.5).all()


def test_states_loaded_between_forward_and_backward() -> None:
    other = torch.randn(ROWS, 9)

    def load_module(module: Any, optimizer: Any) -> None:
        loss = loss_of(module)
        module.load_state_dict({"weight": other})
        loss.backward()
        optimizer.step()

    def load_optimizer(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        optimizer.step()
        optimizer.zero_grad()
        state = copy.deepcopy(optimizer.state_dict())
        loss_of(module).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(module).backward()
        optimizer.load_state_dict(state)
        optimizer.step()

    for train in (load_module, load_optimizer):
        train_both(train)


def test_moving_a_module_between_steps() -> None:
    def between_steps(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        optimizer.step()
        optimizer.zero_grad()
        module.half()
        loss_of(module, 1).backward()
        optimizer.step()

    def with_a_gradient(module: Any, optimizer: Any) -> None:
        loss_of(module).backward()
        module.bfloat16()
        optimizer.step()

    for train in (between_steps, with_a_gradient):
        train_both(train)


def test_tables_stay_fused_when_torch_replaces_the_parameter() -> None:
    with torch.device("meta"):
        module = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
        stacked = rgt.nn.Embeddings([rgt.nn.Table("a", ROWS, 9)], fused=True, include_last_offset=False)
    assigned = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
    assigned.load_state_dict({"weight": torch.randn(ROWS, 9)}, assign=True)
    for moved in (module.to_empty(device="cpu"), stacked.to_empty(device="cpu"), assigned):
        (weight,) = moved.parameters()
        optimizer = rgt.optim.SGD(moved.parameters(), lr=0.1)
        torch.nn.init.zeros_(weight)
        out = moved({"a": bags()})["a"] if moved is stacked else moved(*bags())
        out.sum().backward()
        assert len(weight.rowgrad_pending) == 1
        optimizer.step()
        assert weight.count_nonzero() > 0


def test_other_tensors_in_place_of_the_table() -> None:
    """functional_call, or anything else that swaps the tensor, gets the gradient of an unfused module."""
    module, _, ids, offsets = fresh()
    other = torch.randn(ROWS, 9, requires_grad=True)
    torch.func.functional_call(module, {"weight": other}, (ids, offsets)).sum().backward()
    assert other.grad.is_sparse
    assert module.weight.grad is None


def test_pending_gradients_are_not_copied() -> None:
    module, _, ids, offsets = fresh()
    module(ids, offsets).sum().backward()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.weight.grad is None
        assert torch.equal(twin.weight, module.weight)
        optimizer = rgt.optim.SGD(twin.parameters(), lr=0.1)
        twin(ids, offsets).sum().backward()
        optimizer.step()
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.update_parameters(module)
    assert torch.equal(averaged.module.weight, module.weight)


def test_activation_checkpointing() -> None:
    def train(module: Any, optimizer: Any) -> None:
        for reentrant in (False, True):
            y = torch.ones((), requires_grad=True)
            out = torch.utils.checkpoint.checkpoint(lambda y: loss_of(module) * y, y, use_reentrant=reentrant)
            out.backward()
            optimizer.step()
            optimizer.zero_grad()

    train_both(train)


def test_backward_without_an_optimizer_raises() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
    with pytest.raises(rg.errors.OpError, match="needs a rowgrad optimizer"):
        module(*bags()).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(rg.errors.OpError, match="needs a rowgrad optimizer"):
        module(*bags()).sum().backward()


def test_unsupported_options_raise() -> None:
    with pytest.raises(rg.errors.OpError, match="does not support lookup_max_norm"):
        rgt.nn.EmbeddingBag(ROWS, 9, lookup_max_norm=1.0, fused=True)
    with pytest.raises(rg.errors.OpError, match="does not support grad='dense'"):
        rgt.nn.EmbeddingBag(ROWS, 9, grad="dense", fused=True)
    with pytest.raises(rg.errors.OpError, match="does not support grad='dense'"):
        rgt.nn.Embeddings([rgt.nn.Table("a", ROWS, 9)], grad="dense", fused=True)


def test_evaluation_needs_no_optimizer() -> None:
    module, _, ids, offsets = fresh()
    with torch.no_grad():
        assert not module(ids, offsets).requires_grad
    module.weight.requires_grad = False
    assert not module(ids, offsets).requires_grad


def test_a_deep_copy_trains_independently() -> None:
    module, _, ids, offsets = fresh()
    twin = copy.deepcopy(module)
    with pytest.raises(rg.errors.OpError, match="needs a rowgrad optimizer"):
        twin(ids, offsets).sum().backward()
    optimizer = rgt.optim.SGD(twin.parameters(), lr=0.1)
    before = module.weight.detach().clone()
    twin(ids, offsets).sum().backward()
    optimizer.step()
    assert torch.equal(before, module.weight)
    assert not torch.equal(before, twin.weight)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.filterwarnings("ignore")
def test_fsdp(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        bag = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
        many = rgt.nn.Embeddings([rgt.nn.Table("a", ROWS, 9)], fused=True, include_last_offset=False)
        for module, args in ((bag, bags()), (many, ({"a": bags()},))):
            torch.distributed.fsdp.fully_shard(module, mesh=mesh)
            rgt.optim.SGD(module.parameters(), lr=0.1)
            with pytest.raises(rg.errors.OpError, match="which FSDP cannot shard"):
                module(*args)
        rows = torch.distributed.fsdp.fully_shard(rgt.nn.EmbeddingBag(ROWS, 9, grad="rows"), mesh=mesh)
        with pytest.raises(rg.errors.OpError, match="which FSDP cannot shard"):
            rows(*bags())
        frozen = rgt.nn.EmbeddingBag(ROWS, 9, fused=True)
        frozen.weight = torch.nn.Parameter(frozen.weight.detach())
        with pytest.raises(rg.errors.OpError, match="parameters that a wrapper has replaced"):
            frozen(*bags())
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("options", [{}, {"default_id": 0}])
def test_concurrent_backward_passes_lose_no_gradient(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass waits while another thread stores `grad`."""
    bag = rgt.nn.EmbeddingBag(ROWS, 2, combiner="sum", fused=True, **options)
    optimizer = rgt.optim.SGD(bag.parameters(), lr=1.0)
    ids = torch.tensor([[3]])
    other = threading.Thread(target=lambda: bag(ids).sum().backward())
    owner = rgt.fused.Pending if options else feature_lookup.PendingLookup
    check = owner.check

    def interrupted(pending: Any) -> None:
        monkeypatch.setattr(owner, "check", check)
        other.start()
        other.join(0.5)  # the other thread waits until `grad` is stored
        check(pending)

    monkeypatch.setattr(owner, "check", interrupted)
    bag(ids).sum().backward()
    assert bag.weight.grad is not None
    other.join()
    assert bag.weight.grad.to_dense()[3].tolist() == [2.0, 2.0]
    optimizer.step()


def test_a_backward_pass_during_a_step_counts_for_the_next_step() -> None:
    bag = rgt.nn.EmbeddingBag(ROWS, 2, combiner="sum", fused=True)
    optimizer = rgt.optim.SGD(bag.parameters(), lr=1.0)
    bag.weight.data.zero_()
    bag(torch.tensor([[3]])).sum().backward()
    step = rgt.fused._step_with_pending(bag.weight, optimizer)
    next(step)  # validated, not yet written
    bag(torch.tensor([[4]])).sum().backward()
    assert next(step, None) is None
    optimizer.step()
    assert bag.weight[3:5].tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


def test_a_backward_pass_during_a_step_with_a_stored_gradient_counts_for_the_next_step() -> None:
    bag = rgt.nn.EmbeddingBag(ROWS, 2, combiner="sum", fused=True)
    optimizer = rgt.optim.SGD(bag.parameters(), lr=1.0)
    bag.weight.data.zero_()
    bag(torch.tensor([[3]])).sum().backward()
    assert bag.weight.grad is not None
    step = optimizer._iter_step(0, optimizer.param_groups[0], bag.weight)
    with torch.no_grad():
        next(step)  # validated, not yet written
    bag(torch.tensor([[4]])).sum().backward()
    with torch.no_grad():
        assert next(step, None) is None
    optimizer.step()
    assert bag.weight[3:5].tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


@pytest.mark.parametrize("fused", [False, True])
def test_a_second_module_around_a_fused_table(fused: bool) -> None:
    table = rgt.nn.EmbeddingBag(5, 2, fused=True).weight
    bag = rgt.nn.EmbeddingBag.from_pretrained(table, freeze=False, fused=fused)
    assert bag.weight.data_ptr() == table.data_ptr()
    assert bag.weight is not table
    assert bag.weight.requires_grad
    assert torch.equal(bag(torch.tensor([[1]]))[0], table[1])
