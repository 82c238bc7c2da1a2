"""A studio that is started again on the same project has the address it had: open windows find it and go on.

The token is in `.rowgrad/token`, which only its owner may read, the port in `.rowgrad/port`. A project that was copied
or unpacked brings both along, and whoever made it would know the token: so the file says which inode it was written
to, and is not believed anywhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from ..graph import PageError
from ..graph.io import files
from . import pool_files

TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_MOST = 400  # bytes of such a file
_LEAST_PORT = 1024


def kept_token(folder: Path) -> str:
    """The token of the studio before; a new one, which is kept, where there was none."""
    path = folder / pool_files.OWN / "token"
    found = _read_token(path)
    if found is None:
        found = secrets.token_urlsafe(32)
        with contextlib.suppress(OSError, PageError):  # a disk that is full makes no studio impossible
            _write_token(path, found)
    return found


def kept_port(folder: Path) -> int | None:
    """The port of the studio before."""
    raw = _plain(folder / pool_files.OWN / "port")
    if raw is None or not re.fullmatch(rb"\d{4,5}\n?", raw):
        return None
    return int(raw) if _LEAST_PORT <= int(raw) <= 65535 else None


def keep_port(folder: Path, port: int) -> None:
    """For the studio after this one."""
    path = folder / pool_files.OWN / "port"
    with contextlib.suppress(OSError, PageError):
        pool_files.make_folder(path.parent)
        pool_files.refuse_link(path)
        if _plain(path) != f"{port}\n".encode():
            files.write_atomically(path, f"{port}\n".encode())


def _read_token(path: Path) -> str | None:
    raw = _plain(path, private=True)
    if raw is None:
        return None
    token, _, place = raw.decode("latin-1").strip().partition(" ")
    with contextlib.suppress(OSError):
        if TOKEN.fullmatch(token) and place == _place(os.lstat(path)):
            return token
    return None


def _write_token(path: Path, token: str) -> None:
    pool_files.make_folder(path.parent)
    pool_files.refuse_link(path)
    made = path.with_name(f"token.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{token} {_place(os.fstat(file.fileno()))}\n")
        os.replace(made, path)
    except BaseException:
        files.remove(made)
        raise


def _plain(path: Path, private: bool = False) -> bytes | None:
    """What is in a plain, short file of ours; None where it is not there, or is something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if path.parent.is_symlink() or not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
            return None
        if private and os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            return None
        return file.read(_MOST)


def _place(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"
