"""What a lookup may be given as ids, brought to one form: ids, the bag of each, and how many bags.

Ids that are there become NumPy's, as every call on such arrays runs there; ids that JAX traces stay what they are.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.arrays import fit, plain_array
from ..errors import make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from .arrays import as_jax, check_present, is_jax, is_traced


class Bags(NamedTuple):
    """Ids, the bag of each, how many bags there are, and a number for every id where one is given."""

    indices: Any
    segment_ids: Any
    num_bags: int
    weights: Any = None

    @property
    def traced(self) -> bool:
        """Whether only a compiled program will know the ids, or which bag they belong to."""
        return is_traced(self.indices) or is_traced(self.segment_ids)


def read_bags(
    ids: Any, offsets: Any, segment_ids: Any, num_bags: int | None, weights: Any, include_last_offset: bool
) -> Bags:
    """Bags out of any of the forms `embedding_bag` takes."""
    num_bags = read_count(num_bags)
    if isinstance(ids, SparseTensor):
        return _of_sparse(ids, offsets, segment_ids, num_bags, weights)
    weights = _numbers(weights)
    ids = integers(ids, "ids")
    if ids.ndim == 2:
        _check_count(num_bags, ids.shape[0], "the rows of ids")
        return of_matrix(ids, offsets, segment_ids, weights)
    if ids.ndim != 1:
        raise make_error("bags_unfit", argument="ids", value=f"{ids.ndim} dimensions", bound="1 or 2")
    if (offsets is None) == (segment_ids is None):
        raise make_error("bags_unfit", argument="offsets", value="both or neither",
                         bound="either offsets or segment_ids for ids of one dimension")  # fmt: skip
    if segment_ids is None:
        return _of_offsets(ids, integers(offsets, "offsets"), include_last_offset, num_bags, weights)
    segment_ids = integers(segment_ids, "segment_ids")
    if segment_ids.shape != ids.shape:
        raise make_error("segments_match_indices")
    if num_bags is None:
        if is_traced(segment_ids):
            raise make_error("size_traced", argument="num_bags", bound="pass num_bags with traced segment_ids")
        num_bags = int(segment_ids[-1]) + 1 if segment_ids.shape[0] else 0
    return Bags(ids, segment_ids, num_bags, weights)


def integers(given: Any, argument: str) -> Any:
    """An array of int32 or int64: NumPy's, or one that is traced."""
    array = jnp.asarray(_fitted(given, argument)) if is_traced(given) else plain_array(given, argument)
    if isinstance(given, list | tuple) and not array.size:
        array = array.astype(np.int64)  # an empty list says nothing of its dtype
    if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise make_error("dtype_not_allowed", argument=argument, value=array.dtype, bound="int32, int64")
    return array


def _fitted(given: Any, argument: str) -> Any:
    """A list some of whose items are traced, with the others in JAX's dtypes: JAX would drop bits that do not fit."""
    if isinstance(given, list | tuple):
        return [_fitted(item, argument) for item in given]
    if is_jax(given) or np.asarray(given).dtype.kind not in "iu":
        return given
    return to_jax(np.asarray(given), argument)


def to_jax(array: Any, argument: str) -> Any:
    """Integers as JAX has them, where NumPy's stand beside traced ones."""
    if is_jax(array):
        return array
    return jnp.asarray(fit(array, argument, jax.dtypes.canonicalize_dtype(array.dtype)))


def _numbers(weights: Any) -> Any:
    found = weights.values if isinstance(weights, SparseTensor) else weights
    if found is None:
        return None
    check_present(found, "per_sample_weights")
    return as_jax(found, "per_sample_weights")


def read_count(num_bags: Any) -> int | None:
    """A number of bags, which decides a shape. The ops count bags in 32 bits, whatever the dtype of segment ids."""
    if num_bags is None:
        return None
    if is_traced(num_bags):
        raise make_error("host_traced", argument="num_bags")
    number, most = np.asarray(num_bags), np.iinfo(np.int32).max
    if number.ndim or number.dtype.kind not in "iu" or not 0 <= number <= most:
        raise make_error(
            "bags_unfit", argument="num_bags", value=repr(num_bags), bound=f"an int of at least 0 and at most {most}"
        )
    return operator.index(num_bags)


def _check_count(num_bags: int | None, bags: int, why: str) -> None:
    if num_bags is not None and num_bags != bags:
        raise make_error("bags_unfit", argument="num_bags", value=num_bags, bound=f"{bags}, {why}")


