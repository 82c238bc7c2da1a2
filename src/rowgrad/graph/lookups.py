"""The embedding lookups as blocks: the compositions of `rowgrad.lookup`, for ids that only a run knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import make_error, shape_text
from ..lookup import COMBINERS, clip_rows, smallest_positive
from .blocks import check_sparse, wire
from .inputs import as_sparse, is_sparse, kind_of, one_value
from .node_builder import Placing, expands
from .nodes import Check, Output, is_open


@expands("EmbeddingLookupSparse")
def _lookup_block(p: Placing) -> dict[str, Any]:
    params, indices, ids, _ = _arguments(p)
    weights = _weights(p, ids)
    result = _lookup(p, params, indices, ids, weights)
    _check_in_run(p, result, indices=indices, values=ids, weights=weights)
    return {"output": result}


@expands("SafeEmbeddingLookupSparse")
def _safe_lookup_block(p: Placing) -> dict[str, Any]:
    ops = p.ops
    params, indices, ids, dense_shape = _arguments(p)
    weights = _weights(p, ids)
    parts = {"indices": indices, "values": ids, "dense_shape": dense_shape, "weights": weights}
    kept = ops["Flatnonzero"](ops["GreaterEqual"](ids, ops["FullLike"](ids, value=0.0)))
    if weights is not None and p.attrs["combiner"] != "sum":
        least = ops["FullLike"](weights, value=smallest_positive(weights.dtype))
        positive = ops["GreaterEqual"](weights, least)
        fine = ops["LogicalAnd"](positive, ops["GreaterEqual"](ids, ops["FullLike"](ids, value=0.0)))
        kept = ops["Flatnonzero"](fine)
    indices, ids = (ops["GatherRows"](x, kept, gradient="dense") for x in (indices, ids))
    default = p.attrs["default_id"]
    filled = ops["SparseFillEmptyRows"](indices, ids, dense_shape, max(default, 0))
    if weights is not None:
        weights = ops["GatherRows"](weights, kept, gradient="dense")
        weights = ops["SparseFillEmptyRows"](indices, weights, dense_shape, 1.0).output_values
    result = _lookup(p, params, filled.output_indices, filled.output_values, weights)
    if default < 0:
        result = ops["MaskRows"](result, filled.empty_row_indicator)
    _check_in_run(p, result, **parts)
    return {"output": result}


def _check_in_run(p: Placing, result: Output, **parts: Output | None) -> None:
    """Have every run compare the parts of the ids, and weights, whose shapes the graph does not know."""
    inputs = {name: part for name, part in parts.items() if part is not None}
    if any(map(is_open, inputs.values())):
        result.node.check = Check(p.op, inputs, _check_parts)


def _check_parts(shapes: Mapping[str, tuple[int, ...]]) -> None:
    check_sparse(shapes)
    if shapes["indices"][1] != 2:
        raise make_error("same_shape", argument="ids", value=shape_text(shapes["indices"]), bound="[?,2] of indices")
    if "weights" in shapes and shapes["weights"] != shapes["values"]:
        bound = shape_text(shapes["values"])
        raise make_error("same_shape", argument="weights", value=shape_text(shapes["weights"]), bound=bound)


def _arguments(p: Placing) -> tuple[Output, Output, Output, Output]:
    given = p.given["ids"]
    if not is_sparse(given):
        raise make_error("pin_kind", argument="ids", bound="a sparse tensor", value=kind_of(given))
    parts = as_sparse(given)
    indices, shape = (wire(p, v, "ids", "int64") for v in (parts.indices, parts.dense_shape))
    ids = wire(p, parts.values, "ids")
    if indices.shape is not None and (len(indices.shape) != 2 or indices.shape[1] not in (2, None)):
        raise make_error("same_shape", argument="ids", value=shape_text(indices.shape), bound="[?,2] of indices")
    if ids.dtype not in ("int32", "int64"):
        raise make_error("dtype_not_allowed", argument="ids", value=ids.dtype, bound="int32, int64")
    return wire(p, p.given["params"], "params"), indices, ids, shape


def _weights(p: Placing, ids: Output) -> Output | None:
    if "weights" not in p.given:
        return None
    given = p.given["weights"]
    return wire(p, as_sparse(given).values if is_sparse(given) else one_value(given, "weights"), "weights")


def _lookup(p: Placing, params: Output, indices: Output, ids: Output, weights: Output | None) -> Output:
    ops, kind = p.ops, COMBINERS[p.attrs["combiner"]]
    segments = ops["Column"](indices, index=0)
    if p.attrs["max_norm"] > 0:
        params = clip_rows(ops["GatherRows"](params, ids, gradient="dense"), p.attrs["max_norm"], ops)
        ids = ops["Positions"](ids)
    if weights is None:
        result: Output = ops[f"SparseSegment{kind}"](params, ids, segments)
    else:
        result = ops[f"WeightedSparseSegment{kind}"](params, ids, segments, weights)
    return result
