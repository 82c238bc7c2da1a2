"""Which rank stores which row of a sharded table.

Tables are split by TensorFlow's rules; in a rank's memory the shards of several tables are stacked. A *place* numbers
the rows of all ranks: first those of rank 0 in memory order, then those of rank 1, and so on. Ids become places before
anything is sent, so an array that is sorted by place is sorted by owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ...sharding.div_mod import check_strategy, div_shard, locate_valid, run_lengths, shard_sizes, shard_slice


class Part:
    """One table split among ranks: by "div", by "mod", or by "chunk", which is how DTensor's Shard(0) splits."""

    def __init__(self, rows: int, ranks: int, strategy: str) -> None:
        self.rows, self.ranks, self.strategy = rows, ranks, strategy
        self._chunk = max(1, -(-rows // ranks))
        if strategy == "chunk":
            self.sizes = [max(0, min(self._chunk, rows - rank * self._chunk)) for rank in range(ranks)]
        else:
            check_strategy(strategy)
            self.sizes = shard_sizes(rows, ranks)
        self.firsts = [0, *accumulate(self.sizes)][:-1]

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the owner of each id and its row there. Ids must be in range."""
        if self.strategy == "chunk":
            return ids // self._chunk, ids % self._chunk
        owners, rows = locate_valid(ids, self.rows, self.ranks, self.strategy, torch)
        return owners, rows

    def ids_of(self, rank: int, device: torch.device | None = None) -> Tensor:
        """Return the ids of a rank's rows, in the order in which the rank stores them."""
        if self.strategy == "chunk":
            return torch.arange(self.firsts[rank], self.firsts[rank] + self.sizes[rank], device=device)
        own = shard_slice(rank, self.rows, self.ranks, self.strategy)
        return torch.arange(own.start, own.stop, own.step, device=device)

    def is_like(self, other: Part) -> bool:
        """Return whether every rank stores the same rows in both."""
        if self.ranks == 1:
            return True
        return (self.strategy == "mod") == (other.strategy == "mod") and self.sizes == other.sizes


class Stack:
    """Tables split by one rule. In a rank's memory, its shard of the second table follows its shard of the first."""

    def __init__(self, rows: Sequence[int], ranks: int, strategy: str) -> None:
        self.parts = [Part(n, ranks, strategy) for n in rows]
        self.ranks, self.strategy, self.rows = ranks, strategy, sum(rows)
        self.sizes = [sum(p.sizes[r] for p in self.parts) for r in range(ranks)]
        self.firsts = [0, *accumulate(self.sizes)]  # and the end
        self._table_firsts = [0, *accumulate(rows)][:-1]
        starts = [[0, *accumulate(p.sizes[r] for p in self.parts)] for r in range(ranks)]
        self.first_in_rank = starts  # [rank][table]
        self._place_of_first = [[self.firsts[r] + starts[r][t] for r in range(ranks)] for t in range(len(rows))]

    def places(self, ids: Tensor) -> Tensor:
        """Return the place of each id. The ids of several tables are numbered consecutively, table after table."""
        ids = ids.to(torch.int64)
        if len(self.parts) == 1:
            if self.strategy == "div" or self.ranks == 1:
                return ids
            owners, rows = self.parts[0].locate(ids)
            return rows + torch.tensor(self._place_of_first[0], device=ids.device)[owners]
        device = ids.device
        table_firsts = torch.tensor(self._table_firsts, device=device)
        tables = torch.searchsorted(table_firsts, ids, right=True) - 1
        within = ids - table_firsts[tables]
        if self.strategy == "mod":  # independent of the number of rows
            owners, rows = locate_valid(within, 0, self.ranks, "mod", torch)
        else:
            lengths = torch.tensor([run_lengths(p.rows, self.ranks) for p in self.parts], device=device)
            longer, long_run, short_run = lengths[tables].unbind(1)
            owners = div_shard(within, longer, long_run, short_run, torch)
            rows = within - torch.tensor([p.firsts for p in self.parts], device=device)[tables, owners]
        return rows + torch.tensor(self._place_of_first, device=device)[tables, owners]

    def rows_of(self, table: int, rank: int) -> slice:
        """Return where a rank stores its rows of a table."""
        first = self.first_in_rank[rank][table]
        return slice(first, first + self.parts[table].sizes[rank])
