"""Start child processes with default signals, even if the tests were started with some ignored (nohup, `make test &`).

Child processes inherit ignored signals. `python signal_defaults.py COMMAND…` restores the defaults and becomes the
command; `restored(command)` prefixes a command with that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

NAMES = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP")


def restored(command: Sequence[str]) -> list[str]:
    """Return the command, prefixed so that it starts with default signal handlers."""
    return [sys.executable, "-S", "-E", __file__, *command]


if __name__ == "__main__":
    for name in NAMES:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
