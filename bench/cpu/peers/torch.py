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


def train(x: Arrays) -> Callable[[], Any] | None:
    if x["dtype"] != "float32":
        return None
    table, grad, ids, offsets = parts(x)
    module = trained(table)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=1e-4)

    def run() -> Any:
        optimizer.zero_grad()
        out = module(ids, offsets)
        out.backward(grad)
        optimizer.step()
        return [out.detach()]

    return run


def trained(table: torch.Tensor) -> torch.nn.EmbeddingBag:
    return torch.nn.EmbeddingBag.from_pretrained(
        table.clone(), freeze=False, mode="mean", sparse=True, include_last_offset=True
    )


def train_tables(x: Arrays) -> Callable[[], Any]:
    bags, table = x["bags"], torch.from_numpy(x["table"])
    modules = torch.nn.ModuleList(trained(table) for _ in range(x["tables"]))
    optimizer = torch.optim.Adagrad(modules.parameters(), lr=1e-4)
    ids, starts, grad = torch.from_numpy(x["ids"]), torch.from_numpy(x["offsets"]), torch.from_numpy(x["grad"])
    cuts = [starts[k * bags : (k + 1) * bags + 1] for k in range(x["tables"])]
    inputs = [(ids[c[0] : c[-1]].contiguous(), c - c[0]) for c in cuts]

    def run() -> Any:
        optimizer.zero_grad()
        out = torch.stack([m(*g) for m, g in zip(modules, inputs, strict=True)], dim=1)
        out.backward(grad)
        optimizer.step()
        return [out.detach().flatten(1)]

    return run


def tiny(x: Arrays, recorded: bool) -> Callable[[], Any]:
    table, ids = torch.ones(100, 16, requires_grad=recorded), torch.arange(16)
    return thousand(lambda: F.embedding_bag(ids, table, ids, mode="mean"))


def tiny_backward(x: Arrays) -> Callable[[], Any]:
    table, ids, grad = torch.ones(100, 16, requires_grad=True), torch.arange(16), torch.ones(16, 16)
    out = F.embedding_bag(ids, table, ids, mode="mean")
    return thousand(lambda: torch.autograd.grad(out, table, grad, retain_graph=True))


def tiny_module(x: Arrays) -> Callable[[], Any]:
    module, ids = torch.nn.EmbeddingBag(100, 16), torch.arange(16)
    return thousand(lambda: module(ids, ids))


def thousand(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        for _ in range(1000):
            result = call()
        return result

    return run


KINDS = {
    "forward": forward, "dense": dense, "rows": rows, "train": train, "train_tables": train_tables,
    "tiny_torch": lambda x: tiny(x, recorded=False), "tiny_torch_grad": lambda x: tiny(x, recorded=True),
    "tiny_torch_backward": tiny_backward, "tiny_module": tiny_module,
}  # fmt: skip
