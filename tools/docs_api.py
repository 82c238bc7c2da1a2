"""A Sphinx extension: the block `{api} rowgrad.sparse` with one name per line becomes signatures and docstrings.

They are read from the imported module when the site is built, so they are always up to date. Docstrings are Markdown;
sessions in them (`>>>`) are shown as code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import stringify_signature

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"


class Api(SphinxDirective):
    """The names of a module, each as an entry of Sphinx's Python domain."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        self.env.note_dependency(inspect.getfile(module))
        lines = [line for name in self.content for line in entry(module.__name__, name, getattr(module, name))]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), self.content_offset, node)
        return node.children


def entry(module: str, name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
        members = [
            line for member in own_members(value) for line in method(member, inspect.getattr_static(value, member))
        ]
        yield from described(kind, f"{module}.{name}", signature(value), value, members)
    elif callable(value):
        yield from described("function", f"{module}.{name}", signature(value), value)
    else:
        yield from block("data", f"{module}.{name}", [f"`{value!r}`"])


def own_members(cls: type) -> list[str]:
    """Return the documented members that a class adds to its bases."""
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and name != "extra_repr"
        and (inspect.isroutine(value) or isinstance(value, property))
        and text_of(value)
    ]


def method(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield from described("property", name, "", value)
    elif isinstance(value, classmethod | staticmethod):
        kind = "classmethod" if isinstance(value, classmethod) else "staticmethod"
        yield from described(kind, name, signature(value.__func__, bound=kind == "classmethod"), value)
    else:
        yield from described("method", name, signature(value, bound=True), value)


def signature(value: Any, bound: bool = False) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    known = getattr(inspect.unwrap(value.__init__ if inspect.isclass(value) else value), "__globals__", {})
    parameters = [
        p.replace(
            annotation=with_links(p.annotation, known),
            default=ShownName(p.default) if is_class(p.default) else p.default,
        )
        for p in found.parameters.values()
    ]
    returns = found.empty if inspect.isclass(value) else with_links(found.return_annotation, known)
    return stringify_signature(found.replace(parameters=parameters[int(bound) :], return_annotation=returns))


class ShownName:
    """A default that is a class, shown by its name."""

    def __init__(self, value: type) -> None:
        self.value = value

    def __repr__(self) -> str:
        return self.value.__name__


def is_class(default: Any) -> bool:
    return inspect.isclass(default) and default is not inspect.Parameter.empty


def with_links(annotation: Any, known: dict[str, Any]) -> Any:
    """Return an annotation with links to rowgrad's classes: two modules have a Table."""
    if not isinstance(annotation, str):
        return annotation
    return re.sub(r"(?<![.\w])[A-Z]\w+", lambda m: class_names().get(id(known.get(m[0])), m[0]), annotation)


@cache
def class_names() -> dict[int, str]:
    """Return the name of each class on the pages."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("api*.md"))
    found = {}
    for module, names in re.findall(r"^```\{api\} (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        loaded = importlib.import_module(module)
        found |= {
            id(getattr(loaded, n)): f"~{module}.{n}" for n in names.split() if inspect.isclass(getattr(loaded, n))
        }
    return found


def text_of(value: Any) -> str:
    """Return the docstring, unless Python generated it or it is inherited."""
    text = inspect.getdoc(value) or ""
    own = getattr(value, "__doc__", None)
    return "" if own is None or re.match(r"\w+\(.*\)$", text) else text


def described(kind: str, name: str, arguments: str, value: Any, members: list[str] | None = None) -> Iterator[str]:
    yield from block(kind, name + arguments, [*markdown(text_of(value)), "", *(members or [])])


def block(kind: str, title: str, lines: list[str]) -> Iterator[str]:
    """Yield a directive as Markdown, with a fence longer than any fence inside it."""
    fence = "`" * (1 + max((len(m[0]) for line in lines if (m := re.match("```+", line))), default=2))
    yield from (f"{fence}{{py:{kind}}} {title}", "", *lines, fence, "")


def markdown(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring; sessions are fenced, because `>>>` is a quotation in Markdown."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.lstrip().startswith(">>>"):
            yield from ("```python", *paragraph.splitlines(), "```", "")
        else:
            yield from (*paragraph.splitlines(), "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", Api)
    return {"parallel_read_safe": True}
