"""Ids out of range: which of them pad bags, which exceed JAX's integers, with the same rules in every runner."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import rowgrad.jax as rgj
from rowgrad.errors import InvalidArgumentError
from rowgrad.jax import Table, sharded

TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)
MESH = Mesh(np.array(jax.devices()[:1]), ("x",))
IDS = np.array([[3, 1, -1], [-1, -1, -1], [2, -1, 2]], np.int32)


def split_lookup(table: Any, ids: Any, **options: Any) -> Any:
    """Call `sharded.embedding_bag` on one device."""
    parts, split = sharded.shard_table(table, MESH, "x"), PartitionSpec("x")
    look_up = partial(sharded.embedding_bag, **options)
    if not hasattr(jax, "shard_map"):
        from jax.experimental.shard_map import shard_map

        return jax.jit(shard_map(look_up, mesh=MESH, in_specs=split, out_specs=split, check_rep=False))(parts, ids)
    return jax.jit(jax.shard_map(look_up, mesh=MESH, in_specs=split, out_specs=split))(parts, ids)


def compiled(table: Any, ids: Any, **options: Any) -> Any:
    return jax.jit(partial(rgj.embedding_bag, **options))(table, ids)


LOOKUPS = [pytest.param(f, id=name) for name, f in
           (("eager", rgj.embedding_bag), ("jit", compiled), ("sharded", split_lookup))]  # fmt: skip


@pytest.mark.parametrize("look_up", LOOKUPS)
def test_ids_below_zero_pad_only_if_requested(look_up: Any) -> None:
    with pytest.raises((InvalidArgumentError, jax.errors.JaxRuntimeError, ValueError), match="-1"):
        jax.block_until_ready(look_up(TABLE, IDS))
    expected = np.array([[4.0, 5.0], [0.0, 0.0], [4.0, 5.0]], np.float32)
    assert np.asarray(look_up(TABLE, IDS, ignore_id=-1)).tobytes() == expected.tobytes()
    moved = np.where(IDS == -1, 7, IDS)  # any number that is not a row
    assert np.asarray(look_up(TABLE, moved, ignore_id=7)).tobytes() == expected.tobytes()
    padded_and_filled = np.asarray(look_up(TABLE, IDS, ignore_id=-1, padding_idx=3, default_id=6))
    assert padded_and_filled.tolist() == [[2.0, 3.0], [12.0, 13.0], [4.0, 5.0]]
    with pytest.raises((InvalidArgumentError, jax.errors.JaxRuntimeError, ValueError), match="-2"):
        jax.block_until_ready(look_up(TABLE, np.where(IDS == -1, -2, IDS), ignore_id=-1))


@pytest.mark.parametrize("look_up", LOOKUPS)
def test_ignore_id_must_not_be_a_row(look_up: Any) -> None:
    for ignore_id, message in (
        (0, "ignore_id must be not a row of a table of 7 rows; use padding_idx to ignore a row; got 0"),
        (6, "ignore_id must be not a row of a table of 7 rows"),
        (2**40, f"ignore_id must contain values of int32; got {2**40}"),
        (True, "ignore_id must be None or an int; got True"),
        (-1.0, "ignore_id must be None or an int; got -1.0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            look_up(TABLE, IDS, ignore_id=ignore_id)


def test_ignored_ids_have_no_gradient_and_no_plan() -> None:
    weights = np.array([[1.0, 2.0, np.nan], [np.nan] * 3, [3.0, np.nan, 4.0]], np.float32)

    def loss(table: Any, ids: Any) -> Any:
        options: Any = {"combiner": "sum", "per_sample_weights": weights, "ignore_id": -1}
        return rgj.embedding_bag(table, ids, **options).sum()

    dense = [f(jnp.asarray(TABLE), IDS) for f in (jax.grad(loss), jax.jit(jax.grad(loss)))]
    _, rows = rgj.value_and_rows(loss)(Table(TABLE), IDS)
    dense.append(jnp.zeros((8, 2)).at[rows.rows.indices].add(rows.rows.values)[:7])
    for gradient in dense:
        assert np.asarray(gradient)[:, 0].tolist() == [0.0, 2.0, 7.0, 1.0, 0.0, 0.0, 0.0]
    import rowgrad as rg

    plan = rg.Plan(np.array([1]), np.array([0]), num_rows=7, num_segments=1)
    with pytest.raises(InvalidArgumentError, match="cannot be combined with ignore_id"):
        rgj.embedding_bag(TABLE, [[1]], ignore_id=-1, plan=plan)


def test_concrete_ids_beyond_32_bits_raise_under_jit() -> None:
    """2**32 + 1 truncated to 32 bits would be 1, which is a row."""
    large = np.int64(2**32 + 1)
    for look_up in (
        lambda table, one: rgj.embedding_bag(table, np.array([[1, large]])),
        lambda table, one: rgj.embedding_bag(table, [[one, large]]),
        lambda table, one: rgj.embedding_bag(table, [[one, int(large)]]),
        lambda table, one: rgj.embedding_bag(table, [jnp.stack([one, one]), np.array([1, large])]),
        lambda table, one: Table(table).bags(np.array([1, large]), [0, 0], 1),
    ):
        with pytest.raises(InvalidArgumentError, match=f"must contain values of int32; got {large}"):
            jax.jit(look_up)(TABLE, 1)
