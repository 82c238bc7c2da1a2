"""`rowgrad reshard`: repartition a sharded table."""

from __future__ import annotations

import argparse

from ..sharding import reshard
from .errors import OK, StoppedError, UsageError
from .terminal import Progress, SignalWatch, emit, show

_MIB = 1 << 20


def command(options: argparse.Namespace) -> int:
    """Move the rows with a progress bar, then print the new tensors."""
    visible = not (options.quiet or options.json)
    bars: list[Progress] = []
    with SignalWatch() as signals:

        def watch(done: int, total: int) -> None:
            if signals.number is not None:
                raise StoppedError(signals.number, f"ended by a signal; {options.target} is unchanged")
            if not bars:
                bars.append(Progress(-(-total // _MIB), visible, unit="MiB"))
            bars[0].reach(done // _MIB)

        try:
            manifest = reshard(
                options.source,
                options.target,
                parts=options.parts,
                strategy=options.strategy,
                from_strategy=options.from_strategy,
                format=options.format,
                table=options.table,
                tensors=_tensors(options.tensor),
                memory=options.memory * _MIB,
                overwrite=options.overwrite,
                progress=watch,
            )
        finally:
            for bar in bars:
                bar.clear()
    if options.json:
        emit(manifest.to_json() | {"target": options.target})
        return OK
    for name, tensor in manifest.tensors.items():
        shape = ",".join(map(str, tensor.shape))
        show(f"{name}  {tensor.dtype}[{shape}]{'' if tensor.by_rows else ', in every part'}")
    parts = f"{manifest.parts} parts by {manifest.strategy}"
    show(f"{manifest.rows} rows in {parts}, as .{manifest.format} in {options.target}")
    return OK


def _tensors(texts: list[str]) -> dict[str, str] | None:
    """Parse `[NEW=]NAME` arguments; each new name may occur once."""
    if not texts:
        return None
    pairs = [(new or name, name) for new, _, name in (w.rpartition("=") for w in texts)]
    if len(dict(pairs)) != len(pairs):
        raise UsageError("--tensor: two tensors would have the same name")
    return dict(pairs)
