"""Every dense op of the catalogue as a function, under TensorFlow's names, their aliases, and snake_case variants."""

from __future__ import annotations

from typing import Any

from ._catalog.spec import CATALOG, snake
from ._hints import no_attribute
from .raw_ops import OPS

__all__ = []
for _op in CATALOG.values():
    if _op.layer == "dense":
        for _name in (_op.name, *_op.aliases):
            globals()[_name] = globals()[snake(_name)] = OPS[_op.name]
            __all__ += [_name, snake(_name)]


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name, __all__, "`rowgrad ops` lists all ops.")
