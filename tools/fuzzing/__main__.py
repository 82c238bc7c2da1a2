"""Run the fuzz targets one after the other: `make fuzz MINUTES=60`, `make fuzz-check`.

    python tools/fuzzing --minutes 10 [--seed 1] [--only slice literal] [--levels baseline]
    python tools/fuzzing --check [--seconds 5]   replay the committed corpus, then fuzz each target for a few seconds
    python tools/fuzzing --seeds                 write initial inputs of the readers to build/fuzz/corpus
    python tools/fuzzing --merge                 minimise the corpus in build/fuzz/corpus into tests/corpus

Writes build/fuzz/report.md and report.json. Exits with 1 after a finding and stores its input in build/fuzz/findings.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import merge_corpus
import report
import run_target
import targets
from targets import ROOT, WORK, Target


def build(levels: str, names: list[str]) -> Path:
    """Build the C++ targets among these and return their folder. The baseline alone is built without optimization."""
    folder = WORK / ("cpp" if levels == "all" else "cpp-quick")
    places = [str(ROOT / "build" / "tools" / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    cmake, ninja = (shutil.which(name, path=os.pathsep.join(places)) for name in ("cmake", "ninja"))
    if not cmake or not ninja:
        sys.exit("cmake and ninja are needed to build the fuzz targets: pip install cmake ninja")
    log = WORK / f"{folder.name}.log"
    WORK.mkdir(parents=True, exist_ok=True)
    if not (folder / "build.ninja").exists():
        compiler = importlib.import_module("ensure_clang").compiler()
        settings = {"ROWGRAD_FUZZ": "ON", "ROWGRAD_FUZZ_LEVELS": levels, "CMAKE_CXX_COMPILER": compiler}
        definitions = [f"-D{name}={value}" for name, value in (settings | {"CMAKE_MAKE_PROGRAM": ninja}).items()]
        _run_logged([cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *definitions], log)
    jobs = os.environ.get("JOBS") or str(min(2, os.cpu_count() or 1))
    if names:
        _run_logged([cmake, "--build", str(folder), "-j", jobs, "--target", *(f"fuzz_{n}" for n in names)], log)
    return folder


def _run_logged(command: list[str], log: Path) -> None:
    with log.open("a") as file:
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT).returncode:
            sys.exit(f"the fuzz targets were not built:\n{log.read_text()[-3000:]}")


def chosen(options: argparse.Namespace, folder: Path) -> list[Target]:
    levels = targets.levels() if options.levels == "all" else ["baseline"]
    every = [*targets.kernel_targets(folder, levels), *targets.reader_targets(), targets.reference_target()]
    unknown = set(options.only) - {t.name for t in every}
    if unknown:
        sys.exit(
            f"unknown target {', '.join(sorted(unknown))}; available: {', '.join(sorted({t.name for t in every}))}"
        )
    return [t for t in every if not options.only or t.name in options.only]


def shown(outcome: run_target.Outcome) -> run_target.Outcome:
    name = f"{outcome.target} ({outcome.level})" if outcome.level else outcome.target
    covered = f", coverage {outcome.coverage}" if outcome.coverage else ""
    end = f"FINDING: {outcome.finding}\n  again: {outcome.again}" if outcome.finding else "no finding"
    print(f"{name}: {outcome.executions} executions in {outcome.seconds:.0f} s{covered}; {end}", flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--seed", type=int, help="else the clock's, and 1 with --check")
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET")
    parser.add_argument("--levels", choices=["all", "baseline"], default="all")
    parser.add_argument("--check", action="store_true", help="replay the committed corpus, and a few seconds of each")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each target, with --check")
    parser.add_argument("--merge", action="store_true", help="put what was grown into the committed corpus")
    parser.add_argument("--seeds", action="store_true", help="write first inputs of the readers")
    options = parser.parse_args()
    sys.path[:0] = run_target.python_path().split(os.pathsep)
    if options.seeds:
        importlib.import_module("seeds").write()
        return 0
    options.levels = "baseline" if options.check else options.levels
    if options.seed is None:
        options.seed = 1 if options.check else int(time.time()) % 1_000_000_000
    kernels = [name for name, _ in targets.KERNELS if not options.only or name in options.only]
    folder = build(options.levels, kernels)
    some = chosen(options, folder)
    if options.merge:
        return merge_corpus.merge(some)
    has_atheris = importlib.util.find_spec("atheris") is not None
    outcomes = []
    if options.check:
        what = f"the committed corpus and {options.seconds:g} s of each target"
        some = [t for t in some if t.kind != "reference"]  # its calls are a separate step
        outcomes += [shown(run_target.replay(t)) for t in some]
    else:
        what = f"{options.minutes:g} minutes"
    runnable = [t for t in some if has_atheris or t.kind != "reader"]
    if len(runnable) < len(some):
        print("atheris is not installed (pip install 'rowgrad[fuzz]'): readers are replayed only", flush=True)
    # The levels of one target share its time.
    share = options.minutes * 60 / max(1, len({t.name for t in runnable}))
    for target in runnable if options.seconds or not options.check else []:
        seconds = options.seconds if options.check else share / sum(t.name == target.name for t in runnable)
        outcomes.append(shown(run_target.run(target, seconds, options.seed)))
        report.write(outcomes, what)
    report.write(outcomes, what)
    findings = sum(bool(o.finding) for o in outcomes)
    done, spent = sum(o.executions for o in outcomes), sum(o.seconds for o in outcomes)
    print(f"{done:,} executions in {spent:,.0f} s, {findings} findings; build/fuzz/report.md")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
