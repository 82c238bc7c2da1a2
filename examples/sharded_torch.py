"""A click model whose tables are sharded over processes, trained through failures.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/sharded_torch.py --out run

Every process stores some rows of each table (rowgrad.torch.sharded) and works on its share of each batch. Layers are
replicated, and their gradients are summed. The data depends only on the seed and the step.

Kill a process, also by `kill -9`: the others notice, torchrun restarts all of them, and they continue from the last
checkpoint. The digest of all weights printed at the end is that of an uninterrupted run. Another number of processes
can also load the checkpoints: the tables are then sharded again.

A process that hangs is noticed too: in lookups by its missing heartbeat, in every other exchange after `--timeout`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad.torch import sharded

FEATURES = ("user", "seen", "bought")


class ClickModel(torch.nn.Module):
    """Map bags of ids to the log odds of a click."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        tables = [
            rgt.nn.Table("users", rows, columns, "sum", features=("user",)),
            rgt.nn.Table("items", rows // 2 + 1, columns, "mean", features=("seen", "bought")),
        ]
        self.tables = sharded.RowShardedEmbeddings(tables)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(columns * len(FEATURES), 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def forward(self, ids: dict[str, Any]) -> Tensor:
        """[samples]"""
        found = self.tables(ids)
        result: Tensor = self.layers(torch.cat([found[f] for f in FEATURES], 1)).squeeze(1)
        return result


def samples_of(step: int, batch: int, rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the whole batch of a step: three ids per bag, some of them frequent, and the clicks."""
    g = torch.Generator().manual_seed(seed * 1_000_003 + step)
    ids = {f: (torch.rand(batch, 3, generator=g) ** 3 * (rows // 2)).long() for f in FEATURES}
    taste = sum((i % 7 < 3).float().mean(1) for i in ids.values())
    return ids, (torch.rand(batch, generator=g) < taste / len(FEATURES)).float()


def start_processes(timeout: float) -> None:
    """Create the process group, with separate keys in torchrun's store for each restart.

    `timeout` is the longest time, in seconds, that a process waits for another one. torch's default is 30 minutes.
    torchrun keeps one store for all restarts (as of torch 2.13), where a process might find the address of a dead one.
    """
    store, rank, world = next(dist.rendezvous("env://"))
    prefixed = dist.PrefixStore(f"round_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=world, timeout=limit)


def train_step(model: ClickModel, optimizer: Any, step: int, options: argparse.Namespace) -> float:
    """Do one step on this process's share of the batch; return the loss of the whole batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ids, clicks = samples_of(step, options.batch, options.rows, options.seed)
    mine = torch.arange(options.batch).tensor_split(world)[rank]
    odds = model({f: i[mine] for f, i in ids.items()})
    # Tables sum the gradients of all processes, so each loss is divided by the size of the whole batch.
    loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, clicks[mine], reduction="sum") / options.batch
    loss.backward()
    for parameter in model.layers.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total)


def save(folder: Path, model: ClickModel, optimizer: Any, step: int, loss: float) -> None:
    """Write a checkpoint of this step, and delete all older ones but the last."""
    sharded.checkpoint.save(folder / f"step_{step:08d}", model, optimizer, {"step": step, "loss": loss})
    if dist.get_rank() == 0:
        for old in sorted(folder.glob("step_*"))[:-2]:
            shutil.rmtree(old)


def digest(model: ClickModel) -> str:
    """Return the SHA-256 of every weight; all processes must call it together."""
    found = hashlib.sha256()
    weights = [model.tables.full_weight(t.name) for t in model.tables.tables]
    for weight in [*weights, *model.layers.state_dict().values()]:
        found.update(weight.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train(options: argparse.Namespace) -> str:
    """Train in the current process group, from the last checkpoint if there is one; return the digest."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # bits of torch's matrix products depend on the number of threads
    model = ClickModel(options.rows, options.columns)
    optimizer = rgt.optim.Adagrad(model.parameters(), lr=0.05)
    start, loss = 0, float("nan")
    last = sharded.checkpoint.latest(options.out)
    if last is not None:
        extra = sharded.checkpoint.load(last, model, optimizer)
        start, loss = extra["step"], extra["loss"]
    first = dist.get_rank() == 0
    if first:
        print(f"{dist.get_world_size()} processes, from step {start}", flush=True)
    for step in range(start, options.steps):
        loss = train_step(model, optimizer, step, options)
        if (step + 1) % options.checkpoint_every == 0 or step + 1 == options.steps:
            save(options.out, model, optimizer, step + 1, loss)
            if first:
                print(f"step {step + 1}: loss {loss:.4f}, {model.tables.traffic.total} bytes sent", flush=True)
    return digest(model)


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a run's options."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoints, for all processes")
    for name, value in (("steps", 200), ("batch", 512), ("rows", 20_000), ("columns", 16), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that a process waits for another one")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in a process that torchrun starts."""
    options = parser_of(__doc__).parse_args(arguments)
    start_processes(options.timeout)
    found = train(options)
    if dist.get_rank() == 0:
        print(f"digest {found}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
