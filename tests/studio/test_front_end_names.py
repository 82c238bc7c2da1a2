"""The front end's source names no op, and the shipped page has no test switches."""

from __future__ import annotations

import re
from pathlib import Path

import rowgrad

WEB = Path(__file__).parents[2] / "web"
SOURCES = sorted((WEB / "src").rglob("*.ts*"))
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


def test_the_shipped_page_has_no_switches() -> None:
    """Switches are for tests (web/switches.ts): each is used in the source, and none is left in the bundle."""
    listed = (WEB / "switches.ts").read_text(encoding="utf-8").partition("FEATURE_NAMES = [")[2].partition("]")[0]
    names = set(re.findall(r'"(\w+)"', listed))
    used = {name for path in SOURCES for name in re.findall(r"\bFEATURES\.(\w+)", path.read_text(encoding="utf-8"))}
    assert names == used != set()
    bundle = (Path(rowgrad.__file__).parent / "studio" / "static" / "studio.js").read_text(encoding="utf-8")
    assert re.findall(r"FEATURES|rowgradFeatures|\.without\b", bundle) == []
    # Names of one word are ids of commands or verbs as well; those of two words are switches only.
    assert [name for name in names if not name.islower() and re.search(rf"\b{name}\b", bundle)] == []
