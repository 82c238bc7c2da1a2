"""A call whose arguments have a batch dimension, as the rules of vmap see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..spec import CATALOG, Aval, Op
from .autograd import Run

Outputs = tuple[tuple[Tensor, ...], tuple[int | None, ...]]  # and where each has the batch; None: it has none


@dataclass(frozen=True)
class Batch:
    """One op for all items of a batch."""

    op: Op
    attrs: Mapping[str, Any]
    size: int  # how many items
    arguments: Mapping[str, Any]  # tensors, those of `batched` with the items first; host values as they are
    batched: frozenset[str]
    in_dims: Mapping[str, int | None]  # where the batch stood when the call came
    outputs: tuple[Aval, ...]  # of one item; None where data decides
    run: Run  # calls an op one level of vmap further down

    def with_shared(self, **arguments: Tensor) -> Batch:
        """The same call with arguments that are one for all items."""
        changed = {**self.arguments, **arguments}
        return replace(self, arguments=changed, batched=self.batched - arguments.keys())

    def rows_of(self, name: str) -> Any:
        """The first dimension of an item's argument."""
        return self.arguments[name].shape[1 if name in self.batched else 0]

    def each(self, name: str) -> Tensor:
        """An argument with the items first, whether they share it or not."""
        value: Tensor = self.arguments[name]
        return value if name in self.batched else value.expand(self.size, *value.shape)

    def numbers(self, like: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
        """0, 1, 2, … for the items, on the device of another tensor."""
        return torch.arange(self.size, dtype=dtype, device=like.device)

    def call(self, arguments: dict[str, Any]) -> tuple[Tensor, ...]:
        """The op itself, one level down."""
        return self.run(self.op, arguments, self.attrs)

    def call_other(self, name: str, *arguments: Any, **attrs: Any) -> Tensor:
        """Another op of one output, one level down."""
        op = CATALOG[name]
        output: Tensor = self.run(op, dict(zip(op.input_names, arguments, strict=True)), {**op.attrs, **attrs})[0]
        return output

    def item(self, number: int) -> dict[str, Any]:
        """The arguments of one item."""
        return {k: v.select(0, number) if k in self.batched else v for k, v in self.arguments.items()}
