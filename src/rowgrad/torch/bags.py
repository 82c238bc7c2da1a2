"""Read ids as bags: from tensors, nested and jagged tensors, and sparse tensors.

`rowgrad._runtime.bags` has the rules that JAX shares.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._catalog.spec import Aval
from .._runtime import bags as shared
from .._runtime.arrays import as_array
from .._runtime.bags import Bags as Bags
from .._runtime.results import check_size
from ..errors import OpError, make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from .tensors import NAME, check_storage, from_numpy, is_batched, tensor_expected

_INTEGERS = (torch.int32, torch.int64)
_LARGE = 1 << 28  # elements; larger matrices are checked against memory


class _Torch:
    """torch's side of `rowgrad._runtime.bags.Library`."""

    def integers(self, value: Any, argument: str) -> Tensor:
        """Return the tensor; raise unless it is a strided or nested tensor of int32 or int64."""
        if not isinstance(value, Tensor):
            raise tensor_expected(argument, value)
        if value.layout != torch.strided and not value.is_nested:
            raise _not_strided(value, argument)
        if value.dtype not in _INTEGERS:
            raise shared.ids_dtype(argument, value.dtype)
        return value

    def segments(self, segment_ids: Any, ids: Tensor) -> Tensor:
        """Return a vector of segment ids. The op compares its length with that of the ids, which may be symbolic."""
        vector: Tensor = shared.read_vector(self, segment_ids, "segment_ids")
        return vector

    def count_bags(self, segment_ids: Tensor) -> int:
        """Return the last segment id plus one; 0 without ids."""
        reject_batched("segment_ids", segment_ids, "pass num_bags")
        check_storage(segment_ids, "segment_ids")
        return int(segment_ids[-1]) + 1 if segment_ids.shape[0] else 0

    def flatten(self, matrix: Tensor, argument: str) -> Tensor:
        """Return a vector. Check the storage first: torch's reshape ignores that it was resized."""
        check_storage(matrix, argument)
        return matrix.reshape(-1)

    def matrix_segments(self, ids: Tensor) -> Tensor:
        """Return the row of every element."""
        bags, length = ids.shape
        if not torch.compiler.is_compiling() and bags * length >= _LARGE:  # an expanded matrix uses little memory
            check_size(Aval(NAME[ids.dtype], (bags, length)))
        rows = torch.arange(bags, dtype=ids.dtype, device=ids.device)
        return rows.repeat_interleave(length, output_size=bags * length)

    def sparse_rows(self, ids: shared.SparseIds, values: Tensor) -> Tensor:
        """Return the rows on the device of the values."""
        rows = ids.indices[:, 0]
        return (rows if isinstance(rows, Tensor) else torch.from_numpy(rows.copy())).to(values.device)

    def weights(self, weights: Any, ids: Tensor) -> Tensor | None:
        """Return weights on the device of the ids."""
        return as_weights(weights, ids.device)

    def select_weights(self, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the selected weights."""
        return weights[mask]

    def fill_weights(self, bags: Bags) -> Tensor:
        """Return the weights with 1 in each empty bag."""
        one = torch.ones((), dtype=bags.weights.dtype, device=bags.weights.device)
        filled: Tensor = OPS["RaggedFillEmptyRows"](bags.segment_ids, bags.weights, bags.num_bags, one).output_values
        return filled


LIBRARY = _Torch()


def read_bags(
    ids: Any,
    offsets: Any = None,
    *,
    segment_ids: Any = None,
    num_bags: Any = None,
    weights: Any = None,
    include_last_offset: bool = False,
) -> Bags:
    """Return the bags of any ids that `EmbeddingBag` accepts."""
    if isinstance(weights, SparseTensor):
        bags = read_bags(ids, offsets, segment_ids=segment_ids, num_bags=num_bags, weights=weights.values,
                         include_last_offset=include_last_offset)  # fmt: skip
        shared.check_sparse_weights(weights, ids if isinstance(ids, SparseTensor) else None, bags)
        return bags
    if hasattr(ids, "weights_or_none"):
        return _read_jagged(ids, offsets, segment_ids, num_bags, weights)
    if isinstance(ids, SparseTensor):
        ids = SparseTensor.of(ids.indices, _as_tensor(ids.values, "ids", None), ids.shape)
        return shared.read_sparse(LIBRARY, ids, offsets, segment_ids, num_bags, weights)
    if not isinstance(ids, Tensor):
        raise tensor_expected("ids", ids, "a tensor or a SparseTensor")
    weights = as_weights(weights, ids.device)
    if ids.is_nested:
        return _read_nested(ids, offsets, segment_ids, num_bags, weights)
    LIBRARY.integers(ids, "ids")
    return shared.read_bags(LIBRARY, OPS, ids, offsets, segment_ids, num_bags, weights, include_last_offset)


def check_vector(tensor: Any, argument: str) -> None:
    """Raise unless this is a vector of int32 or int64."""
    shared.read_vector(LIBRARY, tensor, argument)


def as_weights(weights: Any, device: torch.device) -> Tensor | None:
    """Return weights as a strided tensor; lists and NumPy arrays are moved to the device."""
    if weights is None:
        return None
    tensor = _as_tensor(weights, "per_sample_weights", device)
    if tensor.layout != torch.strided and not tensor.is_nested:
        raise _not_strided(tensor, "per_sample_weights")
    return tensor


def _not_strided(tensor: Tensor, argument: str) -> Exception:
    return make_error("not_an_array", argument=argument, value=f"a {tensor.layout} tensor; pass a strided one")


def _as_tensor(value: Any, argument: str, device: torch.device | None) -> Tensor:
    return value if isinstance(value, Tensor) else from_numpy(as_array(value, argument), argument).to(device)


def _read_nested(ids: Tensor, offsets: Any, segment_ids: Any, num_bags: Any, weights: Any) -> Bags:
    """Return the bags of a nested tensor of layout torch.jagged."""
    shared.check_alone(offsets, segment_ids, "a nested tensor")
    if ids.layout != torch.jagged:
        raise make_error(
            "bags_unfit", argument="ids", value=f"a nested tensor of layout {ids.layout}", bound="torch.jagged"
        )
    if ids.ndim != 2 or ids._lengths is not None:
        raise make_error(
            "bags_unfit", argument="ids", value="another nested tensor", bound="a nested tensor of bags without holes"
        )
    values, starts = ids.values(), ids.offsets()
    if weights is not None and weights.is_nested:
        weights = _nested_values(weights, starts)
    LIBRARY.integers(values, "ids")
    return shared.read_offsets(LIBRARY, OPS, values, starts, num_bags, weights, True)


def _read_jagged(ids: Any, offsets: Any, segment_ids: Any, num_bags: Any, weights: Any) -> Bags:
    """Return the bags of TorchRec's JaggedTensor: values, offsets with the end, perhaps weights."""
    shared.check_alone(offsets, segment_ids, "a JaggedTensor")
    if hasattr(ids, "keys"):
        raise make_error("bags_unfit", argument="ids", value="a KeyedJaggedTensor", bound="the JaggedTensor of one key")
    own_weights = ids.weights_or_none()
    if own_weights is not None and weights is not None:
        bound = "None, because the JaggedTensor has weights"
        raise make_error("bags_unfit", argument="per_sample_weights", value="a value", bound=bound)
    values = LIBRARY.integers(ids.values(), "ids")
    weights = as_weights(weights if own_weights is None else own_weights, values.device)
    return shared.read_offsets(LIBRARY, OPS, values, ids.offsets(), num_bags, weights, True)


def _nested_values(weights: Tensor, starts: Tensor) -> Tensor:
    """Return the values of nested weights; raise unless their bags begin where those of the ids do."""
    facts: dict[str, Any] = {"argument": "per_sample_weights", "bound": "the same bags as ids"}
    if weights.layout != torch.jagged or weights.ndim != 2 or weights._lengths is not None:
        raise make_error("bags_unfit", value="another nested tensor", **facts)
    bounds = weights.offsets()
    if bounds is starts:
        return weights.values()
    if bounds.shape != starts.shape:
        raise make_error("bags_unfit", value=f"{bounds.shape[0] - 1} bags, but ids have {starts.shape[0] - 1}", **facts)
    if torch.compiler.is_compiling():
        torch._assert_async((bounds == starts).all(), "per_sample_weights must have the same bags as ids")
        return weights.values()
    check_storage(bounds, "per_sample_weights")
    check_storage(starts, "ids")
    differ = torch.nonzero(bounds != starts)
    if len(differ):
        bag = int(differ[0]) - 1
        lengths = [int(o[bag + 1] - o[bag]) for o in (bounds, starts)]
        raise make_error("bags_unfit", value=f"{lengths[0]} weights in bag {bag}, but ids have {lengths[1]}", **facts)
    return weights.values()


def reject_batched(argument: str, tensor: Tensor, bound: str) -> None:
    """Raise if torch.func.vmap batches a tensor whose values decide a size."""
    if not torch.compiler.is_compiling() and is_batched(tensor):
        raise make_error("batch_unfit", argument=argument, bound=bound)


def check_storages(bags: Bags) -> None:
    """Raise if a storage was resized, before torch's own operations read it: they do not check."""
    check_storage(bags.indices, "ids")
    check_storage(bags.segment_ids, "segment_ids")
    if bags.weights is not None:
        check_storage(bags.weights, "per_sample_weights")


def drop_padding(bags: Bags, padding_idx: int) -> Bags:
    """Return the bags without the ids that equal `padding_idx`."""
    shared.check_lengths(bags)
    reject_batched("ids", bags.indices, "padding_idx determines how many are looked up")
    check_storages(bags)
    return shared.select_ids(LIBRARY, bags, bags.indices != padding_idx)


def fill_empty_bags(bags: Bags, default_id: int) -> Bags:
    """Return the bags with `default_id`, of weight 1, in each empty bag."""
    shared.check_lengths(bags)
    default = torch.tensor(default_id, dtype=bags.indices.dtype, device=bags.indices.device)
    return shared.fill_empty_bags(LIBRARY, OPS, bags, default)


def in_feature(feature: str, error: OpError, ends: bool) -> OpError:
    """Return the error of one feature's ids or offsets; `ends`: whether offsets have to end with the number of ids."""
    facts: dict[str, Any] = {
        "argument": error.argument,
        "position": error.position,
        "value": error.value,
        "bound": error.bound,
    }
    advice = error.advice
    if error.key == "offsets_end" and ends:
        advice = "If your offsets have no end, construct the module with include_last_offset=False."
    return make_error("in_feature", feature=feature, text=error.explanation, advice=advice, **facts)
