"""Words for shape rules: what a rule may demand, each raising the right refusal. A dimension is an int or None."""

from __future__ import annotations

from typing import Any

from .errors import refuse, shape_text
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


def check_elements(shape: Shape, wrapped: bool) -> None:
    """The number of elements fits int64; `wrapped` says which result the message shows."""
    total = 1
    for d in shape:
        if d is None:
            return
        if total * d >= INT64_LIMIT:
            result = wrap_int64(total * d) if wrapped else -1
            raise refuse("elements_overflow", value=total, bound=d, result=result)
        total *= d


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
