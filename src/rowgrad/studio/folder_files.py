"""A page's file and its folder of arrays, written and moved together: a crash at any moment leaves whole pages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..graph.io import array_files, files, store
from . import pool_files
from .pool import Pool


def arrays_in(tree: Any) -> set[str]:
    """The files of arrays that a page's data names, wherever in it."""
    return set(_names(tree))


def _names(tree: Any) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            name = found.get("file")
            if isinstance(name, str) and array_files.NAME.fullmatch(name):
                yield name
            waiting += [value for value in found.values() if isinstance(value, dict | list)]


def put(path: Path, text: bytes, named: set[str], pool: Pool, first: Callable[[], None]) -> None:
    """Write a page with arrays of the pool. `first` looks, while others are held off, whether it is to be."""

    def put_arrays(folder: Path, made: list[Path]) -> None:
        first()
        pool_files.refuse_link(folder, path)
        pool.hand_out(named, folder, made)

    store.replace(path, text, named, put_arrays)


def has_arrays(path: Path, named: set[str]) -> bool:
    """Whether a page's folder of arrays has all these."""
    return named <= set(_listed(store.folder_of(path)))


def move(old: Path, new: Path) -> None:
    """Give a page another name or folder: its arrays are there before it is, and go after it has gone."""
    source, target = store.folder_of(old), store.folder_of(new)
    pool_files.refuse_link(source, target)
    listed = [name for name in _listed(source) if array_files.NAME.fullmatch(name)]
    try:
        if listed and not target.is_dir():
            os.mkdir(target)
        for name in listed:
            if not pool_files.same(source / name, target / name):
                pool_files.link(source / name, target / name)
        if listed:
            files.sync_folder(target)
            files.sync_folder(target.parent)
        os.rename(old, new)
    except OSError:  # a full disk keeps no arrays of a page that did not come
        if not os.path.lexists(new) and not pool_files.same(source, target):
            _clear(target)
        raise
    files.sync_folder(new.parent)
    if old.parent != new.parent:
        files.sync_folder(old.parent)
    if not pool_files.same(source, target):  # where a file system takes net and Net for one, they are
        _clear(source)


def _clear(folder: Path) -> None:
    """Delete the arrays of a page that has gone, and their folder if nothing else is in it."""
    files.remove_stale(folder, array_files.NAME.pattern)
    for name in _listed(folder):
        if array_files.NAME.fullmatch(name):
            files.remove(folder / name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
