"""An exchange as autograd sees it: tables and weights of samples in, combined bags out."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ...errors import refuse
from .lookup import Exchange


class _Sharded(torch.autograd.Function):
    """Tables and weights of samples in, combined bags out."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *tensors: Any) -> Any:
        ctx.exchange = exchange
        for w in exchange.wanted:
            if getattr(w.table, "rowgrad_fused", False) and w.told.trains:
                waiting = w.table.rowgrad_waiting
                if waiting is not None and waiting() is not None:
                    raise refuse("fused_waiting")
                w.table.rowgrad_waiting = weakref.ref(ctx)
        return tuple(exchange.forward())

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        exchange = ctx.exchange
        if torch.is_grad_enabled():
            raise refuse("not_here", argument="create_graph", value="True", bound="False for a sharded table")
        for w in exchange.wanted:
            if getattr(w.table, "rowgrad_fused", False) and w.told.trains:
                _check_fused(w.table)
        count = len(exchange.wanted)
        tables, samples = exchange.backward([y.contiguous() for y in ys], ctx.needs_input_grad[1 + count :])
        return None, *tables, *samples


def _check_fused(table: Any) -> None:
    if table.rowgrad_optimizer is None or table.rowgrad_optimizer() is None:
        raise refuse("fused_no_optimizer")
    if table.rowgrad_pending:
        raise refuse("fused_twice")
    table.rowgrad_waiting = None


def sharded_lookup(exchange: Exchange) -> tuple[Tensor, ...]:
    """Run an exchange under autograd."""
    tables = [w.table for w in exchange.wanted]
    results: tuple[Tensor, ...] = _Sharded.apply(exchange, *tables, *(w.bags.weights for w in exchange.wanted))
    return results
