"""Studio's protocol as text: the verbs with the arguments that each reads, and the events with their fields.

Verbs read their arguments from a request object (`request.text("name")`), also in helper functions to which they pass
the request. This module follows the source of every handler. An argument whose name it cannot determine is an error, so
that no argument is missing from the text.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from rowgrad.studio import verbs

_REQUEST = object()  # the value of a variable that is the request
_UNKNOWN = object()


def describe_protocol() -> str:
    """Return one line for each verb, then one for each event."""
    verbs.find("hello")  # imports the modules that declare verbs
    lines = [f"verb {name}({_arguments(verb.handler)}){' + file' if verb.takes_file else ''}"
             for name, verb in sorted(verbs.VERBS.items())]  # fmt: skip
    return "".join(f"{line}\n" for line in lines + _events())


def _arguments(handler: Any) -> str:
    reads: dict[str, set[str]] = {}
    request = list(inspect.signature(handler).parameters)[1]
    _follow(handler, {request: _REQUEST}, reads, (), False)
    arguments = []
    for name, facts in sorted(reads.items()):
        optional = "" if "required" in facts and "tested" not in facts else "?"
        arguments.append(f"{name}{optional}: {' or '.join(sorted(facts - {'required', 'tested'}))}")
    return ", ".join(arguments)


def _follow(
    function: FunctionType,
    values: Mapping[str, Any],
    reads: dict[str, set[str]],
    callers: tuple[FunctionType, ...],
    conditional: bool,
) -> None:
    """Add what a function reads from the request, for these known values of its arguments."""
    if function not in callers:
        node = _functions(function.__module__)[function.__name__]
        _Reads(function, dict(values), reads, (*callers, function), conditional).visit(ast.Module(node.body, []))


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


class _Reads(ast.NodeVisitor):
    """Visits the body of one function. An argument that is read only under a condition is optional."""

    def __init__(
        self,
        function: FunctionType,
        values: dict[str, Any],
        reads: dict[str, set[str]],
        callers: tuple[FunctionType, ...],
        conditional: bool,
    ) -> None:
        self.function, self.values, self.reads, self.callers = function, values, reads, callers
        self.conditional = conditional

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name):
            return self.values.get(node.id, _UNKNOWN)
        return node.value if isinstance(node, ast.Constant) else _UNKNOWN

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.ops[0], ast.In | ast.NotIn) and self.value(node.comparators[0]) is _REQUEST:
            self.add(node, self.value(node.left), "tested")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self.visit(node.test)
        branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.body, *node.orelse]
        self.visit_conditional(branches)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit_If(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self.visit_conditional(node.values[1:])

    def visit_conditional(self, nodes: Sequence[ast.AST]) -> None:
        before, self.conditional = self.conditional, True
        for node in nodes:
            self.visit(node)
        self.conditional = before

    def visit_Call(self, node: ast.Call) -> None:
        callee = node.func
        if isinstance(callee, ast.Attribute) and self.value(callee.value) is _REQUEST:
            self.read(node, getattr(self.request_class(), callee.attr))
        elif any(self.value(argument) is _REQUEST for argument in [*node.args, *(k.value for k in node.keywords)]):
            helper = self.function.__globals__.get(callee.id) if isinstance(callee, ast.Name) else None
            assert isinstance(helper, FunctionType), f"{self.place(node)}: cannot follow the request into this call"
            _follow(helper, self.bound(node, helper), self.reads, self.callers, self.conditional)
        self.generic_visit(node)

    def read(self, node: ast.Call, method: FunctionType) -> None:
        """Record a method of the request that returns an argument; those that make errors read nothing."""
        if not str(inspect.signature(method).return_annotation).endswith("Error"):
            values = self.bound(node, method, skip=1)
            name = values.get("name", inspect.signature(method).parameters["name"].default)
            required = "default" not in values and not self.conditional
            self.add(node, name, method.__name__, *(["required"] if required else []))

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp) -> None:
        self.repeat(node, 0)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self.visit_GeneratorExp(node)

    def repeat(self, node: ast.GeneratorExp | ast.ListComp, level: int) -> None:
        """Visit the element once for each known value of the loop variables."""
        if level == len(node.generators):
            self.visit(node.elt)
            return
        loop = node.generators[level]
        self.visit(loop.iter)
        items = loop.iter.elts if isinstance(loop.iter, ast.Tuple | ast.List) else [loop.iter]
        for item in items:
            for name in (n for n in ast.walk(loop.target) if isinstance(n, ast.Name)):
                self.values[name.id] = self.value(item) if name is loop.target else _UNKNOWN
            self.repeat(node, level + 1)

    def bound(self, node: ast.Call, function: FunctionType, skip: int = 0) -> dict[str, Any]:
        """Return the known arguments of a call by parameter name."""
        names = list(inspect.signature(function).parameters)[skip:]
        values = {name: self.value(argument) for name, argument in zip(names, node.args, strict=False)}
        return values | {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}

    def request_class(self) -> Any:
        (name,) = (name for name, value in self.values.items() if value is _REQUEST)
        return self.function.__globals__[self.function.__annotations__[name]]

    def add(self, node: ast.AST, name: Any, *facts: str) -> None:
        assert isinstance(name, str), f"{self.place(node)}: cannot determine the name of the argument that is read"
        self.reads.setdefault(name, set()).update(facts)

    def place(self, node: ast.AST) -> str:
        return f"{self.function.__module__}.{self.function.__name__}, line {getattr(node, 'lineno', '?')}"


def _events() -> list[str]:
    """Find events: dicts with the key "event" anywhere in the package."""
    found: dict[str, set[str]] = {}
    for path in Path(verbs.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                items = zip(node.keys, node.values, strict=True)
                fields = {key.value: value for key, value in items if isinstance(key, ast.Constant)}
                if isinstance(kind := fields.get("event"), ast.Constant):
                    found.setdefault(str(kind.value), set()).update(map(str, fields))
    return [f"event {kind}: {', '.join(sorted(fields - {'event'})) or '-'}" for kind, fields in sorted(found.items())]
