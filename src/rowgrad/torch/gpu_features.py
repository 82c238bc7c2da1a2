"""Lookups of many features and steps of many tables on a GPU, in one crossing into C++ each.

As in `feature_lookup`, which does this on a CPU, functions return None where the ops have to do the job, which return
the same bits and raise the errors. The kernels treat tables of one dtype and width as one table: a stack of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.autograd.function import _SingleLevelFunction

from .._catalog.enums import COMBINERS, Order
from .._catalog.rules import RULES
from .._catalog.spec import CATALOG
from ..errors import OpError, make_error
from . import devices
from .autograd import named
from .bag_lookup import REPLICAS, is_in_ddp
from .bags import Bags, in_feature
from .feature_lookup import JointPending, JointRowStep, JointStep, TableSet, by_feature, split_tables
from .fused import ANCHOR, FusedWeight, add_pending, bag_gradients, remove_pending, wait_for_stream
from .gpu_calls import LOOKUP, ROW_STEP, STEP
from .row_gradient import keep_coalesced, new_padded_rows, valid_rows
from .tensors import is_eager

_FEATURE_SHIFT = 40  # in the position of a fault, as in source/feature_bags.cuh


class NamesInErrors:
    """The features and tables that errors of a module's lookups name."""

    def __init__(self, owners: Sequence[tuple[str, str]]) -> None:
        self.owners = tuple(owners)  # (feature, table) of each feature
        self.of_vectors = _Caller("StackBags", CATALOG["StackBags"].input_names, self.owners, True, True)
        self.of_features = tuple(
            _Caller(LOOKUP.name, LOOKUP.input_names, self.owners, False, ends) for ends in (False, True)
        )


class _Caller(NamedTuple):
    """What faults of one kind of lookup name."""

    name: str
    input_names: tuple[str, ...]
    owners: tuple[tuple[str, str], ...]
    joined: bool
    ends: bool

    def error_of(self, key: str, position: int, value: int, bound: int) -> OpError:
        """Return the error of a fault, as the ops raise it."""
        feature, table = self.owners[position >> _FEATURE_SHIFT]
        position &= (1 << _FEATURE_SHIFT) - 1
        if key == "id_not_in_feature":
            facts: dict[str, Any] = {"position": position, "value": value, "bound": bound}
            return make_error("id_not_in_table", feature=feature, table=repr(table), **facts)
        error = make_error(key, has=self.input_names, position=position, value=value, bound=bound)
        return error if self.joined else in_feature(feature, error, self.ends)


class _RowSteps(NamedTuple):
    """What faults of a step of many tables with row gradients name."""

    name: str
    input_names: tuple[str, ...]

    def error_of(self, key: str, position: int, value: int, bound: int) -> OpError:
        """Return the error of a fault; its position has the number of the table."""
        position &= (1 << _FEATURE_SHIFT) - 1
        return make_error(key, has=self.input_names, position=position, value=value, bound=bound)


_ROW_STEPS = _RowSteps(ROW_STEP.name, ROW_STEP.input_names)
_GRADIENTS = CATALOG["SparseSegmentSumGradV2"]


