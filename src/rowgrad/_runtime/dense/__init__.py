"""The dense ops as functions over an array namespace `xp`.

A function takes the namespace, the op's arguments in their order (arrays; tuples of arrays for lists; ints or tuples of
ints for host inputs) and its attributes by name. The dtype of a type variable that only host inputs have is also passed
by name. Results are new arrays, never views of arguments.

Where a derivative is ambiguous (a quotient by 0, a maximum), the function is written so that automatic differentiation
agrees with the op's record. 16-bit floats are summed and multiplied as matrices in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ..._catalog.spec import CATALOG, Aval
from . import arrangement, elementwise, images, matrix, reductions

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **elementwise.FUNCTIONS,
    **elementwise.UNARY_FUNCTIONS,
    **elementwise.COMPARISON_FUNCTIONS,
    **elementwise.CONVERSION_FUNCTIONS,
    **reductions.FUNCTIONS,
    **matrix.LOSSES_FUNCTIONS,
    **matrix.FUNCTIONS,
    **arrangement.FUNCTIONS,
    **arrangement.PICKING_FUNCTIONS,
    **arrangement.SIZES_FUNCTIONS,
    **matrix.ROWS_FUNCTIONS,
    **images.FUNCTIONS,
}


@cache
def _host_type_outputs(name: str) -> tuple[tuple[int, str], ...]:
    op = CATALOG[name]
    hosts = {a.type for a in op.inputs if a.host} - {a.type for a in op.inputs if not a.host}
    return tuple((i, o.type) for i, o in enumerate(op.outputs) if o.type in op.types and o.type in hosts)


def host_dtypes(name: str, outputs: Sequence[Aval]) -> dict[str, str]:
    """Return the dtypes of type variables that only host inputs have, which are plain numbers without a dtype."""
    return {variable: outputs[i].dtype for i, variable in _host_type_outputs(name)}
