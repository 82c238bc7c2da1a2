"""Record results of TensorFlow's RandomUniform and RandomNormal in tests/golden/random.npz. Needs TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

SEEDS = ((1, 0), (1234567890123, 98765432109876), (-5, 7))
OPS = {"RandomUniform": tf.raw_ops.RandomUniform, "RandomNormal": tf.raw_ops.RandomStandardNormal}


def main() -> None:
    found = {}
    for kind, make in OPS.items():
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for seed, seed2 in SEEDS:
                with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
                    numbers = make(shape=[3, 7], dtype=dtype, seed=seed, seed2=seed2)
                    for run in range(3):
                        value = session.run(numbers)
                        value = value.view(np.uint16) if dtype == "bfloat16" else value
                        found[f"{kind}/{dtype}/{seed}/{seed2}/{run}"] = value
    np.savez_compressed(Path(__file__).parent.parent / "tests" / "golden" / "random.npz", **found)


if __name__ == "__main__":
    main()
