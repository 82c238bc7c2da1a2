"""Checks of rowgrad's optimizers on sharded parameters (DTensor, FSDP2, FSDP1); sharded_ranks.py runs them."""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.optim import RULES
from rowgrad.torch.row_state import step_with_grad

MAKERS = [getattr(rgt.optim, spec.class_name) for spec in RULES.values()]
ELEMENTWISE = [make for make in MAKERS if not RULES[make.rule].per_row]


def _random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _same(a: Any, b: Any) -> None:
    a, b = (t.full_tensor() if isinstance(t, DTensor) else torch.as_tensor(t) for t in (a, b))
    assert a.dtype == b.dtype
    assert torch.equal(a, b), (a, b)


def _raises(call: Any, text: str) -> None:
    with pytest.raises((rg.errors.OpError, ValueError), match=re.escape(text)):
        call()


def _model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def dtensor_steps(group: Any, rank: int, ranks: int) -> None:
    """Steps of DTensors have the bits of unsharded steps, however the rows are split; state is a DTensor too."""
    if ranks == 3:
        return  # 2 ranks have parts of different sizes, and one of 4 has an empty part
    mesh = DeviceMesh.from_group(group, "cpu")
    for make in MAKERS:
        for dtype, place in ((torch.float32, Shard(0)), (torch.bfloat16, Shard(1)), (torch.float64, Replicate())):
            if RULES[make.rule].per_row and place == Shard(1):
                continue
            # FTRL rounds tables of one column differently, so every part needs two.
            whole = [_random(7, 2 * ranks, seed=1, dtype=dtype), _random(6, seed=2, dtype=dtype)]
            places = [place, Replicate() if place == Shard(1) else place]
            plain = [torch.nn.Parameter(t.clone()) for t in whole]
            split = [torch.nn.Parameter(distribute_tensor(t, mesh, [p])) for t, p in zip(whole, places, strict=True)]
            first, second = make(plain, 0.1, maximize=True), make(split, 0.1, maximize=True)
            for step in range(3):
                for a, b, p in zip(plain, split, places, strict=True):
                    a.grad = _random(*a.shape, seed=10 + step, dtype=dtype)
                    b.grad = distribute_tensor(a.grad, mesh, [p])
                first.step()
                versions = [b._version for b in split]
                second.step()
                assert all(b._version > v for b, v in zip(split, versions, strict=True))
            for a, b in zip(plain, split, strict=True):
                _same(b, a)
                for name, value in first.state[a].items():
                    assert isinstance(second.state[b][name], DTensor) == (name != "step")
                    _same(second.state[b][name], value)
                for slot in RULES[make.rule].slots:
                    assert tuple(second.state[b][slot.name].placements) == tuple(b.placements)
            state = second.state_dict()
            again = make(split, 0.1, maximize=True)
            again.load_state_dict(state)
            for b in split:
                for name, value in second.state[b].items():
                    _same(again.state[b][name], value)
                    if isinstance(value, DTensor) and value.to_local().numel():
                        assert again.state[b][name].to_local().data_ptr() != value.to_local().data_ptr()


def dtensor_gradients(group: Any, rank: int, ranks: int) -> None:
    """A gradient that is placed differently is redistributed, as torch's optimizers do."""
    mesh = DeviceMesh.from_group(group, "cpu")
    param = torch.nn.Parameter(distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)]))
    optimizer = rgt.optim.SGD([param], 1.0)
    param.grad = distribute_tensor(torch.ones(4, 2), mesh, [Replicate()])
    optimizer.step()
    param.grad = DTensor.from_local(torch.ones(4, 2), mesh, [Partial()])
    optimizer.step()
    _same(param, torch.full((4, 2), -1.0 - ranks))


