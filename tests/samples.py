"""A valid random call of every op of the catalogue, with sizes that reach every branch of its shape rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rowgrad as rg
from rowgrad._catalog.spec import PLAN

Inputs = dict[str, Any]
ROWS, SEGMENTS, COLUMNS = 7, 5, 3


def sample(name: str, rng: np.random.Generator, dtype: Any = np.float64) -> Inputs:
    """Return inputs by argument name; floats have `dtype`."""
    return _find(name)(name, _Maker(rng, dtype))


class _Maker:
    def __init__(self, rng: np.random.Generator, dtype: Any) -> None:
        self.rng, self.dtype = rng, dtype

    def floats(self, *shape: int) -> np.ndarray:
        return (self.rng.uniform(0.5, 2.0, shape) * self.rng.choice([-1, 1], shape)).astype(self.dtype)

    def weights(self, n: int) -> np.ndarray:
        return self.rng.uniform(0.5, 2.0, n).astype(self.dtype)

    def ids(self, n: int, below: int) -> np.ndarray:
        return self.rng.integers(0, below, n)

    def segments(self, n: int, below: int = SEGMENTS, ordered: bool = True) -> np.ndarray:
        ids = self.ids(n, below)
        ids = np.sort(ids) if ordered else ids
        ids[-1] = below - 1  # so that the forward has as many rows as the gradient expects
        return ids

    def entries(self, n: int, shape: tuple[int, ...]) -> np.ndarray:
        flat = np.sort(self.rng.choice(int(np.prod(shape)), n, replace=False))
        return np.stack(np.unravel_index(flat, shape), axis=1).astype(np.int64)


def _forward(name: str, m: _Maker) -> Inputs:
    n = 30  # some segments of ten ids and more
    x = {"data": m.floats(ROWS, COLUMNS), "indices": m.ids(n, ROWS), "segment_ids": m.segments(n)}
    if name.startswith("Weighted"):
        x["weights"] = m.weights(n)
    if name.endswith("GradGrad"):
        x["segment_ids"] = m.segments(n, ordered=False)
    if name.endswith(("WithNumSegments", "GradGrad")):
        x["num_segments"] = SEGMENTS + 1
    return x


def _gradient(name: str, m: _Maker) -> Inputs:
    n = 20
    x = {"grad": m.floats(SEGMENTS, COLUMNS), "indices": m.ids(n, ROWS), "segment_ids": m.segments(n, ordered=False)}
    if name.startswith("Weighted"):
        x["weights"] = m.weights(n)
    if name.endswith("GradRows"):
        del x["indices"]
        return x
    x["dense_output_dim0" if name.endswith("V2") else "output_dim0"] = ROWS
    return x


def _padded(name: str, m: _Maker) -> Inputs:
    return _gradient(name, m) | {"size": ROWS + 2, "fill_id": ROWS + 1}


def _with_plan(name: str, m: _Maker) -> Inputs:
    x = _forward(name, m) | {"num_segments": SEGMENTS + 1}
    plan = rg.Plan(x["indices"], x["segment_ids"], ROWS, SEGMENTS + 1)
    return x | {part: getattr(plan, part) for part in PLAN}


def _planned(name: str, m: _Maker) -> Inputs:
    n, grad = 20, m.floats(SEGMENTS, COLUMNS)
    plan = rg.Plan(m.ids(n, ROWS), m.segments(n, ordered=False), ROWS)
    x: Inputs = {} if name == "PlannedIds" else {"grad": grad}
    if "Weighted" in name:
        x["weights"] = m.weights(n)
    return x | {part: getattr(plan, part) for part in PLAN}


def _fill(name: str, m: _Maker) -> Inputs:
    rows = np.array([0, 3, 3, 1, 3])
    common = {"values": m.floats(5), "default_value": m.floats()}
    if name.startswith("Ragged"):
        return {"value_rowids": rows, "nrows": 6, **common}
    return {"indices": np.stack([rows, m.ids(5, 4)], axis=1), "dense_shape": [6, 4], **common}


def _fill_grad(name: str, m: _Maker) -> Inputs:
    return {"reverse_index_map": np.array([4, 0, 2, 2]), "grad_values": m.floats(6)}


def _fill_grad_grad(name: str, m: _Maker) -> Inputs:
    x = _fill_grad(name, m)
    return {**x, "dd_values": m.floats(4), "dd_default_value": m.floats()}


def _slice(name: str, m: _Maker) -> Inputs:
    return {"indices": m.entries(9, (4, 5)), "values": m.floats(9), "shape": [4, 5], "start": [1, 0], "size": [2, 4]}


def _slice_grad(name: str, m: _Maker) -> Inputs:
    entries = m.entries(9, (4, 5))
    inside = entries[(entries[:, 0] >= 1) & (entries[:, 0] < 3)]
    values = ("backprop_val_grad", len(inside)) if name.endswith("SliceGrad") else ("grad", len(entries))
    x = {"input_indices": entries, "input_start": np.array([1, 0]), "output_indices": inside - [1, 0]}
    return {values[0]: m.floats(values[1]), **x}


def _add(name: str, m: _Maker) -> Inputs:
    x: Inputs = {}
    for side in "ab":
        x |= {f"{side}_indices": m.entries(6, (3, 4)), f"{side}_values": m.floats(6), f"{side}_shape": [3, 4]}
    return {**x, "thresh": np.zeros((), m.dtype)}


def _add_grad(name: str, m: _Maker) -> Inputs:
    a, b = m.entries(6, (3, 4)), m.entries(5, (3, 4))
    merged = np.unique(np.concatenate([a, b]), axis=0)[1:]  # one entry was dropped by the threshold
    x = {"a_indices": a, "b_indices": b, "sum_indices": merged}
    if name.endswith("GradGrad"):
        return {"da": m.floats(len(a)), "db": m.floats(len(b)), **x}
    return {"backprop_val_grad": m.floats(len(merged)), **x}


def _scalar_type(m: _Maker) -> Any:
    return np.float64 if m.dtype == np.float64 else np.float32


_CONVOLUTION: Inputs = {"strides": [1, 2, 1, 1], "padding": "SAME"}
_POOLING: Inputs = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
_OWN: dict[str, Callable[[_Maker], Inputs]] = {
    "SegmentSum": lambda m: {"data": m.floats(30, 9), "segment_ids": m.segments(30, below=2)},
    "GatherRows": lambda m: {"params": m.floats(ROWS, COLUMNS), "indices": m.ids(6, ROWS)},
    "ScatterRows": lambda m: {"grad": m.floats(6, COLUMNS), "indices": m.ids(6, ROWS), "num_rows": ROWS},
    "RowPlan": lambda m: {
        "indices": m.ids(9, ROWS), "segment_ids": m.ids(9, SEGMENTS), "num_rows": ROWS, "num_segments": SEGMENTS,
    },
    "SegmentIdsFromOffsets": lambda m: {"offsets": np.array([0, 2, 2, 5]), "num_ids": 9},
    "StackBags": lambda m: {
        "indices": np.array([0, 6, 2, 1, 0, 3, 3]), "offsets": np.array([0, 1, 1, 3, 3, 6, 7]),
        "feature_rows": np.array([ROWS, 4]), "feature_first": np.array([0, ROWS]),
    },
    "RowPositions": lambda m: {"sorted_ids": np.array([1, 4, 6]), "ids": np.array([6, 1, 1])},
    "SparseSegmentDot": lambda m: {
        "grad": m.floats(SEGMENTS, 11), "data": m.floats(ROWS, 11), "indices": m.ids(9, ROWS),
        "segment_ids": m.ids(9, SEGMENTS),
    },
    "RowDot": lambda m: {"x": m.floats(4, 11), "y": m.floats(4, 11)},
    "CastLike": lambda m: {"x": m.floats(4), "like": np.zeros(1, m.dtype)},
    "Positions": lambda m: {"ids": m.ids(4, 9)},
    "ScaleRows": lambda m: {"rows": m.floats(4, 3), "scale": m.floats(4).astype(_scalar_type(m))},
    "DivRows": lambda m: {"rows": m.floats(4, 3), "by": m.floats(4).astype(_scalar_type(m))},
    "MaskRows": lambda m: {"rows": m.floats(4, 3), "mask": np.array([True, False, False, True])},
    "ConcatRows": lambda m: {"x": m.floats(2, 3), "y": m.floats(4, 3)},
    "SplitRows": lambda m: {"rows": m.floats(6, 3), "x": m.floats(2, 3), "y": m.floats(4, 3)},
    "AtLeast": lambda m: {"x": m.floats(8), "bound": 0.1},
    "MaskBelow": lambda m: {"x": m.floats(8), "bound": 0.1},
    "FullLike": lambda m: {"x": m.floats(8), "value": 3.0},
}  # fmt: skip


def _pair(m: _Maker) -> Inputs:
    """Return two arrays that broadcast."""
    return {"x": m.floats(2, 1, 3), "y": m.floats(4, 1)}


def _reduced(m: _Maker) -> Inputs:
    return {"input": m.floats(2, 3, 4), "axis": [0, -1]}


def _booleans(m: _Maker, *shape: int) -> np.ndarray:
    return m.rng.random(shape) < 0.6


def _labels(m: _Maker) -> np.ndarray:
    return m.weights(12).reshape(4, 3)


_DENSE: dict[str, Callable[[_Maker], Inputs]] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "RealDiv", "DivNoNan", "Mod", "FloorMod", "FloorDiv", "Maximum", "Minimum",
         "SquaredDifference", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"), _pair),
    **dict.fromkeys(
        ("Neg", "Abs", "Sign", "Square", "Reciprocal", "Exp", "Expm1", "Sin", "Cos", "Sigmoid", "Tanh", "Softplus",
         "Floor", "Ceil", "Round", "ZerosLike", "OnesLike"), lambda m: {"x": m.floats(3, 2)}),
    **dict.fromkeys(("Sqrt", "Rsqrt", "Log", "Log1p"), lambda m: {"x": m.weights(4)}),
    **dict.fromkeys(("Sum", "Mean", "Prod", "Max", "Min"), _reduced),
    **dict.fromkeys(("All", "Any"), lambda m: {"input": _booleans(m, 3, 4), "axis": 1, "keep_dims": True}),
    **dict.fromkeys(("ArgMax", "ArgMin"), lambda m: {"input": m.floats(3, 4), "dimension": -2}),
    **dict.fromkeys(("Softmax", "LogSoftmax"), lambda m: {"logits": m.floats(2, 3)}),
    **dict.fromkeys(("Shape", "Size", "Rank"), lambda m: {"input": m.floats(2, 3)}),
    **dict.fromkeys(("Identity", "StopGradient"), lambda m: {"input": m.floats(2, 3)}),
    **dict.fromkeys(("LogicalAnd", "LogicalOr"), lambda m: {"x": _booleans(m, 3, 1), "y": _booleans(m, 4)}),
    **dict.fromkeys(("Transpose", "TransposeBack"), lambda m: {"x": m.floats(2, 3, 4), "perm": [2, 0, 1]}),
    "AddN": lambda m: {"inputs": [m.floats(2, 3) for _ in range(3)]},
    "Pow": lambda m: {"x": m.weights(6).reshape(2, 3), "y": m.floats(3)},
    "SumLike": lambda m: {"x": m.floats(2, 3, 4), "like": m.floats(3, 1)},
    "BroadcastLike": lambda m: {"x": m.floats(3, 1), "like": m.floats(2, 3, 4)},
    "Relu": lambda m: {"features": m.floats(5)},
    "ReluGrad": lambda m: {"gradients": m.floats(5), "features": m.floats(5)},
    "LogicalNot": lambda m: {"x": _booleans(m, 4)},
    "Select": lambda m: {"condition": _booleans(m, 2, 1), "x": m.floats(3), "y": m.floats(2, 3)},
    "Cast": lambda m: {"x": m.floats(4), "DstT": "float64"},
    "ProdOthers": lambda m: {"inputs": [m.floats(3, 4), m.floats(3, 4)], "axis": 1},
    "SpreadLike": lambda m: {"x": m.floats(3), "axis": [0, 2], "like": m.floats(2, 3, 4), "mean": True},
    "L2Loss": lambda m: {"t": m.floats(2, 3)},
    "SoftmaxCrossEntropyWithLogits": lambda m: {"features": m.floats(4, 3), "labels": _labels(m)},
    "SigmoidCrossEntropyWithLogits": lambda m: {"logits": m.floats(4), "labels": m.weights(4)},
    "BiasAdd": lambda m: {"value": m.floats(2, 4, 3), "bias": m.floats(3)},
    "MatMul": lambda m: {"a": m.floats(3, 2), "b": m.floats(4, 3), "transpose_a": True, "transpose_b": True},
    "Reshape": lambda m: {"tensor": m.floats(6, 2), "shape": [3, -1]},
    "ReshapeLike": lambda m: {"x": m.floats(6, 2), "like": np.zeros((3, 4), np.int8)},
    "MergeDims": lambda m: {"x": m.floats(2, 3, 4), "count": 2},
    "ExpandDims": lambda m: {"input": m.floats(2, 3), "dim": 1},
    "Squeeze": lambda m: {"input": m.floats(2, 1, 3, 1), "axis": (1,)},
    "Concat": lambda m: {"values": [m.floats(2, n) for n in (1, 3, 2)], "axis": -1},
    "ConcatPart": lambda m: {
        "x": m.floats(2, 6), "axis": 1, "values": [m.floats(2, n) for n in (1, 3, 2)], "index": 1,
    },
    "Pack": lambda m: {"values": [m.floats(2, 3) for _ in range(3)], "axis": 1},
    "PartAt": lambda m: {"x": m.floats(2, 3, 4), "axis": 1, "index": 2},
    "PlaceAt": lambda m: {"x": m.floats(2, 4), "like": m.floats(2, 3, 4), "axis": 1, "index": 1},
    "Column": lambda m: {"x": m.floats(4, 3), "index": 1},
    "Slice": lambda m: {"input": m.floats(4, 5), "begin": [1, 2], "size": [2, -1]},
    "SliceLike": lambda m: {"x": m.floats(4, 5), "begin": [1, 2], "like": m.floats(2, 3)},
    "PadLike": lambda m: {"x": m.floats(2, 3), "begin": [1, 2], "like": m.floats(4, 5)},
    "Gather": lambda m: {"params": m.floats(ROWS, COLUMNS), "indices": m.ids(6, ROWS).reshape(2, 3)},
    "OneHot": lambda m: {
        "indices": np.array([[0, 2], [3, -1]]), "depth": 3, "on_value": m.floats(), "off_value": m.floats(), "axis": 1,
    },
    "SparseToDense": lambda m: {
        "sparse_indices": m.entries(5, (3, 4)), "output_shape": [3, 4], "sparse_values": m.floats(5),
        "default_value": m.floats(),
    },
    "SparseToDenseLike": lambda m: {
        "sparse_indices": m.entries(5, (3, 4)), "like": m.floats(3, 4), "sparse_values": m.floats(5),
        "default_value": m.floats(),
    },
    "SparseToDenseGrad": lambda m: {
        "sparse_indices": m.entries(5, (3, 4)), "sparse_values": m.floats(5), "grad": m.floats(3, 4),
    },
    "Conv2D": lambda m: {"input": m.floats(2, 5, 4, 3), "filter": m.floats(3, 2, 3, 2), **_CONVOLUTION},
    "Conv2DBackpropInput": lambda m: {
        "input_sizes": [2, 5, 4, 3], "filter": m.floats(3, 2, 3, 2), "out_backprop": m.floats(2, 3, 4, 2),
        **_CONVOLUTION,
    },
    "Conv2DBackpropFilter": lambda m: {
        "input": m.floats(2, 5, 4, 3), "filter_sizes": [3, 2, 3, 2], "out_backprop": m.floats(2, 3, 4, 2),
        **_CONVOLUTION,
    },
    "Conv2DInputLike": lambda m: {
        "filter": m.floats(3, 2, 3, 2), "out_backprop": m.floats(2, 3, 4, 2), "like": m.floats(2, 5, 4, 3),
        **_CONVOLUTION,
    },
    "Conv2DFilterLike": lambda m: {
        "input": m.floats(2, 5, 4, 3), "out_backprop": m.floats(2, 3, 4, 2), "like": m.floats(3, 2, 3, 2),
        **_CONVOLUTION,
    },
    "MaxPool": lambda m: {"input": m.floats(2, 5, 4, 3), **_POOLING},
    "MaxPoolGrad": lambda m: {
        "orig_input": m.floats(2, 5, 4, 3), "orig_output": m.floats(2, 3, 2, 3), "grad": m.floats(2, 3, 2, 3),
        **_POOLING,
    },
    "MaxPoolGradGrad": lambda m: {
        "orig_input": m.floats(2, 5, 4, 3), "orig_output": m.floats(2, 3, 2, 3), "grad": m.floats(2, 5, 4, 3),
        **_POOLING,
    },
    "Where": lambda m: {"condition": _booleans(m, 3, 4)},
    "Flatnonzero": lambda m: {"mask": _booleans(m, 9)},
    "Dimension": lambda m: {"x": m.floats(4, 3), "axis": 1},
    "Fill": lambda m: {"dims": [2, 3], "value": m.floats()},
    "Range": lambda m: {"start": 3, "limit": 18, "delta": 4},
}  # fmt: skip
_BY_ENDING: tuple[tuple[str, str, Callable[[str, _Maker], Inputs]], ...] = (
    ("Planned", "", _planned),
    ("Padded", "", _padded),
    ("SparseSegment", "WithPlan", _with_plan),
    ("SparseSegment", "GradGrad", _forward),
    ("SparseSegment", "Grad", _gradient),
    ("SparseSegment", "GradV2", _gradient),
    ("SparseSegment", "GradRows", _gradient),
    ("SparseSegment", "", _forward),
    ("FillEmptyRows", "GradGrad", _fill_grad_grad),
    ("FillEmptyRows", "Grad", _fill_grad),
    ("FillEmptyRows", "", _fill),
    ("SparseSlice", "Grad", _slice_grad),
    ("SparseSlice", "", _slice),
    ("SparseAdd", "Grad", _add_grad),
    ("SparseAdd", "", _add),
)


def _find(name: str) -> Callable[[str, _Maker], Inputs]:
    if name in _OWN or name in _DENSE:
        return lambda _, m: (_OWN | _DENSE)[name](m)
    for part, ending, make in _BY_ENDING:
        if part in name and name.endswith(ending):
            return make
    raise KeyError(name)
