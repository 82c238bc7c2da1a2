"""TensorFlow's raw ops on tensors; copies of results to NumPy are not timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

VERSION = f"TensorFlow {tf.__version__}"
Arrays = dict[str, Any]
R = tf.raw_ops


def to_numpy(result: Any) -> list[np.ndarray[Any, Any]]:
    parts = result if isinstance(result, tuple | list) else [result]
    return [tf.cast(p, tf.float32).numpy() if p.dtype == tf.bfloat16 else p.numpy() for p in parts]


def t(x: Arrays, *names: str) -> list[Any]:
    return [tf.constant(x[n]) for n in names]


def forward(x: Arrays) -> Callable[[], Any]:
    table = tf.cast(tf.constant(x["table"]), x["dtype"])
    ids, segments = t(x, "ids", "segments")
    n = tf.constant(x["bags"], tf.int32)
    return lambda: R.SparseSegmentMeanWithNumSegments(data=table, indices=ids, segment_ids=segments, num_segments=n)


def gradient(op: Callable[..., Any], size: str) -> Callable[[Arrays], Callable[[], Any]]:
    def make(x: Arrays) -> Callable[[], Any]:
        grad = tf.cast(tf.constant(x["grad"]), x["dtype"])
        ids, segments = t(x, "ids", "segments")
        n = {size: tf.constant(x["rows"], tf.int32)}
        return lambda: op(grad=grad, indices=ids, segment_ids=segments, **n)

    return make


def weighted(x: Arrays) -> Callable[[], Any]:
    places = np.stack([x["segments"], np.arange(len(x["ids"]))], axis=1).astype(np.int64)
    shape = [x["bags"], len(x["ids"])]
    table = tf.cast(tf.constant(x["table"]), x["dtype"])
    ids = tf.SparseTensor(places, x["ids"], shape)
    weights = tf.SparseTensor(places, x["weights"], shape)
    look = tf.nn.embedding_lookup_sparse
    return lambda: look(table, ids, weights, combiner="mean", allow_fast_lookup=True)


def slice_(x: Arrays) -> Callable[[], Any]:
    i, v, s, start, size = t(x, "indices", "values", "shape", "start", "size")
    return lambda: R.SparseSlice(indices=i, values=v, shape=s, start=start, size=size)


def slice_grad(x: Arrays) -> Callable[[], Any]:
    sliced = slice_(x)()
    i, start = t(x, "indices", "start")
    g, o = sliced.output_values, sliced.output_indices
    return lambda: R.SparseSliceGrad(backprop_val_grad=g, input_indices=i, input_start=start, output_indices=o)


def fill(x: Arrays) -> Callable[[], Any]:
    i, v, s = t(x, "indices", "values", "shape")
    zero = tf.constant(0.0)
    return lambda: R.SparseFillEmptyRows(indices=i, values=v, dense_shape=s, default_value=zero)


def fill_grad(x: Arrays) -> Callable[[], Any]:
    filled = fill(x)()
    m, g = filled.reverse_index_map, filled.output_values
    return lambda: R.SparseFillEmptyRowsGrad(reverse_index_map=m, grad_values=g)


def add(x: Arrays) -> Callable[[], Any]:
    i, v, s, bi, bv = t(x, "indices", "values", "shape", "b_indices", "b_values")
    names = {"a_indices": i, "a_values": v, "a_shape": s, "b_indices": bi, "b_values": bv, "b_shape": s}
    return lambda: R.SparseAdd(**names, thresh=tf.constant(0.0))


def add_grad(x: Arrays) -> Callable[[], Any]:
    total = add(x)()
    i, bi = t(x, "indices", "b_indices")
    g, s = total.sum_values, total.sum_indices
    return lambda: R.SparseAddGrad(backprop_val_grad=g, a_indices=i, b_indices=bi, sum_indices=s)


def tiny(x: Arrays) -> Callable[[], Any]:
    grad, ids, segments = np.ones((16, 16), np.float32), np.arange(16), np.arange(16)
    size = np.int32(16)

    def thousand() -> Any:
        for _ in range(1000):
            result = R.SparseSegmentMeanGrad(grad=grad, indices=ids, segment_ids=segments, output_dim0=size)
        return result

    return thousand


KINDS = {
    "forward": forward,
    "dense": gradient(R.SparseSegmentMeanGrad, "output_dim0"),
    "rows": gradient(R.SparseSegmentMeanGradV2, "dense_output_dim0"),
    "weighted": weighted, "slice": slice_, "slice_grad": slice_grad, "fill": fill, "fill_grad": fill_grad,
    "add": add, "add_grad": add_grad, "tiny": tiny,
}  # fmt: skip
