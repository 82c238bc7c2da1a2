"""Read an enuSpace file as a page: detect its encoding and kind, and add the file to errors."""

from __future__ import annotations

import codecs
from pathlib import Path

from ..._runtime.plain_file import open_plain
from ..page import PageError
from .blocks import to_page
from .drawing import DataFile, Imported, Report
from .files import read_page, read_task

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}


def read_enuspace(path: str | Path, *, follow_links: bool = False) -> Imported:
    """Read a page from a page `.svg` or a task `.json`, and from the `.dat` file beside it.

    Args:
        path: The file.
        follow_links: Whether the `.dat` file may be a symbolic link.

    Returns:
        The page, and remarks on what was omitted or changed.

    Raises:
        PageError: The file is damaged or inconsistent.
    """
    path = Path(path)
    try:
        with open_plain(path) as file:
            raw = file.read()
        text = _decode(raw).rstrip("\0 \t\r\n")  # some files end with the unused part of a buffer
        report = Report()
        start = text.lstrip()[:1]
        if start not in ("<", "{"):
            raise PageError("", "this is neither a page (SVG) nor a task (JSON)")
        drawing = (read_page if start == "<" else read_task)(text, report)
        page = to_page(path.stem, drawing, DataFile(path.with_suffix(".dat"), follow_links), report)
    except PageError as error:
        raise PageError(f"{path.name}: {error.place}" if error.place else path.name, _message(error)) from None
    except OSError as error:
        raise PageError(path.name, f"cannot be read: {error.strerror or error}") from None
    return Imported(page, report.all())


def _message(error: PageError) -> str:
    return error.message.removeprefix(f"{error.place}: ") if error.place else error.message


def _decode(raw: bytes) -> str:
    """Decode UTF-16 with a byte order mark, as enuSpace writes it, UTF-16 without one, or UTF-8."""
    encoding = "utf-16-be" if raw[:1] == b"\0" else "utf-16-le" if raw[1:2] == b"\0" else "utf-8"
    for mark, marked in _MARKS.items():
        if raw.startswith(mark):
            raw, encoding = raw[len(mark) :], marked
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise PageError("", f"this is not text in {encoding.upper()}: {error.reason} at byte {error.start}") from None
