"""reshard: what is asked for, judged before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import refuse
from ..parts import check_strategy
from .judging import judge
from .layout import FORMATS, MOST_PARTS, Layout
from .moving import Progress, check_memory, move
from .source import Source, open_source
from .stored import InFile
from .target import new_target

Name = str | os.PathLike[str]


def reshard(
    source: Name,
    target: Name,
    *,
    parts: int,
    strategy: str = "div",
    from_strategy: str | None = None,
    format: str | None = None,
    table: str | None = None,
    tensors: Mapping[str, str] | Sequence[str] | None = None,
    memory: int = 64 << 20,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Layout:
    """Write a table that lies in parts anew: in another number of parts, by another rule, or in other files.

    `source` is a folder of `part-00000-of-00004.npy` or `.safetensors`, a single such file under any name, or a
    checkpoint of TensorFlow; `target` is a folder that is made. `strategy` is "div" or "mod", `from_strategy` the rule
    of the source, which is known where a manifest or a single part says it. `format` is "npy" or "safetensors", else
    the source's own.

    Tensors with as many rows as the table move with it, others have to be the same in all parts. `table` names the
    table, else it is the largest tensor. `tensors` picks some, and as a mapping, {new name: name}, renames them; of a
    checkpoint it has to be given.

    About `memory` bytes of rows are held at a time. The target appears when it is whole; an error or a kill before
    leaves what was there. `overwrite` lets it replace a folder of parts. `progress` is called with bytes done and all.
    """
    _check_options(parts, strategy, format, memory)
    memory = int(memory)
    path, place = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    _check_elsewhere(place, path)
    opened = open_source(path, _names(tensors))
    for tensor in (t for part in opened.parts for t in part.values() if isinstance(t, InFile)):
        _check_elsewhere(place, Path(os.path.realpath(tensor.path)))  # of a folder of links too
    found = judge(opened, from_strategy, table)
    wanted = Layout(format or opened.format, strategy, int(parts), found.rows, found.tensors)
    check_memory(found, memory, path)
    with new_target(place, wanted, opened.metadata, overwrite) as made:
        move(opened.parts, found, made, memory, progress or _silent)
        _check_unchanged(opened)
    return wanted


def _check_options(parts: int, strategy: str, format: str | None, memory: int) -> None:
    check_strategy(strategy)
    if not isinstance(parts, int | np.integer) or isinstance(parts, bool) or not 1 <= parts <= MOST_PARTS:
        raise refuse("value_unfit", argument="parts", value=repr(parts), bound=f"1 to {MOST_PARTS}")
    if format is not None and format not in FORMATS:
        raise refuse("value_unfit", argument="format", value=repr(format), bound=" or ".join(FORMATS))
    if not isinstance(memory, int | np.integer) or isinstance(memory, bool) or memory < 1:
        raise refuse("value_unfit", argument="memory", value=repr(memory), bound="a positive number of bytes")


def _names(tensors: Mapping[str, str] | Sequence[str] | None) -> dict[str, str] | None:
    if tensors is None:
        return None
    if isinstance(tensors, str):
        tensors = [tensors]
    chosen = dict(tensors) if isinstance(tensors, Mapping) else {name: name for name in tensors}
    if not chosen:
        raise refuse("value_unfit", argument="tensors", value="nothing", bound="one name or more")
    return chosen


def _check_elsewhere(target: Path, read: Path) -> None:
    if target == read or target in read.parents:
        raise refuse("parts_same", argument="target")


def _check_unchanged(source: Source) -> None:
    for part in source.parts:
        for tensor in part.values():
            tensor.check_unchanged()


def _silent(done: int, total: int) -> None:
    """Nobody wants to know."""
