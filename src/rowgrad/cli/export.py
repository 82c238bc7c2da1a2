"""`rowgrad export`: a page as a Python script, a drawing or a graph for Graphviz."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from ..graph.build import build
from ..graph.export import save_python, to_dot, to_python, to_svg
from ..graph.io import write_atomically
from .output import emit, say
from .reading import check_writable, read_page


def command(chosen: argparse.Namespace) -> int:
    """Write it to a file or to stdout."""
    page = read_page(chosen.file, chosen.page, partial(say, "export"))
    if chosen.out is not None:
        check_writable(chosen.out)
    if chosen.form == "python":
        build(page)  # a script of a page that does not hold would only fail later; a drawing of one may help
    if chosen.form == "python" and chosen.out is not None:
        save_python(page, chosen.out)
    else:
        text = {"python": to_python, "svg": to_svg, "dot": to_dot}[chosen.form](page)
        if chosen.out is not None:
            write_atomically(chosen.out, text.encode())
        elif chosen.json:
            emit({"text": text})
        else:
            sys.stdout.write(text)
    if chosen.out is not None and chosen.json:
        emit({"file": chosen.out})
    return 0
