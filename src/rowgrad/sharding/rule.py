"""Which part of a table holds which row: TensorFlow's "div" and "mod" rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import make_error

Array = np.ndarray[Any, Any]
STRATEGIES = ("div", "mod")
_MOST = 2**63 - 1


def check_strategy(strategy: str) -> None:
    """Refuse any rule but the two, in TensorFlow's words."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ValueError(f"Unrecognized partition strategy: {strategy}.Must be one of either `mod` or `div`.")


def shard_sizes(rows: int, shards: int) -> list[int]:
    """How many rows each shard has, by either rule."""
    quotient, longer = divmod(rows, shards)
    return [quotient + (shard < longer) for shard in range(shards)]


def locate(ids: Array, rows: int, shards: int, strategy: str) -> tuple[Array, Array]:
    """Shard and row inside it, for every id. Floor division throughout, so negative ids land outside.

    "mod" deals rows out like cards, however many there are. "div" gives each shard a run of rows, the first
    (rows mod shards) of them one row more.
    """
    check_strategy(strategy)
    wide = ids.astype(np.int64)
    if strategy == "mod":
        return wide % shards, wide // shards
    quotient, longer = divmod(rows, shards)
    if quotient == 0 and len(ids):
        raise make_error("fewer_rows_than_shards", value=rows, bound=shards)
    quotient = max(quotient, 1)
    more = min(quotient + 1, _MOST)  # no id reaches a row beyond it
    shard = np.maximum(wide // more, (wide - longer) // quotient)
    row = np.where(shard < longer, wide % more, (wide - longer) % quotient)
    bad = np.flatnonzero((shard < 0) | (shard >= shards))
    if len(bad):
        position = int(bad[0])
        raise make_error("shard_not_there", position=position, value=int(shard[position]), bound=shards)
    return shard, row


def by_shard(shard: Array, shards: int) -> tuple[Array, list[Array]]:
    """The positions of all ids, those of shard 0 first, each shard's in input order; and the same cut by shard."""
    narrow = shard.astype(np.min_scalar_type(shards - 1))  # up to 16 bits NumPy sorts in linear time
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(shard, minlength=shards))
    return order, np.split(order, ends[:-1])


def inverse_of(order: Array) -> Array:
    """The permutation that takes another one back."""
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return back
