"""Look up the bags of many features in one kernel call, and step many tables in one call; CPU only.

`Embeddings` uses it for plain tensors, and optimizers for the steps of its tables. Everything else (other devices,
tracing, torch.func, invalid arguments, derivatives of gradients) goes to the ops, which return the same bits and raise
the errors. So lookups here return None where they cannot do the job, and do not raise for an argument of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from .. import _core
from .._catalog.enums import COMBINERS, Order, Reduction, Rounding
from .._catalog.rules import RULES, check_range, slot_dtype
from ..errors import make_error
from ..raw_ops import OPS
from . import devices
from .autograd import named
from .bag_lookup import REPLICAS, is_in_ddp
from .bags import Bags, drop_padding
from .device_numbers import ON_HOST, OnDevice, numbers_on_device
from .fused import (
    ANCHOR,
    FusedWeight,
    add_pending,
    bag_gradients,
    consume_stored_grad,
    destinations,
    is_only_optimizer,
    remove_pending,
    stored_grad,
)
from .row_gradient import keep_coalesced, new_unique_rows
from .tensors import DTYPE, check_storage, is_eager, new_tensor

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NAME = {DTYPE[name]: name for name in ("float16", "bfloat16", "float32", "float64")}
_ORDER, _ROUNDING = int(Order.sequential), int(Rounding.at_end)  # what the ops do on a CPU
_TABLE = getattr(Tensor, "__dlpack_c_exchange_api__", None)  # without it, kernels cannot read tensors: the ops do
if _TABLE is not None:
    _core.set_torch_classes(_TABLE, [Tensor, Parameter, FusedWeight], new_tensor)


class TableFacts(NamedTuple):
    """What a lookup knows of a table besides its rows."""

    combiner: str
    padding: int = -1  # ids of this row are ignored; -1: none


class TableSet:
    """Tables that are looked up together, and the table of each feature."""

    __slots__ = ("facts", "features", "has_padding", "is_shared", "kernel", "paddings", "reductions")

    def __init__(self, facts: Sequence[TableFacts], features: Sequence[int]) -> None:
        self.facts = tuple(facts)
        self.features = tuple(features)
        self.is_shared = len(set(self.features)) < len(self.features)
        self.has_padding = any(f.padding >= 0 for f in self.facts)
        self.reductions = [int(Reduction[f.combiner]) for f in self.facts]
        self.paddings = [f.padding for f in self.facts]
        self.kernel = _core.TableSet(list(zip(self.reductions, self.paddings, strict=True)), list(self.features))

    def __reduce__(self) -> tuple[Any, ...]:
        return TableSet, (self.facts, self.features)

    def readers(self, table: int) -> list[int]:
        """Return the features that look up rows of a table."""
        return [f for f, t in enumerate(self.features) if t == table]


class FeatureIds(NamedTuple):
    """The ids of one feature: a vector with the offsets of its bags, or a matrix with one bag per row."""

    ids: Tensor
    offsets: Tensor | None
    weights: Tensor | None
    ends: bool  # whether the last offset is the end of the last bag


class Batch(NamedTuple):
    """The ids of a call, for each feature or as one vector."""

    ids: Any  # a list with a matrix or a tuple (ids, offsets[, weights]) for each feature; or a vector
    offsets: Tensor | None  # of the vector, with the end
    weights: Any  # None; a list with those of each feature; or those of the vector
    ends: bool | None  # whether the offsets in tuples end with the number of ids; None: there are no tuples

    def read(self, kernel: Any, tables: list[Tensor]) -> Any:
        """Return the kernel's lookup, with a copy of the ids; None if the ops have to do it."""
        if self.offsets is not None:
            return kernel.read_vector(tables, self.ids, self.offsets, self.weights)
        return kernel.read_features(tables, self.ids, self.weights, self.ends)

    def is_weighted(self) -> bool:
        """Return whether ids have weights."""
        return self.weights is not None or (
            self.offsets is None and any(type(v) is tuple and len(v) == 3 and v[2] is not None for v in self.ids)
        )

    def features(self) -> list[FeatureIds]:
        """Return the tensors of each feature; one item if all features share a vector."""
        if self.offsets is not None:
            return [FeatureIds(self.ids, self.offsets, self.weights, True)]
        found = []
        for f, value in enumerate(self.ids):
            own = None if self.weights is None else self.weights[f]
            if type(value) is tuple:
                own = value[2] if own is None and len(value) == 3 else own
                found.append(FeatureIds(value[0], value[1], own, bool(self.ends)))
            else:
                found.append(FeatureIds(value, None, own, True))
        return found


