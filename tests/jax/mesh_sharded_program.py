"""Check on four devices: sharded tables compared with one device that has the whole batch.

It prints one line per passed check, and "done" at the end.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import rowgrad.jax as rgj
from rowgrad.jax import optim, sharded

DEVICES, ROWS, COLUMNS, BAGS, LENGTH = 4, 13, 5, 6, 4  # bags of each device; 13 rows do not divide by 4
MESH = Mesh(np.array(jax.devices()), ("x",))
SPLIT = PartitionSpec("x")
STRATEGIES = ("div", "mod")
ERRORS = (jax.errors.JaxRuntimeError, ValueError)
rng = np.random.default_rng(0)
TABLE = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
WEIGHTS = rng.normal(size=(DEVICES * BAGS, LENGTH)).astype(np.float32)
UPSTREAM = rng.normal(size=(DEVICES * BAGS, COLUMNS)).astype(np.float32)


def ids_with_gaps(seed: int) -> Any:
    """Return the ids of all devices: some bags shorter, one empty, and one device without ids."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, ROWS, (DEVICES * BAGS, LENGTH)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[3] = -1
    ids[2 * BAGS : 3 * BAGS] = -1
    return ids


IDS = ids_with_gaps(1)
PAD: Any = {"ignore_id": -1}


def mapped(f: Any, inputs: Any, outputs: Any, mesh: Any = MESH) -> Any:
    """Return `f` compiled to run on every device."""
    if hasattr(jax, "shard_map"):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs))
    from jax.experimental.shard_map import shard_map

    return jax.jit(shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_rep=False))


