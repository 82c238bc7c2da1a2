"""Four processes that check row gradients under DistributedDataParallel: `python ddp_ranks.py FOLDER`.

They are forked once; fewer ranks are subgroups. Each check of each rank leaves a line in FOLDER: its name, and "fine"
or a traceback. test_ddp.py reads them.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import rowgrad as rg
import rowgrad.torch as rgt

WORLD, ROWS, COLUMNS = 4, 23, 5
FOLDER = Path()


class Model(torch.nn.Module):
    """A table, used once or twice, and a dense part; it keeps its bags, so that checks read their gradients."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bag = rgt.nn.EmbeddingBag(ROWS, COLUMNS, **options)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        self.mlp.to(self.bag.weight.dtype)
        self.bags: list[Tensor] = []
        self.retain = True
        self.reentrant: bool | None = None  # of checkpointing

    def forward(self, *lookups: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
        self.bags = []
        for ids, offsets, weights in lookups:
            if self.reentrant is not None:
                rows = checkpoint(self.bag, ids, offsets, weights, use_reentrant=self.reentrant)
            else:
                rows = self.bag(ids, offsets, weights)
            if rows.requires_grad and self.retain:
                rows.retain_grad()
            self.bags.append(rows)
        used = torch.cat(self.bags) if self.bags else torch.ones(1, COLUMNS)
        return self.mlp(used)


def batch(seed: int, rank: int, weighted: bool, dtype: torch.dtype = torch.float32) -> Any:
    """Return ids, offsets and weights of one rank; rank 1 sometimes has no bags, others have empty bags."""
    g = torch.Generator().manual_seed(100 * seed + rank)
    bags = 0 if rank == 1 and seed % 3 == 1 else 6 + rank
    lengths = torch.randint(0, 9, (bags,), generator=g)
    lengths[::4] = 0
    total = int(lengths.sum())
    ids = torch.randint(0, ROWS, (total,), generator=g)
    ids[: total // 2] = 3
    weights = torch.randn(total, generator=g).to(dtype) if weighted and bags else None
    return ids, torch.cumsum(lengths, 0) - lengths, weights


def concatenated(lookups: list[Any]) -> Any:
    """Return the lookups of all ranks as one."""
    starts = list(itertools.accumulate((len(ids) for ids, _, _ in lookups), initial=0))
    offsets = torch.cat([o + s for (_, o, _), s in zip(lookups, starts, strict=False)])
    weights = [w for _, _, w in lookups if w is not None]
    return torch.cat([ids for ids, _, _ in lookups]), offsets, torch.cat(weights) if weights else None


def gathered(value: Any, group: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


def same(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert torch.equal(a, b), (a, b)


def wrapped(group: Any, rank: int, seed: int = 1, ddp: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a model in DistributedDataParallel, and the table of one process. Ranks begin with different values."""
    torch.manual_seed(seed + rank)
    model = Model(**options)
    assert rgt.replicate_rows(model, group) == ["bag.weight"]
    wrapper = DistributedDataParallel(model, process_group=group, **ddp or {})
    torch.manual_seed(seed)
    same(model.bag.weight.detach(), Model(**options).bag.weight.detach())  # that of rank 0
    one = rgt.nn.EmbeddingBag(ROWS, COLUMNS, _weight=model.bag.weight.detach().clone(), **options)
    return model, wrapper, one


def replay(one: Any, model: Model, lookups: list[list[Any]], group: Any) -> None:
    """Run the backward pass of one process: the lookups of all ranks, and the gradients that their bags had."""
    ranks = dist.get_world_size(group)
    ys = gathered([None if b.grad is None else b.grad for b in model.bags], group)
    outs, grads = [], []
    for k, parts in enumerate(lookups):
        outs.append(one(*concatenated(parts)))
        grads.append(torch.cat([y[k] for y in ys]) / ranks)
    torch.autograd.backward(outs, grads)


# -- bits -------------------------------------------------------------------------------------------------------------


def training_steps(group: Any, rank: int, ranks: int) -> None:
    """Tables have the bits of one process; dense parameters are DistributedDataParallel's."""
    cases = itertools.product(("sum", "mean", "sqrtn"), (False, True), (False, True))
    makes = itertools.cycle([rgt.optim.RowWiseAdagrad, rgt.optim.SGD, rgt.optim.Adam])
    for number, (combiner, weighted, fused) in enumerate(cases):
        dtype = torch.bfloat16 if number % 4 == 3 else torch.float32
        model, ddp, one = wrapped(group, rank, combiner=combiner, grad="rows", fused=fused, dtype=dtype)
        make = next(makes)
        optimizer, alone = make(model.parameters(), lr=0.1), make(one.parameters(), lr=0.1)
        for step in range(3):
            own = batch(step, rank, weighted, dtype)
            ddp(own).float().square().sum().backward()
            parts = [batch(step, r, weighted, dtype) for r in range(ranks)]
            replay(one, model, [parts], group)
            if not fused:
                assert model.bag.weight.grad.is_coalesced()
                same(model.bag.weight.grad.indices(), one.weight.grad.indices())
                same(model.bag.weight.grad.values(), one.weight.grad.values())
            for o in (optimizer, alone):
                o.step()
                o.zero_grad()
            same(model.bag.weight.detach(), one.weight.detach())
        state, expected = optimizer.state[model.bag.weight], alone.state[one.weight]
        assert state["step"] == expected["step"]
        for name, value in expected.items():
            if isinstance(value, Tensor):
                same(state[name], value)
        for parameter in gathered([p.detach() for p in model.parameters()], group):
            for a, b in zip(parameter, model.parameters(), strict=True):
                same(a, b.detach())


def several_lookups(group: Any, rank: int, ranks: int) -> None:
    """A table that is looked up three times in a forward pass, and in two forward passes before one backward pass."""
    for fused in (False, True):
        model, ddp, one = wrapped(group, rank, combiner="sum", grad="rows", fused=fused)
        optimizer, alone = (rgt.optim.Adagrad(m.parameters(), lr=0.1) for m in (model, one))
        ddp(*(batch(s, rank, False) for s in (0, 2, 6))).square().sum().backward()
        replay(one, model, [[batch(s, r, False) for r in range(ranks)] for s in (0, 2, 6)], group)
        same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())
        for o in (optimizer, alone):
            o.step()
            o.zero_grad()
        same(model.bag.weight.detach(), one.weight.detach())
        first = ddp(batch(3, rank, False)).square().sum()
        bags = model.bags
        with ddp.no_sync():  # DistributedDataParallel itself reduces one forward pass
            second = ddp(batch(5, rank, False)).square().sum()
        model.bags = bags + model.bags
        (first + second).backward()
        replay(one, model, [[batch(s, r, False) for r in range(ranks)] for s in (3, 5)], group)
        same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())


def accumulation(group: Any, rank: int, ranks: int) -> None:
    """Gradients of several backward passes are those of one process, with no_sync() and without it."""
    for fused, no_sync in itertools.product((False, True), (False, True)):
        model, ddp, one = wrapped(group, rank, combiner="mean", grad="rows", fused=fused)
        optimizer, alone = (rgt.optim.RowWiseAdagrad(m.parameters(), lr=0.1) for m in (model, one))
        for step in range(2):
            for micro in range(3):
                own = batch(3 * step + micro, rank, True)
                if no_sync and micro < 2:
                    with ddp.no_sync():
                        ddp(own).square().sum().backward()
                else:
                    ddp(own).square().sum().backward()
                replay(one, model, [[batch(3 * step + micro, r, True) for r in range(ranks)]], group)
            for o in (optimizer, alone):
                o.step()
                o.zero_grad()
            same(model.bag.weight.detach(), one.weight.detach())
        with ddp.no_sync():
            ddp(batch(1, rank, True)).square().sum().backward()
        optimizer.zero_grad()  # drops it
        ddp(batch(2, rank, True)).square().sum().backward()
        replay(one, model, [[batch(2, r, True) for r in range(ranks)]], group)
        same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())


def unused_on_some_ranks(group: Any, rank: int, ranks: int) -> None:
    """A rank may skip the table in a step, as long as its backward pass goes through the model."""
    for fused in (False, True):
        model, ddp, one = wrapped(
            group, rank, ddp={"find_unused_parameters": True}, combiner="sum", grad="rows", fused=fused
        )
        both = [rgt.optim.SGD(m.parameters(), lr=0.1) for m in (model, one)]
        own = [batch(2, rank, False)] if rank == 0 else []
        ddp(*own).square().sum().backward()
        y = gathered(model.bags[0].grad if own else None, group)[0]
        one(*batch(2, 0, False)).backward(y / ranks)
        same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())
        model.zero_grad()
        ddp().square().sum().backward()  # on no rank
        assert model.bag.weight.grad is None
        ddp(batch(0, rank, False)).square().sum().backward()
        both[0].step()
        assert not torch.equal(model.bag.weight.detach(), one.weight.detach())


def static_graph_and_checkpointing(group: Any, rank: int, ranks: int) -> None:
    options: list[tuple[dict[str, Any], bool | None]] = [({"static_graph": True}, None), ({}, False), ({}, True)]
    for ddp_options, reentrant in options:
        model, ddp, one = wrapped(group, rank, ddp=ddp_options, combiner="sum", grad="rows")
        model.reentrant = reentrant
        for step in (0, 2, 3):  # all ranks have bags
            model.zero_grad()
            one.zero_grad()
            ids, offsets, weights = batch(step, rank, True)
            ddp((ids, offsets, weights.requires_grad_())).square().sum().backward()
            replay(one, model, [[batch(step, r, True) for r in range(ranks)]], group)
            same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())


