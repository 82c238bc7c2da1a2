"""A batch of ids turned round once, and the gradients that take it in place of the ids: what a Plan is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import refuse
from ..shape import check_elements, differ, rows_shape, same_lengths, size, vectors
from ..spec import INDEX, PLAN, Call, Known, Shape, declare
from . import sparse_segment, weighted_segment
from .sparse_segment import IN_ORDER, ORDER, REDUCE, TYPES

CATEGORY = "Plan"
_PLAN = "rows: Tidx, starts: int64, segments: Tsegmentids, positions: int64, counts: int64, num_rows: host Tnumrows"
_IDS = {"Tidx": INDEX, "Tsegmentids": INDEX, "Tnumrows": INDEX}


def _row_plan(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "segment_ids")
    same_lengths(x, "indices")
    size(x, "num_rows")
    n = x.shape("indices")[0]
    return (None,), (None,), (n,), (n,), (size(x, "num_segments"),)


def _plan(x: Known) -> tuple[int | None, int | None]:
    """How many rows and how many ids a plan has."""
    vectors(x, *PLAN[:-1])
    rows, ids = x.shape("rows")[0], x.shape("segments")[0]
    for name, length in (("starts", rows), ("positions", ids)):
        if differ(x.shape(name)[0], length):
            raise refuse("lengths_match", argument=name, value=x.shape(name)[0], bound=length)
    return rows, ids


def _planned_ids(x: Known) -> tuple[Shape, ...]:
    _, ids = _plan(x)
    size(x, "num_rows")
    return (ids,), (ids,)


def _planned_grad(x: Known) -> tuple[Shape, ...]:
    _, ids = _plan(x)
    if "weights" in x.avals:
        vectors(x, "weights")
        if differ(x.shape("weights")[0], ids):
            raise refuse("lengths_match", argument="weights", value=x.shape("weights")[0], bound=ids)
    shape = (size(x, "num_rows"), *rows_shape(x, "grad")[1:])
    check_elements(shape)
    return (shape,)


def _planned_grad_v2(x: Known) -> tuple[Shape, ...]:
    rows, _ = _plan(x)
    size(x, "num_rows")
    return (rows, *rows_shape(x, "grad")[1:]), (rows,)


def _row_of_each(inputs: Mapping[str, Any]) -> list[int]:
    """Which of the plan's rows every entry belongs to."""
    starts = [int(s) for s in inputs["starts"]]
    return [sum(s <= i for s in starts) - 1 for i in range(len(inputs["segments"]))]


def _table_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    rows = [int(r) for r in inputs["rows"]]
    return zip((rows[k] for k in _row_of_each(inputs)), map(int, inputs["segments"]), strict=True)


def _unique_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return zip(_row_of_each(inputs), map(int, inputs["segments"]), strict=True)


def _by_ids(adjoint: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The adjoint of the op that takes ids, on the ids the plan was made of."""

    def planned(ops: Any, c: Call, *ys: Any) -> tuple[Any, ...]:
        indices, segment_ids = ops["PlannedIds"](*(c.arguments[name] for name in PLAN))
        return adjoint(ops, c.on(indices=indices, segment_ids=segment_ids), *ys)

    return planned


declare(
    "RowPlan",
    "indices: Tidx, segment_ids: Tsegmentids, num_rows: host Tnumrows, num_segments: host Tnumsegments"
    " -> rows: Tidx, starts: int64, segments: Tsegmentids, positions: int64, counts: int64",
    types={**_IDS, "Tnumsegments": INDEX},
    kernel="row_plan",
    shape=_row_plan,
    category=CATEGORY,
    rows=lambda inputs: (),
    tensorflow=False,
    doc="""The ids of a batch sorted by the row they name: what `Plan` keeps.

`rows` are the distinct rows, ascending; the entries of `rows[k]` begin at `starts[k]`. Entry i belongs to segment
`segments[i]` and stood at `positions[i]` of the batch; inside a row positions ascend. `counts` says how many ids each
segment has.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.RowPlan(indices=[3, 0, 3], segment_ids=[0, 0, 1], num_rows=4, num_segments=2)
""",
)

declare(
    "PlannedIds",
    f"{_PLAN} -> indices: Tidx, segment_ids: Tsegmentids",
    types=_IDS,
    kernel="planned_ids",
    shape=_planned_ids,
    category=CATEGORY,
    rows=lambda inputs: (),
    tensorflow=False,
    doc="""The ids a plan was made of, in their order: RowPlan undone.

Every law a plan obeys is checked on the way, so it also tells whether arrays are a plan.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.PlannedIds(rows=[0, 3], starts=[0, 1], segments=[0, 0, 1], positions=[1, 0, 2], counts=[2, 1], num_rows=4)
""",
)

_EXAMPLE = """\
import numpy as np, rowgrad as rg
grad = np.array([[1., 2.], [6., 8.]], np.float32)
plan = rg.Plan(indices=[3, 0, 3], segment_ids=[0, 0, 1], num_rows=4)
rg.raw_ops.{name}(grad{weights}, plan=plan)
"""

for _kind, _reduce in REDUCE.items():
    _name = f"SparseSegment{_kind}Grad"
    declare(
        f"Planned{_name}",
        f"grad: T, {_PLAN} -> output: T",
        types={**TYPES, **_IDS},
        kernel="planned_segment_grad",
        constants=(_reduce, 0),
        **IN_ORDER,
        shape=_planned_grad,
        category=CATEGORY,
        differentiable=("grad",),
        linear=("grad",),
        adjoint=_by_ids(sparse_segment.grad_adjoint(_kind)),
        rows=_table_pairs,
        tensorflow=False,
        doc=f"""`{_name}` with a plan in place of the ids: the same bits, without the sort.

`{_name}(grad, plan=plan)` calls it.""",
        example=_EXAMPLE.format(name=_name, weights=""),
    )
    declare(
        f"Planned{_name}V2",
        f"grad: T, {_PLAN} -> output: T, sorted_unique_indices: Tidx",
        types={**TYPES, **_IDS},
        kernel="planned_segment_grad",
        constants=(_reduce, 1),
        **IN_ORDER,
        shape=_planned_grad_v2,
        category=CATEGORY,
        differentiable=("grad",),
        linear=("grad",),
        adjoint=_by_ids(sparse_segment.v2_adjoint(_kind)),
        rows=_unique_pairs,
        tensorflow=False,
        doc=f"""`{_name}V2` with a plan in place of the ids: the same bits, without the sort.

`{_name}V2(grad, plan=plan)` calls it.""",
        example=_EXAMPLE.format(name=f"{_name}V2", weights=""),
    )
    declare(
        f"PlannedWeighted{_name}",
        f"grad: T, weights: Tweights, {_PLAN} -> output: T",
        types={**weighted_segment.TYPES, **_IDS},
        kernel="planned_weighted_grad",
        constants=(_reduce,),
        attrs={"accumulate": "float32", "order": "sequential"},
        choices={**weighted_segment.ROUNDING, **ORDER},
        passed=("accumulate", "order"),
        shape=_planned_grad,
        category=CATEGORY,
        differentiable=("grad", "weights"),
        linear=("grad",),
        adjoint=_by_ids(weighted_segment.grad_adjoint(_kind)),
        rows=_table_pairs,
        tensorflow=False,
        doc=f"""`Weighted{_name}` with a plan in place of the ids: the same bits, without the sort.

`Weighted{_name}(grad, weights, plan=plan)` calls it; weights are in the batch's order.""",
        example=_EXAMPLE.format(name=f"Weighted{_name}", weights=", np.array([1., 2., 3.], np.float32)"),
    )
