"""Write a page as plain calls of `rg.raw_ops` and `rg.dense_ops`, without a graph or a session, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import indent
from typing import Any

import numpy as np

from ..._hints import counted
from ..fetches import pin_name
from ..nodes import Graph, Node, Output, SessionBlock
from ..page import Page, PageError
from ..page_builder import build
from .script import comment_line, is_large, plain_text, python_names, value_text

Outside = Callable[[np.ndarray[Any, Any]], str] | None  # the expression that loads an array too large to write out

_RANDOM = ("RandomUniform", "RandomNormal")
_PRINT = """
for name, value in results.items():
    print(f"{name}  {value.dtype}{list(value.shape)}")
    print(value)
"""
_RESERVED = ("rg", "results", "step", "steps", "name", "value", "range", "print", "list")


def to_plain_python(page: Page, outside: Outside = None) -> str:
    """Return the text of a script that runs the page's sessions once, in plain calls.

    Args:
        page: A valid page.
        outside: Returns the expression that loads an array too large to write out.

    Returns:
        The script.

    Raises:
        PageError: The page has no session, draws random numbers, or has placeholders that nothing feeds.
    """
    graph = build(page).graph
    if not graph.sessions:
        raise PageError(page.name, "a page without a ClientSession block has no plain form")
    return _Writer(page, graph, outside).text()


class _Writer:
    """Collects the statements of a script."""

    def __init__(self, page: Page, graph: Graph, outside: Outside) -> None:
        self._page, self._graph, self._outside = page, graph, outside
        self._names = python_names([n.name for n in graph.nodes], _RESERVED)
        self._once: list[str] = []  # statements before the steps: constants, and what they determine
        self._written: set[Node] = set()

    def text(self) -> str:
        """Return the script."""
        steps = [line for session in self._graph.sessions.values() for line in self._session(session)]
        changes = any(node.op.name == "Variable" for node in self._written)
        if changes:
            steps = ["for step in range(1):  # increase to train", *(indent(statement, "    ") for statement in steps)]
        body = "\n".join([*self._once, "", "results = {}", *steps])
        imports = "import ml_dtypes\nimport numpy as np" if "ml_dtypes." in body else "import numpy as np"
        notes = "".join(f"# {comment_line(t)}\n" for n in self._page.notes for t in n.text.strip().splitlines())
        about = f'"""A page of {counted(len(self._page.blocks), "block")} as plain calls, written out by rowgrad."""'
        return f"{about}\n\n{imports}\n\nimport rowgrad as rg\n\n{notes}{body}\n{_PRINT}"

    def _session(self, session: SessionBlock) -> Iterator[str]:
        fed = {feed.placeholder.node: feed.value for feed in session.feeds}
        runs = [run.node for run in session.runs if run.node is not None]
        updates = []
        for node in _needed([*(o.node for o in session.fetches), *runs]):
            statement = f"{self._names[node.name]} = {self._expression(node, fed)}"
            if node.op.name in ("Const", "Variable") or node.steady:
                if node not in self._written:
                    self._once.append(statement)
            else:
                yield statement
            self._written.add(node)
            if node.op.name == "Assign":
                updates.append(f"{self._value(node.inputs[0])} = {self._names[node.name]}")
        names = session.names or [pin_name(self._graph, o) for o in session.fetches]
        for name, output in zip(names, session.fetches, strict=True):
            yield f"results[{name!r}] = {self._value(output)}"
        yield from updates  # after all reads: a session sees the values from before its run

    def _expression(self, node: Node, fed: dict[Node, Any]) -> str:
        op = node.op
        if op.name in ("Const", "Variable"):
            return self._value(node.inputs[0])
        if op.name == "Assign":
            return self._value(node.inputs[1])
        if op.name == "Placeholder":
            if node not in fed:
                raise PageError(node.block, "nothing feeds this placeholder, so the plain script has no value for it")
            return self._value(fed[node])
        if op.layer == "graph":
            what = "random numbers" if op.name in _RANDOM else op.name
            raise PageError(node.block, f"{what} have no plain form; export without --plain")
        inputs = zip(op.inputs, node.inputs, strict=True)
        arguments = [f"{arg.name}={self._value(value)}" for arg, value in inputs if value is not None]
        arguments += [f"{k}={plain_text(v)}" for k, v in node.attrs.items() if not _is_default(v, op.attrs.get(k))]
        module = "raw_ops" if op.layer == "kernel" else "dense_ops"
        call = f"rg.{module}.{op.name}({', '.join(arguments)})"
        if len(call) + len(self._names[node.name]) > 110:
            call = f"rg.{module}.{op.name}(" + "".join(f"\n    {a}," for a in arguments) + "\n)"
        return call

    def _value(self, value: Any) -> str:
        if isinstance(value, tuple):
            return f"[{', '.join(map(self._value, value))}]"
        if isinstance(value, Output):
            name = self._names[value.node.name]
            outputs = value.node.op.outputs
            return name if len(outputs) == 1 else f"{name}.{outputs[value.index].name}"
        if self._outside is not None and is_large(value):
            return self._outside(value)
        return value_text(value)


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _needed(wanted: Sequence[Node]) -> list[Node]:
    """Return the nodes that these depend on, and they themselves, in the order of the graph."""
    found: set[Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(output.node for output in node.sources())
    return sorted(found, key=lambda node: node.order)
