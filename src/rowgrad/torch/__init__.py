"""rowgrad on PyTorch: modules, optimizers, and the runner of torch tensors.

`rowgrad.raw_ops`, `rowgrad.embedding_lookup_sparse` and similar functions accept and return torch tensors, with
autograd, without importing this package.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from .._hints import missing_extra as _missing_extra
from .._hints import no_attribute as _no_attribute

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _missing_extra("rowgrad.torch", "PyTorch", "torch") from error

from . import clip as clip
from . import data as data
from . import functional as functional
from . import fused_ops as _fused_ops  # noqa: F401  registers operators
from . import nn as nn
from . import optim as optim
from . import trees as _trees  # noqa: F401  registers Plan as a pytree
from . import vmap as _vmap  # noqa: F401  calls must not import it: a fork could happen meanwhile
from .convert import convert as convert
from .device_ids import id_functions as id_functions
from .device_ids import in_host_memory as in_host_memory
from .devices import synchronize as synchronize
from .devices import validate as validate
from .row_gradient import RowGradient as RowGradient
from .runner import call as call
from .runner import concrete as concrete

__all__ = [
    "RowGradient", "clip", "convert", "data", "functional", "nn", "optim", "replicate_rows", "sharded", "synchronize",
    "validate",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name == "sharded":  # imported on request: torch.distributed is slow to load
        return _import_module(".sharded", __name__)
    if name == "replicate_rows":
        return _import_module(".replicated", __name__).replicate_rows
    inner = [
        f"{module.__name__.rpartition('.')[2]}.{member}"
        for module in (nn, functional, optim, clip)
        for member in dir(module)
    ]
    raise _no_attribute(__name__, name, __dir__(), inner=inner)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
