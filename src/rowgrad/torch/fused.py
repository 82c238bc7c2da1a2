"""Fused tables: the optimizer's step sums the gradient of the bags by row while it updates the table.

`FusedWeight.rowgrad_pending` stores these gradients until `step()` or `zero_grad()`. Code that reads `weight.grad`
earlier (GradScaler, clipping, a hook, a second backward pass) gets the row-sparse gradient of an unfused table.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import TensorWeakRef

from .._catalog.spec import CATALOG
from ..errors import make_error
from ..lookup import COMBINERS
from ..plan import Plan
from . import devices
from .autograd import TABLE, named, table_for
from .bag_lookup import is_in_ddp, lookup, replica_of
from .bags import Bags
from .row_gradient import is_in_fsdp, sparse_rows
from .saved_call import SavedCall
from .tensors import PLAIN

_GRAD: Any = torch.Tensor.grad  # torch's own property, which `FusedWeight.grad` overrides
_COMBINER = {kind: name for name, kind in COMBINERS.items()}
_LOCK = threading.RLock()  # as in autograd, threads that share a table accumulate one at a time
LAYOUT = "rowgrad_layout"
IS_OLD = torch.__version__ < (2, 13)  # not tested with compiled graphs of fused tables
_ZERO_GRAD = {inspect.unwrap(owner.zero_grad).__code__ for owner in (torch.nn.Module, torch.optim.Optimizer)}


class Pending:
    """A gradient that is not yet summed by row, and the tensors from which it is computed."""

    __slots__ = ("stream", "tensors", "versions")

    def __init__(self, weight: Tensor, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.versions = [t._version for t in tensors]
        self.stream = devices.current_stream(weight)

    def check(self) -> None:
        """Raise if a tensor was overwritten after backward; make the current stream wait for the one that wrote it."""
        if [t._version for t in self.tensors] != self.versions:
            raise make_error("fused_overwritten")
        wait_for_stream(self.stream, self.tensors)

    def update(self, weight: Any, optimizer: Any) -> Iterator[None]:
        """Validate the step of a table, yield, then write."""
        raise NotImplementedError

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        raise NotImplementedError


def wait_for_stream(stream: devices.StreamKey | None, tensors: Sequence[Tensor]) -> None:
    """Make the current stream wait for the one on which tensors were written; None: a CPU."""
    if stream is not None and stream != devices.current_stream(tensors[0]):
        current = torch.cuda.current_stream(stream[1])
        current.wait_stream(devices.stream_of(stream))
        for tensor in tensors:
            tensor.record_stream(current)


class _PendingCall(Pending):
    """A gradient that two functions compute."""

    __slots__ = ("functions",)

    def __init__(self, weight: Tensor, functions: tuple[Any, Any], tensors: Sequence[Tensor]) -> None:
        super().__init__(weight, tensors)
        self.functions = functions

    def update(self, weight: Any, optimizer: Any) -> Iterator[None]:
        """Validate the step of a table, yield, then write."""
        steps: Iterator[None] = self.functions[0](weight, optimizer)
        return steps

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        gradient: Tensor = self.functions[1](weight)
        return gradient


class PendingBags(Pending):
    """The gradient of the bags of one lookup."""

    __slots__ = ("bags", "kind", "plan", "y")

    def __init__(self, weight: Tensor, y: Tensor, bags: Bags, kind: str, plan: Plan | None) -> None:
        weights = [] if bags.weights is None else [bags.weights]
        super().__init__(weight, [y, bags.indices, bags.segment_ids, *weights])
        self.y, self.bags, self.kind, self.plan = y, bags, kind, plan

    def update(self, weight: Any, optimizer: Any) -> Iterator[None]:
        """Validate the step of a table, yield, then write."""
        bags, combiner = self.bags, _COMBINER[self.kind]
        steps: Iterator[None] = optimizer._iter_update_from_bags(
            weight, self.y, bags.indices, bags.segment_ids, combiner, weights=bags.weights, plan=self.plan
        )
        return steps

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        gradient: Tensor = bag_gradients(frozenset({"data"}), weight, self.y, self.bags, self.kind)["data"]
        return gradient


def _new_anchor() -> Tensor:
    """Return a scalar that requires a gradient, also if torch traces or infers at this time."""
    with _disable_current_modes(), torch.inference_mode(False):
        return torch.zeros((), requires_grad=True, device="cpu")


def _node_of(leaf: Tensor) -> Any:
    """Return the node that stores the gradient of a leaf; a leaf has only a weak reference to it."""
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        function = leaf.view_as(leaf).grad_fn
    assert function is not None
    return function.next_functions[0][0]


ANCHOR = _new_anchor()  # an input of lookups; see _visits_all_leaves
_ANCHOR_NODE = _node_of(ANCHOR)


_HOOKS = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks", "requires_grad")


class FusedWeight(torch.nn.Parameter):
    """A table whose optimizer reads the gradient of the bags; `grad` is computed when it is read."""

    rowgrad_fused = True
    rowgrad_pending: tuple[Any, ...] = ()  # of `Pending`, or what has its methods
    rowgrad_optimizers: set[weakref.ref[Any]] | tuple[()] = ()  # the rowgrad optimizers that update it
    rowgrad_number: int = -1  # its name in compiled graphs, once it has an optimizer
    rowgrad_anchor = _new_anchor()  # what compiled graphs differentiate in its place

    @property
    def grad(self) -> Tensor | None:
        """The row-sparse gradient of an unfused table; None after `step()`, which consumes it."""
        if self.rowgrad_pending:
            if sys._getframe(1).f_code in _ZERO_GRAD:
                _discard_pending(self)
            else:
                _store_pending(self)
        found: Tensor | None = _GRAD.__get__(self)
        return found

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        _GRAD.__set__(self, value)
        self.rowgrad_pending = ()

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # torch would restore a plain parameter. Gradients and optimizers are not saved, as for other parameters.
        return _restored, (self.data, self.requires_grad)


PLAIN.add(FusedWeight)


def _restored(data: Tensor, requires_grad: bool) -> FusedWeight:  # pickles contain this name
    return FusedWeight(data, requires_grad)


def layout_of(tables: Any, strategy: str = "div", rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Return which rows of which tables a rank stores. A single rank stores all, so its strategy does not matter."""
    return {"strategy": strategy if ranks > 1 else "div", "rank": rank, "ranks": ranks, "tables": tables}


