"""The public names of a module with their signatures, as text that does not depend on the version of Python.

Public are the names in `__all__`. In a module without `__all__` they are the functions and classes that its source
defines, the names that it re-exports (`from .a import b as b`, also for type checkers only) and those that it creates
on request (`__dir__`). Names that start with an underscore are private. Annotations are omitted: the stubs and mypy
check types.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def describe_module(name: str) -> str:
    """Return one line for each public name of a module, and one for each public member of its classes."""
    module = importlib.import_module(name)
    lines: list[str] = []
    for public in sorted(public_names(module)):
        lines += _describe(f"{name}.{public}", getattr(module, public))
    return "".join(f"{line}\n" for line in lines)


def public_names(module: types.ModuleType) -> set[str]:
    """Return the names that belong to the interface of a module."""
    declared = getattr(module, "__all__", None)
    names = _defined_names(module) if declared is None else set(declared)
    return {name for name in names if not name.startswith("_")}


def _defined_names(module: types.ModuleType) -> set[str]:
    names = set(dir(module)) - set(vars(module)) if "__dir__" in vars(module) else set()
    nodes = ast.parse(inspect.getsource(module)).body
    nodes += [inner for node in nodes if isinstance(node, ast.If) for inner in node.body]
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    return names


def _describe(name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        return [f"module {name}"]
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        return [f"class {name}({bases})" if bases else f"class {name}", *(f"    {line}" for line in _members(value))]
    if callable(value):
        return [f"def {name}{signature(value)}"]
    return [f"value {name}"]


def _members(class_: type) -> Iterator[str]:
    """Yield the members that rowgrad's own classes define, without those inherited from other libraries."""
    members: dict[str, Any] = {}
    for base in reversed(class_.__mro__):
        if base.__module__.partition(".")[0] == "rowgrad":
            members |= vars(base)
    if "__init__" in members:
        yield f"__init__{signature(members['__init__'], bound=True)}"
    elif "__new__" in members and not issubclass(class_, enum.Enum):
        yield f"__new__{signature(members['__new__'], bound=True)}"
    for name in sorted(members):
        if not name.startswith("_"):
            yield _member(name, members[name])


def _member(name: str, value: Any) -> str:
    if isinstance(value, staticmethod):
        return f"@staticmethod {name}{signature(value.__func__)}"
    if isinstance(value, classmethod):
        return f"@classmethod {name}{signature(value.__func__, bound=True)}"
    if inspect.isfunction(value):
        return f"{name}{signature(value, bound=True)}"
    if isinstance(value, property) and value.fset is not None:
        return f"@property {name} (can be set)"
    return f"@property {name}" if inspect.isdatadescriptor(value) else f"value {name}"


def signature(function: Any, bound: bool = False) -> str:
    """Return the parameters of a function without annotations; `bound` omits `self`."""
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    parts: list[str] = []
    for position, parameter in enumerate(parameters):
        before = parameters[position - 1].kind if position else None
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY:
            parts.append("/")
        starred = before in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        stars = _STARS.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{default}")
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return f"({', '.join(parts)})"


def _default(value: Any) -> str:
    """Return a default as text; objects whose text could contain an address or a version are shown by name."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_default, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if repr(value) == "<factory>" or type(value).__name__ == "dtype":
        return str(value)
    return str(getattr(value, "__name__", f"<{type(value).__name__}>"))
