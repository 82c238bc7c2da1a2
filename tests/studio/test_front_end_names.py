"""The front end's source names no op: everything that it shows about ops comes from the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

import rowgrad

SOURCES = sorted((Path(__file__).parents[2] / "web" / "src").rglob("*.ts*"))
NAMES = sorted({n for record in rowgrad.catalog() for n in (record["name"], record["snake_name"], *record["aliases"])})
HUMPS = re.compile(r"[A-Z][a-z0-9]+")


def named(text: str) -> list[str]:
    """Names that stand in quotes; those of at least two humps, which are no words of a language, anywhere."""
    found = []
    for name in NAMES:
        quoted = name[0].isupper() and re.search(rf"""(["'`]){re.escape(name)}\1""", text)
        bare = len(HUMPS.findall(name)) > 1 and re.search(rf"\b{re.escape(name)}\b", text)
        if quoted or bare:
            found.append(name)
    return found


def test_no_op_name_in_the_front_end() -> None:
    found = {path.name: named(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}


def test_names_would_be_found() -> None:
    assert len(SOURCES) > 40
    assert named('if (op === "Const") return') == ["Const"]
    assert named("// a `Neg` here") == ["Neg"]
    assert named("// as ClientSession does") == ["ClientSession"]
    assert named("const add = Add;") == []
