"""One lookup of all ranks: ids go to their owners, rows come back, bags are combined; gradients go the other way.

| phase | what travels | waited for |
|---|---|---|
| sizes | how much of everything is to come, and whether a rank refuses | at once |
| ids | each distinct row a rank needs, once to its owner | at once |
| rows | those rows back; in pooled mode each bag's sum over the owner's rows | before bags are combined |
| pairs | (row, bag) and the bags' scales, for the owner's gradient | in backward; pooled mode: at once |
| calls | whether all ranks are in this backward pass, and none refuses it | at once |
| gradients | each bag's gradient, once to every owner that has ids of it | while the owner sorts its pairs |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops.weighted_segment import weights_gradient
from ...raw_ops import OPS
from ...spec import Call
from ..autograd import TABLE
from ..bags import Bags
from ..functional import lookup
from ..fused import defer
from .agreement import Told
from .layout import Stack
from .owner import Owned
from .parcels import Parcel, Section
from .ranks import Ranks
from .routes import Route, wide_dtype


class Options(NamedTuple):
    """How a module looks up."""

    pooled: bool
    wire: torch.dtype | None
    by_rows: bool
    order: dict[str, Any]


class Wanted(NamedTuple):
    """One table (or stack of tables) and this rank's bags for it."""

    table: Any
    stack: Stack
    kind: str
    bags: Bags
    route: Route
    told: Told


