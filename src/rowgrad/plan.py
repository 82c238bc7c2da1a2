"""Plan: the ids of a batch turned round once, for every gradient that needs them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._catalog.spec import PLAN
from .errors import OpError
from .raw_ops import OPS


class Plan:
    """The ids of a batch sorted by row, with its distinct rows and the size of every segment.

    Any `SparseSegment*Grad`, `…GradV2` or `WeightedSparseSegment*Grad` takes `plan=` in place of its ids and its size,
    and gives the same bits. Make it once, in a data-loader process if you like (a plan can be pickled, and is
    checked when it comes back), and use it for every table and every step that shares the ids.

    `num_segments` is how many bags there are; without it, the largest segment id and one.

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
        """A plan out of the arrays of one and its number of rows, taken at their word: kernels check what they use."""
        plan = object.__new__(cls)
        plan._set(parts)
        return plan

    def _set(self, parts: tuple[Any, ...]) -> None:
        for name, part in zip(PLAN, parts, strict=True):
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
            object.__setattr__(self, name, part)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Plan does not change; make another one to have another {name}")

    @property
    def num_ids(self) -> int:
        """How many ids the batch has."""
        return int(self.segments.shape[0])

    @property
    def num_segments(self) -> int:
        """How many segments; a gradient must have at least as many rows."""
        return int(self.counts.shape[0])

    def ids(self) -> tuple[Any, Any]:
        """The indices and segment ids the plan was made of, in their order."""
        indices, segment_ids = OPS["PlannedIds"](*self.parts())
        return indices, segment_ids

    def parts(self) -> tuple[Any, ...]:
        """The arrays and the number of rows, in the order every op with a plan has them."""
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
    except Exception:  # RowPlan says what is wrong with them
        return -1


def _restore(*parts: Any) -> Plan:
    """A plan out of a pickle: only what is one."""
    plan = Plan.of(*parts)
    try:
        plan.ids()
    except OpError as error:
        raise ValueError(f"this is not an intact Plan: {error}") from None
    return plan
