"""torch.nn.functional.embedding_bag: forward, dense backward, sparse backward made unique by coalesce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

VERSION = f"torch {torch.__version__}"
Arrays = dict[str, Any]


def to_numpy(result: Any) -> list[np.ndarray[Any, Any]]:
    parts = result if isinstance(result, tuple | list) else [result]
    return [p.float().numpy() if p.dtype == torch.bfloat16 else p.numpy() for p in parts]


def parts(x: Arrays) -> tuple[torch.Tensor, ...]:
    dtype = getattr(torch, x["dtype"])
    ids = torch.from_numpy(x["ids"])
    offsets = torch.from_numpy(x["offsets"]).to(ids.dtype)
    return torch.from_numpy(x["table"]).to(dtype), torch.from_numpy(x["grad"]).to(dtype), ids, offsets


def bag(table: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor, sparse: bool = False) -> torch.Tensor:
    return F.embedding_bag(ids, table, offsets, mode="mean", sparse=sparse, include_last_offset=True)


def forward(x: Arrays) -> Callable[[], Any]:
    table, _, ids, offsets = parts(x)

    def run() -> Any:
        with torch.no_grad():
            return bag(table, ids, offsets)

    return run


def dense(x: Arrays) -> Callable[[], Any]:
    table, grad, ids, offsets = parts(x)
    table.requires_grad_()
    out = bag(table, ids, offsets)
    return lambda: torch.autograd.grad(out, table, grad, retain_graph=True)[0]


def rows(x: Arrays) -> Callable[[], Any]:
    table, grad, ids, offsets = parts(x)
    table.requires_grad_()
    out = bag(table, ids, offsets, sparse=True)

    def run() -> Any:
        found = torch.autograd.grad(out, table, grad, retain_graph=True)[0].coalesce()
        return found.values(), found.indices()[0]

    return run


KINDS = {"forward": forward, "dense": dense, "rows": rows}
