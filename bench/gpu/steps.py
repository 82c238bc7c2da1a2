"""Whole calls and training steps beside torch: what a user writes, eager, and captured into a CUDA graph.

    PYTHONPATH=src python3 bench/gpu/steps.py --out bench/results/h200-steps.json

Every row is measured in one process. `eager` times single calls on an idle device between two events, `graph` replays a
captured step. `host` is the time until the host has queued the call. Medians, in microseconds. `kernels` is the sum of
the times of a call's kernels, memsets and copies in a profile, and `launches` their number.

    PYTHONPATH=src python3 bench/gpu/steps.py --host

runs every call once with small tables on the CPU, to try the script where no device is. It measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from timing import eager, graph

import rowgrad as rg
import rowgrad.torch as rgt

Work = Callable[[], Any]
DEVICE = "cuda"
COLUMNS = 64
DENSE_FEATURES = 13


@dataclass(frozen=True)
class Sizes:
    """The sizes of tables and batches."""

    rows: int = 1_000_000  # of a table alone
    bags: int = 16_384  # of a step with one table
    served: tuple[int, ...] = (1, 32, 512)  # bags of calls without a gradient
    tables: int = 26
    table_rows: int = 200_000  # of each of these
    examples: int = 4096  # of a step with many tables


SIZES = Sizes()
SMALL = Sizes(500, 16, (1, 8), 3, 100, 8)


def on_host(work: Work, runs: int = 200) -> float:
    """Return the host's median time to queue a call."""
    for _ in range(10):
        work()
    times = []
    for i in range(runs):
        if i % 20 == 0:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def kernels_of(work: Work, runs: int = 10) -> tuple[float, float]:
    """Return the time of a call's kernels, memsets and copies in a profile, and their number."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(runs):
            work()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.self_device_time_total for e in events) / runs, len(events) / runs


def bags_of(bags: int, mean: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, offsets with their end, and segment ids."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(max(mean // 2, 1), mean + mean // 2 + 1, (bags,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(0, SIZES.rows, (int(offsets[-1]),), generator=draw)
    segments = torch.repeat_interleave(torch.arange(bags), lengths)
    return ids.to(DEVICE), offsets.to(DEVICE), segments.to(DEVICE)


def forwards() -> dict[str, Work]:
    """Return forward calls of growing batches."""
    found: dict[str, Work] = {}
    rows = SIZES.rows
    table = torch.randn(rows, COLUMNS, device=DEVICE)
    ours = rgt.nn.EmbeddingBag(rows, COLUMNS, mode="mean", include_last_offset=True, _weight=table)
    theirs = torch.nn.EmbeddingBag(rows, COLUMNS, mode="mean", include_last_offset=True, _weight=table)
    for bags, mean in (*((bags, 10) for bags in SIZES.served), (SIZES.bags, 20)):
        ids, offsets, segments = bags_of(bags, mean)

        def raw(ids: Any = ids, segments: Any = segments, bags: int = bags) -> Any:
            return rg.raw_ops.SparseSegmentMeanWithNumSegments(table, ids, segments, bags)

        def function(ids: Any = ids, offsets: Any = offsets) -> Any:
            return torch.nn.functional.embedding_bag(ids, table, offsets, mode="mean", include_last_offset=True)

        def without_grad(module: Any, ids: Any = ids, offsets: Any = offsets) -> Any:
            with torch.no_grad():
                return module(ids, offsets)

        def with_backward(module: Any, ids: Any = ids, offsets: Any = offsets) -> None:
            module.weight.grad = None
            module(ids, offsets).sum().backward()

        found[f"forward raw op, {bags} bags"] = raw
        found[f"torch F.embedding_bag, {bags} bags"] = function
        found[f"forward module, {bags} bags"] = lambda f=without_grad: f(ours)
        found[f"torch module, {bags} bags"] = lambda f=without_grad: f(theirs)
        if bags == SIZES.bags:
            found[f"dense backward, {bags} bags"] = lambda f=with_backward: f(ours)
            found[f"torch dense backward, {bags} bags"] = lambda f=with_backward: f(theirs)
    ids, _, segments = bags_of(SIZES.bags, 20)
    y = torch.randn(SIZES.bags, COLUMNS, device=DEVICE)
    found["GradV2, which waits for its number of rows"] = lambda: rg.raw_ops.SparseSegmentMeanGradV2(
        y, ids, segments, rows
    )
    return found


def one_table() -> dict[str, tuple[Work, bool]]:
    """Return training steps of one table, and whether they can be captured."""
    ids, offsets, _ = bags_of(SIZES.bags, 20)
    y = torch.randn(SIZES.bags, COLUMNS, device=DEVICE)

    def step_of(module: Any, optimizer: Any) -> Work:
        return step_with(module, optimizer, ids, offsets, y)

    found: dict[str, tuple[Work, bool]] = {}

    def backward_of(module: Any) -> Work:
        def backward() -> None:
            module.weight.grad = None
            module(ids, offsets).backward(y)

        return backward

    found["forward and backward, rows"] = backward_of(bag_of(rgt.nn, grad="rows")), True
    for name, options, rule in (
        ("fused, RowWiseAdagrad", {"fused": True}, "RowWiseAdagrad"),
        ("rows, RowWiseAdagrad", {"grad": "rows"}, "RowWiseAdagrad"),
        ("fused, SGD", {"fused": True}, "SGD"),
        ("rows, SGD", {"grad": "rows"}, "SGD"),
    ):
        module = bag_of(rgt.nn, **options)
        optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=1e-3)
        found[f"step {name}"] = step_of(module, optimizer), True
    for name, rule in (("SGD", torch.optim.SGD), ("Adagrad", torch.optim.Adagrad)):
        theirs = bag_of(torch.nn, sparse=True)
        found[f"torch step sparse, {name}"] = step_of(theirs, rule(theirs.parameters(), lr=1e-3)), False
    return found


def bag_of(library: Any, **options: Any) -> Any:
    """Return a module with one table."""
    return library.EmbeddingBag(SIZES.rows, COLUMNS, mode="mean", include_last_offset=True, device=DEVICE, **options)


def step_with(module: Any, optimizer: Any, ids: Any, offsets: Any, y: Any) -> Work:
    """Return a training step."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(ids, offsets).backward(y)
        optimizer.step()

    return step


