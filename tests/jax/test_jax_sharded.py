"""Tables sharded over the devices of a mesh: checks on four devices in a separate process, and tests on one device."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import rowgrad.jax as rgj
from jax_arrays import x64
from rowgrad._catalog.rows import IndexedRows
from rowgrad._catalog.rules import RULES
from rowgrad.errors import InvalidArgumentError, UnimplementedError
from rowgrad.jax import Table, optim, sharded
from rowgrad.jax.sharded.table import locate, places_of
from rowgrad.sharding.div_mod import locate as rule

MESH = Mesh(np.array(jax.devices()[:1]), ("x",))
SPLIT = PartitionSpec("x")
PAD: Any = {"ignore_id": -1}
TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)


def test_four_devices_return_the_bits_of_one() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(Path(__file__).parent / "mesh_sharded_program.py")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr[-4000:]
    assert found.stdout.splitlines() == [
        "forward and gradients: every combiner, weighted and not, empty bags, an empty device, 16 bits",
        "two rows on four devices, ids left out and put in",
        "fifty steps of row-wise Adagrad",
        "a table split over two axes",
        "errors on all devices, and calls after them",
        "done",
    ]


def on_one(f: Any, *arrays: Any) -> Any:
    if not hasattr(jax, "shard_map"):
        from jax.experimental.shard_map import shard_map

        return jax.jit(shard_map(f, mesh=MESH, in_specs=SPLIT, out_specs=SPLIT, check_rep=False))(*arrays)
    return jax.jit(jax.shard_map(f, mesh=MESH, in_specs=SPLIT, out_specs=SPLIT))(*arrays)


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize(("rows", "devices"), [(13, 4), (12, 4), (4, 4), (9, 2), (5, 1)])
def test_rows_are_placed_by_the_partition_rule(rows: int, devices: int, strategy: str) -> None:
    ids = np.arange(rows)
    for found in (locate(ids, rows, devices, strategy), locate(jnp.asarray(ids), rows, devices, strategy)):
        for a, b in zip(found, rule(ids, rows, devices, strategy), strict=True):
            assert np.asarray(a).tolist() == b.tolist()
    places = places_of(rows, devices, strategy)
    assert len(set(places)) == rows
    assert places.max() < devices * sharded.part_rows(rows, devices)


def test_more_devices_than_rows() -> None:
    assert sharded.part_rows(3, 8) == 1
    assert places_of(3, 8, "div").tolist() == places_of(3, 8, "mod").tolist() == [0, 1, 2]


def test_capacity_is_the_maximum_over_devices() -> None:
    ids = np.array([[0, 0, 0, 1], [5, 6, -1, 0]])  # the first of two devices owns 4 of 7 rows
    assert sharded.needed_capacity(ids, 7, 2, **PAD) == (2, 4)
    assert sharded.needed_capacity(ids, 7, 2, "mod", **PAD) == (2, 3)
    assert sharded.needed_capacity(ids, 7, 2, padding_idx=0, **PAD) == (2, 2)
    assert sharded.needed_capacity(np.full((4, 2), -1), 7, 2, **PAD) == (1, 1)  # the minimum that embedding_bag accepts


def test_capacity_counts_default_ids_of_empty_bags() -> None:
    ids = np.array([[0, 6], [-1, -1], [2, -1], [2, 2]])  # for two devices; the second owns row 6
    assert sharded.needed_capacity(ids, 7, 2, **PAD) == (1, 3)
    assert sharded.needed_capacity(ids, 7, 2, default_id=6, **PAD) == (1, 3)
    assert sharded.needed_capacity(ids, 7, 2, default_id=1, **PAD) == (2, 3)
    assert sharded.needed_capacity(ids, 7, 2, default_id=1, padding_idx=2, **PAD) == (2, 2)
    bags = np.array([0, 0, 1, 1, 0, 0, 2, 2])
    args: Any = {"segment_ids": bags, "num_bags": 4, "default_id": -1, **PAD}
    assert sharded.needed_capacity(ids.reshape(-1), 7, 2, **args) == (1, 4)


def test_capacity_of_an_invalid_batch_is_rejected() -> None:
    for ids, devices, message in (
        ([[0, 0, 0, 7]], 1, r"ids\[3\] = 7 is not in \[0, 7\), the rows of the table"),
        ([[0, -1, -1], [-1, 2, -5]], 2, r"ids\[5\] = -5 is not in \[0, 7\), the rows of the table"),
        ([[1.5]], 1, "ids must be one of int32, int64; got float64"),
        (3, 1, r"ids: got \(\), expected a first dimension that is a multiple of 1"),
        ([[1], [2], [3]], 2, r"ids: got \(3, 1\), expected a first dimension that is a multiple of 2"),
        ([[1]], 0, "devices must be an integer of at least 1; got 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            sharded.needed_capacity(ids, 7, devices, **PAD)
    with pytest.raises(InvalidArgumentError, match="segment_ids and num_bags for ids of one dimension"):
        sharded.needed_capacity([1, -1], 7, 1, default_id=0, **PAD)


def error_text(f: Any, *arrays: Any) -> str:
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as raised:
        jax.block_until_ready(on_one(f, *arrays))
    return str(raised.value)


def test_insufficient_capacity_names_the_needed_one() -> None:
    parts, ids = sharded.shard_table(TABLE, MESH, "x"), np.array([[1, 2, 1], [3, 3, -1]])
    needed = sharded.needed_capacity(ids, 7, 1, **PAD)
    assert needed == (3, 5)
    for argument, value, bound, what in (("capacity", 2, 3, "distinct rows"), ("id_capacity", 4, 5, "ids")):
        options: Any = {**PAD, "axis_name": "x", "num_rows": 7, argument: np.int64(value)}
        raised_text = error_text(partial(sharded.embedding_bag, **options), parts, ids)
        needs = f"{argument} must be at least {bound}, the number of {what} that a device requests from one owner"
        assert f"InvalidArgumentError: sharded.embedding_bag: {needs}; got {value}" in raised_text
    # Errors of other kernels are unchanged.
    assert "SparseSegmentMean" in error_text(lambda part, ids: rgj.embedding_bag(part.array, ids), parts, ids + 7)


def test_64_bit_ids_are_not_truncated() -> None:
    def look_up(part: Any, ids: Any, bags: Any) -> Any:
        return sharded.embedding_bag(part, ids, segment_ids=bags, num_bags=2, axis_name="x", num_rows=7)

    with x64(True):
        parts, ids, bags = sharded.shard_table(TABLE, MESH, "x"), np.array([1, 2, 3]), np.array([0, 1, 1])
        assert f"Index {2**32 + 1} out of range [0, 7)" in error_text(look_up, parts, np.array([1, 2, 2**32 + 1]), bags)
        message = f"Segment id {2**32} out of range [0, 2). Got segment_ids[1] = {2**32}."
        assert message in error_text(look_up, parts, ids, np.array([0, 2**32, 1]))


def test_second_derivatives_by_the_table_raise() -> None:
    """A gradient does not depend on the table any more for JAX: without an error, second derivatives would be zero."""
    parts, ids = sharded.shard_table(TABLE, MESH, "x"), np.array([[1, 2], [3, 3]])

    def cubes(part: Any, weights: Any, ids: Any) -> Any:
        out = sharded.embedding_bag(part, ids, per_sample_weights=weights, axis_name="x", num_rows=7)
        return (out**3).sum()

    def squares(gradient: Any) -> Any:
        return sum((g**2).sum() for g in jax.tree_util.tree_leaves(gradient))

    def by_rows(part: Any, weights: Any, ids: Any) -> Any:
        return rgj.value_and_rows(lambda t: cubes(t, weights, ids))(part)[1].rows.values

    for first, second in ((jax.grad(cubes), 0), (jax.grad(cubes), 1), (jax.grad(cubes, 1), 0), (by_rows, 0)):

        def twice(part: Any, ids: Any, first: Any = first, second: int = second) -> Any:
            return jax.grad(lambda *x: squares(first(*x, ids)), second)(part, jnp.ones(ids.shape))

        with pytest.raises(UnimplementedError, match="part must be differentiated once"):
            on_one(twice, parts, ids)
    # Derivatives that only other parts of the model contribute to are supported.
    again = on_one(
        lambda part, ids: jax.grad(lambda s: squares(jax.grad(lambda p: s * cubes(p, None, ids))(part)))(2.0)[None],
        parts, ids,
    )  # fmt: skip
    once = on_one(lambda part, ids: squares(jax.grad(lambda p: cubes(p, None, ids))(part))[None], parts, ids)
    np.testing.assert_allclose(again, 4 * np.asarray(once), rtol=1e-6)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this version of JAX keeps no account of axes")
def test_row_gradients_with_further_mesh_axes_raise() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("copies", "x"))
    both = PartitionSpec(("copies", "x"))

    def rows(part: Any, ids: Any) -> Any:
        def loss(table: Any) -> Any:
            return sharded.embedding_bag(table, ids, axis_name="x", num_rows=7).sum()

        return rgj.value_and_rows(loss)(part)[1].rows.values

    args = sharded.shard_table(TABLE, mesh, "x"), np.array([[1, 2], [3, 3]])
    with pytest.raises(UnimplementedError, match="part must be varying over copies as well"):
        jax.jit(jax.shard_map(rows, mesh=mesh, in_specs=(SPLIT, both), out_specs=both))(*args)
    jax.jit(jax.shard_map(rows, mesh=mesh, in_specs=(both, both), out_specs=both))(*args)
    jax.jit(jax.shard_map(rows, mesh=mesh, in_specs=(SPLIT, SPLIT), out_specs=SPLIT))(*args)


def test_tables_without_columns() -> None:
    def gradient(part: Any, ids: Any) -> Any:
        return jax.grad(lambda p: sharded.embedding_bag(p, ids, axis_name="x", num_rows=7).sum())(part)

    parts = sharded.shard_table(TABLE[:, :0], MESH, "x")
    assert on_one(gradient, parts, np.array([[1, 2], [3, 3]])).shape == (7, 0)


def test_padding_and_defaults() -> None:
    ids, bags = np.array([3, 1, -1, 2, 2, -1], np.int32), np.array([0, 0, 0, 2, 2, 3], np.int32)
    options: dict[str, Any] = {"num_bags": 4, "padding_idx": 2, "default_id": 5, "combiner": "sqrtn"}

    def look_up(part: Any, ids: Any, bags: Any) -> Any:
        return sharded.embedding_bag(part, ids, segment_ids=bags, axis_name="x", num_rows=7, **PAD, **options)

    found = on_one(look_up, sharded.shard_table(TABLE, MESH, "x"), ids, bags)
    is_valid = ids != -1
    expected = rgj.embedding_bag(TABLE, ids[is_valid], segment_ids=bags[is_valid], **options)
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def test_a_row_is_updated_independently_of_other_rows() -> None:
    """So a shard is updated with the bits of the whole table."""
    rng = np.random.default_rng(0)
    weights, grads = rng.normal(size=(2, 100, 8)).astype(np.float32)
    optimizers = [
        getattr(optim, name)(lr=0.1, **({"weight_decay": 0.01} if "weight_decay" in spec.defaults else {}))
        for name, spec in RULES.items()
    ]

    def steps(weights: Any, grads: Any) -> Any:
        def one(optimizer: Any, state: Any, table: Any) -> Any:
            rows = IndexedRows(grads, jnp.arange(len(grads)), len(weights), is_unique=True)
            updates, state = optimizer.update(Table.holding(rows), state, table)
            return state, optim.apply_updates(table, updates)

        def step_all(states: Any, _: Any) -> Any:
            return [one(o, *k) for o, k in zip(optimizers, states, strict=True)], None

        states = [(o.init(Table(weights)), Table(weights)) for o in optimizers]
        return jax.lax.scan(step_all, states, length=3)[0]

    run = jax.jit(steps)
    found = (jax.tree_util.tree_leaves(run(weights[:count], grads[:count])) for count in (100, 7))
    for whole, part in zip(*found, strict=True):
        assert np.asarray(whole if not whole.ndim else whole[:7]).tobytes() == np.asarray(part).tobytes()


def test_invalid_arguments_raise_before_execution() -> None:
    parts, ids = sharded.shard_table(TABLE, MESH, "x"), np.zeros((2, 2), np.int32)

    def call(**options: Any) -> Any:
        arguments = {"axis_name": "x", "num_rows": 7, **options}
        return on_one(lambda part, ids: sharded.embedding_bag(part, ids, **arguments), parts, ids)

    for options, message in (
        ({"axis_name": "y"}, "axis_name: got 'y'"),
        ({"num_rows": 9}, "num_rows: got 9, but the table was sharded with 7"),
        ({"num_rows": 0}, "num_rows: got 0, but the table was sharded with 7"),
        ({"capacity": 0}, "capacity must be an integer of at least 1; got 0"),
        ({"capacity": True}, "capacity must be an integer of at least 1; got True"),
        ({"id_capacity": 2.5}, "id_capacity must be an integer"),
        ({"combiner": "max"}, "combiner must be one of"),
        ({"per_sample_weights": jnp.ones(3)}, "per_sample_weights must have shape"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call(**options)
    with pytest.raises(ValueError, match="partition strategy"):
        call(strategy="chunk")
    with pytest.raises(InvalidArgumentError, match="axis: got 'y'"):
        sharded.shard_table(TABLE, MESH, "y")
    halves = sharded.ShardedTable(TABLE, sharded.Layout(14, 2, "x"))
    with pytest.raises(InvalidArgumentError, match="table must have length 14"):
        sharded.gather_table(halves)
    for layout in (sharded.Layout(9, 1, "x"), sharded.Layout(7, 2, "x")):
        with pytest.raises(InvalidArgumentError, match=r"array: got \(7, 2\), expected"):
            sharded.ShardedTable(TABLE, layout)
    with pytest.raises(InvalidArgumentError, match=r"axis: got .*, expected one mesh axis, or several distinct ones"):
        sharded.ShardedTable(TABLE, sharded.Layout(7, 1, ("x", "x")))
    with pytest.raises(ValueError, match="partition strategy"):
        sharded.ShardedTable(TABLE, sharded.Layout(7, 1, "x", "chunk"))
    with pytest.raises(InvalidArgumentError, match=r"a Table's table must be an array; pass table.array"):
        sharded.shard_table(parts, MESH, "x")


def test_layout_is_part_of_a_sharded_table() -> None:
    """Lookups use the rows, strategy, axis and number of shards of the layout, and reject any others."""
    layout = sharded.Layout(7, 1, "x", "mod")
    parts, ids = sharded.shard_table(TABLE, MESH, "x", "mod"), np.array([[1, 2], [3, 3]])
    assert (parts.layout, parts.spec) == (layout, SPLIT)
    assert repr(parts) == "ShardedTable(float32[7,2], 7 rows in 1 parts over 'x' by 'mod')"
    assert jax.tree_util.tree_map(lambda x: 2 * x, parts).layout == layout
    assert jax.jit(lambda t: t)(parts).layout == layout
    gradient = jax.grad(lambda t: on_one(sharded.embedding_bag, t, ids).sum())(parts)
    assert sharded.gather_table(gradient)[:4, 0].tolist() == [0.0, 0.5, 0.5, 1.0]
    state = optim.row_wise_adagrad().init({"items": parts})
    assert [s["items"].layout for s in state.slots.values()] == [layout]
    for options, message in (
        ({"num_rows": 6}, "num_rows: got 6, but the table was sharded with 7"),
        ({"strategy": "div"}, "strategy: got 'div', but the table was sharded with 'mod'"),
        ({"axis_name": ("x", "y")}, r"axis_name: got \('x', 'y'\), but the table was sharded with 'x'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            on_one(partial(sharded.embedding_bag, **options), parts, ids)
    halves = sharded.ShardedTable(np.zeros((7, 2), np.float32), sharded.Layout(14, 2, "x"))
    with pytest.raises(InvalidArgumentError, match="devices: got 1, but the table was sharded with 2"):
        on_one(sharded.embedding_bag, halves, ids)
    for part in (parts.array, Table(parts.array), TABLE):
        with pytest.raises(InvalidArgumentError, match="part must be a ShardedTable, which records how its rows are"):
            on_one(partial(sharded.embedding_bag, axis_name="x", num_rows=7), part, ids)
    with pytest.raises(InvalidArgumentError, match="table must be a ShardedTable"):
        sharded.gather_table(parts.array)


def test_sharded_tables_are_rejected_by_unsharded_lookups() -> None:
    parts, ids = sharded.shard_table(TABLE, MESH, "x"), np.array([1, 2])
    with pytest.raises(UnimplementedError, match=r"Use rowgrad.jax.sharded.embedding_bag inside shard_map"):
        rgj.embedding_bag(parts, ids[None])
    with pytest.raises(UnimplementedError, match="the table is sharded"):
        rgj.value_and_rows(lambda t: rgj.embedding_bag(t, ids[None]).sum())(parts)
    with pytest.raises(UnimplementedError, match="the table is sharded"):
        parts.bags(ids, ids, num_bags=3)


def traced(part: Any, ids: Any, **options: Any) -> Any:
    """Return the shape of a lookup on one device, traced without allocating arrays."""
    part = sharded.ShardedTable(part, sharded.Layout(part.shape[0], 1, "x"))
    return jax.eval_shape(partial(on_one, lambda part, ids: sharded.embedding_bag(part, ids, **options)), part, ids)


def test_inconsistent_tables_and_weights_raise() -> None:
    part, ids = jax.ShapeDtypeStruct((7, 2), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.int32)
    bags: Any = {"segment_ids": np.zeros(3, np.int32), "num_bags": 1}
    assert traced(part, ids, **bags).shape == (1, 2)
    for args, options, argument, message in (
        ((jax.ShapeDtypeStruct((7, 2), jnp.int32), ids), bags, "part",
         "a Table's part must be of floating-point numbers; got int32"),
        ((part, ids), {**bags, "per_sample_weights": jnp.ones(2)}, "per_sample_weights",
         "per_sample_weights must have shape (3,), got (2,)"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError) as raised:
            traced(*args, **options)
        assert (raised.value.argument, raised.value.message) == (argument, message)


def test_sizes_beyond_32_bits_raise() -> None:
    most = 2**31 - 1
    part, ids = jax.ShapeDtypeStruct((most, 1), jnp.float32), jax.ShapeDtypeStruct((2, 2**29), jnp.int32)
    for args, argument, message in (
        ((part, ids), "num_rows", f"num_rows: got {most}, expected less than 2**31 including padding"),
        ((jax.ShapeDtypeStruct((7, 2), jnp.float32), ids), "ids",
         f"ids: got {2**30} ids, expected less than 2**31 on all devices"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError) as raised:
            traced(*args)
        assert (raised.value.argument, raised.value.message) == (argument, message)


@pytest.mark.parametrize("weights", [None, jnp.ones(0)], ids=["plain", "weighted"])
def test_bags_without_any_ids(weights: Any) -> None:
    def look_up(part: Any) -> Any:
        none = jnp.zeros(0, jnp.int32)
        options: Any = {"segment_ids": none, "num_bags": 2, "per_sample_weights": weights, "combiner": "sum"}
        return sharded.embedding_bag(part, none, axis_name="x", num_rows=7, **options)

    parts = sharded.shard_table(TABLE, MESH, "x")
    assert np.asarray(on_one(look_up, parts)).tolist() == [[0.0, 0.0]] * 2
    gradient = on_one(jax.grad(lambda part: look_up(part).sum()), parts)
    assert np.count_nonzero(gradient.array) == 0
