"""Gradients of bags where whoever adds them up sees only some of a bag's ids: its scale is given, not counted.

A table that is split among processes has its gradients added up by the owner of each row, who knows of a bag only the
ids that name its own rows. What else it needs is one number per bag. These functions are compositions of ops, over a
table of them, so every array library has them; the bits are those of `[Weighted]SparseSegment{Sum,Mean,SqrtN}Grad`
and of their gradients by unique rows on all ids at once (docs/orders.md).
"""

from __future__ import annotations

from typing import Any


def weighted_scales(ops: Any, kind: str, segment_ids: Any, weights: Any, num_bags: int) -> Any:
    """What weighted bags are divided by: Σw or √Σw² of every bag, in the dtype of `weights`; None for sums.

    `weights` are those of all ids of each bag, already in the type sums are held in (float32, or float64 for float64).
    """
    if kind == "Sum":
        return None
    if kind == "Mean":
        return ops["ScatterRows"](weights, segment_ids, num_bags)
    return ops["Sqrt"](ops["ScatterRows"](ops["Mul"](weights, weights), segment_ids, num_bags))


def plain_scales(ops: Any, kind: str, segment_ids: Any, ones: Any) -> Any:
    """What rows of bags without weights are multiplied by: 1/n or 1/√n, for every id, in the dtype of `ones`.

    `ones` is a column [bags, 1] of the type sums are held in. The numbers are the kernel's own: an id that is alone in
    its row gets exactly its scale. None for sums.
    """
    if kind == "Sum":
        return None
    each = ops["Positions"](segment_ids)
    return ops[f"SparseSegment{kind}Grad"](ones, each, segment_ids, segment_ids.shape[0])


def scaled_rows(ops: Any, grad: Any, divisors: Any) -> Any:
    """Each bag's gradient divided by the bag's divisor, in the divisors' dtype; x/0 is 0."""
    wide = ops["CastLike"](grad, divisors)
    # The gradient kernels take subnormal numbers for zero before they divide; a product with 1 there does the same.
    each = ops["Positions"](ops["Cast"](ops["ZerosLike"](divisors), DstT="int64"))
    flushed = ops["WeightedSparseSegmentSumGradRows"](wide, each, ops["OnesLike"](divisors))
    return ops["DivNoNan"](flushed, ops["Reshape"](divisors, (-1, 1)))


def dense_gradient(
    ops: Any, grad: Any, indices: Any, segment_ids: Any, num_rows: int, *, factors: Any = None, divisors: Any = None,
    weights: Any = None, plan: tuple[Any, ...] | None = None, **order: Any,
) -> Any:  # fmt: skip
    """The gradient for a table of `num_rows` rows, as a dense table.

    `grad` has a row for every bag, `indices` and `segment_ids` are the (row, bag) pairs in their order. Without weights
    `factors`, one per bag, multiply; with `weights`, one per pair, `divisors` divide first. `plan` is what RowPlan says
    of these pairs, where that is known already. `order=` as in the ops.
    """
    rows, numbers = terms(ops, grad, segment_ids, factors, divisors, weights)
    ids = (indices, segment_ids) if plan is None else plan
    prefix = "" if plan is None else "Planned"
    if numbers is None:
        return ops[f"{prefix}SparseSegmentSumGrad"](rows, *ids, num_rows, **order)
    if plan is None:
        found = ops["WeightedSparseSegmentSumGrad"](rows, *ids, numbers, num_rows, **order)
    else:
        found = ops["PlannedWeightedSparseSegmentSumGrad"](rows, numbers, *ids, num_rows, **order)
    return ops["CastLike"](found, grad)


def unique_gradient(
    ops: Any, grad: Any, indices: Any, segment_ids: Any, num_rows: int, *, factors: Any = None, divisors: Any = None,
    weights: Any = None, plan: tuple[Any, ...] | None = None, **order: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The same by unique rows: their values, and their numbers, ascending."""
    rows, numbers = terms(ops, grad, segment_ids, factors, divisors, weights)
    if plan is None:
        plan = ops["RowPlan"](indices, segment_ids, num_rows, grad.shape[0])
    if numbers is None:
        values, ids = ops["PlannedSparseSegmentSumGradV2"](rows, *plan, num_rows, **order)
        return values, ids
    ids, *rest = plan
    planned = ops["PlannedWeightedSparseSegmentSumGrad"]
    values = planned(rows, numbers, ops["Positions"](ids), *rest, ids.shape[0], **order)
    return ops["CastLike"](values, grad), ids


def terms(ops: Any, grad: Any, segment_ids: Any, factors: Any, divisors: Any, weights: Any) -> tuple[Any, Any]:
    """Rows to add up, one per bag, and what each pair multiplies them by, if anything."""
    if factors is not None:
        return grad, ops["GatherRows"](factors, segment_ids, gradient="dense")
    return grad if divisors is None else scaled_rows(ops, grad, divisors), weights
