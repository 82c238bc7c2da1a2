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
from collections.abc import Iterable, Sequence
from itertools import groupby
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from .._catalog.spec import QUANTIZED
from .._runtime.arrays import Array, aval_of
from ..errors import OpError
from .errors import FILES, INTERNAL, INTERRUPTED, REJECTED, USAGE, StoppedError, UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from ..graph.run_loop import Loop  # commands that use no pages do not load graphs

# -- text and JSON -----------------------------------------------------------------------------------------------------

_LINES, _WIDTH = 6, 120  # limits for one array
_NARROW = 48  # columns up to this width are not wrapped
_CONTROLS = "\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # JSON does not escape these
_UNPRINTABLE = re.compile(f"[\x00-\x08\x0b-\x1f{_CONTROLS}]")
_UNPRINTABLE_IN_JSON = re.compile(f"[{_CONTROLS}]")


def printable(text: str) -> str:
    """Escape control characters and those that change the direction of text."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def show(text: str) -> None:
    """Print lines of the result."""
    print(printable(text))


def emit(document: Any, indent: int | None = None) -> None:
    """Print one JSON document; escape characters that the stream's encoding lacks."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    text = json.dumps(document, indent=indent, ensure_ascii=not encoding.startswith("utf"), allow_nan=False)
    print(_UNPRINTABLE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def say(command: str, text: str, quiet: bool = False) -> None:
    """Print a remark on stderr."""
    if not quiet:
        print(printable(f"rowgrad {command}: {text}"), file=sys.stderr)


def array_text(name: str, array: Array) -> str:
    """Return `name  dtype[shape]`, and NumPy's text of the values below it."""
    aval = aval_of(array)
    if aval.dtype in QUANTIZED:
        array = array.view(array.dtype[0])
    options: dict[str, Any] = {"threshold": 60, "edgeitems": 2, "max_line_width": _WIDTH - 2}
    lines = np.array2string(array, **options).splitlines()
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], "…"]
    return "\n".join([f"{name}  {aval}", *(f"  {_short(line)}".rstrip() for line in lines)])


