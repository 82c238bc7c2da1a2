"""Embedding lookups of sparse ids, and the options they share in every array library."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from operator import index
from typing import Any, TypeVar

import numpy as np

from ._catalog.enums import COMBINERS as COMBINERS
from ._catalog.shapes import check_elements
from ._catalog.spec import FLOATS
from ._runtime.arrays import NUMPY_DTYPE, canonical, plain_array
from ._runtime.dispatch import concrete, describe_value, id_functions, in_host_memory, is_traced, load_runner
from .errors import OpError, make_error, shape_text
from .raw_ops import OPS
from .sharding.div_mod import check_strategy, group_by_shard, inverse_permutation, locate
from .sparse import SparseTensor

__all__ = ("embedding_lookup_sparse", "safe_embedding_lookup_sparse")

# -- Options and arguments, validated alike for every array library ---------------------------------------------------

Array = np.ndarray[Any, Any]

LOOKUPS = ("auto", "unique")
ACCUMULATE = ("T", "float32")


def combiner_suffix(combiner: str) -> str:
    """Return the suffix of a combiner's ops: "Mean" for "mean"."""
    if not isinstance(combiner, str) or combiner not in COMBINERS:
        raise make_error("combiner_unknown", argument="combiner", value=repr(combiner), bound=", ".join(COMBINERS))
    return COMBINERS[combiner]


def tensorflow_combiner_suffix(combiner: str | None) -> str:
    """Return the suffix of a combiner's ops for TensorFlow's lookups: None is "mean", errors are TensorFlow's."""
    kind = COMBINERS.get("mean" if combiner is None else combiner) if isinstance(combiner, str | None) else None
    if kind is None:
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner}")
    return kind


def check_options(partition_strategy: str, lookup: str, accumulate: str) -> None:
    """Reject unknown options."""
    if not isinstance(lookup, str) or lookup not in LOOKUPS:
        raise ValueError(f"lookup must be one of 'auto' or 'unique', got {lookup}")
    if not isinstance(accumulate, str) or accumulate not in ACCUMULATE:
        raise ValueError(f"accumulate must be one of 'T' or 'float32', got {accumulate}")
    check_strategy(partition_strategy)


# TensorFlow compares weights with 0 after flushing subnormal ones to 0, except in float16, which it widens first.
_SMALLEST_POSITIVE = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def smallest_positive(dtype: str) -> float:
    """Return the smallest weight of a dtype that `safe_embedding_lookup_sparse` does not drop as zero."""
    return _SMALLEST_POSITIVE.get(dtype, 1.0)


def row_number(argument: str, row: int | None, rows: int) -> int | None:
    """Validate a row number; negative numbers count from the end."""
    if row is None:
        return None
    try:
        if isinstance(row, bool):
            raise TypeError
        index(row)
    except TypeError:
        raise make_error("number_unfit", argument=argument, value=repr(row), bound="an int") from None
    if not -rows <= row < rows:
        raise make_error("row_outside", argument=argument, value=row, bound=rows)
    return row % rows


def check_default_id(default_id: int | None, dtype: Any) -> None:
    """Raise if `default_id` does not fit the dtype of the ids."""
    limits = np.iinfo(dtype)
    if default_id is not None and not limits.min <= default_id <= limits.max:
        raise make_error("integer_does_not_fit", argument="default_id", value=default_id, bound=dtype)


