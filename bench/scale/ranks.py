"""One rank of a world, which runs steps and counts bytes: `python -m bench.scale.ranks TASK`, TASK as JSON.

Rank 0 prints a line of JSON for each measurement: {"what": …, …}. Every rank has one thread.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rowgrad as rg
from rowgrad.torch import optim, sharded
from rowgrad.torch.bags import Bags
from rowgrad.torch.sharded.exchange import route
from rowgrad.torch.sharded.placement import Stack

from .model import PHASES, draw
from .workloads import BETWEEN, CALIBRATION, CHECKS, EXCHANGED, GATHERED, ROUTED, WAYS, Workload, routed

LONGEST = 170  # seconds after which a rank ends itself, even if its parent is gone


@dataclass(frozen=True)
class Task:
    """The task of a rank; fields as in its JSON."""

    store: str
    rank: int
    ranks: int
    seconds: float  # start no round of timed steps after this; 0: only count bytes
    rounds: int  # maximal number of rounds
    repeats: int
    checks: list[str]  # names in CHECKS


Clocks = tuple[float, float]  # wall time, and CPU time of this process, which other programs do not slow down
Parts = list[Clocks]


def now() -> Clocks:
    """Return both clocks."""
    return time.perf_counter(), time.process_time()


def since(begun: Clocks, ended: Clocks) -> Clocks:
    """Return elapsed seconds by both clocks."""
    return ended[0] - begun[0], ended[1] - begun[1]


class Steps:
    """A workload's module, bags and optimizer on this rank."""

    def __init__(self, workload: Workload, group: Any, rank: int, updates: bool = True) -> None:
        w = workload
        rng = np.random.default_rng([rank, w.rows, w.bags])
        self.ids = torch.from_numpy(draw(rng, w.bags * w.hotness, w.rows, w.alpha)).view(w.bags, w.hotness)
        self.module = sharded.RowShardedEmbeddingBag(
            w.rows, w.columns, strategy=w.strategy, process_group=group, fused=updates
        )
        # Torch's optimizers are slow to import, and traffic does not depend on them.
        self.optimizer = optim.RowWiseAdagrad(self.module.parameters(), lr=0.01) if updates else None
        self.y = torch.ones(w.bags, w.columns)

    def go(self, mode: str, wire_bytes: int) -> Parts:
        """Do one step after a barrier: forward, and backward with the update."""
        self.module.mode = mode  # read in every call, so one table serves all modes
        self.module.wire_dtype = torch.bfloat16 if wire_bytes == 2 else None
        dist.barrier()
        begun = now()
        out = self.module(self.ids)
        between = now()
        out.backward(self.y)
        if self.optimizer is not None:
            self.optimizer.step()
        return [since(begun, between), since(between, now())]

    def traffic(self, mode: str, wire_bytes: int) -> list[int]:
        """Return the bytes of one step by phase."""
        self.module.traffic.reset()
        self.go(mode, wire_bytes)
        return [getattr(self.module.traffic, phase) for phase in PHASES]


def exchange(size: int, ranks: int) -> Parts:
    """Return the time until `size` bytes arrived from every rank; all start together."""
    data = torch.zeros(size * ranks, dtype=torch.uint8)
    dist.barrier()
    return [timed_exchange(data, size, ranks)]


def timed_exchange(data: torch.Tensor, size: int, ranks: int) -> Clocks:
    """Return the seconds of one exchange into newly allocated memory, as in the modules."""
    each = [size] * ranks
    begun = now()
    result = torch.empty_like(data)
    dist.all_to_all_single(result, data, each, each, async_op=True).wait()
    return since(begun, now())


def after_work(size: int, ranks: int) -> Callable[[], Parts]:
    """Return as many exchanges as a step has, with work before each.

    Parts are the work and the exchanges, including the wait for slower ranks.
    """
    rows, columns, count = GATHERED
    table, data = torch.zeros(rows, columns), torch.zeros(size * ranks, dtype=torch.uint8)
    ids = torch.from_numpy(np.random.default_rng(rows).integers(0, rows, count))

    def once() -> Parts:
        dist.barrier()
        spent = []
        for _ in PHASES:
            begun = now()
            table.index_select(0, ids)
            spent.append((since(begun, now()), timed_exchange(data, size, ranks)))
        return [(sum(wall for wall, _ in part), sum(own for _, own in part)) for part in zip(*spent, strict=True)]

    return once


