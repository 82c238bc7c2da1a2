"""RowPlan, a batch of ids sorted by row, and the gradients that take a plan instead of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import make_error
from . import sparse_segment, weighted_segment
from .enums import Reduction
from .kernels import kernel
from .rows import IndexedRows
from .shapes import check_elements, differ, rows_shape, same_lengths, size, vectors
from .sparse_segment import GRADIENT_MESH, IN_ORDER, ORDER, TYPES
from .spec import INDEX, PLAN, Call, Known, Shape, declare, no_rows

CATEGORY = "Plan"
_PLAN = "rows: Tidx, starts: int64, segments: Tsegmentids, positions: int64, counts: int64, num_rows: host Tnumrows"
_IDS = {"Tidx": INDEX, "Tsegmentids": INDEX, "Tnumrows": INDEX}

kernel("row_plan", no_vmap="it determines how many rows a plan has", data_sized=True, fuzz="plan")
kernel("planned_ids", fuzz="plan")
kernel(
    "planned_segment_grad",
    parameters=("reduction", "unique", "order"),
    vmap="rows",
    columnwise=True,
    writes_named_rows=True,
    mesh=GRADIENT_MESH,
    fuzz="plan",
)
kernel(
    "planned_weighted_grad",
    parameters=("reduction", "accumulate", "order"),
    vmap="rows",
    # counts come first, so that S is the number of the plan's segments: grad may have more rows, which are not read
    layout="counts: S, grad: S, weights: n, rows: R>V, starts: R>n, segments: n>S, positions: n>n, num_rows: V -> V",
    columnwise=True,
    writes_named_rows=True,
    mesh=GRADIENT_MESH,
    fuzz="plan",
)


def _row_plan(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "segment_ids")
    same_lengths(x, "indices")
    size(x, "num_rows")
    n = x.shape("indices")[0]
    return (None,), (None,), (n,), (n,), (size(x, "num_segments"),)


def _plan(x: Known) -> tuple[int | None, int | None]:
    """Return the number of rows and the number of ids of a plan."""
    vectors(x, *PLAN[:-1])
    rows, ids = x.shape("rows")[0], x.shape("segments")[0]
    for name, length in (("starts", rows), ("positions", ids)):
        if differ(x.shape(name)[0], length):
            raise make_error("lengths_match", argument=name, value=x.shape(name)[0], bound=length)
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
            raise make_error("lengths_match", argument="weights", value=x.shape("weights")[0], bound=ids)
    shape = (size(x, "num_rows"), *rows_shape(x, "grad")[1:])
    check_elements(shape)
    return (shape,)


def _planned_grad_v2(x: Known) -> tuple[Shape, ...]:
    rows, _ = _plan(x)
    size(x, "num_rows")
    return (rows, *rows_shape(x, "grad")[1:]), (rows,)


def _row_of_each(inputs: Mapping[str, Any]) -> list[int]:
    """Return the row of the plan to which each entry belongs."""
    starts = [int(s) for s in inputs["starts"]]
    return [sum(s <= i for s in starts) - 1 for i in range(len(inputs["segments"]))]


def _table_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    rows = [int(r) for r in inputs["rows"]]
    return zip((rows[k] for k in _row_of_each(inputs)), map(int, inputs["segments"]), strict=True)


def _unique_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return zip(_row_of_each(inputs), map(int, inputs["segments"]), strict=True)


def _by_ids(adjoint: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Apply the adjoint of the op that takes ids to the ids of the plan."""

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
    rows=no_rows,
    tensorflow=False,
    doc="""The ids of a batch sorted by row: the arrays of a `Plan`.

`rows` are the distinct rows, ascending; the entries of `rows[k]` begin at `starts[k]`. Entry i belongs to segment
`segments[i]` and has position `positions[i]` in the batch; positions ascend within a row. `counts` is the number of ids
of each segment.""",
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
    rows=no_rows,
    tensorflow=False,
    doc="""The ids of a plan in the order of the batch: the inverse of `RowPlan`.

It validates the arrays completely and raises if they are not a plan.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.PlannedIds(rows=[0, 3], starts=[0, 1], segments=[0, 0, 1], positions=[1, 0, 2], counts=[2, 1], num_rows=4)
""",
)


