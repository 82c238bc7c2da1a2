"""What a lookup module may be given as ids, brought to one form: ids, the bag of each, and how many bags."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._catalog.spec import Aval
from .._runtime.arrays import as_array
from .._runtime.results import check_size
from ..errors import make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from .tensors import NAME, check_storage, from_numpy, is_batched

_INTEGERS = (torch.int32, torch.int64)
_MANY = 1 << 28


class Bags(NamedTuple):
    """Ids, the bag of each, how many bags there are, and a number for every id where one is given."""

    indices: Tensor
    segment_ids: Tensor
    num_bags: Any
    weights: Tensor | None = None


def read_bags(
    ids: Any,
    offsets: Any = None,
    *,
    segment_ids: Any = None,
    num_bags: Any = None,
    weights: Any = None,
    include_last_offset: bool = False,
) -> Bags:
    """Bags out of any of the forms `EmbeddingBag` takes."""
    if isinstance(weights, SparseTensor):
        bags = read_bags(ids, offsets, segment_ids=segment_ids, num_bags=num_bags, weights=weights.values,
                         include_last_offset=include_last_offset)  # fmt: skip
        _check_alike(weights, ids, bags)
        return bags
    if hasattr(ids, "weights_or_none"):
        return _of_jagged(ids, offsets, segment_ids, num_bags, weights)
    if isinstance(ids, SparseTensor):
        return _of_sparse(ids, offsets, segment_ids, num_bags, weights)
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids must be a tensor or a SparseTensor, got {type(ids).__name__}")
    weights = numbers(weights, ids.device)
    if ids.is_nested:
        return _of_nested(ids, offsets, segment_ids, num_bags, weights)
    _check_integers(ids, "ids")
    if ids.ndim == 2:
        _check_count(num_bags, ids.shape[0], "the rows of ids")
        return _of_matrix(ids, offsets, segment_ids, weights)
    if ids.ndim != 1:
        raise make_error("bags_unfit", argument="ids", value=f"{ids.ndim} dimensions", bound="1 or 2")
    if (offsets is None) == (segment_ids is None):
        value = "none, and no segment_ids" if offsets is None else "segment_ids beside them"
        raise make_error("bags_unfit", argument="offsets", value=value,
                         bound="either offsets or segment_ids for ids of one dimension")  # fmt: skip
    if segment_ids is None:
        return _of_offsets(ids, offsets, include_last_offset, num_bags, weights)
    check_vector(segment_ids, "segment_ids")
    if num_bags is None:
        refuse_batched("segment_ids", segment_ids, "pass num_bags")
        check_storage(segment_ids, "segment_ids")
        num_bags = int(segment_ids[-1]) + 1 if segment_ids.shape[0] else 0
    return Bags(ids, segment_ids, num_bags, weights)


def _check_integers(tensor: Any, argument: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{argument} must be a tensor, got {type(tensor).__name__}")
    _check_dense(tensor, argument)
    if tensor.dtype not in _INTEGERS:
        raise make_error("dtype_not_allowed", argument=argument, value=tensor.dtype, bound="int32, int64")


def _check_dense(tensor: Tensor, argument: str) -> None:
    if tensor.layout != torch.strided and not tensor.is_nested:
        raise make_error("not_an_array", argument=argument, value=f"a {tensor.layout} tensor; pass a strided one")


def check_vector(tensor: Any, argument: str) -> None:
    """Refuse all but integers in one dimension."""
    _check_integers(tensor, argument)
    if tensor.ndim != 1:
        raise make_error("bags_unfit", argument=argument, value=f"{tensor.ndim} dimensions", bound="1")


def _check_count(num_bags: Any, bags: Any, why: str) -> None:
    if num_bags is not None and num_bags != bags:
        raise make_error("bags_unfit", argument="num_bags", value=num_bags, bound=f"{bags}, {why}")


def _alone(offsets: Any, segment_ids: Any, what: str) -> None:
    for argument, given in (("offsets", offsets), ("segment_ids", segment_ids)):
        if given is not None:
            bound = f"None, because {what} defines its own bags"
            raise make_error("bags_unfit", argument=argument, value="a value", bound=bound)


def numbers(weights: Any, device: torch.device) -> Tensor | None:
    """Weights as a tensor; lists and arrays go where the ids are."""
    if weights is None:
        return None
    found = _as_tensor(weights, "per_sample_weights", device)
    _check_dense(found, "per_sample_weights")
    return found


def _as_tensor(found: Any, argument: str, device: torch.device | None) -> Tensor:
    return found if isinstance(found, Tensor) else from_numpy(as_array(found, argument), argument).to(device)


def _of_offsets(ids: Tensor, offsets: Any, closed: bool, num_bags: Any, weights: Any) -> Bags:
    check_vector(offsets, "offsets")
    bags = offsets.shape[0] - (1 if closed else 0)
    _check_count(num_bags, bags, "as offsets say")
    options = {"include_last_offset": True} if closed else {}
    segments = OPS["SegmentIdsFromOffsets"](offsets, ids.shape[0], **options)
    return Bags(ids, segments, bags, weights)


def _of_matrix(ids: Tensor, offsets: Any, segment_ids: Any, weights: Any) -> Bags:
    _alone(offsets, segment_ids, "a matrix of ids")
    check_storage(ids, "ids")
    bags, length = ids.shape
    if not torch.compiler.is_compiling() and bags * length >= _MANY:  # an expanded matrix has no memory for its ids
        check_size(Aval(NAME[ids.dtype], (bags, length)))
    if weights is not None and tuple(weights.shape) != (bags, length):
        raise make_error("same_shape", argument="per_sample_weights", value=tuple(weights.shape), bound=(bags, length))
    if weights is not None:
        check_storage(weights, "per_sample_weights")
    segments = torch.arange(bags, dtype=ids.dtype, device=ids.device).repeat_interleave(
        length, output_size=bags * length
    )
    return Bags(ids.reshape(-1), segments, bags, None if weights is None else weights.reshape(-1))


def _of_nested(ids: Tensor, offsets: Any, segment_ids: Any, num_bags: Any, weights: Any) -> Bags:
    _alone(offsets, segment_ids, "a nested tensor")
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
        weights = _values_alike(weights, starts)
    _check_integers(values, "ids")
    return _of_offsets(values, starts, True, num_bags, weights)


def _of_jagged(ids: Any, offsets: Any, segment_ids: Any, num_bags: Any, weights: Any) -> Bags:
    """TorchRec's JaggedTensor: values, offsets with the end, perhaps weights."""
    _alone(offsets, segment_ids, "a JaggedTensor")
    if hasattr(ids, "keys"):
        raise make_error("bags_unfit", argument="ids", value="a KeyedJaggedTensor", bound="the JaggedTensor of one key")
    own = ids.weights_or_none()
    if own is not None and weights is not None:
        bound = "None, because the JaggedTensor has weights"
        raise make_error("bags_unfit", argument="per_sample_weights", value="a value", bound=bound)
    values = ids.values()
    _check_integers(values, "ids")
    return _of_offsets(values, ids.offsets(), True, num_bags, numbers(weights if own is None else own, values.device))


