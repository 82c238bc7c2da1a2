"""Checks for shape rules. A dimension is an int, or None if unknown; checks raise for known, invalid dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import OpError, make_error, shape_text
from .spec import Known, Shape

INT64_LIMIT = 1 << 63


def rank(x: Known, argument: str, expected: int, fault: str, **facts: Any) -> None:
    """Raise unless the argument has this rank."""
    shape = x.shape(argument)
    if len(shape) != expected:
        raise make_error(fault, argument=argument, shape=shape_text(shape), **facts)


def differ(a: int | None, b: int | None) -> bool:
    """Return whether two dimensions are known and not equal."""
    return a is not None and b is not None and a != b


def wrap_int64(value: int) -> int:
    """Return a number wrapped to int64."""
    return (value + INT64_LIMIT) % (1 << 64) - INT64_LIMIT


def check_elements(shape: Shape) -> None:
    """Raise unless the number of elements fits int64."""
    total = 1
    for d in shape:
        if d is None:
            return
        total = multiply(total, d)


def multiply(a: int, b: int) -> int:
    """Multiply sizes; the overflow error shows TensorFlow's result: -1 beyond 64 bits, else the wrapped product."""
    product = a * b
    if product >= INT64_LIMIT:
        result = -1 if product >= 1 << 64 else product - (1 << 64)
        raise make_error("elements_overflow", value=a, bound=b, result=result)
    return product


def check_dimensions(shape: tuple[int, ...], argument: str) -> None:
    """Raise for an invalid shape. TensorFlow has two messages for a negative size: one if all sizes are small."""
    small = all(d <= 55108 for d in shape)  # four such dimensions cannot overflow, which it tests first
    fault = "dimension_negative" if small else "size_negative"
    total = 1
    for position, d in enumerate(shape):
        if d < 0:
            raise make_error(fault, argument=argument, position=position, value=d, bound=0)
        total = multiply(total, d) if not small else 1
    check_elements(shape)


def _is_out_of_line(shape: list[int]) -> bool:
    """Return whether TensorFlow stores a shape outside its 16 bytes; six 16-bit or three 32-bit sizes fit inside."""
    sixteen = len(shape) <= 6 and all(d < (1 << 16) - 2 for d in shape)
    return not sixteen and not (len(shape) <= 3 and all(d < (1 << 32) - 2 for d in shape))


def check_replaced(shape: tuple[int, ...], new: Sequence[int], argument: str) -> None:
    """Replace the dimensions of `shape` one by one; raise if an intermediate shape is invalid.

    The message for a shape that becomes too large depends on how TensorFlow stored it before.
    """
    dims = list(shape)
    for position, d in enumerate(new):
        if d < 0:
            raise make_error("size_negative", argument=argument, position=position, value=d, bound=0)
        was_outside = _is_out_of_line(dims)
        dims[position] = d
        try:
            check_elements(tuple(dims))
        except OpError:
            if was_outside or not _is_out_of_line(dims):
                raise make_error("shape_overflow", argument=argument, shape=shape_text(tuple(dims))) from None
            raise


def vectors(x: Known, *names: str) -> None:
    """Raise unless all these arguments are vectors."""
    for name in names:
        are_ids = name == "indices" and "segment_ids" in names
        rank(x, name, 1, "ids_should_be_vector" if are_ids else "should_be_vector")


def same_lengths(x: Known, *others: str) -> None:
    """Raise unless `indices` and `weights`, if listed, have the length of `segment_ids`."""
    n = x.shape("segment_ids")[0]
    if "indices" in others and differ(x.shape("indices")[0], n):
        raise make_error("segments_match_indices", value=n, bound=x.shape("indices")[0])
    if "weights" in others and differ(x.shape("weights")[0], n):
        raise make_error("segments_match_weights", value=x.shape("weights")[0], bound=n)


def rows_shape(x: Known, name: str) -> Shape:
    """Return the shape of an argument; raise for a scalar, which has no rows."""
    shape = x.shape(name)
    if not shape:
        raise make_error("grad_rank" if name == "grad" else "data_rank", argument=name)
    return shape


def size(x: Known, name: str) -> int | None:
    """Return the value of a host scalar that counts rows, if known."""
    rank(x, name, 0, "should_be_scalar")
    rows: int | None = x.host[name]
    if rows is not None and rows < 0:
        raise make_error("size_negative", argument=name, value=rows, bound=0)
    return rows


# -- Dense ops --------------------------------------------------------------------------------------------------------


def same(*names: str) -> Any:
    """Return a shape rule: all these arguments and the result have the same shape."""

    def rule(x: Known) -> tuple[Shape, ...]:
        first = x.shape(names[0])
        for name in names[1:]:
            check_same(x.shape(name), first, name)
        return (first,)

    return rule


def check_same(shape: Shape, expected: Shape, argument: str) -> None:
    """Raise if two shapes differ in known dimensions."""
    if len(shape) != len(expected) or any(map(differ, shape, expected)):
        raise make_error("same_shape", argument=argument, value=shape_text(shape), bound=shape_text(expected))


def broadcast(first: Shape, second: Shape, argument: str) -> Shape:
    """Return the shape two arrays broadcast to; `argument` names the second in errors."""
    if first == second:
        return first
    size = max(len(first), len(second))
    made: list[int | None] = []
    for a, b in zip((1,) * (size - len(first)) + first, (1,) * (size - len(second)) + second, strict=True):
        if b == 1 or a == b:
            made.append(a)
        elif a == 1 or a is None:
            made.append(b)
        elif b is None:
            made.append(a)
        else:
            raise make_error("not_broadcast", argument=argument, value=shape_text(second), bound=shape_text(first))
    return tuple(made)


def check_broadcasts_to(shape: Shape, to: Shape, argument: str) -> None:
    """Raise unless the first shape broadcasts to the second, as far as both are known."""
    if len(shape) > len(to) or any(map(differ, broadcast(to, shape, argument), to)):
        raise make_error("not_broadcast", argument=argument, value=shape_text(shape), bound=shape_text(to))


def scalar(x: Known, name: str) -> Any:
    """Return the value of a host scalar, if known."""
    rank(x, name, 0, "should_be_scalar")
    return x.host.get(name)


def vector(x: Known, name: str) -> tuple[int, ...] | None:
    """Return the values of a host vector, if known."""
    rank(x, name, 1, "should_be_vector")
    return x.host.get(name)


def axis_in(value: int, dims: int, argument: str, position: int = 0) -> int:
    """Return a dimension counted from the front; a negative one counts from the end."""
    if not -dims <= value < dims:
        raise make_error("axis_outside", argument=argument, position=position, value=value, bound=dims)
    return value % dims


def axes(x: Known, name: str, dims: int) -> tuple[int, ...] | None:
    """Return the dimensions that a host scalar or vector names, if known."""
    if len(x.shape(name)) > 1:
        raise make_error("should_be_vector", argument=name, shape=shape_text(x.shape(name)))
    value = x.host.get(name)
    if value is None:
        return None
    found = tuple(axis_in(a, dims, name, i) for i, a in enumerate(value if isinstance(value, tuple) else (value,)))
    for i, a in enumerate(found):
        if a in found[:i]:
            raise make_error("axis_twice", argument=name, position=i, value=a)
    return found