def compiled(module: Any, mode: str) -> Any:
    """Return a compiled module."""
    if DEVICE == "cpu":  # tried out: the compiler would take a minute
        return torch.compile(module, fullgraph=True, backend="aot_eager")
    return torch.compile(module, fullgraph=True, mode=mode)


def compiled_table() -> dict[str, tuple[Work, bool]]:
    """Return steps of one table whose forward and backward passes are compiled, beside those that are not."""
    ids, offsets, _ = bags_of(SIZES.bags, 20)
    y = torch.randn(SIZES.bags, COLUMNS, device=DEVICE)
    found: dict[str, tuple[Work, bool]] = {}
    for name, library, optimizers, rule, options in (
        ("fused", rgt.nn, rgt.optim, "RowWiseAdagrad", {"fused": True}),
        ("rows", rgt.nn, rgt.optim, "RowWiseAdagrad", {"grad": "rows"}),
        ("dense", rgt.nn, rgt.optim, "RowWiseAdagrad", {}),
        ("torch dense", torch.nn, torch.optim, "Adagrad", {}),
    ):
        for mode in ("eager", "default", "reduce-overhead"):
            module = bag_of(library, **options)
            optimizer = getattr(optimizers, rule)(module.parameters(), lr=1e-3)
            run = module if mode == "eager" else compiled(module, mode)
            prefix, kind = ("torch ", "dense") if library is torch.nn else ("", name)
            step = step_with(run, optimizer, ids, offsets, y)
            found[f"{prefix}compiled step, {kind}, {mode}"] = step, mode == "eager" and not prefix
    return found


