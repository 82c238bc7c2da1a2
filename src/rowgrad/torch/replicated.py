"""Row gradients under DistributedDataParallel: ranks exchange ids and the gradients of their bags.

Every rank has the whole table. At the end of a backward pass each rank sends the ids, the bags' lengths, the weights
and the gradient of the bags of its lookups to all ranks. Each rank concatenates them in the order of the ranks and
computes the row gradient of the concatenated batch.

The exchange runs when DistributedDataParallel has finished its own collectives, so that all ranks issue all collectives
in the same order, whatever the order of their graphs.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel.distributed import DistributedDataParallel, _find_tensors
from torch.utils.weak import TensorWeakRef

from ..errors import make_error
from ..lookup import COMBINERS
from .bag_lookup import REPLICAS, REPLICATED, lookup
from .bags import Bags
from .fused import FusedWeight, TableModule, defer_bags, gradient_of
from .row_gradient import keep_coalesced
from .sharded.exchange import (
    TIMEOUT,
    PackedExchange,
    Ranks,
    Section,
    call_id,
    check_same_call,
)
from .sharded.liveness import RankRefusedError

_KINDS = tuple(COMBINERS.values())
_FLOATS = (None, torch.float16, torch.bfloat16, torch.float32, torch.float64)  # dtypes of weights; None: no weights
_UNKNOWN = len(_FLOATS)  # of a rank that has no ids
_MODELS: weakref.WeakKeyDictionary[torch.nn.Module, _Replicas] = weakref.WeakKeyDictionary()


def replicate_rows(
    model: torch.nn.Module,
    process_group: Any = None,
    *,
    tables: Iterable[Any] = (),
    timeout: float = TIMEOUT,
) -> list[str]:
    """Reduce the row gradients of a model's tables over all ranks; call it before DistributedDataParallel wraps it.

    It applies to the tables of rowgrad's modules with `grad="rows"` or `fused=True` that require gradients, except
    sharded ones. DistributedDataParallel ignores them from then on and reduces the other parameters. The tables get the
    values of rank 0. All ranks call it together.

    The gradient of a table has the bits of one process that looks up the batches of all ranks, concatenated, and whose
    bags have the ranks' gradients divided by the number of ranks. It is the same on every rank.

    Args:
        model: The model that DistributedDataParallel will wrap.
        process_group: The group of DistributedDataParallel; by default all processes.
        tables: Parameters of the model that `rowgrad.torch.functional.embedding_bag` looks up with `grad="rows"`.
        timeout: Seconds without a sign of life after which a rank counts as lost; a busy rank is waited for as long as
            the process group's own timeout.

    Returns:
        The names of the tables.

    Raises:
        InvalidArgumentError: If a table has an option that is not supported.
        RankRefusedError: If the tables differ between ranks.

    >>> import torch, rowgrad.torch as rgt
    >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Sequential(rgt.nn.EmbeddingBag(10, 4, grad="rows"), torch.nn.Linear(4, 1))
    >>> rgt.replicate_rows(model)
    ['0.weight']
    >>> ddp = torch.nn.parallel.DistributedDataParallel(model)
    >>> ddp(torch.tensor([[1, 2]])).sum().backward()
    >>> model[0].weight.grad.indices().tolist()
    [[1, 2]]
    >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        raise make_error(
            "bags_unfit", argument="model", value="DistributedDataParallel", bound="the model, before it is wrapped"
        )
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group before replicate_rows")
    found = _find_tables(model, list(tables))
    ranks = Ranks(process_group, None, timeout, "replicate_rows")
    _check_same_tables(ranks, found)
    for table in found.values():
        _broadcast(ranks, table)
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ())) | _names_of(model, list(found.values()))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(ignored))
    _MODELS[model] = replicas = _Replicas(ranks, found)
    for index, (name, table) in enumerate(found.items()):
        if table in REPLICAS:
            REPLICAS[table].guard.remove()
        table._ddp_ignored = REPLICATED
        REPLICAS[table] = Replica(replicas, index, table.register_hook(_Guard(replicas, name)))
        keep_coalesced(table)
    if _begin_forward not in model._forward_pre_hooks.values():  # a copy of a model has its hooks
        model.register_forward_pre_hook(_begin_forward)
        model.register_forward_hook(_end_forward)
    return list(found)


