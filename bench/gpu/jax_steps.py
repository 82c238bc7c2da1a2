"""JAX on a CUDA device: rowgrad's ops and training steps beside plain jnp, device time and the host's cost per call.

    PYTHONPATH=src python3 bench/gpu/jax_steps.py --out bench/results/h200-jax.json

`device` runs a call 100 times inside one compiled program and divides. Ids, segments and weights of a turn depend on
the result of the turn before by a barrier: XLA can neither merge nor reorder turns, nor move work out of the loop.
`loop` is the same program without the call, which is subtracted. `call` is a compiled call alone, waited for; `host` is
the time until it returns, not waited for. Medians, in microseconds. The batch is that of bench/gpu/steps.py.

A training step looks up the bags of each table, takes the gradient of Σ y·bags, and updates the tables, which are
donated with their state. `rowgrad` is `value_and_rows` with `optimizer.step`; `jnp dense` has a dense gradient and
updates all rows; `jnp rows` scatters the gradients of looked-up rows (SGD), or of distinct rows (row-wise Adagrad).

`--small` runs everything at sizes at which the times mean nothing, on any platform.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rowgrad as rg
import rowgrad.jax as rgj
from rowgrad.jax import Table, optim, value_and_rows

Work = Callable[..., Any]
LR, EPS = 0.01, 1e-10


class Sizes(NamedTuple):
    """The tables and batches, and how often a call is repeated."""

    rows: int = 1_000_000
    columns: int = 64
    bags: tuple[int, ...] = (16_384, 512)
    mean: int = 20  # ids per bag
    many: int = 26  # tables
    many_rows: int = 200_000
    many_bags: int = 4_096
    many_mean: int = 8
    turns: int = 100
    runs: int = 20


SMALL = Sizes(200, 4, (6,), 3, 3, 50, 4, 2, 2, 1)


def bags_of(rows: int, bags: int, mean: int, seed: int = 0) -> tuple[Any, Any]:
    """Return ids and the ascending bag of each."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(max(mean // 2, 1), mean + mean // 2 + 1, bags)
    ids = draw.integers(0, rows, int(lengths.sum()))
    return jnp.asarray(ids.astype(np.int32)), jnp.asarray(np.repeat(np.arange(bags), lengths).astype(np.int32))


def median_of(work: Work, arguments: Any, runs: int, wait: bool = True) -> float:
    """Return the median time of a call in microseconds."""
    for _ in range(3):
        jax.block_until_ready(work(*arguments))
    times = []
    for i in range(runs):
        if not wait and i % 20 == 0:
            jax.block_until_ready(work(*arguments))
        begun = time.perf_counter()
        result = work(*arguments)
        if wait:
            jax.block_until_ready(result)
        times.append(time.perf_counter() - begun)
    jax.block_until_ready(result)
    return statistics.median(times) * 1e6


def in_a_loop(work: Work | None, turns: int) -> Work:
    """Return a program of many turns: (float arrays, ids, segments) -> a number. Without work: the loop alone."""

    @jax.jit
    def program(floats: Any, ids: Any, segments: Any) -> Any:
        def turn(_: Any, before: Any) -> Any:
            (*weights, own_ids, own_segments), _ = jax.lax.optimization_barrier(((*floats[1:], ids, segments), before))
            found = (floats[0], own_ids) if work is None else work(floats[0], *weights, own_ids, own_segments)
            parts = jax.tree_util.tree_leaves(found)
            return before + sum(jnp.where(x.ravel()[0] == 12345, 1, 0) for x in parts)

        return jax.lax.fori_loop(0, turns, turn, jnp.array(0))

    return program


def bag_means(table: Any, ids: Any, segments: Any, bags: int) -> Any:
    """Return the mean of each bag, in jnp."""
    sums = jax.ops.segment_sum(table[ids], segments, bags, indices_are_sorted=True)
    return sums / bag_sizes(segments, bags)


def bag_sizes(segments: Any, bags: int) -> Any:
    """Return the number of ids of each bag, at least 1, as a column."""
    ones = jnp.ones(segments.shape[0], jnp.float32)
    return jnp.maximum(jax.ops.segment_sum(ones, segments, bags), 1)[:, None]


