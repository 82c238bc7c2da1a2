"""Kernel ops inside JAX programs: compiled loops, rematerialization, donated buffers, plans, errors."""

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


def test_a_compiled_loop_equals_single_steps() -> None:
    table, *_ = batch()
    batches = [batch(k)[1:] for k in range(5)]
    ids, segments = (np.stack(x) for x in zip(*batches, strict=True))

    def step(table: Any, arrays: Any) -> Any:
        rate = jnp.float32(0.125)  # a power of two: the product is exact, so only the sum is rounded
        return table - rate * jax.grad(loss)(table, *arrays), None

    looped, _ = jax.jit(lambda t: jax.lax.scan(step, t, (ids, segments)))(table)
    for args in batches:
        table = table - np.float32(0.125) * numpy_gradient(table, *args)
    assert same_bits(np.asarray(looped), table)


def test_jax_checkpoint_recomputes_the_same_bits() -> None:
    table, ids, segments = batch()
    without_checkpoint = jax.jit(jax.grad(loss))(table, ids, segments)
    again = jax.jit(jax.grad(jax.checkpoint(loss)))(table, ids, segments)
    assert same_bits(np.asarray(without_checkpoint), np.asarray(again))
    assert same_bits(np.asarray(without_checkpoint), numpy_gradient(table, ids, segments))


def test_donated_buffers() -> None:
    table, ids, segments = batch()
    expected = table - numpy_gradient(table, ids, segments)
    step = jax.jit(lambda t, i, s: t - jax.grad(loss)(t, i, s), donate_argnums=0)
    donated = jax.device_put(table.copy())
    assert same_bits(np.asarray(step(donated, ids, segments)), expected)
    assert donated.is_deleted()
    # Memory of an eager result belongs to rowgrad and may be donated like any other.
    result = rg.raw_ops.GatherRows(jnp.asarray(table), np.arange(ROWS))
    assert same_bits(np.asarray(step(result, ids, segments)), expected)


def test_one_shape_is_traced_once() -> None:
    traced = 0

    @jax.jit
    def gradient(table: Any, ids: Any, segments: Any) -> Any:
        nonlocal traced
        traced += 1
        return jax.grad(loss)(table, ids, segments)

    for seed in range(10):
        args = batch(seed)
        assert same_bits(np.asarray(gradient(*args)), numpy_gradient(*args))
    assert traced == 1


def test_plan_is_a_pytree() -> None:
    table, ids, segments = batch()
    plan = rg.Plan(ids, segments, ROWS, BAGS)
    grad = np.asarray(mean(table, ids, segments))
    compiled = jax.jit(lambda g, plan: rg.raw_ops.SparseSegmentMeanGrad(g, plan=plan))(grad, plan)
    assert same_bits(np.asarray(compiled), rg.raw_ops.SparseSegmentMeanGrad(grad, ids, segments, ROWS))
    leaves, structure = jax.tree.flatten(plan)
    assert [jnp.asarray(x).shape for x in leaves] == [x.shape for x in plan.parts()[:-1]]
    assert jax.tree.unflatten(structure, leaves) == plan
    rows = jax.jit(lambda g, plan: rg.raw_ops.SparseSegmentMeanGradV2(g, plan=plan))(grad, plan)
    assert same_bits(np.asarray(rows.sorted_unique_indices), np.unique(ids))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit_sums_do_not_saturate(dtype: Any) -> None:
    grad, ids = jnp.ones((4096, 1), dtype), jnp.zeros(4096, jnp.int32)
    segments = jnp.arange(4096, dtype=jnp.int32)
    dense = jax.jit(lambda g: rg.raw_ops.SparseSegmentSumGrad(g, ids, segments, 2))(grad)
    rows = jax.jit(lambda g: rg.raw_ops.SparseSegmentSumGradV2(g, ids, segments, 2, size=1))(grad)
    bag = jax.jit(lambda t: rg.raw_ops.SparseSegmentSumWithNumSegments(t, segments, ids, 1))(grad)
    assert (float(dense[0, 0]), float(rows.output[0, 0]), float(bag[0, 0])) == (4096, 4096, 4096)


