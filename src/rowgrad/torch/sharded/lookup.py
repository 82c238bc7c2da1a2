"""Lookups in row-sharded tables: the exchange between ranks, the owner's arithmetic, and the autograd function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._catalog.spec import Call
from ..._catalog.weighted_segment import weights_gradient
from ...errors import make_error
from ...plan import Plan
from ...raw_ops import OPS
from ...sharding.partition import dense_gradient, terms, unique_gradient
from ..autograd import TABLE, named
from ..bag_lookup import lookup
from ..bags import Bags
from ..fused import FusedWeight, defer, destination
from ..row_gradient import keep_coalesced
from ..saved_call import sparse_rows
from .exchange import (
    CallId,
    LookupSizes,
    PackedExchange,
    Ranks,
    Route,
    Section,
    check_same_call,
    spread,
    starts_of,
    wide_dtype,
)
from .placement import Stack

# -- The owner's arithmetic: partial sums, inner products and gradients of the rows that this rank stores -------------


class OwnedPairs:
    """The (row, bag) pairs of all ranks for the rows that this rank stores, in the order of the whole batch.

    The order is rank by rank, then by bag: that of a single process.
    """

    def __init__(self, sizes: LookupSizes, rows: Tensor, pairs: Sequence[Tensor], kind: str) -> None:
        pair_rows, pair_bags, *rest = pairs
        device = rows.device
        self.num_bags = sum(sizes.num_bags)
        which = spread(sizes.num_pairs, starts_of(sizes.num_rows), device) + pair_rows
        self.indices = rows.to(torch.int64).index_select(0, which)
        self.segments = pair_bags + spread(sizes.num_pairs, starts_of(sizes.num_bags), device)
        self.weights = rest.pop() if sizes.weighted else None
        scales = rest.pop() if kind != "Sum" else None
        self._scales = {"factors" if self.weights is None else "divisors": scales}
        self._plan: Any = None

    def sort(self, num_rows: int) -> None:
        """Sort the pairs by row once; this does not need the gradients."""
        if self._plan is None:
            self._plan = tuple(OPS["RowPlan"](self.indices, self.segments, num_rows, self.num_bags))

    def partial_sums(self, table: Tensor) -> Tensor:
        """Return each bag's sum over this rank's rows, in the bag's order."""
        prefix, weights = ("", ()) if self.weights is None else ("Weighted", (self.weights,))
        op = OPS[f"{prefix}SparseSegmentSumWithNumSegments"]
        sums: Tensor = op(table, self.indices, self.segments, *weights, self.num_bags)
        return sums

    def products(self, table: Tensor, grad: Tensor) -> Tensor:
        """Return the inner product of each pair's row and its bag's gradient."""
        found: Tensor = OPS["SparseSegmentDot"](grad, table, self.indices, self.segments)
        return found

    def gradient(self, table: Tensor, grad: Tensor, by_rows: bool, order: dict[str, Any]) -> Tensor:
        """Return the gradient for this rank's rows: dense, or as a sparse tensor of unique rows."""
        num_rows = table.shape[0]
        self.sort(num_rows)
        options = {**self._scales, "weights": self.weights, "plan": self._plan, **order}
        call = (OPS, grad, self.indices, self.segments, num_rows)
        if not by_rows:
            dense: Tensor = dense_gradient(*call, **options)
            return dense
        values, ids = unique_gradient(*call, **options)
        if table.is_leaf:
            keep_coalesced(table)
        return sparse_rows(values, ids, num_rows, True)

    def update(self, table: Any, optimizer: Any, grad: Tensor, order: dict[str, Any]) -> Iterator[None]:
        """Run one optimizer step with that gradient without storing it; the bits are the same."""
        num_rows = table.shape[0]
        self.sort(num_rows)
        scales = {"factors": None, "divisors": None, **self._scales}
        rows, numbers = terms(OPS, grad, self.segments, scales["factors"], scales["divisors"], self.weights)
        if rows.dtype == table.dtype:
            plan = Plan.of(*self._plan, num_rows)
            yield from optimizer._iter_update_from_bags(
                table, rows, None, None, "sum", weights=numbers, plan=plan, **order
            )
            return
        # 16-bit rows are divided in 32 bits and rounded once summed, so this sums them first; each row is then a bag.
        options = {**self._scales, "weights": self.weights, "plan": self._plan, **order}
        values, ids = unique_gradient(OPS, grad, self.indices, self.segments, num_rows, **options)
        each = torch.arange(ids.shape[0], device=ids.device)
        yield from optimizer._iter_update_from_bags(table, values, ids, each, "sum", **order)


