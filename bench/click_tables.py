"""The embeddings of a click model, 26 tables: rowgrad beside FBGEMM and torch, all in one process.

It needs an environment with rowgrad, torch and FBGEMM, and about 6 GB of memory:

    python bench/click_tables.py --threads 1 --batches 8,128,2048,8192 --out click_tables_1

Every variant has tables of its own, and its turn in each round begins one place later than in the round before, so no
variant always follows the same one. Batches change from round to round. One thread is timed by processor time, several
by wall time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

import rowgrad as rg
import rowgrad.torch as rgt

RESULTS = Path(__file__).parent / "results"
# Rows and mean length of the bags of each table: 7.6 million rows, 132 ids per example.
TABLES = [
    (2_000_000, 1), (1_500_000, 2), (1_000_000, 5), (700_000, 10), (500_000, 20), (400_000, 1), (300_000, 1),
    (300_000, 3), (200_000, 8), (200_000, 2), (100_000, 4), (100_000, 5), (100_000, 1), (50_000, 10), (50_000, 2),
    (50_000, 3), (10_000, 12), (10_000, 6), (10_000, 5), (5_000, 4), (5_000, 3), (1_000, 8), (1_000, 2), (100, 6),
    (100, 5), (20, 3),
]  # fmt: skip
COLUMNS, RATE, EPS = 32, 0.01, 1e-8
NAMES = [f"table{i}" for i in range(len(TABLES))]
Seconds = tuple[float, float, float]  # forward, backward, step


class Batch:
    """Bags of all features: as one vector, by feature, and with the gradient of the result."""

    def __init__(self, examples: int, zipf: bool, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.pairs = []
        for rows, length in TABLES:
            lengths = random.integers(0, 2 * length + 1, examples)
            count = int(lengths.sum())
            ids = random.integers(0, rows, count)
            if zipf:  # hot rows, scattered over the table
                ids = (random.pareto(1.05, count) * 3).astype(np.int64) % rows * 2_654_435_761 % rows
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            self.pairs.append((torch.from_numpy(ids), torch.from_numpy(offsets)))
        self.by_feature = dict(zip(NAMES, self.pairs, strict=True))
        self.ids = torch.cat([ids for ids, _ in self.pairs])
        ends = torch.cumsum(torch.cat([torch.diff(offsets) for _, offsets in self.pairs]), 0)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        generator = torch.Generator().manual_seed(seed)
        self.grad = torch.randn(examples, len(TABLES) * COLUMNS, generator=generator)
        self.grads = [g.contiguous() for g in self.grad.split(COLUMNS, 1)]


def rowgrad_step(clock: Callable[[], float], by_feature: bool, **options: Any) -> Callable[[Batch], Seconds]:
    tables = [rgt.nn.Table(name, rows, COLUMNS) for name, (rows, _) in zip(NAMES, TABLES, strict=True)]
    module = rgt.nn.Embeddings(tables, include_last_offset=True, output="stacked", **options)
    optimizer = rgt.optim.RowWiseAdagrad(module.parameters(), lr=RATE, eps=EPS)

    def step(batch: Batch) -> Seconds:
        grad = batch.grad.view(-1, len(TABLES), COLUMNS)
        begin = clock()
        out = module(batch.by_feature) if by_feature else module(batch.ids, batch.offsets)
        looked_up = clock()
        out.backward(grad)
        propagated = clock()
        optimizer.step()
        done = clock()
        optimizer.zero_grad()
        return looked_up - begin, propagated - looked_up, done - propagated

    return step


def fbgemm_step(clock: Callable[[], float]) -> Callable[[Batch], Seconds]:
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, COLUMNS, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, _ in TABLES],
        pooling_mode=PoolingMode.MEAN, optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=RATE, eps=EPS,
    )  # fmt: skip
    for weight in bags.split_embedding_weights():
        torch.nn.init.normal_(weight.data)

    def step(batch: Batch) -> Seconds:
        begin = clock()
        out = bags(batch.ids, batch.offsets)
        looked_up = clock()
        out.backward(batch.grad)
        return looked_up - begin, clock() - looked_up, 0.0

    return step


def torch_step(clock: Callable[[], float]) -> Callable[[Batch], Seconds]:
    modules = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(rows, COLUMNS, mode="mean", sparse=True, include_last_offset=True) for rows, _ in TABLES
    )
    optimizer = torch.optim.Adagrad(modules.parameters(), lr=RATE)

    def step(batch: Batch) -> Seconds:
        begin = clock()
        outs = [module(*pair) for module, pair in zip(modules, batch.pairs, strict=True)]
        looked_up = clock()
        torch.autograd.backward(outs, batch.grads)
        propagated = clock()
        optimizer.step()
        done = clock()
        optimizer.zero_grad()
        return looked_up - begin, propagated - looked_up, done - propagated

    return step


def measure(variants: dict[str, Callable[[Batch], Seconds]], batches: list[Batch], rounds: int) -> dict[str, Any]:
    times: dict[str, list[Seconds]] = {name: [] for name in variants}
    names = list(variants)
    for i in range(-2, rounds):  # two rounds to warm up
        for k in range(len(names)):
            name = names[(i + k) % len(names)]
            seconds = variants[name](batches[(i + k) % len(batches)])
            if i >= 0:
                times[name].append(seconds)
    found = {}
    for name, seen in times.items():
        parts = np.array(seen) * 1e6
        found[name] = {
            "min": [round(float(x), 1) for x in (*parts.min(0), parts.sum(1).min())],
            "median": [round(float(x), 1) for x in (*np.median(parts, 0), np.median(parts.sum(1)))],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", default="8,128,2048,8192")
    parser.add_argument("--rounds", type=int, default=0, help="0: by the size of the batch")
    parser.add_argument("--out", default="click_tables")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    torch.set_num_threads(options.threads)
    rg.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    torch.manual_seed(0)
    variants = {
        "fused": rowgrad_step(clock, False, fused=True),
        "fused, ids by feature": rowgrad_step(clock, True, fused=True),
        "rows": rowgrad_step(clock, False, grad="rows"),
        "FBGEMM": fbgemm_step(clock),
        "torch": torch_step(clock),
    }
    cases = []
    for ids in ("uniform", "zipf"):
        for examples in map(int, options.batches.split(",")):
            batches = [Batch(examples, ids == "zipf", seed) for seed in range(7)]
            rounds = options.rounds or max(10, min(100, 60_000 // examples))
            times = measure(variants, batches, rounds)
            cases.append({"ids": ids, "examples": examples, "count": len(batches[0].ids), "times": times})
            mine, theirs = (times[name]["min"][3] for name in ("fused", "FBGEMM"))
            print(f"{ids}, {examples} examples: fused {mine:.0f} µs, FBGEMM {theirs:.0f} µs: {theirs / mine:.2f}")
    ratios = [c["times"]["FBGEMM"]["min"][3] / c["times"]["fused"]["min"][3] for c in cases]
    print(f"geometric mean against FBGEMM: {float(np.exp(np.mean(np.log(ratios)))):.2f}")
    facts = {
        "threads": options.threads, "torch": torch.__version__, "FBGEMM": "1.8.0", "date": date.today().isoformat(),
        "columns": ["forward", "backward", "step", "all"], "unit": "µs",
    }  # fmt: skip
    (RESULTS / f"{options.out}.json").write_text(json.dumps({"facts": facts, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
