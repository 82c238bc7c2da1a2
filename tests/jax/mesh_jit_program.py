"""Check on four devices: sharded arrays under jit, without shard_map.

The argument is the partitioner, "shardy" or "gspmd", or "explicit" for a mesh with shardings in types, or "older" for a
JAX that lacks the functions for these. The last line printed is "done".
"""

from __future__ import annotations

import re
import sys
import warnings
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MODE = sys.argv[1]
if MODE == "older":
    del jax.sharding.reshard

import rowgrad as rg  # noqa: E402
import rowgrad.jax as rgj  # noqa: E402

ROWS, COLUMNS, BAGS, LENGTH = 4096, 16, 16, 3
rng = np.random.default_rng(0)
TABLE = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
IDS = rng.integers(0, ROWS, (BAGS, LENGTH)).astype(np.int32)
PADDED = np.where(rng.random(IDS.shape) < 0.4, -1, IDS).astype(np.int32)
WEIGHTS = rng.normal(size=IDS.shape).astype(np.float32)
UPSTREAM = rng.normal(size=(BAGS, COLUMNS)).astype(np.float32)
SEGMENTS = np.repeat(np.arange(BAGS, dtype=np.int32), LENGTH)
X, WHOLE, BY_COLUMNS = P("x"), P(), P(None, "x")
GATHERS = re.compile(r" = (\S+) all-gather\(")

if MODE == "explicit":
    MESH = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
else:
    MESH = Mesh(np.array(jax.devices()), ("x",))


def compiled(f: Any, inputs: Any, specs: Any) -> tuple[Any, Any]:
    """Compile `f` for arrays with these shardings and run it. Warnings are errors."""
    placed = [jax.device_put(x, NamedSharding(MESH, s)) for x, s in zip(inputs, specs, strict=True)]
    program = jax.jit(f).lower(*placed).compile()
    return program, jax.block_until_ready(program(*placed))


def check(f: Any, inputs: Any, specs: Any, outputs: Any, close: tuple[int, ...] = ()) -> None:
    """Check that results have the bits of one device and these shardings, and that no table is gathered."""
    program, found = compiled(f, inputs, specs)
    expected = jax.tree_util.tree_leaves(on_one_device(f)(*inputs))
    leaves = jax.tree_util.tree_leaves(found)
    for k, (a, b, spec) in enumerate(zip(leaves, expected, outputs, strict=True)):
        if k in close:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        else:
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), (k, specs)
        assert spec is None or a.sharding.is_equivalent_to(NamedSharding(MESH, spec), a.ndim), (k, a.sharding, spec)
    gathered = GATHERS.findall(program.as_text())
    assert not [shape for shape in gathered if f"[{ROWS}," in shape], gathered
    own = sum(x.addressable_shards[0].data.nbytes for x in leaves)
    memory = program.memory_analysis()
    assert memory.temp_size_in_bytes < TABLE.nbytes / 8 + 2 * own, memory


def on_one_device(f: Any) -> Any:
    """Return `f` compiled for one device."""
    if MODE != "explicit":
        return jax.jit(f)

    def outside(*inputs: Any) -> Any:
        with jax.set_mesh(ONE):
            return jax.jit(f)(*inputs)

    return outside


def expect_error(f: Any, inputs: Any, specs: Any, message: str) -> None:
    caught = ""
    try:
        compiled(f, inputs, specs)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        caught = str(error)
    assert message in caught, (specs, caught)


def look_up(table: Any, ids: Any, weights: Any, case: Any) -> Any:
    return rgj.embedding_bag(table, ids, per_sample_weights=weights if case[1] else None, **case[0])


OPTIONS = ({}, {"combiner": "sqrtn", "ignore_id": -1}, {"combiner": "sum", "ignore_id": -1, "default_id": 2})
CASES = list(product(OPTIONS, (False, True)))
CASES = [*(CASES if MODE == "shardy" else CASES[:1] + CASES[-1:]), ({"max_norm": 1.0}, False)]