def communication_hooks(group: Any, rank: int, ranks: int) -> None:
    """DistributedDataParallel's own collectives may begin late: those of PowerSGD follow one another."""
    model, ddp, one = wrapped(group, rank, combiner="sum", grad="rows")
    state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=0.5)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(6):
        model.zero_grad()
        one.zero_grad()
        ddp(batch(step, rank, True)).square().sum().backward()
        replay(one, model, [[batch(step, r, True) for r in range(ranks)]], group)
        same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())


def hooks_and_weights(group: Any, rank: int, ranks: int) -> None:
    """Hooks get the exchanged gradient; per-sample weights get the local one; retain_graph accumulates."""
    for fused in (False, True):
        model, ddp, one = wrapped(group, rank, combiner="mean", grad="rows", fused=fused)
        both = [rgt.optim.SGD(m.parameters(), lr=0.1) for m in (model, one)]
        seen: list[Tensor] = []
        model.bag.weight.register_hook(lambda g, seen=seen: seen.append(g.to_dense()))
        ids, offsets, weights = batch(0, rank, True)
        weights.requires_grad_()
        loss = ddp((ids, offsets, weights)).square().sum()
        loss.backward(retain_graph=True)
        replay(one, model, [[batch(0, r, True) for r in range(ranks)]], group)
        same(seen[0], one.weight.grad.to_dense())
        other = weights.detach().clone().requires_grad_()
        again = rgt.functional.embedding_bag(ids, one.weight.detach(), offsets, per_sample_weights=other)
        again.backward(model.bags[0].grad)
        same(weights.grad, other.grad)
        loss.backward()
        same(model.bag.weight.grad.to_dense(), 2 * one.weight.grad.to_dense())
        assert (len(seen), len(both)) == (2, 2)


