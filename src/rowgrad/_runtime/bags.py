"""Read the bags of a lookup: ids, the bag of each id, the number of bags, and optional weights.

`rowgrad.torch.bags` and `rowgrad.jax.bags` validate the arrays of their library; the rules that both share are here.
`ops` are the raw ops, and `library` does what differs between array libraries.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import OpError, make_error
from .dispatch import in_host_memory, is_traced
from .validation import integer_advice


def ids_dtype(argument: str, dtype: object) -> OpError:
    """Return the error for ids or offsets that are not int32 or int64."""
    return make_error(
        "dtype_not_allowed", argument=argument, value=dtype, bound="int32, int64", advice=integer_advice(str(dtype))
    )


class Bags(NamedTuple):
    """Ids, the bag of each id, the number of bags, and the weight of each id if there are weights."""

    indices: Any
    segment_ids: Any
    num_bags: Any
    weights: Any = None


class SparseIds(Protocol):
    """A `SparseTensor` of ids or of weights: its first dimension counts bags."""

    @property
    def indices(self) -> Any:
        """The coordinates of each entry, [entries, rank]."""

    @property
    def values(self) -> Any:
        """The id or weight of each entry."""

    @property
    def dense_shape(self) -> Any:
        """The shape of the dense array."""


class Library(Protocol):
    """The operations that differ between array libraries."""

    def integers(self, value: Any, argument: str) -> Any:
        """Return an array of int32 or int64; raise for anything else."""

    def segments(self, segment_ids: Any, ids: Any) -> Any:
        """Return validated segment ids of a vector of ids."""

    def count_bags(self, segment_ids: Any) -> Any:
        """Return the last segment id plus one; raise if it is traced."""

    def flatten(self, matrix: Any, argument: str) -> Any:
        """Return the elements of a matrix as a vector."""

    def matrix_segments(self, ids: Any) -> Any:
        """Return the row number of every element of a matrix, as a vector of the ids' dtype."""

    def sparse_rows(self, ids: SparseIds, values: Any) -> Any:
        """Return the bag of each id of a sparse tensor, as an array on the device of its values."""

    def weights(self, weights: Any, ids: Any) -> Any:
        """Return weights as an array on the device of the ids; None stays None."""

    def select_weights(self, weights: Any, mask: Any) -> Any:
        """Return the weights where the mask is true; differentiable."""

    def fill_weights(self, bags: Bags) -> Any:
        """Return the weights with 1 in place of each empty bag; differentiable."""


def read_bags(
    library: Library,
    ops: Any,
    ids: Any,
    offsets: Any,
    segment_ids: Any,
    num_bags: Any,
    weights: Any,
    include_last_offset: bool,
) -> Bags:
    """Return the bags of a matrix of ids, or of a vector with either offsets or segment ids."""
    if ids.ndim == 2:
        check_num_bags(num_bags, ids.shape[0], "the rows of ids")
        return read_matrix(library, ids, offsets, segment_ids, weights)
    if ids.ndim != 1:
        raise make_error("ids_rank", value=ids.ndim)
    if (offsets is None) == (segment_ids is None):
        raise make_error("offsets_missing" if offsets is None else "offsets_and_segments")
    if weights is not None and weights.ndim == 0:
        raise make_error("weights_scalar", bound=tuple(ids.shape))
    if segment_ids is None:
        return read_offsets(library, ops, ids, offsets, num_bags, weights, include_last_offset)
    segment_ids = library.segments(segment_ids, ids)
    return Bags(ids, segment_ids, library.count_bags(segment_ids) if num_bags is None else num_bags, weights)


def read_offsets(
    library: Library, ops: Any, ids: Any, offsets: Any, num_bags: Any, weights: Any, include_last_offset: bool
) -> Bags:
    """Return bags that begin at `offsets`, which with `include_last_offset` end with the number of ids."""
    offsets = read_vector(library, offsets, "offsets")
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    check_num_bags(num_bags, bags, "as offsets say")
    options = {"include_last_offset": True} if include_last_offset else {}
    return Bags(ids, ops["SegmentIdsFromOffsets"](offsets, ids.shape[0], **options), bags, weights)


def read_matrix(library: Library, ids: Any, offsets: Any, segment_ids: Any, weights: Any) -> Bags:
    """Return bags that are the rows of a matrix of ids."""
    check_alone(offsets, segment_ids, "a matrix of ids")
    if weights is not None:
        if tuple(weights.shape) != tuple(ids.shape):
            shapes = tuple(weights.shape), tuple(ids.shape)
            raise make_error("same_shape", argument="per_sample_weights", value=shapes[0], bound=shapes[1])
        weights = library.flatten(weights, "per_sample_weights")
    segments = library.matrix_segments(ids)
    return Bags(library.flatten(ids, "ids"), segments, ids.shape[0], weights)