class TableModule(torch.nn.Module):
    """The base of modules with tables: makes parameters fused again, with their layout, after torch replaced them.

    torch replaces parameters in `to_empty`, `load_state_dict(assign=True)` and copies. `rowgrad_layout` of a parameter
    is JSON text that names the rows it stores; optimizers save it with the state of these rows.
    """

    fused: bool

    def _layouts(self) -> Mapping[str, dict[str, Any]]:
        """Return the layouts of parameters that store part of a table, or several tables."""
        return {}

    def _restore_tables(self) -> None:
        for parameter in self._parameters.values() if self.fused else ():
            if type(parameter) is torch.nn.Parameter:
                parameter.__class__ = FusedWeight
        for name, layout in self._layouts().items():
            parameter = self._parameters.get(name)  # None if a wrapper removed it
            if parameter is not None:
                setattr(parameter, LAYOUT, json.dumps(layout))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._restore_tables()
        return self

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._restore_tables()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._restore_tables()


def _discard_pending(weight: FusedWeight) -> None:
    """Set pending gradients to zero without computing them: their ids may have been overwritten."""
    with _LOCK:
        if _GRAD.__get__(weight) is None:
            ids = torch.empty(0, dtype=torch.int64, device=weight.device)
            values = weight.detach().new_empty((0, *weight.shape[1:]))
            _GRAD.__set__(weight, sparse_rows(values, ids, weight.shape[0], unique=True))
        weight.rowgrad_pending = ()


@torch.no_grad()
def _store_pending(weight: FusedWeight) -> None:
    """Compute the pending row-sparse gradients and accumulate them as autograd does."""
    with _LOCK:
        for pending in weight.rowgrad_pending:
            pending.check()
        gradients = [pending.rows(weight) for pending in weight.rowgrad_pending]
        for rows in gradients:
            grad = _GRAD.__get__(weight)
            if grad is None:
                _GRAD.__set__(weight, rows)
            else:
                grad += rows
        weight.rowgrad_pending = ()


