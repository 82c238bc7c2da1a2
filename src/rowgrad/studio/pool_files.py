"""Files of arrays: linked where the file system can, copied where it cannot, and never followed out of a project."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from ..graph import PageError
from ..graph.io import array_files, files
from ..plain_file import open_plain

OWN = ".rowgrad"  # the folder in a project that is the studio's
Mark = tuple[int, int, int, int]
_IGNORE = "*\n"  # for git: nothing in the studio's folder is part of the project


def mark(path: Path, used: bool = False) -> Mark | None:
    """What changes when a plain file does; None where there is none. A file in `use` is not old."""
    try:
        if used:
            os.utime(path, follow_symlinks=False)
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def same(one: Path, other: Path) -> bool:
    """Whether two names are of one file."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def refuse_link(*paths: Path) -> None:
    """A symbolic link may lead anywhere: what it leads to is neither read nor written."""
    for path in paths:
        if path.is_symlink():
            raise PageError(str(path), "this is a symbolic link, which a studio does not follow")


def make_folder(path: Path) -> None:
    """A folder under the studio's own, which is made with it."""
    own = next(parent for parent in (path, *path.parents) if parent.name == OWN)
    refuse_link(own, path)
    if not own.is_dir():
        os.mkdir(own)
        files.write_atomically(own / ".gitignore", _IGNORE.encode())
        files.sync_folder(own.parent)
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        files.sync_folder(path.parent)


def link(source: Path, target: Path) -> None:
    """Give a file a second name in place of whatever has that; where links cannot be, a copy."""
    refuse_link(source)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        os.link(source, temporary, follow_symlinks=False)
    except FileNotFoundError:
        raise PageError(source.name, f"there is no such file in {source.parent}") from None
    except OSError:
        temporary = files.prepare(target, lambda file: _copy(source, file))
    files.rename(temporary, target)
    # Where both names were of one file already, renaming does nothing and leaves the temporary one.
    files.remove(temporary)


def _copy(source: Path, file: BinaryIO) -> None:
    with open_plain(source, follow_links=False) as opened:
        shutil.copyfileobj(opened, file, 1 << 20)


def write(folder: Path, content: array_files.Content) -> None:
    """Write an array's file, down to the disk."""
    target = folder / content.name
    files.rename(files.prepare(target, lambda file: file.writelines(content.buffers)), target)
    files.sync_folder(folder)


def digest(path: Path) -> str:
    """The hash of a file's bytes."""
    with open_plain(path, follow_links=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sweep(root: Path, pool: Path, before: float) -> None:
    """Remove arrays of the pool last used before a time that are in no page's folder, and what crashes have left."""
    if not pool.is_dir():
        return
    files.remove_stale(pool, array_files.NAME.pattern)
    named = {path.name for path in root.glob("*.json.arrays/*")}
    named |= {path.name for path in (root / OWN / "removed").glob("*/*.json.arrays/*")}
    with contextlib.suppress(OSError), os.scandir(pool) as found:
        for entry in found:
            if array_files.NAME.fullmatch(entry.name) and entry.name not in named:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        files.remove(pool / entry.name)