# -- The tables of a model --------------------------------------------------------------------------------------------


def _find_tables(model: torch.nn.Module, others: Sequence[Any]) -> dict[str, Any]:
    """Return the tables with row gradients by name, and those that the user names."""
    from .sharded.base import ShardedModule  # slow to load

    found: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, TableModule) and not isinstance(module, ShardedModule) and _has_row_gradients(module):
            tables = [t for t in module.parameters(recurse=False) if t.requires_grad]
            if tables and getattr(module, "max_norm", None) is not None:
                raise make_error("replicated_unfit", value="max_norm")
            found.update((id(t), t) for t in tables)
    found.update((id(t), t) for t in others)
    named = {name: table for name, table in model.named_parameters() if id(table) in found}
    if len(named) < len(found):
        raise make_error("bags_unfit", argument="tables", value="other tensors", bound="parameters of the model")
    if any(table.is_meta for table in named.values()):
        raise make_error("replicated_unfit", value="the meta device")
    return named


def _has_row_gradients(module: Any) -> bool:
    return module.fused or getattr(module, "grad", None) == "rows" or getattr(module, "sparse", False) is True


def _names_of(model: torch.nn.Module, tables: Sequence[Any]) -> set[str]:
    """Return all names of tables. DistributedDataParallel writes ".weight" for a parameter of the model itself."""
    names = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if any(parameter is table for table in tables):
                names |= {f"{prefix}.{name}", f"{prefix}.{name}" if prefix else name}
    return names


def _check_same_tables(ranks: Ranks, tables: dict[str, Any]) -> None:
    """Raise on all ranks if the tables of one rank differ from those of rank 0."""
    own = [f"{n}: {tuple(t.shape)}, {t.dtype}, fused={isinstance(t, FusedWeight)}" for n, t in tables.items()]
    found: list[Any] = [None] * ranks.size
    dist.all_gather_object(found, own, group=ranks.group)
    for rank, other in enumerate(found):
        if other != found[0]:
            first, name = ranks.names([0, rank])
            here, there = ("; ".join(sorted(set(a) - set(b))) or "other tables" for a, b in (
                (found[0], other), (other, found[0])))  # fmt: skip
            raise RankRefusedError(f"replicate_rows: rank {name} has {there}, but rank {first} has {here}",
                                   "calls", [name])  # fmt: skip


@torch.no_grad()
def _broadcast(ranks: Ranks, table: Tensor) -> None:
    """Copy a table of rank 0 to all ranks, as bytes: some backends lack 16-bit floats."""
    data = table.detach().contiguous()
    if data.numel() and ranks.size > 1:
        dist.broadcast(data.view(-1).view(torch.uint8), ranks.names([0])[0], group=ranks.group)
        table.copy_(data)


# -- Lookups ----------------------------------------------------------------------------------------------------------


class Replica(NamedTuple):
    """One table of a model, as a lookup finds it."""

    replicas: _Replicas
    number: int  # of the table
    guard: Any  # the handle of the table's hook

    def look_up(self, weight: Any, bags: Bags, kind: str) -> Tensor:
        """Look up bags; ranks exchange the gradient at the end of the backward pass."""
        if torch._C._are_functorch_transforms_active():
            raise make_error("replicated_unfit", value="torch.func")
        self.check_wrapper()
        anchor = torch.zeros((), requires_grad=True)
        rows: Tensor = _ReplicatedLookup.apply(anchor, bags.weights, self, [weight], bags, kind)
        return rows

    def check_wrapper(self) -> None:
        """Raise if the options of DistributedDataParallel, in whose forward pass this is called, do not fit."""
        self.replicas.check_wrapper()

    def add_gradient(self, y: Tensor, bags: Bags, kind: str) -> None:
        """Add the gradient of a lookup in a compiled graph to the backward pass that is running."""
        current = self.replicas.current_pass()
        # Negative numbers: they descend as gradients arrive.
        current.add(_Part(self.number, self.replicas.forward, -current.num_parts - 1, kind, y, bags))


