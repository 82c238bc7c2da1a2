"""Every differentiable dense op, and more ways to call it than its sample has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rowgrad.spec import CATALOG, Op
from samples import sample

SMOOTH = [op for op in CATALOG.values() if op.layer == "dense" and op.adjoint is not None]
# More ways to call an op than its sample has: other shapes, axes and attributes.
WAYS: dict[str, list[dict[str, Any]]] = {
    **{n: [{"axis": 1}, {"axis": -1, "keep_dims": True}, {"axis": [1, 0], "keep_dims": True}, {"axis": []}]
       for n in ("Sum", "Mean", "Prod", "Max", "Min")},
    "MatMul": [
        {"a": np.ones((2, 3)), "b": np.arange(12.0).reshape(3, 4), "transpose_a": False, "transpose_b": False},
        {"a": np.ones((2, 3)), "b": np.arange(12.0).reshape(4, 3), "transpose_a": False, "transpose_b": True},
        {"a": np.ones((3, 2)), "b": np.arange(12.0).reshape(3, 4), "transpose_a": True, "transpose_b": False},
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
    pytest.param(op, way, id=f"{op.name}-{k}") for op in SMOOTH for k, way in enumerate([{}, *WAYS.get(op.name, [])])
]


def inputs_of(op: Op, way: dict[str, Any]) -> dict[str, Any]:
    return {**sample(op.name, np.random.default_rng(8)), **way}
