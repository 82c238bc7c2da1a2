"""The script for fish."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .completion import Command, Word

_HEAD = """# Completes rowgrad in fish: keep it as ~/.config/fish/completions/rowgrad.fish.
complete -c rowgrad -f
"""


def script(commands: list[Command]) -> str:
    """The whole script."""
    top, *others = commands
    lines = [_line("__fish_use_subcommand", _names(o), o.text) for o in top.options]
    lines += [_line("__fish_use_subcommand", f"-a {c.name}", c.text) for c in others]
    for command in others:
        seen = f"__fish_seen_subcommand_from {command.name}"
        lines += [_line(seen, f"{_names(o)}{_answer(o)}", o.text) for o in command.options]
        lines += [_line(seen, _values(a), a.text) for a in command.arguments]
    return _HEAD + "".join(lines)


def _line(when: str, what: str, text: str) -> str:
    return f"complete -c rowgrad -n {_quoted(when)} {what} -d {_quoted(text)}\n"


def _names(option: Word) -> str:
    return " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)


def _answer(word: Word) -> str:
    """-r: a value must follow; -x: and it is no file."""
    if not word.takes:
        return ""
    return f" {'-r' if word.is_file else '-x'} {_values(word)}".rstrip()


def _values(word: Word) -> str:
    return "-F" if word.is_file else f"-a {_quoted(' '.join(word.words))}" if word.words else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
