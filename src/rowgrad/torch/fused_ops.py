"""The operators with which compiled graphs look up fused tables.

`rowgrad::_fused_lookup` is in the forward graph. Its gradient calls `rowgrad::_defer_bags` in the backward graph, which
passes the gradient of the bags to the table, as the eager backward pass does. It is registered as an operator with an
ordered effect: torch neither drops nor repeats such operators, and keeps their order. Compiled autograd drops them if
nothing reads their result. So the operator returns a zero, the gradient of the table's anchor, and can raise an error.

A graph names a table by its number, which its optimizer assigned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function

from ..errors import make_error
from .bag_lookup import REPLICAS, lookup, replica_of
from .bags import Bags
from .fused import IS_OLD, defer_bags, gradient_of, numbered_table
from .saved_call import is_float, unpack_dual

_LIBRARY = torch.library.Library("rowgrad", "FRAGMENT")
_BAGS = "Tensor indices, Tensor segment_ids, Tensor? weights, SymInt num_bags, str kind"
# A CUDA graph would replay kernels without running Python.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    *((torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()),
)


def _look_up(
    weight: Tensor, anchor: Tensor, indices: Any, segment_ids: Any, weights: Any, num_bags: Any, kind: str, _: int
) -> Tensor:
    return lookup(weight.detach(), Bags(indices, segment_ids, num_bags, weights), kind, False, None)


def _fused_lookup(weight: Tensor, *args: Any) -> Tensor:
    table = numbered_table(args[-1])
    replica = None if table is None else replica_of(table)
    if replica is not None:
        replica.check_wrapper()
    return _look_up(weight, *args)


def _defer(number: int, y: Tensor, indices: Any, segment_ids: Any, weights: Any, num_bags: Any, kind: str) -> Tensor:
    """Store the gradient of bags until the optimizer's step; return the gradient of the anchor."""
    table = numbered_table(number)
    if table is None:
        raise make_error("fused_no_optimizer")
    replica = REPLICAS.get(table) if REPLICAS else None
    if _is_accumulated(table, own_hooks=0 if replica is None else 1):
        # Copies, because the graph may use the memory again.
        bags = Bags(indices.clone(), segment_ids.clone(), num_bags, None if weights is None else weights.clone())
        y = y.clone(memory_format=torch.contiguous_format)
        if replica is None:
            defer_bags(table, y, bags, kind, None)
        else:
            replica.add_gradient(y, bags, kind)
    return _zero()


def _zero(*_: Any) -> Tensor:
    return torch.zeros((), device="cpu")


def _is_accumulated(table: Any, own_hooks: int) -> bool:
    """Return whether the running backward pass would store the table's gradient."""
    if not table.requires_grad:  # frozen since the lookup
        return False
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
        raise make_error("fused_unfit", value="compiled autograd")
    if len(table._backward_hooks or ()) > own_hooks or table._post_accumulate_grad_hooks:
        raise make_error("fused_unfit", value="hooks of its parameter together with torch.compile")
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(table).node)
    except RuntimeError:  # the table is among the inputs
        raise make_error("fused_unfit", value="torch.autograd.grad together with torch.compile") from None


def _autograd(overload: Any) -> Any:
    def below(keyset: Any, args: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    class FusedLookup(torch.autograd.function._SingleLevelFunction):
        _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

        @staticmethod
        def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
            weight, _, indices, segment_ids, weights, *ctx.rest = args
            table = (weight,) if ctx.needs_input_grad[5] else ()  # the gradient of weights reads it
            ctx.save_for_backward(indices, segment_ids, weights, *table)
            return below(keyset, args)

        @staticmethod
        def backward(ctx: Any, *ys: Any) -> Any:
            indices, segment_ids, weights, *table = ctx.saved_tensors
            num_bags, kind, number = ctx.rest
            y, for_anchor, for_weights = ys[0].contiguous(), None, None
            if table:
                bags = Bags(indices, segment_ids, num_bags, weights)
                for_weights = gradient_of("weights", table[0].detach(), y, bags, kind)
            if ctx.needs_input_grad[1]:
                saved = None if weights is None else weights.detach()
                for_anchor = torch.ops.rowgrad._defer_bags(number, y, indices, segment_ids, saved, num_bags, kind)
            return None, None, for_anchor, None, None, for_weights, None, None, None

    def autograd(keyset: Any, *args: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            raise make_error("fused_unfit", value="torch.func")
        if any(unpack_dual(a)[1] is not None for a in args if isinstance(a, Tensor) and is_float(a)):
            raise make_error("fused_unfit", value="forward mode")
        if torch.is_grad_enabled():
            with enable_single_level_autograd_function():
                return FusedLookup.apply(keyset, *args)
        return below(keyset, args)

    return autograd


def _register() -> bool:
    """Register both operators; return whether this version of torch keeps operators with effects in backward graphs."""
    _LIBRARY.define(f"_fused_lookup(Tensor weight, Tensor anchor, {_BAGS}, SymInt table) -> Tensor", tags=_TAGS)
    _LIBRARY.define(f"_defer_bags(SymInt table, Tensor y, {_BAGS}) -> Tensor", tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl("_fused_lookup", _fused_lookup, key)
        _LIBRARY.impl("_defer_bags", _defer, key)
    torch.library.register_fake("rowgrad::_fused_lookup", _look_up, lib=_LIBRARY)
    torch.library.register_fake("rowgrad::_defer_bags", _zero, lib=_LIBRARY)
    _LIBRARY.impl("_fused_lookup", _autograd(torch.ops.rowgrad._fused_lookup.default), "Autograd", with_keyset=True)
    if IS_OLD:
        return False
    from torch._library.effects import EffectType

    torch._library.simple_registry.singleton.find("rowgrad::_defer_bags").effect.register(EffectType.ORDERED)
    return True


COMPILES = _register()
