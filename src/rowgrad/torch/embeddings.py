"""Embedding lookups of many features in many tables, each a parameter of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._catalog.spec import Aval
from .._hints import did_you_mean, unknown_option
from .._runtime.results import check_size
from ..errors import OpError, make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from . import devices, functional, gpu_features
from .bags import Bags, as_weights, check_storages, check_vector, drop_padding, in_feature, read_bags
from .feature_lookup import Batch, TableFacts, TableSet, look_up
from .fused import FusedWeight, TableModule, between_graphs, fused_lookup, needs_fused_lookup
from .row_gradient import keep_coalesced
from .saved_call import is_traced
from .tensors import new_table


@dataclass(frozen=True)
class Table:
    """The description of a table for `Embeddings`.

    Args:
        name: The name of the table. Its parameter is `<name>.weight`.
        num_embeddings: The number of rows.
        embedding_dim: The number of columns.
        combiner: "mean", "sum" or "sqrtn".
        features: The features that look up rows of this table; by default one with the table's name.
        padding_idx: A row whose ids are ignored; it starts as zeros. Negative numbers count from the end.
        initializer: A function that fills the table in place; by default a standard normal distribution.
        dtype: The dtype of the table; by default that of the module.

    >>> import rowgrad.torch as rgt
    >>> rgt.nn.Table("item", 50, 8, features=("seen", "bought")).read_by
    ('seen', 'bought')
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    combiner: str = "mean"
    features: tuple[str, ...] = ()
    padding_idx: int | None = None
    initializer: Callable[[Tensor], Any] | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for size in ("num_embeddings", "embedding_dim"):
            value = getattr(self, size)
            if isinstance(value, np.integer):
                object.__setattr__(self, size, int(value))

    @property
    def read_by(self) -> tuple[str, ...]:
        """The features, at least one."""
        return tuple(self.features) or (self.name,)


class Group:
    """Tables of one width and combiner, stacked, and the features that look up their rows."""

    def __init__(self, key: str, tables: Sequence[Table]) -> None:
        self.key = key
        self.tables = tables
        self.kind, _ = functional.check_options(tables[0].combiner, "dense")
        self.columns = tables[0].embedding_dim
        self.first: dict[str, int] = {}
        rows = 0
        for table in tables:
            self.first[table.name] = rows
            rows += table.num_embeddings
        self.rows = rows
        self.features = [f for t in tables for f in t.read_by]
        feature_tables = [t for t in tables for _ in t.read_by]
        self.feature_rows = torch.tensor([t.num_embeddings for t in feature_tables], device="cpu")
        self.feature_first = torch.tensor([self.first[t.name] for t in feature_tables], device="cpu")
        self._sizes_by_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def sizes_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the number of rows of each feature's table, and its first row in the stack, on a device."""
        if device.type == "cpu":
            return self.feature_rows, self.feature_first
        sizes = self._sizes_by_device.get(device)
        if sizes is None:
            sizes = self.feature_rows.to(device), self.feature_first.to(device)
            if not is_traced(sizes):
                self._sizes_by_device[device] = sizes
        return sizes


