"""Which shard holds which row: TensorFlow's "div" and "mod" rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import refuse

Array = np.ndarray[Any, Any]
STRATEGIES = ("div", "mod")


def check_strategy(strategy: str) -> None:
    """Refuse any rule but the two, in TensorFlow's words."""
    if strategy not in STRATEGIES:
        raise ValueError(f"Unrecognized partition strategy: {strategy}.Must be one of either `mod` or `div`.")


def shard_sizes(rows: int, shards: int) -> list[int]:
    """How many rows each shard has, by either rule."""
    quotient, longer = divmod(rows, shards)
    return [quotient + (shard < longer) for shard in range(shards)]


def locate(ids: Array, sizes: list[int], strategy: str) -> tuple[Array, Array]:
    """Shard and row inside it, for every id. Floor division throughout, so negative ids land outside.

    "mod" deals rows out like cards. "div" gives each shard a run of rows, the first (total mod shards) of them one
    row more; only the total of `sizes` counts, as in TensorFlow.
    """
    check_strategy(strategy)
    wide = ids.astype(np.int64)
    shards = len(sizes)
    if strategy == "mod":
        return wide % shards, wide // shards
    quotient, longer = divmod(sum(sizes), shards)
    if quotient == 0 and len(ids):
        raise refuse("fewer_rows_than_shards", value=sum(sizes), bound=shards)
    quotient = max(quotient, 1)
    shard = np.maximum(wide // (quotient + 1), (wide - longer) // quotient)
    row = np.where(shard < longer, wide % (quotient + 1), (wide - longer) % quotient)
    bad = np.flatnonzero((shard < 0) | (shard >= shards))
    if len(bad):
        position = int(bad[0])
        raise refuse("shard_not_there", position=position, value=int(shard[position]), bound=shards)
    return shard, row