class _Call(NamedTuple):
    """One recorded lookup, and what the backward pass needs."""

    table_set: TableSet
    groups: list[list[int]]  # the features of each group of tables of one dtype and width
    group_tables: list[list[int]]  # the tables of each group
    recorded: Any  # the lookup in C++
    shapes: list[torch.Size]  # of the tables
    rows: bool
    fused: bool
    stacked: bool
    joined: bool  # whether the features share a vector of ids

    def bags(self, table: int) -> Bags:
        """Return the bags of a table's features, example by example, as the ops take them.

        Waits for the device if features share a vector or ids may be ignored.
        """
        number, group = next((i, g) for i, g in enumerate(self.group_tables) if table in g)
        member = group.index(table)
        rows_at, segments_at, size, firsts, sizes = self.recorded.group(number)
        rows, segments = (self.recorded.memory[at : at + 4 * size].view(torch.int32) for at in (rows_at, segments_at))
        first, shift, readers = firsts[member], self.recorded.segment_shift, self.table_set.readers(table)
        if not self.joined:
            begin = sum(sizes[:member])
            rows, segments = (x[begin : begin + sizes[member]] for x in (rows, segments))
        if self.joined or self.table_set.facts[table].padding >= 0:
            own = (rows >= first) & (rows < first + self.shapes[table][0])
            rows, segments = rows[own], segments[own]
        segments = segments - (self.groups[number].index(readers[0]) << shift)
        if len(readers) > 1:
            segments = (segments & ((1 << shift) - 1)) * len(readers) + (segments >> shift)
        return Bags(rows - first, segments, self.recorded.bags * len(readers))

    def gradient(self, table: int, parts: Sequence[Tensor | None]) -> Tensor:
        """Return the gradient of a table, made of ops, so that it has derivatives itself."""
        readers = self.table_set.readers(table)
        like = next(parts[f] for f in readers if parts[f] is not None)
        assert like is not None
        y = like
        if len(readers) > 1:
            y = torch.stack([torch.zeros_like(like) if (y := parts[f]) is None else y for f in readers], 1).flatten(
                0, 1
            )
        weight = like.new_empty(1).expand(self.shapes[table])  # only its shape and dtype matter
        kind = COMBINERS[self.table_set.facts[table].combiner]
        sparse = self.rows or self.fused
        found: Tensor = bag_gradients(frozenset({"data"}), weight, y, self.bags(table), kind, sparse)["data"]
        return found

    def readable(self, ys: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """Return the gradients of outputs as kernels read them; None if the ops have to read them."""
        if True in [y is not None and type(y) is not Tensor for y in ys]:
            return None
        found = [y if y is None else y.contiguous() for y in ys]
        if self.table_set.is_shared and not self.stacked and None in found:
            for t in range(len(self.shapes)):
                readers = self.table_set.readers(t)
                like = next((found[f] for f in readers if found[f] is not None), None)
                for f in readers if like is not None else ():
                    if found[f] is None:
                        found[f] = torch.zeros_like(like)
        return found

    def gradients(self, ys: Sequence[Tensor | None]) -> dict[int, Tensor] | None:
        """Return the gradients of all tables by number; None if the ops have to compute them."""
        if torch.is_grad_enabled():
            return None
        sparse = self.rows or self.fused
        readable = self.readable(ys)
        first = next((y for y in ys if y is not None), None)
        if readable is None or first is None:
            return None
        device = devices.device_for(first)
        if device is None or device.waits():
            return None
        order = int(Order[devices.default_order(first)])
        found: dict[int, Tensor] = {}
        for number, (group, tables) in enumerate(zip(self.groups, self.group_tables, strict=True)):
            own = readable if self.stacked else [readable[f] for f in group]
            if all(y is None for y in own):
                continue
            compute = device.calls.row_gradients if sparse else device.calls.dense_gradients
            made = compute(_GRADIENTS, self.recorded, number, own, self.stacked, order)
            if made is None:
                return None
            if not sparse:
                found.update(zip(tables, self._tables_of_stack(number, made), strict=True))
                continue
            values, ids, counts, sizes = made
            parts = values.unsafe_split_with_sizes(sizes), ids.unsafe_split_with_sizes(sizes, 1), counts.unsafe_split(1)
            for t, own_values, own_ids, count in zip(tables, *parts, strict=False):  # the last may be for ignored ids
                found[t] = new_padded_rows(own_values, own_ids, count, self.shapes[t][0])
        return found

    def _tables_of_stack(self, number: int, values: Tensor) -> Sequence[Tensor]:
        """Return the rows of each table of a group."""
        tables, firsts, sizes = self.group_tables[number], self.recorded.group(number)[3], []
        for t, first, end in zip(tables, firsts, [*firsts[1:], values.shape[0]], strict=False):
            rows = self.shapes[t][0]
            sizes += [rows, end - first - rows]
        sizes.append(values.shape[0] - sum(sizes))  # for ignored ids, or nothing
        return values.unsafe_split_with_sizes(sizes)[:-1:2]  # not views: they may be changed in place


def look_up(
    module: Any,
    names: NamesInErrors,
    table_set: TableSet,
    tables: list[Tensor],
    ids: Any,
    offsets: Tensor | None,
    has_end: bool,
) -> list[Tensor] | None:
    """Return the combined rows of every feature's bags, or if the module's output is stacked one tensor of all.

    Args:
        module: The module, for its options.
        names: What errors name.
        table_set: The set that `tables` belong to.
        tables: The tables.
        ids: A tuple (ids, offsets) or a matrix with one bag per row for each feature, or a vector with the ids of all.
        offsets: Where the bags in a vector begin, with their end.
        has_end: Whether the offsets in tuples end with the number of ids.
    """
    if not is_eager():
        return None
    device = devices.device_for(tables[0])
    if device is None or device.waits():
        return None
    joined, stacked = offsets is not None, module.output == "stacked"
    with DisableTorchFunctionSubclass():  # faster for fused tables, which are a subclass
        keeps, rows = False, module.grad == "rows"
        if torch.is_grad_enabled() and True in [t.requires_grad for t in tables]:
            if is_in_ddp() or (REPLICAS and any(t in REPLICAS for t in tables)):
                return None  # ranks may have to exchange gradients
            if module.fused and set(map(type, tables)) != {FusedWeight}:
                return None
            keeps = True
        caller = names.of_vectors if joined else names.of_features[has_end]
        found = device.calls.look_up_features(
            caller, tables, table_set.features, table_set.reductions, table_set.paddings, ids, offsets, has_end,
            stacked, keeps, rows and not module.fused,
        )  # fmt: skip
        if found is None:
            return None
        outs, groups, group_tables, recorded = found
        outputs: Any = outs if stacked else _split(outs, groups)
        if not keeps:
            return outputs  # type: ignore[no-any-return]
        if rows and not module.fused:
            for weight in tables:
                if weight.requires_grad:
                    keep_coalesced(weight)
        shapes = [t.shape for t in tables]
        call = _Call(table_set, groups, group_tables, recorded, shapes, rows, module.fused, stacked, joined)
        outputs = _Lookup.apply(call, outputs, *tables, ANCHOR if module.fused else None)
    return [outputs] if type(outputs) is Tensor else list(outputs)


def _split(outs: list[Tensor], groups: list[list[int]]) -> list[Tensor]:
    """Return the output of each feature."""
    if len(outs) == 1:
        return list(_chunks(outs[0], len(groups[0])))  # in the order of features
    found: dict[int, Tensor] = {}
    for out, members in zip(outs, groups, strict=True):
        found.update(zip(members, _chunks(out, len(members)), strict=True))
    return [found[f] for f in range(len(found))]


def _chunks(out: Tensor, count: int) -> tuple[Tensor, ...]:
    # not views: they may be changed in place
    return (out,) if count == 1 else out.unsafe_split(out.shape[0] // count, 0)


@named("rowgrad::EmbeddingBags")
class _Lookup(_SingleLevelFunction):
    """A recorded lookup. Its inputs are the tables and the anchor."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, call: _Call, outputs: list[Tensor], *tensors: Any) -> Any:
        ctx.call = call
        ctx.tables = tensors[:-1] if call.fused else None
        ctx.set_materialize_grads(False)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        call: _Call = ctx.call
        if True in [y is not None and y.layout is not torch.strided for y in ys]:
            ys = tuple(y if y is None else y.to_dense() for y in ys)
        wanted, deferred = split_tables(ctx, call, ctx.needs_input_grad[2:-1], ys)
        found: list[Any] = [None] * len(call.shapes)
        if deferred:
            readable = call.readable(ys)
            if readable is None:  # of other classes than torch's own
                wanted = [*wanted, *deferred]
            else:
                add_pending([ctx.tables[t] for t in deferred], _PendingTables(call, readable, deferred, ctx.tables))
        if wanted:
            table_set = call.table_set
            is_joint = len(wanted) > 1 or call.joined or table_set.is_shared or table_set.has_padding
            gradients = call.gradients(ys) if is_joint else None
            for t in wanted:
                found[t] = call.gradient(t, by_feature(call, ys)) if gradients is None else gradients[t]
        return None, None, *found, None


class _PendingTables(JointPending):
    """The pending gradients of a lookup on a GPU."""

    __slots__ = ("call", "stream", "versions", "ys")

    def __init__(self, call: _Call, ys: list[Tensor | None], numbers: list[int], tables: Sequence[FusedWeight]) -> None:
        super().__init__(numbers, tables)
        self.call, self.ys = call, ys
        self.versions = self._versions()
        self.stream = devices.current_stream(tables[0])

    def _versions(self) -> list[int]:
        return [0 if y is None else y._version for y in self.ys]

    def check(self) -> None:
        """Raise if the gradient was overwritten after backward; make the current stream wait for its stream."""
        if self._versions() != self.versions:
            raise make_error("fused_overwritten")
        wait_for_stream(self.stream, [self.call.recorded.memory, *[y for y in self.ys if y is not None]])

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        return self.call.gradient(self.number_of(weight), by_feature(self.call, self.ys))

    def new_step(self) -> JointStep:
        """Return a step of some of the tables."""
        return _TableStep(self)


class _TableStep(JointStep):
    """A step of tables on a GPU: a sort for each group of tables of one dtype and width."""

    __slots__ = ("device", "prepared")

    def prepare(self, rule: str) -> bool:
        """Return whether the kernels can update the tables; others, which may raise, step by themselves."""
        spec, call, params = RULES[rule], self.pending.call, self.params
        self.device = device = devices.device_for(params[0])
        if device is None or device.waits():
            return False
        if not self.is_capturable(rule):
            return False
        updates: list[Any] = [None] * len(call.shapes)
        for t, update in zip(self.pending.numbers_of(params), self.updates(rule), strict=True):
            updates[t] = update
        order = int(Order[devices.default_order(params[0])])
        self.prepared: list[Any] = []
        for number, (group, tables) in enumerate(zip(call.groups, call.group_tables, strict=True)):
            own = [updates[t] for t in tables]
            if all(update is None for update in own):
                continue
            ys = self.pending.ys if call.stacked else [self.pending.ys[f] for f in group]
            step = device.calls.prepare_tables(STEP, call.recorded, number, spec.number, ys, call.stacked, own, order)
            if step is None:
                return False
            self.prepared.append(step)
        return True

    def run(self) -> None:
        """Update the tables."""
        for step in self.prepared:
            if not self.device.calls.run_tables(step):
                self.device.ledger.raise_reported()
                raise make_error("out_of_memory_between")
        self.count()
        remove_pending(self.params, self.pending)


class TableRowStep(JointRowStep):
    """A step of tables on a GPU with their row-sparse gradients."""

    __slots__ = ("counts", "device", "prepared")

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[Tensor | None] = []

    def add(self, grad: Tensor) -> None:
        """Add the gradient of the last parameter."""
        super().add(grad)
        self.counts.append(None if grad.is_coalesced() else valid_rows(grad))

    def prepare(self, rule: str) -> bool:
        """Return whether the kernels can update the tables; others, which may raise, step by themselves."""
        self.device = device = devices.device_for(self.params[0])
        if device is None or device.waits() or not self.is_capturable(rule):
            return False
        updates = [
            (*update, rows, ids, count)
            for update, rows, ids, count in zip(self.updates(rule), self.rows, self.ids, self.counts, strict=True)
        ]
        self.prepared = device.calls.prepare_lists(_ROW_STEPS, RULES[rule].number, updates)
        return self.prepared is not None

    def step(self) -> None:
        """Queue the step."""
        if not self.device.calls.run_lists(self.prepared):
            self.device.ledger.raise_reported()
            raise make_error("out_of_memory_between")


def are_rows(grad: Tensor, param: Tensor) -> bool:
    """Return whether a gradient on a GPU consists of unique rows of a table, and perhaps padding."""
    return (
        grad.layout is torch.sparse_coo
        and param.ndim == 2
        and grad.shape == param.shape
        and grad.sparse_dim() == 1
        and (grad.is_coalesced() or valid_rows(grad) is not None)
    )