# -- One lookup of all ranks ------------------------------------------------------------------------------------------

# Ids are sent to their owners, rows come back, and bags are combined; gradients are sent in the reverse direction.
#
# | phase | what is sent | when a rank waits for it |
# |---|---|---|
# | sizes | the size of everything else, and whether a rank rejects the call | immediately |
# | ids | each distinct row that a rank needs, once, to its owner | immediately |
# | rows | these rows; in pooled mode, each bag's sum over the owner's rows | before bags are combined |
# | pairs | (row, bag) pairs and the bags' scales, for the owner's gradient | in backward; pooled mode: immediately |
# | calls | whether all ranks run this backward pass, and whether a rank rejects it | immediately |
# | gradients | each bag's gradient, once to every owner of its ids | after the owner has sorted its pairs |


class Options(NamedTuple):
    """The options of a module's lookups."""

    pooled: bool
    wire: torch.dtype | None
    by_rows: bool
    order: dict[str, Any]


class TableLookup(NamedTuple):
    """One lookup: a table or a stack of tables, and this rank's bags."""

    table: Any
    stack: Stack
    kind: str
    bags: Bags
    route: Route
    sizes: LookupSizes


class Exchange:
    """The exchanges of one call, forward and backward, and what its backward pass needs."""

    def __init__(self, ranks: Ranks, call: CallId, options: Options, wanted: Sequence[TableLookup]) -> None:
        self.ranks, self.call, self.options, self.wanted = ranks, call, options, wanted
        self._requested: list[Tensor] = []
        self._pairs: PackedExchange | None = None
        self._owned: list[OwnedPairs] | None = None
        self.compact: list[Tensor | None] = [None] * len(wanted)

    # -- forward ----------------------------------------------------------------------------------------------------

    def forward(self) -> list[Tensor]:
        """Return the combined bags of every lookup."""
        ids = PackedExchange(self.ranks, "ids", [self._ids(w) for w in self.wanted])
        if self.options.pooled:
            self._send_pairs()
        self._requested = ids.wait()
        return self._pooled() if self.options.pooled else self._exact()

    def _ids(self, w: TableLookup) -> Section:
        small = max(w.stack.sizes) < 2**31
        return Section(w.route.rows.to(torch.int32 if small else torch.int64), w.route.num_rows, w.sizes.num_rows)

    def _exact(self) -> list[Tensor]:
        sections = []
        for w, requested in zip(self.wanted, self._requested, strict=True):
            rows = self._to_wire(OPS["GatherRows"](w.table.detach(), requested))
            sections.append(Section(rows, w.sizes.num_rows, w.route.num_rows))
        rows = PackedExchange(self.ranks, "rows", sections)
        self._send_pairs()  # in progress while bags are combined
        results = []
        for k, (w, compact) in enumerate(zip(self.wanted, rows.wait(), strict=True)):
            compact = compact.to(w.table.dtype)
            results.append(lookup(compact, w.bags._replace(indices=w.route.inverse), w.kind, False, None))
            if w.sizes.weights_gradient:
                self.compact[k] = compact
        return results

    def _pooled(self) -> list[Tensor]:
        sections = []
        for w, owned in zip(self.wanted, self.owned(), strict=True):
            sums = self._to_wire(owned.partial_sums(w.table.detach()))
            sections.append(Section(sums, w.sizes.num_bags, w.route.num_bags))
        results = []
        for w, sums in zip(self.wanted, PackedExchange(self.ranks, "rows", sections).wait(), strict=True):
            sums = sums.to(w.table.dtype)
            each = torch.arange(sums.shape[0], device=sums.device)
            total = OPS["SparseSegmentSumGradGrad"](sums, each, w.route.bags, int(w.bags.num_bags))
            results.append(_scale(total, w))
        return results

    def _send_pairs(self) -> None:
        sections: list[Section] = []
        for w in self.wanted:
            if w.sizes.trains or self.options.pooled:
                sections += self._pair_sections(w)
        if sections:
            self._pairs = PackedExchange(self.ranks, "pairs", sections)

    def _pair_sections(self, w: TableLookup) -> list[Section]:
        """Return the sections: rows and bags of the pairs, scales of the bags, weights of the pairs."""
        route, sizes, wide = w.route, w.sizes, wide_dtype(w.table.dtype)
        pairs = (route.num_pairs, sizes.num_pairs)
        sections = [Section(route.pair_rows, *pairs), Section(route.pair_bags, *pairs)]
        if route.scales is not None:
            sections.append(Section(route.scales.index_select(0, route.bags), route.num_bags, sizes.num_bags))
        if sizes.weighted:
            weights = w.bags.weights
            if weights is None:  # a rank without ids
                weights = torch.zeros(0, device=route.rows.device)
            sections.append(Section(weights.detach().to(wide).index_select(0, route.pair_ids), *pairs))
        return sections

    def owned(self) -> list[OwnedPairs]:
        """Return the pairs for this rank's rows, of each lookup that sent pairs."""
        if self._owned is None:
            assert self._pairs is not None
            arrived = iter(self._pairs.wait())
            self._owned = []
            for w, requested in zip(self.wanted, self._requested, strict=True):
                if w.sizes.trains or self.options.pooled:
                    count = 2 + (w.kind != "Sum") + w.sizes.weighted
                    self._owned.append(OwnedPairs(w.sizes, requested, [next(arrived) for _ in range(count)], w.kind))
            self._pairs = None
        return self._owned

    # -- backward ---------------------------------------------------------------------------------------------------

    def backward(
        self, ys: Sequence[Tensor], wants_weights: Sequence[bool], to_step: Sequence[bool]
    ) -> tuple[list[Any], list[Any]]:
        """Return gradients for the tables, None if deferred to the optimizer's step, and for per-sample weights."""
        trained = [k for k, w in enumerate(self.wanted) if w.sizes.trains]
        needed = self.needed()
        tables: list[Any] = [None] * len(self.wanted)
        samples: list[Any] = [None] * len(self.wanted)
        sent = None
        if needed:
            sections = []
            for k in needed:
                w = self.wanted[k]
                rows = self._to_wire(ys[k].index_select(0, w.route.bags))
                sections.append(Section(rows, w.route.num_bags, w.sizes.num_bags))
            sent = PackedExchange(self.ranks, "gradients", sections)
        if not self.options.pooled:  # while gradients are being sent
            for k, w in enumerate(self.wanted):
                if wants_weights[k]:
                    samples[k] = _weights_gradient(w, ys[k], {}, w.route.inverse, self.compact[k])
        if sent is None:
            return tables, samples
        owned = dict(zip(trained if not self.options.pooled else range(len(self.wanted)), self.owned(), strict=True))
        for k in trained:
            owned[k].sort(self.wanted[k].table.shape[0])
        grads = {k: g.to(self.wanted[k].table.dtype) for k, g in zip(needed, sent.wait(), strict=True)}
        if self.options.pooled:
            self._pooled_weights(owned, grads, ys, wants_weights, samples)
        for k in trained:
            tables[k] = self._finish(self.wanted[k].table, owned[k], grads[k], to_step[k])
        return tables, samples

    def needed(self) -> list[int]:
        """Return the lookups whose backward pass exchanges data."""
        return [
            k for k, w in enumerate(self.wanted) if w.sizes.trains or (self.options.pooled and w.sizes.weights_gradient)
        ]

    def _finish(self, table: Any, owned: OwnedPairs, grad: Tensor, to_step: bool) -> Any:
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
        self,
        owned: dict[int, OwnedPairs],
        grads: dict[int, Tensor],
        ys: Sequence[Tensor],
        wants: Sequence[bool],
        found: Any,
    ) -> None:
        """Compute weights' gradients in pooled mode: owners, who have the rows, send back the inner products."""
        requested = [k for k, w in enumerate(self.wanted) if w.sizes.weights_gradient]
        if not requested:
            return
        sections = []
        for k in requested:
            w = self.wanted[k]
            products = owned[k].products(w.table.detach(), grads[k])
            sections.append(Section(products, w.sizes.num_pairs, w.route.num_pairs))
        for k, products in zip(requested, PackedExchange(self.ranks, "gradients", sections).wait(), strict=True):
            if wants[k]:
                w = self.wanted[k]
                each = torch.empty_like(products)
                each[w.route.pair_ids] = products
                found[k] = _weights_gradient(w, ys[k], {"SparseSegmentDot": lambda *_, each=each: each}, None, None)

    def _to_wire(self, rows: Tensor) -> Tensor:
        return rows if self.options.wire is None else rows.to(self.options.wire)


