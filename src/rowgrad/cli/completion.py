"""The script for bash; it works in 3.2 as well, which macOS has."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._catalog.spec import CATALOG
from .parser import SHELLS, make_parser
from .terminal import emit

# -- The script for bash ----------------------------------------------------------------------------------------------

# The script for bash; it works in 3.2 as well, which macOS has.

if TYPE_CHECKING:
    pass

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


def bash_script(commands: list[Command]) -> str:
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


# -- The script for fish ----------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    pass

_HEAD_completion_fish = """# Completes rowgrad in fish: keep it as ~/.config/fish/completions/rowgrad.fish.
complete -c rowgrad -f
"""


def fish_script(commands: list[Command]) -> str:
    """The whole script."""
    top, *others = commands
    lines = [_line("__fish_use_subcommand", _names(o), o.text) for o in top.options]
    lines += [_line("__fish_use_subcommand", f"-a {c.name}", c.text) for c in others]
    for command in others:
        seen = f"__fish_seen_subcommand_from {command.name}"
        lines += [_line(seen, f"{_names(o)}{_answer_completion_fish(o)}", o.text) for o in command.options]
        lines += [_line(seen, _values(a), a.text) for a in command.arguments]
    return _HEAD_completion_fish + "".join(lines)


def _line(when: str, what: str, text: str) -> str:
    return f"complete -c rowgrad -n {_quoted_completion_fish(when)} {what} -d {_quoted_completion_fish(text)}\n"


def _names(option: Word) -> str:
    return " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)


def _answer_completion_fish(word: Word) -> str:
    """-r: a value must follow; -x: and it is no file."""
    if not word.takes:
        return ""
    return f" {'-r' if word.is_file else '-x'} {_values(word)}".rstrip()


def _values(word: Word) -> str:
    return "-F" if word.is_file else f"-a {_quoted_completion_fish(' '.join(word.words))}" if word.words else ""


def _quoted_completion_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# -- The script for zsh -----------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    pass

_HEAD_completion_zsh = """#compdef rowgrad
# Completes rowgrad in zsh: keep it as _rowgrad in a folder of $fpath, or source it after compinit.
_rowgrad() {
    local curcontext=$curcontext state line
    typeset -A opt_args
"""
_TAIL_completion_zsh = """        esac ;;
    esac
}

if [[ $funcstack[1] == _rowgrad ]]; then
    _rowgrad "$@"
else
    compdef _rowgrad rowgrad
fi
"""


def zsh_script(commands: list[Command]) -> str:
    """The whole script."""
    top, *others = commands
    lines = [f"    _arguments -C {_specs(top)} \\\n        '1:command:->command' '*::argument:->rest' && return\n"]
    lines += ["    case $state in\n    command)\n        local -a commands=(\n"]
    lines += [f"            {_quoted(f'{c.name}:{c.text}')}\n" for c in others]
    lines += ["        )\n        _describe command commands ;;\n    rest)\n        case $words[1] in\n"]
    lines += [f"        {c.name}) _arguments {_specs(c)} ;;\n" for c in others]
    return _HEAD_completion_zsh + "".join(lines) + _TAIL_completion_zsh


def _specs(command: Command) -> str:
    made = [_option(o, name) for o in command.options for name in o.names]
    made += [f":{a.takes.lower()}:{_answer_completion_zsh(a)}" for a in command.arguments]
    return " ".join(f"\\\n            {_quoted(spec)}" for spec in made)


def _option(option: Word, name: str) -> str:
    # An option that may stand once shuts out its other spellings.
    before = "*" if option.repeats else f"({' '.join(option.names)})"
    value = f":{_escaped(option.takes)}:{_answer_completion_zsh(option)}" if option.takes else ""
    return f"{before}{name}[{_escaped(option.text)}]{value}"


def _answer_completion_zsh(word: Word) -> str:
    if word.is_file:
        return '{compset -P "*="; _files}' if "=" in word.takes else "_files"
    return f"({' '.join(word.words)})" if word.words else " "


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)


# -- `rowgrad completion` ---------------------------------------------------------------------------------------------

# `rowgrad completion`: what the parser knows, as a script for a shell.

_SCRIPTS = dict(zip(SHELLS, (bash_script, zsh_script, fish_script), strict=True))
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