def shards_of(params: Any, argument: str) -> list[Any]:
    """Return the shards of a table as arrays. Only a list is a list of shards; everything else is one table."""
    if getattr(params, "is_list", False):  # under vjp; otherwise it would be a list of shards
        raise make_error("not_an_array", argument=argument, value="a list of numbers; convert it with numpy.array")
    shards = params if isinstance(params, list) else [params]
    if not isinstance(params, list | tuple) and not hasattr(params, "dtype") and hasattr(params, "__iter__"):
        items = () if hasattr(params, "__array__") else tuple(params)
        if items and all(hasattr(item, "dtype") for item in items):  # torch's ParameterList, say
            value = f"{type(params).__name__} of {len(items)} arrays; pass shards as a Python list: list(…)"
            raise make_error("not_an_array", argument=argument, value=value)
    if not shards:
        raise ValueError("Length of params is currently 0. Need at least one param.")
    arrays = [s if hasattr(s, "dtype") else plain_array(s, argument) for s in shards]
    for array in arrays:
        if not hasattr(array, "ndim"):  # rowgrad.jax.Table has a dtype but is not an array
            raise make_error("not_an_array", argument=argument, value=type(array).__name__)
    arrays = [canonical(s, argument) if isinstance(s, np.ndarray) else s for s in arrays]
    first = arrays[0]
    if len(arrays) > 1 and not all(len(a.shape) for a in arrays):
        raise make_error("data_rank", argument=argument)
    for k, shard in enumerate(arrays[1:], 1):
        if shard.dtype != first.dtype or tuple(shard.shape[1:]) != tuple(first.shape[1:]):
            what = [f"{a.dtype}{shape_text(tuple(a.shape[1:]))}" for a in (shard, first)]
            raise make_error("shards_disagree", argument=f"{argument}[{k}]", value=what[0], bound=what[1])
    return arrays


class HostIds:
    """What lookups do with ids in host memory; `torch.device_ids` has the same functions for a GPU's memory."""

    xp: Any = np

    @staticmethod
    def read(array: Any, argument: str) -> Any:
        """Return a NumPy array."""
        return canonical(np.asarray(concrete(in_host_memory(array), argument)), argument)

    @staticmethod
    def place(array: Any, _: str) -> Any:
        """Return an array that ops accept beside the ids."""
        return array

    @staticmethod
    def flatnonzero(mask: Any) -> Any:
        """Return the positions of true elements."""
        return np.flatnonzero(np.asarray(concrete(mask, "sparse_weights")))

    @staticmethod
    def unique_in_order(ids: Any) -> tuple[Any, Any]:
        """Return distinct ids in order of first appearance, and the position of each id among them."""
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        return unique[order], inverse_permutation(order)[inverse.reshape(-1)]


def functions_for(shards: list[Any], *arrays: Any) -> Any:
    """Return what a lookup does with its ids: on a GPU if one of the arrays is there.

    Ids for several shards are distributed on the host.
    """
    found = next(filter(None, map(id_functions, arrays)), None) if len(shards) == 1 else None
    return found or HostIds


def _values(sparse: SparseTensor | None) -> list[Any]:
    return [] if sparse is None else [sparse.values]


def ids_of(sparse: SparseTensor, argument: str, functions: Any = HostIds) -> Any:
    """Return the ids of a sparse tensor as an array that `functions` take."""
    ids = functions.read(sparse.values, argument)
    dtype = dtype_name(ids.dtype)
    if dtype not in ("int32", "int64"):
        raise make_error("dtype_not_allowed", argument=argument, value=dtype, bound="int32, int64")
    return ids


def dtype_name(dtype: Any) -> str:
    """Return the catalog's name of a dtype of any array library."""
    return str(dtype).rpartition(".")[2]


def is_float(dtype: Any) -> bool:
    """Return whether a dtype is float16, bfloat16, float32 or float64."""
    return dtype_name(dtype) in FLOATS


def flat_shape(sparse: SparseTensor) -> Array:
    """Return [rows, last dimension] for ids of any rank; the result has this many rows before it is reshaped."""
    shape = sparse.dense_shape
    if (shape < 0).any():
        raise make_error("dimension_negative", argument="dense_shape", value=int(shape.min()), bound=0)
    check_elements(sparse.shape)  # beyond int64, linear indices would wrap into other rows
    if len(shape) == 2:
        return shape
    if len(shape) == 0:
        raise make_error("dense_shape_empty")
    flat = np.array([np.prod(shape[:-1], dtype=np.int64), shape[-1]], np.int64)
    if sparse.nnz and 0 in shape.tolist():
        raise make_error("nothing_to_hold", value=sparse.nnz, shape=shape_text(sparse.shape),
                         bound=shape_text(tuple(flat.tolist())))  # fmt: skip
    return flat