def test_a_matrix_of_ids_stays_split_by_bags() -> None:
    for case in CASES:
        inputs = TABLE, PADDED if "ignore_id" in case[0] else IDS, WEIGHTS

        def forward(*x: Any, case: Any = case) -> Any:
            return look_up(*x, case)

        check(forward, inputs, (WHOLE, X, X), [X])
        expect_error(forward, inputs, (X, X, X), "the rows of a table are sharded over x under jit")
        expect_error(
            forward, inputs, (X, WHOLE, WHOLE), "rowgrad.jax.sharded: shard_table, and embedding_bag inside shard_map"
        )
        if "max_norm" in case[0]:
            expect_error(forward, inputs, (BY_COLUMNS, X, X), "the columns of a table are sharded over x under jit")
        else:
            check(forward, inputs, (BY_COLUMNS, WHOLE, WHOLE), [BY_COLUMNS])
            check(forward, inputs, (BY_COLUMNS, X, X), [BY_COLUMNS])
        gradients(case, inputs)
    print("lookups of a matrix")


def gradients(case: Any, inputs: Any) -> None:
    def dense(table: Any, ids: Any, weights: Any, upstream: Any) -> Any:
        def loss(table: Any, weights: Any) -> Any:
            out = look_up(table, ids, weights, case)
            return (out * upstream).sum(), out

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(table, weights)

    def rows(table: Any, ids: Any, weights: Any, upstream: Any) -> Any:
        def loss(table: Any) -> Any:
            out = look_up(table, ids, weights, case)
            return (out * upstream).sum(), out

        (_, out), grads = rgj.value_and_rows(loss, has_aux=True)(rgj.Table(table))
        return out, grads.rows.indices, grads.rows.values

    inputs = *inputs, UPSTREAM
    check(dense, inputs, (WHOLE, X, X, X), [None, None, X], close=(0, 1) if "max_norm" in case[0] else (1,))
    expect_error(dense, inputs, (X, X, X, X), "the rows of a table are sharded over x under jit")
    if "max_norm" not in case[0]:
        check(rows, inputs, (WHOLE, X, X, X), [X, None, None])
        expect_error(rows, inputs, (X, X, X, X), "the rows of a table are sharded over x under jit")
        if MODE != "explicit":  # in explicit mode JAX rejects the product of differently sharded arrays
            check(dense, inputs, (BY_COLUMNS, X, X, X), [None, None, BY_COLUMNS], close=(1,))


def test_flat_ids_are_gathered_with_a_warning() -> None:
    def by_table(table: Any, ids: Any, segments: Any) -> Any:
        return rgj.Table(table).bags(ids, segments, BAGS)

    def by_op(table: Any, ids: Any, segments: Any) -> Any:
        return rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, BAGS)

    def by_segments(table: Any, ids: Any, segments: Any) -> Any:
        return rgj.embedding_bag(table, ids, segment_ids=segments, num_bags=BAGS)

    inputs = TABLE, IDS.reshape(-1), SEGMENTS
    for f in (by_table, by_op, by_segments):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check(f, inputs, (WHOLE, X, X), [None])
        assert "gathered on every device" in str(caught[0].message), caught
        assert "Pass ids to embedding_bag as a matrix" in str(caught[0].message), caught
        check(f, inputs, (WHOLE, WHOLE, WHOLE), [None])
        check(f, inputs, (BY_COLUMNS, WHOLE, WHOLE), [BY_COLUMNS if MODE != "explicit" else None])
        for specs in ((X, WHOLE, WHOLE), (X, X, X)):
            expect_error(f, inputs, specs, "the rows of a table are sharded over x under jit")
    print("flat ids")


def test_other_ops() -> None:
    ids = IDS.reshape(-1)

    def gather(table: Any, ids: Any) -> Any:
        return rg.raw_ops.GatherRows(table, ids)

    def gradient(upstream: Any, ids: Any, segments: Any) -> Any:
        return rg.raw_ops.SparseSegmentMeanGrad(upstream, ids, segments, ROWS)

    def rows(upstream: Any, ids: Any, segments: Any) -> Any:
        return tuple(rg.raw_ops.SparseSegmentSumGradV2(upstream, ids, segments, ROWS, size=len(ids)))

    check(gather, (TABLE, ids), (WHOLE, X), [X if MODE != "explicit" else None])
    expect_error(gather, (TABLE, ids), (X, WHOLE), "the rows of a table are sharded over x under jit")
    for f in (gradient, rows):
        check(f, (UPSTREAM, ids, SEGMENTS), (X, X, X), [None] * (1 if f is gradient else 2))
    print("gradient ops and GatherRows")


