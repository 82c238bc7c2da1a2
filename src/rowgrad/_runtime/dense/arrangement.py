"""Shapes, indices and sizes, over an array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._catalog.arrangement import filled
from ...errors import make_error
from .shared import narrow, place, product, wide

# -- Shapes, concatenation and slices ---------------------------------------------------------------------------------


def _reshape(xp: Any, tensor: Any, shape: int | tuple[int, ...]) -> Any:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    return xp.copy(xp.reshape(tensor, filled(tuple(tensor.shape), tuple(sizes))))


def _merge_dims(xp: Any, x: Any, count: int) -> Any:
    shape = tuple(x.shape)
    return xp.copy(xp.reshape(x, (product(shape[:count]), *shape[count:])))


def _expand_dims(xp: Any, input: Any, dim: int) -> Any:
    shape = tuple(input.shape)
    at = dim % (len(shape) + 1)
    return xp.copy(xp.reshape(input, (*shape[:at], 1, *shape[at:])))


def _squeeze(xp: Any, input: Any, axis: tuple[int, ...]) -> Any:
    shape = tuple(input.shape)
    dropped = {a % len(shape) for a in axis} if axis else {i for i, n in enumerate(shape) if n == 1}
    return xp.copy(xp.reshape(input, tuple(n for i, n in enumerate(shape) if i not in dropped)))


def _along(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _concat_part(xp: Any, x: Any, axis: int, values: tuple[Any, ...], index: int) -> Any:
    at = axis % x.ndim
    start = sum(v.shape[at] for v in values[:index])
    return xp.copy(x[_along(at, start, start + values[index].shape[at])])


def _pack(xp: Any, values: tuple[Any, ...], axis: int) -> Any:
    return xp.concat([_expand_dims(xp, v, axis) for v in values], axis % (values[0].ndim + 1))


def _part_at(xp: Any, x: Any, axis: int, index: int) -> Any:
    at = axis % x.ndim
    start = index % x.shape[at]
    part = x[_along(at, start, start + 1)]
    shape = tuple(x.shape)
    return xp.copy(xp.reshape(part, shape[:at] + shape[at + 1 :]))


def _place_at(xp: Any, x: Any, like: Any, axis: int, index: int) -> Any:
    shape, at = tuple(like.shape), axis % like.ndim
    start = index % shape[at]
    before, after = (xp.zeros_like(like[_along(at, *ends)]) for ends in ((0, start), (start + 1, shape[at])))
    return xp.concat([before, _expand_dims(xp, x, at), after], at)


def _cut(xp: Any, x: Any, begin: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    return xp.copy(x[tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))])


def _slice(xp: Any, input: Any, begin: tuple[int, ...], size: tuple[int, ...]) -> Any:
    ends = zip(begin, size, input.shape, strict=True)
    return _cut(xp, input, begin, tuple(n - b if s == -1 else s for b, s, n in ends))


def _pad_like(xp: Any, x: Any, begin: tuple[int, ...], like: Any) -> Any:
    if not begin:  # a scalar: NumPy requires a width for an axis
        return xp.copy(x)
    after = tuple(n - b - s for b, s, n in zip(begin, x.shape, like.shape, strict=True))
    return xp.pad(x, tuple(zip(begin, after, strict=True)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Reshape": _reshape,
    "ReshapeLike": lambda xp, x, like: xp.copy(xp.reshape(x, tuple(like.shape))),
    "MergeDims": _merge_dims,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Concat": lambda xp, values, axis: xp.concat(list(values), axis),
    "ConcatPart": _concat_part,
    "Pack": _pack,
    "PartAt": _part_at,
    "PlaceAt": _place_at,
    "Column": lambda xp, x, index: _part_at(xp, x, 1, index),
    "Slice": _slice,
    "SliceLike": lambda xp, x, begin, like: _cut(xp, x, begin, tuple(like.shape)),
    "PadLike": _pad_like,
}


# -- Indexing, one-hot and where --------------------------------------------------------------------------------------


def _gather(xp: Any, params: Any, indices: Any) -> Any:
    rows = params.shape[0]
    at = xp.first_true((indices < 0) | (indices >= rows))
    if at >= 0:
        value = int(xp.reshape(indices, (-1,))[at])
        where = place(at, indices.shape)
        raise make_error("index_not_in_params", argument="indices", position=where, value=value, bound=rows)
    flat = xp.take(params, xp.reshape(indices, (-1,)))
    return xp.reshape(flat, (*indices.shape, *params.shape[1:]))


def _one_hot(xp: Any, indices: Any, depth: int, on_value: Any, off_value: Any, axis: int) -> Any:
    shape = tuple(indices.shape)
    at = axis % (len(shape) + 1)
    ids = xp.reshape(xp.astype(indices, xp.int64), (*shape[:at], 1, *shape[at:]))
    if 0 in shape:  # nothing to compare, however large depth is
        empty = xp.where(ids == 0, on_value, off_value)
        return xp.copy(xp.broadcast_to(empty, (*shape[:at], depth, *shape[at:])))
    numbers = xp.arange(0, depth, 1, dtype=xp.int64, device=xp.device(indices))
    return xp.where(ids == xp.reshape(numbers, (depth,) + (1,) * (len(shape) - at)), on_value, off_value)


def _flat_indices(xp: Any, indices: Any, shape: tuple[int, ...], ordered: bool) -> Any:
    """Return positions in row-major order; raise for indices out of bounds, and unless sorted if they must be."""
    rows = xp.astype(xp.reshape(indices, (indices.shape[0] if indices.ndim else 1, len(shape))), xp.int64)
    flat = xp.full((rows.shape[0],), 0, dtype=xp.int64, device=xp.device(indices))
    outside = flat > 0
    for k, size in enumerate(shape):
        column = rows[:, k]
        outside = outside | (column < 0) | (column >= size)
        flat = flat * size + column
    first = xp.first_true(outside)
    if ordered:
        disordered = xp.first_true(flat[1:] <= flat[:-1]) + 1
        if disordered > 0 and not 0 <= first <= disordered:
            key = "index_repeated" if bool(flat[disordered] == flat[disordered - 1]) else "index_disordered"
            raise make_error(key, argument="sparse_indices", position=disordered, value=_coordinates(rows, disordered))
    if first >= 0:
        bound = ",".join(map(str, shape))
        facts = {"position": first, "value": _coordinates(rows, first), "bound": bound}
        raise make_error("index_out_of_bounds", argument="sparse_indices", **facts)
    return xp.where(outside, product(shape), flat)  # traced arrays are not checked; they write nothing there


def _coordinates(rows: Any, at: int) -> str:
    return ",".join(str(int(rows[at, k])) for k in range(rows.shape[1]))


def _sparse_to_dense(
    xp: Any, indices: Any, output_shape: Any, values: Any, default: Any, validate_indices: bool
) -> Any:
    shape = tuple(output_shape) if isinstance(output_shape, tuple | list) else (output_shape,)
    flat = _flat_indices(xp, indices, shape, validate_indices)
    if not flat.shape[0] or not product(shape):
        return xp.copy(xp.broadcast_to(default, shape))
    last = xp.last_positions(flat, product(shape))
    values = xp.reshape(xp.broadcast_to(values, flat.shape), (-1,))
    written = xp.take(values, xp.where(last < 0, xp.zeros_like(last), last))
    return xp.copy(xp.reshape(xp.where(last < 0, default, written), shape))


def _sparse_to_dense_grad(xp: Any, indices: Any, values: Any, grad: Any) -> tuple[Any, Any]:
    flat = _flat_indices(xp, indices, tuple(grad.shape), False)
    every = xp.reshape(wide(xp, grad), (-1,))
    zeros = xp.zeros_like(every)
    if not flat.shape[0] or not every.shape[0]:
        total = xp.sum(every, (0,), False)
        return xp.zeros_like(values), narrow(xp, total, grad.dtype)
    last = xp.last_positions(flat, every.shape[0])
    numbers = xp.arange(0, flat.shape[0], 1, dtype=last.dtype, device=xp.device(flat))
    of_values = xp.where(xp.take(last, flat) == numbers, xp.take(every, flat), xp.zeros_like(xp.take(every, flat)))
    if not values.ndim:
        of_values = xp.sum(of_values, (0,), False)
    rest = xp.sum(xp.where(last < 0, every, zeros), (0,), False)
    return narrow(xp, of_values, grad.dtype), narrow(xp, rest, grad.dtype)


PICKING_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Gather": _gather,
    "OneHot": _one_hot,
    "SparseToDense": _sparse_to_dense,
    "SparseToDenseLike": lambda xp, indices, like, values, default: _sparse_to_dense(
        xp, indices, tuple(like.shape), values, default, False
    ),
    "SparseToDenseGrad": _sparse_to_dense_grad,
    "Where": lambda xp, condition: xp.copy(xp.argwhere(condition)),
    "Flatnonzero": lambda xp, mask: xp.reshape(xp.argwhere(mask), (-1,)),
}


# -- Shapes, fills and ranges -----------------------------------------------------------------------------------------


def _numbers(xp: Any, values: Any, dtype: Any, like: Any) -> Any:
    return xp.asarray(values, dtype=dtype, device=xp.device(like))


def _fill(xp: Any, dims: int | tuple[int, ...], value: Any) -> Any:
    return xp.copy(xp.broadcast_to(value, dims if isinstance(dims, tuple | list) else (dims,)))


def _range(xp: Any, start: Any, limit: Any, delta: Any, Tidx: str) -> Any:
    return xp.arange(start, limit, delta, dtype=xp.dtype(Tidx), device=None)


SIZES_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Shape": lambda xp, input, out_type: _numbers(xp, tuple(input.shape), xp.dtype(out_type), input),
    "Size": lambda xp, input, out_type: _numbers(xp, product(input.shape), xp.dtype(out_type), input),
    "Rank": lambda xp, input: _numbers(xp, input.ndim, xp.dtype("int32"), input),
    "Dimension": lambda xp, x, axis: _numbers(xp, x.shape[axis], xp.int64, x),
    "Fill": _fill,
    "Range": _range,
}