def many_tables(group: Any, rank: int, ranks: int) -> None:
    """`Embeddings`, whose stacked table and whose features are looked up together."""
    tables = [rgt.nn.Table("a", 7, 3), rgt.nn.Table("b", 9, 3, combiner="sum"), rgt.nn.Table("c", 5, 3)]
    for fused in (False, True):
        torch.manual_seed(rank)
        model = torch.nn.ModuleDict({"all": rgt.nn.Embeddings(tables, fused=fused), "head": torch.nn.Linear(3, 1)})
        model.forward = lambda ids, model=model: model["head"](sum(model["all"](ids).values()))
        rgt.replicate_rows(model, group)
        one = rgt.nn.Embeddings(tables, fused=fused)
        one.load_state_dict(model["all"].state_dict())
        ddp = DistributedDataParallel(model, process_group=group)
        optimizer, alone = (rgt.optim.RowWiseAdagrad(m.parameters(), lr=0.1) for m in (model, one))
        for step in range(3):
            g = torch.Generator().manual_seed(step)
            every = [torch.randint(0, 5, (4 + r, 2), generator=g) for r in range(ranks)]
            slope = model["head"].weight.detach().clone()
            ddp(dict.fromkeys("abc", every[rank])).sum().backward()
            y = slope.expand(sum(map(len, every)), 3) / ranks
            sum(one(dict.fromkeys("abc", torch.cat(every))).values()).backward(y)
            for o in (optimizer, alone):
                o.step()
                o.zero_grad()
            for name, value in one.state_dict().items():
                same(model["all"].state_dict()[name], value)


