"""An exchange as autograd sees it: tables and weights of samples in, combined bags out."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import refuse
from .agreement import call_number, meet
from .lookup import Exchange


class _Sharded(torch.autograd.Function):
    """Tables and weights of samples in, combined bags out."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *tensors: Any) -> Any:
        ctx.exchange = exchange
        for w in exchange.wanted:
            if getattr(w.table, "rowgrad_fused", False) and w.told.trains:
                w.table.rowgrad_waiting = weakref.ref(ctx)
        # In pooled mode the gradient of weights needs the tables as they are now. The ids are there for torch to say
        # it in backward where the graph has been used up.
        read = [w.table for w in exchange.wanted if exchange.options.pooled and w.told.weights_gradient]
        ctx.save_for_backward(exchange.wanted[0].bags.indices, *read)
        return tuple(exchange.forward())

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        exchange = ctx.exchange
        fused = [w.table for w in exchange.wanted if getattr(w.table, "rowgrad_fused", False) and w.told.trains]
        refusal: Exception | None = None
        try:
            _check_backward(ctx, fused)
        except Exception as error:
            refusal = error
        if exchange.needed():
            meet(exchange.ranks, "backward", call_number("backward", exchange.call), refusal)
        elif refusal is not None:
            raise refusal
        for table in fused:
            table.rowgrad_waiting = None
        count = len(exchange.wanted)
        wants = ctx.needs_input_grad[1 + count : 1 + 2 * count]
        tables, samples = exchange.backward([y.contiguous() for y in ys], wants)
        return None, *tables, *samples, None


def check_waiting(tables: Sequence[Any]) -> None:
    """Refuse a fused table that a lookup before this one has not come back to."""
    for table in tables:
        if getattr(table, "rowgrad_fused", False) and table.requires_grad:
            waiting = table.rowgrad_waiting
            if waiting is not None and waiting() is not None:
                raise refuse("fused_waiting")


def _check_backward(ctx: Any, fused: Sequence[Any]) -> None:
    _ = ctx.saved_tensors  # torch refuses what was freed, or changed since
    if torch.is_grad_enabled():
        raise refuse("not_here", argument="create_graph", value="True", bound="False for a sharded table")
    for table in fused:
        if table.rowgrad_optimizer is None or table.rowgrad_optimizer() is None:
            raise refuse("fused_no_optimizer")
        if table.rowgrad_pending:
            raise refuse("fused_twice")


def sharded_lookup(exchange: Exchange) -> tuple[Tensor, ...]:
    """Run an exchange under autograd."""
    tables = [w.table for w in exchange.wanted]
    # A rank whose tables and weights need no gradient still has to take part where another's weights do.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled() and bool(exchange.needed()))
    weights = (w.bags.weights for w in exchange.wanted)
    results: tuple[Tensor, ...] = _Sharded.apply(exchange, *tables, *weights, anchor)
    return results
