"""Files in `.rowgrad` of a project: its port, the token where it is kept, and how to reach a studio that runs.

A studio that is started again on a project has the port that it had. `token` is written with `--keep-token` only.
`studio-<port>` exists while a studio runs, for `rowgrad studio --link`. Only the owner may read these two. A project
that was copied or unpacked brings them along, and its author would know the secrets in them: so each file records the
inode it was written to, and is ignored anywhere else.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..graph import PageError
from ..graph.io import files
from . import pool_files

TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_MOST = 400  # bytes of such a file
_LEAST_PORT = 1024


class Running(NamedTuple):
    """Where a studio listens, and the secret it gives launch addresses for."""

    host: str
    port: int
    control: str


def kept_token(folder: Path) -> str:
    """The token of the studio before; a new one, which is kept, where there was none."""
    path = folder / pool_files.OWN / "token"
    found = _read_private(path)
    if found is None or not TOKEN.fullmatch(found):
        found = secrets.token_urlsafe(32)
        with contextlib.suppress(OSError, PageError):  # a disk that is full makes no studio impossible
            _write_private(path, found)
    return found


@contextlib.contextmanager
def running_file(folder: Path, running: Running) -> Iterator[None]:
    """Have the file of a studio while it runs."""
    path = folder / pool_files.OWN / f"studio-{running.port}"
    with contextlib.suppress(OSError, PageError):  # then there is no --link
        _write_private(path, f"{running.control} {running.host}")
    try:
        yield
    finally:
        if _read_private(path) == f"{running.control} {running.host}":
            files.remove(path)


def running_studios(folder: Path) -> list[Running]:
    """Studios that have not removed their files, the latest first. Some may have been killed."""
    found = []
    for path in (folder / pool_files.OWN).glob("studio-*"):
        port, text = path.name.removeprefix("studio-"), _read_private(path)
        control, _, host = (text or "").partition(" ")
        if re.fullmatch(r"[0-9]{1,5}", port) and TOKEN.fullmatch(control) and host:
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime_ns, Running(host, int(port), control)))
    return [running for _, running in sorted(found, reverse=True)]


def redirect_path(folder: Path, port: int) -> Path:
    """Where the file is that leads a browser to the studio on this port."""
    return folder / pool_files.OWN / f"open-{port}.html"


def write_redirect(path: Path, address: str) -> str | None:
    """Write that file; its own address, or None where it cannot be written.

    Other users can read a browser's command line, but not this file.
    """
    written = html.escape(address)
    text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={written}">'
    try:
        pool_files.make_folder(path.parent)
        files.remove(path)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'{text}<title>rowgrad Studio</title><a href="{written}">Open the studio</a>\n')
    except (OSError, PageError):
        return None
    return path.absolute().as_uri()


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


def _read_private(path: Path) -> str | None:
    """What `_write_private` wrote; None where the file is another's, a copy, or open to others."""
    raw = _plain(path, private=True)
    if raw is None:
        return None
    text, _, place = raw.decode("latin-1").strip().rpartition(" ")
    with contextlib.suppress(OSError):
        if place == _place(os.lstat(path)):
            return text
    return None


def _write_private(path: Path, text: str) -> None:
    pool_files.make_folder(path.parent)
    pool_files.refuse_link(path)
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text} {_place(os.fstat(file.fileno()))}\n")
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
