"""`rowgrad completion`: what the parser knows, as a script for a shell."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ..spec import CATALOG
from . import completion_bash, completion_fish, completion_zsh
from .output import emit
from .parser import SHELLS, make_parser

_SCRIPTS = dict(zip(SHELLS, (completion_bash.script, completion_zsh.script, completion_fish.script), strict=True))
# Metavars that stand for files.
_FILES = ("PAGE", "FILE", "PAGE.json", "OUT.npz", "NAME=FILE.npy", "PATH", "PROJECT", "SOURCE", "TARGET")


@dataclass(frozen=True, slots=True)
class Word:
    """An option, or with no names an argument: what may follow it or stand there."""

    names: tuple[str, ...]
    text: str
    takes: str  # how the help calls its value; "" for a flag
    is_file: bool = False
    words: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its options and arguments; the one without a name is `rowgrad` itself."""

    name: str
    text: str
    options: tuple[Word, ...]
    arguments: tuple[Word, ...] = ()


def command(chosen: argparse.Namespace) -> int:
    """Print the script."""
    text = _SCRIPTS[chosen.shell](known_commands())
    if chosen.json:
        emit({"text": text})
    else:
        print(text, end="")
    return 0


def known_commands() -> list[Command]:
    """Everything the parser takes, `rowgrad` itself first."""
    parser = make_parser()
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    top = _command("", parser.description or "", parser)
    found = [Command("", top.text, top.options)]
    for name, sub in subparsers.choices.items():
        found.append(_command(name, helps[name], _bench_parser() if name == "bench" else sub))
    return found


def _bench_parser() -> argparse.ArgumentParser:
    from ..bench.command import parser  # loaded here alone: only `rowgrad bench` and its options need it

    return parser()


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> Command:
    words = [_word(a) for a in parser._actions if not isinstance(a, argparse._SubParsersAction)]
    return Command(name, text, tuple(w for w in words if w.names), tuple(w for w in words if not w.names))


def _word(action: argparse.Action) -> Word:
    takes = "" if action.nargs == 0 else str(action.metavar or action.dest)
    words: tuple[str, ...] = tuple(map(str, action.choices or ()))
    if takes == "OP":
        words = tuple(CATALOG)
    elif takes == "ENGINE":
        from ..graph.engine import engine_names

        words = tuple(engine_names())
    text = (action.help or "") % {"prog": "rowgrad"} if "%" in (action.help or "") else action.help or ""
    return Word(
        tuple(action.option_strings),
        text,
        takes,
        takes in _FILES,
        words,
        isinstance(action, argparse._AppendAction),
    )
