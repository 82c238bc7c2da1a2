"""Kill processes at a chosen line of the code that writes files, independent of the machine's speed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import rowgrad

_CODE = str(Path(rowgrad.__file__).parent)
_WRITERS = {
    "_runtime/plain_file.py", "graph/io/arrays.py", "graph/io/files.py", "graph/io/state_file.py", "sharding/files.py",
    "studio/array_pool.py", "studio/project.py", "studio/serve.py",
}  # fmt: skip


class _Lines:
    """Counts executed lines of rowgrad's modules that write files, and kills the process at one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.count, self._last = 0, last

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(_CODE) and name.removeprefix(_CODE).lstrip(os.sep) in _WRITERS else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def lines_of(act: Callable[[], object]) -> int:
    """Return how many such lines run."""
    lines, before = _Lines(), sys.gettrace()
    sys.settrace(lines)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines.count


def killed_at(line: int, act: Callable[[], object]) -> None:
    """Run `act` in a child process that is killed after this many such lines; fail if it ends on its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about forking with threads
        child = os.fork()
    if child == 0:
        try:
            sys.settrace(_Lines(line))
            act()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # also after an error: the parent accepts only a killed child
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
