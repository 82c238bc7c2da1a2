"""Room that is too small: an error that says which argument it is, what it was, and what it has to be.

A kernel under jit can refuse numbers only, in words of its own. So the numbers are those of a call that names a row
beyond a table of one row, and the words are made here, out of the name that call goes by.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ...errors import refuse
from ...spec import CATALOG, Aval
from .. import custom_call
from ..varying import together, typed

_CALL = "sharded.embedding_bag"
_WHAT = {"capacity": "distinct rows", "id_capacity": "ids"}  # of which a device asks so many of one owner


def refuse_more(argument: str, capacity: int, most: Any) -> Any:
    """0 where `most` does not exceed the capacity; otherwise an error, or -1 on platforms that cannot raise."""
    excess = jnp.maximum(most - capacity, 0).astype(jnp.int32).reshape(1)
    (found,) = _PRIMITIVE.bind(*together([jnp.zeros(1, jnp.int32), excess]), argument=argument, capacity=capacity)
    return found[0]


def _lower(context: Any, row: Any, excess: Any, argument: str, capacity: int) -> Any:
    op = replace(CATALOG["GatherRows"], name=f"{_CALL} {argument} {capacity}")
    one = Aval("int32", (1,))
    return custom_call.lower(context, (row, excess), op, {"params": one, "indices": one}, {}, dict(op.attrs), (one,))


def _words(room: str, excess: int) -> str:
    argument, capacity = room.split()
    needed = int(capacity) + excess
    error = refuse("bags_unfit", argument=argument, value=capacity, bound=needed)
    given = f"{argument}={capacity}, but a device asks {needed} {_WHAT[argument]} of one owner"
    return f"{type(error).__name__}: {error.in_call(_CALL, None, given)}"


_PRIMITIVE = Primitive("rowgrad_refuse_more")
_PRIMITIVE.multiple_results = True
_PRIMITIVE.def_abstract_eval(lambda row, excess, **_: [typed((1,), row.dtype, [row, excess])])
mlir.register_lowering(_PRIMITIVE, mlir.lower_fun(lambda row, excess, **_: [row - (excess > 0)], multiple_results=True))
mlir.register_lowering(_PRIMITIVE, _lower, platform="cpu")
custom_call.speak_for(_CALL, _words)
