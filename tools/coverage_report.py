"""Which lines of Python and which branches of the kernels the tests reach: `make coverage`.

    python tools/coverage_report.py [--only python|kernels] [--cmake build/tools/bin]

Python: every test that needs no browser, in all processes that tests start. Kernels: the C++ tests, and the Python
tests that coverage_kernels.py names, with an extension that counts. Writes build/coverage. What is not reached must
stand in docs/coverage.md with a reason: fails where it does not, or where less than `[tool.coverage.report]` asks for
is reached.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import coverage_kernels
from coverage_run import OUT, ROOT, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cmake", type=Path, default=Path("build/tools/bin"), help="where cmake, ctest and ninja are")
    parser.add_argument("--only", choices=("python", "kernels"), help="one of the two")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    codes = []
    if args.only != "kernels":
        codes.append(python_lines())
    if args.only != "python":
        codes.append(coverage_kernels.branches((ROOT / args.cmake).resolve()))
    return max(codes)


def python_lines() -> int:
    coverage = (sys.executable, "-m", "coverage")
    for old in OUT.glob("python*"):
        old.unlink()
    tests = ("-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider")
    those = ("-m", "not slow and not browser")
    failed = run(*coverage, "run", *tests, *those)
    run(*coverage, "combine", "-q")
    with (OUT / "python.txt").open("w", encoding="utf-8") as report:
        below = subprocess.run([*coverage, "report", "--show-missing"], cwd=ROOT, stdout=report).returncode
    print((OUT / "python.txt").read_text(encoding="utf-8"))
    return failed or below


if __name__ == "__main__":
    sys.exit(main())
