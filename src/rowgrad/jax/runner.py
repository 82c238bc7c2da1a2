"""The JAX runner: `dispatch` passes calls with JAX arrays to `call`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._catalog.spec import Op
from ..errors import make_error
from . import dense, eager, order, primitive
from .arrays import is_traced


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], out: Any) -> tuple[Any, ...]:
    """Run an op on JAX arrays and tracers."""
    if out is not None:
        raise make_error("out_unfit", argument=op.outputs[0].name, bound="absent for JAX arrays", value="an array")
    if not any(map(is_traced, arguments.values())):
        return eager.call(op, arguments, attrs)
    if op.kernel is None:
        return dense.call(op, arguments, attrs)
    return primitive.bind(op, arguments, order.leave_open(op, attrs))