def routing(bags: int, hotness: int, owners: int, strategy: str) -> Callable[[], Parts]:
    """Return a function that sorts ids by this many owners, without other ranks."""
    rows = 200_000
    stack = Stack([rows], owners, strategy)
    ids = torch.from_numpy(draw(np.random.default_rng(owners), bags * hotness, rows, 0.0))
    request = Bags(ids, torch.arange(bags).repeat_interleave(hotness), bags, None)

    def once() -> Parts:
        dist.barrier()
        begun = now()
        route(request, stack, "Mean", torch.float32)
        return [since(begun, now())]

    return once


def gathered(mine: Sequence[Any], ranks: int) -> torch.Tensor:
    """Return the numbers of all ranks, stacked."""
    own = torch.tensor(mine, dtype=torch.float64)
    found = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(found, own)
    return torch.stack(found)


def slowest(task: Task, once: Callable[[], Parts]) -> list[list[list[float]]]:
    """Return for every repeat each part's seconds on its slowest rank, and those of all parts together."""
    once()
    all_ranks = gathered([once() for _ in range(task.repeats)], task.ranks)
    total = all_ranks.sum(2, keepdim=True)
    found: list[list[list[float]]] = torch.cat([all_ranks, total], 2).amax(0).tolist()
    return found


def work(task: Task, send: Callable[..., None]) -> None:
    """Measure the bytes of every check; then rounds of exchanges, steps of single ranks, and the checks."""
    alone = [dist.new_group([r]) for r in range(task.ranks)][task.rank]
    timed = task.seconds > 0
    checks = [Steps(w, dist.group.WORLD, task.rank, timed) for w in CHECKS if w.name in task.checks]
    for steps, name in zip(checks, task.checks, strict=True):
        for way in WAYS:
            send(what="traffic", name=name, way=way, bytes=gathered(steps.traffic(*way), task.ranks).tolist())
    if not timed:
        return
    single = [Steps(w, alone, task.rank) for w in CALIBRATION]
    worked = after_work(BETWEEN, task.ranks)
    begun = time.monotonic()
    for done in range(task.rounds):  # take turns, so that a slow phase of the machine affects all of them
        spent = time.monotonic() - begun
        if not broadcast(done == 0 or spent * (done + 1) / done < task.seconds):
            break
        send(what="round", part=max(spent / task.seconds, done / task.rounds))
        for size in EXCHANGED if task.ranks > 1 else ():
            send(what="exchange", size=size, seconds=slowest(task, partial(exchange, size, task.ranks)))
        if task.ranks > 1:
            send(what="after_work", size=BETWEEN, seconds=slowest(task, worked))
        for (bags, hotness), (owners, strategy) in itertools.product(ROUTED, routed(task.ranks)):
            seconds = slowest(task, routing(bags, hotness, owners, strategy))
            send(what="route", name=[bags * hotness, owners, strategy], seconds=seconds)
        for kind, every, names in (
            ("single", single, [w.name for w in CALIBRATION]), ("step", checks, task.checks),
        ):  # fmt: skip
            for steps, name in zip(every, names, strict=True):
                for way in WAYS:
                    seconds = slowest(task, partial(steps.go, *way))
                    send(what=kind, name=name, way=way, seconds=seconds)


def broadcast(value: bool) -> bool:
    """Return the value of rank 0."""
    decision = torch.tensor([value])
    dist.broadcast(decision, 0)
    return bool(decision)


def main(text: str) -> None:
    """Join the group, work, leave."""
    task = Task(**json.loads(text))
    signal.alarm(LONGEST)
    torch.set_num_threads(1)
    rg.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{task.store}", rank=task.rank, world_size=task.ranks)

    def send(**line: Any) -> None:
        if task.rank == 0:
            print(json.dumps(line), flush=True)

    work(task, send)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
