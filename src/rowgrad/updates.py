"""Optimizer steps on tables, in place.

A table and its slots are NumPy arrays, or `Memory` of another library; so are gradients and ids. Nothing is copied that
is updated, and nothing is written by a call that is refused. docs/optimizers.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arrays import NUMPY_DTYPE, Array, plain_array
from .errors import refuse, shape_text
from .results import check_size
from .rows import IndexedRows
from .spec import PLAN, Aval, value_text
from .update_call import Memory, UpdateCall
from .update_rules import RULES, Step, check_betas, check_count, check_number, slot_dtype, slot_shapes

__all__ = [
    "COMBINERS", "RULES", "Memory", "Step", "apply_all", "apply_bags", "apply_gradient", "apply_planned", "apply_rows",
    "check_betas", "check_count", "check_number", "new_slots", "slot_dtype", "slot_shapes",
]  # fmt: skip

COMBINERS = ("sum", "mean", "sqrtn")
_ACCUMULATE = ("T", "float32")
_ORDERS = ("sequential", "blocked")


def new_slots(rule: str, table: Array | Memory, initial: float = 0.0) -> tuple[Array, ...]:
    """Slots of a table at the start: zeros, or `initial` everywhere."""
    with UpdateCall("new_slots", table=table, initial=initial) as call:
        dtype, shape = call.table_of(table)
        check_number("initial", initial, least=0.0)  # roots of sums are taken
        slot = NUMPY_DTYPE[slot_dtype(dtype)]
        with np.errstate(over="ignore"):
            start = slot.type(initial)
        if not np.isfinite(start):
            raise refuse("number_unfit", argument="initial", value=repr(initial), bound=f"a number {slot} holds")
        shapes = slot_shapes(rule, shape)
        for aval in (Aval(slot_dtype(dtype), shape) for shape in shapes):
            check_size(aval)
        return tuple(np.full(shape, start, slot) for shape in shapes)


def apply_rows(
    rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, row_ids: Any, step: Step
) -> None:
    """One step of the rows that `row_ids` names, which ascend strictly; row k of `grad` is the gradient of row_ids[k].

    >>> import numpy as np
    >>> from rowgrad import updates
    >>> table = np.ones((4, 2), np.float32)
    >>> updates.apply_rows("sgd", table, (), np.ones((2, 2), np.float32), [0, 3], updates.Step(lr=0.5))
    >>> table[:, 0].tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    ready_rows(rule, table, slots, grad, row_ids, step)()


def ready_rows(
    rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, row_ids: Any, step: Step
) -> Callable[[], None]:
    """All checks of `apply_rows` but those the kernel does; returns its launch."""
    with UpdateCall("apply_rows", table=table, grad=grad, row_ids=row_ids) as call:
        state = call.state(rule, table, slots)
        grads, ids = call.rows("grad", grad), call.ids("row_ids", row_ids)
        if ids.shape[0] != grads.shape[0]:
            raise refuse("lengths_match", argument="row_ids", value=ids.shape[0], bound=grads.shape[0])
        return call.ready(state, rule, step)


def apply_all(rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, step: Step) -> None:
    """One step of every row; `grad` has the table's shape.

    >>> import numpy as np
    >>> from rowgrad import updates
    >>> table, slots = np.ones((2, 1)), (np.zeros((2, 1)),)
    >>> updates.apply_all("adagrad", table, slots, np.array([[3.0], [4.0]]), updates.Step(lr=0.5, eps=0.0))
    >>> table.ravel().tolist(), slots[0].ravel().tolist()
    ([0.5, 0.5], [9.0, 16.0])
    """
    ready_all(rule, table, slots, grad, step)()


def ready_all(
    rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, step: Step
) -> Callable[[], None]:
    """All checks of `apply_all` but those the kernel does; returns its launch."""
    with UpdateCall("apply_all", table=table, grad=grad) as call:
        state = call.state(rule, table, slots)
        grads = call.rows("grad", grad)
        if grads.shape != call.table.shape:
            raise refuse(
                "same_shape", argument="grad", value=shape_text(grads.shape), bound=shape_text(call.table.shape)
            )
        return call.ready(state, rule, step)


def apply_gradient(rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, step: Step) -> None:
    """One step with a gradient as `vjp` gives it: IndexedRows in any order, or the whole table's.

    Rows that have the same index are added up in their order and take one step.

    >>> import numpy as np, rowgrad as rg
    >>> from rowgrad import updates
    >>> table = np.ones((4, 1), np.float32)
    >>> rows = rg.IndexedRows(np.array([[1], [2], [4]], np.float32), np.array([3, 0, 3]), num_rows=4)
    >>> updates.apply_gradient("sgd", table, (), rows, updates.Step(lr=1.0))
    >>> table.ravel().tolist()
    [-1.0, 1.0, 1.0, -4.0]
    """
    if not isinstance(grad, IndexedRows):
        return apply_all(rule, table, slots, grad, step)
    if not isinstance(grad.num_rows, int | np.integer):
        raise refuse("count_unfit", argument="num_rows", value=value_text(grad.num_rows), bound=0).in_call(
            "apply_gradient", None, "IndexedRows"
        )
    if not hasattr(grad.values, "shape"):
        raise refuse("not_an_array", argument="grad", value=f"IndexedRows of {type(grad.values).__name__}").in_call(
            "apply_gradient", None, "IndexedRows"
        )
    shape = tuple(getattr(table, "shape", ()))  # what is no table at all is refused below
    if shape and shape != grad.shape:
        raise refuse("same_shape", argument="grad", value=shape_text(grad.shape), bound=shape_text(shape)).in_call(
            "apply_gradient", None, f"table of shape {shape_text(shape)}, IndexedRows of shape {shape_text(grad.shape)}"
        )
    with UpdateCall("apply_gradient", table=table):
        ids = plain_array(grad.indices, "indices")
    if ids.ndim != 1 or grad.values.shape[:1] != ids.shape:
        raise refuse(
            "same_shape",
            argument="indices",
            value=shape_text(ids.shape),
            bound=shape_text(tuple(grad.values.shape[:1])),
        ).in_call("apply_gradient", None, f"IndexedRows of values {shape_text(tuple(grad.values.shape))}")
    if grad.is_unique:
        return apply_rows(rule, table, slots, grad.values, grad.indices, step)
    return apply_bags(rule, table, slots, grad.values, grad.indices, np.arange(len(ids)), step)