class _ReplicatedLookup(torch.autograd.Function):
    """A lookup that autograd does not connect with its table: the gradient arrives there after the exchange."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, weights: Any, replica: Replica, tables: list[Any], bags: Bags, kind: str
    ) -> Any:
        (weight,) = tables  # in a list, so that autograd does not see it
        ctx.replica, ctx.weight, ctx.kind, ctx.num_bags = replica, weight, kind, bags.num_bags
        ctx.version, ctx.call = weight._version, replica.replicas.next_call()
        ctx.save_for_backward(bags.indices, bags.segment_ids, weights)
        return lookup(weight.detach(), bags, kind, False, None)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        if torch.compiler.is_compiling() or not isinstance(ctx, torch._C._FunctionBase):
            raise make_error("replicated_unfit", value="compiled autograd")
        if torch.is_grad_enabled():
            raise make_error("replicated_unfit", value="create_graph=True")
        y, (indices, segment_ids, weights) = ys[0].contiguous(), ctx.saved_tensors
        bags = Bags(indices, segment_ids, ctx.num_bags, None if weights is None else weights.detach())
        for_weights = None
        if ctx.needs_input_grad[1]:
            if ctx.weight._version != ctx.version:
                raise make_error("fused_changed")
            for_weights = gradient_of("weights", ctx.weight, y, bags, ctx.kind)
        if ctx.weight.requires_grad:  # not frozen since the lookup
            forward, call = ctx.call
            ctx.replica.replicas.current_pass().add(_Part(ctx.replica.number, forward, call, ctx.kind, y, bags))
        return None, for_weights, None, None, None, None


class _Part(NamedTuple):
    """The gradient of one lookup on this rank."""

    table: int
    forward: int  # which forward pass of the model
    call: int  # which lookup of that forward pass
    kind: str
    y: Tensor
    bags: Bags


class _Guard:
    """The hook of a table: raises for gradients that were not exchanged."""

    __torch_unserializable__ = True

    def __init__(self, replicas: _Replicas, name: str) -> None:
        self._replicas, self._name = replicas, name

    def __call__(self, grad: Any) -> None:
        if grad is not None and not self._replicas.is_delivering:
            raise make_error("replicated_foreign", value=self._name)


def _begin_forward(model: torch.nn.Module, _: Any) -> None:
    if torch.compiler.is_compiling():  # the whole model: backward passes begin with the first gradient of a table
        return
    replicas = _MODELS.get(model)
    if replicas is not None and torch.is_grad_enabled():
        replicas.begin_forward()


def _end_forward(model: torch.nn.Module, _: Any, output: Any) -> None:
    """Make every backward pass through the model exchange gradients, also on a rank that did not use the tables."""
    if torch.compiler.is_compiling():
        return
    replicas = _MODELS.get(model)
    if replicas is None or not torch.is_grad_enabled():
        return
    number = replicas.forward
    for tensor in _find_tensors(output):
        if tensor.grad_fn is not None:
            tensor.register_hook(lambda _: replicas.current_pass().forwards.add(number))


class _Replicas:
    """The tables of one model that all ranks replicate."""

    def __init__(self, ranks: Ranks, tables: dict[str, Any]) -> None:
        self.ranks, self.names = ranks, tuple(tables)
        self.is_delivering = False
        self.forward = 0
        self._calls = 0
        self._tables = [TensorWeakRef(t) for t in tables.values()]
        self._pass: weakref.ref[_BackwardPass] | None = None
        self._checked: weakref.ref[Any] | None = None

    def table(self, index: int) -> Any:
        """Return a table."""
        return self._tables[index]()

    def begin_forward(self) -> None:
        """Number the lookups of a forward pass."""
        self.forward, self._calls = self.forward + 1, 0

    def check_wrapper(self) -> None:
        """Raise if DistributedDataParallel does not fit."""
        ddp = DistributedDataParallel._get_active_ddp_module()
        if ddp is None:
            return
        if ddp._join_config.enable:
            raise make_error("replicated_unfit", value="DistributedDataParallel.join()")
        if self._checked is not None and self._checked() is ddp:
            return
        ids = {id(p): name for p, name in zip(map(self.table, range(len(self.names))), self.names, strict=True)}
        reduced = next((ids[id(p)] for p in ddp._module_parameters if id(p) in ids), None)
        if reduced is not None:
            raise make_error("replicated_reduced", value=reduced)
        groups = ddp.process_group.group_name, self.ranks.group.group_name
        if groups[0] != groups[1]:
            raise make_error("replicated_group", value=groups[0], bound=groups[1])
        self._checked = weakref.ref(ddp)

    def next_call(self) -> tuple[int, int]:
        """Return the number of the forward pass, and that of a lookup in it. They order the gradients of a table."""
        self._calls += 1
        return self.forward, self._calls

    def current_pass(self) -> _BackwardPass:
        """Return the backward pass that is running. Autograd's engine owns it, so it ends if the engine fails."""
        found = None if self._pass is None else self._pass()
        if found is None:
            found = _BackwardPass(self)
            Variable._execution_engine.queue_callback(found.finish)
            self._pass = weakref.ref(found)
        return found

    def end_pass(self) -> None:
        """Begin a new pass with the next gradient."""
        self._pass = None

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Return a context in which tables accept gradients."""
        self.is_delivering = True
        try:
            yield
        finally:
            self.is_delivering = False


# -- The exchange -----------------------------------------------------------------------------------------------------


class _Slot(NamedTuple):
    """A lookup of all ranks: what each of them sends. Ranks that did not make it send nothing."""

    part: _Part | None  # of this rank
    table: int
    kind: str
    weights: torch.dtype | None
    num_ids: list[int]
    num_bags: list[int]


class _BackwardPass:
    """The lookups of one backward pass, and the exchange at its end."""

    def __init__(self, replicas: _Replicas) -> None:
        self._replicas = replicas
        self._parts: list[_Part] = []
        self.forwards: set[int] = set()

    @property
    def num_parts(self) -> int:
        """The number of lookups so far."""
        return len(self._parts)

    def add(self, part: _Part) -> None:
        """Add the gradient of a lookup, divided by the number of ranks."""
        size = self._replicas.ranks.size
        self.forwards.add(part.forward)
        self._parts.append(part._replace(y=part.y / size) if size > 1 else part)

    def finish(self) -> None:
        """Run the exchange after the callbacks that other modules have queued; DistributedDataParallel's is one."""
        Variable._execution_engine.queue_callback(self._exchange)

    @torch.no_grad()
    def _exchange(self) -> None:
        self._replicas.end_pass()
        slots = self._agree()
        arrived = self._send(slots)
        gradients: dict[int, list[Any]] = {}
        for slot in slots:
            gradients.setdefault(slot.table, []).append((slot.kind, *self._concatenate(slot, arrived)))
        for index, found in gradients.items():
            self._deliver(self._replicas.table(index), found)

    def _agree(self) -> list[_Slot]:
        """Return the lookups of all ranks, in the order in which one process would add their gradients."""
        ranks, names = self._replicas.ranks, self._replicas.names
        rejection: Exception | None = None
        tables = {p.table: self._replicas.table(p.table) for p in self._parts}
        if any(isinstance(t, FusedWeight) and not t.rowgrad_optimizers for t in tables.values()):
            rejection = make_error("fused_no_optimizer")
        numbers = {forward: n for n, forward in enumerate(sorted(self.forwards))}
        own: dict[tuple[int, ...], _Part] = {}
        times: Counter[tuple[int, ...]] = Counter()
        for part in self._parts:
            key = part.table, numbers[part.forward], part.call
            own[*key, -times[key]] = part  # a nested backward pass may repeat a lookup's
            times[key] += 1
        call = call_id(ranks, "backward of replicated tables", names, len(numbers))
        counts = check_same_call(ranks, call, rejection, len(own))
        lines = [[*key, *_facts(part)] for key, part in own.items()]
        sent = torch.tensor(lines * ranks.size, dtype=torch.int64).reshape(-1, 8).to(ranks.device)
        section = Section(sent, [len(own)] * ranks.size, counts)
        (received,) = PackedExchange(ranks, "sizes", [section]).wait()
        slots: dict[tuple[int, ...], list[tuple[int, ...] | None]] = {}
        for rank, rows in enumerate(received.split(counts)):
            for row in rows.tolist():
                slots.setdefault(tuple(row[:4]), [None] * ranks.size)[rank] = tuple(row[4:])
        ordered = sorted(slots, reverse=True)  # autograd runs the latest lookup first
        return [self._slot(names[key[0]], key[0], slots[key], own.get(key)) for key in ordered]

    def _slot(self, name: str, table: int, facts: list[tuple[int, ...] | None], part: _Part | None) -> _Slot:
        kinds = {f[0] for f in facts if f is not None}
        weights = {f[1] for f in facts if f is not None} - {_UNKNOWN}
        if len(kinds) > 1 or len(weights) > 1:
            differs = "combiners" if len(kinds) > 1 else "per_sample_weights"
            raise RankRefusedError(
                f"backward of replicated tables: ranks look up {name} with different {differs}", "sizes",
                self._replicas.ranks.names([r for r, f in enumerate(facts) if f is not None]),
            )  # fmt: skip
        ids, bags = ([0 if f is None else f[k] for f in facts] for k in (2, 3))
        return _Slot(part, table, _KINDS[kinds.pop()], _FLOATS[weights.pop()] if weights else None, ids, bags)

    def _send(self, slots: Sequence[_Slot]) -> Iterator[Tensor]:
        """Send this rank's part of every lookup to all ranks; return what arrived, section by section."""
        ranks = self._replicas.ranks
        sections: list[Section] = []
        for slot in slots:
            for rows, counts in self._rows(slot):
                own = counts[ranks.rank]
                sections.append(Section(torch.cat([rows] * ranks.size), [own] * ranks.size, counts))
        return iter(PackedExchange(ranks, "gradients", sections).wait() if sections else ())

    def _rows(self, slot: _Slot) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield ids, lengths of bags, weights and gradients of bags, with the number that each rank sends."""
        table, part = self._replicas.table(slot.table), slot.part
        ids, lengths, weights, y = torch.empty((4, 0), device=table.device)
        if part is None:
            y = table.new_empty((0, *table.shape[1:]))
        else:
            y, ids = part.y, part.bags.indices
            lengths = torch.bincount(part.bags.segment_ids, minlength=part.bags.num_bags)[: part.bags.num_bags]
            if part.bags.weights is not None:
                weights = part.bags.weights
        yield ids.to(torch.int32 if table.shape[0] < 2**31 else torch.int64), slot.num_ids
        yield lengths.to(torch.int64), slot.num_bags
        if slot.weights is not None:
            yield weights.to(slot.weights), slot.num_ids
        yield y, slot.num_bags

    def _concatenate(self, slot: _Slot, arrived: Iterator[Tensor]) -> tuple[Tensor, Bags]:
        """Return the bags of all ranks and their gradient."""
        ids, lengths = next(arrived), next(arrived)
        weights = None if slot.weights is None else next(arrived)
        bags = torch.arange(lengths.shape[0], dtype=ids.dtype, device=ids.device)
        segment_ids = bags.repeat_interleave(lengths, output_size=ids.shape[0])
        return next(arrived), Bags(ids, segment_ids, lengths.shape[0], weights)

    def _deliver(self, table: Any, found: Sequence[tuple[str, Tensor, Bags]]) -> None:
        """Accumulate gradients of a table as autograd does, or defer them to the step of its optimizer."""
        if isinstance(table, FusedWeight):
            if len(table._backward_hooks or ()) == 1 and not table._post_accumulate_grad_hooks:  # the guard only
                for kind, y, bags in found:
                    defer_bags(table, y, bags, kind, None)
                return
            _ = table.grad  # earlier gradients are accumulated first
        gradients = [gradient_of("data", table, y, bags, kind) for kind, y, bags in found]
        with self._replicas.delivering():
            torch.autograd.backward([table] * len(gradients), gradients)


def _facts(part: _Part) -> tuple[int, int, int, int]:
    """Return what all ranks must know about a lookup: combiner, dtype of weights, number of ids and of bags."""
    bags = part.bags
    weights = _UNKNOWN if not len(bags.indices) else _FLOATS.index(None if bags.weights is None else bags.weights.dtype)
    return _KINDS.index(part.kind), weights, len(bags.indices), int(bags.num_bags)