def _short(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"  # an element may be a long string


def show_columns(rows: Iterable[Sequence[str] | str], indent: int = 0, numbers_from: int | None = None) -> None:
    """Print rows in aligned columns; a row that is one string is a heading.

    On a terminal rich wraps long cells to its width, if it is installed. Columns from `numbers_from` on are
    right-aligned.
    """
    lines = list(rows)
    cells = [row for row in lines if not isinstance(row, str)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = len(widths) if numbers_from is None else numbers_from
    if not (_is_terminal(sys.stdout) and _show_wrapped(lines, widths, indent, numbers)):
        for row in lines:
            show(row if isinstance(row, str) else _align(row, widths, indent, numbers))


def _align(row: Sequence[str], widths: Sequence[int], indent: int, numbers: int) -> str:
    padded = [c.rjust(w) if k >= numbers else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
    return (" " * indent + "  ".join(padded)).rstrip()


def _show_wrapped(lines: list[Sequence[str] | str], widths: Sequence[int], indent: int, numbers: int) -> bool:
    """Print the rows as rich tables; return False if rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=sys.stdout, highlight=False)
    for is_heading, part in groupby(lines, key=lambda row: isinstance(row, str)):
        if is_heading:
            console.print(*(Text(printable(str(row)), style="bold") for row in part), sep="\n")
            continue
        table = Table.grid(padding=(0, 2))
        for k, width in enumerate(widths):
            align: Any = "right" if k >= numbers else "left"
            table.add_column(justify=align, overflow="fold", no_wrap=width <= _NARROW)
        for row in part:
            texts = [printable(cell) for cell in row]
            for k, width in enumerate(widths[: min(numbers, len(widths) - 1)]):
                texts[k] = texts[k].ljust(min(width, _NARROW))  # tables below each other align
            texts[0] = " " * indent + texts[0]
            table.add_row(*map(Text, texts))
        console.print(table)
    return True


def has_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal with colours, and the user did not turn them off (no-color.org)."""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


# -- errors ------------------------------------------------------------------------------------------------------------


def report(error: BaseException, command: str, as_json: bool, debug: bool) -> int:
    """Print an error as one line on stderr or one JSON document; return the exit code."""
    if debug:
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    status = status_of(error)
    text = sentence(error)
    if status == INTERNAL:
        text += f" (internal error{'' if debug else '; --debug shows the traceback'})"
    if as_json:
        emit({"error": record(error) | {"message": text}})
    else:
        print(printable(f"rowgrad{command and ' ' + command}: {text}"), file=sys.stderr)
    return status


def status_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, StoppedError):
        return 128 + error.number
    if isinstance(error, UsageError):
        return USAGE
    # An unreadable array file is an error of the page, caused by the error of the file.
    if isinstance(error, OSError) or (isinstance(error, OpError) and isinstance(error.__cause__, OSError)):
        return FILES
    return REJECTED if isinstance(error, OpError | MemoryError) else INTERNAL


def sentence(error: BaseException) -> str:
    """Return the error in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and not isinstance(error, OpError):
        text = error.strerror or str(error) or type(error).__name__
        text = f"{error.filename}: {text}" if error.filename else text
    elif isinstance(error, MemoryError) and not isinstance(error, OpError):
        text = f"out of memory: {error}" if str(error) else "out of memory"
    elif status_of(error) == INTERNAL:
        text = f"{type(error).__name__}: {error}"
    else:
        text = str(error)
    # The error's notes say where it happened, such as the file of a page.
    text += "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return " ".join(text.split())


def record(error: BaseException, block: str | None = None) -> dict[str, Any]:
    """Return the error's fields for JSON."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": sentence(error), "block": block, "argument": None}
    if isinstance(error, OpError):
        facts |= {"block": block or error.name, "argument": error.argument}
        others = {"op": error.op, "place": getattr(error, "place", None) or None, "position": error.position}
        others |= {k: None if v is None else str(v) for k, v in (("value", error.value), ("bound", error.bound))}
        facts |= {k: v for k, v in others.items() if v is not None}
    elif isinstance(error, OSError) and error.filename:
        facts["file"] = str(error.filename)
    return facts


# -- progress ----------------------------------------------------------------------------------------------------------

_AFTER = 0.5  # seconds; shorter work shows no bar
_EVERY = 0.1


class Progress:
    """A progress bar on stderr, drawn by rich; nothing if stderr is not a terminal or rich is not installed."""

    def __init__(self, total: int, enabled: bool, out: TextIO | None = None, unit: str = "steps") -> None:
        self.total, self.done, self._unit = total, 0, unit
        self._out = sys.stderr if out is None else out
        self._enabled = enabled and _is_terminal(self._out)
        self._began = self._last = time.monotonic()
        self._bar: Bar | None = None

    def step(self, tick: object = None) -> None:
        """Count one more step."""
        self.reach(self.done + 1)

    def reach(self, done: int) -> None:
        """Set the number of finished steps."""
        self.done = done
        if not self._enabled:
            return
        now = time.monotonic()
        if now - self._began > _AFTER and now - self._last >= _EVERY:
            self._last = now
            self._draw(now - self._began)

    def _draw(self, elapsed: float) -> None:
        bar = self._bar or _new_bar(self._out, self.total)
        if bar is None:
            self._enabled = False
            return
        speed = max(self.done, 1) / elapsed
        digits = 0 if speed >= 100 else 1 if speed >= 10 else 2
        left = clock(max(self.total - self.done, 0) / speed)
        pace = f"{speed:.{digits}f} {self._unit}/s"
        bar.update(bar.task_ids[0], completed=self.done, speed=pace, left=f"{left} left")
        if self._bar is None:
            bar.start()
            self._bar = bar
        else:
            bar.refresh()

    def clear(self) -> None:
        """Erase the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _new_bar(out: TextIO, total: int) -> Bar | None:
    """Return a bar that erases itself when it stops. It has no refresh thread, which would break after a fork."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    bar = Bar(
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[left]}"),
        console=Console(file=out),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("", total=total, speed="", left="")
    return bar


def clock(seconds: float) -> str:
    """Format seconds: 83 as 1:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# -- Ctrl-C and SIGTERM during a run -----------------------------------------------------------------------------------


class SignalWatch:
    """Handles signals inside a `with`: the first lets the current step finish, the second ends the command.

    `number` is the first signal received, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._loop: Loop | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalWatch:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in the main thread only
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def watch(self, loop: Loop) -> Loop:
        """Cancel this loop when a signal arrives."""
        self._loop = loop
        if self.number is not None:
            loop.cancel()
        return loop

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise StoppedError(number)
        self.number = number
        if self._loop is not None:
            self._loop.cancel()
