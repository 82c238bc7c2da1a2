"""The features of torch that training uses, each tried with every gradient mode.

    python tests/torch/training_matrix.py                    try every cell, and write training_matrix.json
    PYTHONPATH=src python3 tests/torch/training_matrix.py --device cuda --out cuda.json
                                                             the same on the GPU that is here

`FEATURES` is the table of docs/how-to/train_pytorch.md. A cell works if the parameters, after some steps with the
feature, are those of training without it. A rejected cell must leave parameters and optimizer state unchanged.
test_training_matrix.py tries every cell on the CPU again and compares the outcomes with training_matrix.json;
training_matrix_cuda.json comes from a machine with a GPU and names it. tools/docs_training_matrix.py puts both into the
page. A cell that neither works nor is rejected cleanly is recorded as failed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles
from torch.distributed.tensor import DTensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import rowgrad as rg
import rowgrad.torch as rgt

RECORD = Path(__file__).with_suffix(".json")
CUDA_RECORD = RECORD.with_stem("training_matrix_cuda")
BACKEND = {"cpu": "gloo", "cuda": "nccl"}  # of processes with a group
DEVICE = torch.device("cpu")
MODES: dict[str, dict[str, Any]] = {"dense": {"grad": "dense"}, "rows": {"grad": "rows"}, "fused": {"fused": True}}
WORLD, STEPS, BAGS, COLUMNS, RATE = 2, 3, 6, 4, 0.1
FEATURES_OF = {"user": 23, "seen": 19, "bought": 19, "word": 17}  # the number of rows of each feature's table
SECONDS = 300  # after which a process ends, if it hangs
FOLDER = Path()  # of the files that ranks share


# -- model and data ----------------------------------------------------------------------------------------------------


class Recommender(nn.Module):
    """Weighted bags of `Embeddings` and of an `EmbeddingBag`, and dense layers."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        options = MODES[mode]
        tables = [
            rgt.nn.Table("user", FEATURES_OF["user"], COLUMNS, combiner="sum"),
            rgt.nn.Table("item", FEATURES_OF["seen"], COLUMNS, combiner="mean", features=("seen", "bought")),
        ]
        self.tables = rgt.nn.Embeddings(tables, include_last_offset=False, **options)
        self.word = rgt.nn.EmbeddingBag(FEATURES_OF["word"], COLUMNS, combiner="sqrtn", **options)
        self.layers = nn.Sequential(nn.Linear(4 * COLUMNS, 8), nn.Tanh(), nn.Linear(8, 1))
        self.to(DEVICE)

    def look_up(self, batch: dict[str, Any]) -> Tensor:
        ids, offsets, weights = batch["word"]
        found = self.tables({f: batch[f] for f in self.tables.features})
        return torch.cat([*found.values(), self.word(ids, offsets, per_sample_weights=weights)], 1)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        odds: Tensor = self.layers(self.look_up(batch)).squeeze(1)
        return odds


class Naive(Recommender):
    """The same model without rowgrad's lookups."""

    def look_up(self, batch: dict[str, Any]) -> Tensor:
        user, item, word = self.tables.weight("user"), self.tables.weight("item"), self.word.weight
        used = {"user": (user, "sum"), "seen": (item, "mean"), "bought": (item, "mean"), "word": (word, "sqrtn")}
        return torch.cat([naive_bags(*used[f], *batch[f]) for f in used], 1)


