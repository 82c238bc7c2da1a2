"""Commands that answer with text of their own: the tour and the benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator

from ..errors import InternalError
from .exits import UsageError
from .output import emit
from .parser import Parser


def tour(chosen: argparse.Namespace) -> int:
    """Every operator on a small example."""
    from ..tour import run_tour

    with _as_document(chosen.json):
        run_tour(sys.stdout)
    return 0


def bench(words: list[str], as_json: bool) -> int:
    """The benchmarks, which have a parser of their own."""
    from ..bench.command import UnusableError, main, parser, run
    from ..bench.peer_process import PeerEndedError
    from ..bench.scale.worlds import WorldEndedError

    if not as_json:
        return main(words)
    chosen = parser(Parser).parse_args(words)
    with _as_document(True):
        try:
            return run(chosen)
        except UnusableError as error:
            raise UsageError(str(error)) from None
        except PeerEndedError as error:
            raise InternalError(f"rowgrad's own process has ended: {error}") from None
        except WorldEndedError as error:
            raise InternalError(str(error)) from None


@contextlib.contextmanager
def _as_document(as_json: bool) -> Iterator[None]:
    """Print what is printed, or put it into a JSON document."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()) as text:
        yield
    emit({"text": text.getvalue()})
