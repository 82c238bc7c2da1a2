"""The text of a page: a block per line, so that a change of one block is a change of its line."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 160  # characters with the comma; a block whose line would be longer is spread over lines
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_LISTS = ("pages", "blocks", "notes")


def text_of(tree: dict[str, Any]) -> str:
    """The whole text of a page's or project's data."""
    return _container(tree, 0) + "\n"


def _container(tree: dict[str, Any], indent: int) -> str:
    """A project or page: its short fields on one line, then its lists, a line or more for each entry."""
    pad = " " * (indent + 1)
    head = ", ".join(f"{_ENCODE(key)}: {_ENCODE(value)}" for key, value in tree.items() if key not in _LISTS)
    parts = [pad + head]
    for key in _LISTS:
        if key in tree:
            put = _container if key == "pages" else _spread
            lines = ",\n".join(f"{pad} {put(entry, indent + 2)}" for entry in tree[key])
            parts.append(f'{pad}"{key}": [\n{lines}\n{pad}]' if lines else f'{pad}"{key}": []')
    return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"


def _spread(value: Any, indent: int, before: int = 0) -> str:
    """A value on one line where that is short enough, else a line for each of its entries; `before` stands left."""
    line = _ENCODE(value)
    if indent + before + len(line) < WIDTH or not value or not isinstance(value, dict | list):
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            name = _ENCODE(key) + ": "
            entries.append(pad + name + _spread(entry, indent + 1, len(name)))
        return "{\n" + ",\n".join(entries) + "\n" + " " * indent + "}"
    if any(isinstance(entry, dict | list) for entry in value):
        entries = [pad + _spread(entry, indent + 1) for entry in value]
    else:
        strings = any(isinstance(entry, str) for entry in value)  # which may hold what parts entries
        texts = [_ENCODE(entry) for entry in value] if strings else line[1:-1].split(", ")
        entries = [pad + entry for entry in _filled(texts, WIDTH - indent - 2)]
    return "[\n" + ",\n".join(entries) + "\n" + " " * indent + "]"


def _filled(texts: list[str], width: int) -> list[str]:
    """As many numbers or strings on a line as fit: a line for each would make a page of every vector."""
    lines: list[str] = []
    line: list[str] = []
    length = 0
    for text in texts:
        if line and length + len(text) > width:
            lines.append(", ".join(line))
            line, length = [], 0
        line.append(text)
        length += len(text) + 2
    lines.append(", ".join(line))
    return lines
