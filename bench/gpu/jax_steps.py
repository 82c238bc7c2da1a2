"""JAX on a CUDA device: rowgrad's ops beside plain jnp, device time and the host's cost per call.

    PYTHONPATH=src python3 bench/gpu/jax_steps.py --out bench/results/h200-jax.json

`device` runs a call 100 times inside one compiled program and divides: each turn's ids depend on the result of the
turn before, so that XLA can neither merge nor reorder turns. `loop` is the same program without the call, which is
subtracted. `call` is a compiled call alone, waited for; `host` is the time until it returns, not waited for. Medians,
in microseconds. The batch is that of bench/gpu/steps.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rowgrad as rg
import rowgrad.jax as rgj

ROWS, COLUMNS, BAGS, MEAN, TURNS = 1_000_000, 64, 16_384, 20, 100
Work = Callable[..., Any]


def bags_of(bags: int, mean: int, seed: int = 0) -> tuple[Any, Any]:
    """Return ids and the ascending bag of each."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(max(mean // 2, 1), mean + mean // 2 + 1, bags)
    ids = draw.integers(0, ROWS, int(lengths.sum()))
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


def in_a_loop(work: Work | None) -> Work:
    """Return a program of many turns: (float arrays, ids, segments) -> ids. Without work: the loop alone."""

    @jax.jit
    def program(floats: Any, ids: Any, segments: Any) -> Any:
        def turn(_: Any, ids: Any) -> Any:
            if work is None:
                return ids + jnp.where(floats[0].ravel()[0] == 12345.0, 1, 0)
            parts = jax.tree_util.tree_leaves(work(*floats, ids, segments))
            found = sum(jnp.where(x.ravel()[0] == 12345, 1, 0) for x in parts)  # 0, but no compiler knows
            return ids + found.astype(ids.dtype)

        return jax.lax.fori_loop(0, TURNS, turn, ids)

    return program


def cases(bags: int, mean: int) -> dict[str, tuple[Work, tuple[Any, ...], Any, Any]]:
    """Return functions by name, each with its float arrays, ids and segments."""
    ids, segments = bags_of(bags, mean)
    table = jax.random.normal(jax.random.key(0), (ROWS, COLUMNS), jnp.float32)
    y = jax.random.normal(jax.random.key(1), (bags, COLUMNS), jnp.float32)
    weights = jax.random.uniform(jax.random.key(2), ids.shape, jnp.float32)
    count, ops = ids.shape[0], rg.raw_ops

    def counts(segments: Any) -> Any:
        return jnp.maximum(jax.ops.segment_sum(jnp.ones(count, jnp.float32), segments, bags), 1)[:, None]

    def plain_forward(table: Any, ids: Any, segments: Any) -> Any:
        return jax.ops.segment_sum(table[ids], segments, bags, indices_are_sorted=True) / counts(segments)

    def plain_dense(y: Any, ids: Any, segments: Any) -> Any:
        return jnp.zeros((ROWS, COLUMNS), y.dtype).at[ids].add((y / counts(segments))[segments])

    def plain_rows(y: Any, ids: Any, segments: Any) -> Any:
        unique, place = jnp.unique(ids, return_inverse=True, size=count, fill_value=ROWS)
        return jax.ops.segment_sum((y / counts(segments))[segments], place, count), unique

    def plain_weighted(table: Any, weights: Any, ids: Any, segments: Any) -> Any:
        total = jax.ops.segment_sum(weights, segments, bags)[:, None]
        return jax.ops.segment_sum(table[ids] * weights[:, None], segments, bags) / total

    sets: dict[str, tuple[Work, tuple[Any, ...]]] = {
        "forward": (lambda t, i, s: ops.SparseSegmentMeanWithNumSegments(t, i, s, bags), (table,)),
        "jnp forward": (plain_forward, (table,)),
        "dense": (lambda y, i, s: ops.SparseSegmentMeanGrad(y, i, s, ROWS), (y,)),
        "jnp dense": (plain_dense, (y,)),
        "rows": (lambda y, i, s: tuple(ops.SparseSegmentMeanGradV2(y, i, s, ROWS, size=count)), (y,)),
        "jnp rows": (plain_rows, (y,)),
        "weighted": (
            lambda t, w, i, s: ops.WeightedSparseSegmentMeanWithNumSegments(t, i, s, w, bags),
            (table, weights),
        ),
        "jnp weighted": (plain_weighted, (table, weights)),
        "weighted dense": (lambda y, w, i, s: ops.WeightedSparseSegmentMeanGrad(y, i, s, w, ROWS), (y, weights)),
    }
    return {name: (work, floats, ids, segments) for name, (work, floats) in sets.items()}


def main() -> None:
    """Measure each function, print a line of JSON for each, and write all to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bags", type=int, nargs="*", default=[BAGS, 512])
    args = parser.parse_args()
    rows = []
    for bags in args.bags:
        for name, (work, floats, ids, segments) in cases(bags, MEAN).items():
            found: dict[str, Any] = {"name": name, "bags": bags}
            try:
                empty = median_of(in_a_loop(None), (floats, ids, segments), 20)
                looped = median_of(in_a_loop(work), (floats, ids, segments), 20)
                single = jax.jit(work)
                found["device"] = round((looped - empty) / TURNS, 1)
                found["loop"] = round(empty / TURNS, 1)
                found["call"] = round(median_of(single, (*floats, ids, segments), 100), 1)
                found["host"] = round(median_of(single, (*floats, ids, segments), 100, wait=False), 1)
                if not name.startswith("jnp"):
                    found["outside of jit"] = round(median_of(work, (*floats, ids, segments), 100), 1)
            except Exception as error:  # one failing row must not lose the others
                found["error"] = repr(error)[:300]
            rows.append(found)
            print(json.dumps(found), flush=True)
    rgj.synchronize()
    facts = {
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "date": time.strftime("%Y-%m-%d"), "rows": rows
    }  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