def _scale(total: Tensor, w: TableLookup) -> Tensor:
    """Scale sums of bags for mean or sqrtn in the accumulation dtype; round once."""
    scales = w.route.scales
    if scales is None:
        return total
    if w.bags.weights is None:
        return (total.to(scales.dtype) * scales.unsqueeze(1)).to(total.dtype)
    quotient: Tensor = OPS["DivNoNan"](total.to(scales.dtype), scales.unsqueeze(1))
    return quotient.to(total.dtype)


def _weights_gradient(w: TableLookup, y: Tensor, other: dict[str, Any], indices: Any, data: Any) -> Any:
    arguments = {"indices": indices, "segment_ids": w.bags.segment_ids, "weights": w.bags.weights.detach()}  # type: ignore[union-attr]
    call = Call(arguments, {}, (), frozenset({"weights"}))
    return weights_gradient({**TABLE, **other}, w.kind, call, y, data, y.shape[0])


# -- The autograd function --------------------------------------------------------------------------------------------


@named("rowgrad::ShardedLookup")
class _ShardedFunction(torch.autograd.Function):
    """From tables and per-sample weights to combined bags."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *tensors: Any) -> Any:
        ctx.exchange = exchange
        # In pooled mode the gradient of weights needs the current tables. The ids are saved so that torch raises if
        # backward runs twice.
        read = [w.table for w in exchange.wanted if exchange.options.pooled and w.sizes.weights_gradient]
        ctx.save_for_backward(exchange.wanted[0].bags.indices, *read)
        with exchange.ranks.completing("forward"):
            return tuple(exchange.forward())

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        exchange = ctx.exchange
        to_step: list[bool] = []
        rejection: Exception | None = None
        try:
            to_step = _check_backward(ctx, [w.table for w in exchange.wanted])
        except Exception as error:
            rejection = error
        if exchange.needed():
            check_same_call(exchange.ranks, exchange.call.of("backward"), rejection)
        elif rejection is not None:
            raise rejection
        count = len(exchange.wanted)
        wants = ctx.needs_input_grad[1 + count : 1 + 2 * count]
        with exchange.ranks.completing("backward"):
            tables, samples = exchange.backward([y.contiguous() for y in ys], wants, to_step)
        return None, *tables, *samples, None


def _check_backward(ctx: Any, tables: Sequence[Any]) -> list[bool]:
    """Reject unsupported backward passes; return for each table whether its gradient is deferred to the step."""
    if torch.compiler.is_compiling() or not isinstance(ctx, torch._C._FunctionBase):
        raise make_error("not_here", argument="backward", value="compiled autograd", bound="run by autograd's engine")
    _ = ctx.saved_tensors  # torch raises if one was freed or changed
    if torch.is_grad_enabled():
        raise make_error("not_here", argument="create_graph", value="True", bound="False for a sharded table")
    to_step = [isinstance(t, FusedWeight) and destination(ctx, t) == "step" for t in tables]
    if any(deferred and not t.rowgrad_optimizers for t, deferred in zip(tables, to_step, strict=True)):
        raise make_error("fused_no_optimizer")
    return to_step


def sharded_lookup(exchange: Exchange) -> tuple[Tensor, ...]:
    """Run an exchange under autograd."""
    tables = [w.table for w in exchange.wanted]
    # A rank that needs no gradient must still run backward if the weights of another rank need one.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled() and bool(exchange.needed()))
    weights = (w.bags.weights for w in exchange.wanted)
    results: tuple[Tensor, ...] = _ShardedFunction.apply(exchange, *tables, *weights, anchor)
    return results