def batches_of(count: int, rows: int, bags: int, mean: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return ids and offsets of many features."""
    draw, batches = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        lengths = torch.randint(1, 2 * mean, (bags,), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ids = torch.randint(0, rows, (int(offsets[-1]),), generator=draw)
        batches.append((ids.to(DEVICE), offsets.to(DEVICE)))
    return batches


def many_tables() -> dict[str, tuple[Work, bool]]:
    """Return training steps of many tables.

    Their outputs go into `backward` one by one, which costs torch a microsecond each, or as one stacked tensor.
    """
    count, rows, bags = SIZES.tables, SIZES.table_rows, SIZES.examples
    batches = batches_of(count, rows, bags, 8, seed=1)
    begins = [0]
    for ids, _ in batches[:-1]:
        begins.append(begins[-1] + len(ids))
    vector = torch.cat([ids for ids, _ in batches])
    all_offsets = torch.cat(
        [o[:-1] + b for (_, o), b in zip(batches, begins, strict=True)]
        + [torch.tensor([len(vector)], device=DEVICE)]
    )  # fmt: skip
    y = torch.randn(bags, COLUMNS, device=DEVICE)

    tables = [rgt.nn.Table(f"t{i}", rows, COLUMNS, combiner="mean") for i in range(count)]
    ours = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True, device=DEVICE)
    optimizer = rgt.optim.SGD(ours.parameters(), lr=1e-3)

    def ours_step(ids: Any, offsets: Any = None, module: Any = ours, optimizer: Any = optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        outputs = list(module(ids, offsets).values())
        torch.autograd.backward(outputs, [y] * len(outputs))
        optimizer.step()

    def forward(module: Any, *inputs: Any) -> Any:
        with torch.no_grad():
            return module(*inputs)

    stacked = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True, output="stacked", device=DEVICE)
    stacked_optimizer = rgt.optim.SGD(stacked.parameters(), lr=1e-3)
    stacked_y = torch.randn(bags, count, COLUMNS, device=DEVICE)

    def stacked_step(*inputs: Any) -> None:
        stacked_optimizer.zero_grad(set_to_none=True)
        stacked(*inputs).backward(stacked_y)
        stacked_optimizer.step()

    by_rows = rgt.nn.Embeddings(tables, include_last_offset=True, device=DEVICE)
    rows_optimizer = rgt.optim.SGD(by_rows.parameters(), lr=1e-3)

    theirs = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(rows, COLUMNS, mode="mean", include_last_offset=True, sparse=True, device=DEVICE)
        for _ in range(count)
    )  # fmt: skip
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-3)

    def their_forward() -> Any:
        with torch.no_grad():
            return [m(ids, offsets) for m, (ids, offsets) in zip(theirs, batches, strict=True)]

    def their_step() -> None:
        their_optimizer.zero_grad(set_to_none=True)
        outputs = [m(ids, offsets) for m, (ids, offsets) in zip(theirs, batches, strict=True)]
        torch.autograd.backward(outputs, [y] * len(outputs))
        their_optimizer.step()

    def their_stacked_step() -> None:
        their_optimizer.zero_grad(set_to_none=True)
        outputs = [m(ids, offsets) for m, (ids, offsets) in zip(theirs, batches, strict=True)]
        torch.stack(outputs, 1).backward(stacked_y)
        their_optimizer.step()

    by_feature = {t.name: batch for t, batch in zip(tables, batches, strict=True)}
    return {
        f"{count} tables fused, by feature": (lambda: ours_step(by_feature), True),
        f"{count} tables fused, one vector": (lambda: ours_step(vector, all_offsets), True),
        f"{count} tables grad='rows', by feature": (lambda: ours_step(by_feature, None, by_rows, rows_optimizer), True),
        f"{count} tables forward, by feature": (lambda: forward(ours, by_feature), True),
        f"{count} tables forward, one vector": (lambda: forward(ours, vector, all_offsets), True),
        f"{count} tables fused, stacked, by feature": (lambda: stacked_step(by_feature), True),
        f"{count} tables fused, stacked, one vector": (lambda: stacked_step(vector, all_offsets), True),
        f"torch {count} tables stacked sparse SGD": (their_stacked_step, False),
        f"torch {count} tables forward": (their_forward, True),
        f"torch {count} tables sparse SGD": (their_step, False),
    }


class ClickModel(torch.nn.Module):
    """Dense features through layers, beside the bags of many tables, into layers with one output."""

    def __init__(self, bags: torch.nn.Module, count: int) -> None:
        super().__init__()
        self.bags = bags
        self.bottom = _layers(DENSE_FEATURES, 512, 256, COLUMNS)
        self.top = _layers(COLUMNS * (count + 1), 512, 256, 1)

    def forward(self, dense: torch.Tensor, features: Any, clicked: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        joined = torch.cat([self.bottom(dense), *self.bags(features)], 1)
        return torch.nn.functional.binary_cross_entropy_with_logits(self.top(joined).squeeze(1), clicked)


def _layers(*widths: int) -> torch.nn.Sequential:
    pairs = [(torch.nn.Linear(a, b), torch.nn.ReLU()) for a, b in itertools.pairwise(widths)]
    return torch.nn.Sequential(*[layer for pair in pairs for layer in pair][:-1])


class OurBags(torch.nn.Module):
    """All tables in one module of ours."""

    def __init__(self, count: int, rows: int, **options: Any) -> None:
        super().__init__()
        tables = [rgt.nn.Table(f"t{i}", rows, COLUMNS, combiner="mean") for i in range(count)]
        self.tables = rgt.nn.Embeddings(tables, include_last_offset=True, **options)

    def forward(self, features: Any) -> list[torch.Tensor]:
        """Return the bags of each table."""
        named = {f"t{i}": feature for i, feature in enumerate(features)}
        return list(self.tables(named).values())


class TheirBags(torch.nn.Module):
    """A torch.nn.EmbeddingBag for each table."""

    def __init__(self, count: int, rows: int) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(rows, COLUMNS, mode="mean", include_last_offset=True, sparse=True)
            for _ in range(count)
        )

    def forward(self, features: Any) -> list[torch.Tensor]:
        """Return the bags of each table."""
        return [table(*feature) for table, feature in zip(self.tables, features, strict=True)]


def click_model() -> dict[str, tuple[Work, bool]]:
    """Return training steps of a click model, eager and compiled."""
    count, rows, bags = SIZES.tables, SIZES.table_rows, SIZES.examples
    features = batches_of(count, rows, bags, 8, seed=2)
    draw = torch.Generator().manual_seed(3)
    dense = torch.randn(bags, DENSE_FEATURES, generator=draw).to(DEVICE)
    clicked = torch.randint(0, 2, (bags,), generator=draw).float().to(DEVICE)

    def step_of(tables: torch.nn.Module, optimizers: Any, mode: str | None) -> Work:
        torch.manual_seed(0)
        model = ClickModel(tables, count).to(DEVICE)
        run = model if mode is None else compiled(model, mode)
        layers = [*model.bottom.parameters(), *model.top.parameters()]
        used = [optimizers.SGD(tables.parameters(), lr=1e-3), torch.optim.SGD(layers, lr=1e-3)]

        def step() -> None:
            for optimizer in used:
                optimizer.zero_grad(set_to_none=True)
            run(dense, features, clicked).backward()
            for optimizer in used:
                optimizer.step()

        return step

    def fused() -> torch.nn.Module:
        return OurBags(count, rows, fused=True)

    def theirs() -> torch.nn.Module:
        return TheirBags(count, rows)

    found: dict[str, tuple[Work, bool]] = {"click model, eager": (step_of(fused(), rgt.optim, None), True)}
    found["click model, compiled"] = step_of(fused(), rgt.optim, "default"), False
    found["torch click model, eager"] = step_of(theirs(), torch.optim, None), False
    found["torch click model, compiled"] = step_of(theirs(), torch.optim, "default"), False
    return found


def measured(name: str, work: Work, captures: bool) -> dict[str, Any]:
    """Return the times of a call in microseconds."""
    found: dict[str, Any] = {"name": name}
    if DEVICE == "cpu":
        work()
        print(json.dumps(found), flush=True)
        return found
    try:
        found["eager"] = round(eager(work, 60).median * 1e3, 1)
        found["host"] = round(on_host(work), 1)
    except Exception as error:  # one failing row must not lose the others
        found["error"] = repr(error)[:200]
        return found
    if captures:
        try:
            found["graph"] = round(graph(work, 40).median * 1e3, 1)
        except Exception as error:
            found["graph_error"] = repr(error)[:160]
    try:
        found["kernels"], found["launches"] = (round(x, 1) for x in kernels_of(work))
    except Exception as error:  # a machine whose profiler may not read the device
        found["kernels_error"] = repr(error)[:160]
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Measure the parts, print each row, and write all to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", default="forwards,one_table,many_tables,compiled_table,click_model")
    parser.add_argument("--host", action="store_true", help="run every call once on the CPU, and measure nothing")
    args = parser.parse_args()
    if args.host:
        global DEVICE, SIZES
        DEVICE, SIZES = "cpu", SMALL
        for part in args.parts.split(","):
            for name, case in getattr(sys.modules[__name__], part)().items():
                measured(name, case[0] if isinstance(case, tuple) else case, False)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = []
        for part in args.parts.split(","):
            try:
                cases = getattr(sys.modules[__name__], part)()
            except Exception as error:
                rows.append({"name": part, "error": repr(error)[:300]})
                print(json.dumps(rows[-1]), flush=True)
                continue
            for name, case in cases.items():
                work, captures = case if isinstance(case, tuple) else (case, True)
                rows.append(measured(name, work, captures))
            torch.cuda.empty_cache()
    facts = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "rows": rows,
        "warnings": sorted({str(w.message)[:120] for w in caught}),
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts["warnings"]))


if __name__ == "__main__":
    main()
