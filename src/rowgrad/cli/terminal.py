"""Output on the terminal: tables, JSON, errors, progress, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from .._catalog.spec import QUANTIZED
from .._runtime.arrays import Array, aval_of
from ..errors import OpError
from .errors import FILES, INTERRUPTED, REFUSED, UNEXPECTED, USAGE, StoppedError, UsageError

# -- What goes to stdout ----------------------------------------------------------------------------------------------

# What goes to stdout: JSON documents, and arrays in a few lines.

_LINES, _WIDTH = 6, 120  # of one array


_CONTROLS = "\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # what JSON leaves as it is
_UNPRINTABLE = re.compile(f"[\x00-\x08\x0b-\x1f{_CONTROLS}]")
_UNPRINTABLE_IN_JSON = re.compile(f"[{_CONTROLS}]")


def printable(text: str) -> str:
    """Text that a terminal only shows: control characters, and those that turn text around, are escaped."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def show(text: str) -> None:
    """Lines of the answer."""
    print(printable(text))


def emit(document: Any, indent: int | None = None) -> None:
    """One JSON document; what the stream's encoding lacks is escaped as JSON does it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    text = json.dumps(document, indent=indent, ensure_ascii=not encoding.startswith("utf"), allow_nan=False)
    print(_UNPRINTABLE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def say(command: str, text: str, quiet: bool = False) -> None:
    """A remark beside the answer."""
    if not quiet:
        print(printable(f"rowgrad {command}: {text}"), file=sys.stderr)


def array_text(name: str, array: Array) -> str:
    """`name  dtype[shape]`, and the values in NumPy's text below it."""
    aval = aval_of(array)
    if aval.dtype in QUANTIZED:
        array = array.view(array.dtype[0])
    options: dict[str, Any] = {"threshold": 60, "edgeitems": 2, "max_line_width": _WIDTH - 2}
    lines = np.array2string(array, **options).splitlines()
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], "…"]
    return "\n".join([f"{name}  {aval}", *(f"  {_short(line)}".rstrip() for line in lines)])


def _short(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"  # a string may be of any length


# -- Errors as people and programs read them --------------------------------------------------------------------------

# Errors as people and programs read them: one line on stderr, or one JSON document, and an exit code.


def tell(error: BaseException, command: str, as_json: bool, debug: bool) -> int:
    """Say what went wrong; returns the exit code."""
    if debug:
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    status = status_of(error)
    text = sentence(error)
    if status == UNEXPECTED:
        text += f" (unexpected{'' if debug else '; run it again with --debug to see where'})"
    if as_json:
        emit({"error": record(error) | {"message": text}})
    else:
        print(printable(f"rowgrad{command and ' ' + command}: {text}"), file=sys.stderr)
    return status


def status_of(error: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, StoppedError):
        return 128 + error.number
    if isinstance(error, UsageError):
        return USAGE
    # A page's array file that cannot be read is told as the page's error, with the file's behind it.
    if isinstance(error, OSError) or (isinstance(error, OpError) and isinstance(error.__cause__, OSError)):
        return FILES
    return REFUSED if isinstance(error, OpError | MemoryError) else UNEXPECTED


def sentence(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and not isinstance(error, OpError):
        text = error.strerror or str(error) or type(error).__name__
        text = f"{error.filename}: {text}" if error.filename else text
    elif isinstance(error, MemoryError) and not isinstance(error, OpError):
        text = f"out of memory: {error}" if str(error) else "out of memory"
    elif status_of(error) == UNEXPECTED:
        text = f"{type(error).__name__}: {error}"
    else:
        text = str(error)
    # Where it happened, such as the file of a page, stands in the error's notes.
    text += "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return " ".join(text.split())


def record(error: BaseException, block: str | None = None) -> dict[str, Any]:
    """The error's facts, ready for JSON."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": sentence(error), "block": block, "argument": None}
    if isinstance(error, OpError):
        facts |= {"block": block or error.name, "argument": error.argument}
        others = {"op": error.op, "place": getattr(error, "place", None) or None, "position": error.position}
        others |= {k: None if v is None else str(v) for k, v in (("value", error.value), ("bound", error.bound))}
        facts |= {k: v for k, v in others.items() if v is not None}
    elif isinstance(error, OSError) and error.filename:
        facts["file"] = str(error.filename)
    return facts


# -- How far a run has come, in one line of a terminal that is written over and taken away at the end -----------------

_AFTER = 0.5  # seconds; what is done sooner needs no line
_EVERY = 0.1
_PROGRESS_WIDTH = 24  # of the bar


class Progress:
    """A bar, steps done of all, percent, steps per second, time left; nothing where stderr is no terminal."""

    def __init__(self, total: int, shown: bool, out: TextIO | None = None, unit: str = "steps") -> None:
        self.total, self.done, self._unit = total, 0, unit
        self._out = sys.stderr if out is None else out
        self._shown = shown and self._out is not None and self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._began = self._last = time.monotonic()
        self._written = False

    def step(self, tick: object = None) -> None:
        """One more is done."""
        self.reach(self.done + 1)

    def reach(self, done: int) -> None:
        """So many are done."""
        self.done = done
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._began > _AFTER and now - self._last >= _EVERY:
            self._last = now
            self._out.write(f"\r\x1b[K{self._line(now - self._began)[: self._columns() - 1]}")
            self._out.flush()
            self._written = True

    def _line(self, elapsed: float) -> str:
        part = self.done / max(self.total, 1)
        speed = max(self.done, 1) / elapsed
        bar = "#" * int(part * _PROGRESS_WIDTH)
        digits = 0 if speed >= 100 else 1 if speed >= 10 else 2
        pace, left = f"{speed:.{digits}f} {self._unit}/s", clock((self.total - self.done) / speed)
        return f"[{bar:.<{_PROGRESS_WIDTH}}] {self.done}/{self.total} {part:4.0%}  {pace}  {left} left"

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def clear(self) -> None:
        """Take the line away."""
        if self._written:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._written = False


def clock(seconds: float) -> str:
    """83 -> 1:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# -- Ctrl-C and SIGTERM during a run ----------------------------------------------------------------------------------

# Ctrl-C and SIGTERM during a run: the step in progress finishes first; a second signal ends at once.

if TYPE_CHECKING:
    from ..graph.run_loop import Loop  # commands that know no pages load no graphs


class Stopping:
    """Watches for signals while a `with` lasts; `number` is the first that came."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._loop: Loop | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def watch(self, loop: Loop) -> Loop:
        """The loop that a signal is to end."""
        self._loop = loop
        if self.number is not None:
            loop.cancel()
        return loop

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise StoppedError(number)
        self.number = number
        if self._loop is not None:
            self._loop.cancel()
