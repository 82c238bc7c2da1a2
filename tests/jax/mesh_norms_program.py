"""Check on four devices: norms, clipping and sums of gradients of sharded tables, compared with unsharded ones.

It prints one line per passed check, and "done" at the end.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

import rowgrad.jax as rgj
from rowgrad.jax import Table, optim, rows, sharded, value_and_rows

P = PartitionSpec
MESH = Mesh(np.array(jax.devices()), ("x",))
TRACKED = hasattr(jax, "shard_map")  # older versions do not track which arrays differ between devices
DEVICES, ROWS, COLUMNS = 4, 13, 5
rng = np.random.default_rng(0)
ITEMS, USERS = (rng.normal(size=(n, COLUMNS)).astype(np.float32) for n in (ROWS, 7))
LAYER = rng.normal(size=COLUMNS).astype(np.float32)
IDS = rng.integers(0, ROWS, (4 * DEVICES, 3)).astype(np.int32)


def mapped(f: Any, inputs: Any, outputs: Any, check: bool = TRACKED, mesh: Any = MESH) -> Any:
    """Return `f` compiled to run on every device."""
    if TRACKED:
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=check))
    from jax.experimental.shard_map import shard_map

    return jax.jit(shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_rep=False))


def gradients(params: Any, ids: Any, look_up: Any, check: bool = True) -> Any:
    def loss(params: Any) -> Any:
        both = look_up(params["items"], ids) * look_up(params["users"], ids % len(USERS))
        return ((both @ params["layer"]) ** 2).sum() if "layer" in params else (both**2).sum()

    grads = value_and_rows(loss)(params)[1]
    if not check and "layer" in params:
        grads["layer"] = jax.lax.psum(grads["layer"], "x")
    return grads


def error_of(call: Any) -> str:
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def same_on_all_devices(x: Any) -> None:
    assert len({np.asarray(s.data).tobytes() for s in x.addressable_shards}) == 1


def test_clipping(has_layer: bool, strategy: str, check: bool) -> None:
    layer = {"layer": jnp.asarray(LAYER)} if has_layer else {}
    whole = {"items": Table(ITEMS), "users": Table(USERS), **layer}
    shards = {k: sharded.shard_table(t, MESH, "x", strategy) for k, t in (("items", ITEMS), ("users", USERS))} | layer
    specs = sharded.partition_specs(shards)
    assert specs == {"items": P("x"), "users": P("x"), **({"layer": P()} if has_layer else {})}
    given = None if check else P()  # shards record their axes

    def step(params: Any, grads: Any, clip: Any) -> Any:
        optimizer = optax.chain(clip, optim.sgd(1.0))
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        return optim.apply_updates(params, updates)

    def one(params: Any, ids: Any) -> Any:
        grads = gradients(params, ids, rgj.embedding_bag)
        return step(params, grads, rows.on_rows(optax.clip_by_global_norm(1.0))), rows.global_norm(grads)

    def each(params: Any, ids: Any) -> Any:
        grads = gradients(params, ids, sharded.embedding_bag, check)
        clip = optax.stateless(lambda grads, _: rows.clip_by_global_norm(grads, 1.0, specs=given))
        norm = rows.global_norm(grads, specs=given)
        own = [jnp.sum(jnp.square(grads[k].rows.values))[None] for k in ("items", "users")]
        return step(params, grads, clip), norm, own, jnp.square(grads["layer"]).sum() if has_layer else 0.0

    expected, norm = jax.jit(one)(whole, IDS)
    outputs = (specs, P(), [P("x"), P("x")], P())
    found, mesh_norm, own, layer_squares = mapped(each, (specs, P("x")), outputs, check)(shards, IDS)
    same_on_all_devices(mesh_norm)
    np.testing.assert_allclose(mesh_norm, norm, rtol=1e-6)
    assert (np.sqrt(sum(np.asarray(x) for x in own) + np.asarray(layer_squares)) < 0.99 * norm).all()
    for k in ("items", "users"):
        np.testing.assert_allclose(sharded.gather_table(found[k]), expected[k].array, rtol=1e-6, atol=1e-7)
    if has_layer:
        same_on_all_devices(found["layer"])
        np.testing.assert_allclose(found["layer"], expected["layer"], rtol=1e-6, atol=1e-7)


def test_optax() -> None:
    params = {"items": sharded.shard_table(ITEMS, MESH, "x"), "layer": jnp.asarray(LAYER)}
    specs = sharded.partition_specs(params)

    def result_of(transformation: Any, norm_of: Any = None) -> Any:
        def each(params: Any, ids: Any) -> Any:
            def loss(params: Any) -> Any:
                return ((sharded.embedding_bag(params["items"], ids) @ params["layer"]) ** 2).sum()

            grads = value_and_rows(loss)(params)[1]
            if not TRACKED:
                grads["layer"] = jax.lax.psum(grads["layer"], "x")
            updates = transformation.update(grads, transformation.init(params), params)[0]
            return optim.apply_updates(params, updates)

        return mapped(each, (specs, P("x")), specs)(params, IDS)

    layers_only = {"items": False, "layer": True}
    for transformation in (
        optax.clip_by_global_norm(1.0),
        optax.clip_by_global_norm(1e12),  # not reached by any gradient of the check at factor 1
        optax.chain(optax.scale(2.0), optax.clip_by_global_norm(1.0)),
    ):
        message = error_of(lambda t=transformation: result_of(rows.on_rows(t)))
        assert "on_rows cannot apply clip_by_global_norm inside shard_map" in message, message
    for transformation in (optax.clip(0.1), optax.scale(-0.5), optax.scale_by_schedule(lambda n: 0.5)):
        found = result_of(rows.on_rows(transformation))
        updates = rows.on_rows(transformation)
        whole = {"items": Table(ITEMS), "layer": jnp.asarray(LAYER)}

        def loss(params: Any) -> Any:
            return ((rgj.embedding_bag(params["items"], IDS) @ params["layer"]) ** 2).sum()

        expected = optim.apply_updates(whole, updates.update(value_and_rows(loss)(whole)[1], updates.init(whole))[0])
        np.testing.assert_allclose(sharded.gather_table(found["items"]), expected["items"].array, rtol=1e-5, atol=1e-6)
    if TRACKED:  # all devices share the layers, so a norm of the layers alone is known
        result_of(rows.on_rows(optax.masked(optax.clip_by_global_norm(1.0), layers_only)))


def test_split_arrays() -> None:
    """Arrays outside a ShardedTable: the caller says how they are split."""
    matrix = rng.normal(size=(3, 8)).astype(np.float32)

    def norm(specs: Any) -> Any:
        return mapped(lambda g: rows.global_norm({"m": g}, specs=specs), P(None, "x"), P())

    for specs in (P(None, "x"), {"m": P(None, "x")}):
        np.testing.assert_allclose(norm(specs)(matrix), np.sqrt((matrix**2).sum()), rtol=1e-6)
    if TRACKED:
        for specs in (None, P()):
            message = error_of(lambda specs=specs: norm(specs)(matrix))
            assert "the gradient at ['m'] differs over mesh axis x" in message, message
    unchecked = mapped(lambda g: rows.global_norm({"m": g}), P(), P(), False)
    assert "the gradient at ['m'] may differ over mesh axis x" in error_of(lambda: unchecked(matrix))
    # Devices are added in their order: in float32, 2²⁴ + 1 is 2²⁴, and 3 + 2²⁴ is 2²⁴ + 4.
    for device, square in ((0, 2**24), (3, 2**24 + 4)):
        vector = np.ones(DEVICES, np.float32)
        vector[device] = 2**12
        found = mapped(lambda g: rows.global_norm([g], specs=P("x")), P("x"), P())(vector)
        same_on_all_devices(found)
        assert found.item() == np.sqrt(np.float32(square)).item()
    shared = mapped(lambda g: rows.global_norm({"m": g}, specs=P()), P(), P(), False)
    np.testing.assert_allclose(shared(matrix), np.sqrt((matrix**2).sum()), rtol=1e-6)


def test_two_axes() -> None:
    """Tables that are split over two axes, and over one of two."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))

    def loss(look_up: Any, ids: Any) -> Any:
        return lambda t: (look_up(t, ids) ** 2).sum()

    expected = rows.global_norm(value_and_rows(loss(rgj.embedding_bag, IDS))(Table(ITEMS))[1])
    for axis in (("data", "model"), ("model", "data"), "model"):
        table = sharded.shard_table(ITEMS, mesh, axis)

        def norm(table: Any, ids: Any, axis: Any = axis) -> Any:
            # Without tracking, a table that is split over "model" alone may differ over "data".
            specs = None if TRACKED or axis != "model" else P()
            return rows.global_norm(value_and_rows(loss(sharded.embedding_bag, ids))(table)[1], specs=specs)

        if TRACKED or axis != "model":
            np.testing.assert_allclose(
                mapped(norm, (table.spec, P(axis)), P(), mesh=mesh)(table, IDS), expected, rtol=1e-6
            )


