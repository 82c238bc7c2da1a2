"""Calls of every differentiable dense op, with more variants than its sample, and edge cases for every runner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import CATALOG, Op
from samples import sample

SMOOTH = [op for op in CATALOG.values() if op.layer == "dense" and op.adjoint is not None]
# Variants beyond an op's sample: other shapes, axes and attributes.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    **{n: [{"axis": 1}, {"axis": -1, "keep_dims": True}, {"axis": [1, 0], "keep_dims": True}, {"axis": []}]
       for n in ("Sum", "Mean", "Prod", "Max", "Min")},
    "MatMul": [
        {"a": np.ones((2, 3)), "b": np.arange(12.0).reshape(3, 4), "transpose_a": False, "transpose_b": False},
        {"a": np.ones((2, 3)), "b": np.arange(12.0).reshape(4, 3), "transpose_a": False, "transpose_b": True},
        {"a": np.ones((3, 2)), "b": np.arange(12.0).reshape(3, 4), "transpose_a": True, "transpose_b": False},
    ],
    "ProdOthers": [
        {"inputs": [np.arange(24.0).reshape(2, 3, 4)], "axis": [2, 0]}, {"axis": []}, {"axis": -2},
        {"inputs": [np.arange(5.0), np.ones(5), np.arange(5.0)], "axis": 0}, {"inputs": [np.ones((2, 1))], "axis": 1},
    ],
    "SpreadLike": [{"mean": False}, {"x": np.ones((1, 3, 1)), "keep_dims": True, "mean": True}],
    "Gather": [{"indices": np.array(2)}, {"indices": np.array([1, 1, 0])}, {"params": np.arange(7.0)}],
    "Concat": [{"values": [np.ones((1, 2)), np.ones((3, 2))], "axis": 0}, {"values": [np.ones(2)], "axis": 0}],
    "Pack": [{"axis": -1}, {"axis": 0}],
    "OneHot": [{"axis": -1}, {"axis": 0}],
    "ExpandDims": [{"dim": -1}, {"dim": 0}],
    "Squeeze": [{"axis": ()}],
    "MergeDims": [{"count": 0}, {"count": 3}],
    "Slice": [{"begin": [0, 0], "size": [4, 5]}],
    "PartAt": [{"axis": -1, "index": -1}],
    "Add": [{"x": np.ones((2, 3)), "y": np.ones((2, 3))}, {"x": np.ones(()), "y": np.ones((2, 1))}],
    "Mul": [{"x": np.array(1.5), "y": np.arange(1.0, 4.0)}],
    "Softmax": [{"logits": np.arange(3.0)}],
    "Pow": [{"x": np.array([-2.0, 3.0]), "y": np.array([2.0, 2.0])}],
}  # fmt: skip
CALLS = [
    pytest.param(op, way, id=f"{op.name}-{k}")
    for op in SMOOTH
    for k, way in enumerate([{}, *VARIANTS.get(op.name, [])])
]


def inputs_of(op: Op, way: dict[str, Any]) -> dict[str, Any]:
    return {**sample(op.name, np.random.default_rng(8)), **way}


def means() -> list[Any]:
    """Return means whose sums overflow the dtype, with TensorFlow's results."""
    pairs: list[tuple[str, list[int], int]] = [
        ("int8", [100, 100, 55, 3], 64),
        ("int8", [-7, 2, -100, -100, 2], -40),
        ("int8", [-128] * 300, -128),
        ("uint8", [255, 255, 1], 170),
        ("int16", [-32768, -32768, 1], -21845),
        ("uint16", [65535] * 5, 65535),
        ("int32", [2**31 - 1] * 2, 2**31 - 1),
        ("uint32", [2**32 - 1] * 3, 2**32 - 1),
        ("int64", [2**63 - 1] * 2, -1),  # 64 bits wrap
        ("uint64", [2**64 - 1] * 2, 2**63 - 1),
    ]
    rows = [pytest.param(np.array(values, dtype), 0, mean, id=f"{dtype}-{mean}") for dtype, values, mean in pairs]
    return [*rows, pytest.param(np.full((3, 400), 127, np.int8), [1], [127] * 3, id="rows")]


MEANS = means()

# Small arguments with results that exceed any memory.
HUGE: list[tuple[str, tuple[Any, ...]]] = [
    ("Fill", ([1 << 40, 1 << 10], 1.0)),
    ("OneHot", (np.arange(2000), 2**31 - 1, 1.0, 0.0)),
    ("Add", (np.zeros((10**6, 1)), np.zeros((1, 10**6)))),
    ("Equal", (np.zeros((1, 2 * 10**6)), np.zeros((10**6, 1)))),
    ("Select", (np.zeros((10**6, 1), bool), np.zeros((1, 10**6)), np.float64(0))),
    ("MatMul", (np.zeros((10**6, 1)), np.zeros((1, 10**6)))),
    ("Range", (np.int64(0), np.int64(1 << 50), np.int64(1))),
]
# Reshape without elements: a shape, the requested shape, TensorFlow's result.
RESHAPED = [
    ((0, 3), [0, -1], (0, 3)),
    ((0, 3), [-1, 0], (3, 0)),
    ((0, 3), [0, 0, -1], (0, 0, 3)),
    ((0, 3), [0, -1, 2], (0, 1, 2)),
    ((0, 3), [-1, 2], (0, 2)),
    ((0,), [0, -1], (0, 1)),
    ((2, 0, 3), [0, -1], (0, 6)),
    ((2, 0, 3), [4, 0, -1], (4, 0, 1)),
    ((2, 0, 3), [0, -1, 7], (0, 0, 7)),
    ((4, 0, 6), [0, 3, -1], (0, 3, 8)),
    ((0, 3), -1, (0,)),
]
