"""Opening files for reading: regular files only, so that no pipe, device or folder of that name is waited for."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: str | os.PathLike[str], *, follow_links: bool = True) -> BufferedReader:
    """Open a regular file; OSError for anything else, and for a symbolic link without `follow_links`.

    The file that is checked is the file that is open: nothing can take its place in between.
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
