"""jax.vmap over every kernel op: the bits of a loop over the items, eager, compiled and differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
import rowgrad.jax as rgj
from golden_cases import same_bits
from jax_arrays import placed, split, x64
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.raw_ops import OPS

KERNELS = [op for op in CATALOG.values() if op.kernel is not None]
ITEMS = 3


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def batched(op: Op, names: tuple[str, ...]) -> tuple[dict[str, Any], Any, list[tuple[Any, ...]]]:
    """Return batched arguments, a function of them, and the results of the items one by one."""
    shared, attrs = split(op, np.float32)
    samples = [split(op, np.float32, seed=k)[0] for k in range(ITEMS)]
    if any(x[n].shape != shared[n].shape for x in samples for n in names):  # use the same ids with other values
        samples = [
            {n: x * (k + 2) if x.dtype.kind == "f" else x for n in names for x in (shared[n],)} for k in range(ITEMS)
        ]
    stacked = {name: placed(np.stack([x[name] for x in samples])) for name in names}

    def function(x: dict[str, Any]) -> tuple[Any, ...]:
        return as_tuple(OPS[op.name](**{**shared, **x}, **attrs))

    return stacked, function, [function({n: x[n] for n in names}) for x in samples]


def agree(together: tuple[Any, ...], alone: list[tuple[Any, ...]]) -> None:
    for k, item in enumerate(alone):
        for got, expected in zip(together, item, strict=True):
            assert same_bits(np.asarray(got)[k], np.asarray(expected))


@pytest.mark.parametrize(
    "op", [op for op in KERNELS if op.linear and op.kernel != "sparse_add"], ids=lambda op: op.name
)
def test_batched_values(op: Op) -> None:
    stacked, function, alone = batched(op, op.linear)
    agree(jax.vmap(function)(stacked), alone)


def test_batched_ids() -> None:
    """All arrays of an item batched, in one program for all ops."""
    ops = [op for op in KERNELS if _may_differ(op)]
    assert len(ops) > 30
    made = [batched(op, tuple(a.name for a in op.inputs if not a.host)) for op in ops]
    together = jax.jit(lambda xs: [jax.vmap(f)(x) for x, (_, f, _) in zip(xs, made, strict=True)])([m[0] for m in made])
    for got, (_, _, alone) in zip(together, made, strict=True):
        agree(got, alone)


def _may_differ(op: Op) -> bool:
    """Return whether all arrays of an op may be batched; raise with the reason otherwise."""
    names = tuple(a.name for a in op.inputs if not a.host)
    avals = {
        n: jax.ShapeDtypeStruct((ITEMS, *x.shape), x.dtype) for n, x in split(op, np.float32)[0].items() if n in names
    }
    shared, attrs = split(op, np.float32)
    try:
        jax.eval_shape(jax.vmap(lambda x: OPS[op.name](**{**shared, **x}, **attrs)), avals)
    except rg.errors.InvalidArgumentError as error:
        return not ("vmap" in error.message or "depends on data" in error.message)
    return True


def test_arguments_that_must_not_differ_raise_a_clear_error() -> None:
    grad, ids = jnp.ones((2, 3, 1)), jnp.zeros((2, 4), jnp.int32)
    segments = jnp.zeros(4, jnp.int32)
    with pytest.raises(rg.errors.InvalidArgumentError, match="vmap: indices must be the same"):
        jax.vmap(lambda i: rg.raw_ops.SparseSegmentSumGradV2(grad[0], i, segments, 5, size=4))(ids)


def test_bad_ids_name_the_item() -> None:
    table, segments = jnp.ones((3, 2)), jnp.zeros(2, jnp.int32)
    ids = jnp.array([[0, 1], [2, 3], [0, 0]], jnp.int32)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[1\] == 3") as said:
        jax.vmap(lambda i: rg.raw_ops.SparseSegmentSumWithNumSegments(table, i, segments, 1))(ids)
    assert "in item 1 of the batch" in said.value.__notes__
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of range"):
        jax.jit(jax.vmap(lambda i: rg.raw_ops.SparseSegmentSumWithNumSegments(table, i, segments, 1)))(ids)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_gradients_of_batches(kind: str) -> None:
    op = CATALOG[f"WeightedSparseSegment{kind}WithNumSegments"]
    stacked, function, _ = batched(op, ("data", "weights", "indices"))

    def loss(values: dict[str, Any], ids: Any) -> Any:
        return (function({**values, "indices": ids})[0] ** 2).sum()

    ids = stacked.pop("indices")
    together = jax.jit(jax.vmap(jax.grad(loss)))(stacked, ids)
    one = jax.grad(lambda v: jax.vmap(loss)(v, ids).sum())(stacked)
    for name in stacked:
        alone = [jax.grad(loss)({n: x[k] for n, x in stacked.items()}, ids[k])[name] for k in range(ITEMS)]
        np.testing.assert_allclose(together[name], jnp.stack(alone), rtol=2e-6)
        np.testing.assert_allclose(one[name], jnp.stack(alone), rtol=2e-6)


def test_hessian_of_a_lookup() -> None:
    table, ids, segments = jnp.arange(6.0).reshape(3, 2) / 4, jnp.array([0, 2, 2]), jnp.array([0, 0, 1])

    def loss(table: Any) -> Any:
        return (rg.raw_ops.SparseSegmentSqrtNWithNumSegments(table, ids, segments, 2) ** 3).sum()

    def by_jnp(table: Any) -> Any:
        return (jnp.stack([(table[0] + table[2]) / 2**0.5, table[2]]) ** 3).sum()

    expected = jax.hessian(by_jnp)(table)
    for found in (jax.hessian(loss), jax.jit(jax.hessian(loss)), jax.jacrev(jax.jacrev(loss))):
        np.testing.assert_allclose(found(table), expected, atol=1e-12)


def test_the_rules_work_where_jax_rejects_rank_promotion() -> None:
    table, ids = jnp.arange(12.0).reshape(6, 2), jnp.array([[1, 2], [3, 3]])

    def loss(table: Any, ids: Any) -> Any:
        return (rgj.embedding_bag(table, ids, padding_idx=3, default_id=1) ** 2).sum()

    each = jnp.stack([ids, ids + 1])
    expected = jax.vmap(loss, in_axes=(None, 0))(table, each), jax.hessian(loss)(table, ids)
    with jax.numpy_rank_promotion("raise"):
        found = jax.vmap(loss, in_axes=(None, 0))(table, each), jax.hessian(loss)(table, ids)
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()