class _Call:
    """One lookup: its ids in the kernel's own memory, and what the backward pass needs."""

    __slots__ = ("batch", "dtype", "fused", "kernel", "outputs", "rows", "stacked", "table_set")

    def __init__(self, table_set: TableSet, batch: Batch, rows: bool, fused: bool, stacked: bool) -> None:
        self.table_set = table_set
        self.batch = batch
        self.rows = rows
        self.fused = fused
        self.stacked = stacked

    def run(self, tables: list[Tensor]) -> bool:
        """Compute the outputs; return False if the ops have to do it."""
        kernel = self.batch.read(self.table_set.kernel, tables)
        if kernel is None:
            return False
        self.kernel = kernel
        self.dtype = dtype = tables[0].dtype
        width, bags, count = kernel.width, kernel.bags, len(self.table_set.features)
        out: Any
        if self.stacked:
            out = new_tensor((bags, count, width), dtype, zeros=False)
            self.outputs: Any = (out,)
        elif count == 1:
            out = new_tensor((bags, width), dtype, zeros=False)
            self.outputs = (out,)
        elif bags > 0 and width >= 0:
            out = new_tensor((count * bags, width), dtype, zeros=False)
            self.outputs = out.unsafe_split(bags, 0)  # not views: they may be changed in place
        else:
            out = [new_tensor((bags, width), dtype, zeros=False) for width in kernel.widths]
            self.outputs = tuple(out)
        found: bool = kernel.forward(out)
        return found


def look_up(
    table_set: TableSet, tables: list[Tensor], batch: Batch, *, rows: bool, fused: bool = False, stacked: bool = False
) -> tuple[Tensor, ...] | None:
    """Return the combined rows of every feature's bags.

    Args:
        table_set: The set that `tables` belong to.
        tables: One matrix per table, of one dtype.
        batch: The ids.
        rows: Whether gradients of tables are row-sparse.
        fused: Whether tables are fused.
        stacked: Whether to return a single tensor [bags, features, columns]; all tables then have the same width.

    Returns:
        A tensor [bags, columns] per feature, or the stacked one; None if the ops have to do it.
    """
    if not is_eager():
        return None
    recorded = False
    weights: tuple[Any, ...] = ()
    with DisableTorchFunctionSubclass():  # faster for fused tables, which are a subclass
        if torch.is_grad_enabled():
            recorded = True in [t.requires_grad for t in tables]
            if batch.is_weighted():
                weights = tuple([x.weights for x in batch.features()])
                recorded = recorded or True in [isinstance(w, Tensor) and w.requires_grad for w in weights]
            if recorded and (is_in_ddp() or (REPLICAS and any(t in REPLICAS for t in tables))):
                return None  # ranks may have to exchange gradients
        call = _Call(table_set, batch, rows, fused, stacked)
        if not call.run(tables):
            return None
        if not recorded:
            found: tuple[Tensor, ...] = call.outputs
            return found
        outputs: Any = _Lookup.apply(call, *tables, *weights, ANCHOR if fused else None)
    return outputs if type(outputs) is tuple else (outputs,)


@lru_cache(256)
def _single_table(combiner: str, padding: int) -> TableSet:
    return TableSet([TableFacts(combiner, padding)], [0])


