"""Record what TensorFlow answers for Conv2D, MaxPool, SparseToDense and their gradients, in tests/golden/images.npz.

Needs TensorFlow. `cases` is JSON: op, attributes and the names of the inputs; `<case>/<name>` are the arrays.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow as tf

OUT = Path(__file__).parent.parent / "tests" / "golden" / "images.npz"
# Image, filter, strides, dilations.
CONVOLUTIONS = [
    ((2, 5, 4, 3), (3, 2, 3, 4), (1, 1), (1, 1)),
    ((1, 7, 6, 2), (3, 3, 2, 2), (2, 3), (1, 1)),
    ((1, 8, 9, 1), (2, 3, 1, 3), (1, 1), (2, 3)),
    ((2, 4, 4, 2), (1, 1, 2, 3), (3, 2), (1, 1)),
    ((1, 2, 2, 1), (4, 4, 1, 1), (1, 1), (1, 1)),
    ((1, 9, 9, 4), (5, 5, 4, 3), (1, 1), (1, 1)),
    ((0, 4, 4, 2), (2, 2, 2, 1), (1, 1), (1, 1)),
]
# Image, window, strides.
POOLS = [
    ((2, 4, 4, 3), (2, 2), (2, 2)),
    ((1, 5, 7, 2), (3, 2), (2, 1)),
    ((1, 6, 5, 1), (2, 3), (3, 2)),
    ((1, 3, 3, 2), (3, 3), (1, 1)),
    ((2, 7, 7, 1), (1, 1), (2, 3)),
]


def attrs_of(strides: tuple[int, int], padding: str) -> dict[str, Any]:
    return {"strides": [1, *strides, 1], "padding": padding}


class Recorder:
    def __init__(self) -> None:
        self.cases: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}

    def record(self, op: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> np.ndarray | None:
        number = len(self.cases)
        case: dict[str, Any] = {"op": op, "attrs": attrs, "inputs": list(inputs), "error": None}
        try:
            tensors = {name: tf.constant(value) for name, value in inputs.items()}
            result = getattr(tf.raw_ops, op)(**tensors, **attrs).numpy()
            self.arrays[f"{number}/output"] = result
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            result = None
            case["error"] = str(error).partition("}} ")[2].partition(" [Op:")[0].strip()
        for name, value in inputs.items():
            self.arrays[f"{number}/{name}"] = np.asarray(value)
        self.cases.append(case)
        return result


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, whole: bool = False) -> np.ndarray:
    found = rng.integers(-4, 5, shape) if whole or np.dtype(dtype).kind in "iu" else rng.normal(size=shape)
    return np.abs(found).astype(dtype) if np.dtype(dtype).kind == "u" else found.astype(dtype)


def convolutions(to: Recorder, rng: np.random.Generator) -> None:
    for image, kernel, strides, dilations in CONVOLUTIONS:
        for padding in ("SAME", "VALID"):
            for dtype in (np.float32, np.float64):
                attrs = attrs_of(strides, padding) | {"dilations": [1, *dilations, 1]}
                x, w = numbers(rng, image, dtype), numbers(rng, kernel, dtype)
                y = to.record("Conv2D", {"input": x, "filter": w}, attrs)
                if y is None or dilations != (1, 1) or 0 in y.shape:
                    continue  # TensorFlow has no gradients with dilations on a CPU
                dy = numbers(rng, y.shape, dtype)
                sizes = {"input_sizes": np.array(image, np.int32), "filter": w, "out_backprop": dy}
                to.record("Conv2DBackpropInput", sizes, attrs)
                sizes = {"input": x, "filter_sizes": np.array(kernel, np.int32), "out_backprop": dy}
                to.record("Conv2DBackpropFilter", sizes, attrs)


def pools(to: Recorder, rng: np.random.Generator) -> None:
    for image, window, strides in POOLS:
        for padding in ("SAME", "VALID"):
            for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.int8, np.int16):
                attrs = attrs_of(strides, padding) | {"ksize": [1, *window, 1]}
                x = numbers(rng, image, dtype, whole=rng.integers(2) == 0)  # whole numbers have equal maxima
                y = to.record("MaxPool", {"input": x}, attrs)
                assert y is not None
                dy = numbers(rng, y.shape, dtype)
                to.record("MaxPoolGrad", {"orig_input": x, "orig_output": y, "grad": dy}, attrs)
                back = {"orig_input": x, "orig_output": y, "grad": numbers(rng, image, dtype)}
                to.record("MaxPoolGradGrad", back, attrs)
    odd = np.array([np.nan, 3, -np.inf, 2, np.inf, *[np.nan] * 3, *[-np.inf] * 4], np.float32)
    for padding in ("SAME", "VALID"):
        attrs = attrs_of((1, 1), padding) | {"ksize": [1, 2, 2, 1]}
        x = odd.reshape(1, 3, 4, 1)
        y = to.record("MaxPool", {"input": x}, attrs)
        assert y is not None
        dy = numbers(rng, y.shape, np.float32)
        to.record("MaxPoolGrad", {"orig_input": x, "orig_output": y, "grad": dy}, attrs)


def sparse(to: Recorder, rng: np.random.Generator) -> None:
    def call(indices: Any, shape: list[int], values: Any, default: Any = 0.0, check: bool = True) -> None:
        values = np.asarray(values)
        values = values.astype(np.float32) if values.dtype == np.float64 else values
        inputs = {"sparse_indices": np.asarray(indices, np.int64), "output_shape": np.array(shape, np.int64),
                  "sparse_values": values, "default_value": np.asarray(default, values.dtype)}  # fmt: skip
        to.record("SparseToDense", inputs, {"validate_indices": check})

    for check in (True, False):
        call([[0, 1], [1, 0]], [2, 2], [1.0, 2.0], -1.0, check)
        call([[1, 0], [0, 1]], [2, 2], [1.0, 2.0], 0.0, check)  # out of order
        call([[0, 1], [1, 0], [1, 0]], [2, 2], [1.0, 2.0, 3.0], 0.0, check)  # repeated
        call([0, 2], [4], [5.0, 6.0], 9.0, check)
        call([0, 2], [4], 7.0, 0.0, check)
        call(2, [4], 7.0, 0.0, check)
        call(2, [4], [7.0], 0.0, check)
        call([[2], [3]], [4], np.array([3, 4]), 1, check)
        call([[0, 0, 1]], [1, 2, 3], np.array([True]), False, check)
        call(np.zeros((0, 2)), [2, 3], np.zeros(0), 4.0, check)
    for dtype in (np.int32, np.float64, np.uint8):
        flat = np.sort(rng.choice(60, 9, replace=False))
        entries = np.stack(np.unravel_index(flat, (3, 4, 5)), axis=1)
        call(entries, [3, 4, 5], numbers(rng, (9,), dtype))
    call([[0, 1], [2, 0]], [2, 2], [1.0, 2.0])  # out of bounds
    call([[0], [-1]], [2], [1.0, 2.0])
    call([[3], [0]], [2], [1.0, 2.0])
    call([0, 1], [2, 2], [1.0, 2.0])
    call([[[0]]], [2], [1.0])
    call([[0, 1]], [2, 2], [1.0, 2.0])
    call([0, 1], [2], [[1.0], [2.0]])
    call([0, 1], [2], [1.0, 2.0], [1.0])


def main() -> None:
    to, rng = Recorder(), np.random.default_rng(2026)
    convolutions(to, rng)
    pools(to, rng)
    sparse(to, rng)
    cases = np.frombuffer(json.dumps(to.cases).encode(), np.uint8)
    np.savez_compressed(OUT, cases=cases, **to.arrays)
    print(f"{len(to.cases)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