def test_loops() -> None:
    def scanned(table: Any, ids: Any) -> Any:
        def one(count: Any, ids: Any) -> Any:
            return count + 1, rgj.embedding_bag(table, ids)

        return jax.lax.scan(one, 0, jnp.stack([ids, ids]))[1]

    check(scanned, (TABLE, IDS), (WHOLE, X), [BY_COLUMNS])
    print("loops")


def test_an_id_that_one_device_rejects_ends_the_program_on_all() -> None:
    """A device that stopped alone would leave the others waiting in a collective until XLA aborts the process."""
    bad = IDS.copy()
    bad[5, 1] = ROWS + 3
    flat = bad.reshape(-1)
    case = {"combiner": "sum", "ignore_id": -1, "default_id": 2}

    def total(table: Any, ids: Any) -> Any:
        return rgj.embedding_bag(table, ids).sum()

    def padded(table: Any, ids: Any) -> Any:
        return rgj.embedding_bag(table, ids, **case).sum()

    def gather(table: Any, ids: Any) -> Any:
        return rg.raw_ops.GatherRows(table, ids).sum()

    def gradient(table: Any, ids: Any) -> Any:
        return jax.grad(lambda table: (rgj.embedding_bag(table, ids) ** 2).sum())(table)

    message = f"indices[16] == {ROWS + 3} out of range [0, {ROWS})"
    for f in (total, gradient):
        expect_error(f, (TABLE, bad), (WHOLE, X), message)
    expect_error(padded, (TABLE, bad), (WHOLE, X), str(ROWS + 3))
    expect_error(gather, (TABLE, flat), (WHOLE, X), f"indices[16] = {ROWS + 3} is not in [0, {ROWS})")
    compiled(total, (TABLE, IDS), (WHOLE, X))  # later calls are unaffected
    print("bad ids")


def test_steps_of_tables_split_by_columns() -> None:
    """They consist of JAX operations, so every device steps its columns. In explicit mode JAX rejects their scatter."""
    ids = np.unique(IDS)[:20].astype(np.int32)

    def step(table: Any, values: Any) -> Any:
        optimizer, params = rgj.optim.adagrad(lr=0.1), rgj.Table(table)
        gradient = rgj.Table.holding(rg.IndexedRows(values, jnp.asarray(ids), ROWS, is_unique=True))
        params, state = optimizer.step(params, optimizer.init(params), gradient)
        return params.array, state.slots["sum"].held

    values = UPSTREAM[0] * np.arange(20, dtype=np.float32)[:, None]
    if MODE != "explicit":
        check(step, (TABLE, values), (BY_COLUMNS, BY_COLUMNS), [BY_COLUMNS, None], close=(0, 1))
    print("steps")


def test_unsharded_arrays_in_a_mesh() -> None:
    def gradient(table: Any, ids: Any) -> Any:
        return jax.grad(lambda table: (rgj.embedding_bag(table, ids) ** 2).sum())(table)

    expected = on_one_device(gradient)(TABLE, IDS)
    if hasattr(jax, "set_mesh"):
        with jax.set_mesh(MESH):
            found = jax.jit(gradient)(jnp.asarray(TABLE), jnp.asarray(IDS))
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    print("whole arrays")


warnings.simplefilter("error", UserWarning)
if MODE == "explicit":
    ONE = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:1])
    jax.set_mesh(MESH)
elif hasattr(jax.config, "jax_use_shardy_partitioner"):
    jax.config.update("jax_use_shardy_partitioner", MODE == "shardy")
test_a_matrix_of_ids_stays_split_by_bags()
test_flat_ids_are_gathered_with_a_warning()
test_other_ops()
test_loops()
test_steps_of_tables_split_by_columns()
test_an_id_that_one_device_rejects_ends_the_program_on_all()
test_unsharded_arrays_in_a_mesh()
print("done")
