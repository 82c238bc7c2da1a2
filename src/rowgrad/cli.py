"""`rowgrad tour | ops | catalog | bench`: what is here, what it does and how fast."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from . import __version__
from .spec import CATALOG, Derived, Op, catalog, snake
from .tour import run_tour


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="rowgrad", description="TensorFlow's sparse-embedding operators and their gradients, without TensorFlow."
    )
    parser.add_argument("--version", action="version", version=f"rowgrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("tour", help="compute every operator and its gradient on a small example")
    ops = commands.add_parser("ops", help="list the operators, or describe one")
    ops.add_argument("name", nargs="?", help="an operator, e.g. SparseSegmentMeanGrad or its snake_case form")
    commands.add_parser("catalog", help="print every operator's record as JSON")
    commands.add_parser("bench", help="time the operators beside other libraries; `rowgrad bench --help` says more")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _bench(words[1:]) if words[:1] == ["bench"] else _run(parser.parse_args(words))
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _bench(words: list[str]) -> int:
    from .bench.command import main as bench  # loaded by this command only, with options of its own

    return bench(words)


def _run(chosen: argparse.Namespace) -> int:
    if chosen.command == "tour":
        run_tour(sys.stdout)
    elif chosen.command == "catalog":
        print(json.dumps(catalog(), indent=1, ensure_ascii=False))
    elif chosen.name is None:
        _list_ops()
    else:
        return _describe(chosen.name)
    return 0


def _list_ops() -> None:
    width = max(map(len, CATALOG))
    category = ""
    for op in CATALOG.values():
        if op.category != category:
            category = op.category
            print(f"\n{category}")
        print(f"  {op.name:{width}}  {op.doc.splitlines()[0]}")


def _describe(name: str) -> int:
    names = ((o, n) for o in CATALOG.values() for n in (o.name, *o.aliases))
    op = next((o for o, n in names if name in (n, snake(n))), None)
    if op is None:
        print(f"rowgrad ops: no operator {name!r}; `rowgrad ops` lists them all", file=sys.stderr)
        return 2
    print(f"{signature(op)}\n\n{op.doc}\n")
    if op.aliases:
        print(f"Also called {', '.join(op.aliases)}.\n")
    for variable, listed in op.types.items():
        rule = f"follows {listed.of}" if isinstance(listed, Derived) else ", ".join(listed)
        print(f"  {variable}: {rule}")
    if op.differentiable:
        print(f"\nGradients for {', '.join(op.differentiable)}; linear in {', '.join(op.linear) or 'none of them'}.")
    print(f"\n{op.example}")
    return 0


def signature(op: Op) -> str:
    """One line: arguments, attributes, outputs."""
    arguments = [f"{a.name}: {'list ' * a.many}{a.type}" for a in op.inputs]
    arguments += [f"{k}={v!r}" for k, v in op.attrs.items()]
    outputs = ", ".join(f"{o.name}: {o.type}" for o in op.outputs)
    return f"{op.name}({', '.join(arguments)}) -> {outputs}"