def apply_bags(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    indices: Any,
    segment_ids: Any,
    step: Step,
    *,
    combiner: str = "sum",
    weights: Any = None,
    accumulate: str = "float32",
    order: str = "sequential",
) -> None:
    """One step with the gradient of bags: `SparseSegment{Sum,Mean,SqrtN}GradV2` and `apply_rows`, bit for bit.

    `grad` has a row for every bag. With `weights` the bags are those of `WeightedSparseSegment*`. The table's gradient
    is never stored: its rows are summed some at a time, and each takes its step at once.

    >>> import numpy as np
    >>> from rowgrad import updates
    >>> table, grad = np.ones((4, 1), np.float32), np.array([[2.0], [4.0]], np.float32)
    >>> updates.apply_bags("sgd", table, (), grad, [3, 0, 3], [0, 0, 1], updates.Step(lr=0.5), combiner="mean")
    >>> table.ravel().tolist()
    [0.5, 1.0, 1.0, -1.5]
    """
    how = {"combiner": combiner, "weights": weights, "accumulate": accumulate, "order": order}
    ready_bags(rule, table, slots, grad, indices, segment_ids, step, **how)()


def ready_bags(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    indices: Any,
    segment_ids: Any,
    step: Step,
    *,
    weights: Any = None,
    **how: Any,
) -> Callable[[], None]:
    """All checks of `apply_bags` but those the kernel does; returns its launch."""
    with UpdateCall(
        "apply_bags", table=table, grad=grad, indices=indices, segment_ids=segment_ids, weights=weights
    ) as call:
        state = call.state(rule, table, slots)
        call.rows("grad", grad)
        ids, segments = call.ids("indices", indices), call.ids("segment_ids", segment_ids)
        if segments.shape != ids.shape:
            raise refuse("segments_match_indices")
        call.weights(weights, ids.shape[0])
        return call.ready(state, rule, step, _bag_constants(weights, **how))


def apply_planned(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    plan: Any,
    step: Step,
    *,
    combiner: str = "sum",
    weights: Any = None,
    accumulate: str = "float32",
    order: str = "sequential",
) -> None:
    """`apply_bags` with a `Plan` in place of the ids; the same bits.

    >>> import numpy as np, rowgrad as rg
    >>> from rowgrad import updates
    >>> table, plan = np.ones((4, 1), np.float32), rg.Plan([3, 0, 3], [0, 0, 1], num_rows=4)
    >>> updates.apply_planned("sgd", table, (), np.ones((2, 1), np.float32), plan, updates.Step(lr=0.5))
    >>> table.ravel().tolist()
    [0.5, 1.0, 1.0, 0.0]
    """
    how = {"combiner": combiner, "weights": weights, "accumulate": accumulate, "order": order}
    ready_planned(rule, table, slots, grad, plan, step, **how)()


def ready_planned(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    plan: Any,
    step: Step,
    *,
    weights: Any = None,
    **how: Any,
) -> Callable[[], None]:
    """All checks of `apply_planned` but those the kernel does; returns its launch."""
    with UpdateCall("apply_planned", table=table, grad=grad, plan=plan, weights=weights) as call:
        state = call.state(rule, table, slots)
        call.rows("grad", grad)
        parts: dict[str, Any] = {
            name: getattr(plan, name, None) for name in PLAN
        }  # once: a property may differ the next time
        if any(part is None for part in parts.values()):
            raise refuse("not_a_plan", value=type(plan).__name__)
        for name in PLAN[:-1]:
            if hasattr(parts[name], "__array__"):
                parts[name] = plain_array(parts[name], name)
            if len(getattr(parts[name], "shape", ())) != 1:
                raise refuse("should_be_vector", argument=name)
        call.weights(weights, parts["segments"].shape[0])
        call.plan(parts)
        return call.ready(state, rule, step, _bag_constants(weights, **how))


def _bag_constants(
    weights: Any, combiner: str = "sum", accumulate: str = "float32", order: str = "sequential"
) -> list[int]:
    return [
        _chosen("combiner", combiner, COMBINERS),
        int(weights is not None),
        _chosen("accumulate", accumulate, _ACCUMULATE),
        _chosen("order", order, _ORDERS),
    ]


def _chosen(argument: str, value: Any, choices: tuple[str, ...]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise refuse("attr_not_allowed", argument=argument, value=repr(value), bound=", ".join(map(repr, choices)))
    return choices.index(value)
