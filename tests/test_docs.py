"""The pages say what is so: their code runs, their links lead somewhere, what is generated is fresh."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("*.md", "docs/**/*.md", "examples/**/*.md", "tests/golden/README.md")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(folder))
WRITTEN = [p for p in PAGES if p.parent.name != "ops"]  # the pages of docs/ops are executed by their generator
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Line and source of every Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(2)), m[2]) for m in BLOCK.finditer(text) if m[1] == "python"]


def run_block(source: str, names: dict[str, Any], page: str, line: int) -> str:
    """What went wrong in a block, nothing if it ran: sessions are compared, plain code must only run."""
    if ">>>" not in source:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("\n" * line + source, page, "exec"), names)
        return ""
    session = doctest.DocTestParser().get_doctest(source, names, page, page, line)
    complaints: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(session, out=complaints.append, clear_globs=False)
    names.update(session.globs)
    return "".join(complaints)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_code_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "page"}  # blocks of a page follow from one another
    for line, source in python_blocks(page):
        complaint = run_block(source, names, name_of(page), line)
        assert not complaint, complaint


def test_there_is_code_to_run() -> None:
    assert len(python_blocks(ROOT / "README.md")) >= 3
    for page in ("docs/guide.md", "docs/torch.md", "docs/jax.md", "docs/graph.md", "examples/from_tensorflow.md"):
        assert len(python_blocks(ROOT / page)) >= 10


def test_a_wrong_page_would_fail() -> None:
    assert run_block(">>> 1 + 1\n3\n", {}, "page", 0)


def without_code(text: str) -> str:
    return BLOCK.sub("", text)


def anchors(page: Path) -> set[str]:
    """The names GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower() for h in headings)
    return {re.sub(r"[^\w\- ]", "", h).replace(" ", "-") for h in plain}


def links(page: Path) -> list[tuple[str, str]]:
    """Path and anchor of every link that stays in the project."""
    found = LINK.findall(without_code(page.read_text(encoding="utf-8")))
    parts = (target.partition("#") for target in found if not re.match(r"[a-z]+:", target))
    return [(path, anchor) for path, _, anchor in parts]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor} is not there"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        ahead += [t for path, _ in links(page) if path.endswith(".md") and (t := (page.parent / path).resolve())]
    assert seen >= set(PAGES)


@pytest.mark.parametrize("tool", ["gen_stubs.py", "gen_docs.py"])
def test_generated_files_are_fresh(tool: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / tool), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
