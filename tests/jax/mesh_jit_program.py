"""A program for four devices: sharded arrays under jit, without shard_map.

Its argument is the partitioner, "shardy" or "gspmd", or "explicit" for a mesh with shardings in types. It prints "done"
at the end.
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

import rowgrad as rg
import rowgrad.jax as rgj

MODE = sys.argv[1]
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


def compiled(f: Any, given: Any, specs: Any) -> tuple[Any, Any]:
    """A program for arrays that are sharded so, and its results. A warning is an error."""
    placed = [jax.device_put(x, NamedSharding(MESH, s)) for x, s in zip(given, specs, strict=True)]
    program = jax.jit(f).lower(*placed).compile()
    return program, jax.block_until_ready(program(*placed))


def check(f: Any, given: Any, specs: Any, outputs: Any, close: tuple[int, ...] = ()) -> None:
    """The bits of one device, these shardings of results, and no table that is gathered."""
    program, found = compiled(f, given, specs)
    expected = jax.tree_util.tree_leaves(on_one_device(f)(*given))
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
    """The program of one device."""
    if MODE != "explicit":
        return jax.jit(f)

    def outside(*given: Any) -> Any:
        with jax.set_mesh(ONE):
            return jax.jit(f)(*given)

    return outside


def rejected(f: Any, given: Any, specs: Any, words: str) -> None:
    said = ""
    try:
        compiled(f, given, specs)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        said = str(error)
    assert words in said, (specs, said)


def look_up(table: Any, ids: Any, weights: Any, how: Any) -> Any:
    return rgj.embedding_bag(table, ids, per_sample_weights=weights if how[1] else None, **how[0])


HOWS = list(product(({}, {"combiner": "sqrtn", "ignore_id": -1}, {"combiner": "sum", "ignore_id": -1, "default_id": 2}),
                    (False, True)))  # fmt: skip
HOWS = [*(HOWS if MODE == "shardy" else HOWS[:1] + HOWS[-1:]), ({"max_norm": 1.0}, False)]


def test_a_matrix_of_ids_stays_split_by_bags() -> None:
    for how in HOWS:
        given = TABLE, PADDED if "ignore_id" in how[0] else IDS, WEIGHTS

        def forward(*x: Any, how: Any = how) -> Any:
            return look_up(*x, how)

        check(forward, given, (WHOLE, X, X), [X])
        rejected(forward, given, (X, X, X), "the rows of a table are sharded over x under jit")
        rejected(
            forward, given, (X, WHOLE, WHOLE), "rowgrad.jax.sharded: shard_table, and embedding_bag inside shard_map"
        )
        if "max_norm" in how[0]:
            rejected(forward, given, (BY_COLUMNS, X, X), "the columns of a table are sharded over x under jit")
        else:
            check(forward, given, (BY_COLUMNS, WHOLE, WHOLE), [BY_COLUMNS])
            check(forward, given, (BY_COLUMNS, X, X), [BY_COLUMNS])
        gradients(how, given)
    print("lookups of a matrix")


def gradients(how: Any, given: Any) -> None:
    def dense(table: Any, ids: Any, weights: Any, upstream: Any) -> Any:
        def loss(table: Any, weights: Any) -> Any:
            out = look_up(table, ids, weights, how)
            return (out * upstream).sum(), out

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(table, weights)

    def rows(table: Any, ids: Any, weights: Any, upstream: Any) -> Any:
        def loss(table: Any) -> Any:
            out = look_up(table, ids, weights, how)
            return (out * upstream).sum(), out

        (_, out), grads = rgj.value_and_rows(loss, has_aux=True)(rgj.Table(table))
        return out, grads.rows.indices, grads.rows.values

    given = *given, UPSTREAM
    check(dense, given, (WHOLE, X, X, X), [None, None, X], close=(0, 1) if "max_norm" in how[0] else (1,))
    rejected(dense, given, (X, X, X, X), "the rows of a table are sharded over x under jit")
    if "max_norm" not in how[0]:
        check(rows, given, (WHOLE, X, X, X), [X, None, None])
        rejected(rows, given, (X, X, X, X), "the rows of a table are sharded over x under jit")
        if MODE != "explicit":  # where the product with what is sharded by bags is an error of JAX
            check(dense, given, (BY_COLUMNS, X, X, X), [None, None, BY_COLUMNS], close=(1,))


def test_flat_ids_are_gathered_with_a_warning() -> None:
    def by_table(table: Any, ids: Any, segments: Any) -> Any:
        return rgj.Table(table).bags(ids, segments, BAGS)

    def by_op(table: Any, ids: Any, segments: Any) -> Any:
        return rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, BAGS)

    def by_segments(table: Any, ids: Any, segments: Any) -> Any:
        return rgj.embedding_bag(table, ids, segment_ids=segments, num_bags=BAGS)

    given = TABLE, IDS.reshape(-1), SEGMENTS
    for f in (by_table, by_op, by_segments):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            check(f, given, (WHOLE, X, X), [None])
        assert "gathered on every device" in str(said[0].message), said
        assert "Pass ids to embedding_bag as a matrix" in str(said[0].message), said
        check(f, given, (WHOLE, WHOLE, WHOLE), [None])
        check(f, given, (BY_COLUMNS, WHOLE, WHOLE), [BY_COLUMNS if MODE != "explicit" else None])
        for specs in ((X, WHOLE, WHOLE), (X, X, X)):
            rejected(f, given, specs, "the rows of a table are sharded over x under jit")
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
    rejected(gather, (TABLE, ids), (X, WHOLE), "the rows of a table are sharded over x under jit")
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
    """A device that left alone would let the others wait for it in the sum, until XLA ends the process."""
    bad = IDS.copy()
    bad[5, 1] = ROWS + 3
    flat = bad.reshape(-1)
    how = {"combiner": "sum", "ignore_id": -1, "default_id": 2}

    def total(table: Any, ids: Any) -> Any:
        return rgj.embedding_bag(table, ids).sum()

    def padded(table: Any, ids: Any) -> Any:
        return rgj.embedding_bag(table, ids, **how).sum()

    def gather(table: Any, ids: Any) -> Any:
        return rg.raw_ops.GatherRows(table, ids).sum()

    def gradient(table: Any, ids: Any) -> Any:
        return jax.grad(lambda table: (rgj.embedding_bag(table, ids) ** 2).sum())(table)

    words = f"indices[16] == {ROWS + 3} out of range [0, {ROWS})"
    for f in (total, gradient):
        rejected(f, (TABLE, bad), (WHOLE, X), words)
    rejected(padded, (TABLE, bad), (WHOLE, X), str(ROWS + 3))
    rejected(gather, (TABLE, flat), (WHOLE, X), f"indices[16] = {ROWS + 3} is not in [0, {ROWS})")
    compiled(total, (TABLE, IDS), (WHOLE, X))  # the next call is a call like any other
    print("bad ids")


def test_arrays_that_are_not_sharded_in_a_mesh() -> None:
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
test_an_id_that_one_device_rejects_ends_the_program_on_all()
test_arrays_that_are_not_sharded_in_a_mesh()
print("done")
