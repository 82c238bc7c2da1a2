"""TensorFlow's "div" and "mod" partition rules: which shard stores which row of a table.

This is the only place where the rules are written. Functions take Python integers or arrays; those with an `xp`
parameter run on any array namespace (NumPy, torch, jax.numpy) and may be traced.

- "mod" stores row i as row i // shards of shard i % shards.
- "div" stores a contiguous run of rows in each shard; the first (rows % shards) runs are one row longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import make_error

Array = np.ndarray[Any, Any]
STRATEGIES = ("div", "mod")
_INT64_MAX = 2**63 - 1


def check_strategy(strategy: str) -> None:
    """Raise unless the strategy is "div" or "mod"; the message is TensorFlow's."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ValueError(f"Unrecognized partition strategy: {strategy}.Must be one of either `mod` or `div`.")


def shard_size(shard: Any, rows: int, shards: int) -> Any:
    """Return the number of rows of a shard, which is the same under both rules. `shard` is an integer or an array."""
    quotient, longer = divmod(rows, shards)
    return quotient + (shard < longer)


def shard_sizes(rows: int, shards: int) -> list[int]:
    """Return the number of rows of every shard."""
    return [shard_size(shard, rows, shards) for shard in range(shards)]


def first_id(shard: Any, rows: int, shards: int, strategy: str, xp: Any = np) -> Any:
    """Return the id of a shard's first row. `shard` is an integer or an array."""
    if strategy == "mod":
        return shard
    quotient, longer = divmod(rows, shards)
    extra = min(shard, longer) if isinstance(shard, int) else xp.where(shard < longer, shard, longer)
    return shard * quotient + extra


def id_step(shards: int, strategy: str) -> int:
    """Return the distance between the ids of consecutive rows of a shard."""
    return shards if strategy == "mod" else 1


def shard_slice(shard: int, rows: int, shards: int, strategy: str) -> slice:
    """Return the ids of a shard's rows, in order, as a slice of the table."""
    first, step = min(first_id(shard, rows, shards, strategy), rows), id_step(shards, strategy)
    return slice(first, rows if strategy == "mod" else first + shard_size(shard, rows, shards), step)


def run_lengths(rows: int, shards: int) -> tuple[int, int, int]:
    """Return what `div_shard` needs to know: the number of longer runs, their length, and the length of the others.

    The last one is at least 1, so that it can be a divisor.
    """
    quotient, longer = divmod(rows, shards)
    return longer, min(quotient + 1, _INT64_MAX), max(quotient, 1)  # no id reaches a row beyond int64


def div_shard(ids: Any, longer: Any, long_run: Any, short_run: Any, xp: Any = np) -> Any:
    """Return the shard of each id under the "div" rule.

    The run lengths are those of one table, or arrays with the run lengths of each id's own table.
    """
    return xp.maximum(ids // long_run, (ids - longer) // short_run)


def locate_valid(ids: Any, rows: int, shards: int, strategy: str, xp: Any = np) -> tuple[Any, Any]:
    """Return the shard of each id and its row in that shard, for ids that are known to be in [0, rows)."""
    if strategy == "mod":
        return ids % shards, ids // shards
    shard = div_shard(ids, *run_lengths(rows, shards), xp)
    return shard, ids - first_id(shard, rows, shards, strategy, xp)


def locate(ids: Array, rows: int, shards: int, strategy: str) -> tuple[Array, Array]:
    """Return the shard of each id and its row in that shard, as int64; reject ids that no shard stores.

    Under "mod" the number of rows is not used, so no id is too large. Floor division throughout puts negative ids
    into negative shards (under "div") or rows (under "mod").
    """
    check_strategy(strategy)
    if strategy == "div" and rows < shards and len(ids):
        raise make_error("fewer_rows_than_shards", value=rows, bound=shards)
    shard, row = locate_valid(ids.astype(np.int64), rows, shards, strategy)
    bad = np.flatnonzero((shard < 0) | (shard >= shards))
    if len(bad):
        position = int(bad[0])
        raise make_error("shard_not_there", position=position, value=int(shard[position]), bound=shards)
    return shard, row


def group_by_shard(shard: Array, shards: int) -> tuple[Array, list[Array]]:
    """Return the positions of all ids sorted by shard, stable within a shard, and the same split by shard."""
    narrow = shard.astype(np.min_scalar_type(shards - 1))  # NumPy sorts up to 16 bits in linear time
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(shard, minlength=shards))
    return order, np.split(order, ends[:-1])


def inverse_permutation(order: Array) -> Array:
    """Return the permutation that undoes `order`."""
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.arange(len(order))
    return inverse