def read_sparse(library: Library, ids: SparseIds, offsets: Any, segment_ids: Any, num_bags: Any, weights: Any) -> Bags:
    """Return bags that are the rows of a SparseTensor of ids."""
    check_alone(offsets, segment_ids, "a SparseTensor")
    if len(ids.dense_shape) < 1:
        raise make_error("dense_shape_empty")
    bags = int(ids.dense_shape[0])
    if bags < 0:
        raise make_error("dimension_negative", argument="dense_shape", value=bags, bound=0)
    check_num_bags(num_bags, bags, "as dense_shape says")
    values = library.integers(ids.values, "ids")
    return Bags(values, library.sparse_rows(ids, values), bags, library.weights(weights, values))


def read_vector(library: Library, value: Any, argument: str) -> Any:
    """Return a vector of int32 or int64; raise for anything else."""
    array = library.integers(value, argument)
    if array.ndim != 1:
        raise make_error("bags_unfit", argument=argument, value=f"{array.ndim} dimensions", bound="1")
    return array


def check_num_bags(num_bags: Any, bags: Any, why: str) -> None:
    """Raise if `num_bags` is given and differs from the number of bags that the ids have."""
    if num_bags is not None and num_bags != bags:
        raise make_error("bags_unfit", argument="num_bags", value=num_bags, bound=f"{bags}, {why}")


def check_alone(offsets: Any, segment_ids: Any, what: str) -> None:
    """Raise if offsets or segment ids are passed with ids that define their bags already."""
    for argument, value in (("offsets", offsets), ("segment_ids", segment_ids)):
        if value is not None:
            raise make_error("bags_twice", argument=argument, value=what)


def check_sparse_weights(weights: SparseIds, sparse_ids: SparseIds | None, bags: Bags) -> None:
    """Raise unless the entries of sparse weights match the ids: the same indices, or the same bags.

    Traced indices are compared by shape only.
    """
    facts: dict[str, Any] = {"argument": "per_sample_weights"}
    if sparse_ids is None:
        facts |= {"value": "a SparseTensor of other rows", "bound": "the same bags as ids"}
        matches = tuple(weights.dense_shape[:1]) == (bags.num_bags,)
        found, expected = weights.indices[:, 0], bags.segment_ids
    else:
        found, expected = weights.indices, sparse_ids.indices
        if tuple(found.shape) != tuple(expected.shape):
            raise make_error("same_shape", argument="per_sample_weights.indices", value=tuple(found.shape),
                         bound=tuple(expected.shape))  # fmt: skip
        facts |= {"value": "a SparseTensor of other indices", "bound": "the indices of ids"}
        matches = np.array_equal(weights.dense_shape, sparse_ids.dense_shape)
    if matches and not (is_traced(found) or is_traced(expected)):
        matches = np.array_equal(np.asarray(in_host_memory(found)), np.asarray(in_host_memory(expected)))
    if not matches:
        raise make_error("bags_unfit", **facts)


def check_lengths(bags: Bags) -> None:
    """Raise unless there is a segment id, and a weight if there are weights, for every id."""
    if bags.weights is not None and bags.weights.shape != bags.indices.shape:
        raise make_error("same_shape", argument="per_sample_weights", value=tuple(bags.weights.shape),
                     bound=tuple(bags.indices.shape))  # fmt: skip
    if bags.segment_ids.shape != bags.indices.shape:
        lengths = bags.segment_ids.shape[0], bags.indices.shape[0]
        raise make_error("segments_match_indices", value=lengths[0], bound=lengths[1])


def select_ids(library: Library, bags: Bags, mask: Any) -> Bags:
    """Return the bags with only the ids where the mask is true."""
    weights = None if bags.weights is None else library.select_weights(bags.weights, mask)
    return Bags(bags.indices[mask], bags.segment_ids[mask], bags.num_bags, weights)


def fill_empty_bags(library: Library, ops: Any, bags: Bags, default_id: Any) -> Bags:
    """Return the bags with `default_id`, an array of one id with weight 1, in each empty bag."""
    rows, ids, _, _ = ops["RaggedFillEmptyRows"](bags.segment_ids, bags.indices, bags.num_bags, default_id)
    return Bags(ids, rows, bags.num_bags, None if bags.weights is None else library.fill_weights(bags))
