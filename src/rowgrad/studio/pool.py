"""The arrays of a project: every large one that any page of this session has named, each a file named after its hash.

A browser holds names of arrays only, and its undo may ask for one that no page has any more: files stay for a week.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import Page, PageError, Project
from ..graph.io import array_files, arrays, decode, encode, files, plain
from . import pool_files

MOST_REMEMBERED = 1 << 30  # bytes of decoded arrays; the one used last stays, however large
_KEPT = 7 * 86400.0  # seconds an array stays that no page names
_PLACE = "value"
_Key = tuple[str, str, tuple[int, ...]]  # a file's name, and the dtype and shape its bytes are taken for
Array = np.ndarray[Any, Any]


class Pool:
    """Reads and writes pages as a browser has them: large arrays are names of files in `<project>/.rowgrad/arrays`.

    Any thread may call. Arrays are not to be written to, and one file's array is one object as long as it is used.
    """

    def __init__(self, root: Path, most: int = MOST_REMEMBERED) -> None:
        self.root = Path(root)
        self.path = self.root / pool_files.OWN / "arrays"
        self._most = most
        self._lock = threading.RLock()
        self._decoded: OrderedDict[_Key, tuple[Array, int]] = OrderedDict()
        self._names: dict[int, tuple[weakref.ref[Array], _Key]] = {}
        self._whole: dict[str, pool_files.Mark] = {}  # files whose bytes were found to be what their names say
        self._handed: dict[Path, pool_files.Mark | None] = {}  # copies, where files cannot be linked
        pool_files.refuse_link(self.path.parent, self.path)
        pool_files.sweep(self.root, self.path, time.time() - _KEPT)

    def read_page(self, tree: Any) -> Page:
        """The page of its JSON."""
        page = self.read_any(tree)
        if not isinstance(page, Page):
            raise PageError("format", f"must be {decode.PAGE!r}; this is a project, which can be imported")
        return page

    def read_any(self, tree: Any) -> Page | Project:
        """The page or project of its JSON."""
        return decode.decode(tree, self._array)

    def read_value(self, value: Any, place: str = _PLACE) -> Any:
        """The value of its JSON."""
        return plain.decode_value(value, place, self._array)

    def write_page(self, page: Page) -> dict[str, Any]:
        """The page as a browser takes it: floats without a dtype say that they are floats."""
        return self.tree_of(page, browser=True)

    def write_value(self, value: Any) -> Any:
        """The value as a browser takes it."""
        writer = _Writer(self, browser=True)
        made = plain.encode_value(value, _PLACE, writer)
        self._put(writer)
        return made

    def tree_of(self, page: Page, browser: bool = False) -> dict[str, Any]:
        """The page as its file has it; all the arrays it names are in the pool, down to the disk."""
        writer = _Writer(self, browser)
        tree = encode.encode(page, writer)
        self._put(writer)
        return tree

    def take_in(self, folder: Path, name: str) -> None:
        """Have the file of this name from a page's folder of arrays; one that is no good here is replaced."""
        if not array_files.NAME.fullmatch(name):
            raise PageError(name, "this is no name of an array's file")
        pool_files.refuse_link(folder, folder / name)
        with self._lock:
            if not self._is_whole(name):
                pool_files.make_folder(self.path)
                pool_files.link(folder / name, self.path / name)

    def hand_out(self, names: set[str], folder: Path, made: list[Path]) -> None:
        """Put files of the pool into a page's folder of arrays; `made` gets those that were not there."""
        for name in sorted(names):
            target = folder / name
            there = pool_files.mark(target)
            if there is not None and (there == self._handed.get(target) or pool_files.same(self.path / name, target)):
                continue
            if not folder.is_dir():
                os.mkdir(folder)
                files.sync_folder(folder.parent)
            with self._lock:
                if not self._is_whole(name):
                    raise PageError(name, f"this array's file is damaged or gone from {self.path}")
                if there is None:
                    made.append(target)
                pool_files.link(self.path / name, target)
                self._handed[target] = pool_files.mark(target)
        if names and folder.is_dir():
            files.sync_folder(folder)

    def origin(self, array: Array) -> _Key | None:
        """The file an array came from, if it came from one that is still there."""
        found = self._names.get(id(array))
        if found is None or found[0]() is not array or not os.path.lexists(self.path / found[1][0]):
            return None
        return found[1]

    def _array(self, value: Any, place: str) -> Array:
        """The array of its object in JSON."""
        told = _key(value)
        if told is None:  # its elements stand in the page, or it is no array's object and will be refused
            return arrays.decode(value, place, array_files.Folder(self.path))
        with self._lock:
            if told in self._decoded:
                self._decoded.move_to_end(told)
                return self._decoded[told][0]
            pool_files.refuse_link(self.path, self.path / told[0])
            before = pool_files.mark(self.path / told[0], used=True)
            array = arrays.decode(value, place, array_files.Folder(self.path))
            if before is not None:
                self._whole[told[0]] = before
            self._remember(told, array)
            return array

    def _remember(self, told: _Key, array: Array) -> None:
        forget = partial(self._names.pop, id(array), None)
        self._names[id(array)] = (weakref.ref(array, lambda _: forget()), told)
        size = array.nbytes
        if array.dtype == object:
            size += sum(map(len, array.reshape(-1).tolist())) + 50 * array.size
        self._decoded[told] = (array, size)
        total = sum(held for _, held in self._decoded.values())
        while total > self._most and len(self._decoded) > 1:
            total -= self._decoded.popitem(last=False)[1][1]

    def _put(self, writer: arrays.Writer) -> None:
        for content in writer.files.values():
            with self._lock:
                if not self._is_whole(content.name):
                    pool_files.make_folder(self.path)
                    pool_files.write(self.path, content)
                    self._mark_whole(content.name)

    def _is_whole(self, name: str) -> bool:
        """Whether the file is here with the bytes its name says; they are read once, until the file changes."""
        path = self.path / name
        found = pool_files.mark(path)
        if found is None:
            return False
        if self._whole.get(name) != found:
            try:
                if not name.startswith(pool_files.digest(path)):
                    return False
            except OSError:
                return False
            self._mark_whole(name)
        return True

    def _mark_whole(self, name: str) -> None:
        found = pool_files.mark(self.path / name, used=True)
        if found is not None:
            self._whole[name] = found


class _Writer(arrays.Writer):
    """Large arrays go apart; one that came from the pool is neither hashed nor written again."""

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
    """What an object says that names a file; None where it does not, or says it wrongly."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "file"}:
        return None
    name, dtype, shape = value["file"], value["dtype"], value["shape"]
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        return None
    if not array_files.NAME.fullmatch(name) or any(type(size) is not int for size in shape):
        return None
    return name, dtype, tuple(shape)
