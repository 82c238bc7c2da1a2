"""rowgrad for JAX: lookups, tables with row-sparse gradients, optimizers, and the runner of JAX arrays.

`rowgrad.raw_ops` and lookups such as `rowgrad.embedding_lookup_sparse` accept and return JAX arrays, also under `jit`,
`grad`, `vmap` and other transforms. They do not need an import of this package.
"""

from __future__ import annotations

from typing import Any as _Any

from .._hints import missing_extra as _missing_extra
from .._hints import no_attribute as _no_attribute

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise _missing_extra("rowgrad.jax", "JAX", "jax") from error

from . import gradients as _gradients  # noqa: F401  the primitives' derivatives
from . import optim as optim
from . import rows as rows
from . import sharded as sharded
from . import trees as _trees  # noqa: F401  Plan, IndexedRows and SparseTensor become pytrees
from .arrays import is_traced as is_traced
from .cuda_call import synchronize as synchronize
from .functional import embedding_bag as embedding_bag
from .functional import lookup_traced as lookup_traced
from .row_gradients import value_and_rows as value_and_rows
from .runner import call as call
from .table import Table as Table

__all__ = ["Table", "embedding_bag", "optim", "rows", "sharded", "synchronize", "value_and_rows"]


def __getattr__(name: str) -> _Any:
    inner = [f"{module.__name__.rpartition('.')[2]}.{member}" for module in (optim, rows) for member in dir(module)]
    raise _no_attribute(__name__, name, __all__, inner=inner)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
