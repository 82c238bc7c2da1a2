"""Look up the bags of many features in one kernel call, and step many tables in one call; CPU only.

`Embeddings` uses it for plain tensors, and optimizers for the steps of its tables. Everything else (other devices,
tracing, torch.func, invalid arguments, derivatives of gradients) goes to the ops, which return the same bits and raise
the errors. So lookups here return None where they cannot do the job, and do not raise for an argument of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import (
    DisableTorchFunctionSubclass,
    _are_functorch_transforms_active,
    _get_tracing_state,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling
from torch.nn import Parameter

from .._catalog.enums import COMBINERS, Order, Reduction, Rounding
from .._catalog.rules import RULES, check_range, slot_dtype
from .._core import FeatureBatch, apply_rows, dtypes, feature_layout
from ..errors import make_error
from ..raw_ops import OPS
from .bag_lookup import REPLICAS, is_in_ddp
from .bags import Bags, drop_padding
from .fused import (
    FusedWeight,
    add_pending,
    bag_gradients,
    destinations,
    remove_pending,
    stored_grad,
)
from .saved_call import sparse_rows
from .tensors import DTYPE, check_storage, new_tensor

_CODE = {DTYPE[name]: code for code, name in enumerate(dtypes()) if name in DTYPE}
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_ID_WIDTH = {torch.int32: 4, torch.int64: 8}
_SLOT_DTYPE = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32,
               torch.float16: torch.float32}  # fmt: skip
_NAME = {DTYPE[name]: name for name in ("float16", "bfloat16", "float32", "float64")}
_TABLES = (Parameter, Tensor, FusedWeight)
_ORDER, _ROUNDING = int(Order.sequential), int(Rounding.at_end)  # what the ops do on a CPU


class TableFacts(NamedTuple):
    """What a lookup knows of a table besides its rows."""

    combiner: str
    padding: int = -1  # ids of this row are ignored; -1: none


class TensorList:
    """Tensors whose memory a kernel may use, as they were validated."""

    __slots__ = ("_ids", "addresses", "dtypes", "shapes", "sizes")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._ids = list(map(id, tensors))
        self.addresses = [t.data_ptr() for t in tensors]
        self.sizes = [t.untyped_storage().nbytes() for t in tensors]
        self.shapes = [t.shape for t in tensors]
        self.dtypes = [t.dtype for t in tensors]

    def is_in_place(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these are the same tensors, in the same memory, and no storage was resized."""
        with DisableTorchFunctionSubclass():  # twice as fast for fused tables, which are a subclass
            return self._is_in_place(tensors)

    def is_valid(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether nothing that was validated has changed."""
        with DisableTorchFunctionSubclass():
            return (
                self._is_in_place(tensors)
                and [t.shape for t in tensors] == self.shapes
                and False not in [t.is_contiguous() for t in tensors]
                and [t.dtype for t in tensors] == self.dtypes
            )

    def _is_in_place(self, tensors: Sequence[Tensor]) -> bool:
        return (
            list(map(id, tensors)) == self._ids
            and [t.data_ptr() for t in tensors] == self.addresses
            and [t.untyped_storage().nbytes() for t in tensors] == self.sizes
        )


class TableSet:
    """Tables that are looked up together, and the table of each feature. Validated tables are remembered."""

    __slots__ = ("_prepared", "facts", "features", "is_shared")

    def __init__(self, facts: Sequence[TableFacts], features: Sequence[int]) -> None:
        self.facts = tuple(facts)
        self.features = tuple(features)
        self.is_shared = len(set(self.features)) < len(self.features)
        self._prepared: Prepared | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TableSet, (self.facts, self.features)

    def prepare(self, tables: list[Tensor]) -> Prepared | None:
        """Return how the kernel reads these tables; None if it cannot."""
        prepared = self._prepared
        if prepared is None or not prepared.is_valid(tables):
            self._prepared = prepared = Prepared.of(self, tables)
        return prepared

    def readers(self, table: int) -> list[int]:
        """Return the features that look up rows of a table."""
        return [f for f, t in enumerate(self.features) if t == table]


class Prepared(TensorList):
    """Validated tables of one dtype, and their layout for the kernel."""

    __slots__ = ("dtype", "layout", "widths")

    dtype: torch.dtype
    layout: Any
    widths: list[int]  # of each feature

    @staticmethod
    def of(table_set: TableSet, tables: list[Tensor]) -> Prepared | None:
        """Validate tables; return None if the kernel cannot read them."""
        dtype = tables[0].dtype
        if dtype not in _FLOATS or not all(t.ndim == 2 and t.dtype == dtype and is_readable(t) for t in tables):
            return None
        found = Prepared(tables)
        found.dtype = dtype
        found.widths = [found.shapes[t][1] for t in table_set.features]
        rows = [
            (*shape, facts.padding, int(Reduction[facts.combiner]))
            for shape, facts in zip(found.shapes, table_set.facts, strict=True)
        ]
        found.layout = feature_layout(_CODE[dtype], rows, table_set.features)
        return found


class FeatureIds(NamedTuple):
    """The ids of one feature: a vector with the offsets of its bags, or a matrix with one bag per row."""

    ids: Tensor
    offsets: Tensor | None
    weights: Tensor | None
    ends: bool  # whether the last offset is the end of the last bag

    @property
    def bags(self) -> int:
        """The number of bags."""
        return self.ids.shape[0] if self.offsets is None else self.offsets.shape[0] - self.ends


class Batch(NamedTuple):
    """The ids of a call. `joined`: all features share one vector of ids, and one of offsets, with the end."""

    features: Sequence[FeatureIds]
    joined: bool
    bags: int


def is_eager() -> bool:
    """Return whether a call runs now, on the tensors themselves: torch neither traces nor transforms it."""
    return not (
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
    )


def is_readable(tensor: Tensor) -> bool:
    """Return whether a kernel can read a tensor in place: plain, contiguous, and within its storage."""
    kind = type(tensor)
    if (kind is not Tensor and kind not in _TABLES) or not tensor.is_cpu:
        return False
    try:
        if not tensor.is_contiguous() or tensor.is_neg():
            return False
        storage, address = tensor.untyped_storage(), tensor.data_ptr()
    except RuntimeError:  # sparse and nested tensors
        return False
    return address % tensor.element_size() == 0 and address + tensor.nbytes <= storage.data_ptr() + storage.nbytes()


def _readable_gradient(y: Tensor) -> Tensor:
    """Return a gradient whose columns are contiguous; rows may have any distance. Raise if its storage was resized."""
    strides = y.stride()
    if strides[-1] != 1 or y.is_neg() or y.data_ptr() % y.element_size():
        check_storage(y, "grad")
        return y.resolve_neg().clone(memory_format=torch.contiguous_format)
    if y.numel():
        last = y.storage_offset() + sum([(n - 1) * step for n, step in zip(y.shape, strides, strict=True)])
        if (last + 1) * y.element_size() > y.untyped_storage().nbytes():
            check_storage(y, "grad")
    return y


def _addresses(batch: Batch) -> list[int] | None:
    """Return the arrays of a batch as the kernel takes them: addresses, lengths and widths; None if it cannot."""
    numbers: list[int] = []
    bags, count = batch.bags, len(batch.features)
    for ids, offsets, weights, _ in batch.features[:1] if batch.joined else batch.features:
        width, weights_at = _ID_WIDTH.get(ids.dtype, 0), _NO_WEIGHTS
        if not width or not is_readable(ids):
            return None
        if weights is not None:
            if weights.shape != ids.shape or weights.dtype not in _FLOATS or not is_readable(weights):
                return None
            weights_at = weights.data_ptr() or 1, _CODE[weights.dtype]  # 0 means: without weights
        own = ids.data_ptr(), ids.nbytes // width, width
        if offsets is None:
            numbers += (*own, 0, ids.shape[1], 8, *weights_at)
            continue
        width = _ID_WIDTH.get(offsets.dtype, 0)
        if not width or offsets.ndim != 1 or ids.ndim != 1 or not is_readable(offsets):
            return None
        start = offsets.data_ptr()
        if batch.joined:
            for f in range(count):
                numbers += (*own, start + f * bags * width, bags + 1, width, *weights_at)
        else:
            numbers += (*own, start or 1, offsets.nbytes // width, width, *weights_at)
    return numbers


_NO_WEIGHTS = (0, 0)


class _Call:
    """One lookup: its ids in the kernel's own memory, and what the backward pass needs."""

    __slots__ = ("batch", "fused", "kernel", "outputs", "prepared", "rows", "stacked", "table_set")

    def __init__(self, table_set: TableSet, batch: Batch, rows: bool, fused: bool, stacked: bool) -> None:
        self.table_set = table_set
        self.batch = batch
        self.rows = rows
        self.fused = fused
        self.stacked = stacked

    def run(self, tables: list[Tensor]) -> bool:
        """Compute the outputs; return False if the ops have to do it."""
        inputs = _addresses(self.batch)
        if inputs is None:
            return False
        prepared = self.table_set.prepare(tables)
        if prepared is None:
            return False
        self.prepared = prepared
        dtype, widths, bags = prepared.dtype, prepared.widths, self.batch.bags
        count = len(widths)
        outs: list[int] = []
        if self.stacked or (bags > 0 and min(widths) == max(widths)):
            width = widths[0]
            if self.stacked:
                result = new_tensor((bags, count, width), dtype, zeros=False)
                step, stride = width, count * width
                self.outputs: Any = (result,)
            else:
                result = new_tensor((count * bags, width), dtype, zeros=False)
                step, stride = bags * width, width
                self.outputs = result.unsafe_split(bags, 0)  # not views: they may be changed in place
            address, step = result.data_ptr(), step * dtype.itemsize
            for f in range(count):
                outs += (address + f * step, stride)
        else:
            self.outputs = tuple([new_tensor((bags, width), dtype, zeros=False) for width in widths])
            for out, width in zip(self.outputs, widths, strict=True):
                outs += (out.data_ptr(), width)
        self.kernel = FeatureBatch(prepared.layout, bags)
        found: bool = self.kernel.forward(inputs, self.batch.joined, False, prepared.addresses, outs)
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
    weights = [batch.features[0].weights] if batch.joined else [x.weights for x in batch.features]
    recorded = torch.is_grad_enabled() and (
        True in [t.requires_grad for t in tables] or True in [w is not None and w.requires_grad for w in weights]
    )
    if recorded and (is_in_ddp() or (REPLICAS and any(t in REPLICAS for t in tables))):
        return None  # ranks may have to exchange gradients
    call = _Call(table_set, batch, rows, fused, stacked)
    if not call.run(tables):
        return None
    outputs: Any = call.outputs
    if recorded:
        outputs = _Lookup.apply(call, *tables, *weights)
        return outputs if type(outputs) is tuple else (outputs,)
    found: tuple[Tensor, ...] = outputs
    return found


class _Lookup(_SingleLevelFunction):
    """A recorded lookup. Its inputs are the tables, then the weights of each feature, or of all if they are joined."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        ctx.call = call
        count, batch = len(call.table_set.facts), call.batch
        tables, ctx.versions = tensors[:count], None
        ctx.tables = tables if call.fused else None
        saved = batch.features[0][:3] if batch.joined else [t for x in batch.features for t in x[:3]]
        if True in ctx.needs_input_grad[count + 1 :]:  # the gradient of weights reads the tables
            saved = (*saved, *tables)
            ctx.versions = [t._version for t in tables]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        outputs, call.outputs = call.outputs, None
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        call: _Call = ctx.call
        count = len(call.table_set.facts)
        needs = ctx.needs_input_grad[1:]
        if True in [y is not None and y.layout is not torch.strided for y in ys]:
            ys = tuple(y if y is None else y.to_dense() for y in ys)
        tables = _table_gradients(ctx, call, needs[:count], ys)
        weights: Sequence[Any] = [None] * (len(needs) - count)
        if True in needs[count:]:
            weights = _weight_gradients(ctx, call, needs[count:], _by_feature(call, ys))
        return None, *tables, *weights


def _by_feature(call: _Call, ys: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradient of each feature's output."""
    if not call.stacked:
        return ys
    return [None] * len(call.table_set.features) if ys[0] is None else ys[0].unbind(1)


def _table_gradients(ctx: Any, call: _Call, needs: Sequence[bool], ys: Sequence[Tensor | None]) -> list[Any]:
    """Return the gradient of each table; fused tables get theirs in the optimizer's step."""
    found: list[Any] = [None] * len(needs)
    if call.stacked:
        wanted = [] if ys[0] is None else [t for t, needed in enumerate(needs) if needed]
    elif None in ys:
        used = {t for t, y in zip(call.table_set.features, ys, strict=True) if y is not None}
        wanted = [t for t in sorted(used) if needs[t]]
    else:
        wanted = [t for t, needed in enumerate(needs) if needed]
    deferred: list[int] = []
    if call.fused:
        targets = destinations(ctx, [(t, ctx.tables[t]) for t in wanted])
        deferred = [t for t in wanted if targets[t] == "step"]
        wanted = [t for t in wanted if targets[t] == "autograd"]
    is_plain = all(_is_plain_gradient(y) for y in ys)
    if not is_plain:
        wanted, deferred = sorted(wanted + deferred), []
    if wanted and (torch.is_grad_enabled() or not is_plain):
        features, parts = _saved_features(ctx, call), _by_feature(call, ys)
        for t in wanted:
            found[t] = _op_gradient(call, t, features, parts)
        wanted = []
    if not wanted and not deferred:
        return found
    gradients = BagGradients(call, ys)
    if deferred:
        add_pending([(ctx.tables[t], PendingTable(gradients, t)) for t in deferred])
    if wanted:
        for t, gradient in zip(wanted, gradients.rows(wanted) if call.rows else gradients.dense(wanted), strict=True):
            found[t] = gradient
    return found


def _is_plain_gradient(y: Tensor | None) -> bool:
    return y is None or (type(y) is Tensor and y.is_cpu and y.layout == torch.strided)


def _saved_features(ctx: Any, call: _Call) -> list[FeatureIds]:
    """Return the ids of every feature, separately; torch raises if they were changed since the lookup."""
    saved, batch = ctx.saved_tensors, call.batch
    if not batch.joined:
        found = []
        for f, x in enumerate(batch.features):
            ids, offsets, weights = saved[3 * f : 3 * f + 3]
            found.append(FeatureIds(ids, offsets, weights, x.ends))
        return found
    ids, offsets, weights = saved[:3]
    split = []
    for f in range(len(call.table_set.features)):
        bounds = offsets[f * batch.bags : (f + 1) * batch.bags + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        own = None if weights is None else weights[begin:end]
        split.append(FeatureIds(ids[begin:end], bounds - begin, own, True))
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
    shape = call.prepared.shapes[table]
    bags = _bags_of_table([features[f] for f in readers], call.batch.bags, shape[0], facts.padding)
    like = next(parts[f] for f in readers if parts[f] is not None)
    assert like is not None
    own = [torch.zeros_like(like) if (y := parts[f]) is None else y for f in readers]
    y = torch.stack(own, 1).flatten(0, 1)
    weight = like.new_empty(1, dtype=call.prepared.dtype).expand(shape)  # only its shape and dtype matter
    return bag_gradients(frozenset({"data"}), weight, y, bags, COMBINERS[facts.combiner], call.rows or call.fused)[
        "data"
    ]


def _weight_gradients(
    ctx: Any, call: _Call, needs: Sequence[bool], parts: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradients of weights, made of ops."""
    if call.fused and any(t._version != v for t, v in zip(ctx.tables, ctx.versions, strict=True)):
        raise make_error("fused_changed")
    features = _saved_features(ctx, call)
    tables = ctx.saved_tensors[-len(call.table_set.facts) :]
    found: list[Tensor | None] = []
    for f, (x, t) in enumerate(zip(features, call.table_set.features, strict=True)):
        y = parts[f]
        assert x.weights is not None
        if y is None or not (call.batch.joined or needs[f]):
            found.append(None)
            continue
        facts = call.table_set.facts[t]
        bags = _bags_of_table([x], call.batch.bags, call.prepared.shapes[t][0], -1)
        weights = x.weights.reshape(-1)
        if facts.padding >= 0:  # their weights have no effect
            keep = bags.indices != facts.padding
            bags = bags._replace(indices=bags.indices[keep], segment_ids=bags.segment_ids[keep], weights=weights[keep])
        own = bag_gradients(frozenset({"weights"}), tables[t], y, bags, COMBINERS[facts.combiner], False)["weights"]
        if facts.padding >= 0:
            own = torch.zeros_like(weights).masked_scatter(keep, own)
        found.append(own.reshape(x.weights.shape))
    if not call.batch.joined:
        return found
    return [torch.cat([torch.zeros_like(x.weights) if g is None else g for g, x in zip(found, features, strict=True)])]


class BagGradients:
    """The upstream gradients of one backward pass through a lookup, from which table gradients are computed."""

    __slots__ = ("at", "call", "versions", "ys")

    def __init__(self, call: _Call, ys: Sequence[Tensor | None]) -> None:
        self.call = call
        self.at: list[int] = []  # the address and row distance of each feature's gradient
        if call.stacked:
            y = ys[0]
            assert y is not None
            y = _readable_gradient(y)
            rows, step = y.stride()[:2]
            address, step = y.data_ptr(), step * y.element_size()
            for f in range(len(call.table_set.features)):
                self.at += (address + f * step, rows)
            self.ys: list[Tensor | None] = [y]
        else:
            self.ys = []
            for t, y in zip(call.table_set.features, ys, strict=True):
                if y is None and call.table_set.is_shared:  # another feature of its table may have a gradient
                    y = torch.zeros((call.batch.bags, call.prepared.shapes[t][1]), dtype=call.prepared.dtype)
                if y is None:
                    self.at += (0, 0)
                else:
                    y = _readable_gradient(y)
                    self.at += (y.data_ptr(), y.stride(0))
                self.ys.append(y)
        self.versions = [0 if y is None else y._version for y in self.ys]

    def is_unchanged(self) -> bool:
        """Return whether the gradients are those of the backward pass."""
        return [0 if y is None else y._version for y in self.ys] == self.versions

    def rows(self, tables: Sequence[int]) -> list[Tensor]:
        """Return the row-sparse gradients of tables."""
        kernel, prepared, found = self.call.kernel, self.call.prepared, []
        counts = kernel.sort(tables)
        if len(counts) < len(tables):
            raise make_error("out_of_memory_between")
        for t, count in zip(tables, counts, strict=True):
            rows, columns = prepared.shapes[t]
            values = new_tensor((count, columns), prepared.dtype, zeros=False)
            ids = torch.empty((count,), dtype=torch.int64, device="cpu")
            if not kernel.gradient(t, self.at, _ORDER, _ROUNDING, values.data_ptr(), ids.data_ptr() or 1):
                raise make_error("out_of_memory_between")
            found.append(sparse_rows(values, ids, rows, True))
        return found

    def dense(self, tables: Sequence[int]) -> list[Tensor]:
        """Return the dense gradients of tables."""
        kernel, prepared, found = self.call.kernel, self.call.prepared, []
        if len(kernel.sort(tables)) < len(tables):
            raise make_error("out_of_memory_between")
        for t in tables:
            table = new_tensor(prepared.shapes[t], prepared.dtype, zeros=True)
            if not kernel.gradient(t, self.at, _ORDER, _ROUNDING, table.data_ptr(), 0):
                raise make_error("out_of_memory_between")
            found.append(table)
        return found


class PendingTable:
    """The gradient of one fused table that is not yet summed by row; see `fused.Pending`."""

    __slots__ = ("gradients", "table")

    def __init__(self, gradients: BagGradients, table: int) -> None:
        self.gradients = gradients
        self.table = table

    def check(self) -> None:
        """Raise if the gradient was overwritten after backward."""
        if not self.gradients.is_unchanged():
            raise make_error("fused_overwritten")

    def rows(self, weight: Any) -> Tensor:
        """Return the row-sparse gradient."""
        return self.gradients.rows([self.table])[0]

    def update(self, weight: Any, optimizer: Any) -> Iterator[None]:
        """Validate, yield, then step the table by itself."""
        yield from optimizer._iter_update_from_grad(weight, self.rows(weight))


class JointStep:
    """A step of fused tables that one lookup read: one kernel call."""

    __slots__ = ("gradients", "numbers", "params", "pendings", "states", "steps")

    def __init__(self, gradients: BagGradients) -> None:
        self.gradients = gradients
        self.params: list[FusedWeight] = []
        self.pendings: list[PendingTable] = []
        self.states: list[dict[str, Any]] = []
        self.numbers: list[tuple[Any, ...]] = []  # of each table; see `_numbers`
        self.steps: list[int] = []

    def prepare(self, rule: str, cache: dict[Any, Any]) -> bool:
        """Put the kernel's arguments together; return False if tables or slots cannot be updated in place."""
        prepared, spec = self.gradients.call.prepared, RULES[rule]
        tensors: list[Tensor] = list(self.params)
        tables = [pending.table for pending in self.pendings]
        for slot in spec.slots:
            name = slot.name
            tensors += [state[name] for state in self.states]
        valid = cache.get(id(prepared))
        if valid is None or valid[0] is not prepared or not valid[1].is_in_place(tensors):
            with DisableTorchFunctionSubclass():
                if not all(map(is_readable, tensors)):
                    return False
            valid = prepared, TensorList(tensors)
            if not _fit(valid[1], prepared, tables, spec):
                return False
            if len(cache) > 64:
                cache.clear()
            cache[id(prepared)] = valid
        addresses, count = valid[1].addresses, len(tables)
        slots = [addresses[count * (k + 1) : count * (k + 2)] or [0] * count for k in range(2)]
        steps, number = self.steps, spec.number
        for table, address, first, second, numbers, state in zip(
            tables, addresses, *slots, self.numbers, self.states, strict=False
        ):
            _, lazy, random, seed, at = numbers
            steps += (table, address, first, second, number, lazy, random, seed, state["step"] + 1, at)
        # Tables whose memory overlaps are left to their own steps, which raise.
        return not self.gradients.call.kernel.overlaps(steps, self.gradients.at)

    def run(self) -> None:
        """Update the tables."""
        if not self.gradients.call.kernel.update(self.steps, self.gradients.at, _ORDER, _ROUNDING):
            raise make_error("out_of_memory_between")
        increment_version(self.params)  # so that autograd rejects tensors it saved before
        remove_pending(zip(self.params, self.pendings, strict=True))
        for state in self.states:
            state["step"] += 1


def _fit(found: TensorList, prepared: Prepared, tables: Sequence[int], spec: Any) -> bool:
    """Return whether tables are those of the lookup, and slots have the rule's shapes and dtypes."""
    count, dtype = len(tables), _SLOT_DTYPE[prepared.dtype]
    if found.addresses[:count] != [prepared.addresses[t] for t in tables] or found.dtypes[:count] != (
        [prepared.dtype] * count
    ):
        return False
    shapes = [prepared.shapes[t] for t in tables]
    expected = [*shapes]
    for slot in spec.slots:
        expected += [shape[:1] for shape in shapes] if slot.per_row else shapes
    return found.shapes == expected and all(d == dtype for d in found.dtypes[count:])


class JointRowStep:
    """A step of several tables of one dtype with their row-sparse gradients: one kernel call."""

    __slots__ = ("_arrays", "_dtype", "_gradients", "_steps", "params", "states")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.params: list[Tensor] = []
        self.states: list[dict[str, Any]] = []
        self._steps: list[int] = []
        self._gradients: list[Tensor] = []  # keeps them alive
        self._arrays: list[Any] = []

    def add(self, rule: str, param: Tensor, state: dict[str, Any], grad: Tensor, numbers: tuple[Any, ...]) -> bool:
        """Add a table; return False if it has to step by itself."""
        ids, rows, shape, spec = grad._indices(), grad._values(), param.shape, RULES[rule]
        if ids.dtype is not torch.int64 or rows.dtype is not self._dtype or rows.shape[1:] != shape[1:]:
            return False
        slots = [0, 0]
        for k, slot in enumerate(spec.slots):
            tensor = state[slot.name]
            if type(tensor) is not Tensor or tensor.dtype is not _SLOT_DTYPE[self._dtype] or not is_readable(tensor):
                return False
            if tensor.shape != (shape[:1] if slot.per_row else shape):
                return False
            slots[k] = tensor.data_ptr()
        if not (is_readable(param) and is_readable(ids) and is_readable(rows)):
            return False
        array, lazy, random, seed, at = numbers
        self._steps += (
            *shape, param.data_ptr(), *slots, spec.number, lazy, random, seed, state["step"] + 1, at, ids.data_ptr(),
            rows.data_ptr(), rows.shape[0],
        )  # fmt: skip
        self.params.append(param)
        self.states.append(state)
        self._gradients += (ids, rows)
        self._arrays.append(array)
        return True

    def is_valid(self) -> bool:
        """Return whether ids ascend and are in range, and no memory overlaps; the tables are not changed."""
        return apply_rows(_CODE[self._dtype], self._steps, True) == ""

    def run(self) -> None:
        """Update the tables."""
        if apply_rows(_CODE[self._dtype], self._steps, False):
            raise make_error("out_of_memory_between")
        increment_version(self.params)  # so that autograd rejects tensors it saved before
        for state in self.states:
            state["step"] += 1


def joint_row_steps(optimizer: Any, cache: dict[Any, Any]) -> tuple[list[JointRowStep], set[int]]:
    """Return joint steps of the tables with row-sparse gradients, and the ids of these parameters."""
    joint: dict[torch.dtype, JointRowStep] = {}
    index, states = -1, optimizer.state
    with DisableTorchFunctionSubclass():  # gradients are of a subclass
        for group in optimizer.param_groups:
            numbers: dict[Any, Any] = {}
            is_plain = group["maximize"] is False and group["capturable"] is False
            for param in group["params"]:
                index += 1
                if not is_plain or type(param) is not Parameter:
                    continue
                grad = param.grad
                if (
                    grad is None
                    or not grad.is_sparse
                    or not grad.is_cpu
                    or param.ndim != 2
                    or grad.shape != param.shape
                ):
                    continue
                dtype = param.dtype
                if dtype not in _FLOATS or not grad.is_coalesced() or grad.sparse_dim() != 1:
                    continue
                state = states[param]
                if "step" not in state:
                    optimizer._next_step(group, param, index)  # creates the state
                count = state["step"]
                if type(count) is not int:
                    continue
                found = numbers.get((count, dtype))
                if found is None:
                    found = numbers[count, dtype] = _numbers(optimizer, group, param, index, dtype, cache)
                if found[2]:
                    found = (*found[:3], (group["seed"] + index) % 2**63, found[4])
                joint.setdefault(dtype, JointRowStep(dtype)).add(optimizer.rule, param, state, grad, found)
    # A single table gains nothing, and tables with an error raise in their own steps.
    steps = [own for own in joint.values() if len(own.params) > 1 and own.is_valid()]
    return steps, {id(param) for own in steps for param in own.params}


def joint_steps(optimizer: Any, cache: dict[Any, Any]) -> tuple[list[JointStep], set[int]]:
    """Return the joint steps of an optimizer, and the ids of their parameters; the others step by themselves.

    Args:
        optimizer: The optimizer.
        cache: A dictionary of the optimizer, for what was validated in earlier steps.
    """
    joint: dict[int, JointStep] = {}
    index, states = -1, optimizer.state
    with DisableTorchFunctionSubclass():
        for group in optimizer.param_groups:
            numbers: dict[Any, Any] = {}
            is_plain = group["maximize"] is False and group["capturable"] is False
            for param in group["params"]:
                index += 1
                if type(param) is not FusedWeight or not is_plain:
                    continue
                waiting = param.rowgrad_pending
                if len(waiting) != 1 or type(pending := waiting[0]) is not PendingTable:
                    continue
                if stored_grad(param) is not None or len(param.rowgrad_optimizers) != 1:
                    continue
                gradients, state = pending.gradients, states[param]
                if "step" not in state:
                    optimizer._next_step(group, param, index)  # creates the state
                count = state["step"]
                if type(count) is not int:
                    continue
                own = joint.get(id(gradients))
                if own is None:
                    own = joint[id(gradients)] = JointStep(gradients)
                key = count, gradients.call.prepared.dtype
                found = numbers.get(key)
                if found is None:
                    found = numbers[key] = _numbers(optimizer, group, param, index, key[1], cache)
                if found[2]:  # stochastic rounding: parameters of one shape are rounded differently
                    found = (*found[:3], (group["seed"] + index) % 2**63, found[4])
                own.params.append(param)
                own.pendings.append(pending)
                own.states.append(state)
                own.numbers.append(found)
    steps = []
    for own in joint.values():
        own.pendings[0].check()
        if own.prepare(optimizer.rule, cache):
            steps.append(own)
    return steps, {id(param) for own in steps for param in own.params}


def _numbers(
    optimizer: Any, group: Mapping[str, Any], param: Any, index: int, dtype: torch.dtype, cache: dict[Any, Any]
) -> tuple[Any, ...]:
    """Return a step's hyperparameters as the kernel reads them; the array at the front keeps their memory alive."""
    spec, key = RULES[optimizer.rule], ("numbers", id(group), dtype)
    options = [group[name] for name in spec.torch_options]
    saved = cache.get(key)
    if saved is not None and saved[0] == options and not spec.reads("rate"):  # `rate` depends on the step
        found: tuple[Any, ...] = saved[1]
        return found
    step = optimizer._next_step(group, param, index)
    array = np.array(step.numbers(), np.float64)
    check_range(optimizer.rule, array.tolist(), slot_dtype(_NAME[dtype]))
    found = array, int(step.lazy), int(step.stochastic_rounding), step.seed, array.ctypes.data
    if not any(isinstance(option, Tensor) for option in options):
        cache[key] = options, found
    return found
