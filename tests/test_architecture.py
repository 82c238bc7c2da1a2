"""The packages' READMEs name the files that exist, and their tables list every field of the records."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from rowgrad._catalog.kernels import KernelSpec
from rowgrad._catalog.rules import RuleSpec
from rowgrad._catalog.spec import Op

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/rowgrad"
PACKAGES = sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists() and p.name != "compat")


def section(text: str, title: str) -> str:
    """Return the text below a heading, up to the next heading of its level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title!r}"
    return found[1]


def table_names(text: str) -> list[str]:
    """Return everything in backticks in the first column of a text's tables."""
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def readme(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_sections_end_at_the_next_heading() -> None:
    text = "# A\n\n## B\n\n| x | y |\n|---|---|\n| `a`, `b` | `c` |\n\n## C\n\n| `d` | e |\n"
    assert table_names(section(text, "B")) == ["a", "b"]
    assert table_names(section(text, "C")) == ["d"]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_readmes_name_every_module(package: str) -> None:
    folder = SOURCE / package
    modules = [str(p.relative_to(folder)) for p in folder.rglob("*.py") if p.name != "__init__.py"]
    assert modules
    assert sorted(table_names(section(readme(folder), "Modules"))) == sorted(modules)


def test_cpp_readme_names_every_source() -> None:
    folder = ROOT / "cpp"
    sources = [
        str(p.relative_to(folder))
        for part in ("include/rowgrad", "kernels", "cuda", "bind")
        for p in folder.glob(f"{part}/*.*")
    ]
    assert sorted(table_names(section(readme(folder), "Modules"))) == sorted(sources)


def test_web_readme_names_every_folder() -> None:
    folders = [f"{p.name}/" for p in (ROOT / "web/src").iterdir() if p.is_dir()]
    assert sorted(table_names(section(readme(ROOT / "web"), "Modules"))) == sorted(folders)


@pytest.mark.parametrize("record", [Op, KernelSpec, RuleSpec], ids=lambda record: record.__name__)
def test_every_field_of_a_record_is_described(record: type) -> None:
    fields = [f.name for f in dataclasses.fields(record)]
    assert sorted(table_names(section(readme(SOURCE / "_catalog"), f"Fields of `{record.__name__}`"))) == sorted(fields)


def test_overview_names_every_package() -> None:
    text = (ROOT / "docs/contributing/architecture.md").read_text(encoding="utf-8")
    public = {p.stem for p in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(table_names(section(text, "Packages"))) == sorted({*public, *PACKAGES, "compat", "_core"})


def test_packages_diagram_shows_every_package() -> None:
    """The diagram's generator reads the import contract; a package missing there would be missing in both."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (contract,) = (c for c in tools["importlinter"]["contracts"] if c["name"] == "one direction")
    layers = {name.strip().removeprefix("rowgrad.") for layer in contract["layers"] for name in layer.split(":")}
    public = {p.stem for p in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert layers == {*public, *PACKAGES}
    shown = set(re.findall(r">(\w+)</text>", (ROOT / "docs/images/packages.svg").read_text(encoding="utf-8")))
    assert shown == layers


def test_readmes_are_excluded_from_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]
    assert "**/README.md" in build["wheel"]["exclude"]