def defer(
    weight: FusedWeight,
    update: Callable[[Any, Any], Iterator[None]],
    rows: Callable[[Any], Tensor],
    tensors: Sequence[Tensor],
) -> None:
    """Store a gradient until the next step of the table's optimizer.

    Args:
        weight: The table.
        update: A function of the table and the optimizer that validates the step, yields, then writes.
        rows: A function of the table that returns the row-sparse gradient.
        tensors: What both read.
    """
    add_pending([weight], _PendingCall(weight, (update, rows), tensors))


def add_pending(weights: Sequence[FusedWeight], pending: Any) -> None:
    """Store a `Pending`, or what has its methods, for tables until the next step of their optimizer."""
    for weight in weights:
        if not weight.rowgrad_optimizers:
            raise make_error("fused_no_optimizer")
    alone = (pending,)
    with _LOCK:
        for weight in weights:
            waiting = weight.rowgrad_pending
            weight.rowgrad_pending = (*waiting, pending) if waiting else alone


# Returns the gradient of a table that is already stored; pending ones are not computed.
stored_grad: Callable[[FusedWeight], Tensor | None] = _GRAD.__get__


def register_optimizer(weight: FusedWeight, optimizer: Any) -> None:
    """Record that a rowgrad optimizer updates the table."""
    if isinstance(weight.rowgrad_optimizers, tuple):
        weight.rowgrad_optimizers = set()
        with _LOCK:
            weight.rowgrad_number, weight.rowgrad_anchor = (
                len(_NUMBERED),
                torch.zeros((), requires_grad=True, device="cpu"),
            )
            _NUMBERED.append(TensorWeakRef(weight))
    optimizers = weight.rowgrad_optimizers
    optimizers.add(weakref.ref(optimizer, optimizers.discard))


_NUMBERED: list[TensorWeakRef] = []


def numbered_table(number: int) -> Any:
    """Return the table that compiled graphs call by this number; None if no table has it."""
    return _NUMBERED[number]() if number >= 0 else None


def fused_step(weight: FusedWeight, optimizer: Any) -> Iterator[None] | None:
    """Return the fused step; None if the row-sparse gradient is needed, because something else reads it too."""
    if len(weight.rowgrad_pending) != 1 or not is_only_optimizer(weight) or _GRAD.__get__(weight) is not None:
        return None
    return _step_with_pending(weight, optimizer)


def _step_with_pending(weight: FusedWeight, optimizer: Any) -> Iterator[None]:
    consumed = weight.rowgrad_pending[0]
    yield from consumed.update(weight, optimizer)
    remove_pending([weight], consumed)


def remove_pending(weights: Iterable[FusedWeight], used: Any) -> None:
    """Drop the gradient that a step has consumed; those of later backward passes stay."""
    with _LOCK:
        for weight in weights:
            waiting = weight.rowgrad_pending
            weight.rowgrad_pending = () if len(waiting) == 1 else tuple(p for p in waiting if p is not used)


def clear_grads(params: Iterable[Any]) -> None:
    """Remove the gradients of parameters, also pending ones; faster than `param.grad = None` for many tables."""
    for param in params:
        if type(param) is not FusedWeight:
            param.grad = None
            continue
        if param.rowgrad_pending:
            param.rowgrad_pending = ()
        if stored_grad(param) is not None:
            _GRAD.__set__(param, None)


def consume_stored_grad(weight: FusedWeight) -> None:
    """Drop the stored gradient that a step has used, unless another optimizer needs it; pending ones stay."""
    if is_only_optimizer(weight):
        _GRAD.__set__(weight, None)


def is_only_optimizer(weight: FusedWeight) -> bool:
    """Return whether the table has a single optimizer, whose step then consumes the gradient."""
    return len(weight.rowgrad_optimizers) == 1


