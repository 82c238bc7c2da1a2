"""Record how TensorFlow's optimizers update tables, in tests/golden/updates.npz. Needs TensorFlow.

Adagrad, FTRL and momentum are the raw ops ResourceSparseApply{AdagradV2,FtrlV2,Momentum}; Adam is the sparse rule of
tf.compat.v1.train.AdamOptimizer, with the learning rate each step had after TensorFlow's own correction of its bias.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

OUT = Path(__file__).parent.parent / "tests" / "golden" / "updates.npz"
STEPS = 3
WIDTHS = (1, 3, 20)  # TensorFlow computes FTRL of a single column in a different order
DTYPES = (np.float32, np.float64)


def batch(rng: np.random.Generator, rows: int, cols: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    ids = np.sort(rng.choice(rows, size=rows // 2, replace=False))
    return ids, rng.normal(size=(len(ids), cols)).astype(dtype)


def adagrad(rng: np.random.Generator, table: np.ndarray) -> tuple[dict, dict]:
    lr, eps, initial = 0.05, 1e-7, 0.1
    var, accum = tf.Variable(table), tf.Variable(np.full_like(table, initial))
    arrays = {}
    for t in range(STEPS):
        ids, grad = batch(rng, *table.shape, table.dtype.type)
        scalar = [tf.constant(x, table.dtype) for x in (lr, eps)]
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=var.handle, accum=accum.handle, lr=scalar[0], epsilon=scalar[1], grad=grad, indices=ids
        )
        arrays |= {f"{t}/ids": ids, f"{t}/grad": grad, f"{t}/table": var.numpy(), f"{t}/sum": accum.numpy()}
    return {"rule": "adagrad", "lr": lr, "eps": eps, "initial": initial}, arrays


def adam(rng: np.random.Generator, table: np.ndarray) -> tuple[dict, dict]:
    lr, b1, b2, eps = 0.01, 0.9, 0.999, 1e-8
    if table.dtype == np.float64:  # TensorFlow keeps them in float32 for any table dtype
        lr, b1, b2, eps = (float(np.float32(x)) for x in (lr, b1, b2, eps))
    arrays = {}
    # The documented rule: the graph optimizer turns (g·g)·(1 − β₂) into g·(g·(1 − β₂)).
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        var = tf.compat.v1.get_variable("table", initializer=table, use_resource=True)
        ids_in = tf.compat.v1.placeholder(tf.int64, [None])
        grad_in = tf.compat.v1.placeholder(table.dtype, [None, table.shape[1]])
        optimizer = tf.compat.v1.train.AdamOptimizer(lr, b1, b2, eps)
        step = optimizer.apply_gradients([(tf.IndexedSlices(grad_in, ids_in, var.shape), var)])
        powers = optimizer._get_beta_accumulators()
        number = tf.constant(lr, table.dtype)
        rate = number * tf.sqrt(1 - tf.cast(powers[1], table.dtype)) / (1 - tf.cast(powers[0], table.dtype))
        slots = [optimizer.get_slot(var, "m"), optimizer.get_slot(var, "v")]
        session.run(tf.compat.v1.global_variables_initializer())
        for t in range(STEPS):
            ids, grad = batch(rng, *table.shape, table.dtype.type)
            arrays |= {f"{t}/ids": ids, f"{t}/grad": grad, f"{t}/rate": session.run(rate)}
            session.run(step, {ids_in: ids, grad_in: grad})
            found = session.run([var, *slots])
            arrays |= dict(zip((f"{t}/table", f"{t}/exp_avg", f"{t}/exp_avg_sq"), found, strict=True))
    return {"rule": "adam", "lr": lr, "eps": eps, "betas": [b1, b2]}, arrays


def ftrl(rng: np.random.Generator, table: np.ndarray, lr_power: float = -0.5) -> tuple[dict, dict]:
    numbers = {"lr": 0.05, "l1": 0.01, "l2": 0.02, "l2_shrinkage": 0.03, "lr_power": lr_power}
    initial = 0.1
    var, accum, linear = (
        tf.Variable(table),
        tf.Variable(np.full_like(table, initial)),
        tf.Variable(np.zeros_like(table)),
    )
    arrays = {}
    for t in range(STEPS):
        ids, grad = batch(rng, *table.shape, table.dtype.type)
        tf.raw_ops.ResourceSparseApplyFtrlV2(
            var=var.handle, accum=accum.handle, linear=linear.handle, grad=grad, indices=ids,
            **{name: tf.constant(x, table.dtype) for name, x in numbers.items()},
        )  # fmt: skip
        arrays |= {f"{t}/ids": ids, f"{t}/grad": grad, f"{t}/table": var.numpy()}
        arrays |= {f"{t}/accumulator": accum.numpy(), f"{t}/linear": linear.numpy()}
    return {"rule": "ftrl", **numbers, "initial": initial}, arrays


def ftrl_power(rng: np.random.Generator, table: np.ndarray) -> tuple[dict, dict]:
    return ftrl(rng, table, lr_power=-0.7)


def momentum(rng: np.random.Generator, table: np.ndarray, nesterov: bool = False) -> tuple[dict, dict]:
    lr, mu = 0.05, 0.9
    var, accum = tf.Variable(table), tf.Variable(np.zeros_like(table))
    arrays = {}
    for t in range(STEPS):
        ids, grad = batch(rng, *table.shape, table.dtype.type)
        tf.raw_ops.ResourceSparseApplyMomentum(
            var=var.handle, accum=accum.handle, lr=tf.constant(lr, table.dtype), grad=grad, indices=ids,
            momentum=tf.constant(mu, table.dtype), use_nesterov=nesterov,
        )  # fmt: skip
        arrays |= {f"{t}/ids": ids, f"{t}/grad": grad, f"{t}/table": var.numpy(), f"{t}/momentum_buffer": accum.numpy()}
    return {"rule": "momentum", "lr": lr, "momentum": mu, "nesterov": nesterov, "initial": 0.0}, arrays


def nesterov(rng: np.random.Generator, table: np.ndarray) -> tuple[dict, dict]:
    return momentum(rng, table, nesterov=True)


def main() -> None:
    blob: dict[str, np.ndarray] = {}
    cases = []
    for make in (adagrad, adam, ftrl, ftrl_power, momentum, nesterov):
        for dtype in DTYPES:
            for cols in WIDTHS:
                rng = np.random.default_rng(len(cases))
                table = rng.normal(size=(10, cols)).astype(dtype)
                facts, arrays = make(rng, table)
                blob |= {f"{len(cases)}/{k}": v for k, v in {"before": table, **arrays}.items()}
                cases.append(facts)
    np.savez_compressed(OUT, cases=np.array(json.dumps({"tensorflow": tf.__version__, "cases": cases})), **blob)
    print(f"{len(cases)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
