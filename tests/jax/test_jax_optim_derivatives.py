"""Derivatives through optimizer steps by gradients, parameters, state and hyperparameters, to second order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
from jax_arrays import x64
from rowgrad import optim as updates
from rowgrad.jax import Table, optim, value_and_rows

RULES = list(updates.RULES)
ROWS, COLUMNS = 4, 3
random = np.random.default_rng(8)
START = random.standard_normal((ROWS, COLUMNS))
# An unsorted list with a duplicate row and a row out of range; unique rows padded at the end.
IDS = {"dense": None, "list": [3, 1, ROWS, 3], "unique": [0, 2, ROWS, ROWS]}


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def decayed(rule: str, decay: Any) -> dict[str, Any]:
    """Return the options that shrink weights; FTRL has a penalty instead of a decay."""
    return {"weight_decay" if "weight_decay" in updates.RULES[rule].defaults else "l2": decay}


def as_gradient(values: Any, kind: str) -> Any:
    ids = IDS[kind]
    return values if ids is None else rg.IndexedRows(values, jnp.asarray(ids), ROWS, is_unique=kind == "unique")


def check_derivatives(function: Any, point: Any, order: int = 2) -> None:
    """Compare directional derivatives, forward and reverse, with finite differences of the order below."""
    direction = jax.tree.map(lambda x: jnp.asarray(random.standard_normal(jnp.shape(x))), point)

    def moved(by: Any) -> Any:
        return jax.tree.map(lambda x, v: x + by * v, point, direction)

    def backward(by: Any) -> Any:
        slopes = jax.grad(function)(moved(by))
        return sum(jnp.vdot(s, v) for s, v in zip(*map(jax.tree.leaves, (slopes, direction)), strict=True))

    def orders(by: Any) -> list[Any]:
        one = jnp.ones(())
        first = [function(moved(by)), backward(by), jax.jvp(lambda t: function(moved(t)), (by,), (one,))[1]]
        return first if order == 1 else [*first, jax.jvp(backward, (by,), (one,))[1], jax.grad(backward)(by)]

    compiled, eps = jax.jit(orders), 1e-5
    value, here, more = (compiled(jnp.asarray(by)) for by in (-eps, 0.0, eps))
    for place in range(1, len(here)):
        lower = 0 if place < 3 else 1
        np.testing.assert_allclose(here[place], (more[lower] - value[lower]) / (2 * eps), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_derivatives_agree_with_finite_differences(rule: str) -> None:
    """One step from some state with a dense gradient, a list of rows and unique rows, by all numbers."""
    shapes = {k: s.shape for k, s in getattr(optim, rule)().init(START).slots.items()}
    slots = {name: {kind: 0.1 + random.random(shape) for kind in IDS} for name, shape in shapes.items()}
    grads = {kind: random.standard_normal((ROWS, COLUMNS)) for kind in IDS}
    params = dict.fromkeys(IDS, START)
    weights = jax.tree.map(lambda x: random.standard_normal(x.shape), (params, slots))

    def after(arguments: Any) -> Any:
        grads, params, slots, lr, decay = arguments
        optimizer = getattr(optim, rule)(lr, **decayed(rule, decay))
        by_rows = {kind: as_gradient(g, kind) for kind, g in grads.items()}
        update, state = optimizer.update(by_rows, optim.RowState(jnp.asarray(3, jnp.int32), slots), params)
        found = optim.apply_updates(params, update), state.slots
        return sum(jnp.vdot(w, x) for w, x in zip(*map(jax.tree.leaves, (weights, found)), strict=True))

    check_derivatives(after, (grads, params, slots, 0.3, 0.2))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float64])
def test_derivative_of_an_sgd_step_by_its_learning_rate(dtype: Any) -> None:
    params, grad = jnp.ones((3, 1), dtype), jnp.full((3, 1), 4.0, dtype)

    def after(grad: Any, lr: Any) -> Any:
        optimizer = optim.sgd(lr)
        return optim.apply_updates(params, optimizer.update(grad, optimizer.init(params))[0]).sum()

    to_grad, to_lr = jax.grad(after, argnums=(0, 1))(grad, jnp.asarray(0.5, dtype))
    assert to_grad.ravel().tolist() == [-0.5] * 3
    assert float(to_lr) == -12.0


@pytest.mark.parametrize("rule", ["adagrad", "adam"])
def test_gradients_of_training_agree_with_finite_differences(rule: str) -> None:
    """A loss after two row-sparse steps, by the table, a layer and the learning rate. Padding must not yield NaN."""
    ids, bags = jnp.asarray([2, 0, 2, 2]), jnp.asarray([0, 0, 1, 1])

    def loss(params: Any) -> Any:
        return jnp.tanh(params["table"].bags(ids, bags, 2) @ params["layer"]).sum()

    def after(values: Any) -> Any:
        table, layer, lr = values
        params = {"table": Table(table), "layer": layer}
        optimizer = getattr(optim, rule)(lr, **decayed(rule, 0.1))
        state = optimizer.init(params)
        for _ in range(2):
            _, grads = value_and_rows(loss)(params)
            update, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, update)
        return loss(params)

    args = (jnp.asarray(START), jnp.asarray(START[0]), jnp.asarray(0.1))
    check_derivatives(after, args, order=1)