def test_psum() -> None:
    """Gradients of shards are sums already; those of shared tables are summed unless JAX did it."""
    table = sharded.shard_table(ITEMS, MESH, "x")
    summed = mapped(lambda g: rows.psum({"table": g}, "x")["table"], table.spec, table.spec)
    assert sharded.gather_table(summed(table)).tobytes() == ITEMS.tobytes()
    if not TRACKED:
        return

    def shared(table: Any, ids: Any, own: Any) -> Any:
        grads = {
            "all": value_and_rows(lambda t: (t[ids] ** 2).sum())(table)[1],
            "own": value_and_rows(lambda t: (t[own] ** 2).sum())(table)[1],
        }
        return rows.to_dense(rows.psum(grads, "x")), rows.to_dense(grads["all"])

    found, before = mapped(shared, (P(), P(), P("x")), P())(Table(ITEMS), IDS, IDS)
    expected = rows.to_dense(value_and_rows(lambda t: (t[IDS] ** 2).sum())(Table(ITEMS))[1])
    for gradient in (found["all"], found["own"], before):
        np.testing.assert_allclose(gradient.array, expected.array, rtol=1e-6)


def test_gradients_outside() -> None:
    table = sharded.shard_table(ITEMS, MESH, "x")
    grads = mapped(
        lambda t, ids: value_and_rows(lambda t: sharded.embedding_bag(t, ids).sum())(t)[1], (P("x"), P("x")), P("x")
    )(table, IDS)
    assert "only inside shard_map over that axis" in error_of(lambda: rows.global_norm(grads))
    np.testing.assert_allclose(rows.global_norm(table), np.sqrt((ITEMS**2).sum()), rtol=1e-6)  # all shards
    unused = mapped(lambda t: rows.global_norm(value_and_rows(lambda t: jnp.zeros(()))(t)[1]), P("x"), P())
    assert float(unused(table)) == 0.0


