"""Read the ids that JAX lookups accept: arrays, lists and sparse tensors, known or traced.

Known ids become NumPy arrays, because every call on known arrays runs there; traced ids stay as they are. The rules
that torch shares are in `rowgrad._runtime.bags`.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._runtime import bags as shared
from .._runtime.arrays import fit, plain_array
from .._runtime.bags import Bags as Bags
from .._runtime.bags import ids_dtype
from ..errors import make_error
from ..raw_ops import OPS
from ..sparse import SparseTensor
from .arrays import as_jax, check_present, is_jax, is_traced


class _Jax:
    """JAX's side of `rowgrad._runtime.bags.Library`."""

    def integers(self, value: Any, argument: str) -> Any:
        """Return an integer array of NumPy, or a traced one."""
        array = jnp.asarray(_fit_list(value, argument)) if is_traced(value) else plain_array(value, argument)
        if isinstance(value, list | tuple) and not array.size:
            array = array.astype(np.int64)  # NumPy makes floats of an empty list
        if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise ids_dtype(argument, array.dtype)
        return array

    def segments(self, segment_ids: Any, ids: Any) -> Any:
        """Return a vector of segment ids as long as the ids; traced ones would broadcast silently."""
        vector = shared.read_vector(self, segment_ids, "segment_ids")
        if vector.shape != ids.shape:
            raise make_error("segments_match_indices", value=vector.shape[0], bound=ids.shape[0])
        return vector

    def count_bags(self, segment_ids: Any) -> int:
        """Return one more than the last segment id."""
        if is_traced(segment_ids):
            raise make_error("size_traced", argument="num_bags", bound="pass num_bags with traced segment_ids")
        return int(segment_ids[-1]) + 1 if segment_ids.shape[0] else 0

    def flatten(self, matrix: Any, argument: str) -> Any:
        """Return a vector."""
        return matrix.reshape(-1)

    def matrix_segments(self, ids: Any) -> Any:
        """Return the row of every element."""
        xp: Any = jnp if is_traced(ids) else np
        return xp.broadcast_to(xp.arange(ids.shape[0], dtype=ids.dtype)[:, None], ids.shape).reshape(-1)

    def sparse_rows(self, ids: shared.SparseIds, values: Any) -> Any:
        """Return the rows, which may be traced where the values are not."""
        return self.integers(ids.indices, "ids")[:, 0]

    def weights(self, weights: Any, ids: Any) -> Any:
        """Return weights as a JAX array."""
        if weights is None:
            return None
        check_present(weights, "per_sample_weights")
        return as_jax(weights, "per_sample_weights")

    def select_weights(self, weights: Any, mask: Any) -> Any:
        """Return the selected weights, by an op that a gradient passes through."""
        return OPS["GatherRows"](weights, np.flatnonzero(mask), gradient="dense")

    def fill_weights(self, bags: Bags) -> Any:
        """Return the weights with 1 in each empty bag.

        Weights may be traced where ids are not, so positions are filled, and weights gathered by them.
        """
        end = bags.indices.shape[0]
        positions = np.arange(end, dtype=np.int64)
        order = OPS["RaggedFillEmptyRows"](bags.segment_ids, positions, bags.num_bags, np.int64(end)).output_values
        longer = OPS["ConcatRows"](bags.weights, np.ones(1, bags.weights.dtype))
        return OPS["GatherRows"](longer, order, gradient="dense")


LIBRARY = _Jax()


def read_bags(
    ids: Any, offsets: Any, segment_ids: Any, num_bags: int | None, weights: Any, include_last_offset: bool
) -> Bags:
    """Return the bags of any ids that `embedding_bag` accepts."""
    num_bags = read_num_bags(num_bags)
    values = weights.values if isinstance(weights, SparseTensor) else weights
    if isinstance(ids, SparseTensor):
        bags = shared.read_sparse(LIBRARY, ids, offsets, segment_ids, num_bags, values)
    else:
        values = LIBRARY.weights(values, None)
        array = LIBRARY.integers(ids, "ids")
        bags = shared.read_bags(LIBRARY, OPS, array, offsets, segment_ids, num_bags, values, include_last_offset)
        if segment_ids is None and bags.num_bags < 0:  # empty offsets that lack their end; the op cannot check this
            raise make_error("offsets_end", value=0, bound=array.shape[0])
    if isinstance(weights, SparseTensor):
        shared.check_sparse_weights(weights, ids if isinstance(ids, SparseTensor) else None, bags)
    return bags


def read_matrix(ids: Any, weights: Any) -> Bags:
    """Return bags that are the rows of a matrix of ids."""
    return shared.read_matrix(LIBRARY, ids, None, None, weights)


def are_traced(bags: Bags) -> bool:
    """Return whether ids or segment ids are traced."""
    return is_traced(bags.indices) or is_traced(bags.segment_ids)


def as_integers(value: Any, argument: str) -> Any:
    """Return an array of int32 or int64: NumPy's, or a traced one."""
    return LIBRARY.integers(value, argument)


def _fit_list(value: Any, argument: str) -> Any:
    """Convert the items of a list with traced items to JAX's dtypes; JAX would drop bits that do not fit."""
    if isinstance(value, list | tuple):
        return [_fit_list(item, argument) for item in value]
    if is_jax(value) or np.asarray(value).dtype.kind not in "iu":
        return value
    return to_jax(np.asarray(value), argument)


def to_jax(array: Any, argument: str) -> Any:
    """Return integers as a JAX array; raise where they do not fit JAX's dtype."""
    if is_jax(array):
        return array
    return jnp.asarray(fit(array, argument, jax.dtypes.canonicalize_dtype(array.dtype)))


def read_num_bags(num_bags: Any) -> int | None:
    """Return a number of bags, which decides a shape. The ops count bags in 32 bits, whatever the ids' dtype."""
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


def read_ignore_id(ignore_id: Any, rows: int, dtype: Any) -> int | None:
    """Return an id that marks an empty place: an int that ids can hold and that is not a row of the table."""
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


def active_mask(ids: Any, ignored: tuple[int | None, ...]) -> Any:
    """Return where ids differ from all of `ignored`; None if there is nothing to ignore."""
    mask = None
    for number in ignored:
        if number is not None:
            mask = ids != number if mask is None else mask & (ids != number)
    return mask


def select_ids(bags: Bags, mask: Any) -> Bags:
    """Return the bags, of known ids, with only the ids where the mask is true."""
    return shared.select_ids(LIBRARY, bags, mask)


def fill_empty_bags(bags: Bags, default_id: int) -> Bags:
    """Return the bags, of known ids, with `default_id`, of weight 1, in each empty bag."""
    return shared.fill_empty_bags(LIBRARY, OPS, bags, np.asarray(default_id, bags.indices.dtype))
