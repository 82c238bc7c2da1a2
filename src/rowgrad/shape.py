"""Words for shape rules: what a rule may demand, each raising the right refusal. A dimension is an int or None."""

from __future__ import annotations

from .errors import refuse, shape_text
from .spec import Known, Shape

INT64_LIMIT = 1 << 63


def rank(x: Known, argument: str, wanted: int, fault: str, **facts: object) -> None:
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