class Exchange:
    """Everything a forward pass leaves for its backward pass."""

    def __init__(self, ranks: Ranks, call: int, options: Options, wanted: Sequence[Wanted]) -> None:
        self.ranks, self.call, self.options, self.wanted = ranks, call, options, wanted
        self._asked: list[Tensor] = []
        self._pairs: Parcel | None = None
        self._owned: list[Owned] | None = None
        self.compact: list[Tensor | None] = [None] * len(wanted)

    # -- forward ----------------------------------------------------------------------------------------------------

    def forward(self) -> list[Tensor]:
        """The combined bags of every lookup."""
        ids = Parcel(self.ranks, "ids", [self._ids(w) for w in self.wanted])
        if self.options.pooled:
            self._send_pairs()
        self._asked = ids.arrived()
        return self._pooled() if self.options.pooled else self._exact()

    def _ids(self, w: Wanted) -> Section:
        small = max(w.stack.sizes) < 2**31
        return Section(w.route.rows.to(torch.int32 if small else torch.int64), w.route.num_rows, w.told.num_rows)

    def _exact(self) -> list[Tensor]:
        sections = []
        for w, asked in zip(self.wanted, self._asked, strict=True):
            rows = self._to_wire(OPS["GatherRows"](w.table.detach(), asked))
            sections.append(Section(rows, w.told.num_rows, w.route.num_rows))
        rows = Parcel(self.ranks, "rows", sections)
        self._send_pairs()  # on its way while bags are combined, and until backward
        results = []
        for k, (w, compact) in enumerate(zip(self.wanted, rows.arrived(), strict=True)):
            compact = compact.to(w.table.dtype)
            results.append(lookup(compact, w.bags._replace(indices=w.route.inverse), w.kind, False, None))
            if w.told.weights_gradient:
                self.compact[k] = compact
        return results

    def _pooled(self) -> list[Tensor]:
        sections = []
        for w, owned in zip(self.wanted, self.owned(), strict=True):
            sums = self._to_wire(owned.partial_sums(w.table.detach()))
            sections.append(Section(sums, w.told.num_bags, w.route.num_bags))
        results = []
        for w, sums in zip(self.wanted, Parcel(self.ranks, "rows", sections).arrived(), strict=True):
            sums = sums.to(w.table.dtype)
            each = torch.arange(sums.shape[0], device=sums.device)
            total = OPS["SparseSegmentSumGradGrad"](sums, each, w.route.bags, int(w.bags.num_bags))
            results.append(_scaled(total, w))
        return results

    def _send_pairs(self) -> None:
        sections: list[Section] = []
        for w in self.wanted:
            if w.told.trains or self.options.pooled:
                sections += self._pair_sections(w)
        if sections:
            self._pairs = Parcel(self.ranks, "pairs", sections)

    def _pair_sections(self, w: Wanted) -> list[Section]:
        """Rows and bags of the pairs; scales of the bags; weights of the pairs."""
        route, told, wide = w.route, w.told, wide_dtype(w.table.dtype)
        pairs = (route.num_pairs, told.num_pairs)
        sections = [Section(route.pair_rows, *pairs), Section(route.pair_bags, *pairs)]
        if route.scales is not None:
            sections.append(Section(route.scales.index_select(0, route.bags), route.num_bags, told.num_bags))
        if told.weighted:
            weights = w.bags.weights
            given = (
                torch.zeros(0, dtype=wide, device=route.rows.device) if weights is None else weights.detach().to(wide)
            )
            sections.append(Section(given.index_select(0, route.pair_ids), *pairs))
        return sections

    def owned(self) -> list[Owned]:
        """What concerns this rank's rows, one for each lookup that has sent its pairs."""
        if self._owned is None:
            assert self._pairs is not None
            arrived = iter(self._pairs.arrived())
            self._owned = []
            for w, asked in zip(self.wanted, self._asked, strict=True):
                if w.told.trains or self.options.pooled:
                    count = 2 + (w.kind != "Sum") + w.told.weighted
                    self._owned.append(Owned(w.told, asked, [next(arrived) for _ in range(count)], w.kind))
            self._pairs = None
        return self._owned

    # -- backward ---------------------------------------------------------------------------------------------------

    def backward(
        self, ys: Sequence[Tensor], wants_weights: Sequence[bool], to_step: Sequence[bool]
    ) -> tuple[list[Any], list[Any]]:
        """Gradients for the tables (None where they wait for the step), and for the weights of samples."""
        trained = [k for k, w in enumerate(self.wanted) if w.told.trains]
        needed = self.needed()
        tables: list[Any] = [None] * len(self.wanted)
        samples: list[Any] = [None] * len(self.wanted)
        sent = None
        if needed:
            sections = []
            for k in needed:
                w = self.wanted[k]
                rows = self._to_wire(ys[k].index_select(0, w.route.bags))
                sections.append(Section(rows, w.route.num_bags, w.told.num_bags))
            sent = Parcel(self.ranks, "gradients", sections)
        if not self.options.pooled:  # while gradients are under way
            for k, w in enumerate(self.wanted):
                if wants_weights[k]:
                    samples[k] = _weights_gradient(w, ys[k], {}, w.route.inverse, self.compact[k])
        if sent is None:
            return tables, samples
        owned = dict(zip(trained if not self.options.pooled else range(len(self.wanted)), self.owned(), strict=True))
        for k in trained:
            owned[k].sort(self.wanted[k].table.shape[0])
        grads = {k: g.to(self.wanted[k].table.dtype) for k, g in zip(needed, sent.arrived(), strict=True)}
        if self.options.pooled:
            self._pooled_weights(owned, grads, ys, wants_weights, samples)
        for k in trained:
            tables[k] = self._finish(self.wanted[k].table, owned[k], grads[k], to_step[k])
        return tables, samples

    def needed(self) -> list[int]:
        """The lookups whose backward pass all ranks take part in."""
        return [
            k for k, w in enumerate(self.wanted) if w.told.trains or (self.options.pooled and w.told.weights_gradient)
        ]

    def _finish(self, table: Any, owned: Owned, grad: Tensor, to_step: bool) -> Any:
        order, by_rows = self.options.order, self.options.by_rows
        if not to_step:
            return owned.gradient(table, grad, by_rows, order)
        defer(
            table,
            lambda table, optimizer: owned.update(table, optimizer, grad, order),
            lambda table: owned.gradient(table, grad, True, order),
            [grad],
        )
        return None

    def _pooled_weights(
        self, owned: dict[int, Owned], grads: dict[int, Tensor], ys: Sequence[Tensor], wants: Sequence[bool], found: Any
    ) -> None:
        """In pooled mode the owner has the rows: it sends back the inner products weights' gradients are made of."""
        asked = [k for k, w in enumerate(self.wanted) if w.told.weights_gradient]
        if not asked:
            return
        sections = []
        for k in asked:
            w = self.wanted[k]
            products = owned[k].products(w.table.detach(), grads[k])
            sections.append(Section(products, w.told.num_pairs, w.route.num_pairs))
        for k, products in zip(asked, Parcel(self.ranks, "gradients", sections).arrived(), strict=True):
            if wants[k]:
                w = self.wanted[k]
                each = torch.empty_like(products)
                each[w.route.pair_ids] = products
                found[k] = _weights_gradient(w, ys[k], {"SparseSegmentDot": lambda *_, each=each: each}, None, None)

    def _to_wire(self, rows: Tensor) -> Tensor:
        return rows if self.options.wire is None else rows.to(self.options.wire)


def _scaled(total: Tensor, w: Wanted) -> Tensor:
    """Sums of bags brought to mean or sqrtn, in the type sums are held in, and rounded once."""
    scales = w.route.scales
    if scales is None:
        return total
    if w.bags.weights is None:
        return (total.to(scales.dtype) * scales.unsqueeze(1)).to(total.dtype)
    quotient: Tensor = OPS["DivNoNan"](total.to(scales.dtype), scales.unsqueeze(1))
    return quotient.to(total.dtype)


def _weights_gradient(w: Wanted, y: Tensor, other: dict[str, Any], indices: Any, data: Any) -> Any:
    arguments = {"indices": indices, "segment_ids": w.bags.segment_ids, "weights": w.bags.weights.detach()}  # type: ignore[union-attr]
    call = Call(arguments, {}, (), frozenset({"weights"}))
    return weights_gradient({**TABLE, **other}, w.kind, call, y, data, y.shape[0])
