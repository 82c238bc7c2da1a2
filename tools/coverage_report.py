"""Which lines of Python and which branches of the kernels the tests reach: `make coverage`.

    python tools/coverage_report.py --cmake build/tools/bin [--only python|kernels]

Python: every test that needs no browser, in all processes that tests start. Kernels: the C++ tests, compiled without
optimization, so that a branch counted is a branch of the source. Writes build/coverage, with a list of what is not
reached. Fails where less is reached than `[tool.coverage.report]` and KERNEL_DECISIONS ask for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "coverage"
BUILD = ROOT / "build" / "coverage-tests"
KERNEL_DECISIONS = 95.0  # of those in cpp/kernels and cpp/include, percent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cmake", type=Path, default=Path("build/tools/bin"), help="where cmake, ctest and ninja are")
    parser.add_argument("--only", choices=("python", "kernels"), help="one of the two")
    told = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    codes = []
    if told.only != "kernels":
        codes.append(python_lines())
    if told.only != "python":
        codes.append(kernel_branches((ROOT / told.cmake).resolve()))
    return max(codes)


def run(*words: object) -> int:
    print("$", *words, flush=True)
    return subprocess.run([str(word) for word in words], cwd=ROOT).returncode


def python_lines() -> int:
    coverage = (sys.executable, "-m", "coverage")
    for old in OUT.glob("python*"):
        old.unlink()
    tests = ("-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", "-m", "not slow and not browser")
    failed = run(*coverage, "run", *tests)
    run(*coverage, "combine", "-q")
    with (OUT / "python.txt").open("w", encoding="utf-8") as report:
        below = subprocess.run([*coverage, "report"], cwd=ROOT, stdout=report).returncode
    print((OUT / "python.txt").read_text(encoding="utf-8"))
    return failed or below


def kernel_branches(programs: Path) -> int:
    ninja = f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"
    options = ("-DROWGRAD_TESTS=ON", "-DROWGRAD_COVERAGE=ON", ninja)
    for counts in BUILD.rglob("*.gcda"):  # of another run
        counts.unlink()
    failed = (
        run(programs / "cmake", "-S", ".", "-B", BUILD, "-G", "Ninja", *options)
        or run(programs / "cmake", "--build", BUILD)
        or run(programs / "ctest", "--test-dir", BUILD, "--output-on-failure", "-j", "2")
    )
    if failed:
        return failed
    filters = ("--filter", "cpp/kernels/", "--filter", "cpp/include/")
    counted = ("--exclude-throw-branches", "--exclude-unreachable-branches", "--decisions")
    found = OUT / "kernels.json"
    if failed := run(sys.executable, "-m", "gcovr", "-r", ROOT, BUILD, *filters, *counted, "--json", found):
        return failed
    text, reached = decisions(json.loads(found.read_text(encoding="utf-8")))
    (OUT / "kernels.txt").write_text(text, encoding="utf-8")
    print(text)
    return int(reached < KERNEL_DECISIONS)


def decisions(found: dict[str, Any]) -> tuple[str, float]:
    """By line of the source, whichever instantiation of a template reached it: what is left, and percent."""
    lines, both, left = Counter[str](), Counter[str](), []
    for file in found["files"]:
        name, ways = file["file"], defaultdict[int, set[str]](set)
        for line in file["lines"]:
            decided = line.get("gcovr/decision", {})
            if decided.get("type") == "conditional":
                ways[line["line_number"]] |= {way for way in ("true", "false") if decided[f"count_{way}"]}
            elif decided.get("type") == "switch":
                ways[line["line_number"]] |= {"true", "false"} if decided["count"] else set()
        lines[name], both[name] = len(ways), sum(len(w) == 2 for w in ways.values())
        left += [f"{name}:{n}: {'never ' + ('true' if w == {'false'} else 'false') if w else 'not reached'}"
                 for n, w in sorted(ways.items()) if len(w) < 2]  # fmt: skip
    table = [f"{both[name]:5} of {lines[name]:4}  {name}" for name in sorted(lines) if lines[name]]
    percent = 100 * both.total() / max(1, lines.total())
    whole = f"{percent:.1f} % of {lines.total()} decisions went both ways"
    return "\n".join([*table, "", whole, *left, ""]), percent


if __name__ == "__main__":
    sys.exit(main())
