"""`rowgrad reshard`: a table in parts, written anew."""

from __future__ import annotations

import argparse

from ..sharding import reshard
from .errors import OK, StoppedError, UsageError
from .terminal import Progress, Stopping, emit, show

_MIB = 1 << 20


def command(chosen: argparse.Namespace) -> int:
    """Move, show how far it is, tell what there is now."""
    shown = not (chosen.quiet or chosen.json)
    bars: list[Progress] = []
    with Stopping() as stopping:

        def watch(done: int, total: int) -> None:
            if stopping.number is not None:
                raise StoppedError(stopping.number, f"ended by a signal; {chosen.target} is as it was")
            if not bars:
                bars.append(Progress(-(-total // _MIB), shown, unit="MiB"))
            bars[0].reach(done // _MIB)

        try:
            made = reshard(
                chosen.source,
                chosen.target,
                parts=chosen.parts,
                strategy=chosen.strategy,
                from_strategy=chosen.from_strategy,
                format=chosen.format,
                table=chosen.table,
                tensors=_tensors(chosen.tensor),
                memory=chosen.memory * _MIB,
                overwrite=chosen.overwrite,
                progress=watch,
            )
        finally:
            for bar in bars:
                bar.clear()
    if chosen.json:
        emit(made.to_json() | {"target": chosen.target})
        return OK
    for name, tensor in made.tensors.items():
        shape = ",".join(map(str, tensor.shape))
        show(f"{name}  {tensor.dtype}[{shape}]{'' if tensor.by_rows else ', in every part'}")
    show(f"{made.rows} rows in {made.parts} parts by {made.strategy}, as .{made.format} in {chosen.target}")
    return OK


def _tensors(words: list[str]) -> dict[str, str] | None:
    """[NEW=]NAME, each new name once."""
    if not words:
        return None
    pairs = [(new or name, name) for new, _, name in (w.rpartition("=") for w in words)]
    if len(dict(pairs)) != len(pairs):
        raise UsageError("--tensor: two tensors would have one name")
    return dict(pairs)
