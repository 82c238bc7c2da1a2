"""Parts as they are found: a folder of files, a single file, or tensors of one of TensorFlow's checkpoints."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import refuse
from .layout import FORMATS, TABLE, Layout, parse_name, part_name, read_manifest
from .npy_file import read_header as read_npy
from .safetensors_file import read_header as read_safetensors
from .stored import DTYPES, InCheckpoint, Stored

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

Part = Mapping[str, Stored]
Chosen = Mapping[str, str]  # names that tensors are to have -> names they have


@dataclass(frozen=True, slots=True)
class Source:
    """Parts in their order, the manifest if there was one, and metadata that all parts share."""

    path: Path
    parts: Sequence[Part]
    format: str
    manifest: Layout | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def open_source(path: Path, tensors: Chosen | None) -> Source:
    """What a path means."""
    if path.is_file() and path.suffix[1:] in FORMATS:
        told = parse_name(path.name)
        if told is not None and told[1] != 1:
            why = f"this is part {told[0]} of {told[1]}; the source of all is their folder"
            raise refuse("parts_malformed", file=path, why=why)
        found = _from_files(path, [[path]], path.suffix[1:], None)
    elif path.is_dir() and (grouped := _part_files(path)):
        manifest = read_manifest(path)
        found = _from_files(path, *_whole_set(path, grouped, manifest), manifest)
    elif (path.is_dir() and (path / "checkpoint").is_file()) or path.suffix == ".index" or _beside(path).is_file():
        return _from_checkpoint(path, tensors)
    elif path.exists():
        raise refuse("parts_malformed", file=path, why=_no_part(path))
    else:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found if tensors is None else _chosen(found, tensors)


def _no_part(path: Path) -> str:
    """What is wanted, in the user's own numbers where the files that are there suggest them."""
    arrays = sorted(f for f in path.iterdir() if f.suffix[1:] in FORMATS) if path.is_dir() else []
    if not arrays:
        return f"there is no part, {part_name(0, 1, 'npy')} or the like"
    wanted = [part_name(k, len(arrays), arrays[0].suffix[1:]) for k in (0, len(arrays) - 1)]
    return (
        f"there is no part: {arrays[0].name} is not a part's name; parts are named by their numbers, {wanted[0]} to"
        f" {wanted[1]} if these are {len(arrays)}"
    )


def _beside(prefix: Path) -> Path:
    return Path(f"{prefix}.index")


def _part_files(folder: Path) -> dict[tuple[int, str], dict[int, list[str]]]:
    """Names of files, by number of parts and format, then by the part's number."""
    found: dict[tuple[int, str], dict[int, list[str]]] = {}
    for name in sorted(os.listdir(folder)):
        told = parse_name(name)
        if told is not None:
            found.setdefault((told[1], told[2]), {}).setdefault(told[0], []).append(name)
    return found


def _whole_set(
    folder: Path, grouped: dict[tuple[int, str], dict[int, list[str]]], manifest: Layout | None
) -> tuple[list[list[Path]], str]:
    """The files of every part of the one set that is meant."""
    if manifest is not None:
        parts, format = manifest.parts, manifest.format
    elif len(grouped) == 1:
        parts, format = next(iter(grouped))
    else:
        sets = ", ".join(f"{parts} parts in .{format}" for parts, format in sorted(grouped))
        raise refuse("parts_value", file=folder, what="sets of parts", value=sets, bound="one, or named by a manifest")
    numbers = grouped.get((parts, format), {})
    beyond = [n for n in numbers if n >= parts]
    if beyond:
        raise refuse("parts_value", file=folder, what="number of a part", value=beyond[0], bound=f"below {parts}")
    missing = next((n for n in range(parts) if n not in numbers), None)
    if missing is not None or parts == 0:
        raise refuse("parts_missing", file=folder, value=missing or 0, bound=parts)
    return [[folder / name for name in numbers[n]] for n in range(parts)], format


def _from_files(path: Path, files: list[list[Path]], format: str, manifest: Layout | None) -> Source:
    for file in (f for part in files for f in part):
        if not file.is_file():  # a pipe of that name would wait for a writer
            raise refuse("parts_malformed", file=file, why="it is no plain file")
    if format == "npy":
        return Source(path, [_npy_part(part) for part in files], format, manifest)
    read = [read_safetensors(part[0]) for part in files]
    first = read[0][1]
    shared = {k: v for k, v in first.items() if all(metadata.get(k) == v for _, metadata in read)}
    return Source(path, [tensors for tensors, _ in read], format, manifest, shared)


def _npy_part(files: list[Path]) -> Part:
    names = [parse_name(file.name) for file in files]
    return {TABLE if told is None else told[3]: read_npy(file) for told, file in zip(names, files, strict=True)}


def _chosen(found: Source, tensors: Chosen) -> Source:
    for part in found.parts:
        missing = [old for old in tensors.values() if old not in part]
        if missing:
            raise refuse("parts_no_tensor", file=found.path, value=repr(missing[0]), bound=", ".join(map(repr, part)))
    parts = [{new: part[old] for new, old in tensors.items()} for part in found.parts]
    manifest = found.manifest
    if manifest is not None:
        kept = {new: manifest.tensors[old] for new, old in tensors.items() if old in manifest.tensors}
        manifest = Layout(manifest.format, manifest.strategy, manifest.parts, manifest.rows, kept)
    return Source(found.path, parts, found.format, manifest, found.metadata)


def _from_checkpoint(path: Path, tensors: Chosen | None) -> Source:
    """Tensors under one name are one part; shards under names of their own are as many as there are."""
    from ..checkpoint import Checkpoint  # loaded where it is needed
    from ..checkpoint.tables import shard_names

    checkpoint = Checkpoint(path)
    if tensors is None:
        names = checkpoint.names()
        told = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise refuse("parts_which", file=checkpoint.prefix, argument="tensors", value=told)
    found: dict[str, list[Stored]] = {}
    for new, old in tensors.items():
        shards = [old] if old in checkpoint else shard_names(checkpoint, old)
        found[new] = [_in_checkpoint(checkpoint, shard) for shard in shards]
    count = max(map(len, found.values()), default=0)
    for new, shards_ in found.items():
        if len(shards_) != count and shards_[0].shape:
            what = f"number of shards of {tensors[new]!r}"
            raise refuse("parts_value", file=checkpoint.prefix, what=what, value=len(shards_), bound=count)
    # A scalar that was saved once belongs to every part.
    parts = [{new: shards[k] if len(shards) > 1 else shards[0] for new, shards in found.items()} for k in range(count)]
    return Source(checkpoint.prefix, parts, "safetensors")


def _in_checkpoint(checkpoint: Checkpoint, name: str) -> Stored:
    dtype = next((known for known, numpys in DTYPES.items() if numpys == checkpoint.dtype(name)), "string")
    if dtype == "string":
        raise refuse("parts_dtype", file=checkpoint.prefix, what=repr(name), value=dtype, bound="parts in any")
    return InCheckpoint(checkpoint, name, dtype, checkpoint.shape(name))
