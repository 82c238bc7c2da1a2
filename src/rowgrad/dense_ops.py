"""The dense layer's ops as functions: the elementwise steps that gradients of weights are written in."""

from __future__ import annotations

from .raw_ops import OPS
from .spec import CATALOG

__all__ = []
for _op in CATALOG.values():
    if _op.layer == "dense":
        globals()[_op.name] = globals()[_op.snake_name] = OPS[_op.name]
        __all__ += [_op.name, _op.snake_name]
