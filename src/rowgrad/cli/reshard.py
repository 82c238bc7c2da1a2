"""`rowgrad reshard`: repartition a sharded table."""

from __future__ import annotations

import argparse

from ..sharding import reshard
from .errors import OK, StoppedError, UsageError
from .terminal import Progress, SignalWatch, emit, show

_MIB = 1 << 20


def command(chosen: argparse.Namespace) -> int:
    """Move the rows with a progress bar, then print the new tensors."""
    visible = not (chosen.quiet or chosen.json)
    bars: list[Progress] = []
    with SignalWatch() as signals:

        def watch(done: int, total: int) -> None:
            if signals.number is not None:
                raise StoppedError(signals.number, f"ended by a signal; {chosen.target} is unchanged")
            if not bars:
                bars.append(Progress(-(-total // _MIB), visible, unit="MiB"))
            bars[0].reach(done // _MIB)

        try:
            manifest = reshard(
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
        emit(manifest.to_json() | {"target": chosen.target})
        return OK
    for name, tensor in manifest.tensors.items():
        shape = ",".join(map(str, tensor.shape))
        show(f"{name}  {tensor.dtype}[{shape}]{'' if tensor.by_rows else ', in every part'}")
    parts = f"{manifest.parts} parts by {manifest.strategy}"
    show(f"{manifest.rows} rows in {parts}, as .{manifest.format} in {chosen.target}")
    return OK


def _tensors(texts: list[str]) -> dict[str, str] | None:
    """[NEW=]NAME, each new name once."""
    if not texts:
        return None
    pairs = [(new or name, name) for new, _, name in (w.rpartition("=") for w in texts)]
    if len(dict(pairs)) != len(pairs):
        raise UsageError("--tensor: two tensors would have one name")
    return dict(pairs)
