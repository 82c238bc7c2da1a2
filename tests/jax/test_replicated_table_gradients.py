"""Row gradients of a replicated table inside shard_map: correct if JAX tracks varying axes, otherwise rejected."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import rowgrad.jax as rgj
from rowgrad.errors import UnimplementedError
from rowgrad.jax import Table, optim, sharded

MESH = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)
IDS = np.array([[1, 2], [3, 3]])
P = PartitionSpec


def mapped(f: Any, in_specs: Any, out_specs: Any, check: bool) -> Any:
    if hasattr(jax, "shard_map"):
        return jax.jit(jax.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=check))
    from jax.experimental.shard_map import shard_map

    return jax.jit(shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_rep=check))


def step(table: Any, ids: Any, look_up: Any = rgj.embedding_bag) -> Any:
    _, grads = rgj.value_and_rows(lambda t: look_up(t, ids).sum())(table)
    optimizer = optim.sgd(lr=0.5)
    updates, _ = optimizer.update(grads, optimizer.init(table), table)
    return optim.apply_updates(table, updates)


def test_unchecked_shard_map_is_rejected() -> None:
    with pytest.raises(UnimplementedError, match="does not track which arrays differ over x, y, so every device"):
        mapped(step, (P(), P("x")), P(), check=False)(Table(TABLE), IDS)
    with pytest.raises(UnimplementedError, match="does not track which arrays differ over y"):
        jax.pmap(step, axis_name="y", in_axes=(None, 0))(Table(TABLE), IDS[None])


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this version of JAX does not track axes")
def test_checked_shard_map_distinguishes_replicated_tables() -> None:
    with pytest.raises(ValueError, match="out_specs"):  # raised by JAX: the table varies after the step
        mapped(step, (P(), P("x")), P(), check=True)(Table(TABLE), IDS)
    own = mapped(step, (P("x"), P("x")), P("x"), check=True)(Table(TABLE), IDS)
    assert np.asarray(own.array).tobytes() == np.asarray(step(Table(TABLE), IDS).array).tobytes()


def test_unchecked_shard_map_over_the_axes_of_a_sharded_table() -> None:
    def look_up(part: Any, ids: Any) -> Any:
        return step(part, ids, sharded.embedding_bag)

    table = sharded.shard_table(TABLE, MESH, ("x", "y"))
    found = mapped(look_up, (table.spec, P(("x", "y"))), table.spec, check=False)(table, IDS)
    assert sharded.gather_table(found).tobytes() == np.asarray(step(Table(TABLE), IDS).array).tobytes()
    parts = sharded.shard_table(TABLE, MESH, "x")
    with pytest.raises(UnimplementedError, match="part must be varying over y as well"):
        mapped(look_up, (parts.spec, P(("x", "y"))), parts.spec, check=False)(parts, IDS)
