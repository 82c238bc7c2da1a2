"""Exit codes, and the two errors that only the command line raises."""

from __future__ import annotations

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