def _values_alike(weights: Tensor, starts: Tensor) -> Tensor:
    """The values of nested weights whose bags begin where those of the ids do."""
    facts: dict[str, Any] = {"argument": "per_sample_weights", "bound": "the same bags as ids"}
    if weights.layout != torch.jagged or weights.ndim != 2 or weights._lengths is not None:
        raise make_error("bags_unfit", value="another nested tensor", **facts)
    own = weights.offsets()
    if own is starts:
        return weights.values()
    if own.shape != starts.shape:
        raise make_error("bags_unfit", value=f"{own.shape[0] - 1} bags, but ids have {starts.shape[0] - 1}", **facts)
    if torch.compiler.is_compiling():
        torch._assert_async((own == starts).all(), "per_sample_weights: its bags have other lengths than those of ids")
        return weights.values()
    check_storage(own, "per_sample_weights")
    check_storage(starts, "ids")
    differ = torch.nonzero(own != starts)
    if len(differ):
        bag = int(differ[0]) - 1
        lengths = [int(o[bag + 1] - o[bag]) for o in (own, starts)]
        raise make_error("bags_unfit", value=f"{lengths[0]} weights in bag {bag}, but ids have {lengths[1]}", **facts)
    return weights.values()


def _of_sparse(ids: SparseTensor, offsets: Any, segment_ids: Any, num_bags: Any, weights: Any) -> Bags:
    _alone(offsets, segment_ids, "a SparseTensor")
    if len(ids.dense_shape) < 1:
        raise make_error("dense_shape_empty")
    bags = int(ids.dense_shape[0])
    _check_count(num_bags, bags, "as dense_shape says")
    values = _as_tensor(ids.values, "ids", None)
    rows = torch.from_numpy(ids.indices[:, 0].copy()).to(values.device)
    _check_integers(values, "ids")
    return Bags(values, rows, bags, numbers(weights, values.device))


