"""RowShardedEmbeddingBag: one table whose rows are sharded over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import functional
from ..tensors import check_table_size
from .base import ShardedModule
from .exchange import TIMEOUT, copy_rows, gather_table
from .placement import Stack


class RowShardedEmbeddingBag(ShardedModule):
    """`rowgrad.torch.nn.EmbeddingBag` with its rows sharded over the ranks of a process group.

    Every rank passes its own bags, in any of the forms that module takes, and gets their combined rows; some may have
    none. `weight` is this rank's part, by TensorFlow's rule `strategy`: "div" gives each rank a run of rows, the first
    (rows mod ranks) of them one more, "mod" deals rows out like cards.

    `mode="exact"` gives the bits of the unsharded module on the batches of all ranks, one after the other, forward and
    backward. In `mode="pooled"` owners send each bag's sum over their rows in place of the rows: less to send where
    bags have several ids with one owner, and another order of addition, which the number of ranks is part of.
    `wire_dtype=torch.bfloat16` rounds rows and gradients while they travel. Gradients are sums over all ranks' losses.

    All ranks make their modules and call them in the same order, forward and backward. A rank that dies or hangs makes
    the others raise `RankLostError` after `timeout` seconds at most; a rank that refuses its ids makes them raise
    `RankRefusedError`. docs/sharding_torch.md has the rest.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        combiner: str = "mean",
        strategy: str = "div",
        process_group: Any = None,
        device_mesh: Any = None,
        mode: str = "exact",
        wire_dtype: torch.dtype | None = None,
        padding_idx: int | None = None,
        default_id: int | None = None,
        include_last_offset: bool = False,
        grad: str = "rows",
        fused: bool = False,
        order: str | None = None,
        timeout: float = TIMEOUT,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_table_size(num_embeddings, embedding_dim)  # before the ranks meet
        super().__init__(strategy, process_group, device_mesh, mode, wire_dtype, grad, fused, order, timeout)
        self.num_embeddings, self.embedding_dim, self.combiner = num_embeddings, embedding_dim, combiner
        self._kind, _ = functional.check_options(combiner, grad)
        self.padding_idx = functional.row_number("padding_idx", padding_idx, num_embeddings)
        self.default_id = functional.row_number("default_id", default_id, num_embeddings)
        self.include_last_offset = include_last_offset
        self.stack = Stack([num_embeddings], self.ranks.size, strategy)
        self.weight = self._new_part(self.stack, embedding_dim, device, dtype)
        self.reset_parameters()

    def _facts(self) -> tuple[object, ...]:
        table = self.num_embeddings, self.embedding_dim, self.combiner, self.padding_idx, self.default_id
        return *super()._facts(), *table, str(self.weight.dtype)

    def _tables(self) -> dict[str, list[list[Any]]]:
        return {"weight": [["weight", self.num_embeddings]]}

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draw rows from a standard normal distribution, equal for any number of ranks; the padding row is zero."""
        self._draw(self.weight, self.stack, self._seed() if seed is None else seed)
        if self.padding_idx is not None:
            owner, row = self.stack.parts[0].locate(torch.tensor([self.padding_idx]))
            if int(owner) == self.ranks.rank:
                with torch.no_grad():
                    self.weight[int(row)].fill_(0)

    def forward(
        self,
        input: Any,
        offsets: Tensor | None = None,
        per_sample_weights: Any = None,
        *,
        segment_ids: Tensor | None = None,
        num_bags: int | None = None,
    ) -> Tensor:
        """Return the combined rows of this rank's bags, [bags, embedding_dim]. All ranks call it together."""

        given = input, offsets, segment_ids, num_bags, per_sample_weights, self.include_last_offset

        def prepare() -> Any:
            return [functional.prepare(*given, self.padding_idx, self.default_id, None)]

        def read() -> Any:
            return [functional.prepare(*given, None, None, None)]

        return self._look_up([self.weight], [self.stack], [self._kind], prepare, read)[0]

    def local_ids(self) -> Tensor:
        """Return the ids of this rank's rows, in the order of `weight`."""
        return self.stack.parts[0].ids_of(self.ranks.rank, self.weight.device)

    @torch.no_grad()
    def load_full(self, table: Tensor) -> None:
        """Copy this rank's rows from the whole table, without communication."""
        copy_rows(self.weight, table, self.local_ids(), self.num_embeddings)

    @torch.no_grad()
    def full_weight(self) -> Tensor:
        """Return the whole table on every rank. All ranks call it together."""
        return gather_table(self.ranks, self.weight.detach(), self.stack.parts[0])

    def to_dtensor(self) -> Any:
        """Return the table as a DTensor split by Shard(0) over `device_mesh`, or over the process group.

        Where torch cuts a table as this module does, it shares memory with `weight`; else rows are copied to where
        torch wants them. All ranks call it together. See `checkpoint.as_dtensor`.
        """
        from .checkpoint import as_dtensor  # slow to load

        return as_dtensor(self.ranks, self.weight, self.stack.parts[0])

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, combiner={self.combiner!r}, strategy={self.strategy!r},"
            f" mode={self.mode!r}, grad={self.grad!r}, rank {self.ranks.rank} of {self.ranks.size}:"
            f" {self.weight.shape[0]} rows"
        )
