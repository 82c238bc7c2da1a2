"""Measure which lines of Python and which branches of the kernels the tests reach: `make coverage`.

    python tools/coverage_report.py [--only python|kernels] [--cmake build/tools/bin]

Python: all tests that need no browser, including the processes that they start. Kernels: the C++ tests and the tests in
`PYTHON_TESTS`, with an extension that counts branches; clang counts a branch by its place in the source, over all
instantiations. The report is written to build/coverage. The tool fails if coverage is below `[tool.coverage.report]`
or if docs/contributing/coverage.md does not explain a branch that was not reached.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import ensure_clang

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "coverage"
TESTS = ROOT / "build" / "coverage-tests"
CORE = ROOT / "build" / "coverage-core"
# The Python tests that cover the kernels best; the others call the same kernels with fewer variants.
PYTHON_TESTS = (
    "tests/conformance", "tests/hostile/test_resource_limits.py", "tests/test_addition_orders.py",
    "tests/test_embedding_lookup.py", "tests/test_grad_buffer.py", "tests/test_instruction_sets.py",
    "tests/test_malformed_input.py", "tests/test_numpy_runner.py", "tests/test_plan.py",
    "tests/test_repeated_numpy_calls.py", "tests/test_sparse.py", "tests/test_sparse_parallel.py",
    "tests/test_threads.py", "tests/test_updates.py",
)  # fmt: skip

Place = tuple[str, int, int]  # file, line, column


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cmake", type=Path, default=Path("build/tools/bin"), help="where cmake, ctest and ninja are")
    parser.add_argument("--only", choices=("python", "kernels"), help="measure only one of them")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    codes = []
    if args.only != "kernels":
        codes.append(python_lines())
    if args.only != "python":
        codes.append(kernel_branches((ROOT / args.cmake).resolve()))
    return max(codes)


def python_lines() -> int:
    coverage = (sys.executable, "-m", "coverage")
    for old in OUT.glob("python*"):
        old.unlink()
    tests = ("-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider")
    those = ("-m", "not slow and not browser")
    failed = run_command(*coverage, "run", *tests, *those)
    run_command(*coverage, "combine", "-q")
    with (OUT / "python.txt").open("w", encoding="utf-8") as report:
        below = subprocess.run([*coverage, "report", "--show-missing"], cwd=ROOT, stdout=report).returncode
    print((OUT / "python.txt").read_text(encoding="utf-8"))
    return failed or below


def run_command(*command: object, **environment: str) -> int:
    """Run a command in the project's folder; return its exit status."""
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], cwd=ROOT, env={**os.environ, **environment}).returncode


# -- Branches of the kernels ------------------------------------------------------------------------------------------


def kernel_branches(programs: Path) -> int:
    """Build, run, count, and compare the uncovered branches with docs/contributing/coverage.md."""
    if failed := _build(programs) or _run(programs):
        return failed
    uncovered, table = _uncovered()
    explained = _explained()
    unknown = [place for place in uncovered if not any(_is_at(place, *one) for one in explained)]
    (OUT / "kernels.txt").write_text(table, encoding="utf-8")
    print(table)
    for place in unknown:
        print(f"not in docs/contributing/coverage.md: {_text(place)} {uncovered[place]}", file=sys.stderr)
    return int(bool(unknown))


def _build(programs: Path) -> int:
    cmake, ninja = programs / "cmake", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"
    query = (sys.executable, "-m", "nanobind", "--cmake_dir")
    nanobind = subprocess.run(query, capture_output=True, text=True, check=True)
    common = ("-G", "Ninja", ninja, f"-DCMAKE_CXX_COMPILER={ensure_clang.compiler()}", "-DROWGRAD_COVERAGE=ON")
    python = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.stdout.strip()}")
    return (
        run_command(cmake, "-S", ".", "-B", TESTS, *common, "-DROWGRAD_TESTS=ON")
        or run_command(cmake, "-S", ".", "-B", CORE, *common, *python)
        or run_command(cmake, "--build", TESTS)
        or run_command(cmake, "--build", CORE)
    )


