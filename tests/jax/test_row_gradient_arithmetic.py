"""Arithmetic on row gradients: plain array functions raise, rowgrad.jax.rows matches them on dense gradients."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

import rowgrad as rg
from jax_arrays import x64
from rowgrad.jax import Table, optim, rows, value_and_rows

ROWS, COLUMNS = 9, 2
IDS = [2, 7, ROWS]


@pytest.fixture(autouse=True)
def _narrow() -> Iterator[None]:
    with x64(False):
        yield


def by_rows(seed: int = 0, ids: Any = IDS, is_unique: bool = True) -> rg.IndexedRows:
    """Return a row gradient whose last row is padding with arbitrary values."""
    values = np.random.default_rng(seed).standard_normal((len(ids), COLUMNS)).astype(np.float32)
    return rg.IndexedRows(jnp.asarray(values), jnp.asarray(ids), ROWS, is_unique)


def dense(gradient: rg.IndexedRows) -> Any:
    table = np.zeros((ROWS, COLUMNS), np.float32)
    for row, value in zip(np.asarray(gradient.indices), np.asarray(gradient.values), strict=True):
        if 0 <= row < ROWS:
            table[row] += value
    return table


def grads() -> Any:
    return {"items": Table.holding(by_rows()), "layer": jnp.asarray([3.0, -4.0])}


def updated_by(transformation: Any) -> Any:
    return lambda tree: transformation.update(tree, transformation.init(tree))[0]


def on_a_mesh(function: Any) -> Any:
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec()
    if hasattr(jax, "shard_map"):
        mapped: Any = partial(jax.shard_map, check_vma=False)
    else:
        from jax.experimental.shard_map import shard_map as mapped
    return mapped(function, mesh=mesh, in_specs=spec, out_specs=spec)


def leafwise(function: Any) -> Any:
    return lambda tree: jax.tree.map(function, tree)


def in_a_scan(tree: Any) -> Any:
    return jax.lax.scan(lambda c, _: (jax.tree.map(lambda x: x * 2, c), None), tree, None, length=2)


COMPILERS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "shard_map": on_a_mesh,
    "vmap": lambda f: lambda g: jax.vmap(f)(jax.tree.map(lambda x: jnp.stack([x, x]), g)),
    "grad": lambda f: lambda g: jax.grad(lambda c: jax.tree.leaves(f(rows.scale(g, c)))[0].sum())(1.0),
}


@pytest.mark.parametrize("compile_", COMPILERS.values(), ids=COMPILERS)
@pytest.mark.parametrize(
    ("change", "function"),
    [
        (leafwise(lambda x: 2 * x), "scale"),
        (leafwise(lambda x: x / 2), "scale"),
        (leafwise(lambda x: -x), "scale"),
        (lambda g: jax.tree.map(lambda x, y: x + y, g, g), "add"),
        (lambda g: jax.tree.map(lambda x, y: x - y, g, g), "add"),
        (leafwise(abs), "global_norm"),
        (leafwise(lambda x: x**2), "global_norm"),
        (leafwise(lambda x: x.sum()), "global_norm"),
        (leafwise(lambda x: x.clip(-1, 1)), "clip"),
        (leafwise(lambda x: x.astype(jnp.bfloat16)), "on_rows"),
        (leafwise(lambda x: x.real), "global_norm"),
        (in_a_scan, "scale"),
        (updated_by(optax.scale(2)), "scale"),
        (updated_by(optax.trace(0.9)), "on_rows"),
        (updated_by(optax.ema(0.9)), "on_rows"),
        (updated_by(optax.sgd(0.1)), "scale"),
        (updated_by(optax.adam(0.1)), "on_rows"),
        (updated_by(optax.clip_by_global_norm(1.0)), "on_rows"),
        (optax.global_norm, "global_norm"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_leafwise_operators_and_methods_name_the_function_to_use(change: Any, function: str, compile_: Any) -> None:
    with pytest.raises(rg.errors.RowArithmeticError, match=rf"rowgrad\.jax\.rows\.{function}"):
        compile_(change)(grads())
    assert issubclass(rg.errors.RowArithmeticError, TypeError)


@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "change",
    [
        lambda g: jax.tree.map(jnp.add, g, g),
        *map(leafwise, [jnp.abs, jnp.square, jnp.sum, jnp.negative, lambda x: jnp.clip(x, -1, 1)]),
        leafwise(lambda x: jnp.where(True, x, 0)),
        leafwise(lambda x: jax.lax.convert_element_type(x, jnp.float32)),
        updated_by(optax.clip(1)),
        on_a_mesh(lambda g: jax.lax.psum(g, "x")),
    ],
)
def test_functions_of_jax_on_leaves_name_the_module_to_use(change: Any, compile_: Any) -> None:
    """JAX itself raises, because it checks the dtype before any code of rowgrad runs."""
    with pytest.raises((TypeError, ValueError), match=r"row ids: use rowgrad\.jax\.rows\.add, scale, clip, psum"):
        compile_(change)(grads())


def test_leaves_are_guarded_for_every_constructor() -> None:
    gradient = by_rows()
    stacked = jax.tree.map(lambda *x: jnp.stack(x), gradient, gradient)
    for made in (
        gradient,
        jax.jit(lambda g: g)(gradient),
        jax.device_put(gradient),
        jax.tree.map(lambda x: x[0], stacked),
        jax.tree.map(jnp.zeros_like, gradient),
        pickle.loads(pickle.dumps(gradient)),
        copy.deepcopy(gradient),
        jax.tree.map(copy.deepcopy, gradient),
        jax.tree.map(lambda x: pickle.loads(pickle.dumps(x)), gradient),
    ):
        leaf = jax.tree.leaves(made)[1]
        assert isinstance(leaf, jax.Array)
        assert leaf.shape == (3,)
        with pytest.raises(rg.errors.RowArithmeticError, match=r"the operator mul is not defined .*rows\.scale on"):
            leaf * leaf
        assert bool((leaf == leaf).all())
        assert jnp.stack([leaf, leaf])[0].shape == leaf[None][0].shape == (3,)
    key = jax.random.key(0)
    assert jax.tree.leaves(rg.IndexedRows(jnp.ones(1), key[None], 9))[1].dtype == key.dtype
    with pytest.raises(TypeError) as error:  # keys of other types are not affected
        jax.tree.leaves(rg.IndexedRows(jnp.ones(1), key[None], 9))[1] * 2
    assert not isinstance(error.value, rg.errors.OpError)


def test_operators_name_the_functions_to_use() -> None:
    gradient = by_rows()
    for operate in (
        lambda g: 2 * g,
        lambda g: g / 2,
        lambda g: g + g,
        lambda g: -g,
        lambda g: g - jnp.ones((ROWS, COLUMNS)),
        lambda g: jnp.ones((ROWS, COLUMNS)) * g,
        lambda g: np.ones((ROWS, COLUMNS), np.float32) - g,
    ):
        with pytest.raises(rg.errors.RowArithmeticError, match=r"rowgrad\.jax\.rows\.on_rows"):
            operate(gradient)
    numpy = rg.IndexedRows(np.ones((1, 2)), np.array([1]), ROWS)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"rowgrad\.densify"):
        np.ones((ROWS, 2)) + numpy


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
def test_row_gradients_pass_through_transformations_unchanged(wide: bool) -> None:
    with x64(wide):
        ids = [-5, 2, 7, 2**31 - 1] if not wide else [-(2**40), 2, 7, 2**60]
        gradient = by_rows(ids=ids)

        def same(found: Any) -> None:
            assert found.indices.tolist() == ids
            assert found.indices.dtype == gradient.indices.dtype == (jnp.int64 if wide else jnp.int32)
            assert found.values.tolist() == gradient.values.tolist()
            assert (found.num_rows, found.is_unique) == (ROWS, True)

        same(jax.jit(lambda g: g)(gradient))
        same(jax.tree.map(lambda x: x, gradient))
        same(pickle.loads(pickle.dumps(gradient)))
        same(jax.device_put(gradient))
        same(jax.device_get(gradient))
        assert isinstance(jax.device_get(gradient).indices, np.ndarray)
        same(jax.tree.map(pickle.loads, jax.tree.map(pickle.dumps, gradient)))  # leaf by leaf
        same(jax.lax.scan(lambda c, _: (c, None), gradient, None, length=2)[0])
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), gradient, gradient)
        assert stacked.indices.tolist() == [ids, ids]
        same(jax.tree.map(lambda x: x[1], stacked))
        for each in range(2):
            same(jax.tree.map(lambda x, k=each: x[k], jax.vmap(lambda g: g)(stacked)))
        same(jax.lax.cond(True, lambda g: g, lambda g: jax.tree.map(jnp.zeros_like, g), gradient))
        shapes = jax.eval_shape(lambda g: g, gradient)
        assert (shapes.indices.shape, shapes.indices.dtype) == ((4,), gradient.indices.dtype)
        same(jax.jit(lambda g: g).lower(shapes).compile()(gradient))
        copied = jax.tree.map(jnp.copy, gradient)
        same(jax.jit(lambda g: g, donate_argnums=0)(copied))
        nothing = jax.tree.map(jnp.zeros_like, gradient)
        assert nothing.indices.tolist() == [-1] * 4
        assert jax.tree.map(lambda _: "leaf", gradient).indices == "leaf"


def test_numpy_ids_beyond_32_bits_raise() -> None:
    gradient = rg.IndexedRows(np.ones((1, 2), np.float32), np.array([2**32 + 1]), ROWS)
    with pytest.raises(rg.errors.InvalidArgumentError, match="indices"):
        jax.jit(lambda g: g)(gradient)


@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_functions_on_rows_equal_those_on_dense_gradients(compile_: Any) -> None:
    not_unique = by_rows(1, ids=[7, -1, 3, 7], is_unique=False)
    one = {"a": Table.holding(by_rows()), "b": not_unique, "w": jnp.asarray([3.0, -4.0]), "none": None}
    two = {"a": Table.holding(by_rows(2)), "b": jnp.ones((ROWS, COLUMNS)), "w": jnp.ones(2), "none": None}

    def plain(tree: Any) -> Any:
        return jax.tree.map(np.asarray, rows.to_dense(tree))

    def check(found: Any, expected: Any) -> None:
        for a, b in zip(*map(jax.tree.leaves, (plain(found), expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)

    a, b = plain(one), plain(two)
    np.testing.assert_array_equal(a["a"].array, dense(by_rows()))
    np.testing.assert_allclose(a["b"], dense(not_unique))
    check(compile_(lambda g: rows.scale(g, -2))(one), jax.tree.map(lambda x: -2 * x, a))
    check(compile_(rows.add)(one, two), jax.tree.map(np.add, a, b))
    check(compile_(rows.add)(two, one, one), jax.tree.map(lambda x, y: y + 2 * x, a, b))
    check(compile_(rows.zeros_like)(one), jax.tree.map(np.zeros_like, a))
    check(compile_(lambda g: rows.clip(g, 0.5))(one), jax.tree.map(lambda x: np.clip(x, -0.5, 0.5), a))
    norm = np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(a)))
    np.testing.assert_allclose(compile_(rows.global_norm)(one), norm, rtol=1e-6)
    for limit in (0.5, 1e3):
        expected = optax.clip_by_global_norm(limit).update(a, optax.EmptyState())[0]
        check(compile_(lambda g, limit=limit: rows.clip_by_global_norm(g, limit))(one), expected)
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), {"a": one["a"], "w": one["w"]}, {"a": two["a"], "w": two["w"]})
    for mean in (False, True):
        expected = jax.tree.map(lambda x, y, k=1 + mean: (x + y) / k, *({"a": t["a"], "w": t["w"]} for t in (a, b)))
        check(compile_(lambda g, mean=mean: rows.accumulate(g, mean=mean))(stacked), expected)


def test_adding_gradients_of_different_tables_raises() -> None:
    other = rg.IndexedRows(jnp.ones((1, COLUMNS)), jnp.asarray([0]), ROWS + 1)
    for one, two in ((by_rows(), other), (by_rows(), jnp.ones(COLUMNS)), (jnp.ones(3), jnp.ones(()))):
        with pytest.raises(rg.errors.InvalidArgumentError, match="must have the same shape"):
            rows.add(one, two)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_optax_adds_row_updates_to_parameters(dtype: Any) -> None:
    """With the bits of optim.apply_updates; rows without an update keep theirs, including −0.0."""
    table = jnp.asarray(np.random.default_rng(3).standard_normal((ROWS, COLUMNS)), dtype).at[0].set(-0.0)
    params = {"items": Table(table), "layer": jnp.ones(2), "bare": table}
    updates = {**grads(), "bare": by_rows(4, ids=[3, 0, 3, 5], is_unique=False)}
    for compile_ in (lambda f: f, jax.jit):
        found = compile_(optax.apply_updates)(params, updates)
        for a, b in zip(*map(jax.tree.leaves, (found, optim.apply_updates(params, updates))), strict=True):
            assert a.dtype == b.dtype
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    narrow = np.asarray(table, np.float32)
    host, expected = narrow + by_rows(), optim.apply_updates(jnp.asarray(narrow), by_rows())
    assert np.asarray(host).tobytes() == np.asarray(expected).tobytes()


# -- transformations of optax -----------------------------------------------------------------------------------------

numbers = st.floats(0.0625, 64.0)
TRANSFORMATIONS = st.one_of(
    st.builds(optax.scale, st.floats(-10.0, 10.0)),
    st.builds(optax.clip, numbers),
    st.builds(optax.clip_by_global_norm, numbers),
    st.builds(optax.normalize_by_update_norm, numbers),
    st.builds(optax.scale_by_learning_rate, numbers),
    st.builds(lambda rate: optax.scale_by_schedule(optax.exponential_decay(rate, 2, 0.5)), numbers),
    st.sampled_from(
        [optax.centralize(), optax.zero_nans(), optax.identity(), optax.set_to_zero(), optax.sign_sgd(0.5)]
    ),
    st.just(optax.stateless(lambda updates, _: jax.tree.map(jnp.tanh, updates))),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(TRANSFORMATIONS, min_size=1, max_size=4), st.integers(0, 1000))
def test_chains_on_rows_equal_chains_on_dense_gradients(members: list[Any], seed: int) -> None:
    chain = optax.chain(*members)
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, ROWS + 1, 5)
    params = {"items": Table(jnp.ones((ROWS, COLUMNS))), "layer": jnp.ones(2)}

    def gradient(step: int) -> Any:
        not_unique = by_rows(seed + step, ids=ids, is_unique=False)
        return {"items": Table.holding(not_unique), "layer": jnp.asarray(rng.standard_normal(2), jnp.float32)}

    on_rows = rows.on_rows(chain)
    state, dense_state = on_rows.init(params), chain.init(params)
    for step in range(2):
        row_grads = gradient(step)
        found, state = on_rows.update(row_grads, state, params)
        expected, dense_state = chain.update(rows.to_dense(row_grads), dense_state, params)
        assert isinstance(found["items"].rows, rg.IndexedRows)
        for a, b in zip(*map(jax.tree.leaves, (rows.to_dense(found), expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "transformation", "why"),
    [
        ("add_noise", optax.add_noise(0.1, 0.5, 0), "changes rows that have no gradient"),
        ("add_decayed_weights", optax.add_decayed_weights(0.1), "without parameters"),
        ("adaptive_grad_clip", optax.adaptive_grad_clip(0.1), "without parameters"),
        ("keep_params_nonnegative", optax.keep_params_nonnegative(), "without parameters"),
        ("trace", optax.trace(0.9), "state for every element"),
        ("ema", optax.ema(0.9), "state for every element"),
        ("scale_by_adam", optax.adam(0.1), "state for every element"),
        ("trace", optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)), "state for every element"),
        ("clip_by_block_rms", optax.clip_by_block_rms(1.0), "how many rows have no gradient"),
        ("clip_by_block_rms", optax.chain(optax.scale(2.0), optax.clip_by_block_rms(1.0)), "how many rows"),
        ("stateless", optax.stateless(lambda u, _: jax.tree.map(lambda x: x + 1.0, u)), "changes rows that have no"),
    ],
)
def test_unsupported_transformations_raise(name: str, transformation: Any, why: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=f"cannot apply {name} to row-sparse gradients: .*{why}"):
        rows.on_rows(transformation)


def test_a_compiled_step_clips_tables_and_layers_together() -> None:
    params = {"items": Table(jnp.ones((ROWS, COLUMNS))), "layer": jnp.asarray([2.0, -1.0])}
    optimizer = optax.chain(rows.on_rows(optax.clip_by_global_norm(0.5)), optim.adagrad(0.1))
    plain = optax.chain(optax.clip_by_global_norm(0.5), optim.adagrad(0.1))

    def loss(params: Any) -> Any:
        return ((params["items"].bags(jnp.asarray([1, 5, 1]), jnp.asarray([0, 0, 1]), 2) @ params["layer"]) ** 2).sum()

    @partial(jax.jit, static_argnums=2)
    def step(params: Any, state: Any, sparse: bool) -> Any:
        grads = (value_and_rows if sparse else jax.value_and_grad)(loss)(params)[1]
        update, state = (optimizer if sparse else plain).update(grads, state, params)
        return optax.apply_updates(params, update), state

    row_run, dense_run = (params, optimizer.init(params)), (params, plain.init(params))
    for _ in range(3):
        row_run, dense_run = step(*row_run, True), step(*dense_run, False)
    for a, b in zip(*map(jax.tree.leaves, (row_run[0], dense_run[0])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


ON_A_MESH = """
import jax, jax.numpy as jnp, numpy as np, rowgrad as rg
from jax.sharding import Mesh, PartitionSpec as P
from rowgrad.jax import Table, optim, rows, value_and_rows
mesh = Mesh(np.array(jax.devices()), ("x",))
assert len(jax.devices()) == 2