def naive_bags(table: Tensor, combiner: str, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    found = []
    ends = offsets[1:].cpu()
    for own, w in zip(ids.tensor_split(ends), weights.tensor_split(ends), strict=True):
        total = (table[own] * w[:, None]).sum(0)
        size = {"sum": w.new_ones(()), "mean": w.sum(), "sqrtn": w.square().sum().sqrt()}[combiner]
        found.append(total / size if len(own) else table.new_zeros(COLUMNS))
    return torch.stack(found)


def tables_of(model: Any) -> list[nn.Parameter]:
    return [*model.tables.parameters(), *model.word.parameters()]


def new_batch(step: int, rank: int = 0) -> tuple[dict[str, Any], Tensor]:
    """Return ids, offsets and weights by feature, and labels. Some bags are empty, and some ids repeat."""
    g = torch.Generator().manual_seed(10 * step + rank)
    batch = {}
    for feature, rows in FEATURES_OF.items():
        lengths = torch.randint(0, 4, (BAGS,), generator=g)
        ids = torch.randint(0, rows - 5, (int(lengths.sum()),), generator=g)  # the last rows are never looked up
        bags = ids, lengths.cumsum(0) - lengths, torch.rand(len(ids), generator=g) + 0.5
        batch[feature] = tuple(part.to(DEVICE) for part in bags)
    return batch, torch.randint(0, 2, (BAGS,), generator=g).float().to(DEVICE)


def joined(batches: Iterable[tuple[dict[str, Any], Tensor]]) -> tuple[dict[str, Any], Tensor]:
    """Return several batches as one."""
    parts = list(batches)
    whole = {}
    for feature in FEATURES_OF:
        ids, offsets, weights = zip(*(batch[feature] for batch, _ in parts), strict=True)
        starts = itertools.accumulate((len(i) for i in ids[:-1]), initial=0)
        whole[feature] = torch.cat(ids), torch.cat([o + s for o, s in zip(offsets, starts, strict=True)]), \
            torch.cat(weights)  # fmt: skip
    return whole, torch.cat([labels for _, labels in parts])


def loss_of(model: Any, batch: dict[str, Any], labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(model(batch), labels)


def new_optimizer(model: Any, make: Any = rgt.optim.Adagrad) -> Any:
    return make(model.parameters(), lr=RATE)


# -- one trial ---------------------------------------------------------------------------------------------------------


OUTER = re.compile(r"(_orig_mod|_fsdp_wrapped_module|^module)\.")  # of wrappers, in names of parameters


def values_of(model: Any) -> dict[str, Tensor]:
    """Return copies of all parameters, whole ones of sharded ones."""
    return {OUTER.sub("", name): whole(p) for name, p in model.named_parameters()}


def whole(value: Tensor) -> Tensor:
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().clone()


def state_of(optimizer: Any) -> list[Tensor]:
    states = [] if optimizer is None else optimizer.state.values()
    values = (v for state in states for v in state.values())
    return [whole(v) if isinstance(v, Tensor) else torch.tensor(v) for v in values]


class Trial:
    """One cell: a mode, the process group of the ranks that try it, and what a rejected step must not change."""

    def __init__(self, mode: str, group: Any = None, backend: str = "aot_eager") -> None:
        self.mode, self.group, self.backend = mode, group, backend
        self.rank = dist.get_rank(group) if group is not None else 0
        self.values: Callable[[Any], dict[str, Tensor]] = values_of
        self._saved: tuple[Any, Any, dict[str, Tensor], list[Tensor]] | None = None

    def watch(self, model: Any, optimizer: Any) -> None:
        """Save what the next step may not change if it is rejected."""
        self._saved = model, optimizer, self.values(model), state_of(optimizer)

    def changed(self) -> list[str]:
        """Return what has changed since `watch`."""
        if self._saved is None:
            raise Failure("the cell did not save what may not change")
        model, optimizer, values, states = self._saved
        now = self.values(model)
        found = [name for name, value in values.items() if not torch.equal(now[name], value)]
        after = state_of(optimizer)
        same = len(after) == len(states) and all(torch.equal(a, b) for a, b in zip(after, states, strict=True))
        return found + ([] if same else ["optimizer state"])

    def train(
        self,
        model: Any,
        optimizer: Any,
        loss: Callable[[Any, int], Tensor] | None = None,
        *,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        before_step: Callable[[], Any] = lambda: None,
        step: Callable[[], Any] | None = None,
        steps: Iterable[int] = range(STEPS),
    ) -> dict[str, Tensor]:
        """Train some steps, with parts of them replaced, and return the parameters."""
        for number in steps:
            self.watch(model, optimizer)
            optimizer.zero_grad()
            backward(loss(model, number) if loss else loss_of(model, *new_batch(number, self.rank)))
            before_step()
            (step or optimizer.step)()
        return values_of(model)

    def new(self, make: Any = rgt.optim.Adagrad) -> tuple[Recommender, Any]:
        model = Recommender(self.mode)
        return model, new_optimizer(model, make)


Cell = Callable[[Trial], str | None]


@functools.cache
def plain(mode: str, make: Any = rgt.optim.Adagrad, ranks: int = 1) -> dict[str, Tensor]:
    """Return the parameters after a plain loop of one process, over the batches of all ranks."""
    model = Recommender(mode)
    optimizer = new_optimizer(model, make)
    for number in range(STEPS):
        step_of_all(model, optimizer, number, ranks)
    return values_of(model)


def step_of_all(model: Any, optimizer: Any, number: int, ranks: int) -> None:
    """Take one step of one process, over the batches of all ranks."""
    optimizer.zero_grad()
    batch = joined(new_batch(number, r) for r in range(ranks)) if ranks > 1 else new_batch(number)
    loss_of(model, *batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def same(found: dict[str, Tensor], expected: dict[str, Tensor], exact: bool = True) -> None:
    """Raise unless the parameters have the same bits, or differ by rounding only, as layers of torch do on a GPU."""
    exact = exact and DEVICE.type == "cpu"
    assert found.keys() == expected.keys(), (list(found), list(expected))
    start = values_of(Recommender("dense"))
    for name, value in found.items():
        if exact:
            assert torch.equal(value, expected[name]), (name, (value - expected[name]).abs().max())
        else:
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, start[name]), f"{name} was not trained"


def differs(found: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Raise unless every parameter is another one: the feature had an effect."""
    for name, value in found.items():
        assert not torch.equal(value, other[name]), name


# -- the cells: one process --------------------------------------------------------------------------------------------


def plain_loop(trial: Trial) -> None:
    """Every mode trains as the same model of torch's indexing, with torch's optimizer."""
    model = Naive("dense")
    optimizer = torch.optim.Adagrad(
        model.parameters(), lr=RATE, eps=rgt.optim.Adagrad(model.parameters()).defaults["eps"]
    )
    same(trial.train(*trial.new()), trial.train(model, optimizer), exact=False)
    same(plain(trial.mode), plain("dense"))


def per_sample_weights(trial: Trial) -> None:
    """Weights are parameters too: their gradients are those of the naive model, and they train."""

    def trained(model: Any, make: Any) -> tuple[dict[str, Tensor], Tensor]:
        model.scale = nn.Parameter(torch.ones(20, device=DEVICE))  # of each position in a bag
        optimizer = make(model)

        def loss(model: Any, number: int) -> Tensor:
            batch, labels = new_batch(number)
            for feature, (ids, offsets, weights) in batch.items():
                batch[feature] = ids, offsets, weights * model.scale[: len(ids)]
            return loss_of(model, batch, labels)

        found = trial.train(model, optimizer, loss)
        return found, found.pop("scale")

    expected, scale = trained(Naive("dense"), new_optimizer)
    found, learned = trained(Recommender(trial.mode), new_optimizer)
    same(found, expected, exact=False)
    torch.testing.assert_close(learned, scale, rtol=1e-5, atol=1e-6)
    assert not torch.equal(learned, torch.ones_like(learned))


def parameter_groups(trial: Trial) -> None:
    """Tables and layers with their own learning rates: one optimizer has the bits of two."""

    def separate(model: Any) -> tuple[list[Any], list[Any]]:
        tables = tables_of(model)
        return tables, [p for p in model.parameters() if not any(p is t for t in tables)]

    model = Recommender(trial.mode)
    tables, layers = separate(model)
    one = rgt.optim.Adagrad([{"params": tables, "lr": 0.3}, {"params": layers}], lr=0.1)
    found = trial.train(model, one)
    other = Recommender(trial.mode)
    tables, layers = separate(other)
    first, second = rgt.optim.Adagrad(tables, lr=0.3), rgt.optim.Adagrad(layers, lr=0.1)

    def both() -> None:
        first.step()
        second.step()
        first.zero_grad()

    same(found, trial.train(other, second, step=both))
    differs(found, plain(trial.mode))


def schedulers(trial: Trial) -> None:
    model, optimizer = trial.new()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step() -> None:
        optimizer.step()
        schedule.step()

    found = trial.train(model, optimizer, step=step)
    other, second = trial.new()
    for number in range(STEPS):
        second.param_groups[0]["lr"] = RATE * 0.5**number
        trial.train(other, second, steps=[number])
    same(found, values_of(other))
    differs(found, plain(trial.mode))


def compiled(make: Any) -> Cell:
    """Return the cell of the whole model, with symbolic sizes, and an optimizer."""

    def cell(trial: Trial) -> str | None:
        torch._dynamo.reset()
        model, optimizer = trial.new(make)
        run = torch.compile(model, backend=trial.backend, dynamic=True)
        found = trial.train(model, optimizer, lambda _, number: loss_of(run, *new_batch(number)))
        torch._dynamo.reset()
        exact = trial.backend == "aot_eager"
        if make is rgt.optim.Adam and trial.mode == "rows":  # its gradient is dense, so the step is not lazy
            same(found, plain("dense", make), exact)
            assert not torch.equal(found["word.weight"], plain("rows", make)["word.weight"])
            return "as `dense`"
        same(found, plain(trial.mode, make), exact)
        return None

    return cell


def autocast(trial: Trial) -> None:
    """Lookups run in the dtype of the table: autocast of the whole model is autocast of the layers."""

    def whole_model(model: Any, number: int) -> Tensor:
        batch, labels = new_batch(number)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return binary_cross_entropy_with_logits(model(batch).float(), labels)

    def layers_only(model: Any, number: int) -> Tensor:
        batch, labels = new_batch(number)
        rows = model.look_up(batch)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            odds = model.layers(rows)
        return binary_cross_entropy_with_logits(odds.squeeze(1).float(), labels)

    found = trial.train(*trial.new(), whole_model)
    same(found, trial.train(*trial.new(), layers_only))
    same(found, trial.train(*Trial("dense").new(), layers_only))
    differs(found, plain(trial.mode))


def grad_scaler(trial: Trial) -> None:
    """A scale that is a power of two changes no bit; a step whose gradients overflow is skipped."""
    model, optimizer = trial.new()
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**8)
    factor = [1.0]

    def backward(loss: Tensor) -> None:
        scaler.scale(loss * factor[0]).backward()

    def step() -> None:
        scaler.step(optimizer)
        scaler.update()

    same(trial.train(model, optimizer, backward=backward, step=step), plain(trial.mode))
    factor[0] = float("inf")
    trial.train(model, optimizer, backward=backward, step=step, steps=[0])
    assert scaler.get_scale() == 2.0**7
    assert trial.changed() == []


def clipping(module: Any) -> Cell:
    """Return the cell of a module's functions: the norm and the values are those of dense gradients."""

    def clipped(trial: Trial) -> None:
        for clip in (
            lambda model: module.clip_grad_norm_(model.parameters(), 0.01),
            lambda model: module.clip_grad_value_(model.parameters(), 0.001),
        ):
            model, optimizer = trial.new()
            found = trial.train(model, optimizer, before_step=lambda m=model, c=clip: c(m))
            peer = Naive("dense")
            eps = optimizer.defaults["eps"]
            theirs = torch.optim.Adagrad(peer.parameters(), lr=RATE, eps=eps)
            expected = trial.train(peer, theirs, before_step=lambda m=peer, c=clip: c(m))
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
            differs(found, plain(trial.mode))

    return clipped


def accumulation(trial: Trial) -> None:
    """The gradients of two backward passes are those of one batch, and in every mode the same bits."""

    def halves(trial: Trial) -> dict[str, Tensor]:
        model, optimizer = trial.new()

        def backward(loss: Tensor) -> None:
            (loss / 2).backward()
            second, labels = new_batch(numbers.pop(0), 1)
            (loss_of(model, second, labels) / 2).backward()

        numbers = list(range(STEPS))
        return trial.train(model, optimizer, backward=backward)

    found = halves(trial)
    same(found, plain(trial.mode, ranks=2), exact=False)
    same(found, halves(Trial("dense")), exact=False)


def activation_checkpointing(trial: Trial) -> None:
    """Tables and layers are computed again in the backward pass."""

    def loss(model: Any, number: int) -> Tensor:
        batch, labels = new_batch(number)
        odds = checkpoint(model, batch, use_reentrant=False)
        return binary_cross_entropy_with_logits(odds, labels)

    same(trial.train(*trial.new(), loss), plain(trial.mode))


def state_dicts(trial: Trial) -> None:
    """A run that goes on from torch.save has the bits of one that did not stop."""
    model, optimizer = trial.new()
    trial.train(model, optimizer, steps=range(2))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, second = trial.new(lambda parameters, lr: rgt.optim.Adagrad(parameters, lr=7.0))
    other.load_state_dict(saved["model"])
    second.load_state_dict(saved["optimizer"])
    same(trial.train(other, second, steps=range(2, STEPS)), plain(trial.mode))
    assert [int(state["step"]) for state in second.state.values()] == [STEPS] * len(second.state)


def checkpoints(trial: Trial, folder: Path, wrap: Callable[[Any], Any] = lambda model: model) -> dict[str, Tensor]:
    """Train, save by torch.distributed.checkpoint after two steps, and go on in another model."""
    model = wrap(Recommender(trial.mode))
    optimizer = new_optimizer(model)
    trial.train(model, optimizer, steps=range(2))
    names = ("model", "optimizer")
    dcp.save(dict(zip(names, get_state_dict(model, optimizer), strict=True)), checkpoint_id=folder)
    other = wrap(Recommender(trial.mode))
    second = new_optimizer(other)
    loaded = dict(zip(names, get_state_dict(other, second), strict=True))
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(other, second, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    return trial.train(other, second, steps=range(2, STEPS))


def distributed_checkpoint(trial: Trial) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is one process
        same(checkpoints(trial, Path(folder)), plain(trial.mode))


def moving_average(trial: Trial) -> None:
    """The average has the tables of the steps so far, and training is not affected."""
    model, optimizer = trial.new()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    expected: dict[str, Tensor] = {}

    def step() -> None:
        optimizer.step()
        average.update_parameters(model)
        for name, value in values_of(model).items():
            expected[name] = expected[name].lerp(value, 0.5) if name in expected else value

    found = trial.train(model, optimizer, step=step)
    same(found, plain(trial.mode))
    same(values_of(average.module), expected, exact=False)
    batch, _ = new_batch(0)
    with torch.no_grad():
        assert not torch.equal(average(batch), model(batch))


def optimizer_of_torch(make: Any, for_layers: Any = None) -> Cell:
    """Return the cell of an optimizer: the tables are those of the naive model and the same optimizer."""

    def trained(trial: Trial, model: Any, make: Any) -> dict[str, Tensor]:
        tables = tables_of(model)
        layers = [p for p in model.parameters() if not any(p is t for t in tables)]
        optimizer, second = make(tables, lr=RATE), (for_layers or make)(layers, lr=RATE)
        first_step(tables, optimizer)

        def step() -> None:
            optimizer.step()
            second.step()
            second.zero_grad()

        return trial.train(model, optimizer, step=step)

    def cell(trial: Trial) -> None:
        found = trained(trial, Recommender(trial.mode), make)
        peer = torch.optim.Adam if make is torch.optim.SparseAdam else make
        expected = trained(Trial("dense"), Naive("dense"), peer)
        if make is torch.optim.SparseAdam:  # it is lazy: rows that a step did not look up differ from Adam's
            expected = sparse_adam()
        same(found, expected, exact=False)

    return cell


def first_step(tables: list[nn.Parameter], optimizer: Any) -> None:
    """Take a step with gradients that every optimizer takes, so that it has state when it rejects others."""
    for table in tables:
        grad = torch.ones_like(table.detach())
        table.grad = grad.to_sparse(1) if isinstance(optimizer, torch.optim.SparseAdam) else grad
    optimizer.step()
    for table in tables:
        table.grad = None


def sparse_adam() -> dict[str, Tensor]:
    """Return the parameters of the naive model and SparseAdam: the rows whose gradient is not zero, and the layers."""
    model = Naive("dense")
    tables = tables_of(model)
    layers = [p for p in model.parameters() if not any(p is t for t in tables)]
    optimizer, second = torch.optim.SparseAdam(tables, lr=RATE), torch.optim.SGD(layers, lr=RATE)
    first_step(tables, optimizer)
    for number in range(STEPS):
        batch, labels = new_batch(number)
        optimizer.zero_grad()
        second.zero_grad()
        loss_of(model, batch, labels).backward()
        for table in tables:
            assert table.grad is not None
            table.grad = table.grad.to_sparse(1)
        optimizer.step()
        second.step()
    return values_of(model)


def cuda_graph(trial: Trial) -> None:
    """Replays of a captured step go on as eager steps do."""
    batch, labels = new_batch(0)

    def step_of(model: Any, optimizer: Any) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            loss_of(model, batch, labels).backward()
            optimizer.step()

        return step

    for make in (rgt.optim.SGD, rgt.optim.RowWiseAdagrad):
        model, optimizer = trial.new(make)
        step, side = step_of(model, optimizer), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles the kernels and allocates the state
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        trial.watch(model, optimizer)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        other, second = trial.new(make)
        eager = step_of(other, second)
        for _ in range(5):
            eager()
        same(values_of(model), values_of(other), exact=False)


# -- the cells: two processes ------------------------------------------------------------------------------------------


def wrapped_model(trial: Trial) -> tuple[Any, Any]:
    model = Recommender(trial.mode)
    with torch.no_grad():  # ranks begin with different values, and get those of rank 0
        for p in model.parameters():
            p.add_(trial.rank)
    rgt.replicate_rows(model, trial.group)
    return DistributedDataParallel(model, process_group=trial.group), new_optimizer(model)


def ddp(trial: Trial) -> None:
    same(trial.train(*wrapped_model(trial)), plain(trial.mode, ranks=WORLD), exact=False)


def ddp_alone(trial: Trial) -> None:
    """The model is wrapped after its first step, so that the optimizer has state."""
    model = Recommender(trial.mode)
    optimizer = new_optimizer(model)
    step_of_all(model, optimizer, 0, WORLD)
    wrapper = DistributedDataParallel(model, process_group=trial.group)
    found = trial.train(wrapper, optimizer, steps=range(1, STEPS))
    same(found, plain(trial.mode, ranks=WORLD), exact=False)


def ddp_no_sync(trial: Trial) -> None:
    """Accumulation over two backward passes, the first in no_sync()."""
    model, optimizer = wrapped_model(trial)

    def loss(model: Any, number: int) -> Tensor:
        with model.no_sync():
            (loss_of(model, *new_batch(number, trial.rank)) / 2).backward()
        return loss_of(model, *new_batch(number, WORLD + trial.rank)) / 2

    same(trial.train(model, optimizer, loss), plain(trial.mode, ranks=2 * WORLD), exact=False)


def clipped_alone(mode: str) -> dict[str, Tensor]:
    """Return the parameters that one process trains with clipping by norm, over the batches of all ranks."""
    model = Recommender(mode)
    return Trial(mode).train(
        model,
        new_optimizer(model),
        lambda model, number: loss_of(model, *joined(new_batch(number, r) for r in range(WORLD))),
        before_step=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01),
    )


def same_clipped(trial: Trial, found: dict[str, Tensor]) -> None:
    """Raise unless the parameters are those of one process, and clipping had an effect."""
    expected = clipped_alone(trial.mode)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    differs(found, plain(trial.mode, ranks=WORLD))


def ddp_scaled_and_clipped(trial: Trial) -> None:
    """GradScaler and clipping after the exchange: every rank measures the same norm."""
    model, optimizer = wrapped_model(trial)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**8)

    def before_step() -> None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    def step() -> None:
        scaler.step(optimizer)
        scaler.update()

    found = trial.train(
        model, optimizer, backward=lambda loss: scaler.scale(loss).backward(), before_step=before_step, step=step
    )
    same_clipped(trial, found)


def ddp_compiled(trial: Trial) -> None:
    torch._dynamo.reset()
    model, optimizer = wrapped_model(trial)
    run = torch.compile(model, backend=trial.backend, dynamic=True)
    found = trial.train(model, optimizer, lambda _, number: loss_of(run, *new_batch(number, trial.rank)))
    torch._dynamo.reset()
    same(found, plain(trial.mode, ranks=WORLD), exact=False)


def ddp_checkpoint(trial: Trial) -> None:
    def wrap(model: Any) -> Any:
        rgt.replicate_rows(model, trial.group)
        return DistributedDataParallel(model, process_group=trial.group)

    same(checkpoints(trial, shared_folder(trial), wrap), plain(trial.mode, ranks=WORLD), exact=False)


def shared_folder(trial: Trial) -> Path:
    """Return a folder that all ranks know."""
    folder = [tempfile.mkdtemp(dir=FOLDER) if trial.rank == 0 else None]
    dist.broadcast_object_list(folder, group=trial.group)
    return Path(str(folder[0]))


def sharded(trial: Trial, model: Any) -> Any:
    return fully_shard(model, mesh=DeviceMesh.from_group(trial.group, DEVICE.type))


def layers_sharded(trial: Trial, model: Any) -> Any:
    """Shard what `replicate_rows` leaves: the layers, and tables with dense gradients."""
    names = rgt.replicate_rows(model, trial.group)
    tables = {model.get_parameter(name) for name in names}
    return fully_shard(model, mesh=DeviceMesh.from_group(trial.group, DEVICE.type), ignored_params=tables)


Wrap = Callable[[Trial, Any], Any]


def fsdp2(wrap: Wrap, make: Any = rgt.optim.Adagrad) -> Cell:
    def cell(trial: Trial) -> None:
        model = wrap(trial, Recommender(trial.mode))
        found = trial.train(model, new_optimizer(model, make))
        same(found, plain(trial.mode, make, ranks=WORLD), exact=False)

    return cell


def fsdp2_clipped(wrap: Wrap, *modules: Any) -> Cell:
    def cell(trial: Trial) -> None:
        for module in modules:
            model = wrap(trial, Recommender(trial.mode))
            clip = functools.partial(module.clip_grad_norm_, max_norm=0.01)
            before_step = functools.partial(lambda m, c: c(m.parameters()), model, clip)
            same_clipped(trial, trial.train(model, new_optimizer(model), before_step=before_step))

    return cell


def fsdp2_scaled(trial: Trial) -> None:
    """With an optimizer for the tables and one for the layers; an overflow on one rank skips the step of all ranks."""
    model = layers_sharded(trial, Recommender(trial.mode))
    tables = tables_of(model)
    layers = list(model.layers.parameters())
    optimizer, second = rgt.optim.Adagrad(tables, lr=RATE), rgt.optim.Adagrad(layers, lr=RATE)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**8)
    overflow = []

    def step() -> None:
        if overflow and trial.rank == WORLD - 1:
            layers[0].grad.to_local().fill_(float("inf"))  # type: ignore[union-attr]
        for each in (optimizer, second):
            scaler.step(each)
        scaler.update()
        second.zero_grad()

    def backward(loss: Tensor) -> None:
        scaler.scale(loss).backward()

    found = trial.train(model, optimizer, backward=backward, step=step)
    same(found, plain(trial.mode, ranks=WORLD), exact=False)
    overflow.append(True)
    after = trial.train(model, optimizer, backward=backward, step=step, steps=[0])
    assert scaler.get_scale() == 2.0**7
    for name, value in after.items():  # each optimizer skips by its own gradients
        assert torch.equal(value, found[name]) == name.startswith("layers"), name


def fsdp2_checkpoint(wrap: Wrap) -> Cell:
    def cell(trial: Trial) -> None:
        found = checkpoints(trial, shared_folder(trial), functools.partial(wrap, trial))
        same(found, plain(trial.mode, ranks=WORLD), exact=False)

    return cell


def flattened(trial: Trial, model: Any, ignored: Iterable[Any] = ()) -> Any:
    trial.values = local_shards
    model = FullyShardedDataParallel(
        model, trial.group, device_id=DEVICE, use_orig_params=True, ignored_states=list(ignored)
    )
    trial.watch(model, None)
    return model


def local_shards(model: Any) -> dict[str, Tensor]:
    """Return what this rank stores, also if a step failed while FSDP had gathered the parameters."""
    # Before the first step there is no such attribute: the parameter itself is the shard.
    shards = [getattr(handle.flat_param, "_local_shard", handle.flat_param) for handle in _get_fsdp_handles(model)]
    return {f"shard {i}": whole(shard) for i, shard in enumerate(shards)}


def fsdp1_values(model: Any) -> dict[str, Tensor]:
    with FullyShardedDataParallel.summon_full_params(model):
        return values_of(model)


def fsdp1(trial: Trial) -> None:
    model = flattened(trial, Recommender(trial.mode))
    trial.train(model, new_optimizer(model))
    same(fsdp1_values(model), plain(trial.mode, ranks=WORLD), exact=False)


def fsdp1_row_wise(trial: Trial) -> None:
    model = flattened(trial, Recommender(trial.mode))
    trial.train(model, new_optimizer(model, rgt.optim.RowWiseAdagrad))
    same(fsdp1_values(model), plain(trial.mode, rgt.optim.RowWiseAdagrad, ranks=WORLD), exact=False)


def flattened_layers(trial: Trial) -> Any:
    model = Recommender(trial.mode)
    names = rgt.replicate_rows(model, trial.group)
    return flattened(trial, model, [model.get_parameter(name) for name in names])


def fsdp1_layers(trial: Trial) -> None:
    model = flattened_layers(trial)
    trial.train(model, new_optimizer(model))
    same(fsdp1_values(model), plain(trial.mode, ranks=WORLD), exact=False)


def fsdp1_clipped(trial: Trial) -> None:
    model = flattened_layers(trial)
    trial.train(model, new_optimizer(model), before_step=lambda: model.clip_grad_norm_(0.01))
    same_clipped(trial, fsdp1_values(model))


# -- the table ---------------------------------------------------------------------------------------------------------


class Feature(NamedTuple):
    """A row of the table."""

    name: str
    cell: Cell
    note: str = ""
    several: bool = False  # whether processes with a group try it
    device: str = "cpu"  # that it is tried on; "cpu" is every device


COMPUTED = "`fused`: the row gradient is computed when it is read, as in `rows`."
NOT_LAZY = "`rows`: compiled gradients are dense, so Adam updates all rows."
WHOLE, LAYERS = "FSDP2 (`fully_shard`) of the whole model", "FSDP2 of the layers"
REPLICATED = "`rows`, `fused`: call `replicate_rows` and leave its tables out of FSDP. `dense`: the tables are sharded."
FEATURES = [
    Feature("a plain loop", plain_loop),
    Feature("`per_sample_weights` that are trained", per_sample_weights),
    Feature("parameter groups, several optimizers", parameter_groups),
    Feature("`torch.optim.lr_scheduler`", schedulers),
    Feature("gradient accumulation", accumulation, COMPUTED),
    Feature("`torch.autocast`", autocast, "Lookups run in the dtype of the table."),
    Feature("`torch.amp.GradScaler`", grad_scaler, COMPUTED),
    Feature("`torch.nn.utils.clip_grad_norm_`, `clip_grad_value_`", clipping(torch.nn.utils), COMPUTED),
    Feature("`rgt.clip.clip_grad_norm_`, `clip_grad_value_`", clipping(rgt.clip), COMPUTED),
    Feature("`torch.utils.checkpoint`", activation_checkpointing, "With `use_reentrant=False`: ids have no gradient."),
    Feature("`torch.compile`", compiled(rgt.optim.Adagrad), "`fused`: in full graphs from torch 2.13 on."),
    Feature("`torch.compile`, `rgt.optim.Adam`", compiled(rgt.optim.Adam), NOT_LAZY),
    Feature("`torch.optim.swa_utils.AveragedModel`", moving_average),
    Feature("`state_dict`, `torch.save`", state_dicts),
    Feature("`torch.distributed.checkpoint`, `get_state_dict`", distributed_checkpoint),
    Feature("`torch.optim.SGD`", optimizer_of_torch(torch.optim.SGD), "`rows`: without `fused` and `weight_decay`."),
    Feature("`torch.optim.Adagrad`", optimizer_of_torch(torch.optim.Adagrad)),
    Feature("`torch.optim.SparseAdam`", optimizer_of_torch(torch.optim.SparseAdam, torch.optim.SGD)),
    Feature("`torch.optim.Adam`", optimizer_of_torch(torch.optim.Adam)),
    Feature("`torch.optim.AdamW`", optimizer_of_torch(torch.optim.AdamW)),
    Feature("`torch.optim.RMSprop`", optimizer_of_torch(torch.optim.RMSprop)),
    Feature("DDP, with `replicate_rows`", ddp, "`rows`, `fused`: call `replicate_rows` before DDP.", several=True),
    Feature("DDP, without `replicate_rows`", ddp_alone, several=True),
    Feature("DDP, `no_sync()`", ddp_no_sync, several=True),
    Feature("DDP, `GradScaler` and clipping", ddp_scaled_and_clipped, several=True),
    Feature("DDP, `torch.compile`", ddp_compiled, "`rows`: compile what follows the tables.", several=True),
    Feature("DDP, `torch.distributed.checkpoint`", ddp_checkpoint, several=True),
    Feature(WHOLE, fsdp2(sharded), several=True),
    Feature(f"{WHOLE}, `RowWiseAdagrad`", fsdp2(sharded, rgt.optim.RowWiseAdagrad), several=True),
    Feature(f"{WHOLE}, clipping", fsdp2_clipped(sharded, torch.nn.utils, rgt.clip), several=True),
    Feature(f"{WHOLE}, `torch.distributed.checkpoint`", fsdp2_checkpoint(sharded), several=True),
    Feature(LAYERS, fsdp2(layers_sharded), REPLICATED, several=True),
    Feature(f"{LAYERS}, `RowWiseAdagrad`", fsdp2(layers_sharded, rgt.optim.RowWiseAdagrad), several=True),
    Feature(f"{LAYERS}, `torch.nn.utils.clip_grad_norm_`", fsdp2_clipped(layers_sharded, torch.nn.utils), several=True),
    Feature(f"{LAYERS}, `rgt.clip.clip_grad_norm_`", fsdp2_clipped(layers_sharded, rgt.clip), several=True),
    Feature(f"{LAYERS}, `GradScaler`", fsdp2_scaled, "With one optimizer for tables and one for layers.", several=True),
    Feature(f"{LAYERS}, `torch.distributed.checkpoint`", fsdp2_checkpoint(layers_sharded), several=True),
    Feature("FSDP1 of the whole model", fsdp1, several=True),
    Feature("FSDP1 of the whole model, `RowWiseAdagrad`", fsdp1_row_wise, several=True),
    Feature("FSDP1 of the layers", fsdp1_layers, REPLICATED, several=True),
    Feature("FSDP1 of the layers, `model.clip_grad_norm_`", fsdp1_clipped, several=True),
    Feature("CUDA graph of a step", cuda_graph,
            "`rgt.optim.SGD`, `RowWiseAdagrad`; the batch keeps its sizes. `rows`: bags without weights.",
            device="cuda"),
]  # fmt: skip


def features_here() -> list[Feature]:
    return [feature for feature in FEATURES if feature.device in ("cpu", DEVICE.type)]


class Failure(Exception):
    """A cell neither works nor is rejected cleanly."""


def outcome(feature: Feature, trial: Trial) -> str:
    """Try a cell; return "works", what it works as, or "rejected: " and the message, torch's own after "torch: "."""
    try:
        return feature.cell(trial) or "works"
    except (rg.errors.OpError, RuntimeError, ValueError) as error:
        changed = trial.changed()
        if changed:
            raise Failure(f"{feature.name}, {trial.mode}: changed {changed}, then {error!r}") from error
        text = (
            error.message
            if isinstance(error, rg.errors.OpError)
            else f"torch: {str(error).strip().partition(chr(10))[0].partition(' Please see')[0]}"
        )
        return "rejected: " + " ".join(text.split())


def tried(feature: Feature, trial: Trial) -> str:
    """Return the outcome of a cell, or "failed: " and the traceback."""
    try:
        return outcome(feature, trial)
    except BaseException:
        return "failed: " + traceback.format_exc()


def try_cells(rank: int, folder: str, names: list[str]) -> None:
    """Try the cells of features on one rank; write their outcomes, up to the first failure of two ranks."""
    global FOLDER
    FOLDER = Path(folder)
    signal.alarm(SECONDS)  # ends this process even if another one is lost
    torch.set_num_threads(1)
    rg.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns about its own parts
    features = [f for f in FEATURES if f.name in names]
    several = any(f.several for f in features)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    if several:
        dist.init_process_group(BACKEND[DEVICE.type], init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    found: dict[str, dict[str, str]] = {}
    for feature in features:
        for mode in MODES:
            result = tried(feature, Trial(mode, dist.new_group(list(range(WORLD))) if feature.several else None))
            found.setdefault(feature.name, {})[mode] = result
            Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
            if result.startswith("failed") and (WORLD > 1 or not usable()):
                os._exit(1)  # the other rank gets an error at once instead of a timeout
    if several:
        dist.barrier()
    os._exit(0)


def usable() -> bool:
    """Return whether the device still works: after some errors it does not until the process ends."""
    try:
        torch.ones(1, device=DEVICE).add_(1).item()
    except RuntimeError:
        return False
    return True


def fork_ranks(folder: str, names: list[str]) -> None:
    importlib.import_module("torch._dynamo")  # once, not by every child
    torch.set_num_threads(1)
    if WORLD == 1:  # CUDA does not survive a fork
        try_cells(0, folder, names)
    children = [mp.get_context("fork").Process(target=try_cells, args=(r, folder, names)) for r in range(WORLD)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def outcomes_of_ranks(names: Iterable[str]) -> list[dict[str, dict[str, str]]]:
    """Return the outcomes of the cells of features as each rank reports them, up to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        options = ["--device", DEVICE.type, "--processes", str(WORLD), "--ranks-in", folder, *names]
        subprocess.run([sys.executable, __file__, *options], env=environment, check=False)
        files = [Path(folder, f"{rank}.json") for rank in range(WORLD)]
        return [json.loads(file.read_text(encoding="utf-8")) if file.exists() else {} for file in files]


def outcomes_of_several() -> list[dict[str, dict[str, str]]]:
    """Return the outcomes of the cells of several processes as each rank reports them."""
    return outcomes_of_ranks(feature.name for feature in features_here() if feature.several)


def outcomes_of_one_process(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the outcomes of features that one process tries. If it ends early, another one tries the next features."""
    found: dict[str, dict[str, str]] = {}
    remaining = list(names)
    while remaining:
        (new,) = outcomes_of_ranks(remaining)
        lost = next((name for name in remaining if len(new.get(name, {})) < len(MODES)), None)
        if lost is not None:
            new[lost] = {mode: new.get(lost, {}).get(mode, "failed: the process ended") for mode in MODES}
        found |= new
        print(*(f"{name}: {brief(new[name])}" for name in remaining if name in new), sep="\n", flush=True)
        remaining = [name for name in remaining if name not in found]
    return found


def brief(outcomes: dict[str, str]) -> dict[str, str]:
    return {mode: text.partition(":")[0] for mode, text in outcomes.items()}


def use(device: str, processes: int | None) -> None:
    """Try cells on this device. NCCL has one process for each GPU, and one GPU is used."""
    global DEVICE, WORLD
    if device == "cuda":
        DEVICE, WORLD = torch.device("cuda:0"), 1
    WORLD = processes or WORLD


def main() -> int:
    """Return the exit status: 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(BACKEND), default="cpu")
    parser.add_argument("--processes", type=int, help="of the features of several; by default 2 on a CPU, 1 on a GPU")
    parser.add_argument(
        "--out", type=Path, help="the record; by default training_matrix.json or training_matrix_cuda.json"
    )
    parser.add_argument("--ranks-in", help="only try the features, and write <rank>.json into this folder")
    parser.add_argument("names", nargs="*", help="features; by default all")
    args = parser.parse_args()
    use(args.device, args.processes)
    if args.ranks_in:
        fork_ranks(args.ranks_in, args.names)
        return 0
    chosen = [f for f in features_here() if not args.names or f.name in args.names]
    alone, several = ([f.name for f in chosen if f.several == group] for group in (False, True))
    found: dict[str, dict[str, str]] = {}
    if WORLD == 1:
        found = outcomes_of_one_process(alone) | outcomes_of_one_process(several)
    else:
        for feature in (f for f in chosen if not f.several):
            found[feature.name] = {mode: tried(feature, Trial(mode)) for mode in MODES}
            print(feature.name, brief(found[feature.name]), flush=True)
        ranks = outcomes_of_ranks(several) if several else [found]
        if any(other != ranks[0] for other in ranks):
            raise Failure(f"ranks differ: {ranks}")
        found |= ranks[0]
    rows = [{"feature": f.name, "note": f.note, **found[f.name]} for f in chosen if f.name in found]
    record: Any = rows if DEVICE.type == "cpu" else {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "processes": WORLD, "rows": rows
    }  # fmt: skip
    target = args.out or (RECORD if DEVICE.type == "cpu" else CUDA_RECORD)
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    failed = [f"{row['feature']}, {m}: {row.get(m)}" for row in rows for m in MODES if "failed" in row.get(m, "failed")]
    print("\n".join(failed) or f"wrote {target.name}: no cell failed")
    return int(bool(failed) or len(rows) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
