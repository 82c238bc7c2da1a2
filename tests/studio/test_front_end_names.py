"""The front end's source names no op; the shipped page has no test switches and stays small."""

from __future__ import annotations

import re
from pathlib import Path

import rowgrad

STATIC = Path(rowgrad.__file__).parent / "studio" / "static"
WEB = Path(__file__).parents[2] / "web"
SOURCES = sorted((WEB / "src").rglob("*.ts*"))
NAMES = sorted({n for record in rowgrad.catalog() for n in (record["name"], record["snake_name"], *record["aliases"])})
CAPITALIZED_PART = re.compile(r"[A-Z][a-z0-9]+")


def op_names_in(text: str) -> list[str]:
    """Return op names in quotes, and names of at least two capitalized parts anywhere."""
    found = []
    for name in NAMES:
        quoted = name[0].isupper() and re.search(rf"""(["'`]){re.escape(name)}\1""", text)
        bare = len(CAPITALIZED_PART.findall(name)) > 1 and re.search(rf"\b{re.escape(name)}\b", text)
        if quoted or bare:
            found.append(name)
    return found


def test_no_op_name_in_the_front_end() -> None:
    found = {path.name: op_names_in(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}


def test_the_search_finds_op_names() -> None:
    assert len(SOURCES) > 40
    assert op_names_in('if (op === "Const") return') == ["Const"]
    assert op_names_in("// a `Neg` here") == ["Neg"]
    assert op_names_in("// as ClientSession does") == ["ClientSession"]
    assert op_names_in("const add = Add;") == []


def test_the_shipped_front_end_has_no_switches() -> None:
    """Every switch (web/switches.ts) is used in the source, and absent from the bundle."""
    listed = (WEB / "switches.ts").read_text(encoding="utf-8").partition("FEATURE_NAMES = [")[2].partition("]")[0]
    names = set(re.findall(r'"(\w+)"', listed))
    used = {name for path in SOURCES for name in re.findall(r"\bFEATURES\.(\w+)", path.read_text(encoding="utf-8"))}
    assert names == used != set()
    bundle = (STATIC / "studio.js").read_text(encoding="utf-8")
    assert re.findall(r"FEATURES|rowgradFeatures|\.without\b", bundle) == []
    # Names of one word may also be ids of commands or verbs.
    assert [name for name in names if not name.islower() and re.search(rf"\b{name}\b", bundle)] == []


def test_the_shipped_script_is_below_900_kilobytes() -> None:
    """Uncompressed; a larger one may mean that a package is bundled twice, or without tree shaking."""
    assert (STATIC / "studio.js").stat().st_size < 900_000