def _forward(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "segment_ids")
    same_lengths(x, "indices")
    _, ids = _plan(x)
    if "weights" in x.avals:
        vectors(x, "weights")
        same_lengths(x, "weights")
    if differ(x.shape("indices")[0], ids):
        raise make_error("lengths_match", argument="segments", value=ids, bound=x.shape("indices")[0])
    data, rows = rows_shape(x, "data"), size(x, "num_rows")
    if differ(data[0], rows):
        raise make_error("plan_of_other_table", value=rows, bound=data[0])
    return ((size(x, "num_segments"), *data[1:]),)


def _forward_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        plan = tuple(c.arguments[name] for name in PLAN)
        if not c.attrs["sparse_gradient"]:
            return (ops[f"PlannedSparseSegment{kind}Grad"](y, *plan),)
        values, ids = ops[f"PlannedSparseSegment{kind}GradV2"](y, *plan)
        return (IndexedRows(values, ids, c.data.shape[0], is_unique=True),)

    return adjoint


def _weighted_adjoint(kind: str) -> Callable[..., tuple[Any, ...]]:
    def adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
        plan = tuple(c.arguments[name] for name in PLAN)
        to_data: Any = None
        if c.wants("data") and not c.attrs["sparse_gradient"]:
            to_data = ops[f"PlannedWeightedSparseSegment{kind}Grad"](
                y, c.weights, *plan, accumulate=c.attrs["accumulate"]
            )
        elif c.wants("data"):
            to_data = weighted_segment.planned_rows(ops, kind, c, y, plan[:-1])
        return to_data, weighted_segment.weights_gradient(ops, kind, c, y, c.data, y.shape[0])

    return adjoint


_EXAMPLE = """\
import numpy as np, rowgrad as rg
grad = np.array([[1., 2.], [6., 8.]], np.float32)
plan = rg.Plan(indices=[3, 0, 3], segment_ids=[0, 0, 1], num_rows=4)
rg.raw_ops.{name}(grad{weights}, plan=plan)
"""

_FORWARD_EXAMPLE = """\
import numpy as np, rowgrad as rg
table = np.array([[1., 2.], [3., 4.], [5., 6.], [7., 8.]])
plan = rg.Plan(indices=[3, 0, 3], segment_ids=[0, 0, 1], num_rows=4)
rg.raw_ops.{name}(table, [3, 0, 3], [0, 0, 1]{weights}, num_segments=2, plan=plan)
"""

for _reduce in Reduction:
    _kind = _reduce.op_suffix
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
    for _weighted in (False, True):
        _name = f"{'Weighted' if _weighted else ''}SparseSegment{_kind}"
        _weights = ", weights: Tweights" if _weighted else ""
        declare(
            f"{_name}WithPlan",
            f"data: T, indices: Tidx, segment_ids: Tsegmentids{_weights}, num_segments: host Tnumsegments, {_PLAN}"
            " -> output: T",
            types={**(weighted_segment.TYPES if _weighted else TYPES), **_IDS, "Tnumsegments": INDEX},
            kernel="weighted_segment" if _weighted else "sparse_segment",
            constants=(_reduce, 1),
            without_plan=f"{_name}WithNumSegments",
            attrs={"sparse_gradient": False, **({"accumulate": "float32"} if _weighted else {})},
            choices={"sparse_gradient": (False, True), **(weighted_segment.ROUNDING if _weighted else {})},
            shape=_forward,
            category=CATEGORY,
            differentiable=("data", "weights") if _weighted else ("data",),
            linear=("data",),
            adjoint=(_weighted_adjoint if _weighted else _forward_adjoint)(_kind),
            rows=sparse_segment.forward_pairs,
            tensorflow=False,
            doc=f"""`{_name}WithNumSegments` with the plan of its ids, which its gradient uses.

`{_name}WithNumSegments(data, indices, segment_ids{", weights" if _weighted else ""}, num_segments, plan=plan)` calls
it. The plan must be that of these ids.""",
            example=_FORWARD_EXAMPLE.format(
                name=f"{_name}WithNumSegments", weights=", np.array([1., 2., 3.])" if _weighted else ""
            ),
        )
