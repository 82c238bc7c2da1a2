"""Which rank holds which row: tables split by TensorFlow's rules, one below the other in every rank's memory.

A *place* numbers the rows of all ranks: first those of rank 0 as they lie in its memory, then those of rank 1, and so
on. Ids become places before anything is sent, so what is sorted by place is sorted by owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ...sharding.rule import check_strategy, shard_sizes


class Part:
    """One table split among ranks: by "div", "mod", or in torch's chunks ("chunk"), which DTensor's Shard(0) has."""

    def __init__(self, rows: int, ranks: int, strategy: str) -> None:
        if strategy != "chunk":
            check_strategy(strategy)
        self.rows, self.ranks, self.strategy = rows, ranks, strategy
        if strategy == "chunk":
            length = -(-rows // ranks)
            self.sizes = [max(0, min(rows, (r + 1) * length) - min(rows, r * length)) for r in range(ranks)]
        else:
            self.sizes = shard_sizes(rows, ranks)
        self.firsts = [0, *accumulate(self.sizes)][:-1]

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The owner of every id, and its row there. Ids are in range."""
        if self.strategy == "mod":
            return ids % self.ranks, ids // self.ranks
        firsts = torch.tensor(self.firsts, device=ids.device)
        owners = torch.searchsorted(firsts, ids, right=True) - 1  # ranks without rows own none: equal firsts, the last
        return owners, ids - firsts[owners]

    def ids_of(self, rank: int, device: torch.device | None = None) -> Tensor:
        """The ids of a rank's rows, as they lie there."""
        if self.strategy == "mod":
            return torch.arange(min(rank, self.rows), self.rows, self.ranks, device=device)
        return torch.arange(self.firsts[rank], self.firsts[rank] + self.sizes[rank], device=device)

    def is_like(self, other: Part) -> bool:
        """Whether every rank has the same rows in both."""
        if self.ranks == 1:
            return True
        return (self.strategy == "mod") == (other.strategy == "mod") and self.sizes == other.sizes


class Stack:
    """Tables split alike. In a rank's memory its part of the second table lies below that of the first."""

    def __init__(self, rows: Sequence[int], ranks: int, strategy: str) -> None:
        self.parts = [Part(n, ranks, strategy) for n in rows]
        self.ranks, self.strategy, self.rows = ranks, strategy, sum(rows)
        self.sizes = [sum(p.sizes[r] for p in self.parts) for r in range(ranks)]
        self.firsts = [0, *accumulate(self.sizes)]  # and the end
        self._table_firsts = [0, *accumulate(rows)][:-1]
        below = [[0, *accumulate(p.sizes[r] for p in self.parts)] for r in range(ranks)]
        self.first_in_rank = below  # [rank][table]
        self._place_of_first = [[self.firsts[r] + below[r][t] for r in range(ranks)] for t in range(len(rows))]

    def places(self, ids: Tensor) -> Tensor:
        """The place of every id. Of several tables ids are numbered through, one table after the other."""
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
        if self.strategy == "mod":
            owners, rows = within % self.ranks, within // self.ranks
        else:
            quotient = torch.tensor([p.rows // self.ranks for p in self.parts], device=device)[tables]
            longer = torch.tensor([p.rows % self.ranks for p in self.parts], device=device)[tables]
            owners = torch.maximum(within // (quotient + 1), (within - longer) // quotient.clamp(min=1))
            rows = within - torch.tensor([p.firsts for p in self.parts], device=device)[tables, owners]
        return rows + torch.tensor(self._place_of_first, device=device)[tables, owners]

    def rows_of(self, table: int, rank: int) -> slice:
        """Where a rank has its rows of a table."""
        first = self.first_in_rank[rank][table]
        return slice(first, first + self.parts[table].sizes[rank])
