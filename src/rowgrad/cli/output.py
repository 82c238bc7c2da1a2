"""What goes to stdout: JSON documents, and arrays in a few lines."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np

from ..arrays import Array, aval_of
from ..spec import QUANTIZED

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