def dtensor_misuse(group: Any, rank: int, ranks: int) -> None:
    mesh = DeviceMesh.from_group(group, "cpu")

    def of(place: Any) -> Any:
        return torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [place]))

    _raises(lambda: rgt.optim.RowWiseAdagrad([of(Shard(1))]), "sharded by rows, Shard(0), because row_wise_adagrad")
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [Partial()]))
    _raises(lambda: rgt.optim.SGD([partial]), "sharded or replicated, not partial")
    param = of(Shard(0))
    optimizer = rgt.optim.Adagrad([param], 0.1)
    before = param.to_local().clone()
    param.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    bags = (torch.ones(1, 4), torch.tensor([0]), torch.tensor([0]), "sum")
    _raises(lambda: optimizer.update_from_bags(param, *bags), "param must be a plain tensor; got a DTensor")
    rows = rgt.RowGradient(torch.tensor([0]), torch.ones(1, 4), 4)
    for value, grad, text in (
        (param, rows, "grad must be a DTensor, as the parameter; got a row-sparse gradient"),
        (param, torch.ones(4, 4), "grad must be a DTensor, as the parameter; got a Tensor"),
        (torch.ones(4, 4), param.grad, "grad must be a plain tensor; got a DTensor"),
    ):
        steps = step_with_grad("adagrad", value, optimizer.state[param], grad, rg.optim.Step(lr=0.1))
        _raises(lambda steps=steps: next(steps), text)
    assert torch.equal(param.to_local(), before)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["sum"] = state["state"][0]["sum"].full_tensor()
    _raises(lambda: optimizer.load_state_dict(state), "set_optimizer_state_dict")


