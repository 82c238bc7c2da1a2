"""`rowgrad completion`: print a completion script for a shell, which shtab makes from the parser."""

from __future__ import annotations

import argparse

from .._catalog.spec import CATALOG
from .._hints import install_command
from ..errors import UnimplementedError
from .parser import make_parser
from .terminal import emit

# Metavars of files and folders.
_FILES = ("PAGE", "FILE", "PAGE.json", "OUT.npz", "PROJECT", "SOURCE", "TARGET")
_NAMED_FILE = "NAME=FILE.npy"
_ZSH_NAMED_FILE = "{compset -P '*='; _files}"  # completes what follows the first =
# In bash shtab's script offers no file after NAME=, where bash begins a new word: fall back to file names.
_BASH_FALLBACK = "\ncomplete -o bashdefault -o default -F _shtab_rowgrad rowgrad\n"


def command(options: argparse.Namespace) -> int:
    """Print the script."""
    text = completion_script(options.shell)
    if options.json:
        emit({"text": text})
    else:
        print(text, end="")
    return 0


def completion_script(shell: str) -> str:
    """Return the script for a shell.

    Raises:
        UnimplementedError: shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise UnimplementedError(f"completion scripts need shtab: {install_command('cli')}") from None

    parser = make_parser()
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == _NAMED_FILE:
            action.complete = shtab.FILE | {"zsh": _ZSH_NAMED_FILE}  # type: ignore[attr-defined]
        elif action.metavar == "OP":
            action.choices = list(CATALOG)
        elif action.metavar == "ENGINE":
            from ..graph.engine import engine_names

            action.choices = list(engine_names())
    script: str = shtab.complete(parser, shell=shell, root_prefix="rowgrad").rstrip("\n")
    return script + (_BASH_FALLBACK if shell == "bash" else "\n")


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of `rowgrad` and of every command."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                found += _actions(subparser)
        else:
            found.append(action)
    return found