def _alone(offsets: Any, segment_ids: Any, what: str) -> None:
    for argument, given in (("offsets", offsets), ("segment_ids", segment_ids)):
        if given is not None:
            bound = f"None, because {what} defines its own bags"
            raise make_error("bags_unfit", argument=argument, value="a value", bound=bound)


def _of_offsets(ids: Any, offsets: Any, closed: bool, num_bags: int | None, weights: Any) -> Bags:
    bags = offsets.shape[0] - (1 if closed else 0)
    _check_count(num_bags, bags, "as offsets say")
    segments = OPS["SegmentIdsFromOffsets"](offsets, ids.shape[0], include_last_offset=closed)
    if bags < 0:  # the op cannot know it before its data
        raise make_error("offsets_end", value=0, bound=ids.shape[0])
    return Bags(ids, segments, bags, weights)


def of_matrix(ids: Any, offsets: Any, segment_ids: Any, weights: Any) -> Bags:
    """Bags that are the rows of a matrix of ids."""
    _alone(offsets, segment_ids, "a matrix of ids")
    bags, length = ids.shape
    if weights is not None and tuple(weights.shape) != (bags, length):
        raise make_error("same_shape", argument="per_sample_weights", value=tuple(weights.shape), bound=(bags, length))
    xp: Any = jnp if is_traced(ids) else np
    segments = xp.broadcast_to(xp.arange(bags, dtype=ids.dtype)[:, None], (bags, length)).reshape(-1)
    return Bags(ids.reshape(-1), segments, bags, None if weights is None else weights.reshape(-1))


def _of_sparse(ids: SparseTensor, offsets: Any, segment_ids: Any, num_bags: int | None, weights: Any) -> Bags:
    _alone(offsets, segment_ids, "a SparseTensor")
    if len(ids.dense_shape) < 1:
        raise make_error("dense_shape_empty")
    bags = int(ids.dense_shape[0])
    if bags < 0:
        raise make_error("dimension_negative", argument="dense_shape", value=bags, bound=0)
    _check_count(num_bags, bags, "the rows of the SparseTensor")
    if isinstance(weights, SparseTensor) and weights.indices.shape != ids.indices.shape:
        raise make_error("same_shape", argument="per_sample_weights.indices", value=tuple(weights.indices.shape),
                         bound=tuple(ids.indices.shape))  # fmt: skip
    rows = integers(ids.indices, "ids")[:, 0]
    return Bags(integers(ids.values, "ids"), rows, bags, _numbers(weights))


def read_ignore_id(ignore_id: Any, rows: int, dtype: Any) -> int | None:
    """An id that marks an empty place: an int that ids can hold and that is not a row of the table."""
    if ignore_id is None:
        return None
    if isinstance(ignore_id, bool) or not isinstance(ignore_id, int | np.integer):
        raise make_error("number_unfit", argument="ignore_id", value=repr(ignore_id), bound="None or an int")
    if 0 <= ignore_id < rows:
        bound = f"not a row of a table of {rows} rows; use padding_idx to ignore a row"
        raise make_error("number_unfit", argument="ignore_id", value=ignore_id, bound=bound)
    limits = np.iinfo(dtype)
    if not limits.min <= ignore_id <= limits.max:
        raise make_error("integer_does_not_fit", argument="ignore_id", value=ignore_id, bound=dtype)
    return int(ignore_id)


def ids_kept(ids: Any, ignored: tuple[int | None, ...]) -> Any:
    """Which ids count: those that differ from all of `ignored`; None where there is nothing to ignore."""
    kept = None
    for number in ignored:
        if number is not None:
            kept = ids != number if kept is None else kept & (ids != number)
    return kept


def without_padding(bags: Bags, kept: Any) -> Bags:
    """The bags, of concrete ids, with the kept ids only."""
    at = np.flatnonzero(kept)
    weights = None if bags.weights is None else OPS["GatherRows"](bags.weights, at, gradient="dense")
    return Bags(bags.indices[at], bags.segment_ids[at], bags.num_bags, weights)


def filled(bags: Bags, default_id: int) -> Bags:
    """The bags, of ids that are there, with `default_id`, of weight 1, in those that were empty."""
    new = bags.indices.shape[0]  # the position of what is put in, behind all others
    positions = np.arange(new, dtype=np.int64)
    rows, order, _, _ = OPS["RaggedFillEmptyRows"](bags.segment_ids, positions, bags.num_bags, np.int64(new))
    weights = bags.weights
    if weights is not None:
        longer = OPS["ConcatRows"](weights, np.ones(1, weights.dtype))
        weights = OPS["GatherRows"](longer, order, gradient="dense")
    return Bags(np.append(bags.indices, bags.indices.dtype.type(default_id))[order], rows, bags.num_bags, weights)