def cases(sizes: Sizes, bags: int) -> dict[str, tuple[Work, tuple[Any, ...], Any, Any]]:
    """Return functions by name, each with its float arrays, ids and segments."""
    rows, columns = sizes.rows, sizes.columns
    ids, segments = bags_of(rows, bags, sizes.mean)
    table = jax.random.normal(jax.random.key(0), (rows, columns), jnp.float32)
    y = jax.random.normal(jax.random.key(1), (bags, columns), jnp.float32)
    weights = jax.random.uniform(jax.random.key(2), ids.shape, jnp.float32)
    count, ops = ids.shape[0], rg.raw_ops

    def counts(segments: Any) -> Any:
        return bag_sizes(segments, bags)

    def plain_forward(table: Any, ids: Any, segments: Any) -> Any:
        return bag_means(table, ids, segments, bags)

    def plain_dense(y: Any, ids: Any, segments: Any) -> Any:
        return jnp.zeros((rows, columns), y.dtype).at[ids].add((y / counts(segments))[segments])

    def plain_rows(y: Any, ids: Any, segments: Any) -> Any:
        unique, place = jnp.unique(ids, return_inverse=True, size=count, fill_value=rows)
        return jax.ops.segment_sum((y / counts(segments))[segments], place, count), unique

    def plain_weighted(table: Any, weights: Any, ids: Any, segments: Any) -> Any:
        total = jax.ops.segment_sum(weights, segments, bags)[:, None]
        return jax.ops.segment_sum(table[ids] * weights[:, None], segments, bags) / total

    sets: dict[str, tuple[Work, tuple[Any, ...]]] = {
        "gather": (lambda t, i, s: Table(t)[i], (table,)),
        "jnp gather": (lambda t, i, s: t[i], (table,)),
        "forward": (lambda t, i, s: ops.SparseSegmentMeanWithNumSegments(t, i, s, bags), (table,)),
        "jnp forward": (plain_forward, (table,)),
        "dense": (lambda y, i, s: ops.SparseSegmentMeanGrad(y, i, s, rows), (y,)),
        "jnp dense": (plain_dense, (y,)),
        "rows": (lambda y, i, s: tuple(ops.SparseSegmentMeanGradV2(y, i, s, rows, size=count)), (y,)),
        "jnp rows": (plain_rows, (y,)),
        "weighted": (
            lambda t, w, i, s: ops.WeightedSparseSegmentMeanWithNumSegments(t, i, s, w, bags),
            (table, weights),
        ),
        "jnp weighted": (plain_weighted, (table, weights)),
        "weighted dense": (lambda y, w, i, s: ops.WeightedSparseSegmentMeanGrad(y, i, s, w, rows), (y, weights)),
    }
    return {name: (work, floats, ids, segments) for name, (work, floats) in sets.items()}


# -- Training steps ---------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """What a step reads besides parameters and state: of each table, ids, segments, and the gradient of its bags."""

    ids: list[Any]
    segments: list[Any]
    y: list[Any]


class Training(NamedTuple):
    """A training step: `state = init()`, then `state, loss = step(state, batch)`; `state[0]` is the tables."""

    init: Callable[[], Any]
    step: Callable[[Any, Batch], tuple[Any, Any]]


def batch_of(tables: int, rows: int, columns: int, bags: int, mean: int) -> Batch:
    """Return a batch for each table."""
    lists = [bags_of(rows, bags, mean, seed) for seed in range(tables)]
    y = [jax.random.normal(jax.random.key(k), (bags, columns), jnp.float32) for k in range(tables)]
    return Batch([i for i, _ in lists], [s for _, s in lists], y)


def trainings(rule: str, tables: int, rows: int, columns: int) -> dict[str, Training]:
    """Return the ways to take a step of a rule, "sgd" or "row_wise_adagrad", by name."""
    optimizer = optim.sgd(lr=LR) if rule == "sgd" else optim.row_wise_adagrad(lr=LR, eps=EPS)

    def new_tables() -> list[Any]:
        return [jax.random.normal(jax.random.key(k), (rows, columns), jnp.float32) for k in range(tables)]

    def init() -> Any:
        params = [Table(t) for t in new_tables()]
        return params, optimizer.init(params)

    def step(state: Any, batch: Batch) -> Any:
        def loss(params: list[Table]) -> Any:
            found = (
                (t.bags(i, s, y.shape[0], combiner="mean") * y).sum() for t, i, s, y in zip(params, *batch, strict=True)
            )
            return sum(found, jnp.float32(0))

        value, grads = value_and_rows(loss)(state[0])
        return optimizer.step(*state, grads), value

    def plain_init() -> Any:
        return new_tables(), [jnp.zeros(rows, jnp.float32) for _ in range(tables)]

    def plain_loss(table: Any, ids: Any, segments: Any, y: Any) -> Any:
        return (bag_means(table, ids, segments, y.shape[0]) * y).sum()

    def dense(table: Any, total: Any, ids: Any, segments: Any, y: Any) -> Any:
        value, grad = jax.value_and_grad(plain_loss)(table, ids, segments, y)
        if rule == "sgd":
            return table - LR * grad, total, value
        total = total + (grad * grad).mean(1)
        return table - LR * grad / (jnp.sqrt(total) + EPS)[:, None], total, value

    def by_rows(table: Any, total: Any, ids: Any, segments: Any, y: Any) -> Any:
        value = plain_loss(table, ids, segments, y)
        each = (y / bag_sizes(segments, y.shape[0]))[segments]
        if rule == "sgd":
            return table.at[ids].add(-LR * each), total, value
        unique, place = jnp.unique(ids, return_inverse=True, size=ids.shape[0], fill_value=table.shape[0])
        grad = jax.ops.segment_sum(each, place, ids.shape[0])
        after = total.at[unique].get(mode="fill", fill_value=0) + (grad * grad).mean(1)
        table = table.at[unique].add(-LR * grad / (jnp.sqrt(after) + EPS)[:, None], mode="drop")
        return table, total.at[unique].set(after, mode="drop"), value

    def of_each(one: Work) -> Callable[[Any, Batch], tuple[Any, Any]]:
        def plain_step(state: Any, batch: Batch) -> Any:
            found = [one(*own) for own in zip(*state, *batch, strict=True)]
            return ([f[0] for f in found], [f[1] for f in found]), sum((f[2] for f in found), jnp.float32(0))

        return plain_step

    return {
        "rowgrad": Training(init, step),
        "jnp dense": Training(plain_init, of_each(dense)),
        "jnp rows": Training(plain_init, of_each(by_rows)),
    }


