"""`rowgrad export`: a page as a Python script, a drawing or a graph for Graphviz."""

from __future__ import annotations

import argparse
import io
import sys
from functools import partial

from ..graph.export import save_python, to_dot, to_python, to_svg
from ..graph.io import write_atomically
from ..graph.page_builder import build
from .pages import check_writable, files_of, read_page
from .terminal import emit, printable, say


def command(chosen: argparse.Namespace) -> int:
    """Write the page to a file or to stdout."""
    page = read_page(chosen.file, chosen.page, partial(say, "export"), chosen.follow_links)
    if chosen.out is not None:
        check_writable(chosen.out, files_of(chosen.file))
    if chosen.format == "python":
        build(page)  # reject an invalid page: its script would fail later; drawing it may help
    if chosen.format == "python" and chosen.out is not None:
        save_python(page, chosen.out)
    else:
        text = {"python": to_python, "svg": to_svg, "dot": to_dot}[chosen.format](page)
        if chosen.out is not None:
            write_atomically(chosen.out, text.encode())
        elif chosen.json:
            emit({"text": text})
        else:
            _to_stdout(text)
    if chosen.out is not None and chosen.json:
        emit({"file": chosen.out})
    return 0


def _to_stdout(text: str) -> None:
    """Write the text as a file would have it, in UTF-8, unless stdout is a terminal."""
    if sys.stdout.isatty():
        text = printable(text)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
