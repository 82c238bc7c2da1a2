"""Exit codes, and the two errors that only a command line has."""

from __future__ import annotations

OK, REFUSED, USAGE, FILES, UNEXPECTED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 70, 130, 143

TABLE = {
    OK: "all is well",
    REFUSED: "refused: a page or a value that does not hold, an engine that is not there",
    USAGE: "wrong usage: an option or a name that does not exist, options that do not go together",
    FILES: "a file that is missing, cannot be read or cannot be written",
    UNEXPECTED: "an error nobody expected; --debug shows where",
    INTERRUPTED: "interrupted by Ctrl-C",
    TERMINATED: "ended by SIGTERM",
}


class UsageError(Exception):
    """What was asked for cannot be asked for."""


class StoppedError(BaseException):
    """A signal that ends the command at once; like KeyboardInterrupt nothing but the entry catches it."""

    def __init__(self, number: int, text: str = "ended at once by a second signal, and nothing was saved") -> None:
        super().__init__(text)
        self.number = number
