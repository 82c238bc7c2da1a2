"""Check on four devices: lookups in arrays sharded over all of them. The last line printed is "done"."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rowgrad as rg
import rowgrad.jax as rgj

assert len(jax.devices()) == 4
MESH = Mesh(np.array(jax.devices()), ("x",))
BAGS = 8
rng = np.random.default_rng(0)
TABLE = rng.normal(size=(40, 8)).astype(np.float32)
IDS = rng.integers(0, 40, 64).astype(np.int32)
SEGMENTS = np.sort(rng.integers(0, BAGS, 64)).astype(np.int32)
BY_IDS = (P(), P("x"), P("x"))  # every device has its own ids and the whole table


def mean(table: Any, ids: Any, segments: Any) -> Any:
    return rg.raw_ops.SparseSegmentMeanWithNumSegments(table, ids, segments, BAGS)


def mean_by_jnp(table: Any, ids: Any, segments: Any) -> Any:
    counts = jax.ops.segment_sum(jnp.ones_like(ids, jnp.float32), segments, BAGS)
    return jax.ops.segment_sum(table[ids], segments, BAGS) / jnp.maximum(counts, 1)[:, None]


def test_lookups_in_sharded_arrays() -> None:
    expected = mean(TABLE, IDS, SEGMENTS)
    for spec in (P("x"), P(None, "x"), P()):
        placed = jax.device_put(TABLE, NamedSharding(MESH, spec))
        assert (np.asarray(mean(placed, IDS, SEGMENTS)) == expected).all(), spec
        if spec != P("x"):  # jit rejects sharded rows: see tests/jax/mesh_jit_program.py
            assert (np.asarray(jax.jit(mean)(placed, IDS, SEGMENTS)) == expected).all(), spec
    # Columns are independent, so every device can hold its own.
    specs = {"in_specs": (P(None, "x"), P(), P()), "out_specs": P(None, "x")}
    by_columns = shard_map(mean, mesh=MESH, **specs, check_rep=False)
    assert (np.asarray(jax.jit(by_columns)(TABLE, IDS, SEGMENTS)) == expected).all()


def on_the_mesh(function: Any) -> list[Any]:
    """Return the results of newer JAX versions, which track the mesh axes over which arrays vary."""

    def mapped(f: Any, out: Any) -> Any:
        return jax.shard_map(f, mesh=MESH, in_specs=BY_IDS, out_specs=out)

    def loss(table: Any) -> Any:
        return (mapped(function, P("x"))(table, IDS, SEGMENTS) ** 2).sum()

    def gradient(table: Any, ids: Any, segments: Any) -> Any:
        return jax.grad(lambda t: (function(t, ids, segments) ** 2).sum())(table)

    try:
        mapped(function, P())(TABLE, IDS, SEGMENTS)
    except ValueError:
        pass
    else:
        raise AssertionError("a value that differs between devices passed as replicated")
    args = (TABLE, IDS, SEGMENTS)
    summed = mapped(lambda *x: jax.lax.psum(function(*x), "x"), P())(*args)
    return [summed, jax.jit(mapped(gradient, P()))(*args), jax.grad(loss)(TABLE), jax.jvp(loss, (TABLE,), (TABLE,))[1]]


def rows_of_each(table: Any, ids: Any, segments: Any) -> Any:
    _, grads = rgj.value_and_rows(lambda t: (t.bags(ids, segments, BAGS) ** 2).sum())(rgj.Table(table))
    return jnp.zeros_like(table).at[grads.rows.indices].add(grads.rows.values, mode="drop")[None]


def test_arrays_that_vary_between_devices() -> None:
    ours, theirs = on_the_mesh(mean), on_the_mesh(mean_by_jnp)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    each = jax.shard_map(rows_of_each, mesh=MESH, in_specs=BY_IDS, out_specs=P("x"))(TABLE, IDS, SEGMENTS)
    np.testing.assert_allclose(each.sum(0), theirs[1], rtol=1e-5, atol=1e-6)


test_lookups_in_sharded_arrays()
if hasattr(jax, "shard_map"):
    test_arrays_that_vary_between_devices()
print("done")
