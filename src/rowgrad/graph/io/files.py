"""Write files atomically: to a temporary file in the same folder, which is then renamed over the target."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..._runtime.plain_file import open_plain
from ..page import PageError

Content = bytes | Callable[[BinaryIO], object]
_STALE = 3600.0  # seconds after which a temporary file is considered abandoned


def write_atomically(path: str | os.PathLike[str], content: Content) -> None:
    """Write a file (bytes, or the output of a function) so that a crash leaves the old file or the new one."""
    target = Path(os.path.realpath(path))
    commit(prepare(target, content), target)


def prepare(target: Path, content: Content) -> Path:
    """Write the content to a temporary file beside the target and sync it; remove it after an error."""
    check_replaceable(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", str(target))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    # Not mkstemp, which ignores the umask: the file gets the mode of a new file, or of the file it replaces.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(OSError):
                os.fchmod(handle, stat.S_IMODE(os.stat(target).st_mode))
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(handle)
    except BaseException:
        remove(temporary)
        raise
    return temporary


def check_replaceable(target: Path) -> None:
    """Raise OSError if the target is a folder, pipe, socket or device: a rename over it would fail or remove it."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "this is a folder", str(target))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "this is not a regular file", str(target))


def commit(temporary: Path, target: Path) -> None:
    """Rename over the target and sync the folder to disk."""
    rename(temporary, target)
    sync_folder(target.parent)


def rename(temporary: Path, target: Path) -> None:
    """Rename over the target; remove the temporary file after an error."""
    try:
        os.replace(temporary, target)
    except BaseException:
        remove(temporary)
        raise


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk."""
    _sync(folder, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Sync a file to disk."""
    _sync(path, 0)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Lock the folder against other writers, which would delete uncommitted files as abandoned."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not unlock while a forked process has the handle
        os.close(handle)


def remove(path: Path) -> None:
    """Delete a file, and ignore errors."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_stale(folder: Path, name: str) -> None:
    """Delete abandoned temporary files of targets whose names match `name`, a regular expression."""
    pattern = re.compile(rf"\.(?:{name})\.[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if pattern.fullmatch(entry.name) and time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE:
                remove(folder / entry.name)


def read_regular(
    path: Path, fits: Callable[[int], bool] = lambda size: True, follow_links: bool = True
) -> bytes | None:
    """Read a regular file, or return None if its size does not fit; raise PageError for any other kind of file."""
    try:
        file = open_plain(path, follow_links=follow_links)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP):
            raise PageError(str(path), error.strerror or str(error)) from None
        raise
    with file:
        return file.read() if fits(os.fstat(file.fileno()).st_size) else None
