"""The script for zsh."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .completion import Command, Word

_HEAD = """#compdef rowgrad
# Completes rowgrad in zsh: keep it as _rowgrad in a folder of $fpath, or source it after compinit.
_rowgrad() {
    local curcontext=$curcontext state line
    typeset -A opt_args
"""
_TAIL = """        esac ;;
    esac
}

if [[ $funcstack[1] == _rowgrad ]]; then
    _rowgrad "$@"
else
    compdef _rowgrad rowgrad
fi
"""


def script(commands: list[Command]) -> str:
    """The whole script."""
    top, *others = commands
    lines = [f"    _arguments -C {_specs(top)} \\\n        '1:command:->command' '*::argument:->rest' && return\n"]
    lines += ["    case $state in\n    command)\n        local -a commands=(\n"]
    lines += [f"            {_quoted(f'{c.name}:{c.text}')}\n" for c in others]
    lines += ["        )\n        _describe command commands ;;\n    rest)\n        case $words[1] in\n"]
    lines += [f"        {c.name}) _arguments {_specs(c)} ;;\n" for c in others]
    return _HEAD + "".join(lines) + _TAIL


def _specs(command: Command) -> str:
    made = [_option(o, name) for o in command.options for name in o.names]
    made += [f":{a.takes.lower()}:{_answer(a)}" for a in command.arguments]
    return " ".join(f"\\\n            {_quoted(spec)}" for spec in made)


def _option(option: Word, name: str) -> str:
    # An option that may stand once shuts out its other spellings.
    before = "*" if option.repeats else f"({' '.join(option.names)})"
    value = f":{_escaped(option.takes)}:{_answer(option)}" if option.takes else ""
    return f"{before}{name}[{_escaped(option.text)}]{value}"


def _answer(word: Word) -> str:
    if word.is_file:
        return '{compset -P "*="; _files}' if "=" in word.takes else "_files"
    return f"({' '.join(word.words)})" if word.words else " "


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
