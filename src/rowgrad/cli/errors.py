"""Exit codes, the two errors that only the command line raises, and the error for a missing file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .._hints import nearest

OK, REJECTED, USAGE, FILES, INTERNAL, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 70, 130, 143

TABLE = {
    OK: "success",
    REJECTED: "rejected: an invalid page or value, or an engine that is not available",
    USAGE: "usage error: an unknown option or name, or options that cannot be combined",
    FILES: "a file is missing, or cannot be read or written",
    INTERNAL: "internal error; --debug shows the traceback",
    INTERRUPTED: "interrupted by Ctrl-C",
    TERMINATED: "terminated by SIGTERM",
}


class UsageError(Exception):
    """The command line itself is wrong."""


class StoppedError(BaseException):
    """A signal that ends the command immediately; like KeyboardInterrupt, only the entry point catches it."""

    def __init__(self, number: int, text: str = "ended immediately by a second signal; nothing was saved") -> None:
        super().__init__(text)
        self.number = number


def no_such_file(path: str, text: str) -> FileNotFoundError:
    """Return the error for a file or folder that does not exist, with the name that was probably meant."""
    parent = Path(path).parent
    try:
        near = nearest(Path(path).name, os.listdir(parent))
    except OSError:
        near = []
    hint = f"; did you mean {parent / near[0]}?" if near else ""
    return FileNotFoundError(errno.ENOENT, f"{text}{hint}", path)