def time_of_training(training: Training, batch: Batch, sizes: Sizes) -> dict[str, float]:
    """Return the device's time of a step in a program of many, and the times of a compiled step alone."""

    def many(state: Any, batch: Batch) -> Any:
        def turn(_: Any, carry: Any) -> Any:
            state, loss = carry
            own, _ = jax.lax.optimization_barrier((batch, loss))
            return training.step(state, own)

        return jax.lax.fori_loop(0, sizes.turns, turn, (state, jnp.float32(0)))

    def seconds_of(program: Any, runs: int, wait: bool) -> float:
        """Return the median time of a call on donated state."""
        state, times = jax.block_until_ready(training.init()), []
        for i in range(runs + 3):
            begun = time.perf_counter()
            state, loss = program(state, batch)
            if wait:
                jax.block_until_ready((state, loss))
            times.append(time.perf_counter() - begun)
            if not wait and i % 20 == 0:
                jax.block_until_ready(state)
        jax.block_until_ready(state)
        return statistics.median(times[3:]) * 1e6

    step = jax.jit(training.step, donate_argnums=0)
    return {
        "device": round(seconds_of(jax.jit(many, donate_argnums=0), sizes.runs, True) / sizes.turns, 1),
        "call": round(seconds_of(step, 5 * sizes.runs, True), 1),
        "host": round(seconds_of(step, 5 * sizes.runs, False), 1),
    }


def measure(facts: dict[str, Any], times: Callable[[], dict[str, float]], rows: list[dict[str, Any]]) -> None:
    """Add a row of results, and print it. One failing row must not lose the others."""
    try:
        facts |= times()
    except Exception as error:
        facts["error"] = repr(error)[:300]
    rows.append(facts)
    print(json.dumps(facts), flush=True)


def time_of_call(
    name: str, work: Work, floats: tuple[Any, ...], ids: Any, segments: Any, sizes: Sizes
) -> dict[str, float]:  # fmt: skip
    """Return the times of a call."""
    empty = median_of(in_a_loop(None, sizes.turns), (floats, ids, segments), sizes.runs)
    looped = median_of(in_a_loop(work, sizes.turns), (floats, ids, segments), sizes.runs)
    single, arguments, often = jax.jit(work), (*floats, ids, segments), 5 * sizes.runs
    found = {
        "device": round((looped - empty) / sizes.turns, 1),
        "loop": round(empty / sizes.turns, 1),
        "call": round(median_of(single, arguments, often), 1),
        "host": round(median_of(single, arguments, often, wait=False), 1),
    }
    if not name.startswith("jnp"):
        found["outside of jit"] = round(median_of(work, arguments, often), 1)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each function and step, print a line of JSON for each, and write all to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bags", type=int, nargs="*", help="the numbers of bags of one table")
    parser.add_argument("--small", action="store_true", help="tiny sizes, whose times mean nothing")
    args = parser.parse_args(arguments)
    sizes = SMALL if args.small else Sizes()
    if args.bags is not None:
        sizes = sizes._replace(bags=tuple(args.bags))
    rows: list[dict[str, Any]] = []
    for bags in sizes.bags:
        for name, call in cases(sizes, bags).items():
            measure({"name": name, "bags": bags}, lambda n=name, c=call: time_of_call(n, *c, sizes), rows)
    batches = [(1, sizes.rows, bags, sizes.mean) for bags in sizes.bags]
    batches += [(sizes.many, sizes.many_rows, sizes.many_bags, sizes.many_mean)]
    for tables, table_rows, bags, mean in batches:
        batch = batch_of(tables, table_rows, sizes.columns, bags, mean)
        for rule in ("sgd", "row_wise_adagrad"):
            for way, training in trainings(rule, tables, table_rows, sizes.columns).items():
                facts = {"name": f"step {rule}", "way": way, "tables": tables, "rows": table_rows, "bags": bags}
                measure(facts, lambda t=training, b=batch: time_of_training(t, b, sizes), rows)
    rgj.synchronize()
    facts = {
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "date": time.strftime("%Y-%m-%d"), "rows": rows
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
