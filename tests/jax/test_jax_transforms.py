"""Kernel ops inside JAX programs: compiled loops, checkpoints, donated buffers, plans, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
import rowgrad.jax as rgj
from golden_cases import same_bits
from jax_arrays import x64
from rowgrad.raw_ops import OPS

ROWS, COLUMNS, BAGS = 50, 4, 6


def batch(seed: int = 0, n: int = 40) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return table, rng.integers(0, ROWS, n).astype(np.int32), np.sort(rng.integers(0, BAGS, n)).astype(np.int32)


def mean(table: Any, ids: Any, segments: Any) -> Any:
    return rg.raw_ops.SparseSegmentMeanWithNumSegments(table, ids, segments, BAGS)


def loss(table: Any, ids: Any, segments: Any) -> Any:
    return (mean(table, ids, segments) ** 2).sum()


def numpy_gradient(table: np.ndarray, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
    return rg.raw_ops.SparseSegmentMeanGrad(2 * mean(table, ids, segments), ids, segments, ROWS)


def test_a_loop_of_steps_has_the_bits_of_steps_one_by_one() -> None:
    table, *_ = batch()
    batches = [batch(k)[1:] for k in range(5)]
    ids, segments = (np.stack(x) for x in zip(*batches, strict=True))

    def step(table: Any, given: Any) -> Any:
        rate = jnp.float32(0.125)  # a power of two: its product is exact, so that nothing is rounded but the sum
        return table - rate * jax.grad(loss)(table, *given), None

    looped, _ = jax.jit(lambda t: jax.lax.scan(step, t, (ids, segments)))(table)
    for given in batches:
        table = table - np.float32(0.125) * numpy_gradient(table, *given)
    assert same_bits(np.asarray(looped), table)


def test_a_checkpoint_computes_again_and_changes_nothing() -> None:
    table, ids, segments = batch()
    kept = jax.jit(jax.grad(loss))(table, ids, segments)
    again = jax.jit(jax.grad(jax.checkpoint(loss)))(table, ids, segments)
    assert same_bits(np.asarray(kept), np.asarray(again))
    assert same_bits(np.asarray(kept), numpy_gradient(table, ids, segments))


def test_donated_buffers() -> None:
    table, ids, segments = batch()
    expected = table - numpy_gradient(table, ids, segments)
    step = jax.jit(lambda t, i, s: t - jax.grad(loss)(t, i, s), donate_argnums=0)
    given = jax.device_put(table.copy())
    assert same_bits(np.asarray(step(given, ids, segments)), expected)
    assert given.is_deleted()
    # An eager result lies on memory of rowgrad's own, which may be donated like any other.
    made = rg.raw_ops.GatherRows(jnp.asarray(table), np.arange(ROWS))
    assert same_bits(np.asarray(step(made, ids, segments)), expected)


def test_one_shape_is_traced_once() -> None:
    traced = 0

    @jax.jit
    def gradient(table: Any, ids: Any, segments: Any) -> Any:
        nonlocal traced
        traced += 1
        return jax.grad(loss)(table, ids, segments)

    for seed in range(10):
        given = batch(seed)
        assert same_bits(np.asarray(gradient(*given)), numpy_gradient(*given))
    assert traced == 1


def test_a_plan_is_a_tree_of_arrays() -> None:
    table, ids, segments = batch()
    plan = rg.Plan(ids, segments, ROWS, BAGS)
    grad = np.asarray(mean(table, ids, segments))
    compiled = jax.jit(lambda g, plan: rg.raw_ops.SparseSegmentMeanGrad(g, plan=plan))(grad, plan)
    assert same_bits(np.asarray(compiled), rg.raw_ops.SparseSegmentMeanGrad(grad, ids, segments, ROWS))
    leaves, form = jax.tree.flatten(plan)
    assert [jnp.asarray(x).shape for x in leaves] == [x.shape for x in plan.parts()[:-1]]
    assert jax.tree.unflatten(form, leaves) == plan
    rows = jax.jit(lambda g, plan: rg.raw_ops.SparseSegmentMeanGradV2(g, plan=plan))(grad, plan)
    assert same_bits(np.asarray(rows.sorted_unique_indices), np.unique(ids))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_of_16_bits_do_not_stop_growing(dtype: Any) -> None:
    grad, ids = jnp.ones((4096, 1), dtype), jnp.zeros(4096, jnp.int32)
    segments = jnp.arange(4096, dtype=jnp.int32)
    dense = jax.jit(lambda g: rg.raw_ops.SparseSegmentSumGrad(g, ids, segments, 2))(grad)
    rows = jax.jit(lambda g: rg.raw_ops.SparseSegmentSumGradV2(g, ids, segments, 2, size=1))(grad)
    bag = jax.jit(lambda t: rg.raw_ops.SparseSegmentSumWithNumSegments(t, segments, ids, 1))(grad)
    assert (float(dense[0, 0]), float(rows.output[0, 0]), float(bag[0, 0])) == (4096, 4096, 4096)


def test_without_64_bits_an_op_takes_32() -> None:
    """What an op has in int64 whatever its types are is int32 in JAX, in and out, eager and compiled."""
    with x64(False):
        map_, grad = jnp.array([4, 0, 2], jnp.int32), jnp.arange(6.0)
        eager = rg.raw_ops.SparseFillEmptyRowsGrad(map_, grad)
        compiled = jax.jit(rg.raw_ops.SparseFillEmptyRowsGrad)(map_, grad)
        expected = rg.raw_ops.SparseFillEmptyRowsGrad(np.asarray(map_), np.asarray(grad))
        for a, b, c in zip(eager, compiled, expected, strict=True):
            assert same_bits(np.asarray(a), c)
            assert same_bits(np.asarray(b), c)
        positions = jax.jit(OPS["RowPositions"])(jnp.array([1, 5, 7]), jnp.array([7, 1]))
        assert (positions.dtype, positions.tolist()) == (jnp.int32, [2, 0])
        filled = rg.raw_ops.SparseFillEmptyRows([[0, 1], [2, 0]], jnp.array([1.0, 2.0]), [3, 2], 0.0)
        assert filled.output_indices.dtype == jnp.int32
        assert filled.output_indices.tolist() == [[0, 1], [1, 0], [2, 0]]
        with pytest.raises(rg.errors.InvalidArgumentError, match="values of int32"):
            rg.raw_ops.SparseSlice([[1 << 40, 0]], jnp.array([1.0]), [1 << 41, 1], [0, 0], [1 << 41, 1])


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_compiled_call_raises_the_same_message_for_bad_ids() -> None:
    table, ids, segments = batch()
    ids[7] = ROWS
    with pytest.raises(rg.errors.InvalidArgumentError) as said:
        mean(jnp.asarray(table), ids, segments)
    with pytest.raises(jax.errors.JaxRuntimeError) as compiled:
        jax.jit(mean)(table, ids, segments).block_until_ready()
    assert said.value.message in str(compiled.value)
    assert "SparseSegmentMeanWithNumSegments" in str(compiled.value)
    assert str(said.value) in str(compiled.value)
    assert f"in SparseSegmentMeanWithNumSegments(data=float32[{ROWS},4], indices=int32[40]" in str(compiled.value)
    assert "INVALID_ARGUMENT" in str(compiled.value)
    ids[7] = 0  # and the program goes on as if nothing had been
    assert same_bits(np.asarray(jax.jit(mean)(table, ids, segments)), mean(table, ids, segments))


def test_more_rows_than_fit_are_refused() -> None:
    table, ids, segments = batch()
    few = jax.jit(lambda t: rg.raw_ops.SparseSegmentSumGradV2(t[:BAGS], ids, segments, ROWS, size=3))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"size must be at least the number of looked-up rows, \d+, got 3"
    ):
        few(table)[0].block_until_ready()


def test_a_traced_size_is_refused() -> None:
    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="num_segments determines a shape"):
        jax.jit(rg.raw_ops.SparseSegmentSumWithNumSegments)(table, ids, segments, BAGS)
    static = jax.jit(rg.raw_ops.SparseSegmentSumWithNumSegments, static_argnums=3)
    expected = rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, BAGS)
    assert same_bits(np.asarray(static(table, ids, segments, BAGS)), expected)


def test_shapes_and_dtypes_are_refused_while_tracing() -> None:
    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="same size"):
        jax.jit(mean)(table, ids[1:], segments)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"data|T"):
        jax.jit(mean)(table.astype(np.int32), ids, segments)
    with pytest.raises(rg.errors.InvalidArgumentError, match="key"):
        mean(jax.random.key(0), jnp.asarray(ids), segments)


def test_arrays_of_one_call_belong_together() -> None:
    pytest.importorskip("torch.nn")  # by the bare name the folder of its tests would be found
    import torch

    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="must belong to one array library"):
        mean(jnp.asarray(table), torch.from_numpy(ids), segments)


def test_results_are_on_the_device_of_the_arguments() -> None:
    table, ids, segments = batch()
    device = jax.devices("cpu")[0]
    assert mean(jax.device_put(table, device), ids, segments).devices() == {device}


def test_out_is_refused() -> None:
    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="absent for JAX arrays"):
        rg.raw_ops.SparseSegmentSum(jnp.asarray(table), ids, segments, out=np.zeros((BAGS, COLUMNS), np.float32))


@pytest.mark.parametrize("columns", [0, 2])
def test_sizes_beyond_all_memory_are_refused_while_tracing(columns: int) -> None:
    with pytest.raises(rg.errors.ResourceExhaustedError):
        jax.jit(lambda t: OPS["SparseSegmentSumWithNumSegments"](t, [0], [0], 1 << 61))(jnp.ones((2, columns)))
    with pytest.raises(rg.errors.ResourceExhaustedError):
        jax.jit(lambda t: OPS["SparseSegmentSumGradV2"](t, [0], [0], 2, size=1 << 61))(jnp.ones((2, columns)))


def test_numpy_floats_are_those_of_jax() -> None:
    """Eager as compiled: float64 becomes float32 before anything is added up."""
    table, ids, segments = batch()
    wide = table.astype(np.float64) * 1.1
    eager = mean(wide, jnp.asarray(ids), segments)
    assert same_bits(np.asarray(eager), np.asarray(jax.jit(lambda i: mean(wide, i, segments))(ids)))


def test_the_shape_of_an_array_is_not_an_array() -> None:
    _, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="must be an array; got ShapeDtypeStruct"):
        mean(jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32), jnp.asarray(ids), segments)


@pytest.mark.parametrize("way", ["plain", "weighted", "bags"])
def test_gradients_are_those_of_the_ids_at_the_call(way: str) -> None:
    table, ids, segments = batch()
    weights = np.linspace(0.5, 2.0, len(ids)).astype(np.float32)

    def look_up(table: Any) -> Any:
        if way == "weighted":
            return rg.raw_ops.WeightedSparseSegmentSumWithNumSegments(table, ids, segments, weights, BAGS)
        if way == "bags":
            return rgj.embedding_bag(table, ids, segment_ids=segments, num_bags=BAGS)
        return mean(table, ids, segments)

    _, backward = jax.vjp(look_up, jnp.asarray(table))
    upstream = jnp.ones((BAGS, COLUMNS))
    expected = np.asarray(backward(upstream)[0])
    ids[:], segments[:], weights[:] = 0, 0, 9.0
    assert same_bits(np.asarray(backward(upstream)[0]), expected)
