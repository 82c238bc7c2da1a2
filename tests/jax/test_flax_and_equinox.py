"""Tables in flax and equinox modules and in nested dicts: row gradients, optimizers, compiled steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rowgrad as rg
from rowgrad.jax import Table, optim, rows, value_and_rows

pytest.importorskip("flax")
import equinox as eqx
import flax.linen as nn
from flax import nnx, serialization
from flax.training.train_state import TrainState

IDS, BAGS = jnp.asarray([7, 2, 7]), jnp.asarray([0, 0, 1])
START = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
KERNEL = np.random.default_rng(1).standard_normal((4, 1)).astype(np.float32)
STEPS = 3


def loss_of(vectors: Any) -> Any:
    return ((vectors - 1.0) ** 2).mean()


def expected() -> tuple[Any, Any]:
    """Return table and kernel after some steps of Adagrad, without a module library."""
    params = {"table": Table(START), "kernel": jnp.asarray(KERNEL)}
    optimizer = optim.adagrad(0.1)
    state = optimizer.init(params)
    for _ in range(STEPS):
        grads = value_and_rows(lambda p: loss_of(p["table"].bags(IDS, BAGS, 2) @ p["kernel"]))(params)[1]
        update, state = optimizer.update(grads, state, params)
        params = optim.apply_updates(params, update)
    return params["table"].array, params["kernel"]


def same(table: Any, kernel: Any) -> None:
    for found, reference in zip((table, kernel), expected(), strict=True):
        np.testing.assert_allclose(found, reference, rtol=1e-5)
    untouched = [0, 1, 3, 4, 5, 6, 8]
    assert np.asarray(table)[untouched].tobytes() == START[untouched].tobytes()


class OfParam(nnx.Module):
    """The supported way to hold a table in nnx."""

    def __init__(self) -> None:
        self.table = nnx.Param(Table(START))
        self.linear = nnx.Linear(4, 1, use_bias=False, rngs=nnx.Rngs(0))
        self.linear.kernel.set_value(jnp.asarray(KERNEL))

    def __call__(self, ids: Any, bags: Any) -> Any:
        return self.linear(self.table.bags(ids, bags, 2))


class OfData(OfParam):
    """A bare table, which nnx.split flattens into arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nnx.data(Table(START))


