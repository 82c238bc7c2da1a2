"""What the lookups of every array library are told, read the same way."""

from __future__ import annotations

from .embedding import COMBINERS
from .errors import refuse


def kind_of(combiner: str) -> str:
    """The op's name for a combiner."""
    if combiner not in COMBINERS:
        raise refuse("combiner_unknown", argument="combiner", value=repr(combiner), bound=", ".join(COMBINERS))
    return COMBINERS[combiner]


def row_number(argument: str, row: int | None, rows: int) -> int | None:
    """A row given by its number; negative ones count from the end."""
    if row is None:
        return None
    if not -rows <= row < rows:
        raise refuse("row_outside", argument=argument, value=row, bound=rows)
    return row % rows