def refuse_batched(argument: str, tensor: Tensor, bound: str) -> None:
    """Reject ids that torch.func.vmap batches where sizes depend on them."""
    if not torch.compiler.is_compiling() and is_batched(tensor):
        raise make_error("batch_unfit", argument=argument, bound=bound)


def check_storages(bags: Bags) -> None:
    """Raise where a storage was resized, before torch's own operations read it: they do not notice."""
    check_storage(bags.indices, "ids")
    check_storage(bags.segment_ids, "segment_ids")
    if bags.weights is not None:
        check_storage(bags.weights, "per_sample_weights")


def _check_alike(weights: SparseTensor, ids: Any, bags: Bags) -> None:
    """Weights in a SparseTensor stand where the ids do: at the same places, or at least in the same bags."""
    facts: dict[str, Any] = {
        "argument": "per_sample_weights",
        "value": "a SparseTensor of other rows",
        "bound": "the same bags as ids",
    }
    if isinstance(ids, SparseTensor):
        alike = np.array_equal(weights.dense_shape, ids.dense_shape) and np.array_equal(weights.indices, ids.indices)
        facts |= {"value": "a SparseTensor of other indices", "bound": "the indices of ids"}
    else:
        rows = bags.segment_ids.cpu().numpy()
        alike = weights.shape[:1] == (bags.num_bags,) and np.array_equal(weights.indices[:, 0], rows)
    if not alike:
        raise make_error("bags_unfit", **facts)


def without_padding(bags: Bags, padding_idx: int) -> Bags:
    """The bags without the ids that only fill space."""
    if bags.weights is not None and bags.weights.shape != bags.indices.shape:
        raise make_error("same_shape", argument="per_sample_weights", value=tuple(bags.weights.shape),
                         bound=tuple(bags.indices.shape))  # fmt: skip
    if bags.segment_ids.shape != bags.indices.shape:
        raise make_error("segments_match_indices")
    refuse_batched("ids", bags.indices, "padding_idx determines how many are looked up")
    check_storages(bags)
    kept = bags.indices != padding_idx
    weights = None if bags.weights is None else bags.weights[kept]
    return Bags(bags.indices[kept], bags.segment_ids[kept], bags.num_bags, weights)


def filled(bags: Bags, default_id: int) -> Bags:
    """The bags with `default_id`, of weight 1, in those that were empty."""
    default = torch.tensor(default_id, dtype=bags.indices.dtype, device=bags.indices.device)
    rows, ids, _, _ = OPS["RaggedFillEmptyRows"](bags.segment_ids, bags.indices, bags.num_bags, default)
    weights = bags.weights
    if weights is not None:
        one = torch.ones((), dtype=weights.dtype, device=weights.device)
        weights = OPS["RaggedFillEmptyRows"](bags.segment_ids, weights, bags.num_bags, one).output_values
    return Bags(ids, rows, bags.num_bags, weights)
