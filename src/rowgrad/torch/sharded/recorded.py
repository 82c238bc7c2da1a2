"""An exchange as autograd sees it: tables and weights of samples in, combined bags out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import refuse
from ..fused import FusedWeight, destination
from .agreement import call_number, meet
from .lookup import Exchange


class _Sharded(torch.autograd.Function):
    """Tables and weights of samples in, combined bags out."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *tensors: Any) -> Any:
        ctx.exchange = exchange
        # In pooled mode the gradient of weights needs the tables as they are now. The ids are there for torch to say
        # it in backward where the graph has been used up.
        read = [w.table for w in exchange.wanted if exchange.options.pooled and w.told.weights_gradient]
        ctx.save_for_backward(exchange.wanted[0].bags.indices, *read)
        return tuple(exchange.forward())

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        exchange = ctx.exchange
        to_step: list[bool] = []
        refusal: Exception | None = None
        try:
            to_step = _check_backward(ctx, [w.table for w in exchange.wanted])
        except Exception as error:
            refusal = error
        if exchange.needed():
            meet(exchange.ranks, "backward", call_number("backward", exchange.call), refusal)
        elif refusal is not None:
            raise refusal
        count = len(exchange.wanted)
        wants = ctx.needs_input_grad[1 + count : 1 + 2 * count]
        tables, samples = exchange.backward([y.contiguous() for y in ys], wants, to_step)
        return None, *tables, *samples, None


def _check_backward(ctx: Any, tables: Sequence[Any]) -> list[bool]:
    """Reject what no rank can do; returns for each table whether its gradient waits for the optimizer's step."""
    if torch.compiler.is_compiling() or not isinstance(ctx, torch._C._FunctionBase):
        raise refuse("not_here", argument="backward", value="compiled autograd", bound="run by autograd's engine")
    _ = ctx.saved_tensors  # torch refuses what was freed, or changed since
    if torch.is_grad_enabled():
        raise refuse("not_here", argument="create_graph", value="True", bound="False for a sharded table")
    to_step = [isinstance(t, FusedWeight) and destination(ctx, t) == "step" for t in tables]
    if any(waits and not t.rowgrad_optimizers for t, waits in zip(tables, to_step, strict=True)):
        raise refuse("fused_no_optimizer")
    return to_step


def sharded_lookup(exchange: Exchange) -> tuple[Tensor, ...]:
    """Run an exchange under autograd."""
    tables = [w.table for w in exchange.wanted]
    # A rank whose tables and weights need no gradient still has to take part where another's weights do.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled() and bool(exchange.needed()))
    weights = (w.bags.weights for w in exchange.wanted)
    results: tuple[Tensor, ...] = _Sharded.apply(exchange, *tables, *weights, anchor)
    return results
