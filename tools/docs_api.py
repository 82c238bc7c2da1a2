"""Write the API pages: signatures and docstrings of the names that the pages list, as Markdown that GitHub shows too.

A page lists names in a comment, `<!-- api: rowgrad.sparse` with one name per line, and the generated part after it has
their entries. They are read from the imported modules. Tests run the examples of docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/reference/api*.md"))
LIST = re.compile(r"^<!-- api: (\S+)\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes):$")
LINE = 100


def parts(page: str) -> dict[str, str]:
    """Return the generated parts of a page by name."""
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for m in LIST.finditer((ROOT / page).read_text(encoding="utf-8")):
        seen[m[1]] += 1
        number = f" {seen[m[1]]}" if seen[m[1]] > 1 else ""
        module = importlib.import_module(m[1])
        lines = [line for name in m[2].split() for line in entry(m[1], name, getattr(module, name))]
        found[f"api {m[1]}{number}"] = "\n".join(line.rstrip() for line in lines)
    return found


def entry(module: str, name: str, value: Any) -> Iterator[str]:
    yield from (f"### {module}.{name}", "")
    if inspect.isclass(value):
        error = issubclass(value, BaseException)
        if not error:
            yield from declaration(f"class {name}", value)
        else:
            bases = ", ".join(f"`{base.__name__}`" for base in value.__mro__[1:-3] if base is not object)
            yield from (f"An exception; also {bases}.", "")
        yield from text(value)
        for member in own_members(value):
            yield from method(name, member, inspect.getattr_static(value, member))
    elif callable(value):
        yield from declaration(name, value)
        yield from text(value)
    else:
        yield from (f"The value `{value!r}`.", "")


def own_members(cls: type) -> list[str]:
    """Return the documented members that a class adds to its bases."""
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and name != "extra_repr"
        and (inspect.isroutine(value) or isinstance(value, property))
        and docstring(value)
    ]


def method(owner: str, name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield from (f"**Property `{owner}.{name}`**", "")
    elif isinstance(value, classmethod | staticmethod):
        kind = "Class method" if isinstance(value, classmethod) else "Static method"
        yield from (f"**{kind} `{owner}.{name}`**", "")
        yield from declaration(name, value.__func__, bound=isinstance(value, classmethod))
    else:
        yield from (f"**Method `{owner}.{name}`**", "")
        yield from declaration(name, value, bound=True)
    yield from text(value)


def declaration(name: str, value: Any, bound: bool = False) -> Iterator[str]:
    """Yield a signature as a code block, one parameter per line if it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return
    shown = [p.replace(default=_Shown(p.default)) for p in list(found.parameters.values())[int(bound) :]]
    returns = found.empty if inspect.isclass(value) else found.return_annotation
    line = name + re.sub(r"'([^']*)'", unquoted, str(found.replace(parameters=shown, return_annotation=returns)))
    if len(line) > LINE:
        pieces = [unquoted_parameter(p) for p in str_parameters(shown)]
        tail = "" if returns is found.empty else " -> " + str(returns).strip("'")
        line = name + "(\n" + "".join(f"    {piece},\n" for piece in pieces) + ")" + tail
    yield from ("```text", *line.splitlines(), "```", "")


def str_parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield parameters with the marks `/` and `*` between their kinds."""
    kinds = inspect.Parameter
    starred = False
    for k, p in enumerate(parameters):
        if p.kind is kinds.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred = starred or p.kind is kinds.VAR_POSITIONAL
        yield str(p)
        last = k + 1 == len(parameters) or parameters[k + 1].kind is not kinds.POSITIONAL_ONLY
        if p.kind is kinds.POSITIONAL_ONLY and last:
            yield "/"


def unquoted(m: re.Match[str]) -> str:
    """Annotations are strings in the source; strings that are defaults keep their quotes."""
    before = m.string[: m.start()]
    return m[1] if before.endswith((": ", "-> ")) else m[0]


def unquoted_parameter(parameter: str) -> str:
    return re.sub(r"'([^']*)'", unquoted, parameter)


class _Shown:
    """A default, shown by its name if it is a class or a function."""

    def __new__(cls, value: Any) -> Any:
        if value is inspect.Parameter.empty or not (inspect.isclass(value) or inspect.isroutine(value)):
            return value
        return super().__new__(cls)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return str(self.value.__name__)


def docstring(value: Any) -> str:
    """Return the docstring, unless Python generated it or it is inherited."""
    found = inspect.getdoc(value) or ""
    own = getattr(value, "__doc__", None)
    return "" if own is None or re.match(r"\w+\(.*\)$", found) else found


def text(value: Any) -> Iterator[str]:
    """Yield a docstring as Markdown: sections are lists, sessions are code, names of pages are links."""
    source = re.sub(r"`?\bdocs/([\w/-]+)\.md`?", page_link, docstring(value))
    lines = iter([*source.splitlines(), ""])
    for line in lines:
        if m := SECTION.match(line):
            body = []
            for following in lines:
                if following and not following.startswith("    "):
                    raise ValueError(f"{value}: an empty line is missing after {m[1]}")
                if not following:
                    break
                body.append(following[4:])
            yield from (f"**{m[1]}**", "", *section(m[1], body), "")
        elif line.startswith(">>>"):
            session = [line]
            for following in lines:
                if not following:
                    break
                session.append(following)
            yield from ("```python", *session, "", "```", "")
        else:
            yield line


def section(name: str, lines: list[str]) -> Iterator[str]:
    """Yield a section as a list of named entries, or as plain text."""
    if name in ("Returns", "Yields"):
        yield from lines
        return
    for line in lines:
        if m := re.match(r"(\*{0,2}[\w., ]+): (.*)$", line):
            yield f"- `{m[1]}`: {m[2]}"
        else:
            yield "  " + line.strip()


def page_link(m: re.Match[str]) -> str:
    folder, _, name = m[1].rpartition("/")
    title = (ROOT / "docs" / f"{m[1]}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    target = f"{name}.md" if folder == "reference" else f"../{m[1]}.md"
    return f"[{title}]({target})"
