"""`rowgrad export`: write a page as a Python script, an SVG drawing or a graph for Graphviz."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from functools import partial

from ..graph import Page
from ..graph.export import save_python, to_dot, to_plain_python, to_python, to_svg
from ..graph.io import write_atomically
from ..graph.page_builder import build
from .errors import UsageError
from .pages import check_writable, files_of, read_page
from .terminal import emit, printable, say


def command(options: argparse.Namespace) -> int:
    """Write the page to a file or to stdout."""
    if options.plain and options.format != "python":
        raise UsageError("--plain is for --python")
    page = read_page(options.file, options.page, partial(say, "export"), options.follow_links)
    if options.out is not None:
        check_writable(options.out, files_of(options.file))
    if options.format == "python":
        build(page)  # reject an invalid page: its script would fail later; drawing it may help
    script = to_plain_python if options.plain else to_python
    if options.format == "python" and options.out is not None:
        save_python(page, options.out, script)
    else:
        writers: dict[str, Callable[[Page], str]] = {"python": script, "svg": to_svg, "dot": to_dot}
        text = writers[options.format](page)
        if options.out is not None:
            write_atomically(options.out, text.encode())
        elif options.json:
            emit({"text": text})
        else:
            _to_stdout(text)
    if options.out is not None and options.json:
        emit({"file": options.out})
    return 0


def _to_stdout(text: str) -> None:
    """Write the text in UTF-8, as to a file; on a terminal, escape control characters instead."""
    if sys.stdout.isatty():
        text = printable(text)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