def _run(programs: Path) -> int:
    for old in (*TESTS.glob("*.profraw"), *CORE.glob("*.profraw")):
        old.unlink()
    tests = ("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-p", "coverage_pytest_plugin")
    core = next(CORE.glob("_core.*"))
    # %m identifies the program: counts of one program are added up, those of different programs stay separate.
    return run_command(
        programs / "ctest", "--test-dir", TESTS, "--output-on-failure", "-j", "2",
        LLVM_PROFILE_FILE=str(TESTS / "%m.profraw"),
    ) or run_command(
        sys.executable, *tests, "-m", "not slow", *PYTHON_TESTS,
        ROWGRAD_COUNTING_CORE=str(core), PYTHONPATH=str(ROOT / "tools"), LLVM_PROFILE_FILE=str(CORE / "%m-%p.profraw"),
    )  # fmt: skip


def _uncovered() -> tuple[dict[Place, str], str]:
    """Return the branches that no program took both ways, and the report as text."""
    outcomes = defaultdict[Place, set[str]](set)
    programs = [*(t for t in TESTS.glob("test_*") if t.is_file()), next(CORE.glob("_core.*"))]
    counts = {folder: _merged(folder) for folder in (TESTS, CORE)}
    for program in programs:
        for place, outcome in _branches(program, counts[program.parent]):
            outcomes[place] |= outcome
    uncovered = {
        place: f"never {'true' if outcome == {'False'} else 'false'}" if outcome else "not reached"
        for place, outcome in sorted(outcomes.items())
        if len(outcome) < 2
    }
    total_in, uncovered_in = Counter(p[0] for p in outcomes), Counter(p[0] for p in uncovered)
    rows = [f"{total_in[name] - uncovered_in[name]:5} of {total_in[name]:4}  {name}" for name in sorted(total_in)]
    percent = 100 * (1 - len(uncovered) / max(1, len(outcomes)))
    whole = f"{percent:.1f} % of {len(outcomes)} branches went both ways"
    return uncovered, "\n".join([*rows, "", whole, *(f"{_text(p)} {uncovered[p]}" for p in uncovered), ""])


def _merged(folder: Path) -> Path:
    merged = folder / "all.profdata"
    command = [_tool("llvm-profdata"), "merge", "-sparse", *map(str, folder.glob("*.profraw")), "-o", str(merged)]
    subprocess.run(command, check=True)
    return merged


def _branches(program: Path, counts: Path) -> list[tuple[Place, set[str]]]:
    """Return the branches of a program and their outcomes. Conditions on template arguments are not branches."""
    command = [_tool("llvm-cov"), "show", str(program), f"-instr-profile={counts}", "-show-branches=count"]
    sources = [str(ROOT / "cpp" / "kernels"), str(ROOT / "cpp" / "include")]
    shown = subprocess.run([*command, *sources], check=True, capture_output=True, text=True).stdout
    found, name = [], ""
    for line in shown.splitlines():
        if line.startswith("/") and line.endswith(":"):
            name = str(Path(line[:-1]).relative_to(ROOT))
        elif m := re.search(r"Branch \((\d+):(\d+)\): \[True: (\S+), False: (\S+)\]", line):
            outcome = {key for key, count in (("True", m[3]), ("False", m[4])) if count != "0"}
            found.append(((name, int(m[1]), int(m[2])), outcome))
    return found


def _tool(name: str) -> str:
    """Return the path of an LLVM tool of the compiler's version."""
    tool = Path(ensure_clang.compiler()).resolve().with_name(name)
    return str(tool) if tool.exists() else sys.exit(f"{name} was not found beside clang: apt-get install llvm")


def _text(place: Place) -> str:
    return "{}:{}:{}".format(*place)


def _explained() -> list[tuple[str, str]]:
    """Return the branches that docs/contributing/coverage.md explains: the file, and how the condition begins."""
    page = (ROOT / "docs" / "contributing" / "coverage.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)`: `([^`]+)` \|", page, re.MULTILINE)


def _is_at(place: Place, name: str, condition: str) -> bool:
    """Return whether a condition begins here. Line numbers change more often than conditions."""
    path, line, column = place
    if path != name:
        return False
    return (ROOT / path).read_text(encoding="utf-8").splitlines()[line - 1][column - 1 :].startswith(condition)


if __name__ == "__main__":
    sys.exit(main())
