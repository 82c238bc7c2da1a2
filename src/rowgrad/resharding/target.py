"""Parts as they are made: in a folder of another name beside the target, which takes its place when all is there."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..errors import refuse
from ..parts import shard_sizes
from . import npy_file, safetensors_file
from .folder import put_in_place, sync, temporary_folder
from .layout import MANIFEST, Layout, check_name, parse_name, part_name
from .stored import Array, size_of

Place = tuple[str, int]  # a file's name, and where in it a tensor begins


class Target:
    """A folder that is being filled: files of the right size, to which rows are written in any order."""

    def __init__(self, folder: Path, layout: Layout, metadata: dict[str, str]) -> None:
        self.layout, self._folder, self._metadata = layout, folder, metadata
        self._places: list[dict[str, Place]] = []

    def plan(self) -> tuple[list[tuple[str, bytes, int]], int]:
        """Name, header and size of every file, and bytes in all."""
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
            head, offsets = safetensors_file.header(tensors, self._metadata)
            size = len(head) + sum(size_of(*tensor) for tensor in tensors.values())
            return [(name, head, size)], {tensor: (name, offset) for tensor, offset in offsets.items()}
        files, places = [], {}
        for tensor, (dtype, shape) in tensors.items():
            name, head = part_name(number, parts, format, tensor), npy_file.header(dtype, shape)
            files.append((name, head, len(head) + size_of(dtype, shape)))
            places[tensor] = name, len(head)
        return files, places

    def create(self, files: list[tuple[str, bytes, int]]) -> None:
        """Make the files, at first without rows."""
        for name, head, size in files:
            with (self._folder / name).open("xb") as file:
                file.write(head)
                file.truncate(size)

    def write(self, part: int, tensor: str, begin: int, rows: Array) -> None:
        """Write rows, as bytes, from row `begin` of a part on."""
        name, offset = self._places[part][tensor]
        with open(self._folder / name, "r+b", buffering=0) as file:
            file.seek(offset + begin * rows.itemsize)
            view = rows.view(np.uint8).data
            while view:
                view = view[file.write(view) :]

    def finish(self) -> None:
        """Bring all to the disk, the manifest last."""
        for name in sorted({place[0] for part in self._places for place in part.values()}):
            sync(self._folder / name)
        manifest = self._folder / MANIFEST
        manifest.write_text(json.dumps(self.layout.to_json(), indent=1) + "\n", encoding="utf-8")
        sync(manifest)
        sync(self._folder)


@contextmanager
def new_target(path: Path, layout: Layout, metadata: dict[str, str], overwrite: bool) -> Iterator[Target]:
    """A target to be filled; at the end it is in its place, or after an error there is nothing of it."""
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
        _check_free(path, overwrite)  # moving rows takes a while: files may have been added meanwhile
        put_in_place(folder, path, overwrite)


def check_layout(path: Path, layout: Layout) -> None:
    """Refuse names and dtypes that the files' format does not have."""
    for name, tensor in layout.tensors.items():
        if layout.format == "npy":
            check_name(name, path)
        elif tensor.dtype not in safetensors_file.CODES or name == safetensors_file.METADATA:
            raise refuse("parts_dtype", file=path, what=repr(name), value=tensor.dtype, bound=".safetensors")


def _check_free(path: Path, overwrite: bool) -> None:
    """Whether something stands there, and may be replaced: parts alone are."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, "this is a file; parts go into a folder", str(path))
    names = sorted(os.listdir(path))
    if names and not overwrite:
        raise FileExistsError(errno.EEXIST, "there is something already; overwrite replaces parts", str(path))
    strange = [n for n in names if (n != MANIFEST and parse_name(n) is None) or (path / n).is_dir()]
    if strange:
        raise FileExistsError(errno.EEXIST, f"this folder holds other things than parts: {strange[0]}", str(path))


def _no_space(number: int, path: Path, needed: int) -> OSError:
    free = shutil.disk_usage(path.parent).free
    return OSError(number, f"{os.strerror(number)}: {needed} bytes are needed, {free} are free", str(path))
