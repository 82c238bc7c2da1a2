"""What lookups are told and given, judged: the same words for every array library."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from .arrays import canonical, plain_array
from .errors import refuse, shape_text
from .parts import check_strategy
from .shape import check_elements
from .sparse_tensor import SparseTensor
from .spec import FLOATS

Array = np.ndarray[Any, Any]

COMBINERS = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}
LOOKUPS = ("auto", "unique")
ACCUMULATE = ("T", "float32")


def kind_of(combiner: str) -> str:
    """The op's name for a combiner."""
    if combiner not in COMBINERS:
        raise refuse("combiner_unknown", argument="combiner", value=repr(combiner), bound=", ".join(COMBINERS))
    return COMBINERS[combiner]


def read_combiner(combiner: str | None) -> str:
    """The same for TensorFlow's lookups: None is the mean, and the words are TensorFlow's."""
    kind = COMBINERS.get("mean" if combiner is None else combiner) if isinstance(combiner, str | None) else None
    if kind is None:
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner}")
    return kind


def check_options(partition_strategy: str, lookup: str, accumulate: str) -> None:
    """Refuse options that are none."""
    if not isinstance(lookup, str) or lookup not in LOOKUPS:
        raise ValueError(f"lookup must be one of 'auto' or 'unique', got {lookup}")
    if not isinstance(accumulate, str) or accumulate not in ACCUMULATE:
        raise ValueError(f"accumulate must be one of 'T' or 'float32', got {accumulate}")
    check_strategy(partition_strategy)


# Where TensorFlow compares weights with 0 it takes subnormal ones for 0, except in float16, which it widens first.
_SMALLEST_POSITIVE = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def smallest_positive(dtype: str) -> float:
    """The smallest weight of a dtype that `safe_embedding_lookup_sparse` does not drop as zero."""
    return _SMALLEST_POSITIVE.get(dtype, 1.0)


def row_number(argument: str, row: int | None, rows: int) -> int | None:
    """A row given by its number; negative ones count from the end."""
    if row is None:
        return None
    try:
        if isinstance(row, bool):
            raise TypeError
        index(row)
    except TypeError:
        raise refuse("number_unfit", argument=argument, value=repr(row), bound="an int") from None
    if not -rows <= row < rows:
        raise refuse("row_outside", argument=argument, value=row, bound=rows)
    return row % rows


def check_default_id(default_id: int | None, dtype: Any) -> None:
    """Refuse a default that ids of this dtype cannot hold."""
    limits = np.iinfo(dtype)
    if default_id is not None and not limits.min <= default_id <= limits.max:
        raise refuse("integer_does_not_fit", argument="default_id", value=default_id, bound=dtype)


def shards_of(params: Any, argument: str) -> list[Any]:
    """Only a list is a list of shards; everything else is one table."""
    if getattr(params, "is_list", False):  # under vjp; alone it would be a list of shards
        raise refuse("not_an_array", argument=argument, value="a list of numbers; write numpy.array(…) around it")
    shards = params if isinstance(params, list) else [params]
    if not isinstance(params, list | tuple) and not hasattr(params, "dtype") and hasattr(params, "__iter__"):
        items = () if hasattr(params, "__array__") else tuple(params)
        if items and all(hasattr(item, "dtype") for item in items):  # torch's ParameterList, say
            items_of = f"{type(params).__name__} of {len(items)} arrays; a list of shards is a Python list: list(…)"
            raise refuse("not_an_array", argument=argument, value=items_of)
    if not shards:
        raise ValueError("Length of params is currently 0. Need at least one param.")
    arrays = [s if hasattr(s, "dtype") else plain_array(s, argument) for s in shards]
    for array in arrays:
        if not hasattr(array, "__array__"):  # it has a dtype, as a Table of JAX has, but is none
            raise refuse("not_an_array", argument=argument, value=type(array).__name__)
    arrays = [canonical(s, argument) if isinstance(s, np.ndarray) else s for s in arrays]
    first = arrays[0]
    if len(arrays) > 1 and not all(len(a.shape) for a in arrays):
        raise refuse("data_rank", argument=argument)
    for k, shard in enumerate(arrays[1:], 1):
        if shard.dtype != first.dtype or tuple(shard.shape[1:]) != tuple(first.shape[1:]):
            what = [f"{a.dtype}{shape_text(tuple(a.shape[1:]))}" for a in (shard, first)]
            raise refuse("shards_disagree", argument=f"{argument}[{k}]", value=what[0], bound=what[1])
    return arrays


def ids_of(sparse: SparseTensor, argument: str) -> Array:
    """The ids of a sparse tensor as an array of NumPy."""
    ids = canonical(np.asarray(sparse.values), argument)
    if ids.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise refuse("dtype_not_allowed", argument=argument, value=ids.dtype, bound="int32, int64")
    return ids


def dtype_name(dtype: Any) -> str:
    """The catalogue's name of a dtype, whichever library's it is."""
    return str(dtype).rpartition(".")[2]


def is_float(dtype: Any) -> bool:
    """Whether a dtype is one of the four floats."""
    return dtype_name(dtype) in FLOATS


def flat_shape(sparse: SparseTensor) -> Array:
    """[rows, last] for ids of any rank: rows are those of the result before it gets its shape."""
    shape = sparse.dense_shape
    if (shape < 0).any():
        raise refuse("dimension_negative", argument="dense_shape", value=int(shape.min()), bound=0)
    check_elements(sparse.shape)  # beyond int64, linear indices would wrap into other rows
    if len(shape) == 2:
        return shape
    if len(shape) == 0:
        raise refuse("dense_shape_empty")
    flat = np.array([np.prod(shape[:-1], dtype=np.int64), shape[-1]], np.int64)
    if sparse.nnz and 0 in shape.tolist():
        raise refuse("nothing_to_hold", value=sparse.nnz, shape=shape_text(sparse.shape),
                     bound=shape_text(tuple(flat.tolist())))  # fmt: skip
    return flat


def check_rows_are_vectors(result: Any) -> None:
    """Rows without ids become zeros by TensorFlow's mask, which has the rank of a matrix: the result must too."""
    if len(result.shape) == 1:
        raise refuse("mask_needs_columns")
    if len(result.shape) != 2:
        mask, shape = shape_text(tuple(result.shape[:2])), shape_text(tuple(result.shape))
        raise refuse("mask_needs_rank_2", value=mask, bound=shape)
