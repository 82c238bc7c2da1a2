"""The documentation is correct: its code runs, its links resolve, its generated parts are up to date."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rowgrad.cli.errors import UsageError
from rowgrad.cli.parser import make_parser

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.run import make_parser as make_bench_parser

FOLDERS = (
    "*.md", "docs/**/*.md", "examples/**/*.md", "bench/README.md", "tests/golden/README.md", "src/rowgrad/*/README.md",
    "cpp/README.md", "web/README.md",
)  # fmt: skip
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(folder))
WRITTEN = [p for p in PAGES if p.parent.name != "ops"]  # the generator executes the pages of docs/ops
BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = ("tutorials", "how-to", "reference", "explanation", "contributing")
OTHERS = ("curl", "dot")  # programs of others
# Modules whose public names must all be in the API pages.
LISTED = {
    "rowgrad", "rowgrad.checkpoint", "rowgrad.errors", "rowgrad.graph", "rowgrad.jax.rows", "rowgrad.jax.sharded",
    "rowgrad.sparse", "rowgrad.studio", "rowgrad.torch.clip", "rowgrad.torch.data", "rowgrad.torch.nn",
    "rowgrad.torch.sharded",
}  # fmt: skip
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Return line and source of every Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(2)), m[2]) for m in BLOCK.finditer(text) if m[1] == "python"]


def run_block(source: str, names: dict[str, Any], page: str, line: int) -> str:
    """Return what went wrong in a block, or "": output of sessions is compared, plain code must only run."""
    if ">>>" not in source:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("\n" * line + source, page, "exec"), names)
        return ""
    # A name of its own: doctest looks up the lines of a traceback by it.
    session = doctest.DocTestParser().get_doctest(source, names, f"{page}, line {line}", page, line)
    complaints: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(session, out=complaints.append, clear_globs=False)
    names.update(session.globs)
    return "".join(complaints)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # raised inside torch
@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_code_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "page"}  # blocks of a page share their names
    for line, source in python_blocks(page):
        complaint = run_block(source, names, name_of(page), line)
        assert not complaint, complaint


def test_pages_contain_code() -> None:
    assert len(python_blocks(ROOT / "README.md")) >= 3
    for page in (
        "docs/explanation/sums_in_16_bits.md",
        "docs/tutorials/numpy.md",
        "docs/tutorials/pytorch.md",
        "docs/tutorials/jax.md",
        "docs/how-to/move_from_torch.md",
        "docs/how-to/from_tensorflow.md",
        "docs/how-to/serve.md",
        "examples/from_tensorflow.md",
    ):
        assert len(python_blocks(ROOT / page)) >= 3
    for page in (
        "docs/reference/numpy.md",
        "docs/reference/torch.md",
        "docs/reference/jax.md",
        "docs/reference/graph.md",
    ):
        assert len(python_blocks(ROOT / page)) >= 10


def test_wrong_code_is_detected() -> None:
    assert run_block(">>> 1 + 1\n3\n", {}, "page", 0)


# -- shell blocks: the programs and options they use exist -----------------------------------------------------------


def commands(page: Path) -> list[list[str]]:
    """Return every command of every shell block as words, without comments, assignments and redirections."""
    text = page.read_text(encoding="utf-8")
    lines = [line for m in BLOCK.finditer(text) if m[1] == "sh" for line in m[2].splitlines()]
    piped = [part for line in lines for part in split_at(shlex.split(line, comments=True), "|") if part]
    return [strip_assignments(split_at(words, ">")[0]) for words in piped]


def split_at(words: list[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == mark:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def strip_assignments(words: list[str]) -> list[str]:
    return words[1:] if re.match(r"\w+=", words[0]) else words


def complaint_about(words: list[str]) -> str:
    """Return what is wrong with a command, or ""."""
    program, *arguments = words
    if program == "make":
        return "".join(f"there is no target {t}" for t in arguments if t not in make_targets())
    if program == "rowgrad":
        try:
            make_parser().parse_args(arguments)
        except (UsageError, SystemExit) as error:
            return f"{error}"
    elif program.endswith("python") and arguments[:1] == ["bench/run.py"]:
        try:
            make_bench_parser().parse_args(arguments[1:])
        except SystemExit as error:
            return f"{error}"
    elif program == "pip":
        requested = {e for w in arguments for m in re.findall(r"\[(.+)\]", w) for e in m.split(",")}
        return "".join(f"there is no extra {e}" for e in requested - extras())
    elif not program.endswith("python") and program not in OTHERS:
        return f"who is {program}?"
    places = [w for w in arguments if w.startswith(("examples/", "tests/", "tools/", "docs/", "bench/"))]
    return "".join(f"{place} is not there" for place in places if not (ROOT / place).exists())


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])


@pytest.mark.parametrize("page", [p for p in WRITTEN if commands(p)], ids=name_of)
def test_commands_exist(page: Path) -> None:
    for words in commands(page):
        complaint = complaint_about(words)
        assert not complaint, f"{shlex.join(words)}: {complaint}"


@pytest.mark.parametrize(
    "line",
    ["make coffee", "rowgrad bake page.json", "rowgrad run page.json --stpes 3", "rowgrad bench --lst",
     "python bench/run.py --lst", "python bench/nowhere.py",
     "rowgrad run examples/pages/99.json", "pip install 'rowgrad[all]'", "frobnicate"],
)  # fmt: skip
def test_wrong_commands_are_detected(line: str) -> None:
    assert complaint_about(shlex.split(line))


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_make_targets_in_the_text_exist(page: Path) -> None:
    targets = re.findall(r"`make ([\w-]+)", page.read_text(encoding="utf-8"))
    assert set(targets) <= make_targets()


# -- links -----------------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return BLOCK.sub("", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower() for h in headings)
    return {re.sub(r"[^\w\- ]", "", h).replace(" ", "-") for h in plain}


def links(page: Path) -> list[tuple[str, str]]:
    """Return path and anchor of every link inside the project."""
    found = LINK.findall(without_code(page.read_text(encoding="utf-8")))
    parts = (target.partition("#") for target in found if not re.match(r"[a-z]+:", target))
    return [(path, anchor) for path, _, anchor in parts]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor} does not exist"


def test_every_page_is_linked_from_the_readme() -> None:
    visited, pending = set(), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in visited:
            continue
        visited.add(page)
        pending += [t for path, _ in links(page) if path.endswith(".md") and (t := (page.parent / path).resolve())]
    assert visited >= set(PAGES)


@pytest.mark.parametrize("tool", ["gen_stubs.py", "gen_docs.py"])
def test_generated_files_are_up_to_date(tool: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / tool), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- the site --------------------------------------------------------------------------------------------------------


def entries_of(page: Path) -> list[str]:
    """Return the entries of a page's list of pages."""
    lists = [m[2] for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[1] == "{toctree}"]
    lines = [line for text in lists for line in text.splitlines() if line and line[0] != ":"]
    return [re.sub(r"^.*<(.*)>$", r"\1", line) for line in lines]


