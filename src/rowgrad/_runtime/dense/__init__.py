"""The dense layer's functions, over whatever array namespace `xp` the arrays belong to.

A function takes the namespace, the op's arguments in their order (arrays; tuples of arrays for lists; ints or tuples of
ints for host inputs) and its attributes by name. A type variable that only host inputs have is handed over by its name
too, as a dtype's name. Results are arrays of their own, never views of arguments.

Where a derivative has a choice (a quotient by 0, a maximum) the function is written so that a library which
differentiates it by itself makes the choice of the op's record. Where 16-bit floats are added up or multiplied as
matrices, that is done in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ..._catalog.spec import CATALOG, Aval
from . import arrangement, elementwise, matrix, reductions
from . import arrangement as picking
from . import arrangement as sizes
from . import matrix as losses
from . import matrix as rows

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **elementwise.FUNCTIONS,
    **elementwise.UNARY_FUNCTIONS,
    **elementwise.COMPARISON_FUNCTIONS,
    **elementwise.CONVERSION_FUNCTIONS,
    **reductions.FUNCTIONS,
    **losses.LOSSES_FUNCTIONS,
    **matrix.FUNCTIONS,
    **arrangement.FUNCTIONS,
    **picking.PICKING_FUNCTIONS,
    **sizes.SIZES_FUNCTIONS,
    **rows.ROWS_FUNCTIONS,
}


@cache
def _handed_types(name: str) -> tuple[tuple[int, str], ...]:
    op = CATALOG[name]
    hosts = {a.type for a in op.inputs if a.host} - {a.type for a in op.inputs if not a.host}
    return tuple((i, o.type) for i, o in enumerate(op.outputs) if o.type in op.types and o.type in hosts)


def handed_types(name: str, outputs: Sequence[Aval]) -> dict[str, str]:
    """The dtypes of type variables that only host inputs have: numbers do not say theirs."""
    return {variable: outputs[i].dtype for i, variable in _handed_types(name)}
