"""The dense layer on tensors: the functions of `rowgrad.dense` with torch as their array namespace.

They are made of torch's own operations, so torch differentiates, traces and batches them by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..dense import FUNCTIONS
from ..spec import Op


class Namespace:
    """torch under the names of the array standard that it spells otherwise."""

    int64 = torch.int64
    where = staticmethod(torch.where)
    zeros_like = staticmethod(torch.zeros_like)
    ones_like = staticmethod(torch.ones_like)
    full_like = staticmethod(torch.full_like)
    copy = staticmethod(torch.clone)
    concat = staticmethod(torch.cat)
    broadcast_to = staticmethod(torch.broadcast_to)
    reshape = staticmethod(torch.reshape)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """x in another dtype."""
        return x.to(dtype)

    @staticmethod
    def arange(n: Any, dtype: Any, device: Any) -> Any:
        """0, 1, 2, …"""
        return torch.arange(n, dtype=dtype, device=device)


def call(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """A dense op on admitted tensors."""
    result = FUNCTIONS[op.name](Namespace, *arguments.values(), **attrs)
    return result if isinstance(result, tuple) else (result,)
