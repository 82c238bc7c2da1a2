"""Plan: the ids of a batch, sorted by row once and reused by every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._catalog.spec import PLAN
from .errors import OpError
from .raw_ops import OPS

__all__ = ("Plan",)


class Plan:
    """The ids of a batch sorted by row, with its distinct rows and the size of every segment.

    Every `SparseSegment*Grad`, `…GradV2` and `WeightedSparseSegment*Grad` accepts `plan=` in place of its ids and
    size, and returns the same bits. Make a plan once, for example in a data-loader process (a plan can be pickled, and
    is validated when it is unpickled), and use it for every table and step that shares the ids.

    Args:
        indices: The row of each id.
        segment_ids: The segment of each id.
        num_rows: The number of rows of the table.
        num_segments: The number of segments; by default the largest segment id plus one.

    Raises:
        InvalidArgumentError: If ids or segments are out of range.

    >>> import numpy as np, rowgrad as rg
    >>> plan = rg.Plan(indices=[3, 0, 3], segment_ids=[0, 0, 1], num_rows=4)
    >>> plan
    Plan(3 ids, 2 of 4 rows, 2 segments)
    >>> rows = rg.raw_ops.SparseSegmentSumGradV2(np.ones((2, 1), np.float32), plan=plan)
    >>> rows.sorted_unique_indices.tolist(), rows.output.ravel().tolist()
    ([0, 3], [1.0, 2.0])
    """

    __slots__ = PLAN
    rows: Any
    starts: Any
    segments: Any
    positions: Any
    counts: Any
    num_rows: int

    def __init__(self, indices: Any, segment_ids: Any, num_rows: int, num_segments: int | None = None) -> None:
        if num_segments is None:
            num_segments = _largest(segment_ids) + 1
        arrays = OPS["RowPlan"](indices, segment_ids, num_rows, num_segments, name="Plan")
        self._set((*arrays, int(num_rows)))

    @classmethod
    def of(cls, *parts: Any) -> Plan:
        """Return a plan of these arrays and number of rows without validation: kernels validate what they use."""
        plan = object.__new__(cls)
        plan._set(parts)
        return plan

    def _set(self, parts: tuple[Any, ...]) -> None:
        for name, part in zip(PLAN, parts, strict=True):
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
            object.__setattr__(self, name, part)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Plan is immutable; create another one to change {name}")

    @property
    def num_ids(self) -> int:
        """The number of ids."""
        return int(self.segments.shape[0])

    @property
    def num_segments(self) -> int:
        """The number of segments; a gradient must have at least as many rows."""
        return int(self.counts.shape[0])

    def ids(self) -> tuple[Any, Any]:
        """Return the indices and segment ids that the plan was made of, in their original order."""
        indices, segment_ids = OPS["PlannedIds"](*self.parts())
        return indices, segment_ids

    def parts(self) -> tuple[Any, ...]:
        """Return the arrays and the number of rows, in the order of the ops' arguments."""
        return tuple(getattr(self, name) for name in PLAN)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self.parts()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and all(map(np.array_equal, self.parts(), other.parts()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        rows = f"{self.rows.shape[0]} of {self.num_rows} rows"
        return f"Plan({self.num_ids} ids, {rows}, {self.num_segments} segments)"


def _largest(segment_ids: Any) -> int:
    try:
        n = len(segment_ids)
        return int(max(segment_ids.max() if hasattr(segment_ids, "max") else max(segment_ids), -1)) if n else -1
    except Exception:  # RowPlan raises the proper error
        return -1


def _restore(*parts: Any) -> Plan:
    """Return a plan from a pickle; raise if it is damaged."""
    plan = Plan.of(*parts)
    try:
        plan.ids()
    except OpError as error:
        raise ValueError(f"the pickle is not an intact Plan: {error}") from None
    return plan
