"""Embedding lookups of many features in many tables; tables of one width and combiner share a stacked weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._catalog.spec import Aval
from .._runtime.results import check_size
from ..errors import OpError, make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from . import functional
from .bags import Bags, as_weights, check_storages, check_vector, read_bags
from .fused import FusedWeight, TableModule, fused_lookup, layout_of, needs_fused_lookup
from .saved_call import is_traced
from .tensors import new_table


@dataclass(frozen=True)
class Table:
    """The description of a table for `Embeddings`.

    Args:
        name: The name of the table.
        num_embeddings: The number of rows.
        embedding_dim: The number of columns.
        combiner: "mean", "sum" or "sqrtn".
        features: The features that look up rows of this table; by default one with the table's name.

    >>> import rowgrad.torch as rgt
    >>> rgt.nn.Table("item", 50, 8, features=("seen", "bought")).read_by
    ('seen', 'bought')
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    combiner: str = "mean"
    features: tuple[str, ...] = ()

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


class Embeddings(TableModule):
    """All embedding tables of a model, looked up together: one kernel call per width and combiner, not one per table.

    `forward` accepts `{feature: ids}`, where ids are anything `EmbeddingBag` accepts (a pair of vector and offsets, a
    matrix, a jagged tensor), all with the same number of bags; or one vector of ids with the offsets of all bags and
    the end, feature by feature in the order of `features`; or TorchRec's KeyedJaggedTensor, whose weights are used. It
    returns `{feature: [bags, columns]}`.

    The state dict has one entry per table, `<table>.weight`, however tables are stacked in memory.

    Args:
        tables: The tables.
        grad: The gradient for the tables, "rows" or "dense".
        fused: Sum gradients by row inside the optimizer's step; see `EmbeddingBag`.
        output: "features", or "stacked" to return one tensor [bags, features, columns] without a copy.
        include_last_offset: Required for pairs of vector and offsets: False if offsets are where bags begin, as for
            `torch.nn.EmbeddingBag`; True if the number of ids follows, as in TorchRec and FBGEMM.
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
            raise make_error("attr_not_allowed", argument="output", value=repr(output), bound="'features', 'stacked'")
        self.tables = tuple(tables)
        self.grad, self.fused, self.output = grad, fused, output
        self.include_last_offset = include_last_offset
        functional.check_options("sum", grad)
        if fused and grad == "dense":
            raise make_error("fused_unfit", value="grad='dense'")
        self._groups = group_tables(tables)
        if output == "stacked" and len(self._groups) > 1:
            raise make_error("bags_unfit", argument="output", value="tables of several widths or combiners",
                             bound="tables of one width and combiner for 'stacked'")  # fmt: skip
        for group in self._groups:
            data = new_table(group.rows, group.columns, device, dtype)
            self.register_parameter(group.key, FusedWeight(data) if fused else torch.nn.Parameter(data))
        self._restore_tables()
        self.reset_parameters()

    def _layouts(self) -> Mapping[str, dict[str, Any]]:
        stacks = {group.key: group.tables for group in self._groups if len(group.tables) > 1}
        return {key: layout_of([[t.name, t.num_embeddings] for t in tables]) for key, tables in stacks.items()}

    @property
    def features(self) -> list[str]:
        """The features, in the order in which a vector of all ids contains them."""
        return features_of(self._groups)

    def reset_parameters(self) -> None:
        """Draw rows from a standard normal distribution."""
        for group in self._groups:
            torch.nn.init.normal_(getattr(self, group.key))

    def weight(self, table: str) -> Tensor:
        """Return the rows of a table as a view."""
        for group in self._groups:
            for t in group.tables:
                if t.name == table:
                    first = group.first[table]
                    rows: Tensor = getattr(self, group.key)[first : first + t.num_embeddings]
                    return rows
        raise KeyError(f"no table named {table!r}; there are {', '.join(t.name for t in self.tables)}")

    def forward(self, ids: Any, offsets: Tensor | None = None, per_sample_weights: Any = None) -> Any:
        """Return the combined rows of every feature's bags."""
        bags = read_groups(self._groups, ids, offsets, per_sample_weights, self.include_last_offset)
        rows = [self._lookup(group, b) for group, b in zip(self._groups, bags, strict=True)]
        return by_feature(self._groups, rows, self.output)

    def _lookup(self, group: Group, bags: Bags) -> Tensor:
        weight = getattr(self, group.key)
        if needs_fused_lookup(self, weight):
            return fused_lookup(weight, bags, group.kind, None)
        return functional.lookup(weight, bags, group.kind, self.grad == "rows", None)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for group in self._groups:  # one entry per table, not per stack
            destination.pop(prefix + group.key, None)
        for table in self.tables:
            rows = self.weight(table.name)
            destination[f"{prefix}{table.name}.weight"] = rows if keep_vars else rows.detach()

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        known = {f"{prefix}{table.name}.weight": table for table in self.tables}
        missing: list[str] = []
        rest = {k: v for k, v in state_dict.items() if k not in known}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys += [k for k in missing if k not in {prefix + group.key for group in self._groups}]
        if any(getattr(self, group.key).is_meta for group in self._groups):
            error_msgs.append(f"{prefix}: tables on the meta device have no rows; call to_empty(device=...) first")
            return
        for key, table in known.items():
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            rows = self.weight(table.name)
            if not isinstance(state_dict[key], Tensor):
                error_msgs.append(f"{key} must be a tensor, got {type(state_dict[key]).__name__}")
                continue
            if tuple(state_dict[key].shape) != tuple(rows.shape):
                error_msgs.append(f"{key} must have shape {tuple(rows.shape)}, got {tuple(state_dict[key].shape)}")
                continue
            with torch.no_grad():
                try:
                    rows.copy_(state_dict[key])
                except (RuntimeError, NotImplementedError) as error:  # sparse tensors, tensors on the meta device
                    error_msgs.append(f"{key}: {error}")

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        return f"{describe_tables(self.tables)}\ngrad={self.grad!r}, fused={self.fused}"


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
    if not isinstance(ids, Mapping):
        parts = _split_groups(groups, ids, offsets, weights)
    elif offsets is None:
        parts = _concatenate_groups(groups, ids, weights, include_last_offset)
    else:
        bound = "None, because every feature defines its own bags"
        raise make_error("bags_unfit", argument="offsets", value="a value", bound=bound)
    return [_stack_bags(group, *part) for group, part in zip(groups, parts, strict=True)]


