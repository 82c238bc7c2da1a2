"""RowShardedEmbeddings: all tables of a model, sharded over processes, looked up in one exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import make_error
from ..bags import Bags
from ..embeddings import Table, by_feature, check_tables, describe_tables, features_of, group_tables, read_groups
from .base import ShardedModule
from .exchange import TIMEOUT, copy_rows, gather_table
from .placement import Stack


class RowShardedEmbeddings(ShardedModule):
    """`rowgrad.torch.nn.Embeddings` with every table's rows sharded over the ranks of a process group.

    All tables share one exchange of ids, one of rows and one of gradients. A parameter stores this rank's shards of all
    tables of one width and combiner; `weight(table)` returns the shard of one table.

    Args:
        tables: The tables.
        strategy: As in `RowShardedEmbeddingBag`, like all options that are not listed here.
        output: "features" to return `{feature: [bags, columns]}`, or "stacked" to return one tensor
            [bags, features, columns].
        include_last_offset: As in `rowgrad.torch.nn.Embeddings`.

    Raises:
        InvalidArgumentError: If names are not unique, or an option is invalid.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        strategy: str = "div",
        process_group: Any = None,
        device_mesh: Any = None,
        mode: str = "exact",
        wire_dtype: torch.dtype | None = None,
        grad: str = "rows",
        fused: bool = False,
        output: str = "features",
        include_last_offset: bool | None = None,
        order: str | None = None,
        timeout: float = TIMEOUT,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(strategy, process_group, device_mesh, mode, wire_dtype, grad, fused, order, timeout)
        check_tables(tables)
        for table in tables:
            for option in ("padding_idx", "initializer", "dtype"):
                if getattr(table, option) is not None:
                    argument = f"{option} of table {table.name!r}"
                    raise make_error("bags_unfit", argument=argument, value="a value", bound="None for sharded tables")
        self.tables, self.output, self.include_last_offset = tuple(tables), output, include_last_offset
        self._groups = group_tables(tables)
        if output not in ("features", "stacked") or (output == "stacked" and len(self._groups) > 1):
            bound = "'features', or 'stacked' where all tables have one width and combiner"
            raise make_error("bags_unfit", argument="output", value=repr(output), bound=bound)
        self._stacks = [Stack([t.num_embeddings for t in g.tables], self.ranks.size, strategy) for g in self._groups]
        for group, stack in zip(self._groups, self._stacks, strict=True):
            self.register_parameter(group.key, self._new_part(stack, group.columns, device, dtype))
        self.reset_parameters()

    def _facts(self) -> tuple[object, ...]:
        return *super()._facts(), self.tables

    def _tables(self) -> dict[str, list[list[Any]]]:
        return {group.key: [[t.name, t.num_embeddings] for t in group.tables] for group in self._groups}

    @property
    def features(self) -> list[str]:
        """The features, in the order in which a vector of all ids contains them."""
        return features_of(self._groups)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draw rows from a standard normal distribution, equal for any number of ranks."""
        seed = self._seed() if seed is None else seed
        for number, (group, stack) in enumerate(zip(self._groups, self._stacks, strict=True)):
            self._draw(getattr(self, group.key), stack, seed + 2**48 * number)

    def forward(self, ids: Any, offsets: Tensor | None = None, per_sample_weights: Any = None) -> Any:
        """Return the combined rows of this rank's bags. All ranks call it together."""

        def prepare() -> list[Bags]:
            return read_groups(self._groups, ids, offsets, per_sample_weights, self.include_last_offset)

        tables = [getattr(self, group.key) for group in self._groups]
        rows = self._look_up(tables, self._stacks, [g.kind for g in self._groups], prepare)
        return by_feature(self._groups, rows, self.output)

    def place(self, table: str) -> tuple[str, Stack, int]:
        """Return the parameter that stores a table, its stack, and the table's number in the stack."""
        for group, stack in zip(self._groups, self._stacks, strict=True):
            for number, t in enumerate(group.tables):
                if t.name == table:
                    return group.key, stack, number
        raise make_error(
            "bags_unfit", argument="table", value=repr(table), bound=", ".join(t.name for t in self.tables)
        )

    def weight(self, table: str) -> Tensor:
        """Return this rank's rows of a table as a view."""
        key, stack, number = self.place(table)
        rows: Tensor = getattr(self, key)[stack.rows_of(number, self.ranks.rank)]
        return rows

    def local_ids(self, table: str) -> Tensor:
        """Return the ids of this rank's rows of a table."""
        key, stack, number = self.place(table)
        return stack.parts[number].ids_of(self.ranks.rank, getattr(self, key).device)

    @torch.no_grad()
    def load_full(self, table: str, rows: Tensor) -> None:
        """Copy this rank's rows from a whole table, without communication."""
        _, stack, number = self.place(table)
        copy_rows(self.weight(table), rows, self.local_ids(table), stack.parts[number].rows)

    @torch.no_grad()
    def full_weight(self, table: str) -> Tensor:
        """Return a whole table on every rank. All ranks call it together."""
        _, stack, number = self.place(table)
        return gather_table(self.ranks, self.weight(table).detach(), stack.parts[number])

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        options = f"strategy={self.strategy!r}, mode={self.mode!r}, grad={self.grad!r}"
        return f"{describe_tables(self.tables)}\n{options}, rank {self.ranks.rank} of {self.ranks.size}"