@named("rowgrad::FusedLookup")
class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: FusedWeight, weights: Tensor | None, bags: Bags, kind: str, plan: Plan | None) -> Any:
        ctx.weight, ctx.kind, ctx.plan, ctx.num_bags = weight, kind, plan, bags.num_bags
        ctx.version = weight._version
        ctx.save_for_backward(bags.indices, bags.segment_ids, weights)
        return lookup(weight.detach(), bags, kind, False, None)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        weight = ctx.weight
        target = destination(ctx, weight)
        wanted = {"data"} if target == "autograd" else set()
        if ctx.needs_input_grad[1]:
            wanted.add("weights")
        if "weights" in wanted and weight._version != ctx.version:
            raise make_error("fused_changed")
        y, (indices, segment_ids, weights) = ys[0].contiguous(), ctx.saved_tensors
        bags = Bags(indices, segment_ids, ctx.num_bags, weights)
        gradients: Mapping[str, Any] = {}
        if wanted:
            gradients = bag_gradients(frozenset(wanted), weight, y, bags, ctx.kind)
        if target == "step":
            defer_bags(weight, y, bags, ctx.kind, ctx.plan)
        return gradients.get("data"), gradients.get("weights"), None, None, None


def destinations(ctx: Any, numbers: Sequence[int], tables: Sequence[FusedWeight]) -> dict[int, str] | None:
    """Return `destination` for several tables of a function whose inputs are the tables; None if it is "step" for all.

    The function must have `ANCHOR` among its inputs.
    """
    reject_compiled_backward(ctx)
    if _visits_all_leaves() and list(map(_HOOKS, tables)).count((None, None, True)) == len(tables):
        return None
    leaves = ctx.next_functions[1:] if len(ctx.next_functions) > len(ctx.needs_input_grad) else ctx.next_functions
    return {t: destination(ctx, tables[t], leaves[t][0]) for t in numbers}


def _visits_all_leaves() -> bool:
    """Return whether the current backward pass is one that stores the gradients of all leaves.

    A pass with `inputs` visits the leaves among them only, so never the anchor.
    """
    will_run = getattr(torch._C, "_will_engine_execute_node", None)
    try:
        return will_run is not None and not torch.is_grad_enabled() and bool(will_run(_ANCHOR_NODE))
    except RuntimeError:
        return False


def destination(ctx: Any, weight: FusedWeight, leaf: Any = None) -> str:
    """Return where this backward pass sends the table's gradient: "step", "autograd" or "nowhere".

    It is deferred to the step if autograd would only store it. Autograd needs it if the table is an input of
    `torch.autograd.grad`, if the table has hooks, or with `create_graph=True`. Hooks of autograd nodes get None,
    because torch does not reveal them. `leaf` is the table's node, if known.
    """
    reject_compiled_backward(ctx)
    if leaf is None:
        leaf = next((node for node, _ in ctx.next_functions if getattr(node, "variable", None) is weight), None)
    if leaf is None or not weight.requires_grad:  # frozen during the lookup, or later
        return "nowhere"
    will_run = getattr(torch._C, "_will_engine_execute_node", None)
    if will_run is None:  # a private function, which other versions of torch may lack
        return "autograd"
    try:
        if not will_run(leaf):
            return "nowhere"
        if not (torch.is_grad_enabled() or weight._backward_hooks or weight._post_accumulate_grad_hooks):
            return "step"
    except RuntimeError:  # torch.autograd.grad with the table among its inputs
        return "autograd"
    if weight.rowgrad_pending:
        _store_pending(weight)  # earlier gradients are accumulated first
    return "autograd"


def reject_compiled_backward(ctx: Any) -> None:
    """Reject compiled autograd: it runs the backward pass outside of autograd's engine, on a copy of `ctx`."""
    if torch.compiler.is_compiling() or not isinstance(ctx, torch._C._FunctionBase):
        raise make_error("fused_unfit", value="compiled autograd")


def defer_bags(weight: FusedWeight, y: Tensor, bags: Bags, kind: str, plan: Plan | None) -> None:
    """Store the gradient of bags until the next step of the table's optimizer."""
    if bags.weights is not None:
        bags = bags._replace(weights=bags.weights.detach())
    add_pending([weight], PendingBags(weight, y, bags, kind, plan))


def bag_gradients(
    wanted: frozenset[str], weight: Tensor, y: Tensor, bags: Bags, kind: str, sparse: bool = True
) -> dict[str, Any]:
    """Return the gradients of an unfused lookup by argument name; `sparse`: the table's is row-sparse."""
    weighted = {} if bags.weights is None else {"weights": bags.weights}
    op = CATALOG[f"{'Weighted' if weighted else ''}SparseSegment{kind}WithNumSegments"]
    ids = {"indices": bags.indices, "segment_ids": bags.segment_ids}
    arguments = {"data": weight, **ids, **weighted, "num_segments": bags.num_bags}
    saved_call = SavedCall(op, {**op.attrs, "sparse_gradient": sparse}, wanted)
    saved = saved_call.save(arguments, (y,))  # y has the shape and dtype of the output
    table = table_for((y,))
    gradients = saved_call.backward(table, tuple(saved), (y,), rows=table is TABLE)
    return dict(zip(op.differentiable, gradients, strict=True))