def check_rows_are_vectors(result: Any) -> None:
    """Raise unless the result is a matrix: TensorFlow zeroes rows without ids by a mask of rank 2."""
    if len(result.shape) == 1:
        raise make_error("mask_needs_columns")
    if len(result.shape) != 2:
        mask, shape = shape_text(tuple(result.shape[:2])), shape_text(tuple(result.shape))
        raise make_error("mask_needs_rank_2", value=mask, bound=shape)


# -- The lookups, composed of ops, so that `vjp` differentiates them --------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
_FLOAT32_MAX = float(np.finfo(np.float32).max)

# Arguments of the inner ops -> arguments of the lookup that errors should name.
_IDS, _WEIGHTS, _PARAMS = ("sp_ids", "sparse_ids"), ("sp_weights", "sparse_weights"), ("params", "embedding_weights")
_OUTER_ARGUMENTS = {"indices": _IDS, "segment_ids": _IDS, "dense_shape": _IDS, "values": _IDS, "weights": _WEIGHTS,
            "data": _PARAMS, "x": _PARAMS, "rows": _PARAMS}  # fmt: skip


def _named_in_errors(function: F) -> F:
    """Make errors of the inner ops name the lookup and its arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OpError as error:
            arguments = signature.bind_partial(*args, **kwargs).arguments
            outer = (name for name in _OUTER_ARGUMENTS.get(error.argument or "", ()) if name in arguments)
            error.argument = next(outer, error.argument)
            call = ", ".join(f"{k}={describe_value(v)}" for k, v in arguments.items() if k != "name")
            error.replace_call(function.__name__, arguments.get("name"), call)
            raise

    return wrapper  # type: ignore[return-value]


@_named_in_errors
def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
    *,
    partition_strategy: str = "div",
    lookup: str = "auto",
    accumulate: str = "T",
) -> Any:
    """Look up the rows of `params` for the ids of every row of `sp_ids`, and combine them.

    The gradient for `params` has the same format as TensorFlow's: sorted unique rows (no weights); dense (no weights,
    `allow_fast_lookup`); one row per id (weights, `allow_fast_lookup`); unique rows in order of first appearance
    (weights, `max_norm`, shards, or `lookup="unique"`, which is what TensorFlow does for a variable).

    Args:
        params: A table, or a list of shards.
        sp_ids: Ids with sorted rows, [rows, …].
        sp_weights: A weight for each id.
        combiner: "mean" (the default), "sum" or "sqrtn"; with weights these are Σwx/Σw, Σwx and Σwx/√Σw².
        max_norm: Shrink longer rows to this norm first.
        name: A name for errors.
        allow_fast_lookup: Use the gradient format of TensorFlow's fused lookup.
        partition_strategy: How `params` is split into shards, "div" or "mod".
        lookup: "auto", or "unique" to look up each distinct id once.
        accumulate: In the format with unique rows in order of first appearance, 16-bit gradients of weighted lookups
            round at every addition, as TensorFlow's do ("T"), or once ("float32").

    Returns:
        The combined rows, one for each row of `sp_ids` up to the last that has an id.

    Raises:
        InvalidArgumentError: If an id is out of range, rows are not sorted, or arrays do not fit.

    >>> import numpy as np, rowgrad as rg
    >>> ids = rg.SparseTensor([[0, 0], [0, 1], [1, 0]], np.array([0, 2, 1]), [2, 2])
    >>> rg.embedding_lookup_sparse(np.array([[1.0], [2.0], [4.0]]), ids, combiner="sum").tolist()
    [[5.0], [2.0]]
    """
    kind = tensorflow_combiner_suffix(combiner)
    shards = shards_of(params, "params")
    if not isinstance(sp_ids, SparseTensor):
        raise TypeError(f"sp_ids must be SparseTensor, got {type(sp_ids)}")
    if sp_weights is not None:
        if not isinstance(sp_weights, SparseTensor):
            raise TypeError(f"sp_weights must be either None or SparseTensor,got {type(sp_weights)}")
        for mine, theirs in ((sp_ids.values, sp_weights.values), (sp_ids.indices, sp_weights.indices)):
            if tuple(mine.shape) != tuple(theirs.shape):
                raise ValueError(f"Shapes {tuple(mine.shape)} and {tuple(theirs.shape)} are incompatible")
    check_options(partition_strategy, lookup, accumulate)
    if sp_ids.indices.shape[1] == 0:
        raise make_error("dense_shape_empty")
    if is_traced(sp_ids.values) or is_traced(sp_ids.indices):
        raise make_error("size_traced", argument="sp_ids", bound="use safe_embedding_lookup_sparse, which returns "
                         "dense_shape[0] rows, or rowgrad.jax.embedding_bag with num_bags")  # fmt: skip
    functions = functions_for(shards, sp_ids.values, sp_ids.indices, *_values(sp_weights))
    weights = None
    if sp_weights is not None:
        weights = _float_weights(functions.place(sp_weights.values, "sp_weights"), shards[0])
    ids, segments = ids_of(sp_ids, "sp_ids", functions), functions.read(sp_ids.indices, "sp_ids")[:, 0]
    whole = len(shards) == 1 and max_norm is None and lookup == "auto"
    if whole and weights is None:
        return _bags(f"SparseSegment{kind}", shards[0], ids, segments, sparse_gradient=not allow_fast_lookup)
    if whole and allow_fast_lookup:
        return _bags(f"WeightedSparseSegment{kind}", shards[0], ids, segments, weights, sparse_gradient=True)
    unique, place = functions.unique_in_order(ids)
    rows, order = _gather(shards, unique, partition_strategy)
    place = place if order is None else inverse_permutation(order)[place]
    if max_norm is not None:
        rows = clip_rows(rows, max_norm)
    if weights is None:
        return _bags(f"SparseSegment{kind}", rows, place, segments)
    return _bags(f"WeightedSparseSegment{kind}", rows, place, segments, weights, accumulate=accumulate)


@_named_in_errors
def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str | None = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
    *,
    partition_strategy: str = "div",
    lookup: str = "auto",
    accumulate: str = "T",
) -> Any:
    """Look up and combine rows like `embedding_lookup_sparse`, for ids as they come from data.

    Negative ids are dropped, and unless the combiner is "sum" also entries whose weight is not positive. Rows of ids
    may come in any order.

    Args:
        embedding_weights: A table, or a list of shards.
        sparse_ids: Ids of rank k ≥ 1.
        sparse_weights: A weight for each id.
        combiner: "mean", "sum" or "sqrtn".
        default_id: The id to look up for rows without an id; by default these rows are zero.
        max_norm: Shrink longer rows to this norm first.
        name: A name for errors.
        allow_fast_lookup: As in `embedding_lookup_sparse`, like all options after it.
        partition_strategy: How the table is split into shards, "div" or "mod".
        lookup: "auto" or "unique".
        accumulate: "T" or "float32".

    Returns:
        The combined rows, [d0, …, d(k−2), *row].

    Raises:
        InvalidArgumentError: If an id is out of range, or arrays do not fit.

    >>> import numpy as np, rowgrad as rg
    >>> ids = rg.SparseTensor([[0, 0], [2, 0]], np.array([1, -1]), [3, 1])
    >>> rg.safe_embedding_lookup_sparse(np.array([[1.0], [2.0]]), ids).tolist()
    [[2.0], [0.0], [0.0]]
    """
    if embedding_weights is None or (isinstance(embedding_weights, list | tuple) and not len(embedding_weights)):
        raise ValueError(f"Missing embedding_weights {embedding_weights}.")
    for label, value in (("sparse_ids", sparse_ids), ("sparse_weights", sparse_weights)):
        if not isinstance(value, SparseTensor) and not (value is None and label == "sparse_weights"):
            raise TypeError(f"{label} must be SparseTensor, got {type(value)}")
    shards = shards_of(embedding_weights, "embedding_weights")
    if sparse_weights is not None:
        if not is_float(sparse_weights.dtype):
            raise make_error(
                "dtype_not_allowed", argument="sparse_weights", value=sparse_weights.dtype, bound=", ".join(FLOATS)
            )
        shards = [s if s.dtype == sparse_weights.dtype else OPS["CastLike"](s, sparse_weights.values) for s in shards]
    if default_id is not None and (isinstance(default_id, bool) or not isinstance(default_id, int | np.integer)):
        raise TypeError(f"default_id must be an int or None, got {default_id!r}")
    compiler = _compiler(sparse_ids, sparse_weights)
    if compiler is not None:
        check_options(partition_strategy, lookup, accumulate)
        kind, once = tensorflow_combiner_suffix(combiner), allow_fast_lookup and max_norm is None and lookup == "auto"
        rounding = "float32" if once else accumulate
        return compiler.lookup_traced(shards, sparse_ids, sparse_weights, kind, default_id, max_norm, rounding)
    functions = functions_for(shards, sparse_ids.values, sparse_ids.indices, *_values(sparse_weights))
    indices, dense_shape = _as_matrix(sparse_ids, functions)
    ids = ids_of(sparse_ids, "sparse_ids", functions)
    id_dtype = dtype_name(ids.dtype)
    check_default_id(default_id, id_dtype)
    weights = None
    selected = functions.flatnonzero(ids >= 0)
    if sparse_weights is not None:
        if sparse_weights.values.shape[0] != len(ids):
            raise ValueError(f"Dimensions {len(ids)} and {sparse_weights.values.shape[0]} are not compatible")
        weights = OPS["GatherRows"](functions.place(sparse_weights.values, "sparse_weights"), selected)
        if not (isinstance(combiner, str) and combiner == "sum"):  # an unknown combiner is rejected later
            positive = functions.flatnonzero(_is_positive(weights))
            weights = OPS["GatherRows"](weights, positive, gradient="dense")
            selected = selected[positive]
    filled = OPS["SparseFillEmptyRows"](
        indices[selected], ids[selected], dense_shape, np.asarray(0 if default_id is None else default_id, id_dtype)
    )
    new_ids = SparseTensor(filled.output_indices, filled.output_values, dense_shape)
    new_weights = None
    if weights is not None:
        one = np.ones((), NUMPY_DTYPE[dtype_name(weights.dtype)])
        values = OPS["SparseFillEmptyRows"](indices[selected], weights, dense_shape, one).output_values
        new_weights = SparseTensor(filled.output_indices, values, dense_shape)
    result = inspect.unwrap(embedding_lookup_sparse)(  # unwrapped, so that errors name this function
        shards, new_ids, new_weights, combiner, max_norm, name, allow_fast_lookup,
        partition_strategy=partition_strategy, lookup=lookup, accumulate=accumulate,
    )  # fmt: skip
    if default_id is None:
        check_rows_are_vectors(result)
        result = OPS["MaskRows"](result, filled.empty_row_indicator)
    leading = sparse_ids.shape[:-1]
    if len(leading) != 1:
        result = OPS["Reshape"](result, (*leading, *result.shape[1:]))
    return result


def _compiler(ids: SparseTensor, weights: SparseTensor | None) -> Any:
    """Return the runner that traces ids or weights; None if their values are known."""
    arrays = [ids.values, ids.indices]
    if weights is not None and is_traced(weights.values):
        arrays.append(weights.values > 0)  # known if only a gradient traces the weights: comparisons have no gradient
    return next((load_runner(type(x)) for x in arrays if is_traced(x)), None)


def _bags(op: str, rows: Any, ids: Array, segments: Array, *weights: Any, **options: Any) -> Any:
    """Combine rows of sorted segments. A compiler needs the number of segments, which the segments determine."""
    if not any(map(is_traced, (rows, *weights))):
        return OPS[op](rows, ids, segments, *weights, **options)
    if (segments[1:] < segments[:-1]).any():
        raise make_error("segments_not_increasing")
    num_segments = int(segments[-1]) + 1 if len(segments) else 0
    return OPS[f"{op}WithNumSegments"](rows, ids, segments, *weights, num_segments, **options)


def _is_positive(value: Any) -> Any:
    """Return where TensorFlow considers weights positive; a gradient may be recording the weights."""
    while not isinstance(value, np.ndarray) and hasattr(value, "value"):
        value = value.value
    least = smallest_positive(dtype_name(value.dtype))
    return (value.detach().double() if hasattr(value, "detach") else value) >= least


def _float_weights(weights: Any, params: Any) -> Any:
    """Convert integer weights to the accumulation type; the kernel converts float weights itself."""
    if dtype_name(weights.dtype).startswith(("int", "uint", "bool")):
        wide = np.float64 if dtype_name(params.dtype) == "float64" else np.float32
        if id_functions(weights) is not None:
            return weights.double() if wide is np.float64 else weights.float()
        return (weights if is_traced(weights) else np.asarray(concrete(weights, "sp_weights"))).astype(wide)
    return weights


def _gather(shards: list[Any], ids: Array, strategy: str) -> tuple[Any, Array | None]:
    """Gather the rows of distinct ids. Rows of several shards are grouped by shard; then also return their positions.

    Bags look rows up by position, so rows need not be reordered, and gradients reach the shards with unchanged bits.
    """
    if len(shards) == 1:
        return OPS["GatherRows"](shards[0], ids), None
    shard, row = locate(ids, sum(s.shape[0] for s in shards), len(shards), strategy)
    order, parts = group_by_shard(shard, len(shards))
    rows = [OPS["GatherRows"](s, row[part].astype(ids.dtype)) for s, part in zip(shards, parts, strict=True)]
    return functools.reduce(OPS["ConcatRows"], rows), order


def clip_rows(rows: Any, max_norm: float, ops: Mapping[str, Callable[..., Any]] = OPS) -> Any:
    """Shrink rows to a norm of at most `max_norm`: row · bound / max(‖row‖, bound), zero for zero rows.

    16-bit rows are scaled in float32 and rounded once. `ops` are ops on arrays, or on the wires of a graph.
    """
    try:
        if isinstance(max_norm, str | bytes):
            raise TypeError  # float() reads text, too
        bound = max(float(max_norm), 0.0)
    except (TypeError, ValueError, OverflowError):
        raise make_error("number_unfit", argument="max_norm", value=repr(max_norm)[:80], bound="a number") from None
    dtype = dtype_name(rows.dtype)
    if dtype != "float64" and _FLOAT32_MAX < bound < float("inf"):
        raise make_error(
            "number_unfit", argument="max_norm", value=repr(max_norm)[:80], bound="a number that fits float32"
        )
    squares = ops["RowDot"](rows, rows)
    length = ops["AtLeast"](ops["Sqrt"](squares), bound=bound)
    narrow = dtype in ("float16", "bfloat16")
    wide = ops["CastLike"](rows, squares) if narrow else rows
    scaled = ops["ScaleRows"](wide, ops["FullLike"](length, value=bound))
    short = ops["DivRows"](scaled, length)
    return ops["CastLike"](short, rows) if narrow else short


def _as_matrix(sparse: SparseTensor, functions: Any) -> tuple[Any, Array]:
    """Reshape ids of any rank to [rows, last]; rank 2 is unchanged, its columns unchecked, like in TensorFlow."""
    shape, flat, xp = sparse.dense_shape, flat_shape(sparse), functions.xp
    indices = functions.read(sparse.indices, "sparse_ids")
    if len(shape) == 2:
        return indices, shape
    if sparse.nnz == 0:
        return indices.reshape(0, 2), flat
    last = int(shape[-1])
    strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1)
    linear = sum(indices[:, k] * int(stride) for k, stride in enumerate(strides))
    row = xp.sign(linear) * (abs(linear) // last)  # rounded towards zero, as in C
    return xp.stack([row, linear - row * last], 1), flat
