"""The command line parser: every command with its options. Imports nothing that only a command needs."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any, NoReturn

from .. import __version__
from .._hints import nearest
from .errors import TABLE, UsageError

# The module of each command, and the function in it.
MODULES = {
    "run": ("run", "command"),
    "check": ("check", "command"),
    "export": ("export", "command"),
    "import": ("import_page", "command"),
    "studio": ("studio", "command"),
    "reshard": ("reshard", "command"),
    "ops": ("ops", "command"),
    "catalog": ("ops", "catalog_command"),
    "tour": ("entry_point", "tour"),
    "bench": ("bench", "command"),
    "completion": ("completion", "command"),
}
SHELLS = ("bash", "zsh", "fish", "tcsh")
_EXITS = "exit codes:\n" + "\n".join(f"  {code:<4} {text}" for code, text in TABLE.items())
_PAGE = "a page or project (JSON), or a page .svg or task .json of enuSpace-TensorFlow"
_SLOWEST = 1e-6  # as in graph.run_loop, which is not imported here


class Parser(argparse.ArgumentParser):
    """A parser without abbreviated options, which raises UsageError."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**(defaults | settings))

    def error(self, message: str) -> NoReturn:
        """Raise; the entry point prints the message and chooses the exit code."""
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def options_of(self, command: str = "") -> list[str]:
        """Return the options, such as --json, of a command or of the parser itself."""
        groups = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        parsers = [group.choices[command] for group in groups] if command else [self]
        return [option for parser in parsers for a in parser._actions for option in a.option_strings]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest the choice most like an unknown one, instead of listing all."""
        if action.choices is None or value in action.choices:
            return
        if action.dest == "command":
            wrong = f"no command {value!r}"
        else:
            wrong = f"{'/'.join(action.option_strings) or action.dest} cannot be {value!r}"
        near = nearest(value, action.choices)
        if near:
            raise UsageError(f"{wrong}; did you mean {near[0]!r}?")
        self.error(f"{wrong}; choose from {', '.join(action.choices)}")


def make_parser(as_json: bool = False) -> Parser:
    """Return the parser of the whole command."""
    parser = Parser(
        prog="rowgrad",
        description="TensorFlow's sparse-embedding operators and their gradients, without TensorFlow.",
        epilog=f"example:\n  rowgrad run page.json --steps 100\n\n{_EXITS}",
    )
    version = json.dumps({"version": __version__}) if as_json else f"rowgrad {__version__}"
    parser.add_argument("--version", action="version", version=version)
    _add_flags(parser, False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def add(name: str, text: str, example: str) -> Parser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.",
                                      epilog=f"example:\n  rowgrad {example}")  # fmt: skip
        _add_flags(command, argparse.SUPPRESS)  # or the command's default would override a flag before the command
        return command

    run = add("run", "run the sessions of a page, or fetch values from it", "run page.json --feed 'x={1,2}' -o out.npz")
    _run_options(run)
    check = add("check", "validate every block of a page", "check page.json")
    check.add_argument("file", metavar="PAGE", help=_PAGE)
    _add_links(check)
    _export_options(add("export", "write a page as a Python script or draw it", "export page.json --python -o page.py"))
    _import_options(add("import", "convert a file of enuSpace-TensorFlow to a page", "import task.json -o page.json"))
    _studio_options(add("studio", "open the block editor in a browser, on a folder of pages", "studio pages --new"))
    text = "repartition a sharded table: other shards, another strategy"
    _reshard_options(add("reshard", text, "reshard parts new --parts 8 --strategy div --from-strategy mod"))
    ops = add("ops", "list the operators and blocks, or describe one", "ops SparseSegmentMeanGrad")
    ops.add_argument("name", nargs="?", metavar="OP", help="an operator: SparseSegmentMeanGrad, or in snake_case")
    add("catalog", "print every operator's record as JSON", "catalog")
    tour = add("tour", "show a lookup, its gradient and an error on a small example", "tour")
    tour.add_argument("--all", action="store_true", help="compute every operator and its gradient")
    text = "time SparseSegmentMean and its gradient beside torch and TensorFlow, if they are installed"
    _bench_options(add("bench", text, "bench --quick --cases mid,cold"))
    shell = add("completion", "print a script that completes this command in a shell",
                "completion bash > ~/.local/share/bash-completion/completions/rowgrad")  # fmt: skip
    shell.add_argument("shell", choices=SHELLS, help="which shell the script is for")
    return parser


def _add_flags(parser: Parser, default: Any) -> None:
    parser.add_argument("--json", action="store_true", default=default, help="print one JSON document")
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks of errors")


def _add_links(parser: Parser) -> None:
    text = "read array files and .dat files that are symbolic links"
    parser.add_argument("--follow-links", action="store_true", help=text)


def _run_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="PAGE", help=_PAGE)
    what = parser.add_argument_group("what to run")
    what.add_argument("--page", metavar="NAME", help="run only this page of a project (default: all)")
    each: dict[str, Any] = {"action": "append", "default": []}
    text = "run only this ClientSession block (default: all, in the page's order)"
    what.add_argument("--session", metavar="ID", help=text, **each)
    text = "fetch a value: block, block.pin or block.pin[i]; replaces the sessions, or runs after those of --session"
    what.add_argument("--fetch", metavar="NAME", help=text, **each)
    text = "let a page without a ClientSession change its Variables (all blocks that nothing consumes run)"
    what.add_argument("--change-variables", action="store_true", help=text)
    text = "the value of a Placeholder, from a file or as a literal: 'x={1,2}'"
    what.add_argument("--feed", metavar="NAME=FILE.npy", help=text, **each)
    text = "a value per step: slice k of the first axis in step k"
    what.add_argument("--feed-batches", metavar="NAME=FILE.npy", help=text, **each)
    how = parser.add_argument_group("how to run")
    how.add_argument("--steps", metavar="N", type=_count, help="number of steps (default: 1, or the number of batches)")
    how.add_argument("--rate", metavar="HZ", type=_rate, help="steps per second (default: no limit)")
    how.add_argument("--engine", metavar="ENGINE", default="numpy", help="numpy (the default), torch, torch:cuda, …")
    text = "limit for all values of a page's session (default: three quarters of this machine's memory)"
    how.add_argument("--memory", metavar="MIB", type=_count, help=text)
    how.add_argument("--quiet", action="store_true", help="do not print progress or remarks on stderr")
    result = parser.add_argument_group("output files")
    text = "Variables and random counters: read if it exists; written at the end, on Ctrl-C and when a step fails"
    result.add_argument("--state", metavar="FILE", help=text)
    result.add_argument("--other-page", action="store_true", help="accept a --state file that another page wrote")
    text = "write the results of the last step, under the printed names"
    result.add_argument("-o", "--out", metavar="OUT.npz", help=text)
    _add_links(parser)


def _export_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="PAGE", help=_PAGE)
    format_ = parser.add_mutually_exclusive_group(required=True)
    for name, text in (
        ("python", "a Python script that computes the same"),
        ("svg", "an SVG drawing"),
        ("dot", "a graph for Graphviz"),
    ):
        format_.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=text)
    parser.add_argument("-o", "--out", metavar="FILE", help="output file (default: stdout)")
    parser.add_argument("--page", metavar="NAME", help="which page of a project")
    _add_links(parser)


def _import_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a page .svg or a task .json")
    text = "the page to write (default: beside FILE, as .json, or .page.json for a task)"
    parser.add_argument("-o", "--out", metavar="PAGE.json", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if there are warnings")
    _add_links(parser)


def _studio_options(parser: Parser) -> None:
    text = "a folder of pages, or a page .json in one (default: the current folder)"
    parser.add_argument("project", nargs="?", metavar="PROJECT", help=text)
    parser.add_argument("--new", action="store_true", help="create the folder if it is missing")
    parser.add_argument("--gallery", action="store_true", help="open the gallery of examples, in a temporary folder")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    where = parser.add_argument_group("address")
    text = "port (default: the port this project used before, or the first free one from 8765)"
    where.add_argument("--port", metavar="N", type=_port, default=0, help=text)
    text = "an address of this machine (default: 127.0.0.1, reachable from this machine only)"
    where.add_argument("--host", metavar="HOST", default="127.0.0.1", help=text)
    access = parser.add_argument_group("access")
    text = "print a new address for the studio that is running on PROJECT, instead of starting one"
    access.add_argument("--link", action="store_true", help=text)
    text = "reuse the token of this project's last start with this option, so that open windows stay signed in"
    access.add_argument("--keep-token", action="store_true", help=text)
    text = "the token for programs, 16 to 128 letters, digits, - and _ (default: random); visible to other local users"
    access.add_argument("--token", metavar="TOKEN", help=text)


def _reshard_options(parser: Parser) -> None:
    text = "a folder of part-00000-of-00004.npy or .safetensors, one such file, or a checkpoint of TensorFlow"
    parser.add_argument("source", metavar="SOURCE", help=text)
    parser.add_argument("target", metavar="TARGET", help="a folder, which is created")
    how = parser.add_argument_group("partitioning")
    how.add_argument("--parts", metavar="N", type=_count, required=True, help="number of shards in the target")
    strategies = ("div", "mod")  # as in sharding.div_mod, which is not imported here
    text = "div: consecutive rows; mod: row i in shard i mod N"
    how.add_argument("--strategy", choices=strategies, required=True, help=text)
    text = "strategy of the source (default: from its manifest)"
    how.add_argument("--from-strategy", choices=strategies, help=text)
    what = parser.add_argument_group("input and output")
    text = "file format of the target (default: that of the source)"
    what.add_argument("--format", choices=("npy", "safetensors"), help=text)
    text = "only this tensor, renamed if written NEW=NAME; required for checkpoints"
    what.add_argument("--tensor", metavar="NAME", action="append", default=[], help=text)
    what.add_argument("--table", metavar="NAME", help="the tensor whose rows are counted (default: the largest)")
    what.add_argument("--memory", metavar="MIB", type=_count, default=64, help="limit for rows in memory (default 64)")
    what.add_argument("--overwrite", action="store_true", help="replace an existing folder of shards")
    parser.add_argument("--quiet", action="store_true", help="do not print progress on stderr")


def _bench_options(parser: Parser) -> None:
    text = "any of mid, wide, narrow, cold, few_rows, one_column (default: all; cold needs 8 GB of memory)"
    parser.add_argument("--cases", metavar="A,B", help=text)
    parser.add_argument("--quick", action="store_true", help="smaller cases, which take seconds")
    parser.add_argument("--rounds", metavar="R", type=_count, default=5, help="rounds over the libraries (default 5)")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not _SLOWEST <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps per second >= {_SLOWEST:f}")
    return rate
