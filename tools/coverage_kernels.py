"""Branches of the kernels: clang counts them by their place in the source, whichever instantiation went there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import fuzz_clang
from coverage_run import OUT, ROOT, run

TESTS = ROOT / "build" / "coverage-tests"
CORE = ROOT / "build" / "coverage-core"
# Those that call kernels with all that is in the records; others call the same kernels by other ways.
PYTHON_TESTS = (
    "tests/conformance", "tests/hostile/test_resource_limits.py", "tests/test_addition_orders.py",
    "tests/test_embedding_lookup.py", "tests/test_grad_buffer.py", "tests/test_instruction_sets.py",
    "tests/test_malformed_input.py", "tests/test_numpy_runner.py", "tests/test_plan.py",
    "tests/test_repeated_numpy_calls.py", "tests/test_sparse.py", "tests/test_sparse_parallel.py",
    "tests/test_threads.py", "tests/test_updates.py",
)  # fmt: skip

Place = tuple[str, int, int]  # file, line, column


def branches(programs: Path) -> int:
    """Build, run, count, and compare with what docs/coverage.md explains."""
    if failed := _build(programs) or _run(programs):
        return failed
    left, table = _left()
    explained = _explained()
    unknown = [place for place in left if not any(_is_at(place, *one) for one in explained)]
    (OUT / "kernels.txt").write_text(table, encoding="utf-8")
    print(table)
    for place in unknown:
        print(f"not in docs/coverage.md: {_text(place)} {left[place]}", file=sys.stderr)
    return int(bool(unknown))


def _build(programs: Path) -> int:
    cmake, ninja = programs / "cmake", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"
    asked = (sys.executable, "-m", "nanobind", "--cmake_dir")
    nanobind = subprocess.run(asked, capture_output=True, text=True, check=True)
    common = ("-G", "Ninja", ninja, f"-DCMAKE_CXX_COMPILER={fuzz_clang.compiler()}", "-DROWGRAD_COVERAGE=ON")
    python = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.stdout.strip()}")
    return (
        run(cmake, "-S", ".", "-B", TESTS, *common, "-DROWGRAD_TESTS=ON")
        or run(cmake, "-S", ".", "-B", CORE, *common, *python)
        or run(cmake, "--build", TESTS)
        or run(cmake, "--build", CORE)
    )


def _run(programs: Path) -> int:
    for old in (*TESTS.glob("*.profraw"), *CORE.glob("*.profraw")):
        old.unlink()
    tests = ("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-p", "coverage_core", "-m", "not slow")
    core = next(CORE.glob("_core.*"))
    # %m is a number of the program's own: the counts of one program are added up, those of two are kept apart.
    return run(
        programs / "ctest", "--test-dir", TESTS, "--output-on-failure", "-j", "2",
        LLVM_PROFILE_FILE=str(TESTS / "%m.profraw"),
    ) or run(
        sys.executable, *tests, *PYTHON_TESTS, ROWGRAD_COUNTING_CORE=str(core), PYTHONPATH=str(ROOT / "tools"),
        LLVM_PROFILE_FILE=str(CORE / "%m-%p.profraw"),
    )  # fmt: skip


def _left() -> tuple[dict[Place, str], str]:
    """What was not gone both ways by any program, and a table."""
    ways = defaultdict[Place, set[str]](set)
    programs = [*(t for t in TESTS.glob("test_*") if t.is_file()), next(CORE.glob("_core.*"))]
    counts = {folder: _merged(folder) for folder in (TESTS, CORE)}
    for program in programs:
        for place, way in _seen(program, counts[program.parent]):
            ways[place] |= way
    left = {
        place: f"never {'true' if way == {'False'} else 'false'}" if way else "not reached"
        for place, way in sorted(ways.items())
        if len(way) < 2
    }
    all_in, left_in = Counter(p[0] for p in ways), Counter(p[0] for p in left)
    rows = [f"{all_in[name] - left_in[name]:5} of {all_in[name]:4}  {name}" for name in sorted(all_in)]
    percent = 100 * (1 - len(left) / max(1, len(ways)))
    whole = f"{percent:.1f} % of {len(ways)} branches went both ways"
    return left, "\n".join([*rows, "", whole, *(f"{_text(p)} {left[p]}" for p in left), ""])


def _merged(folder: Path) -> Path:
    merged = folder / "all.profdata"
    words = [_tool("llvm-profdata"), "merge", "-sparse", *map(str, folder.glob("*.profraw")), "-o", str(merged)]
    subprocess.run(words, check=True)
    return merged


def _seen(program: Path, counts: Path) -> list[tuple[Place, set[str]]]:
    """Branches of a program, and the ways they went. What a template's arguments decide is no branch."""
    words = [_tool("llvm-cov"), "show", str(program), f"-instr-profile={counts}", "-show-branches=count"]
    sources = [str(ROOT / "cpp" / "kernels"), str(ROOT / "cpp" / "include")]
    shown = subprocess.run([*words, *sources], check=True, capture_output=True, text=True).stdout
    found, name = [], ""
    for line in shown.splitlines():
        if line.startswith("/") and line.endswith(":"):
            name = str(Path(line[:-1]).relative_to(ROOT))
        elif m := re.search(r"Branch \((\d+):(\d+)\): \[True: (\S+), False: (\S+)\]", line):
            way = {key for key, count in (("True", m[3]), ("False", m[4])) if count != "0"}
            found.append(((name, int(m[1]), int(m[2])), way))
    return found


def _tool(name: str) -> str:
    """Of the same version as the compiler."""
    tool = Path(fuzz_clang.compiler()).resolve().with_name(name)
    return str(tool) if tool.exists() else sys.exit(f"{name} was not found beside clang: apt-get install llvm")


def _text(place: Place) -> str:
    return "{}:{}:{}".format(*place)


def _explained() -> list[tuple[str, str]]:
    """What docs/coverage.md names: files, and how a condition in them begins."""
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)`: `([^`]+)` \|", page, re.MULTILINE)


def _is_at(place: Place, name: str, condition: str) -> bool:
    """Whether a place is where this condition stands. Lines move; what they say does so less."""
    path, line, column = place
    if path != name:
        return False
    return (ROOT / path).read_text(encoding="utf-8").splitlines()[line - 1][column - 1 :].startswith(condition)


if __name__ == "__main__":
    sys.exit(branches(ROOT / "build" / "tools" / "bin"))
