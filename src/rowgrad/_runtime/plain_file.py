"""Open regular files only, so that reading never blocks on a pipe or device."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: str | os.PathLike[str], *, follow_links: bool = True) -> BufferedReader:
    """Open a regular file for reading.

    The check is done on the open file, so no other file can replace it in between.

    Raises:
        OSError: If it is not a regular file, or is a symbolic link and `follow_links` is False.
    """
    try:
        handle = os.open(path, _FLAGS | (0 if follow_links else getattr(os, "O_NOFOLLOW", 0)))
    except OSError as error:
        if not follow_links and os.path.islink(path):
            raise OSError(errno.ELOOP, "this is a symbolic link, which is not followed", os.fspath(path)) from None
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "this is not a regular file", os.fspath(path)) from None
        raise
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "this is a folder", os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "this is not a regular file", os.fspath(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
