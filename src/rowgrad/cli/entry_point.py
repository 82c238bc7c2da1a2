"""Parse the command line, run the command, and turn errors into one line and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence

from ..errors import InternalError
from .errors import OK, UsageError
from .parser import MODULES, Parser, make_parser
from .terminal import emit

# -- Commands that answer with text of their own ----------------------------------------------------------------------

# Commands that answer with text of their own: the tour and the benchmarks.


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


# -- From words to an exit code ---------------------------------------------------------------------------------------

# From words to an exit code: parse, let the command's module work, and say in one line what went wrong.

FLAGS = ("--json", "--debug")  # known before and after the command


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    _write_anything()
    try:
        try:
            status = _run(words)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk can still be told
        except (BrokenPipeError, SystemExit):  # SystemExit: --help has been answered
            raise
        except BaseException as error:  # a signal's, too
            status = _tell(error, words)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        _silence()
        return OK
    return status


def command_of(words: Sequence[str]) -> str:
    """The word that names the command, "" where there is none."""
    word = next((w for w in words if not w.startswith("-")), "")
    return word if word == "bench" or word in MODULES else ""


def _has(flag: str, words: list[str]) -> bool:
    return flag in (words[: words.index("--")] if "--" in words else words)


def _write_anything() -> None:
    """No character stops an answer where the streams' encoding lacks it, and no name of a file that is no text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(words: list[str]) -> int:
    if command_of(words) == "bench":  # loaded by this command only, with options of its own
        return bench([w for w in words[words.index("bench") + 1 :] if w not in FLAGS], _has("--json", words))
    chosen, rest = make_parser(_has("--json", words)).parse_known_args(words)
    if rest:  # parse_args would name the help of `rowgrad`, not of the command
        raise UsageError(f"unknown: {' '.join(rest)}; `rowgrad {chosen.command} --help` says more")
    module, function = MODULES[chosen.command]
    status: int = getattr(importlib.import_module(f".{module}", __package__), function)(chosen)
    return status


def _tell(error: BaseException, words: list[str]) -> int:
    from .terminal import tell

    name, as_json, debug = command_of(words), _has("--json", words), _has("--debug", words)
    try:
        status = tell(error, name, as_json, debug)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as full:
        _silence()  # what could not be written once would fail again, noisily, at the very end
        status = tell(full, name, False, debug)
    return status


def _silence() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
