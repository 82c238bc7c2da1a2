"""`rowgrad ops` and `rowgrad catalog`: list the operators and blocks, or describe one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .._catalog.spec import CATALOG, Arg, Derived, Op, catalog, find_op
from .._hints import nearest
from .errors import UsageError
from .terminal import emit, show_columns

_MARKS = {
    "many": "a list of wires",
    "ref": "a Variable itself",
    "host": "its value decides shapes",
    "optional": "may be left out",
}


def catalog_command(options: argparse.Namespace) -> int:
    """Print every record."""
    emit(catalog(), indent=1)
    return 0


def command(options: argparse.Namespace) -> int:
    """List all, or describe one."""
    if options.name is None:
        if options.json:
            emit(catalog(), indent=1)
        else:
            show_columns(_list(), indent=2)
        return 0
    op = find_op(options.name) or next((o for o in CATALOG.values() if o.snake_name == options.name), None)
    if op is None:
        raise UsageError(f"no operator {options.name!r}; {_nearest(options.name)}")
    if options.json:
        emit(next(r for r in catalog() if r["name"] == op.name), indent=1)
    else:
        print("\n".join(_description(op)))
    return 0


def _nearest(name: str) -> str:
    near = nearest(name, (n for op in CATALOG.values() for n in (op.name, *op.aliases, op.snake_name)))
    return f"did you mean {near[0]}?" if near else "`rowgrad ops` lists them all"


def _list() -> Iterator[list[str] | str]:
    for category in dict.fromkeys(op.category for op in CATALOG.values()):
        yield f"\n{category}"
        for op in CATALOG.values():
            if op.category == category:
                yield [op.name, op.doc.splitlines()[0]]


def _description(op: Op) -> Iterator[str]:
    yield f"{signature(op)}\n\n{op.doc}"
    if op.aliases:
        yield f"\nAlso called {', '.join(op.aliases)}."
    for title, args in (("inputs", op.inputs), ("outputs", op.outputs)):
        if args:
            yield f"\n{title}"
        width = max((len(a.name) for a in args), default=0)
        for arg in args:
            marks = "; ".join(text for mark, text in _MARKS.items() if getattr(arg, mark))
            yield f"  {arg.name:{width}}  {arg.type:8}{marks and '  ' + marks}".rstrip()
    if op.types:
        yield "\ntypes"
    for variable, listed in op.types.items():
        rule = f"follows {listed.of}" if isinstance(listed, Derived) else ", ".join(listed)
        yield f"  {variable}: {rule}"
    if op.attrs:
        yield "\nattributes"
    for name, default in op.attrs.items():
        allowed = ", ".join(map(repr, op.choices.get(name, ())))
        yield f"  {name} = {default!r}" + (f"  one of {allowed}" if allowed else "")
    if op.differentiable:
        yield f"\nGradients for {', '.join(op.differentiable)}; linear in {', '.join(op.linear) or 'none of them'}."
    yield f"\n{op.example}"


def signature(op: Op) -> str:
    """Return one line: arguments with their marks, attributes, outputs."""
    arguments = [_argument(a) for a in op.inputs] + [f"{k}={v!r}" for k, v in op.attrs.items()]
    return f"{op.name}({', '.join(arguments)}) -> {', '.join(map(_argument, op.outputs)) or 'nothing'}"


def _argument(arg: Arg) -> str:
    marks = {"optional": arg.optional, "list": arg.many, "ref": arg.ref, "host": arg.host}
    return f"{arg.name}: {' '.join([*(word for word, on in marks.items() if on), arg.type])}"
