"""rowgrad itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import rowgrad as rg
from rowgrad.raw_ops import OPS

VERSION = f"rowgrad {rg.__version__}"
Arrays = dict[str, Any]


def to_numpy(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, tuple | list) else [result]
    return [np.asarray(p, np.float32) if p.dtype == ml_dtypes.bfloat16 else np.asarray(p) for p in parts]


def typed(x: Arrays, name: str) -> np.ndarray:
    dtype = ml_dtypes.bfloat16 if x["dtype"] == "bfloat16" else x["dtype"]
    return x[name].astype(dtype, copy=False)


def forward(x: Arrays) -> Callable[[], Any]:
    table = typed(x, "table")
    return lambda: OPS["SparseSegmentMeanWithNumSegments"](table, x["ids"], x["segments"], x["bags"])


def dense(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    return lambda: OPS["SparseSegmentMeanGrad"](grad, x["ids"], x["segments"], x["rows"])


def dense_kept(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    buffer = rg.GradBuffer((x["rows"], grad.shape[1]), grad.dtype)
    return lambda: OPS["SparseSegmentMeanGrad"](grad, x["ids"], x["segments"], x["rows"], out=buffer)


def rows(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    return lambda: OPS["SparseSegmentMeanGradV2"](grad, x["ids"], x["segments"], x["rows"])


def weighted(x: Arrays) -> Callable[[], Any]:
    table = typed(x, "table")
    return lambda: OPS["WeightedSparseSegmentMean"](table, x["ids"], x["segments"], x["weights"])


def slice_(x: Arrays) -> Callable[[], Any]:
    return lambda: OPS["SparseSlice"](x["indices"], x["values"], x["shape"], x["start"], x["size"])


def slice_grad(x: Arrays) -> Callable[[], Any]:
    cut = slice_(x)()
    return lambda: OPS["SparseSliceGrad"](cut.output_values, x["indices"], x["start"], cut.output_indices)


def fill(x: Arrays) -> Callable[[], Any]:
    zero = np.float32(0)
    return lambda: OPS["SparseFillEmptyRows"](x["indices"], x["values"], x["shape"], zero)


def fill_grad(x: Arrays) -> Callable[[], Any]:
    filled = fill(x)()
    return lambda: OPS["SparseFillEmptyRowsGrad"](filled.reverse_index_map, filled.output_values)


def add(x: Arrays) -> Callable[[], Any]:
    zero, shape = np.float32(0), x["shape"]
    return lambda: OPS["SparseAdd"](x["indices"], x["values"], shape, x["b_indices"], x["b_values"], shape, zero)


def add_grad(x: Arrays) -> Callable[[], Any]:
    total = add(x)()
    return lambda: OPS["SparseAddGrad"](total.sum_values, x["indices"], x["b_indices"], total.sum_indices)


def tiny(x: Arrays) -> Callable[[], Any]:
    grad, ids, segments = np.ones((16, 16), np.float32), np.arange(16), np.arange(16)
    size = np.int32(16)

    def thousand() -> Any:
        for _ in range(1000):
            result = OPS["SparseSegmentMeanGrad"](grad, ids, segments, size)
        return result

    return thousand


KINDS = {
    "forward": forward, "dense": dense, "dense_kept": dense_kept, "rows": rows,
    "weighted": weighted, "slice": slice_, "slice_grad": slice_grad,
    "fill": fill, "fill_grad": fill_grad, "add": add, "add_grad": add_grad, "tiny": tiny,
}  # fmt: skip
