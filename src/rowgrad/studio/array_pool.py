"""The array pool of a project: every large array that a page names, decoded in memory and as a file named by its hash.

A browser has only the names of arrays, and its undo may need an array that no page has any more: files stay for a week.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import threading
import time
import weakref
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._runtime.plain_file import open_plain
from ..graph import Page, PageError, Project
from ..graph.io import arrays, files, page_json, plain

# -- files: hard-linked if possible, otherwise copied; symbolic links are never followed -------------------------------

OWN = ".rowgrad"  # Studio's own folder in a project
Stamp = tuple[int, int, int, int]
_IGNORE = "*\n"  # content of .gitignore: nothing in Studio's folder is part of the project


def stamp(path: Path, used: bool = False) -> Stamp | None:
    """Return a tuple that changes with a regular file, or None without such a file. With `used`, touch it."""
    try:
        if used:
            os.utime(path, follow_symlinks=False)
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def same(one: Path, other: Path) -> bool:
    """Return whether two paths are the same file."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def reject_link(*paths: Path) -> None:
    """Raise if a path is a symbolic link, because it may lead out of the project."""
    for path in paths:
        if path.is_symlink():
            raise PageError(str(path), "this is a symbolic link, which Studio does not follow")


def make_folder(path: Path) -> None:
    """Create a folder inside Studio's own folder, and that folder if needed."""
    own = next(parent for parent in (path, *path.parents) if parent.name == OWN)
    reject_link(own, path)
    if not own.is_dir():
        os.mkdir(own)
        files.write_atomically(own / ".gitignore", _IGNORE.encode())
        files.sync_folder(own.parent)
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        files.sync_folder(path.parent)


def link(source: Path, target: Path) -> None:
    """Hard-link a file over the target; copy it if the file system has no links."""
    reject_link(source)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        os.link(source, temporary, follow_symlinks=False)
    except FileNotFoundError:
        raise PageError(source.name, f"there is no such file in {source.parent}") from None
    except OSError:
        temporary = files.prepare(target, lambda file: _copy(source, file))
    files.rename(temporary, target)
    # If both were already the same file, renaming does nothing and leaves the temporary name.
    files.remove(temporary)


def _copy(source: Path, file: BinaryIO) -> None:
    with open_plain(source, follow_links=False) as opened:
        shutil.copyfileobj(opened, file, 1 << 20)


