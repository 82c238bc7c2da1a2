"""One function per op of the catalogue that puts a block into a scope: `ops.MatMul(scope, a, b, transpose_b=True)`.

The first argument is the scope, followed by the op's inputs and attributes, by position or by keyword. An input is an
output of another block, a block with one output, a NumPy array, or Python numbers that take the dtype of the inputs
beside them. The returned block has the op's outputs as attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any as _Any  # there is an op of that name

from .. import _catalog as _declarations  # noqa: F401  importing it fills the catalogue
from .._catalog.spec import CATALOG, Op, find_op
from .._hints import no_attribute

# Importing these three registers the expansions of graph-layer blocks.
from .blocks import constant as _blocks  # noqa: F401
from .gradients import untraced as _gradients  # noqa: F401
from .inputs import bind_call, sparse_triple
from .node_builder import place
from .nodes import Placed, Scope
from .variables import variable_of as _variables  # noqa: F401

_FUNCTIONS: dict[str, Callable[..., Placed]] = {}


def _function(op: Op) -> Callable[..., Placed]:
    def function(scope: Scope, *args: _Any, **kwargs: _Any) -> Placed:
        if not isinstance(scope, Scope):
            raise TypeError(f"{op.name}: the first argument is a Scope, got {type(scope).__name__}")
        inputs, attrs = bind_call(op, args, kwargs)
        return place(scope, op, inputs, attrs)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("scope", either)]
    # Pins that a sparse tensor at an earlier pin may fill.
    filled = {pin for n in op.input_names for pin in (sparse_triple(op, n) or ())[1:]}
    optional = False
    for arg in op.inputs:
        optional = optional or arg.optional or arg.name in filled  # Python requires defaults after the first one
        parameters.append(inspect.Parameter(arg.name, either, default=None if optional else inspect.Parameter.empty))
    parameters += [inspect.Parameter(k, either, default=v) for k, v in op.attrs.items()]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    function.__module__ = __name__
    return function


def function_of(name: str) -> Callable[..., Placed]:
    """Return the function of an op."""
    op = find_op(name)
    if op is None:
        raise no_attribute(__name__, name, __dir__(), "`rowgrad ops` lists all ops.")
    return _FUNCTIONS.get(name) or _FUNCTIONS.setdefault(name, _function(op))


def __getattr__(name: str) -> _Any:
    return function_of(name)


def __dir__() -> list[str]:
    return [n for op in CATALOG.values() for n in (op.name, *op.aliases)]