def gradient_of(argument: str, weight: Tensor, y: Tensor, bags: Bags, kind: str) -> Tensor:
    """Return the gradient of an unfused lookup for its table ("data") or its per-sample weights ("weights")."""
    found: Tensor = bag_gradients(frozenset({argument}), weight, y, bags, kind)[argument]
    return found


def needs_fused_lookup(module: Any, weight: Tensor) -> bool:
    """Return whether a module's lookup has to be recorded as that of a fused table.

    A tensor that `functional_call` substitutes for the table gets an unfused lookup.
    """
    if not module.fused or not weight.requires_grad or not torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() and not is_exporting():
        check_compiles()
    if isinstance(weight, FusedWeight):
        return True
    if is_in_fsdp(weight):
        raise make_error("rows_in_fsdp")
    if type(weight) is torch.nn.Parameter:
        raise make_error("fused_unfit", value="parameters that a wrapper has replaced")
    return False


def fused_lookup(weight: Any, bags: Bags, kind: str, plan: Plan | None) -> Tensor:
    """Look up bags; the gradient is deferred to the optimizer's step."""
    if plan is not None:
        for what, value, bound in (
            ("ids", plan.num_ids, bags.indices.shape[0]),
            ("bags", plan.num_segments, bags.num_bags),
            ("rows", plan.num_rows, weight.shape[0]),
        ):
            if value != bound:
                raise make_error("plan_unfit", value=f"{value} {what}", bound=bound)
    if torch.compiler.is_compiling():
        return _traced_lookup(weight, bags, kind)
    if torch._C._are_functorch_transforms_active():
        raise make_error("fused_unfit", value="torch.func")
    replica = replica_of(weight)
    if replica is not None:
        rows: Tensor = replica.look_up(weight, bags, kind)
        return rows
    return _Fused.apply(weight, bags.weights, bags, kind, plan)


def _traced_lookup(weight: Any, bags: Bags, kind: str) -> Tensor:
    """Look up bags in a graph. Exported programs have no optimizer, so their gradients are those of unfused tables."""
    if is_exporting():
        return lookup(weight, bags, kind, False, None)
    check_compiles()
    ids = bags.indices, bags.segment_ids, bags.weights, bags.num_bags
    rows: Tensor = torch.ops.rowgrad._fused_lookup(weight, weight.rowgrad_anchor, *ids, kind, weight.rowgrad_number)
    return rows


def is_exporting() -> bool:
    """Return whether torch.export traces. Versions before 2.13 answer True inside of torch.compile too."""
    return torch.compiler.is_exporting() and not (IS_OLD and torch.compiler.is_dynamo_compiling())


def between_graphs(forward: Any, is_old: bool = IS_OLD) -> Any:
    """Make `forward` of a fused module run between compiled graphs if torch cannot compile fused tables."""
    if not is_old:
        return forward
    eager = torch.compiler.disable(forward)

    @functools.wraps(forward)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        if self.fused and torch.compiler.is_compiling() and not is_exporting():
            return eager(self, *args, **options)
        return forward(self, *args, **options)

    return run


def check_compiles() -> None:
    """Raise unless this version of torch compiles fused tables."""
    from .fused_ops import COMPILES  # circular import

    if not COMPILES:
        raise make_error("fused_unfit", value=f"torch.compile of torch {torch.__version__}")


def reject_unsupported_context() -> None:
    """Raise under torch.compile, torch.func and DistributedDataParallel; sharded tables support none of them."""
    if torch.compiler.is_compiling():
        raise make_error("fused_unfit", value="torch.compile")
    if torch._C._are_functorch_transforms_active():
        raise make_error("fused_unfit", value="torch.func")
    if is_in_ddp():
        raise make_error("fused_unfit", value="DistributedDataParallel")