def stochastic_rounding_of_shards(group: Any, rank: int, ranks: int) -> None:
    """Parts that differ are rounded differently, copies alike."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for place in (Shard(0), Replicate()):
        start = torch.ones(64 * ranks, 4, dtype=torch.bfloat16)
        param = torch.nn.Parameter(distribute_tensor(start, mesh, [place]))
        optimizer = rgt.optim.SGD([param], 1e-3, stochastic_rounding=True)
        param.grad = distribute_tensor(torch.ones_like(start), mesh, [place])
        optimizer.step()
        found = [torch.empty_like(param.to_local()) for _ in range(ranks)]
        dist.all_gather(found, param.to_local().detach(), group=group)
        assert all(torch.equal(f, found[0]) == (place == Replicate()) for f in found[1:])


def _train(model: Any, optimizer: Any, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        optimizer.zero_grad()
        model(_random(4, 5, seed=step)).square().sum().backward()
        optimizer.step()


def fsdp2(group: Any, rank: int, ranks: int) -> None:
    """A model that `fully_shard` wrapped is trained, saved and resumed as an unsharded one."""
    if ranks > 2:
        return
    mesh = DeviceMesh.from_group(group, "cpu")
    for make in MAKERS:
        model, alone = fully_shard(_model(), mesh=mesh), _model()
        optimizer, single = make(model.parameters(), lr=0.1), make(alone.parameters(), lr=0.1)
        _train(model, optimizer, 3)
        _train(alone, single, 3)
        for a, b in zip(model.parameters(), alone.parameters(), strict=True):
            _same(a, b)
        saved = get_state_dict(model, optimizer)
        resumed = fully_shard(_model(), mesh=mesh)
        other = make(resumed.parameters(), lr=0.7)
        before = [p.full_tensor() for p in resumed.parameters()]
        fresh = get_optimizer_state_dict(resumed, other)  # torch makes the optimizer create its state
        for p, value in zip(resumed.parameters(), before, strict=True):
            _same(p, value)
            assert p.grad is None
        assert all(state["step"] == 0 for state in fresh["state"].values())
        assert other.param_groups[0]["lr"] == 0.7
        set_state_dict(resumed, other, model_state_dict=saved[0], optim_state_dict=saved[1])
        assert other.param_groups[0]["lr"] == 0.1
        for m, o in ((model, optimizer), (resumed, other)):
            _train(m, o, 2, start=3)
        for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
            _same(a, b)
            assert optimizer.state[a]["step"] == other.state[b]["step"] == 5
            for slot in RULES[make.rule].slots:
                _same(optimizer.state[a][slot.name], other.state[b][slot.name])


def fsdp2_checkpoints(group: Any, rank: int, ranks: int) -> None:
    """torch.distributed.checkpoint writes sharded state; another number of ranks, or one process, reads it."""
    if ranks != dist.get_world_size():
        return
    mesh = DeviceMesh.from_group(group, "cpu")
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    for make in (rgt.optim.RowWiseAdagrad, rgt.optim.Adam):
        path = Path(str(folder[0])) / make.__name__
        model = fully_shard(_model(), mesh=mesh)
        optimizer = make(model.parameters(), lr=0.1)
        _train(model, optimizer, 2)
        names = ("model", "optim")
        dcp.save(dict(zip(names, get_state_dict(model, optimizer), strict=True)), checkpoint_id=path)
        full = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
        half = DeviceMesh("cpu", torch.arange(ranks).view(2, -1), mesh_dim_names=("copies", "parts"))
        resharded = fully_shard(_model(), mesh=half)
        other = make(resharded.parameters(), lr=0.5)
        loaded = dict(zip(names, get_state_dict(resharded, other), strict=True))
        dcp.load(loaded, checkpoint_id=path)
        set_state_dict(resharded, other, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
        third = fully_shard(_model(), mesh=mesh)
        whole = make(third.parameters(), lr=0.5)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_optimizer_state_dict(third, whole, full if rank == 0 else {}, options=options)
        for a, b, c in zip(model.parameters(), resharded.parameters(), third.parameters(), strict=True):
            _same(a, b)
            assert int(other.state[b]["step"]) == int(whole.state[c]["step"]) == 2
            for slot in RULES[make.rule].slots:
                _same(optimizer.state[a][slot.name], other.state[b][slot.name])
                _same(optimizer.state[a][slot.name], whole.state[c][slot.name])


def fsdp2_tables(group: Any, rank: int, ranks: int) -> None:
    """FSDP2 shards a table with dense gradients; it cannot reduce row-sparse ones."""
    mesh = DeviceMesh.from_group(group, "cpu")
    ids = torch.tensor([[1, 2], [4, 4]])
    found = []
    for sharded in (False, True):
        torch.manual_seed(0)
        bag = rgt.nn.EmbeddingBag(6, 4, combiner="sum")
        bag = fully_shard(bag, mesh=mesh) if sharded else bag
        optimizer = rgt.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            bag(ids).sum().backward()
            optimizer.step()
        found.append(bag.weight)
    _same(found[1], found[0])
    fused = fully_shard(rgt.nn.EmbeddingBag(6, 4, fused=True), mesh=mesh)
    _raises(lambda: fused(ids), "row gradients or is fused, which FSDP cannot shard")


def fsdp1(group: Any, rank: int, ranks: int) -> None:
    """Elementwise rules step flattened parameters; rules with state for each row are rejected."""
    if ranks > 2:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP warns about deprecated parts of itself
        for own in (False, True):
            for make in ELEMENTWISE:
                options = {"process_group": group, "use_orig_params": own, "device_id": torch.device("cpu")}
                model, alone = FullyShardedDataParallel(_model(), **options), _model()
                optimizer, single = make(model.parameters(), lr=0.1), make(alone.parameters(), lr=0.1)
                _train(model, optimizer, 3)
                _train(alone, single, 3)
                with FullyShardedDataParallel.summon_full_params(model):
                    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
                expected = torch.cat([p.detach().reshape(-1) for p in alone.parameters()])
                found = flat[: len(expected)]
                if make is rgt.optim.Ftrl:  # it rounds a vector differently from a table
                    torch.testing.assert_close(found, expected)
                else:
                    _same(found, expected)
            model = FullyShardedDataParallel(_model(), **options)
            _raises(lambda m=model: rgt.optim.RowWiseAdagrad(m.parameters()), "a parameter that FSDP flattened")


CHECKS = [dtensor_steps, dtensor_gradients, dtensor_misuse, stochastic_rounding_of_shards, fsdp2, fsdp2_checkpoints,
          fsdp2_tables, fsdp1]  # fmt: skip
