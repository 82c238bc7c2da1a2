"""Read a table from one tensor of a checkpoint, or join it from shards saved under separate names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence

import numpy as np

from ..errors import make_error, shape_text
from ..sharding.div_mod import check_strategy, shard_sizes, shard_slice
from .bundle import Array, check_memory
from .reader import OBJECT_SUFFIX, Checkpoint, row_ranges

_PARTS = "/part_{}"  # how TensorFlow names the shards of a variable
_NUMBER = "(0|[1-9][0-9]{0,8})"


def read_table(
    checkpoint: str | os.PathLike[str] | Checkpoint,
    name: str | Sequence[str],
    *,
    partition_strategy: str = "div",
    verify: bool = True,
) -> Array:
    """Read one table of a checkpoint, joined from its shards if it has several.

    Row i of the table is the row that TensorFlow looks up for id i.

    Args:
        checkpoint: A path, or an open `Checkpoint`.
        name: A tensor; a pattern such as `"table/part_{}"`, or `"table"` for that pattern; or a list of shards.
        partition_strategy: How the model looked up the shards: "div" concatenates them; under "mod" row i is row i // k
            of shard i mod k. Under both, the first shards have one row more if the rows do not divide evenly.
        verify: Verify the checksums of the tensors; of an open `Checkpoint`, its own option counts.

    Returns:
        The table as a new array.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint at this path.
        InvalidArgumentError: If there is no such tensor, or the shards do not fit together.

    >>> from rowgrad.checkpoint import read_table
    >>> read_table("missing.ckpt", "table")
    Traceback (most recent call last):
    ...
    rowgrad.errors.CheckpointNotFoundError: missing.ckpt.index: no such file
    """
    check_strategy(partition_strategy)
    source = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint, verify=verify)
    if isinstance(name, str):
        if name in source:
            return source.read(name) if partition_strategy == "div" else _read_mod_slices(source, name)
        shards = shard_names(source, name)
    else:
        shards = list(name)
    return _join(source, shards, partition_strategy)


def shard_names(source: Checkpoint, name: str) -> list[str]:
    """Return the names of the shards that match a pattern, from number 0 on."""
    before, _, after = (name if "{}" in name else name + _PARTS).partition("{}")
    pattern = re.compile(re.escape(before) + _NUMBER + re.escape(after) + f"(?:{re.escape(OBJECT_SUFFIX)})?")
    found = {int(match[1]): other for other in source if (match := pattern.fullmatch(other))}
    if not found:
        raise source.no_tensor(name)
    for number in range(len(found)):
        if number not in found:
            raise source.no_tensor(f"{before}{number}{after}")
    return [found[number] for number in range(len(found))]


def _read_mod_slices(source: Checkpoint, name: str) -> Array:
    """Read a variable whose shards, saved as slices under one name, were looked up by "mod"."""
    ranges = row_ranges(source, name)
    if len(ranges) == 1:
        return source.read(name)
    sizes, shape = [rows.stop - rows.start for rows in ranges], source.shape(name)
    expected = shard_sizes(shape[0], len(sizes))
    if sizes != expected:
        raise make_error("checkpoint_value", file=source.prefix, what="rows of the shards", value=sizes, bound=expected)
    first = source.read(name, ranges[0])  # before memory is allocated for all: the index may claim any size
    check_memory(math.prod(shape) * first.itemsize, source.prefix)
    table = np.empty(shape, first.dtype)
    for number, rows in enumerate(ranges):
        table[shard_slice(number, shape[0], len(ranges), "mod")] = source.read(name, rows) if number else first
    return table


def _join(source: Checkpoint, shards: list[str], strategy: str) -> Array:
    total = _check_alike(source, shards)
    first = source.read(shards[0])  # before memory is allocated for all: the index may claim any size
    check_memory(total * math.prod(first.shape[1:]) * first.itemsize, source.prefix)
    table = np.empty((total, *first.shape[1:]), first.dtype)
    for number, shard in enumerate(shards):
        rows = source.read(shard) if number else first
        table[shard_slice(number, total, len(shards), strategy)] = rows
    return table


def _check_alike(source: Checkpoint, shards: list[str]) -> int:
    """Raise unless the shards have rows of one dtype and shape, as many as the rule says; return their total."""
    file = source.prefix
    if not shards:
        raise make_error("checkpoint_value", file=file, what="number of shards", value=0, bound="at least 1")
    shapes, dtypes = [source.shape(shard) for shard in shards], [source.dtype(shard) for shard in shards]
    for shard, shape, dtype in zip(shards, shapes, dtypes, strict=True):
        if not shape or shape[1:] != shapes[0][1:] or dtype != dtypes[0]:
            value, bound = f"{dtype}{shape_text(shape)}", f"rows as in {dtypes[0]}{shape_text(shapes[0])}"
            raise make_error("checkpoint_value", file=file, what=f"shard {shard!r}", value=value, bound=bound)
    sizes = [shape[0] for shape in shapes]
    expected = shard_sizes(sum(sizes), len(shards))
    if sizes != expected:
        raise make_error("checkpoint_value", file=file, what="rows of the shards", value=sizes, bound=expected)
    return sum(sizes)
