"""Every dense op of the catalogue as a function, under TensorFlow's names, their aliases, and snake_case variants."""

from __future__ import annotations

from ._catalog.spec import CATALOG, snake
from .raw_ops import OPS

__all__ = []
for _op in CATALOG.values():
    if _op.layer == "dense":
        for _name in (_op.name, *_op.aliases):
            globals()[_name] = globals()[snake(_name)] = OPS[_op.name]
            __all__ += [_name, snake(_name)]
