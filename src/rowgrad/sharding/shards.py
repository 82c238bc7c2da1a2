"""The shards of a table as files: find and read the source, write the target."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import make_error
from .div_mod import shard_sizes
from .files import (
    CODES,
    DTYPES,
    METADATA,
    Array,
    InCheckpoint,
    Stored,
    npy_header,
    put_in_place,
    read_npy_header,
    read_safetensors_header,
    safetensors_header,
    size_of,
    sync,
    temporary_folder,
)
from .manifest import FORMATS, MANIFEST, TABLE, Layout, check_name, parse_name, part_name, read_manifest

# -- Reading: a folder of files, a single file, or tensors of a TensorFlow checkpoint ---------------------------------

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

Part = Mapping[str, Stored]
Renaming = Mapping[str, str]  # new name -> name in the source


@dataclass(frozen=True, slots=True)
class Source:
    """The parts in order, the manifest if there is one, and the metadata that all parts share."""

    path: Path
    parts: Sequence[Part]
    format: str
    manifest: Layout | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def open_source(path: Path, tensors: Renaming | None, from_strategy: str | None = None) -> Source:
    """Read the headers of all parts at a path: a file, a folder of parts, or a checkpoint."""
    if path.is_file() and path.suffix[1:] in FORMATS:
        parsed = parse_name(path.name)
        if parsed is not None and parsed[1] != 1:
            why = f"this is shard {parsed[0]} of {parsed[1]}; pass the folder of all shards"
            raise make_error("parts_malformed", file=path, why=why)
        found = _read_files(path, [[path]], path.suffix[1:], None)
    elif path.is_dir() and (grouped := _part_files(path)):
        manifest = read_manifest(path)
        found = _read_files(path, *_complete_set(path, grouped, manifest), manifest)
    elif (path.is_dir() and (path / "checkpoint").is_file()) or path.suffix == ".index" or _beside(path).is_file():
        return _read_checkpoint(path, tensors, in_slices=from_strategy == "mod")
    elif path.exists():
        raise make_error("parts_malformed", file=path, why=_expected_names(path))
    else:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found if tensors is None else _select(found, tensors)


def _expected_names(path: Path) -> str:
    """Return a message with the expected file names."""
    arrays = sorted(f for f in path.iterdir() if f.suffix[1:] in FORMATS) if path.is_dir() else []
    if not arrays:
        return f"there is no shard file such as {part_name(0, 1, 'npy')}"
    valid = [part_name(k, len(arrays), arrays[0].suffix[1:]) for k in (0, len(arrays) - 1)]
    return (
        f"there is no shard file: {arrays[0].name} is not a valid name; shards are numbered, {valid[0]} to"
        f" {valid[1]} for {len(arrays)} files"
    )


def _beside(prefix: Path) -> Path:
    return Path(f"{prefix}.index")


def _part_files(folder: Path) -> dict[tuple[int, str], dict[int, list[str]]]:
    """Group file names by number of parts and format, then by part."""
    found: dict[tuple[int, str], dict[int, list[str]]] = {}
    for name in sorted(os.listdir(folder)):
        parsed = parse_name(name)
        if parsed is not None:
            found.setdefault((parsed[1], parsed[2]), {}).setdefault(parsed[0], []).append(name)
    return found


def _complete_set(
    folder: Path, grouped: dict[tuple[int, str], dict[int, list[str]]], manifest: Layout | None
) -> tuple[list[list[Path]], str]:
    """Return the files of every part; raise if there are several sets, or if parts are missing."""
    if manifest is not None:
        parts, format = manifest.parts, manifest.format
    elif len(grouped) == 1:
        parts, format = next(iter(grouped))
    else:
        sets = ", ".join(f"{parts} parts in .{format}" for parts, format in sorted(grouped))
        raise make_error(
            "parts_value",
            file=folder,
            what="its content",
            value=sets,
            bound="one set of shards, unless a manifest selects one",
        )
    numbers = grouped.get((parts, format), {})
    beyond = [n for n in numbers if n >= parts]
    if beyond:
        raise make_error("parts_value", file=folder, what="the shard number", value=beyond[0], bound=f"below {parts}")
    missing = next((n for n in range(parts) if n not in numbers), None)
    if missing is not None or parts == 0:
        raise make_error("parts_missing", file=folder, value=missing or 0, bound=parts)
    return [[folder / name for name in numbers[n]] for n in range(parts)], format


def _read_files(path: Path, files: list[list[Path]], format: str, manifest: Layout | None) -> Source:
    for file in (f for part in files for f in part):
        if not file.is_file():  # reading a pipe would block
            raise make_error("parts_malformed", file=file, why="not a regular file")
    if format == "npy":
        return Source(path, [_npy_part(part) for part in files], format, manifest)
    read = [read_safetensors_header(part[0]) for part in files]
    first = read[0][1]
    shared = {k: v for k, v in first.items() if all(metadata.get(k) == v for _, metadata in read)}
    return Source(path, [tensors for tensors, _ in read], format, manifest, shared)


def _npy_part(files: list[Path]) -> Part:
    names = [parse_name(file.name) for file in files]
    return {
        TABLE if parsed is None else parsed[3]: read_npy_header(file) for parsed, file in zip(names, files, strict=True)
    }


def _select(found: Source, tensors: Renaming) -> Source:
    for part in found.parts:
        missing = [old for old in tensors.values() if old not in part]
        if missing:
            raise make_error(
                "parts_no_tensor", file=found.path, value=repr(missing[0]), bound=", ".join(map(repr, part))
            )
    parts = [{new: part[old] for new, old in tensors.items()} for part in found.parts]
    manifest = found.manifest
    if manifest is not None:
        chosen = {new: manifest.tensors[old] for new, old in tensors.items() if old in manifest.tensors}
        manifest = Layout(manifest.format, manifest.strategy, manifest.parts, manifest.rows, chosen)
    return Source(found.path, parts, found.format, manifest, found.metadata)


def _read_checkpoint(path: Path, tensors: Renaming | None, in_slices: bool) -> Source:
    """Read tensors of a checkpoint: one part, or as many parts as a partitioned variable has shards.

    `in_slices` also makes parts of the slices of a variable that was saved under one name: joined, they have another
    order than under "mod".
    """
    from ..checkpoint import Checkpoint  # imported lazily
    from ..checkpoint.tables import shard_names

    checkpoint = Checkpoint(path)
    if tensors is None:
        names = checkpoint.names()
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise make_error("parts_which", file=checkpoint.prefix, argument="tensors", value=listed)
    found: dict[str, list[Stored]] = {}
    for new, old in tensors.items():
        if old in checkpoint:
            found[new] = _slices_of(checkpoint, old) if in_slices else [_in_checkpoint(checkpoint, old)]
        else:
            found[new] = [_in_checkpoint(checkpoint, shard) for shard in shard_names(checkpoint, old)]
    count = max(map(len, found.values()), default=0)
    for new, shards_ in found.items():
        if len(shards_) != count and shards_[0].shape:
            what = f"number of shards of {tensors[new]!r}"
            raise make_error("parts_value", file=checkpoint.prefix, what=what, value=len(shards_), bound=count)
    # A scalar is saved once and belongs to every part.
    parts = [{new: shards[k] if len(shards) > 1 else shards[0] for new, shards in found.items()} for k in range(count)]
    return Source(checkpoint.prefix, parts, "safetensors")


def _slices_of(checkpoint: Checkpoint, name: str) -> list[Stored]:
    """Return the shards of a partitioned variable that was saved in slices under one name, or the whole tensor."""
    from ..checkpoint.reader import row_ranges  # imported lazily

    whole, ranges = _in_checkpoint(checkpoint, name), row_ranges(checkpoint, name)
    if len(ranges) == 1:
        return [whole]
    return [replace(whole, shape=(rows.stop - rows.start, *whole.shape[1:]), first=rows.start) for rows in ranges]


def _in_checkpoint(checkpoint: Checkpoint, name: str) -> InCheckpoint:
    dtype = next((known for known, numpy_dtype in DTYPES.items() if numpy_dtype == checkpoint.dtype(name)), "string")
    if dtype == "string":
        raise make_error("parts_dtype", file=checkpoint.prefix, what=repr(name), value=dtype, bound="shard")
    return InCheckpoint(checkpoint, name, dtype, checkpoint.shape(name))


# -- Writing: into a temporary folder, which is renamed to the target when it is complete -----------------------------

Place = tuple[str, int]  # a file's name, and the offset of a tensor in it


class Target:
    """A folder being written: files of their final size, to which rows are written in any order."""

    def __init__(self, folder: Path, layout: Layout, metadata: dict[str, str]) -> None:
        self.layout, self._folder, self._metadata = layout, folder, metadata
        self._places: list[dict[str, Place]] = []

    def plan(self) -> tuple[list[tuple[str, bytes, int]], int]:
        """Return name, header and size of every file, and the total number of bytes."""
        files = []
        for number, rows in enumerate(shard_sizes(self.layout.rows, self.layout.parts)):
            tensors = {
                name: (t.dtype, (rows, *t.shape[1:]) if t.by_rows else t.shape)
                for name, t in self.layout.tensors.items()
            }
            made, places = self._part(number, tensors)
            files += made
            self._places.append(places)
        return files, sum(size for _, _, size in files)

    def _part(
        self, number: int, tensors: dict[str, tuple[str, tuple[int, ...]]]
    ) -> tuple[list[tuple[str, bytes, int]], dict[str, Place]]:
        format, parts = self.layout.format, self.layout.parts
        if format == "safetensors":
            name = part_name(number, parts, format)
            head, offsets = safetensors_header(tensors, self._metadata)
            size = len(head) + sum(size_of(*tensor) for tensor in tensors.values())
            return [(name, head, size)], {tensor: (name, offset) for tensor, offset in offsets.items()}
        files, places = [], {}
        for tensor, (dtype, shape) in tensors.items():
            name, head = part_name(number, parts, format, tensor), npy_header(dtype, shape)
            files.append((name, head, len(head) + size_of(dtype, shape)))
            places[tensor] = name, len(head)
        return files, places

    def create(self, files: list[tuple[str, bytes, int]]) -> None:
        """Create the files with their headers, without rows."""
        for name, head, size in files:
            with (self._folder / name).open("xb") as file:
                file.write(head)
                file.truncate(size)

    def write(self, part: int, tensor: str, begin: int, rows: Array) -> None:
        """Write rows, as raw bytes, from row `begin` of a part on."""
        name, offset = self._places[part][tensor]
        with open(self._folder / name, "r+b", buffering=0) as file:
            file.seek(offset + begin * rows.itemsize)
            view = rows.view(np.uint8).data
            while view:
                view = view[file.write(view) :]

    def finish(self) -> None:
        """Flush everything to disk, the manifest last."""
        for name in sorted({place[0] for part in self._places for place in part.values()}):
            sync(self._folder / name)
        manifest = self._folder / MANIFEST
        manifest.write_text(json.dumps(self.layout.to_json(), indent=1) + "\n", encoding="utf-8")
        sync(manifest)
        sync(self._folder)


@contextmanager
def new_target(path: Path, layout: Layout, metadata: dict[str, str], overwrite: bool) -> Iterator[Target]:
    """Yield a target to write; at the end it is renamed into place, and after an error it is removed."""
    check_layout(path, layout)
    _check_free(path, overwrite)
    with temporary_folder(path) as folder:
        target = Target(folder, layout, metadata)
        files, needed = target.plan()
        if needed > shutil.disk_usage(path.parent).free:
            raise _no_space(errno.ENOSPC, path, needed)
        try:
            target.create(files)
            yield target
            target.finish()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise _no_space(error.errno, path, needed) from error
            raise
        _check_free(path, overwrite)  # again: moving rows takes a while, and files may have been added
        put_in_place(folder, path, overwrite)


def check_layout(path: Path, layout: Layout) -> None:
    """Raise for names and dtypes that the files' format does not support."""
    for name, tensor in layout.tensors.items():
        if layout.format == "npy":
            check_name(name, path)
        elif tensor.dtype not in CODES or name == METADATA:
            raise make_error("parts_dtype", file=path, what=repr(name), value=tensor.dtype, bound=".safetensors")


def _check_free(path: Path, overwrite: bool) -> None:
    """Raise if the target exists and may not be replaced: only a folder of parts may, and only with `overwrite`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, "the target is a file, but must be a folder", str(path))
    names = sorted(os.listdir(path))
    if names and not overwrite:
        raise FileExistsError(errno.EEXIST, "the folder is not empty; pass overwrite to replace its shards", str(path))
    others = [n for n in names if (n != MANIFEST and parse_name(n) is None) or (path / n).is_dir()]
    if others:
        raise FileExistsError(errno.EEXIST, f"the folder contains files that are not shards: {others[0]}", str(path))


def _no_space(number: int, path: Path, needed: int) -> OSError:
    free = shutil.disk_usage(path.parent).free
    return OSError(number, f"{os.strerror(number)}: {needed} bytes are needed, {free} are free", str(path))