def mapped(f, inputs, outputs):
    if hasattr(jax, "shard_map"):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs))
    from jax.experimental.shard_map import shard_map
    return jax.jit(shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_rep=False))

values, ids = jnp.arange(6.0).reshape(6, 1) + 1, jnp.asarray([2, 7, 9, 0, 2, 8])
total = mapped(lambda v, i: rows.psum(rg.IndexedRows(v, i, 9), "x"), (P("x"), P("x")), P())(values, ids)
print(total.indices.tolist(), total.values.ravel().tolist(), total.is_unique)

if hasattr(jax, "shard_map"):  # which tracks that the table and the layer are shared
    def loss(params, ids):
        return (params["t"].bags(ids, jnp.arange(3), 3, combiner="sum") * params["w"]).sum()
    def step(params, ids):
        grads = rows.psum(value_and_rows(loss)(params, ids)[1], "x")
        optimizer = optim.sgd(0.5)
        return optim.apply_updates(params, optimizer.update(grads, optimizer.init(params))[0])
    params = {"t": Table(jnp.ones((10, 1))), "w": jnp.ones(())}
    found = mapped(step, (P(), P("x")), P())(params, ids)
    gradient = jax.grad(lambda p: (p["t"].array[ids] * p["w"]).sum())(params)
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert a.tolist() == b.tolist(), (a, b)
print("done")
"""


def test_psum_returns_the_rows_of_all_devices() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ON_A_MESH], env=environment, capture_output=True,
                          text=True, check=False, timeout=600)  # fmt: skip
    assert done.stdout.splitlines() == ["[0, 2, 7, 8, 9, 9] [4.0, 6.0, 2.0, 6.0, 3.0, 0.0] True", "done"], done.stderr


def test_flattening_twice_returns_the_same_leaves() -> None:
    """`equinox.tree_at` and others compare leaves by identity."""

    def leaves_agree(rows: rg.IndexedRows) -> bool:
        first, tree = jax.tree_util.tree_flatten(rows)
        again = jax.tree_util.tree_leaves(rows)
        rebuilt = jax.tree_util.tree_leaves(tree.unflatten(first))
        return all(a is b is c for a, b, c in zip(first, again, rebuilt, strict=True))

    made = rg.IndexedRows(jnp.ones((2, 3)), jnp.array([1, 4]), 9)
    assert leaves_agree(made)

    @jax.jit
    def traced(ids: Any) -> Any:
        assert leaves_agree(rg.IndexedRows(jnp.ones((2, 3)), ids, 9))
        outer = rg.IndexedRows(jnp.ones((2, 3)), ids, 9)

        @jax.jit
        def inner(x: Any) -> Any:
            jax.tree_util.tree_leaves(outer)  # inside an inner trace: must not return the leaf of the outer trace
            return x

        inner(ids)
        return jax.tree_util.tree_map(lambda x: x, outer)

    with jax.checking_leaks():
        assert traced(jnp.array([2, 3])).indices.tolist() == [2, 3]
    assert pickle.loads(pickle.dumps(made)).indices.tolist() == [1, 4]


def joining_functions() -> list[Any]:
    """Return array functions that join the rows of two gradients, which share row 7."""
    return [
        lambda a, b: jax.tree.map(lambda x, y: jnp.concatenate([x, y]), a, b),
        lambda a, b: jax.tree.map(lambda *x: jnp.stack(x).reshape(-1, *x[0].shape[1:]), a, b),
        lambda a, b: jax.vmap(lambda g: jax.lax.all_gather(g, "x", tiled=True), axis_name="x", out_axes=None)(
            jax.tree.map(lambda *x: jnp.stack(x), a, b)
        ),
    ]


@pytest.mark.parametrize("join", joining_functions(), ids=["concatenate", "flatten a stack", "all_gather"])
@pytest.mark.parametrize("compiled", [False, True])
def test_duplicate_rows_of_joined_gradients_are_summed(join: Any, compiled: bool) -> None:
    a, b = by_rows(1, [2, 7, 8]), by_rows(2, [0, 7, 8])
    joined = (jax.jit(join) if compiled else join)(a, b)
    assert not joined.is_unique
    expected = dense(a) + dense(b)
    np.testing.assert_allclose(rows.to_dense(joined), expected, rtol=1e-6)
    np.testing.assert_allclose(rows.global_norm(joined), np.linalg.norm(expected), rtol=1e-6)
    optimizer, table = optim.sgd(1.0), jnp.zeros((ROWS, COLUMNS))
    updates, _ = optimizer.update(joined, optimizer.init(table), table)
    np.testing.assert_allclose(optim.apply_updates(table, updates), -expected, rtol=1e-6)


def test_gathered_gradients_of_all_devices_are_summed() -> None:
    script = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np, rowgrad as rg
from jax.sharding import Mesh, PartitionSpec as P
from rowgrad.jax import rows
if hasattr(jax, "shard_map"):
    mapped = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map as mapped
mesh = Mesh(np.array(jax.devices()), ("x",))
def gradient(ids):
    return rg.IndexedRows(jnp.ones((2, 1)), ids, 9, is_unique=True)
found = jax.jit(mapped(gradient, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(jnp.array([2, 7, 0, 7]))
assert rows.to_dense(found).ravel().tolist() == [1, 0, 1, 0, 0, 0, 0, 2, 0], found
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ, JAX_PLATFORMS="cpu"))


def test_stacks_and_slices_keep_distinct_rows() -> None:
    a, b = by_rows(1), by_rows(2)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), a, b)
    assert stacked.is_unique
    assert jax.tree.map(lambda x: x[1], stacked).is_unique
    _, scanned = jax.lax.scan(lambda c, g: (c, g), None, stacked)
    assert scanned.is_unique
    assert jax.tree.structure(a) == jax.tree.structure(stacked) == jax.tree.structure(by_rows(ids=[1]))
    assert hash(jax.tree.structure(a)) == hash(jax.tree.structure(stacked))


def test_only_accumulate_sums_stacks() -> None:
    stack = jax.tree.map(lambda *x: jnp.stack(x), by_rows(1), by_rows(2))
    for change in (rows.to_dense, rows.global_norm, lambda g: rows.clip(g, 1.0), lambda g: rows.add(g, g)):
        with pytest.raises(
            rg.errors.InvalidArgumentError, match=r"rank 1; got rank 2\. .*rowgrad\.jax\.rows\.accumulate"
        ):
            change(stack)
    with pytest.raises(rg.errors.InvalidArgumentError, match="stacked along a leading axis; got ids of rank 1"):
        rows.accumulate(by_rows())
    none = rows.accumulate(jax.tree.map(lambda x: x[:0], stack))
    assert (none.values.shape, none.indices.shape, none.num_rows) == ((0, COLUMNS), (0,), ROWS)


@pytest.mark.parametrize("number", [jnp.ones(COLUMNS), [1.0], "1"], ids=["array", "list", "text"])
def test_factors_and_bounds_must_be_numbers(number: Any) -> None:
    for function in (rows.scale, rows.clip, rows.clip_by_global_norm):
        with pytest.raises(rg.errors.InvalidArgumentError, match=r"must be an? (number|array); got"):
            function(grads(), number)


@pytest.mark.parametrize("number", [-1.0, np.float32(-1), float("nan")])
def test_negative_bounds_raise(number: Any) -> None:
    """A negative bound would flip every gradient or make all entries equal."""
    for function in (rows.clip, rows.clip_by_global_norm):
        with pytest.raises(rg.errors.InvalidArgumentError, match="must be a number of at least 0"):
            function(grads(), number)


def test_on_rows_rejects_unsupported_arguments() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="an optax transformation, with init and update; got None"):
        rows.on_rows(None)
    mask = {"items": True, "layer": False}
    other = rows.on_rows(optax.masked(optax.scale(0.5), {"user": True}))
    with pytest.raises(
        rg.errors.InvalidArgumentError, match="masked to row-sparse gradients: its init raised ValueError"
    ):
        other.update(grads(), optax.MaskedState(optax.EmptyState()))
    half = updated_by(optax.masked(rows.on_rows(optax.scale(0.5)), mask))(grads())
    np.testing.assert_array_equal(half["items"].rows.values[:2], by_rows().values[:2] / 2)


def by_key(params: Any) -> Any:
    return {name: name == "items" for name in params}


def by_path(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: "a" if "items" in str(path) else "b", params)


@pytest.mark.parametrize("compile_", [lambda f: f, jax.jit, on_a_mesh], ids=["eager", "jit", "shard_map"])
@pytest.mark.parametrize(
    ("transformation", "name"),
    [
        (optax.masked(optax.trace(0.9), by_key), "trace"),
        (optax.chain(optax.scale(2.0), optax.masked(optax.add_noise(0.1, 0.5, 0), by_key)), "add_noise"),
        (optax.multi_transform({"a": optax.ema(0.9), "b": optax.scale(2.0)}, by_path), "ema"),
    ],
)
def test_masks_that_select_a_table_by_name(transformation: Any, name: str, compile_: Any) -> None:
    """Per-element state must not be used for rows that happen to have the same positions."""
    on_rows = rows.on_rows(transformation)
    params = {"items": Table(jnp.ones((ROWS, COLUMNS))), "layer": jnp.ones(2)}
    with pytest.raises(rg.errors.InvalidArgumentError, match=rf"cannot apply {name} to row-sparse gradients"):
        compile_(lambda g: on_rows.update(g, on_rows.init(params), params)[0])(grads())


@pytest.mark.parametrize(
    "transformation",
    [
        optax.masked(optax.scale(0.5), by_key),
        optax.masked(optax.scale(0.5), {"items": True, "layer": False}),
        optax.multi_transform({"a": optax.clip(0.5), "b": optax.trace(0.9)}, {"items": "a", "layer": "b"}),
        optax.multi_transform({"a": optax.clip(0.5), "b": optax.trace(0.9)}, by_path),
    ],
)
def test_masked_transformations_on_rows_equal_dense_ones(transformation: Any) -> None:
    params = {"items": Table(jnp.ones((ROWS, COLUMNS))), "layer": jnp.ones(2)}
    on_rows = rows.on_rows(transformation)
    state, dense_state = on_rows.init(params), transformation.init(params)
    for _ in range(2):
        found, state = on_rows.update(grads(), state, params)
        expected, dense_state = transformation.update(rows.to_dense(grads()), dense_state, params)
        for a, b in zip(*map(jax.tree.leaves, (rows.to_dense(found), expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_accumulating_transformations_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="cannot apply MultiSteps to row-sparse gradients"):
        rows.on_rows(optax.MultiSteps(optax.scale(1.0), 2))