def same(a: Any, b: Any) -> None:
    """Check equality to the last bit, including the sign of zeros."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes(), (a, b)


def whole(parts: Any, strategy: str) -> Any:
    layout = sharded.Layout(ROWS, DEVICES, "x", strategy)
    if isinstance(parts, sharded.ShardedTable):
        assert parts.layout == layout  # the layout survived jit, shard_map and grad
    else:
        parts = sharded.ShardedTable(parts, layout)
    return sharded.gather_table(parts)


# -- one lookup, all options ------------------------------------------------------------------------------------------

# combiner, weighted, strategy, dtype, id_capacity: None exchanges bags, less than the number of bags exchanges ids
CASES = [
    (combiner, weighted, STRATEGIES[k % 2], jnp.bfloat16 if k == 3 else jnp.float32, (None, 5)[k // 2 % 2])
    for k, (combiner, weighted) in enumerate(product(("sum", "mean", "sqrtn"), (False, True)))
]
FEW = np.where(np.arange(LENGTH) < 2, IDS, -1)  # at most five ids of a device for one owner


def test_lookups() -> None:
    most = sharded.needed_capacity(FEW, ROWS, DEVICES, "mod", **PAD).ids
    assert most <= 5, most
    tables = [sharded.shard_table(TABLE.astype(w[3]), MESH, "x", w[2]) for w in CASES]

    def each(tables: Any, ids: Any, few: Any, weights: Any, upstream: Any) -> Any:
        pairs = zip(CASES, tables, strict=True)
        return [look_up(w, t, ids if w[4] is None else few, weights, upstream) for w, t in pairs]

    def look_up(case: Any, part: Any, ids: Any, weights: Any, upstream: Any) -> Any:
        combiner, weighted, strategy, dtype, id_capacity = case
        options = {
            "axis_name": "x",
            "num_rows": ROWS,
            "strategy": strategy,
            "combiner": combiner,
            "id_capacity": id_capacity,
            **PAD,
        }

        def loss(part: Any, weights: Any) -> Any:
            out = sharded.embedding_bag(part, ids, per_sample_weights=weights if weighted else None, **options)
            return (out * upstream.astype(dtype)).sum(), out

        grads, out = jax.grad(loss, argnums=(0, 1), has_aux=True)(part, weights.astype(dtype))
        rows = rgj.value_and_rows(lambda t: loss(t, weights.astype(dtype)), has_aux=True)(part)[1].rows
        return out, *grads, rows.indices, rows.values

    found = mapped(each, SPLIT, SPLIT)(tables, IDS, FEW, WEIGHTS, UPSTREAM)
    for case, (out, grad, weights_grad, rows, values) in zip(CASES, found, strict=True):
        _, weighted, strategy, dtype, id_capacity = case
        ids = IDS if id_capacity is None else FEW
        ok, bags = ids.reshape(-1) != -1, np.repeat(np.arange(DEVICES * BAGS, dtype=np.int32), LENGTH)

        def one(table: Any, weights: Any, ok: Any = ok, ids: Any = ids, bags: Any = bags, case: Any = case) -> Any:
            options = {"segment_ids": bags[ok], "num_bags": DEVICES * BAGS, "combiner": case[0]}
            own_weights = weights.reshape(-1)[ok] if case[1] else None
            out = rgj.embedding_bag(table, ids.reshape(-1)[ok], per_sample_weights=own_weights, **options)
            return (out * UPSTREAM.astype(case[3])).sum(), out

        args = jnp.asarray(TABLE.astype(dtype)), jnp.asarray(WEIGHTS.astype(dtype))
        (expected, expected_weights), expected_out = jax.grad(one, argnums=(0, 1), has_aux=True)(*args)
        same(out, expected_out)
        same(whole(grad, strategy), expected)
        if weighted:  # weights' gradients use dense ops, which XLA may round differently
            weight_grads = [np.asarray(g, np.float32) for g in (weights_grad, expected_weights)]
            np.testing.assert_allclose(*weight_grads, rtol=2e-2 if dtype == jnp.bfloat16 else 1e-5, atol=1e-5)
        # Row gradients: ids of each part ascend, padding comes last.
        part = sharded.part_rows(ROWS, DEVICES)
        dense = np.zeros((DEVICES, part + 1, COLUMNS), dtype)
        for device, (i, v) in enumerate(zip(np.split(rows, DEVICES), np.split(values, DEVICES), strict=True)):
            assert (np.diff(i[i < part]) > 0).all()
            dense[device, i] = v
        assert not dense[:, part].any()
        same(whole(dense[:, :part].reshape(-1, COLUMNS), strategy), expected)
    print("forward and gradients: every combiner, weighted and not, empty bags, an empty device, 16 bits")


def test_fewer_rows_than_devices() -> None:
    """Two rows on four devices, with ignored ids, default ids and exactly the needed capacity."""
    ids = np.where(IDS < 0, IDS, IDS % 2)
    ids[7] = 1  # a bag of ignored ids only
    options = {"padding_idx": 1, "default_id": 0}
    needed = sharded.needed_capacity(ids, 2, DEVICES, **PAD, **options)
    options |= {"combiner": "sqrtn"}

    def look_up(part: Any, ids: Any, weights: Any, upstream: Any) -> Any:
        args = {**options, "per_sample_weights": weights, "capacity": needed.rows, "id_capacity": needed.ids, **PAD}

        def loss(part: Any) -> Any:
            out = sharded.embedding_bag(part, ids, axis_name="x", num_rows=2, **args)
            return (out * upstream).sum(), out

        return jax.grad(loss, has_aux=True)(part)

    parts = sharded.shard_table(TABLE[:2], MESH, "x")
    gradient, out = mapped(look_up, SPLIT, SPLIT)(parts, ids, WEIGHTS, UPSTREAM)
    valid, bags = ids.reshape(-1) != -1, np.repeat(np.arange(DEVICES * BAGS, dtype=np.int32), LENGTH)

    def one(table: Any) -> Any:
        arguments = {"segment_ids": bags[valid], "num_bags": DEVICES * BAGS, **options}
        weights = jnp.asarray(WEIGHTS.reshape(-1)[valid])
        out = rgj.embedding_bag(table, ids.reshape(-1)[valid], per_sample_weights=weights, **arguments)
        return (out * UPSTREAM).sum(), out

    expected, expected_out = jax.grad(one, has_aux=True)(jnp.asarray(TABLE[:2]))
    same(out, expected_out)
    same(sharded.gather_table(gradient), expected)
    print("two rows on four devices, ids left out and put in")


# -- fifty steps ------------------------------------------------------------------------------------------------------


def step(table: Any, state: Any, batch: Any, look_up: Any) -> Any:
    """Do one step of row-wise Adagrad, on one device or on every device."""
    optimizer = optim.row_wise_adagrad(lr=0.1)

    def loss(table: Any) -> Any:
        out, labels = look_up(table, batch[0]), batch[1]
        return ((out - labels) ** 2).sum()

    _, grads = rgj.value_and_rows(loss)(table)
    updates, state = optimizer.update(grads, state, table)
    return optim.apply_updates(table, updates), state


def steps(table: Any, state: Any, batches: Any, look_up: Any) -> Any:
    return jax.lax.scan(lambda c, b: (step(*c, b, look_up), None), (table, state), batches)[0]


def test_training() -> None:
    ids = np.stack([ids_with_gaps(seed) for seed in range(50)])
    labels = rng.normal(size=(50, DEVICES * BAGS, COLUMNS)).astype(np.float32)

    def local_lookup(table: Any, ids: Any) -> Any:
        return rgj.embedding_bag(table, ids, combiner="mean", **PAD)

    def sharded_lookup(table: Any, ids: Any) -> Any:
        return sharded.embedding_bag(table, ids, axis_name="x", num_rows=ROWS, strategy="mod", combiner="mean", **PAD)

    table = rgj.Table(jnp.asarray(TABLE))
    state = optim.row_wise_adagrad().init(table)
    one, one_state = jax.jit(lambda *x: steps(*x, local_lookup))(table, state, (ids, labels))
    parts = sharded.shard_table(TABLE, MESH, "x", "mod")
    state = optim.row_wise_adagrad().init(parts)
    spec = jax.tree_util.tree_map(lambda x: SPLIT if x.ndim else PartitionSpec(), state)
    batches = PartitionSpec(None, "x")
    all_steps = mapped(lambda *x: steps(*x, sharded_lookup), (SPLIT, spec, batches), (SPLIT, spec))
    found, found_state = all_steps(parts, state, (ids, labels))
    same(whole(found, "mod"), one.array)
    assert (np.asarray(one.array) != TABLE).all()
    for name, slot in one_state.slots.items():
        same(whole(found_state.slots[name], "mod"), slot.array)
    print("fifty steps of row-wise Adagrad")


def test_two_axes() -> None:
    """A table split over both axes of a mesh, in either order."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    ids = np.where(IDS < 0, 0, IDS)
    for axis, strategy in ((("data", "model"), "div"), (("model", "data"), "mod")):
        parts = sharded.shard_table(TABLE, mesh, axis, strategy)
        assert parts.spec == PartitionSpec(axis)

        def gradient(part: Any, ids: Any, upstream: Any) -> Any:
            def loss(part: Any) -> Any:
                out = sharded.embedding_bag(part, ids, combiner="sqrtn")
                return (out * upstream).sum(), out

            return jax.grad(loss, has_aux=True)(part)

        found, out = mapped(gradient, PartitionSpec(axis), PartitionSpec(axis), mesh)(parts, ids, UPSTREAM)

        def one(table: Any) -> Any:
            out = rgj.embedding_bag(table, ids, combiner="sqrtn")
            return (out * UPSTREAM).sum(), out

        expected, expected_out = jax.grad(one, has_aux=True)(jnp.asarray(TABLE))
        same(out, expected_out)
        same(sharded.gather_table(found), expected)
        other = mapped(partial(sharded.embedding_bag, axis_name=axis[::-1]), parts.spec, parts.spec, mesh)
        assert "but the table was sharded with" in error_text(lambda other=other, parts=parts: other(parts, ids))
    print("a table split over two axes")


