"""Errors as people and programs read them: one line on stderr, or one JSON document, and an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from ..errors import OpError
from .exits import FILES, INTERRUPTED, REFUSED, UNEXPECTED, USAGE, StoppedError, UsageError
from .output import emit, printable


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
