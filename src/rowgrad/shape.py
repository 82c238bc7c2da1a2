"""Words for shape rules: what a rule may demand, each raising the right refusal. A dimension is an int or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import OpError, refuse, shape_text
from .spec import Known, Shape

INT64_LIMIT = 1 << 63


def rank(x: Known, argument: str, wanted: int, fault: str, **facts: Any) -> None:
    """The argument has exactly this rank."""
    shape = x.shape(argument)
    if len(shape) != wanted:
        raise refuse(fault, argument=argument, shape=shape_text(shape), **facts)


def differ(a: int | None, b: int | None) -> bool:
    """Whether two dimensions are known and not equal."""
    return a is not None and b is not None and a != b


def wrap_int64(value: int) -> int:
    """What is left of a number in 64 bits."""
    return (value + INT64_LIMIT) % (1 << 64) - INT64_LIMIT


def check_elements(shape: Shape) -> None:
    """The number of elements fits int64."""
    total = 1
    for d in shape:
        if d is None:
            return
        total = multiply(total, d)


def multiply(a: int, b: int) -> int:
    """A product of sizes. Refused, it shows what TensorFlow saw: -1 beyond 64 bits, else the wrapped product."""
    product = a * b
    if product >= INT64_LIMIT:
        result = -1 if product >= 1 << 64 else product - (1 << 64)
        raise refuse("elements_overflow", value=a, bound=b, result=result)
    return product


def check_dimensions(shape: tuple[int, ...], argument: str) -> None:
    """The values of a shape. TensorFlow words a negative one in two ways: by whether all of it is small."""
    small = all(d <= 55108 for d in shape)  # four such dimensions cannot overflow, which it tests first
    fault = "dimension_negative" if small else "size_negative"
    total = 1
    for position, d in enumerate(shape):
        if d < 0:
            raise refuse(fault, argument=argument, position=position, value=d, bound=0)
        total = multiply(total, d) if not small else 1
    check_elements(shape)


def _is_out_of_line(shape: list[int]) -> bool:
    """Whether TensorFlow keeps a shape outside its 16 bytes: six dimensions of 16 bits or three of 32 fit inside."""
    sixteen = len(shape) <= 6 and all(d < (1 << 16) - 2 for d in shape)
    return not sixteen and not (len(shape) <= 3 and all(d < (1 << 32) - 2 for d in shape))


def check_replaced(shape: tuple[int, ...], new: Sequence[int], argument: str) -> None:
    """`shape` with its dimensions replaced one by one: every step must be a shape again.

    Where a step makes the shape too large, the words depend on how it was kept before.
    """
    dims = list(shape)
    for position, d in enumerate(new):
        if d < 0:
            raise refuse("size_negative", argument=argument, position=position, value=d, bound=0)
        was_outside = _is_out_of_line(dims)
        dims[position] = d
        try:
            check_elements(tuple(dims))
        except OpError:
            if was_outside or not _is_out_of_line(dims):
                raise refuse("shape_overflow", argument=argument, shape=shape_text(tuple(dims))) from None
            raise


def vectors(x: Known, *names: str) -> None:
    """All of them are vectors."""
    for name in names:
        rank(x, name, 1, "should_be_vector")


def same_lengths(x: Known, *others: str) -> None:
    """`indices` and `weights`, where named, are as long as `segment_ids`."""
    n = x.shape("segment_ids")[0]
    if "indices" in others and differ(x.shape("indices")[0], n):
        raise refuse("segments_match_indices")
    if "weights" in others and differ(x.shape("weights")[0], n):
        raise refuse("segments_match_weights", value=x.shape("weights")[0], bound=n)


def rows_shape(x: Known, name: str) -> Shape:
    """The shape of an argument that has rows."""
    shape = x.shape(name)
    if not shape:
        raise refuse("grad_rank" if name == "grad" else "data_rank", has=(name,))
    return shape


def size(x: Known, name: str) -> int | None:
    """The value of a host scalar that counts rows, where it is known."""
    rank(x, name, 0, "should_be_scalar")
    rows: int | None = x.host[name]
    if rows is not None and rows < 0:
        raise refuse("size_negative", argument=name, value=rows, bound=0)
    return rows