class TableParameter(TableModule):
    """The parameter of one table of `Embeddings`."""

    def __init__(self, table: Table, grad: str, fused: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        self.grad, self.fused = grad, fused
        self.table = table
        self.padding_idx = functional.row_number("padding_idx", table.padding_idx, table.num_embeddings)
        data = new_table(table.num_embeddings, table.embedding_dim, device, table.dtype or dtype)
        self.weight = FusedWeight(data) if fused else torch.nn.Parameter(data)
        self.reset_parameters()

    @property
    def facts(self) -> TableFacts:
        """What lookups need to know."""
        return TableFacts(self.table.combiner, -1 if self.padding_idx is None else self.padding_idx)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize the rows; the padding row is zero."""
        (self.table.initializer or torch.nn.init.normal_)(self.weight)
        if self.padding_idx is not None:
            self.weight[self.padding_idx].fill_(0)

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.table.num_embeddings}, {self.table.embedding_dim}, combiner={self.table.combiner!r}{padding}"


class Embeddings(torch.nn.Module):
    """All embedding tables of a model, looked up together: on a CPU one kernel call for all of them.

    Each table is an ordinary parameter, `<table>.weight`, with its own storage: it can have its own learning rate, be
    frozen or saved by itself.

    `forward` accepts `{feature: ids}`, where ids are anything `EmbeddingBag` accepts (a matrix, a jagged tensor), or a
    tuple (ids, offsets) or (ids, offsets, weights), all with the same number of bags; or one vector of ids with the
    offsets or lengths of all bags, feature by feature in the order of `features`; or TorchRec's KeyedJaggedTensor, with
    its weights. It returns `{feature: [bags, columns]}`.

    Args:
        tables: The tables.
        grad: The gradient for the tables, "rows" or "dense".
        fused: Sum gradients by row inside the optimizer's step; see `EmbeddingBag`.
        output: "features", or "stacked" to return one tensor [bags, features, columns] without a copy.
        include_last_offset: Required for tuples with offsets: False if offsets are where bags begin, as for
            `torch.nn.EmbeddingBag`; True if the number of ids follows, as in TorchRec and FBGEMM. The offsets of a
            vector of all ids end with their number unless this is False.
        device: Where to store the tables.
        dtype: The dtype of the tables.

    Raises:
        InvalidArgumentError: If names are not unique, or options contradict each other.

    >>> import torch, rowgrad.torch as rgt
    >>> tables = [rgt.nn.Table("user", 100, 8), rgt.nn.Table("item", 50, 8, features=("seen", "bought"))]
    >>> embeddings = rgt.nn.Embeddings(tables)
    >>> ids = torch.tensor([[1, 2], [3, 4]])
    >>> out = embeddings({"user": ids, "seen": ids, "bought": ids})
    >>> out["seen"].shape
    torch.Size([2, 8])
    >>> [name for name, _ in embeddings.named_parameters()]
    ['user.weight', 'item.weight']
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        grad: str = "rows",
        fused: bool = False,
        output: str = "features",
        include_last_offset: bool | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_tables(tables)
        if output not in ("features", "stacked"):
            raise unknown_option("output", output, ("features", "stacked"))
        self.tables = tuple(tables)
        self.grad, self.fused, self.output = grad, fused, output
        self.include_last_offset = include_last_offset
        functional.check_options("sum", grad)
        if fused and grad == "dense":
            raise make_error("fused_unfit", value="grad='dense'")
        if output == "stacked" and len({(t.embedding_dim, t.dtype) for t in tables}) > 1:
            raise make_error("bags_unfit", argument="output", value="tables of several widths or dtypes",
                             bound="tables of one width and dtype for 'stacked'")  # fmt: skip
        self._names = [table.name for table in tables]
        self._groups = [Group(table.name, [table]) for table in tables]
        self._features = features_of(self._groups)
        for table in tables:
            if not table.name or "." in table.name or hasattr(self, table.name):
                bound = "a name without dots that is not an attribute of Embeddings"
                raise make_error("bags_unfit", argument="name of a table", value=repr(table.name), bound=bound)
            self.add_module(table.name, TableParameter(table, grad, fused, device, dtype))
        facts = [self._modules[t.name].facts for t in self.tables]  # type: ignore[union-attr]
        owners = [(f, table.name) for table in self.tables for f in table.read_by]
        self._names_in_errors = gpu_features.NamesInErrors(owners)
        self._table_set = TableSet(facts, [i for i, t in enumerate(self.tables) for _ in t.read_by])

    @property
    def features(self) -> list[str]:
        """The features, in the order in which a vector of all ids contains them."""
        return list(self._features)

    def reset_parameters(self) -> None:
        """Initialize all tables again."""
        for table in self.tables:
            self._modules[table.name].reset_parameters()  # type: ignore[union-attr,operator]

    def weight(self, table: str) -> Tensor:
        """Return the parameter of a table."""
        if table not in {t.name for t in self.tables}:
            known = [t.name for t in self.tables]
            hint = did_you_mean(table, known, f"There are {', '.join(known)}.")
            raise KeyError(f"no table named {table!r}. {hint}")
        weight: Tensor = self._modules[table].weight  # type: ignore[union-attr,assignment]
        return weight

    @between_graphs
    def forward(
        self, ids: Any, offsets: Tensor | None = None, per_sample_weights: Any = None, *, lengths: Tensor | None = None
    ) -> Any:
        """Return the combined rows of every feature's bags.

        Args:
            ids: The ids, by feature or of all features; see the class.
            offsets: Where each bag of a vector of all ids begins.
            per_sample_weights: A weight for each id, in the format of `ids`.
            lengths: The number of ids of each bag of a vector of all ids, instead of `offsets`.

        Returns:
            A tensor per feature, or the stacked one.
        """
        modules: Any = self._modules
        try:
            tables: list[Any] = [modules[name]._parameters["weight"] for name in self._names]
        except KeyError:  # wrappers replace parameters by attributes
            tables = [modules[name].weight for name in self._names]
        ids, offsets, per_sample_weights = self._unpack(ids, offsets, per_sample_weights, lengths)
        if devices.is_on_gpu(tables[0]):
            result = self._lookup_on_gpu(tables, ids, offsets, per_sample_weights)
        else:
            result = self._fast_lookup(tables, ids, offsets, per_sample_weights)
        if result is not None:
            return result
        bags = read_groups(self._groups, ids, offsets, per_sample_weights, self.include_last_offset)
        rows = []
        for group, weight, facts, own in zip(self._groups, tables, self._table_set.facts, bags, strict=True):
            read = own if facts.padding < 0 else drop_padding(own, facts.padding)
            rows.append(self._lookup(group, weight, read))
        return _by_feature(self._groups, rows, self.output)

    def _lookup_on_gpu(self, tables: list[Any], ids: Any, offsets: Any, weights: Any) -> Any:
        """Look up all features in one call on a GPU; None if the ops have to do it, which also raise errors."""
        if weights is not None:
            return None
        has_end = self.include_last_offset
        if offsets is None:
            if not isinstance(ids, Mapping) or len(ids) != len(self._features):
                return None
            ids = [ids.get(f) for f in self._features]
            if has_end is None and tuple in map(type, ids):
                return None
        elif type(ids) is not Tensor or type(offsets) is not Tensor:
            return None
        found = gpu_features.look_up(self, self._names_in_errors, self._table_set, tables, ids, offsets, bool(has_end))
        if found is None:
            return None
        return found[0] if self.output == "stacked" else dict(zip(self._features, found, strict=True))

    def _unpack(self, ids: Any, offsets: Any, weights: Any, lengths: Any) -> tuple[Any, Any, Any]:
        """Return ids, offsets with their end, and weights; those of a KeyedJaggedTensor if one is passed."""
        if lengths is not None:
            offsets = _offsets_from_lengths(ids, offsets, lengths)
        elif offsets is not None and self.include_last_offset is False and isinstance(ids, Tensor):
            check_vector(ids, "ids")
            check_vector(offsets, "offsets")
            if offsets.shape[0] % len(self._features):
                raise make_error("offsets_of_open_features", argument="offsets", value=offsets.shape[0],
                                 bound=len(self._features))  # fmt: skip
            offsets = torch.cat([offsets, offsets.new_full((1,), ids.shape[0])])
        if hasattr(ids, "keys") and hasattr(ids, "weights_or_none"):
            return _read_keyed(self._features, ids, offsets, weights)
        return ids, offsets, weights

    def _fast_lookup(self, tables: list[Any], ids: Any, offsets: Any, weights: Any) -> Any:
        """Look up all features in one kernel call; None if the ops have to do it, which also raise errors."""
        batch = self._read_batch(ids, offsets, weights)
        if batch is None:
            return None
        if self.fused and torch.is_grad_enabled() and any(type(t) is not FusedWeight for t in tables):
            return None
        rows, stacked = self.grad == "rows", self.output == "stacked"
        outputs = look_up(self._table_set, tables, batch, rows=rows, fused=self.fused, stacked=stacked)
        if outputs is None:
            return None
        if rows and not self.fused and torch.is_grad_enabled():
            for weight in tables:
                if weight.requires_grad:
                    keep_coalesced(weight)
        return outputs[0] if stacked else dict(zip(self._features, outputs, strict=True))

    def _read_batch(self, ids: Any, offsets: Any, weights: Any) -> Batch | None:
        """Return the tensors of a call, unless other classes than torch's own tensors are among them."""
        if type(ids) is Tensor:
            return None if type(offsets) is not Tensor else Batch(ids, offsets, weights, True)
        if offsets is not None or not isinstance(ids, Mapping) or len(ids) != len(self._features):
            return None
        found, ends = [ids.get(f) for f in self._features], self.include_last_offset
        if not all(type(v) is tuple or type(v) is Tensor for v in found):
            found = [_read_jagged(v) for v in found]
            if ends is False and any(type(v) is tuple for v in found):
                return None  # offsets of jagged tensors have an end, those in tuples have none
            ends = True
        if weights is not None:
            if not isinstance(weights, Mapping):
                return None
            weights = [weights.get(f) for f in self._features]
        return Batch(found, None, weights, ends)

    def _lookup(self, group: Group, weight: Any, bags: Bags) -> Tensor:
        if needs_fused_lookup(self, weight):
            return fused_lookup(weight, bags, group.kind, None)
        return functional.lookup(weight, bags, group.kind, self.grad == "rows", None)

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        return f"grad={self.grad!r}, fused={self.fused}"


def _read_jagged(value: Any) -> Any:
    """Return the ids, offsets and weights of TorchRec's JaggedTensor as a tuple; other values as they are."""
    if hasattr(value, "weights_or_none") and not hasattr(value, "keys"):
        return value.values(), value.offsets(), value.weights_or_none()
    return value


def _offsets_from_lengths(ids: Any, offsets: Any, lengths: Any) -> Tensor:
    """Return the offsets of bags of these lengths, with the end."""
    if offsets is not None:
        raise make_error("bags_unfit", argument="lengths", value="a value", bound="None, because offsets are given")
    if not isinstance(ids, Tensor):
        bound = "None unless ids are a vector of all features' ids"
        raise make_error("bags_unfit", argument="lengths", value="a value", bound=bound)
    check_vector(lengths, "lengths")
    found = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=found[1:])
    return found