def look_up_bags(
    table: Tensor,
    combiner: str,
    padding: int | None,
    ids: Tensor,
    offsets: Tensor | None,
    weights: Any,
    ends: bool,
    *,
    rows: bool,
    fused: bool,
) -> Tensor | None:
    """Return the combined rows of the bags of one table, a tensor [bags, columns]; None if the ops have to do it.

    Args:
        table: The table.
        combiner: "mean", "sum" or "sqrtn".
        padding: The row whose ids are ignored.
        ids: A vector with offsets, or a matrix with one bag per row.
        offsets: Where bags begin in the vector; None for a matrix.
        weights: A weight for each id.
        ends: Whether offsets end with the number of ids.
        rows: Whether the gradient of the table is row-sparse.
        fused: Whether the table is fused.
    """
    if _TABLE is None or not is_eager():
        return None
    if weights is not None and (type(weights) is not Tensor or weights.dtype is not table.dtype):
        return None
    if padding is None:
        padding = -1
    elif not 0 <= padding < table.shape[0]:
        return None
    table_set = _single_table(combiner, padding)
    with DisableTorchFunctionSubclass():  # faster for fused tables, which are a subclass
        trained = recorded = False
        if torch.is_grad_enabled():
            trained = recorded = table.requires_grad
            if weights is not None:
                recorded = trained or weights.requires_grad
        if not recorded:
            alone: Tensor | None = table_set.kernel.look_up(table, ids, offsets, weights, ends, False)
            return alone
        if (trained and not fused and _is_narrow(table, ids)) or is_in_ddp() or (REPLICAS and table in REPLICAS):
            return None  # the ops are faster, or ranks may have to exchange gradients
        found = table_set.kernel.look_up(table, ids, offsets, weights, ends, True)
        if found is None:
            return None
        batch = Batch([ids if offsets is None else (ids, offsets)], None, None if weights is None else [weights], ends)
        call = _Call(table_set, batch, rows, fused, False)
        out, call.kernel = found
        call.dtype, call.outputs = out.dtype, (out,)
        inputs = (table,) if weights is None else (table, weights)
        output: Tensor = _Lookup.apply(call, *inputs, ANCHOR if fused else None)
    if rows and trained and not fused:
        keep_coalesced(table)
    return output


def look_up_rows(table: Tensor, ids: Tensor, *, rows: bool, fused: bool) -> Tensor | None:
    """Return the row of every id, [*ids.shape, columns]; None if the ops have to do it. Options of `look_up_bags`."""
    if ids.ndim == 0 or ids.numel() == 0:
        return None
    # Each id is a bag, whose sum has the bits of the row.
    found = look_up_bags(table, "sum", None, ids.reshape(-1, 1), None, None, True, rows=rows, fused=fused)
    if found is None or ids.ndim == 1:
        return found
    return found.reshape(*ids.shape, found.shape[1])


