"""A page in Graphviz's language."""

from __future__ import annotations

from ...spec import find_op
from ..page import Block, Page


def to_dot(page: Page) -> str:
    """The page as a directed graph: a record per block, an edge per wire."""
    lines = [f"digraph {_quoted(page.name)} {{", "  rankdir=LR;", '  node [shape=record, fontname="sans-serif"];']
    lines += [f"  {_quoted(b.id)} [label={_label_quoted(_label(b))}];" for b in page.blocks]
    for block in page.blocks:
        hidden = set(block.hidden)
        for pin, ends in block.wires.items():
            for end in ends:
                style = " [style=dashed]" if pin in hidden else ""
                ends_at = f"{_quoted(block.id)}:{_quoted('in_' + pin)}"
                lines.append(f"  {_quoted(end.block)}:{_quoted('out_' + end.pin)} -> {ends_at}{style};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """A name of the language."""
    return _label_quoted(text.replace("\\", "\\\\"))


def _label_quoted(text: str) -> str:
    """A label, whose backslashes say something."""
    return '"' + text.replace('"', '\\"') + '"'


def _label(block: Block) -> str:
    op = find_op(block.op)
    inputs = "|".join(f"<in_{a.name}> {a.name}" for a in op.inputs) if op else ""
    outputs = "|".join(f"<out_{o.name}> {o.name}" for o in op.outputs) if op else ""
    title = f"{_escaped(block.op)}\\n{_escaped(block.id)}"
    return "|".join(filter(None, [f"{{{inputs}}}" if inputs else "", title, f"{{{outputs}}}" if outputs else ""]))


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "{}|<>\\" else c for c in text)
