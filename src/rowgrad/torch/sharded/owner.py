"""What the owner of rows does with what others ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...bag_scales import dense_gradient, terms, unique_gradient
from ...plan import Plan
from ...raw_ops import OPS
from ..functional import stay_coalesced
from ..kept import sparse_rows
from .agreement import Told
from .routes import spread, starts_of


class Owned:
    """The (row, bag) pairs of all ranks that concern this rank's rows, in the order of the whole batch.

    Rank by rank, and inside a rank as its bags have them: the order in which one process would see them.
    """

    def __init__(self, told: Told, rows: Tensor, pairs: Sequence[Tensor], kind: str) -> None:
        pair_rows, pair_bags, *rest = pairs
        device = rows.device
        self.num_bags = sum(told.num_bags)
        which = spread(told.num_pairs, starts_of(told.num_rows), device) + pair_rows
        self.indices = rows.to(torch.int64).index_select(0, which)
        self.segments = pair_bags + spread(told.num_pairs, starts_of(told.num_bags), device)
        self.weights = rest.pop() if told.weighted else None
        scales = rest.pop() if kind != "Sum" else None
        self._scales = {"factors" if self.weights is None else "divisors": scales}
        self._plan: Any = None

    def sort(self, num_rows: int) -> None:
        """Sort the pairs by row, once; nothing of it needs the gradients."""
        if self._plan is None:
            self._plan = tuple(OPS["RowPlan"](self.indices, self.segments, num_rows, self.num_bags))

    def partial_sums(self, table: Tensor) -> Tensor:
        """Each bag's sum over this rank's rows, in the bag's order."""
        prefix, weights = ("", ()) if self.weights is None else ("Weighted", (self.weights,))
        op = OPS[f"{prefix}SparseSegmentSumWithNumSegments"]
        sums: Tensor = op(table, self.indices, self.segments, *weights, self.num_bags)
        return sums

    def products(self, table: Tensor, grad: Tensor) -> Tensor:
        """The inner product of each pair's row and its bag's gradient."""
        found: Tensor = OPS["SparseSegmentDot"](grad, table, self.indices, self.segments)
        return found

    def gradient(self, table: Tensor, grad: Tensor, by_rows: bool, order: dict[str, Any]) -> Tensor:
        """The gradient for this rank's rows: dense, or by unique rows, which a rank nobody asked has none of."""
        num_rows = table.shape[0]
        self.sort(num_rows)
        how = {**self._scales, "weights": self.weights, "plan": self._plan, **order}
        call = (OPS, grad, self.indices, self.segments, num_rows)
        if not by_rows:
            dense: Tensor = dense_gradient(*call, **how)
            return dense
        values, ids = unique_gradient(*call, **how)
        if table.is_leaf:
            stay_coalesced(table)
        return sparse_rows(values, ids, num_rows, True)

    def update(self, table: Any, optimizer: Any, grad: Tensor, order: dict[str, Any]) -> Iterator[None]:
        """One step of the optimizer with that gradient, which is not stored: the same bits."""
        num_rows = table.shape[0]
        self.sort(num_rows)
        scales = {"factors": None, "divisors": None, **self._scales}
        rows, numbers = terms(OPS, grad, self.segments, scales["factors"], scales["divisors"], self.weights)
        if rows.dtype == table.dtype:
            plan = Plan.of(*self._plan, num_rows)
            yield from optimizer._updated_from_bags(table, rows, None, None, "sum", weights=numbers, plan=plan, **order)
            return
        # 16 bits, divided in 32: rounded when they are summed up, and every row is a bag of its own then.
        how = {**self._scales, "weights": self.weights, "plan": self._plan, **order}
        values, ids = unique_gradient(OPS, grad, self.indices, self.segments, num_rows, **how)
        each = torch.arange(ids.shape[0], device=ids.device)
        yield from optimizer._updated_from_bags(table, values, ids, each, "sum", **order)