def test_int64_becomes_int32_without_x64() -> None:
    """Arguments and results that are always int64 become int32, eager and compiled."""
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


# -- errors -----------------------------------------------------------------------------------------------------------


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
    ids[7] = 0  # the program still works afterwards
    assert same_bits(np.asarray(jax.jit(mean)(table, ids, segments)), mean(table, ids, segments))


def test_more_rows_than_size_raise() -> None:
    table, ids, segments = batch()
    few = jax.jit(lambda t: rg.raw_ops.SparseSegmentSumGradV2(t[:BAGS], ids, segments, ROWS, size=3))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"size must be at least the number of looked-up rows, \d+, got 3"
    ):
        few(table)[0].block_until_ready()


def test_traced_sizes_raise() -> None:
    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="num_segments determines a shape"):
        jax.jit(rg.raw_ops.SparseSegmentSumWithNumSegments)(table, ids, segments, BAGS)
    static = jax.jit(rg.raw_ops.SparseSegmentSumWithNumSegments, static_argnums=3)
    expected = rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, BAGS)
    assert same_bits(np.asarray(static(table, ids, segments, BAGS)), expected)


def test_wrong_shapes_and_dtypes_raise_while_tracing() -> None:
    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="same size"):
        jax.jit(mean)(table, ids[1:], segments)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"data|T"):
        jax.jit(mean)(table.astype(np.int32), ids, segments)
    with pytest.raises(rg.errors.InvalidArgumentError, match="key"):
        mean(jax.random.key(0), jnp.asarray(ids), segments)


def test_mixing_arrays_of_different_libraries_raises() -> None:
    pytest.importorskip("torch.nn")  # not "torch", which would find the folder tests/torch
    import torch

    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="indices is an array of torch, but data is one of jax"):
        mean(jnp.asarray(table), torch.from_numpy(ids), segments)


def test_results_are_on_the_device_of_the_arguments() -> None:
    table, ids, segments = batch()
    device = jax.devices("cpu")[0]
    assert mean(jax.device_put(table, device), ids, segments).devices() == {device}


def test_out_raises() -> None:
    table, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="absent for JAX arrays"):
        rg.raw_ops.SparseSegmentSum(jnp.asarray(table), ids, segments, out=np.zeros((BAGS, COLUMNS), np.float32))


@pytest.mark.parametrize("columns", [0, 2])
def test_results_beyond_memory_raise_while_tracing(columns: int) -> None:
    with pytest.raises(rg.errors.ResourceExhaustedError):
        jax.jit(lambda t: OPS["SparseSegmentSumWithNumSegments"](t, [0], [0], 1 << 61))(jnp.ones((2, columns)))
    with pytest.raises(rg.errors.ResourceExhaustedError):
        jax.jit(lambda t: OPS["SparseSegmentSumGradV2"](t, [0], [0], 2, size=1 << 61))(jnp.ones((2, columns)))


def test_numpy_floats_are_converted_to_jax_dtypes() -> None:
    """Eager as compiled: float64 becomes float32 before any sum."""
    table, ids, segments = batch()
    wide = table.astype(np.float64) * 1.1
    eager = mean(wide, jnp.asarray(ids), segments)
    assert same_bits(np.asarray(eager), np.asarray(jax.jit(lambda i: mean(wide, i, segments))(ids)))


def test_array_shapes_as_arguments() -> None:
    _, ids, segments = batch()
    with pytest.raises(rg.errors.InvalidArgumentError, match="must be an array; got ShapeDtypeStruct"):
        mean(jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32), jnp.asarray(ids), segments)


@pytest.mark.parametrize("way", ["plain", "weighted", "bags"])
def test_gradients_use_the_ids_at_the_time_of_the_call(way: str) -> None:
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