# -- errors -----------------------------------------------------------------------------------------------------------


def error_text(call: Any) -> str:
    """Return the message of the error that a call raises."""
    try:
        jax.block_until_ready(call())
    except ERRORS as error:
        return str(error)
    return "nothing"


def test_errors_on_all_devices() -> None:
    parts = sharded.shard_table(TABLE, MESH, "x")

    def look_up(part: Any, ids: Any, bags: Any) -> Any:
        options = {"axis_name": "x", "num_rows": ROWS, "combiner": "sum", "capacity": 3, "id_capacity": 5, **PAD}
        return jax.grad(lambda p: sharded.embedding_bag(p, ids, segment_ids=bags, num_bags=2, **options).sum())(part)

    gradient = mapped(look_up, SPLIT, SPLIT)
    ids = np.tile(np.array([0, 4, 8, 12, 3, 7, 11, -1], np.int32), DEVICES)
    bags = np.tile(np.repeat(np.arange(2, dtype=np.int32), 4), DEVICES)
    bad_id, bad_bag, rows, repeated = ids.copy(), bags.copy(), ids.copy(), ids.copy()
    bad_id[2 * 8 + 5] = ROWS
    bad_bag[3 * 8 + 1] = 2
    rows[8:16] = [0, 1, 2, 3, 7, 7, 8, 8]
    repeated[8:16] = [0, 1, 0, 1, 0, 1, 8, 8]
    for args, message in (
        ((bad_id, bags), "Index 13 out of range [0, 13). Got indices[21] = 13."),
        ((ids, bad_bag), "Segment id 2 out of range [0, 2). Got segment_ids[25] = 2."),
        (
            (rows, bags),
            "capacity must be at least 4, the number of distinct rows that a device requests from one owner; got 3",
        ),
        (
            (repeated, bags),
            "id_capacity must be at least 6, the number of ids that a device requests from one owner; got 5",
        ),
    ):
        assert message in error_text(lambda args=args: gradient(parts, *args)), message
        if jax.__version__.startswith("0.5."):  # a failed call makes its devices unusable
            print("errors on all devices, and calls after them")
            return
    assert max(sharded.needed_capacity(rows, ROWS, DEVICES, **PAD)) == 4
    counts = np.bincount(ids[ids >= 0], minlength=ROWS).astype(np.float32)
    same(whole(gradient(parts, ids, bags), "div"), np.repeat(counts[:, None], COLUMNS, 1))
    print("errors on all devices, and calls after them")


test_lookups()
test_fewer_rows_than_devices()
test_training()
test_two_axes()
test_errors_on_all_devices()
print("done")