def test_checkpoints() -> None:
    """The functions of the guide: from four devices to two, by the other rule, with nested state."""
    page = (Path(__file__).parents[2] / "docs/how-to/shard_jax.md").read_text(encoding="utf-8")
    source = page.partition(">>> def is_table(x):")[2].partition(">>> file =")[0]
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "sharded": sharded}
    exec("\n".join(line[4:] for line in f">>> def is_table(x):{source}".splitlines()), names)
    table = ITEMS.astype(jnp.bfloat16)
    labels = {"items": "tables", "layer": "layers"}
    optimizer = optax.multi_transform({"tables": optim.adam(0.1), "layers": optax.adam(0.1)}, labels)

    def trees(mesh: Any, strategy: str, factor: float) -> Any:
        params = {"items": sharded.shard_table(factor * table, mesh, "x", strategy), "layer": factor * LAYER}
        state = optimizer.init(params)
        filled = jax.tree.map(lambda x: x + jnp.arange(x.size).reshape(x.shape).astype(x.dtype), state)
        return params, filled if factor else state

    before = trees(MESH, "div", 1.0)
    slots = sharded.partition_specs(before[1]).inner_states["tables"].inner_state.slots
    assert [slot["items"] for slot in slots.values()] == [P("x"), P("x")]
    file = io.BytesIO()
    names["save"](file, before)
    file.seek(0)
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    after = names["restore"](file, trees(mesh, "mod", 0.0), mesh)
    pairs = zip(*(jax.tree.leaves(tree, is_leaf=names["is_table"]) for tree in (before, after)), strict=True)
    for old, new in pairs:
        if names["is_table"](old):
            assert new.layout == sharded.Layout(ROWS, 2, "x", "mod")
            old, new = sharded.gather_table(old), sharded.gather_table(new)
        assert (np.asarray(old).dtype, np.asarray(old).tobytes()) == (np.asarray(new).dtype, np.asarray(new).tobytes())


for check in (True, False) if TRACKED else (False,):
    for has_layer in (False, True):
        for strategy in ("div", "mod"):
            test_clipping(has_layer, strategy, check)
print("norms and clipping of sharded tables, with and without layers, tracked and not")
test_optax()
print("optax's transformations of elements, and an error for those of norms")
test_split_arrays()
test_two_axes()
print("other arrays, two axes")
test_psum()
print("sums over the mesh")
test_gradients_outside()
test_checkpoints()
print("checkpoints")
print("done")
