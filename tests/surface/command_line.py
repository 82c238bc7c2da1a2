"""The commands of `rowgrad` as text: arguments and options without help texts."""

from __future__ import annotations

import argparse

from rowgrad.cli.errors import TABLE
from rowgrad.cli.parser import make_parser


def describe_commands() -> str:
    """Return a line for each command, with its arguments and options below it, and the exit codes."""
    parser = make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = _describe("rowgrad COMMAND", parser)
    for name, command in sorted(commands.choices.items()):
        lines += _describe(f"rowgrad {name}", command)
    codes = ", ".join(str(code) for code in sorted(TABLE))
    return "".join(f"{line}\n" for line in [*lines, f"exit codes: {codes}"])


def _describe(title: str, parser: argparse.ArgumentParser) -> list[str]:
    actions = [a for a in parser._actions if not isinstance(a, argparse._SubParsersAction)]
    positional = [_action(a) for a in actions if not a.option_strings]
    options = sorted(_action(a) for a in actions if a.option_strings)
    return [title, *(f"    {line}" for line in positional + options)]


def _action(action: argparse.Action) -> str:
    """Describe an option: its names, value and default."""
    fields = [", ".join(sorted(action.option_strings)) or action.dest]
    if action.nargs != 0:
        fields.append(str(action.metavar or action.dest.upper()))
    if action.nargs not in (None, 0):
        fields.append(f"nargs={action.nargs}")
    if isinstance(action, argparse._AppendAction):
        fields.append("repeatable")
    if action.choices is not None:
        fields.append(f"one of {', '.join(map(str, action.choices))}")
    if action.option_strings and action.required:
        fields.append("required")
    if action.default not in (None, False, [], argparse.SUPPRESS):
        fields.append(f"default {action.default!r}")
    return " ".join(fields)
