"""Commands that answer with text of their own: the tour and the benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator

from .output import emit


def tour(chosen: argparse.Namespace) -> int:
    """Every operator on a small example."""
    from ..tour import run_tour

    with _as_document(chosen.json):
        run_tour(sys.stdout)
    return 0


def bench(words: list[str], as_json: bool) -> int:
    """The benchmarks, which have a parser of their own."""
    from ..bench.command import main

    with _as_document(as_json and not {"-h", "--help"} & set(words)):
        return main(words)


@contextlib.contextmanager
def _as_document(as_json: bool) -> Iterator[None]:
    """Print what is printed, or put it into a JSON document."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()) as text:
        yield
    emit({"text": text.getvalue()})