def compiled(group: Any, rank: int, ranks: int) -> None:
    """Fused tables in compiled graphs: the whole model, or a part of it."""
    if ranks > 2:
        return  # compiling is slow
    for whole in (False, True):
        models = [wrapped(group, rank, combiner="mean", fused=True)[:2] for _ in range(2)]
        optimizers = [rgt.optim.RowWiseAdagrad(model.parameters(), lr=0.1) for model, _ in models]
        runs: list[Any] = [ddp for _, ddp in models]
        for model, _ in models:
            model.retain = False
        if whole:
            runs[1] = torch.compile(runs[1], backend="aot_eager", dynamic=True)
        else:
            models[1][0].bag.compile(backend="aot_eager", fullgraph=True, dynamic=True)
        for step in (0, 2, 3):
            for run, optimizer in zip(runs, optimizers, strict=True):
                run(batch(step, rank, False), batch(step + 3, rank, False)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            same(*(model.bag.weight.detach() for model, _ in models))


# -- errors -----------------------------------------------------------------------------------------------------------


def raised(kind: type[BaseException], call: Callable[[], Any], message: str) -> Any:
    found = None
    try:
        call()
    except kind as error:
        found = error
    assert found is not None, f"no {kind.__name__}"
    assert message in str(found), found
    return found


def misuse(group: Any, rank: int, ranks: int) -> None:
    # tables that differ
    model = Model(grad="rows", dtype=torch.float64 if rank == 1 else None)
    error = raised(rgt.sharded.RankRefusedError, lambda: rgt.replicate_rows(model, group), "bag.weight: (23, 5)")
    assert error.ranks == (1,), error
    # a failed backward pass leaves nothing behind
    model, ddp, one = wrapped(group, rank, combiner="sum", grad="rows")
    with ddp.no_sync():
        out = ddp(batch(0, rank, False), batch(0, rank, False))
        model.bags[0].register_hook(lambda _: 1 / 0)  # after the backward pass of the second lookup
        raised(ZeroDivisionError, out.sum().backward, "")
    assert model.bag.weight.grad is None
    model.mlp.zero_grad()
    ddp(batch(2, rank, False)).square().sum().backward()
    replay(one, model, [[batch(2, r, False) for r in range(ranks)]], group)
    same(model.bag.weight.grad.to_dense(), one.weight.grad.to_dense())
    # ranks that look up differently
    model, ddp, _ = wrapped(group, rank, combiner="sum", grad="rows")
    ids, offsets, _ = batch(0, rank, False)
    weights = None if rank else torch.ones(len(ids))
    raised(rgt.sharded.RankRefusedError, ddp((ids, offsets, weights)).sum().backward, "different per_sample_weights")
    # ranks that ran different numbers of forward passes
    model, ddp, _ = wrapped(group, rank, combiner="sum", grad="rows")
    loss = ddp(batch(0, rank, False)).sum()
    with ddp.no_sync():
        if rank == 0:
            loss = loss + ddp(batch(0, rank, False)).sum()
        raised(rgt.sharded.RankRefusedError, loss.backward, "in backward of replicated tables of module")
    # fused without an optimizer, on one rank
    model, ddp, _ = wrapped(group, rank, combiner="sum", fused=True)
    optimizers = [] if rank == 1 else [rgt.optim.SGD(model.parameters(), lr=0.1)]
    kind = rg.errors.InvalidArgumentError if rank == 1 else rgt.sharded.RankRefusedError
    raised(kind, ddp(batch(0, rank, False)).sum().backward, "needs a rowgrad optimizer" if rank == 1 else "rejected")
    assert len(optimizers) == (rank != 1)


def absent_rank(group: Any, rank: int, ranks: int) -> None:
    """A rank that does not run a backward pass is an error on the others, not a hang."""
    model = Model(combiner="sum", grad="rows")
    rgt.replicate_rows(model, group)
    loss = model(batch(0, rank, False)).sum()
    if rank == 1:  # it waits at the barrier after the last check
        return
    error = raised(rgt.sharded.RankLostError, loss.backward, "rank 1 is running, but did not join this call")
    assert (error.phase, model.bag.weight.grad) == ("calls", None)


CHECKS = [training_steps, several_lookups, accumulation, unused_on_some_ranks, static_graph_and_checkpointing,
          communication_hooks, hooks_and_weights, many_tables, compiled, misuse]  # fmt: skip


def note(name: str, text: str) -> None:
    with (FOLDER / f"results_{os.environ['RANK']}").open("a") as file:
        file.write(f"{name}\0{text}\0\n")


def attempt(check: Any, group: Any, rank: int, ranks: int) -> None:
    name, start = f"{check.__name__} {ranks}", time.monotonic()
    try:
        check(group, rank, ranks)
        note(name, "fine")
    except BaseException:
        note(name, traceback.format_exc())
        os._exit(1)  # the other ranks get an error at once instead of a timeout
    if "-v" in sys.argv and rank == 0:
        print(f"{name}: {time.monotonic() - start:.2f} s", flush=True)


def run(rank: int, folder: str) -> None:
    global FOLDER
    FOLDER = Path(folder)
    os.environ["RANK"] = str(rank)
    signal.alarm(120)  # ends this process even if the parent hangs
    torch.set_num_threads(1)
    rg.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    rgt.sharded.liveness.GRACE, rgt.sharded.liveness.INTERVAL = 1.5, 0.2
    pair, three = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    other = dist.new_group([0, 1], timeout=timedelta(seconds=4))  # a busy rank is waited for as long
    for check in CHECKS:
        if rank < 2:
            attempt(check, pair, rank, 2)
        attempt(check, dist.group.WORLD, rank, WORLD)
    if rank < 3:
        attempt(training_steps, three, rank, 3)  # dividing by 3 is not exact
    if rank < 2:
        attempt(absent_rank, other, rank, 2)  # a group in which a rank timed out cannot be used again
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    for slow in ("torch._dynamo", "rowgrad.torch.replicated"):  # import before the fork, not once per child
        importlib.import_module(slow)
    torch.set_num_threads(1)
    children = [mp.get_context("fork").Process(target=run, args=(r, sys.argv[1])) for r in range(WORLD)]
    for child in children:
        child.start()
    deadline = time.monotonic() + 110
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