def test_nnx_module_and_optimizer() -> None:
    model = OfParam()
    optimizer = nnx.Optimizer(model, optim.adagrad(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        value, grads = value_and_rows(lambda m: loss_of(m(IDS, BAGS)))(model)
        optimizer.update(model, grads)
        return value, grads

    for _ in range(STEPS):
        _, grads = step(model, optimizer)
    assert isinstance(grads.table.get_value().rows, rg.IndexedRows)
    same(model.table.get_value().array, model.linear.kernel.get_value())


def test_nnx_split_and_merge() -> None:
    graph, params = nnx.split(OfParam())
    optimizer = optim.adagrad(0.1)
    state = optimizer.init(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any) -> Any:
        _, grads = value_and_rows(lambda p: loss_of(nnx.merge(graph, p)(IDS, BAGS)))(params)
        assert isinstance(grads["table"].get_value().rows, rg.IndexedRows)
        update, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, update), state

    for _ in range(STEPS):
        params, state = step(params, state)
    model = nnx.merge(graph, params)
    same(model.table.get_value().array, model.linear.kernel.get_value())


def test_a_bare_table_flattened_by_nnx_is_rejected() -> None:
    graph, params = nnx.split(OfData())
    for compile_ in (lambda f: f, jax.jit):
        with pytest.raises(rg.errors.InvalidArgumentError, match=r"dense gradient. Pass a tree .* nnx\.Param\(Table"):
            compile_(value_and_rows(lambda p: loss_of(nnx.merge(graph, p)(IDS, BAGS))))(params)
    _, grads = value_and_rows(lambda m: loss_of(m(IDS, BAGS)))(OfData())  # unsplit, it holds the table
    assert isinstance(grads.table.rows, rg.IndexedRows)


class WithState(nnx.Module):
    """A model that updates its own state: batch statistics, random masks, a counter, intermediates."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.table = nnx.Param(Table(START))
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.asarray(0))

    def __call__(self, ids: Any, bags: Any) -> Any:
        self.calls[...] += 1
        vectors = self.dropout(self.norm(self.table.bags(ids, bags, 2)))
        if not hasattr(self, "vectors"):
            self.vectors = nnx.Intermediate(())
        self.vectors.set_value((*self.vectors.get_value(), vectors))
        return vectors


@pytest.mark.parametrize("compile_", [lambda f: f, nnx.jit])
def test_state_assigned_to_a_module_is_returned(compile_: Any) -> None:
    by_rows, dense = WithState(), WithState()
    for step in range(3):
        value, _ = compile_(lambda m: value_and_rows(lambda m: loss_of(m(IDS, BAGS)))(m))(by_rows)
        dense_result, _ = compile_(lambda m: nnx.value_and_grad(lambda m: loss_of(m(IDS, BAGS)))(m))(dense)
        assert value == dense_result
        assert by_rows.calls[...] == step + 1
        assert by_rows.dropout.rngs.count[...] == dense.dropout.rngs.count[...] == step + 1
        for found, expected in zip(
            *(jax.tree.leaves(nnx.state(m, nnx.BatchStat)) for m in (by_rows, dense)), strict=True
        ):
            assert found.tobytes() == expected.tobytes()
        assert len(by_rows.vectors.get_value()) == step + 1


def test_shared_variables_of_a_module_have_one_gradient() -> None:
    class Tied(nnx.Module):
        def __init__(self) -> None:
            self.items = nnx.Param(Table(START))
            self.users = self.items
            self.scale = nnx.Param(jnp.ones(4))
            self.gain = self.scale

        def __call__(self) -> Any:
            first = self.items.bags(IDS, BAGS, 2, combiner="sum") * self.scale
            return (first + self.users.bags(IDS, BAGS, 2, combiner="sum") * self.gain).sum()

    model = Tied()
    _, grads = value_and_rows(lambda m: m())(model)
    dense_result = nnx.grad(lambda m: m())(model)
    assert grads.users is grads.items
    assert grads.gain is grads.scale
    assert grads.scale.tobytes() == dense_result["gain"].tobytes()
    assert rows.to_dense(grads.items.get_value()).array.tobytes() == dense_result["items"].get_value().array.tobytes()
    optimizer = nnx.Optimizer(model, optim.sgd(1.0), wrt=nnx.Param)
    optimizer.update(model, grads)
    assert model.users is model.items
    np.testing.assert_array_equal(model.items.get_value().array[7], START[7] - 4)


def test_a_module_that_assigns_a_table_or_drops_state_is_rejected() -> None:
    def assign(model: Any) -> Any:
        model.table = nnx.Param(Table(START))
        return jnp.zeros(())

    def drop(model: Any) -> Any:
        del model.linear
        return jnp.zeros(())

    with pytest.raises(rg.errors.InvalidArgumentError, match="a table can be read only by"):
        value_and_rows(assign)(OfParam())
    with pytest.raises(rg.errors.InvalidArgumentError, match="removed linear"):
        value_and_rows(drop)(OfParam())


def test_a_tree_rebuilt_from_arrays_is_rejected() -> None:
    leaves, tree = jax.tree.flatten({"table": Table(START)})
    with pytest.raises(rg.errors.InvalidArgumentError, match="a Table was flattened"):
        value_and_rows(lambda x: tree.unflatten(x)["table"].bags(IDS, BAGS, 2).sum())(leaves)
    # Tables that are not trained, or were deliberately made from an array, are allowed.
    frozen = tree.unflatten(leaves)["table"]
    _, grads = value_and_rows(
        lambda p: (Table(p["array"]).bags(IDS, BAGS, 2) * frozen.bags(IDS, BAGS, 2)).sum()
    )({"array": jnp.asarray(START)})  # fmt: skip
    assert grads["array"].shape == START.shape


class Linen(nn.Module):
    """A table as a linen parameter: its initializer returns the Table."""

    @nn.compact
    def __call__(self, ids: Any, bags: Any) -> Any:
        table = self.param("table", lambda _: Table(START))
        kernel = self.param("kernel", lambda _: jnp.asarray(KERNEL))
        return table.bags(ids, bags, 2) @ kernel


def test_linen_and_its_train_state() -> None:
    model = Linen()
    variables = model.init(jax.random.key(0), IDS, BAGS)
    state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optim.adagrad(0.1))

    @jax.jit
    def step(state: Any) -> Any:
        _, grads = value_and_rows(lambda p: loss_of(state.apply_fn({"params": p}, IDS, BAGS)))(state.params)
        return state.apply_gradients(grads=grads)

    for _ in range(STEPS):
        state = step(state)
    same(state.params["table"].array, state.params["kernel"])


def test_nested_dicts_as_in_haiku() -> None:
    params = {"model/~/embedding": {"table": Table(START)}, "model/linear": {"w": jnp.asarray(KERNEL)}}
    optimizer = optax.chain(optim.adagrad(0.1))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(p: Any) -> Any:
            return loss_of(p["model/~/embedding"]["table"].bags(IDS, BAGS, 2) @ p["model/linear"]["w"])

        _, grads = value_and_rows(loss)(params)
        update, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, update), state

    for _ in range(STEPS):
        params, state = step(params, state)
    same(params["model/~/embedding"]["table"].array, params["model/linear"]["w"])


class Equinox(eqx.Module):
    """A table as a field."""

    table: Table
    kernel: jax.Array


def test_equinox_modules() -> None:
    model = Equinox(Table(START), jnp.asarray(KERNEL))
    optimizer = optim.adagrad(0.1)
    state = optimizer.init(model)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        _, grads = value_and_rows(lambda m: loss_of(m.table.bags(IDS, BAGS, 2) @ m.kernel))(model)
        update, state = optimizer.update(grads, state, model)
        return optim.apply_updates(model, update), state

    for _ in range(STEPS):
        model, state = step(model, state)
    same(model.table.array, model.kernel)


def test_flax_saves_tables_and_their_state() -> None:
    params = {"table": Table(START), "kernel": jnp.asarray(KERNEL)}
    state = optim.adagrad(0.1, initial_accumulator_value=0.5).init(params)
    empty = jax.tree.map(jnp.zeros_like, (params, state))
    found, slots = serialization.from_bytes(empty, serialization.to_bytes((params, state)))
    assert isinstance(found["table"], Table)
    assert found["table"].array.tobytes() == START.tobytes()
    assert jax.tree.structure(slots) == jax.tree.structure(state)
    assert float(slots.slots["sum"]["table"].array[0, 0]) == 0.5
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"of shape \(2, 4\)"):
        serialization.from_bytes({"table": Table(START[:2])}, serialization.to_bytes({"table": Table(START)}))