def _split_groups(
    groups: Sequence[Group], ids: Any, offsets: Any, weights: Any
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Split a vector of all ids by group."""
    if not isinstance(ids, Tensor) or not isinstance(offsets, Tensor):
        raise TypeError("ids must be a mapping by feature, or a vector with the offsets of all bags")
    check_vector(ids, "ids")
    check_vector(offsets, "offsets")
    weights = _check_weights(weights, ids)
    if len(groups) == 1:
        return [(ids, offsets, weights)]
    total = len(features_of(groups))
    if (offsets.shape[0] - 1) % total:
        raise make_error("offsets_of_features", argument="offsets", value=offsets.shape[0], bound=total)
    OPS["SegmentIdsFromOffsets"](offsets, ids.shape[0], include_last_offset=True)  # validates offsets
    bags, start = (offsets.shape[0] - 1) // total, 0
    parts = []
    for group in groups:
        bounds = offsets[start * bags : (start + len(group.features)) * bags + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        parts.append((ids[begin:end], bounds - bounds[0], None if weights is None else weights[begin:end]))
        start += len(group.features)
    return parts


def check_tables(tables: Sequence[Table]) -> None:
    """Raise unless names are unique and sizes are 0 or more."""
    if not tables:
        raise make_error("bags_unfit", argument="tables", value="an empty list", bound="at least one")
    for table in tables:
        if not isinstance(table, Table):
            raise TypeError(f"tables must be Tables, got {type(table).__name__}")
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
            got = f"features {sorted(value)}" if isinstance(value, Mapping) else type(value).__name__
            raise make_error("bags_unfit", argument=argument, value=got, bound=f"features {sorted(features)}")
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
            value = "no weights, but other features of its group have weights"
            raise make_error("feature_unfit", argument=unweighted[0], value=value)
    return [_concatenate([read[f] for f in group.features]) for group in groups]


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


def _stack_bags(group: Group, ids: Tensor, offsets: Tensor, weights: Any) -> Bags:
    """Return a group's bags, example by example, with ids of the stacked table."""
    sizes = group.sizes_on(ids.device)
    stacked, segments, positions = OPS["StackBags"](ids, offsets, *sizes, positions=weights is not None)
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
    ids, offsets = ids if isinstance(ids, tuple) and len(ids) == 2 else (ids, None)
    try:
        if offsets is not None and include_last_offset is None:
            raise make_error("offsets_with_end")
        bags = read_bags(ids, offsets, weights=weights, include_last_offset=bool(include_last_offset))
        if isinstance(ids, SparseTensor):
            _check_rows(ids.indices[:, 0], bags.num_bags)
        bags = bags._replace(weights=_check_weights(bags.weights, bags.indices))
        check_storages(bags)
    except OpError as error:
        raise make_error("feature_unfit", argument=feature, value=error.message) from error
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
