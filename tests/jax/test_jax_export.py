"""Programs that take and return rowgrad's pytrees are exported, serialized and run in another process, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
from rowgrad.jax import Table, embedding_bag, optim, sharded, value_and_rows

pytest.importorskip("flatbuffers")
from jax import export

KERNELS = [export.DisabledSafetyCheck.custom_call("rowgrad_kernel")]
IDS, BAGS = jnp.asarray([7, 2, 7]), jnp.asarray([0, 0, 1])
START = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)


def exported(f: Any, *args: Any) -> bytes:
    return bytes(export.export(jax.jit(f), disabled_checks=KERNELS)(*args).serialize())


def same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def round_trip(f: Any, *args: Any) -> Any:
    """Check that a deserialized program returns what the function returns, and return it."""
    found = export.deserialize(bytearray(exported(f, *args))).call(*args)
    same(found, jax.jit(f)(*args))
    return found


def step(params: Any, ids: Any) -> Any:
    def loss(params: Any) -> Any:
        return ((params["table"].bags(ids, BAGS, 2) @ params["kernel"] - 1) ** 2).mean()

    value, grads = value_and_rows(loss)(params)
    optimizer = optim.sgd(0.1)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return value, optim.apply_updates(params, updates)


def params_of() -> Any:
    return {"table": Table(START), "kernel": jnp.ones((4, 1))}


def test_export_of_a_step_with_tables() -> None:
    _, params = round_trip(step, params_of(), IDS)
    assert isinstance(params["table"], Table)
    assert params["table"].shape == START.shape


def test_export_of_a_plan() -> None:
    plan = rg.Plan(IDS, BAGS, num_rows=9, num_segments=2)

    def gradient(table: Any, plan: Any) -> Any:
        bags = jax.grad(lambda t: (embedding_bag(t, IDS, segment_ids=BAGS, num_bags=2, plan=plan) ** 2).sum())
        return bags(table), plan

    _, same_plan = round_trip(gradient, START, plan)
    assert isinstance(same_plan, rg.Plan)
    assert same_plan == plan


def test_export_of_a_sparse_tensor() -> None:
    ids = rg.SparseTensor([[0, 0], [0, 1], [2, 0]], np.asarray([7, -1, 2]), [3, 2])
    _, found = round_trip(lambda t, ids: (rg.safe_embedding_lookup_sparse(t, ids), ids), START, ids)
    assert found.shape == (3, 2)


@pytest.mark.parametrize("axes", ["x", ("x", "y")])
def test_a_sharded_table_keeps_its_layout(axes: Any) -> None:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
    table = sharded.ShardedTable(jnp.asarray(START), sharded.shard_table(START, mesh, axes, "mod").layout)
    found = round_trip(lambda t: jax.tree.map(lambda x: 2 * x, t), table)
    assert found.layout == table.layout


def test_export_of_row_gradients_raises() -> None:
    rows = rg.IndexedRows(jnp.ones((2, 4)), jnp.asarray([1, 4]), num_rows=9, is_unique=True)
    for tree in (rows, Table.holding(rows)):
        with pytest.raises(rg.errors.UnimplementedError, match="Take and return their values and indices"):
            exported(lambda x: x, tree)


def test_another_process_runs_the_program(tmp_path: Path) -> None:
    (tmp_path / "step").write_bytes(exported(step, params_of(), IDS))
    np.savez(tmp_path / "params.npz", table=START, kernel=np.ones((4, 1), np.float32))
    code = """if True:
        import sys, numpy as np, jax, jax.export
        from pathlib import Path
        from rowgrad.jax import Table
        folder = Path(sys.argv[1])
        saved = np.load(folder / "params.npz")
        program = jax.export.deserialize(bytearray((folder / "step").read_bytes()))
        params = {"table": Table(saved["table"]), "kernel": saved["kernel"]}
        _, params = program.call(params, np.asarray([7, 2, 7], "int32"))
        np.savez(folder / "after.npz", table=params["table"].array, kernel=params["kernel"])
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    after, (_, expected) = np.load(tmp_path / "after.npz"), jax.jit(step)(params_of(), IDS)
    assert after["table"].tobytes() == np.asarray(expected["table"].array).tobytes()
    assert after["kernel"].tobytes() == np.asarray(expected["kernel"]).tobytes()
