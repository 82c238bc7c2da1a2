"""Parse the command line, run the command, and report errors as one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence

from .._hints import nearest
from .errors import OK, UsageError
from .parser import MODULES, Parser, make_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    _escape_unencodable()
    try:
        try:
            status = _run(args)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk can still be reported
        except (BrokenPipeError, SystemExit):  # SystemExit: after --help
            raise
        except BaseException as error:  # including signals
            status = _report(error, args)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _silence()
        return OK
    return status


def tour(options: argparse.Namespace) -> int:
    """Show a few calls with their results, or every operator on a small example."""
    from ..tour import run_all, run_tour
    from .terminal import emit, has_colours

    if not options.json:
        if options.all:
            run_all(sys.stdout)
        else:
            run_tour(sys.stdout, has_colours(sys.stdout))
        return OK
    text = io.StringIO()
    (run_all if options.all else run_tour)(text)
    emit({"text": text.getvalue()})
    return OK


def command_of(args: Sequence[str]) -> str:
    """Return the name of the command, or ""."""
    name = next((w for w in args if not w.startswith("-")), "")
    return name if name in MODULES else ""


def _has(flag: str, args: list[str]) -> bool:
    return flag in (args[: args.index("--")] if "--" in args else args)


def _escape_unencodable() -> None:
    """Escape characters that the streams' encoding lacks, including undecodable bytes of file names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(args: list[str]) -> int:
    parser = make_parser(_has("--json", args))
    if not args:
        parser.print_help()
        return OK
    unknown = [a for a in args if a.startswith("--") and a not in parser.options_of()]
    if unknown and all(a.startswith("-") for a in args):  # argparse would name the missing command only
        raise UsageError(_unknown(parser, "", unknown))
    options, rest = parser.parse_known_args(args)
    if rest:  # parse_args would name the help of `rowgrad`, not of the command
        raise UsageError(_unknown(parser, options.command, rest))
    module, function = MODULES[options.command]
    status: int = getattr(importlib.import_module(f".{module}", __package__), function)(options)
    return status


def _unknown(parser: Parser, command: str, rest: list[str]) -> str:
    """Return the text for arguments that a command does not take, with the option most like the first."""
    near = nearest(rest[0].partition("=")[0].lstrip("-"), [o.lstrip("-") for o in parser.options_of(command)])
    hint = f"did you mean --{near[0]}?" if near else f"see `rowgrad {command}{command and ' '}--help`"
    return f"unknown: {' '.join(rest)}; {hint}"


def _report(error: BaseException, args: list[str]) -> int:
    from .terminal import report

    name, as_json, debug = command_of(args), _has("--json", args), _has("--debug", args)
    try:
        status = report(error, name, as_json, debug)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as full:
        _silence()  # or the unwritten text would fail again when the interpreter exits
        status = report(full, name, False, debug)
    return status


def _silence() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
