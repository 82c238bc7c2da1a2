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

    Every rank passes its own bags, possibly none, in any format that module accepts, and gets their combined rows.
    `weight` is this rank's shard. Gradients are sums over all ranks' losses. All ranks create their modules and call
    them in the same order, forward and backward. docs/how-to/shard_torch.md describes what is sent when.

    Args:
        num_embeddings: The number of rows of the whole table.
        embedding_dim: The number of columns.
        combiner: "mean", "sum" or "sqrtn".
        strategy: TensorFlow's rule. "div": each rank stores a run of rows, the first (rows mod ranks) ranks one more
            than the others. "mod": row i is on rank i mod ranks.
        process_group: The group; by default all processes.
        device_mesh: A mesh of one dimension, instead of a group.
        mode: "exact" has the bits of the unsharded module on the concatenated batches of all ranks. "pooled": owners
            send each bag's sum over their rows instead of the rows. This sends less if bags have several ids with one
            owner; the order of additions then depends on the number of ranks.
        wire_dtype: torch.bfloat16 rounds rows and gradients that are sent; None sends them exactly.
        padding_idx: A row whose ids are ignored.
        default_id: The row to look up for empty bags; by default their result is zero.
        include_last_offset: Whether `offsets` ends with the number of ids.
        grad: The gradient for `weight`, "rows" or "dense".
        fused: Sum gradients by row inside the optimizer's step; see `rowgrad.torch.nn.EmbeddingBag`.
        order: The order of additions in gradients, "sequential" or "blocked"; by default that of the device.
        timeout: Seconds without a heartbeat after which a rank is lost. A rank that is busy has a heartbeat: the others
            wait for it as long as the timeout of the process group allows.
        device: Where to store the shard.
        dtype: The dtype of the table.

    Raises:
        InvalidArgumentError: If an option is invalid.
        RankLostError: By calls, if a rank dies or does not answer in time.
        RankRefusedError: By calls, if another rank rejects its ids.
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
        check_table_size(num_embeddings, embedding_dim)  # before anything is exchanged
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
        inputs = input, offsets, segment_ids, num_bags, per_sample_weights, self.include_last_offset

        def prepare() -> Any:
            return [functional.prepare(*inputs, self.padding_idx, self.default_id, None)]

        def read() -> Any:
            return [functional.prepare(*inputs, None, None, None)]

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

        It shares memory with `weight` if torch splits the table as this module does; otherwise rows are redistributed.
        All ranks call it together. See `checkpoint.as_dtensor`.
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
