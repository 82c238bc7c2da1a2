"""Tables sharded over the devices of a mesh, inside `shard_map` (guide: docs/how-to/shard_jax.md).

Every device has a part of the table and its own bags. It requests rows from their owners, and owners add the gradients
of their rows, with the bits of one device that has the whole batch.
"""

from __future__ import annotations

from .lookup import embedding_bag as embedding_bag
from .table import Layout as Layout
from .table import ShardedTable as ShardedTable
from .table import gather_table as gather_table
from .table import needed_capacity as needed_capacity
from .table import part_rows as part_rows
from .table import partition_specs as partition_specs
from .table import shard_table as shard_table