def test_every_page_is_in_the_site() -> None:
    """Each page is in a list of pages, which is how readers of the site find it; `make docs` builds it."""
    in_site = {(page.parent / f"{entry}.md").resolve() for page in PAGES for entry in entries_of(page)}
    first = {ROOT / "README.md", *(ROOT / f"docs/{kind}/README.md" for kind in KINDS)}  # docs/conf.py lists the kinds
    assert set(PAGES) <= in_site | first
    assert all(page.exists() for page in in_site | first)


def test_every_page_is_of_one_kind() -> None:
    """A page of docs/ is in the folder of its kind, and only its kind's README lists it."""
    listed: dict[Path, list[str]] = {}
    for kind in KINDS:
        visited, pending = set(), [ROOT / f"docs/{kind}/README.md"]
        while pending:
            page = pending.pop().resolve()
            visited.add(page)
            pending += [page.parent / f"{entry}.md" for entry in entries_of(page)]
        for page in visited:
            listed.setdefault(page, []).append(kind)
    assert {page: kinds for page, kinds in listed.items() if len(kinds) > 1} == {}
    folders = {"ops": "reference", **{kind: kind for kind in KINDS}}
    for page in (ROOT / "docs").rglob("*.md"):
        assert listed[page] == [folders[page.parent.name]], name_of(page)


def test_every_public_name_is_in_the_api() -> None:
    """Except ops, which have the reference, and modules; a name at the top level counts for its module too."""
    shown = set()
    for page in ROOT.glob("docs/reference/api*.md"):
        lists = re.findall(r"^<!-- api: (\S+)\n(.*?)^-->$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        shown |= {f"{module}.{name}" for module, names in lists for name in names.split()}
    public = set()
    for path in ROOT.glob("tests/surface/*.txt"):
        names = re.findall(r"^(?:class|def|value) ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        public |= {name for name in names if name.rpartition(".")[0] in LISTED}
    assert {name.rpartition(".")[0] for name in public} == LISTED
    top = {name for name in public if name.count(".") == 1}
    assert {name for name in public if f"rowgrad.{name.rpartition('.')[2]}" not in top} | top <= shown