def _is_narrow(table: Tensor, ids: Tensor) -> bool:
    """Return whether the ops have a faster gradient: in few columns they add many ids without sorting them."""
    return table.shape[1] <= 4 and ids.numel() >= max(table.shape[0] // 4, 8192)


@named("rowgrad::EmbeddingBags")
class _Lookup(_SingleLevelFunction):
    """A recorded lookup. Its inputs are the tables, the weights of each feature, or of all, and the anchor."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        ctx.call = call
        count = len(call.table_set.facts)
        ctx.tables = tensors[:count] if call.fused else None
        if call.kernel.weighted:  # without weights, the kernel's copy of the ids suffices
            saved = [t for x in call.batch.features() for t in x[:3]]
            if True in ctx.needs_input_grad[count + 1 : -1]:  # the gradient of weights reads the tables
                saved += tensors[:count]
                ctx.versions = [t._version for t in tensors[:count]]
            ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        outputs, call.outputs = call.outputs, None
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        call: _Call = ctx.call
        count = len(call.table_set.facts)
        needs = ctx.needs_input_grad[1:-1]
        if len(needs) == 1 == len(ys) and not (call.rows or call.fused or call.stacked or torch.is_grad_enabled()):
            # one dense gradient, the usual case of small models
            found = None if ys[0] is None else call.kernel.dense_gradient(ys[0], _ORDER, _ROUNDING)
            if found is not None:
                return None, found, None
        if True in [y is not None and y.layout is not torch.strided for y in ys]:
            ys = tuple(y if y is None else y.to_dense() for y in ys)
        tables = _table_gradients(ctx, call, needs[:count], ys)
        weights: Sequence[Any] = ()
        if len(needs) > count:
            weights = [None] * (len(needs) - count)
            if True in needs[count:]:
                weights = _weight_gradients(ctx, call, needs[count:], by_feature(call, ys))
        return None, *tables, *weights, None


def by_feature(call: Any, ys: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradient of each feature's output."""
    if not call.stacked:
        return ys
    return [None] * len(call.table_set.features) if ys[0] is None else ys[0].unbind(1)


def split_tables(
    ctx: Any, call: Any, needs: Sequence[bool], ys: Sequence[Tensor | None]
) -> tuple[list[int], list[int]]:
    """Return the tables whose gradients this backward pass needs, and the fused ones that are left to a step.

    `call` has the lookup's `table_set`, `stacked` and `fused`.
    """
    if call.stacked:
        wanted = [] if ys[0] is None else [t for t, needed in enumerate(needs) if needed]
    elif True in [y is None for y in ys]:
        used = {t for t, y in zip(call.table_set.features, ys, strict=True) if y is not None}
        wanted = [t for t in sorted(used) if needs[t]]
    else:
        wanted = [t for t, needed in enumerate(needs) if needed]
    deferred: list[int] = []
    if call.fused and wanted:
        targets = destinations(ctx, wanted, ctx.tables)
        deferred = wanted if targets is None else [t for t in wanted if targets[t] == "step"]
        wanted = [] if targets is None else [t for t in wanted if targets[t] == "autograd"]
    return wanted, deferred


def _table_gradients(ctx: Any, call: _Call, needs: Sequence[bool], ys: Sequence[Tensor | None]) -> Sequence[Any]:
    """Return the gradient of each table; fused tables get theirs in the optimizer's step."""
    wanted, deferred = split_tables(ctx, call, needs, ys)
    found: list[Any] = [None] * len(needs)
    if not wanted and not deferred:
        return found
    gradients = None if torch.is_grad_enabled() else BagGradients.read(call, ys)
    if gradients is None:  # derivatives of gradients, gradients of other classes
        features, parts = _saved_features(ctx, call), by_feature(call, ys)
        for t in (*wanted, *deferred):
            found[t] = _op_gradient(call, t, features, parts)
        return found
    if deferred:
        add_pending([ctx.tables[t] for t in deferred], PendingLookup(gradients, deferred, ctx.tables))
    if wanted:
        for t, gradient in zip(wanted, gradients.rows(wanted) if call.rows else gradients.dense(wanted), strict=True):
            found[t] = gradient
    return found


def _saved_features(ctx: Any, call: _Call) -> list[FeatureIds]:
    """Return the ids of every feature as they were in the lookup; torch raises if saved ones were changed since."""
    kernel, batch = call.kernel, call.batch
    if not kernel.weighted:
        found = []
        for f in range(len(call.table_set.features)):
            ids = torch.empty((kernel.count(f),), dtype=torch.int64, device="cpu")
            offsets = torch.empty((kernel.bags + 1,), dtype=torch.int64, device="cpu")
            kernel.copy_ids(f, ids, offsets)
            found.append(FeatureIds(ids, offsets, None, True))
        return found
    saved = ctx.saved_tensors
    if batch.offsets is None:
        own = zip(saved[0::3], saved[1::3], saved[2::3], batch.features(), strict=False)
        return [FeatureIds(ids, offsets, weights, x.ends) for ids, offsets, weights, x in own]
    ids, offsets, weights = saved[:3]
    split = []
    for f in range(len(call.table_set.features)):
        bounds = offsets[f * kernel.bags : (f + 1) * kernel.bags + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        split.append(FeatureIds(ids[begin:end], bounds - begin, weights[begin:end], True))
    return split


def _bags_of_table(features: Sequence[FeatureIds], bags: int, rows: int, padding: int) -> Bags:
    """Return the bags of all features of a table, example by example, as the ops take them."""
    ids, starts, weights, begin = [], [], [], 0
    for x in features:
        ids.append(x.ids.reshape(-1))
        if x.offsets is None:
            own = torch.arange(bags, device=x.ids.device) * x.ids.shape[1]
        else:
            own = x.offsets[:-1] if x.ends else x.offsets
        starts.append(own.to(torch.int64) + begin)
        begin += ids[-1].shape[0]
        if x.weights is not None:
            weights.append(x.weights.reshape(-1))
    end = torch.full((1,), begin, dtype=torch.int64, device=ids[0].device)
    size = torch.full((len(features),), rows, device=ids[0].device)
    stacked, segments, positions = OPS["StackBags"](
        torch.cat(ids), torch.cat([*starts, end]), size, torch.zeros_like(size), positions=bool(weights)
    )
    own_weights = OPS["GatherRows"](torch.cat(weights), positions, gradient="dense") if weights else None
    found = Bags(stacked, segments, bags * len(features), own_weights)
    return found if padding < 0 else drop_padding(found, padding)


def _op_gradient(call: _Call, table: int, features: Sequence[FeatureIds], parts: Sequence[Tensor | None]) -> Any:
    """Return a table's gradient, made of ops, so that it has derivatives itself."""
    readers, facts = call.table_set.readers(table), call.table_set.facts[table]
    shape = call.kernel.shape(table)
    bags = _bags_of_table([features[f] for f in readers], call.kernel.bags, shape[0], facts.padding)
    like = next(parts[f] for f in readers if parts[f] is not None)
    assert like is not None
    own = [torch.zeros_like(like) if (y := parts[f]) is None else y for f in readers]
    y = torch.stack(own, 1).flatten(0, 1)
    weight = like.new_empty(1, dtype=call.dtype).expand(shape)  # only its shape and dtype matter
    return bag_gradients(frozenset({"data"}), weight, y, bags, COMBINERS[facts.combiner], call.rows or call.fused)[
        "data"
    ]


def _weight_gradients(
    ctx: Any, call: _Call, needs: Sequence[bool], parts: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradients of weights, made of ops."""
    if call.fused and any(t._version != v for t, v in zip(ctx.tables, ctx.versions, strict=True)):
        raise make_error("fused_changed")
    features, joined = _saved_features(ctx, call), call.batch.offsets is not None
    tables = ctx.saved_tensors[-len(call.table_set.facts) :]
    found: list[Tensor | None] = []
    for f, (x, t) in enumerate(zip(features, call.table_set.features, strict=True)):
        y = parts[f]
        assert x.weights is not None
        if y is None or not (joined or needs[f]):
            found.append(None)
            continue
        facts = call.table_set.facts[t]
        bags = _bags_of_table([x], call.kernel.bags, call.kernel.shape(t)[0], -1)
        weights = x.weights.reshape(-1)
        if facts.padding >= 0:  # their weights have no effect
            keep = bags.indices != facts.padding
            bags = bags._replace(indices=bags.indices[keep], segment_ids=bags.segment_ids[keep], weights=weights[keep])
        own = bag_gradients(frozenset({"weights"}), tables[t], y, bags, COMBINERS[facts.combiner], False)["weights"]
        if facts.padding >= 0:
            own = torch.zeros_like(weights).masked_scatter(keep, own)
        found.append(own.reshape(x.weights.shape))
    if not joined:
        return found
    return [torch.cat([torch.zeros_like(x.weights) if g is None else g for g, x in zip(found, features, strict=True)])]


class BagGradients:
    """The upstream gradients of one backward pass through a lookup, from which table gradients are computed."""

    __slots__ = ("at", "call", "versions", "ys")

    @classmethod
    def read(cls, call: _Call, ys: Sequence[Tensor | None]) -> BagGradients | None:
        """Return the gradients as the kernel reads them; None if the ops have to do it.

        Raises:
            InvalidArgumentError: If a gradient exceeds its storage.
        """
        own = list(ys)
        if call.table_set.is_shared and not call.stacked:  # another feature of the table may have a gradient
            for f, (y, width) in enumerate(zip(ys, call.kernel.widths, strict=True)):
                if y is None:
                    own[f] = torch.zeros((call.kernel.bags, width), dtype=call.dtype, device="cpu")
        at = call.kernel.gradients(own[0] if call.stacked else own)
        if at is None:  # columns that are not contiguous
            if any(y is not None and (type(y) is not Tensor or not y.is_cpu) for y in own):
                return None
            own = [None if y is None else _contiguous(y) for y in own]
            at = call.kernel.gradients(own[0] if call.stacked else own)
            if at is None:
                return None
        found = cls()
        found.call, found.ys, found.at = call, own, at
        found.versions = [0 if y is None else y._version for y in own]
        return found

    call: _Call
    ys: list[Tensor | None]
    at: Any
    versions: list[int]

    def is_unchanged(self) -> bool:
        """Return whether the gradients are those of the backward pass."""
        return [0 if y is None else y._version for y in self.ys] == self.versions

    def rows(self, tables: Sequence[int]) -> list[Tensor]:
        """Return the row-sparse gradients of tables."""
        kernel, dtype, found = self.call.kernel, self.call.dtype, []
        counts = kernel.sort(tables)
        if len(counts) < len(tables):
            raise make_error("out_of_memory_between")
        for t, count in zip(tables, counts, strict=True):
            rows, columns = kernel.shape(t)
            values = new_tensor((count, columns), dtype, zeros=False)
            ids = torch.empty((1, count), dtype=torch.int64, device="cpu")
            if not kernel.gradient(t, self.at, _ORDER, _ROUNDING, values, ids):
                raise make_error("out_of_memory_between")
            found.append(new_unique_rows(values, ids, rows))
        return found

    def dense(self, tables: Sequence[int]) -> list[Tensor]:
        """Return the dense gradients of tables."""
        kernel, dtype, found = self.call.kernel, self.call.dtype, []
        for t in tables:
            table = new_tensor(kernel.shape(t), dtype, zeros=not kernel.writes_whole(t))
            if not kernel.gradient(t, self.at, _ORDER, _ROUNDING, table, None):
                raise make_error("out_of_memory_between")
            found.append(table)
        return found


def _contiguous(y: Tensor) -> Tensor:
    """Return a contiguous copy of a gradient; raise if its storage was resized, which torch does not check."""
    check_storage(y, "grad")
    return y.resolve_neg().clone(memory_format=torch.contiguous_format)


class JointPending:
    """The gradients of the fused tables of one lookup that are not yet summed by row; see `fused.Pending`."""

    __slots__ = ("numbers", "weights")

    def __init__(self, numbers: list[int], tables: Sequence[FusedWeight]) -> None:
        self.numbers = numbers  # of the tables in the lookup
        self.weights = [tables[t] for t in numbers]

    def number_of(self, weight: Any) -> int:
        """Return the number of a table in the lookup."""
        return next(t for t, own in zip(self.numbers, self.weights, strict=True) if own is weight)

    def numbers_of(self, weights: Sequence[Any]) -> list[int]:
        """Return the numbers of tables in the lookup."""
        if len(weights) == len(self.weights) and all(map(is_, weights, self.weights)):
            return self.numbers
        return [self.number_of(weight) for weight in weights]

    def check(self) -> None:
        """Raise if the gradient was overwritten after backward."""
        raise NotImplementedError

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        raise NotImplementedError

    def new_step(self) -> JointStep:
        """Return a step of some of the tables."""
        raise NotImplementedError

    def update(self, weight: Any, optimizer: Any) -> Iterator[None]:
        """Validate, yield, then step the table by itself."""
        yield from optimizer._iter_update_from_grad(weight, self.rows(weight))


class PendingLookup(JointPending):
    """The pending gradients of a lookup on the CPU."""

    __slots__ = ("gradients",)

    def __init__(self, gradients: BagGradients, numbers: list[int], tables: Sequence[FusedWeight]) -> None:
        super().__init__(numbers, tables)
        self.gradients = gradients

    def new_step(self) -> JointStep:
        """Return a step of some of the tables."""
        return _CpuStep(self)

    def check(self) -> None:
        """Raise if the gradient was overwritten after backward."""
        if not self.gradients.is_unchanged():
            raise make_error("fused_overwritten")

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        return self.gradients.rows([self.number_of(weight)])[0]


class _JointStep:
    """A step of several tables of one dtype: one kernel call."""

    __slots__ = ("numbers", "params", "states", "tensors")

    def __init__(self) -> None:
        self.params: list[Any] = []
        self.states: list[dict[str, Any]] = []
        self.numbers: list[tuple[Any, ...]] = []  # of each table; see `step_numbers`
        self.tensors: list[OnDevice] = []

    def prepare(self, rule: str) -> bool:
        """Return whether the kernel can update the tables; others, which may raise, step by themselves."""
        raise NotImplementedError

    def run(self) -> None:
        """Update the tables."""
        raise NotImplementedError

    def read(self, rule: str) -> Any:
        """Return the tables and slots as the CPU's kernel takes them; None if it cannot update them in place."""
        steps = _new_steps(rule)
        return steps if _TABLE is not None and steps.add(self.params, self.states, self.numbers) else None

    def is_capturable(self, rule: str) -> bool:
        """Return whether a graph may repeat the step: not if it depends on a number that the host counts."""
        fades = RULES[rule].fades
        return not devices.is_captured() or all(
            tensors.steps is not None or not (fades or numbers[2])
            for tensors, numbers in zip(self.tensors, self.numbers, strict=True)
        )

    def updates(self, rule: str) -> list[tuple[Any, ...]]:
        """Return the steps of the tables as the launcher of a GPU takes them."""
        names, found = [slot.name for slot in RULES[rule].slots], []
        for param, state, numbers, tensors in zip(self.params, self.states, self.numbers, self.tensors, strict=True):
            _, lazy, random, seed, address = numbers
            slots, step = [state[name] for name in names], 1 if tensors.steps is not None else state["step"] + 1
            found.append((param, slots, address, bool(lazy), bool(random), seed if random else 0, step, tuple(tensors)))
        return found

    def count(self) -> None:
        """Count the step, and make autograd reject tensors that it saved before."""
        increment_version(self.params)
        for state in self.states:
            if type(state["step"]) is int:  # else the kernels have counted it
                state["step"] += 1


def _new_steps(rule: str) -> Any:
    spec = RULES[rule]
    return _core.TableSteps(spec.number, tuple([slot.name for slot in spec.slots]))


class JointStep(_JointStep):
    """A step of fused tables that one lookup read."""

    __slots__ = ("pending",)

    def __init__(self, pending: JointPending) -> None:
        super().__init__()
        self.pending: Any = pending


class _CpuStep(JointStep):
    """A step of tables on the CPU."""

    __slots__ = ("steps", "tables")

    def prepare(self, rule: str) -> bool:
        """Return whether the kernel can update the tables; others, which may raise, step by themselves."""
        self.tables = self.pending.numbers_of(self.params)
        gradients, self.steps = self.pending.gradients, self.read(rule)
        return self.steps is not None and bool(self.steps.fit(gradients.call.kernel, gradients.at, self.tables))

    def run(self) -> None:
        """Update the tables."""
        gradients = self.pending.gradients
        if not self.steps.run(gradients.call.kernel, gradients.at, self.tables, _ORDER, _ROUNDING):
            raise make_error("out_of_memory_between")
        self.count()
        remove_pending(self.params, self.pending)


class JointRowStep(_JointStep):
    """A step of several tables with their row-sparse gradients."""

    __slots__ = ("ids", "rows", "steps")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[Tensor] = []
        self.rows: list[Tensor] = []

    def add(self, grad: Tensor) -> None:
        """Add the gradient of the last parameter."""
        self.ids.append(grad._indices())
        self.rows.append(grad._values())

    def prepare(self, rule: str) -> bool:
        """Return whether the kernel can update the tables; others, which may raise, step by themselves."""
        self.steps = self.read(rule)
        return self.steps is not None and bool(self.steps.add_rows(self.ids, self.rows))

    def step(self) -> None:
        """Run the kernel."""
        if not self.steps.run_rows():
            raise make_error("out_of_memory_between")

    def run(self) -> None:
        """Update the tables."""
        self.step()
        self.count()
        for param in self.params:
            if type(param) is FusedWeight:
                consume_stored_grad(param)


def joint_steps(optimizer: Any, cache: dict[Any, Any]) -> tuple[list[JointStep | JointRowStep], set[int]]:
    """Return the joint steps of an optimizer, and the ids of their parameters; the others step by themselves.

    Args:
        optimizer: The optimizer.
        cache: A dictionary of the optimizer, for what was validated in earlier steps.
    """
    joint: dict[Any, JointStep | JointRowStep] = {}
    index, states = -1, optimizer.state
    with DisableTorchFunctionSubclass():
        for group in optimizer.param_groups:
            numbers: dict[Any, Any] = {}
            params = group["params"]
            if group["maximize"] is not False:
                index += len(params)
                continue
            whole = _step_of_group(optimizer, group, index + 1, cache)
            if whole is not None and id(whole.pending) not in joint:
                joint[id(whole.pending)] = whole
                index += len(params)
                continue
            for param in params:
                index += 1
                own: JointStep | JointRowStep | None
                is_fused, grad = type(param) is FusedWeight, stored_grad(param)
                if is_fused and (waiting := param.rowgrad_pending):
                    if len(waiting) != 1 or not isinstance(pending := waiting[0], JointPending):
                        continue
                    if grad is not None or not is_only_optimizer(param):
                        continue
                    own = joint.get(id(pending))
                    if own is None:
                        own = joint[id(pending)] = pending.new_step()
                elif (is_fused or type(param) is Parameter) and grad is not None and _are_rows(grad, param):
                    dtype = param.dtype
                    own = joint.get(dtype)
                    if own is None:
                        own = joint[dtype] = JointRowStep()
                elif (is_fused or type(param) is Parameter) and grad is not None and devices.is_on_gpu(param):
                    if len(params) == 1 == len(optimizer.param_groups):
                        continue  # a single table gains nothing
                    from .gpu_features import TableRowStep, are_rows  # circular import

                    if not are_rows(grad, param):
                        continue
                    own = joint.get(param.device)
                    if own is None:
                        own = joint[param.device] = TableRowStep()
                else:
                    continue
                state = states[param]
                if "step" not in state:
                    optimizer._next_step(group, param, index)  # creates the state
                tensors = numbers_on_device(group, state, param)
                count = -1 if tensors.steps is not None else state["step"]
                if type(count) is not int:
                    continue
                dtype = param.dtype
                found = numbers.get((count, dtype))
                if found is None:
                    found = numbers[count, dtype] = step_numbers(optimizer, group, param, index, dtype, cache)
                if found[2]:  # stochastic rounding: parameters of one shape are rounded differently
                    found = (*found[:3], (group["seed"] + index) % 2**63, found[4])
                own.params.append(param)
                own.states.append(state)
                own.numbers.append(found)
                own.tensors.append(tensors)
                if isinstance(own, JointRowStep):
                    assert grad is not None
                    own.add(grad)
        steps = []
        for own in joint.values():
            if not own.params:
                continue
            if isinstance(own, JointStep):
                own.pending.check()
            elif len(own.params) < 2:  # a single table gains nothing
                continue
            if own.prepare(optimizer.rule):
                steps.append(own)
    return steps, {id(param) for own in steps for param in own.params}


def _step_of_group(optimizer: Any, group: Mapping[str, Any], index: int, cache: dict[Any, Any]) -> JointStep | None:
    """Return the joint step of all tables of a group; None unless a single lookup read all of them.

    This is the usual case. One list per attribute is several times faster than a loop over tables.
    """
    params, states = group["params"], optimizer.state
    if set(map(type, params)) != {FusedWeight}:
        return None
    count, waiting = len(params), [param.rowgrad_pending for param in params]
    first = waiting[0]
    if len(first) != 1 or not isinstance(pending := first[0], JointPending) or waiting.count(first) < count:
        return None
    if [len(param.rowgrad_optimizers) for param in params].count(1) < count:
        return None
    if list(map(stored_grad, params)).count(None) < count:
        return None
    if len({param.dtype for param in params}) > 1:
        return None
    own = pending.new_step()
    own.params, own.states = params, [states[param] for param in params]
    steps = [state.get("step") for state in own.states]
    if group["capturable"]:
        if None in [None if isinstance(step, Tensor) else step for step in steps]:
            return None
        own.tensors = [numbers_on_device(group, state, param) for state, param in zip(own.states, params, strict=True)]
        if own.tensors[0].steps is None:
            return None
    else:
        if type(steps[0]) is not int or steps.count(steps[0]) < count:
            return None
        own.tensors = [numbers_on_device(group, own.states[0], params[0])] * count
    numbers = step_numbers(optimizer, group, params[0], index, params[0].dtype, cache)
    if numbers[2]:  # stochastic rounding: tables are rounded differently
        return None
    own.numbers = [numbers] * count
    return own


def _are_rows(grad: Tensor, param: Tensor) -> bool:
    """Return whether a gradient consists of unique rows of a table."""
    return (
        grad.is_sparse
        and not devices.is_on_gpu(grad)
        and grad.is_cpu
        and param.ndim == 2
        and param.dtype in _FLOATS
        and grad.shape == param.shape
        and grad.is_coalesced()
        and grad.sparse_dim() == 1
    )


def step_numbers(
    optimizer: Any, group: Mapping[str, Any], param: Any, index: int, dtype: torch.dtype, cache: dict[Any, Any]
) -> tuple[Any, ...]:
    """Return a step's hyperparameters as the kernel reads them; the array at the front keeps their memory alive."""
    spec, key = RULES[optimizer.rule], ("numbers", id(group), dtype)
    options = [group[name] for name in spec.torch_options]
    tensors = numbers_on_device(group, optimizer.state[param], param)
    is_live = tensors is not ON_HOST
    if tensors.lr is not None:  # its value does not matter
        options[list(spec.torch_options).index("lr")] = None
    saved = cache.get(key)
    if saved is not None and saved[0] == options and (is_live or not spec.reads("rate")):  # `rate` depends on the step
        found: tuple[Any, ...] = saved[1]
        return found
    step = optimizer._next_step(group, param, index)
    array = np.array(step.numbers(), np.float64)
    check_range(optimizer.rule, array.tolist(), slot_dtype(_NAME[dtype]))
    found = array, int(step.lazy), int(step.stochastic_rounding), step.seed, array.ctypes.data
    if not any(isinstance(option, Tensor) for option in options):
        cache[key] = options, found
    return found