def write(folder: Path, content: arrays.Content) -> None:
    """Write an array's file and sync it to disk."""
    target = folder / content.name
    files.rename(files.prepare(target, lambda file: file.writelines(content.buffers)), target)
    files.sync_folder(folder)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_plain(path, follow_links=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sweep(root: Path, pool: Path, before: float) -> None:
    """Delete arrays of the pool last used before a time that no page's folder has, and files left by crashes."""
    if not pool.is_dir():
        return
    files.remove_stale(pool, arrays.NAME.pattern)
    in_use = {path.name for path in root.glob("*.json.arrays/*")}
    in_use |= {path.name for path in (root / OWN / "removed").glob("*/*.json.arrays/*")}
    with contextlib.suppress(OSError), os.scandir(pool) as found:
        for entry in found:
            if arrays.NAME.fullmatch(entry.name) and entry.name not in in_use:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        files.remove(pool / entry.name)


# -- the pool ----------------------------------------------------------------------------------------------------------

MOST_DECODED = 1 << 30  # bytes of decoded arrays; the last one used stays, however large
_KEEP_SECONDS = 7 * 86400.0  # how long arrays stay that no page uses
_PLACE = "value"
_Key = tuple[str, str, tuple[int, ...]]  # a file's name, and the dtype and shape to read it with
Array = np.ndarray[Any, Any]


class Pool:
    """Reads and writes pages for a browser: large arrays are names of files in `<project>/.rowgrad/arrays`.

    Thread-safe. Arrays are read-only, and a file's array is one object as long as it is used.
    """

    def __init__(self, root: Path, most: int = MOST_DECODED) -> None:
        self.root = Path(root)
        self.path = self.root / OWN / "arrays"
        self._most = most
        self._lock = threading.RLock()
        self._decoded: OrderedDict[_Key, tuple[Array, int]] = OrderedDict()
        self._names: dict[int, tuple[weakref.ref[Array], _Key]] = {}
        self._intact: dict[str, Stamp] = {}  # files whose bytes were verified against their names
        self._linked: dict[Path, Stamp | None] = {}  # copies, where files cannot be linked
        reject_link(self.path.parent, self.path)
        sweep(self.root, self.path, time.time() - _KEEP_SECONDS)

    def read_page(self, tree: Any) -> Page:
        """Decode a page."""
        page = self.read_any(tree)
        if not isinstance(page, Page):
            raise PageError("format", f"must be {page_json.PAGE!r}; this is a project, which can be imported")
        return page

    def read_any(self, tree: Any) -> Page | Project:
        """Decode a page or project."""
        return page_json.decode(tree, self._array)

    def read_value(self, value: Any, place: str = _PLACE) -> Any:
        """Decode a value."""
        return plain.decode_value(value, place, self._array)

    def write_page(self, page: Page) -> dict[str, Any]:
        """Encode a page for a browser, with floats marked as floats."""
        return self.tree_of(page, browser=True)

    def write_value(self, value: Any) -> Any:
        """Encode a value for a browser."""
        writer = _Writer(self, browser=True)
        encoded = plain.encode_value(value, _PLACE, writer)
        self._write_files(writer)
        return encoded

    def tree_of(self, page: Page, browser: bool = False) -> dict[str, Any]:
        """Encode a page for its file, and write the arrays that it names to the pool."""
        writer = _Writer(self, browser)
        tree = page_json.encode(page, writer)
        self._write_files(writer)
        return tree

    def add_file(self, folder: Path, name: str) -> None:
        """Add a file of a page's folder of arrays to the pool; a damaged file in the pool is replaced."""
        if not arrays.NAME.fullmatch(name):
            raise PageError(name, "this is not the name of an array's file")
        reject_link(folder, folder / name)
        with self._lock:
            if not self._is_intact(name):
                make_folder(self.path)
                link(folder / name, self.path / name)

    def link_files(self, names: set[str], folder: Path, created: list[Path]) -> None:
        """Link files of the pool into a page's folder of arrays; append new ones to `created`."""
        for name in sorted(names):
            target = folder / name
            current = stamp(target)
            if current is not None and (current == self._linked.get(target) or same(self.path / name, target)):
                continue
            if not folder.is_dir():
                os.mkdir(folder)
                files.sync_folder(folder.parent)
            with self._lock:
                if not self._is_intact(name):
                    raise PageError(name, f"this array's file is damaged or gone from {self.path}")
                if current is None:
                    created.append(target)
                link(self.path / name, target)
                self._linked[target] = stamp(target)
        if names and folder.is_dir():
            files.sync_folder(folder)

    def origin(self, array: Array) -> _Key | None:
        """Return the file that an array came from, or None if there is no such file."""
        found = self._names.get(id(array))
        if found is None or found[0]() is not array or not os.path.lexists(self.path / found[1][0]):
            return None
        return found[1]

    def _array(self, value: Any, place: str) -> Array:
        """Decode the JSON object of an array."""
        key = _key(value)
        if key is None:  # its elements are in the page, or the object is invalid and decode raises
            return arrays.decode(value, place, arrays.Folder(self.path))
        with self._lock:
            if key in self._decoded:
                self._decoded.move_to_end(key)
                return self._decoded[key][0]
            reject_link(self.path, self.path / key[0])
            before = stamp(self.path / key[0], used=True)
            array = arrays.decode(value, place, arrays.Folder(self.path))
            if before is not None:
                self._intact[key[0]] = before
            self._cache(key, array)
            return array

    def _cache(self, key: _Key, array: Array) -> None:
        forget = partial(self._names.pop, id(array), None)
        self._names[id(array)] = (weakref.ref(array, lambda _: forget()), key)
        size = array.nbytes
        if array.dtype == object:
            size += sum(map(len, array.reshape(-1).tolist())) + 50 * array.size
        self._decoded[key] = (array, size)
        total = sum(nbytes for _, nbytes in self._decoded.values())
        while total > self._most and len(self._decoded) > 1:
            total -= self._decoded.popitem(last=False)[1][1]

    def _write_files(self, writer: arrays.Writer) -> None:
        for content in writer.files.values():
            with self._lock:
                if not self._is_intact(content.name):
                    make_folder(self.path)
                    write(self.path, content)
                    self._mark_intact(content.name)

    def _is_intact(self, name: str) -> bool:
        """Return whether the file exists and matches its name; it is read again only if it changes."""
        path = self.path / name
        found = stamp(path)
        if found is None:
            return False
        if self._intact.get(name) != found:
            try:
                if not name.startswith(digest(path)):
                    return False
            except OSError:
                return False
            self._mark_intact(name)
        return True

    def _mark_intact(self, name: str) -> None:
        found = stamp(self.path / name, used=True)
        if found is not None:
            self._intact[name] = found


class _Writer(arrays.Writer):
    """Writes large arrays as files; arrays of the pool are neither hashed nor written again."""

    def __init__(self, pool: Pool, browser: bool) -> None:
        super().__init__(apart=True, browser=browser)
        self._pool = pool

    def encode(self, array: Array, place: str) -> dict[str, Any]:
        origin = self._pool.origin(array)
        if origin is None:
            return super().encode(array, place)
        name, dtype, shape = origin
        return {"dtype": dtype, "shape": list(shape), "file": name}


def _key(value: Any) -> _Key | None:
    """Return name, dtype and shape of an object that names a file, or None if it is not such an object."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "file"}:
        return None
    name, dtype, shape = value["file"], value["dtype"], value["shape"]
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        return None
    if not arrays.NAME.fullmatch(name) or any(type(size) is not int for size in shape):
        return None
    return name, dtype, tuple(shape)
