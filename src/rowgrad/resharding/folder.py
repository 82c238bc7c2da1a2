"""Folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD, _EXCHANGE = -100, 2  # of Linux


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside the target, gone at the end. What an earlier process left when it was killed goes first.

    A lock tells folders in use from those: it ends with the process.
    """
    _remove_abandoned(target)
    folder, lock = _locked_folder(target)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(target: Path) -> tuple[Path, int]:
    while True:
        folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        folder.mkdir()
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process took it for abandoned
            continue
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, handle
        os.close(handle)


def _remove_abandoned(target: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for name in os.listdir(target.parent):
        if pattern.fullmatch(name):
            with contextlib.suppress(OSError):
                handle = os.open(target.parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(target.parent / name, ignore_errors=True)
                finally:
                    os.close(handle)


def put_in_place(folder: Path, target: Path, overwrite: bool) -> None:
    """Give a folder its name. With `overwrite` it changes places with the one that has it."""
    if overwrite and target.is_dir():
        os.chmod(folder, target.stat().st_mode & 0o7777)
        if not _exchange(folder, target):
            # Not .tmp: a process that is killed between the two leaves the only old set there.
            aside = folder.with_suffix(".old")
            os.rename(target, aside)
            try:
                os.rename(folder, target)
            except BaseException:
                os.rename(aside, target)
                raise
            shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(folder, target)  # over an empty folder too, but over nothing else
    sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Both at once, so that there is no moment without the name; False where the system cannot."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    if call is None:
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return int(call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)) == 0


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
