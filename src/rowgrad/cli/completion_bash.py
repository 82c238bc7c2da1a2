"""The script for bash; it works in 3.2 as well, which macOS has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .completion import Command, Word

_HEAD = r"""# Completes rowgrad in bash: source it, or keep it where bash-completion looks for it.
_rowgrad_files() {
    local IFS=$'\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$1"))
}

_rowgrad() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= fed= i
    COMPREPLY=()
    # Bash takes "=" for a word: in --engine=torch and in --feed x=batch.npy.
    if [[ $cur == "=" ]]; then
        cur=
        fed=yes
    elif [[ $prev == "=" ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
        fed=yes
    fi
    if [[ $fed && $prev != -* ]]; then
        _rowgrad_files "$cur"
        return
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            command=${COMP_WORDS[i]}
            break
        fi
    done
    case "$command $prev" in
"""
_MIDDLE = r"""    esac
    case "$command" in
"""
_TAIL = r"""    esac
}

complete -F _rowgrad rowgrad
"""


def script(commands: list[Command]) -> str:
    """The whole script."""
    values = "".join(
        f"    {'|'.join(_quoted(f'{c.name} {name}') for name in o.names)})\n        {_answer(o)}\n        return ;;\n"
        for c in commands
        for o in c.options
        if o.takes
    )
    names = " ".join(c.name for c in commands if c.name)
    return _HEAD + values + _MIDDLE + "".join(_case(c, names) for c in commands) + _TAIL


def _answer(word: Word) -> str:
    if word.is_file:
        return '_rowgrad_files "$cur"'
    return _words(" ".join(word.words)) if word.words else ":"


def _case(command: Command, names: str) -> str:
    options = " ".join(name for o in command.options for name in o.names)
    otherwise = _answer(command.arguments[0]) if command.arguments else ":" if command.name else _words(names)
    return (
        f"    {_quoted(command.name)})\n"
        f"        if [[ $cur == -* ]]; then\n            {_words(options)}\n"
        f"        else\n            {otherwise}\n        fi ;;\n"
    )


def _words(words: str) -> str:
    return f'COMPREPLY=($(compgen -W {_quoted(words)} -- "$cur"))'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