def group_tables(tables: Sequence[Table]) -> list[Group]:
    """Group tables by width and combiner."""
    members: dict[tuple[int, str], list[Table]] = {}
    for table in tables:
        members.setdefault((table.embedding_dim, table.combiner), []).append(table)
    return [Group(f"stacked_{combiner}_{width}", stack) for (width, combiner), stack in members.items()]


def describe_tables(tables: Sequence[Table]) -> str:
    """Return one line of text per table."""
    return "\n".join(f"{t.name}: {t.num_embeddings} × {t.embedding_dim}, {t.combiner}" for t in tables)


def features_of(groups: Sequence[Group]) -> list[str]:
    """Return all features, in the order in which a vector of all ids contains them."""
    return [f for group in groups for f in group.features]


def _by_feature(groups: Sequence[Group], group_rows: Sequence[Tensor], output: str) -> Any:
    """Return the combined rows of every table's bags in the output format of `forward`."""
    features = by_feature(groups, group_rows, "features")
    return torch.stack([features[f] for f in features_of(groups)], 1) if output == "stacked" else features


def by_feature(groups: Sequence[Group], group_rows: Sequence[Tensor], output: str) -> Any:
    """Return the combined rows of each group's bags in the output format of `forward`."""
    results = [
        rows.unflatten(0, (rows.shape[0] // len(group.features), len(group.features)))
        for group, rows in zip(groups, group_rows, strict=True)
    ]
    if output == "stacked":
        return results[0]
    features: dict[str, Tensor] = {}
    for group, result in zip(groups, results, strict=True):
        features.update(zip(group.features, result.unbind(1), strict=True))
    return features


def read_groups(
    groups: Sequence[Group], ids: Any, offsets: Any, weights: Any, include_last_offset: bool | None
) -> list[Bags]:
    """Return the bags of every group."""
    if hasattr(ids, "keys") and hasattr(ids, "weights_or_none"):
        ids, offsets, weights = _read_keyed(features_of(groups), ids, offsets, weights)
    by_name = isinstance(ids, Mapping)
    if not by_name:
        parts = _split_groups(groups, ids, offsets, weights)
    elif offsets is None:
        parts = _concatenate_groups(groups, ids, weights, include_last_offset)
    else:
        bound = "None, because every feature defines its own bags"
        raise make_error("bags_unfit", argument="offsets", value="a value", bound=bound)
    return [_stack_bags(group, *part, by_name) for group, part in zip(groups, parts, strict=True)]


def _name_feature(error: OpError, groups: Sequence[Group], offsets: Tensor, by_name: bool) -> OpError:
    """Return the error of an id with its feature and table; positions are counted in the ids that the user passed."""
    if error.key != "id_not_in_feature" or error.position is None:
        return error
    features = [(f, table.name) for group in groups for table in group.tables for f in table.read_by]
    begins = offsets[: -1 : (offsets.shape[0] - 1) // len(features)].tolist()
    number = bisect_right(begins, error.position) - 1
    feature, table = features[number]
    position = error.position - begins[number] if by_name else error.position
    return make_error(
        "id_not_in_table", feature=feature, table=repr(table), position=position, value=error.value, bound=error.bound
    )


def _split_groups(
    groups: Sequence[Group], ids: Any, offsets: Any, weights: Any
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Split a vector of all ids by group."""
    if not isinstance(ids, Tensor) or not isinstance(offsets, Tensor):
        kind = f"a tensor of {ids.ndim} dimensions without offsets" if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"ids must be a dict {{feature: ids}}, or a vector with the offsets of all bags; got {kind}")
    check_vector(ids, "ids")
    check_vector(offsets, "offsets")
    weights = _check_weights(weights, ids)
    if len(groups) == 1:
        return [(ids, offsets, weights)]
    total = len(features_of(groups))
    if (offsets.shape[0] - 1) % total:
        raise make_error("offsets_of_features", argument="offsets", value=offsets.shape[0], bound=total)
    rows = torch.cat([group.sizes_on(ids.device)[0] for group in groups])
    try:
        OPS["StackBags"](ids, offsets, rows, torch.zeros_like(rows))  # validates; errors count positions in all ids
    except OpError as error:
        raise _name_feature(error, groups, offsets, by_name=False) from None
    bags, start = (offsets.shape[0] - 1) // total, 0
    cuts = offsets[::bags].tolist() if bags else [0] * (total + 1)  # where each feature begins
    parts = []
    for group in groups:
        stop = start + len(group.features)
        begin, end, bounds = cuts[start], cuts[stop], offsets[start * bags : stop * bags + 1]
        parts.append((ids[begin:end], bounds - begin, None if weights is None else weights[begin:end]))
        start = stop
    return parts


def check_tables(tables: Sequence[Table]) -> None:
    """Raise unless names are unique and sizes are 0 or more."""
    if isinstance(tables, Table):
        raise TypeError("tables must be a list of rowgrad.torch.nn.Table, got one Table. Write [table].")
    if not tables:
        raise make_error("bags_unfit", argument="tables", value="an empty list", bound="at least one")
    for table in tables:
        if not isinstance(table, Table):
            is_row = isinstance(table, tuple | list) and len(table) > 2
            example = ", ".join(map(repr, table[:3])) if is_row else "name, num_embeddings, embedding_dim"
            kind = type(table).__name__
            raise TypeError(f"tables must contain rowgrad.torch.nn.Table, got {kind}. Write Table({example}).")
        if isinstance(table.features, str):
            argument = f"features of table {table.name!r}"
            raise make_error("bags_unfit", argument=argument, value=repr(table.features), bound="a tuple of names")
    for what, names in (("tables", [t.name for t in tables]), ("features", [f for t in tables for f in t.read_by])):
        duplicate = next((n for n in names if names.count(n) > 1), None)
        if duplicate is not None:
            raise make_error("bags_unfit", argument=what, value=f"{duplicate!r} twice", bound="unique names")
    for table in tables:
        for what in ("num_embeddings", "embedding_dim"):
            size = getattr(table, what)
            if type(size) is not int or size < 0:
                raise make_error(
                    "bags_unfit", argument=f"{what} of table {table.name!r}", value=repr(size), bound="0 or more"
                )


def _check_weights(weights: Any, ids: Tensor) -> Tensor | None:
    """Convert weights to a tensor; raise unless it has a float for every id."""
    found = as_weights(weights, ids.device)
    if found is not None and not found.dtype.is_floating_point:
        bound = "float16, bfloat16, float32, float64"
        raise make_error("dtype_not_allowed", argument="per_sample_weights", value=found.dtype, bound=bound)
    if found is not None and found.shape != ids.shape:
        shapes = tuple(found.shape), tuple(ids.shape)
        raise make_error("same_shape", argument="per_sample_weights", value=shapes[0], bound=shapes[1])
    return found


def _read_keyed(features: list[str], ids: Any, offsets: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return ids, offsets and weights of TorchRec's KeyedJaggedTensor; keys that are not features are ignored."""
    for argument, value in (("offsets", offsets), ("per_sample_weights", weights)):
        if value is not None:
            bound = "None, because the KeyedJaggedTensor has its own"
            raise make_error("bags_unfit", argument=argument, value="a value", bound=bound)
    keys = list(ids.keys())
    if not set(features) <= set(keys) or len(set(keys)) < len(keys):
        raise make_error(
            "bags_unfit", argument="ids", value=f"keys {keys}", bound=f"features {sorted(features)}, each once"
        )
    if ids.variable_stride_per_key() or ids.inverse_indices_or_none() is not None:
        value = "a KeyedJaggedTensor whose keys differ in their number of bags"
        raise make_error("bags_unfit", argument="ids", value=value, bound="the same number of bags for all features")
    if keys != features:
        return {f: ids[f] for f in features}, None, None
    bags = ids.offsets().shape[0] - 1
    if bags != ids.stride() * len(keys):
        value = f"offsets of {bags} bags"
        raise make_error(
            "bags_unfit", argument="ids", value=value, bound=f"{ids.stride()} for each of {len(keys)} keys"
        )
    return ids.values(), ids.offsets(), ids.weights_or_none()


def _concatenate_groups(
    groups: Sequence[Group], ids: Mapping[str, Any], weights: Any, include_last_offset: bool | None
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Concatenate the ids of each group's features into one vector, with the offsets of all bags."""
    features = features_of(groups)
    for argument, value in (("ids", ids), ("per_sample_weights", weights)):
        if value is not None and (not isinstance(value, Mapping) or set(value) != set(features)):
            raise _other_features(argument, value, features)
    read = {
        f: _feature_vector(f, ids[f], None if weights is None else weights[f], include_last_offset) for f in features
    }
    bags = read[features[0]][1].shape[0]
    for feature, (_, begin) in read.items():
        if begin.shape[0] != bags:
            raise make_error(
                "feature_unfit", argument=feature, value=f"{begin.shape[0]} bags, but other features have {bags}"
            )
    for group in groups:
        unweighted = [f for f in group.features if read[f][0].weights is None]
        if 0 < len(unweighted) < len(group.features):
            value = "no weights, but other features of its table have weights"
            raise make_error("feature_unfit", argument=unweighted[0], value=value)
    return [_concatenate([read[f] for f in group.features]) for group in groups]


def _other_features(argument: str, value: Any, features: list[str]) -> OpError:
    """Return the error of an argument that is not a mapping with exactly these features."""
    bound = f"features {_listed(features)}"
    if not isinstance(value, Mapping):
        return make_error("bags_unfit", argument=argument, value=type(value).__name__, bound=bound)
    missing = [f for f in features if f not in value]
    unknown = [f for f in value if f not in features]
    found = [f"{what} {_listed(names)}" for what, names in (("no", missing), ("unknown", unknown)) if names]
    advice = did_you_mean(unknown[0], missing or features) if unknown else ""
    return make_error("bags_unfit", argument=argument, value=" and ".join(found), bound=bound, advice=advice)


def _listed(names: Sequence[Any], most: int = 5) -> str:
    """Return names for a message, the first of many."""
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _concatenate(features: Sequence[tuple[Bags, Tensor]]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Concatenate the bags of several features."""
    vectors, starts, weighted, start = [], [], [], 0
    for values, begin in features:
        vectors.append(values.indices)
        starts.append(begin + start)
        start += values.indices.shape[0]
        if values.weights is not None:
            weighted.append(values.weights)
    end = torch.full((1,), start, dtype=starts[0].dtype, device=starts[0].device)
    return torch.cat(vectors), torch.cat([*starts, end]), torch.cat(weighted) if weighted else None


def _stack_bags(group: Group, ids: Tensor, offsets: Tensor, weights: Any, by_name: bool) -> Bags:
    """Return a group's bags, example by example, with ids of the stacked table."""
    sizes = group.sizes_on(ids.device)
    try:
        stacked, segments, positions = OPS["StackBags"](ids, offsets, *sizes, positions=weights is not None)
    except OpError as error:
        raise _name_feature(error, [group], offsets, by_name) from None
    if weights is not None:
        weights = OPS["GatherRows"](weights, positions, gradient="dense")
    return Bags(stacked, segments, offsets.shape[0] - 1, weights)


def _check_rows(rows: np.ndarray[Any, Any], bags: int) -> None:
    """Raise unless the rows of a SparseTensor ascend and are in range: later code only counts them."""
    falls = np.flatnonzero(rows[1:] < rows[:-1])
    if falls.size:
        at = int(falls[0]) + 1
        raise make_error("segments_not_increasing", position=at, value=int(rows[at]), bound=int(rows[at - 1]))
    for at in (0, -1) if rows.size else ():
        if not 0 <= rows[at] < bags:
            raise make_error("segment_not_in_output", position=at % rows.size, value=int(rows[at]), bound=bags)


def _feature_vector(feature: str, ids: Any, weights: Any, include_last_offset: bool | None) -> tuple[Bags, Tensor]:
    """Return a feature's ids as a vector, and where its bags begin."""
    offsets = None
    if isinstance(ids, list):  # data loaders turn tuples into lists
        expected = "a tuple (ids, offsets) or (ids, offsets, weights), or a matrix of ids"
        raise TypeError(f"feature {feature}: got a list, expected {expected}.")
    if isinstance(ids, tuple) and len(ids) == 3:
        ids, offsets, own = ids
        if own is not None and weights is not None:
            raise make_error("feature_unfit", argument=feature, value="weights in its tuple and in per_sample_weights")
        weights = weights if own is None else own
    elif isinstance(ids, tuple) and len(ids) == 2:
        ids, offsets = ids
    try:
        if offsets is not None and include_last_offset is None:
            raise make_error("offsets_with_end")
        bags = read_bags(ids, offsets, weights=weights, include_last_offset=bool(include_last_offset))
        if isinstance(ids, SparseTensor):
            _check_rows(ids.indices[:, 0], bags.num_bags)
        bags = bags._replace(weights=_check_weights(bags.weights, bags.indices))
        check_storages(bags)
    except OpError as error:
        raise in_feature(feature, error, bool(include_last_offset)) from error
    except TypeError as error:
        raise TypeError(f"feature {feature}: {error}") from error
    if offsets is not None:
        return bags, offsets[:-1] if include_last_offset else offsets
    if hasattr(ids, "weights_or_none"):
        return bags, ids.offsets()[:-1]
    if isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_nested:
        return bags, torch.arange(ids.shape[0], device=ids.device) * ids.shape[1]
    if isinstance(ids, Tensor) and ids.is_nested:
        return bags, ids.offsets()[:-1]
    check_size(Aval("int64", (bags.num_bags,)))
    counts = torch.bincount(bags.segment_ids, minlength=bags.num_bags)
    return bags, torch.cumsum(counts, 0) - counts
