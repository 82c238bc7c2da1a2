"""Run one target for some seconds, show its progress and return the outcome."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from targets import FINDINGS, ROOT, WORK, Target

SHOWN_EVERY = 10.0  # seconds between lines without a terminal
GRACE = 60.0  # seconds after its time for loading and for the last input
_STATUS = re.compile(r"^#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)")
_DONE = re.compile(r"^(?:stat::number_of_executed_units:\s+(\d+)|Done (\d+) runs|Executed (\d+) inputs)")
_CALLS = re.compile(r"(\d+) of \d+ calls")
_KEPT = re.compile(r"Test unit written to (\S+)")


@dataclass
class Outcome:
    target: str
    level: str
    executions: int = 0
    seconds: float = 0.0
    coverage: int = 0
    corpus: int = 0
    seed: int = 0
    finding: str = ""  # the input
    again: str = ""  # the command that repeats it
    log: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"executions_per_second": round(self.executions / max(self.seconds, 1e-3), 1)}


def arguments(target: Target, seconds: float, seed: int) -> list[str]:
    if target.kind == "reference":
        return ["--calls", str(10**9), "--seed", str(seed), "--processes", "1"]
    target.grown.mkdir(parents=True, exist_ok=True)
    folders = [str(target.grown), *([str(target.seeds)] if target.seeds.is_dir() else [])]
    limits = [f"-max_total_time={max(1, round(seconds))}", "-timeout=30", "-rss_limit_mb=3000", f"-seed={seed}"]
    artifacts = f"-artifact_prefix={FINDINGS}/{target.name}-"
    return [*target.options, *limits, artifacts, "-print_final_stats=1", *folders]


def run(target: Target, seconds: float, seed: int) -> Outcome:
    """Run a target for some seconds, or until a finding."""
    return watch(target, arguments(target, seconds, seed), seconds, seed)


def replay(target: Target) -> Outcome:
    """Run the committed corpus once."""
    options = ["--replay", str(target.seeds)] if target.kind == "reader" else ["-runs=0", str(target.seeds)]
    return watch(target, options, 600.0, 0)


def watch(target: Target, command: list[str], seconds: float, seed: int) -> Outcome:
    FINDINGS.mkdir(parents=True, exist_ok=True)
    outcome = Outcome(target.name, target.level, seed=seed)
    log = WORK / "logs" / f"{target.label.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    outcome.log = str(log.relative_to(ROOT))
    environment = {**os.environ, **target.environment, "PYTHONPATH": python_path()}
    begin = time.monotonic()
    # Its own process group: the reference's calls run in a child, which must not outlive it.
    process = subprocess.Popen([*target.command, *command], cwd=ROOT, env=environment, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        os.killpg(process.pid, signal.SIGKILL)

    limit = seconds if target.kind == "reference" else seconds + GRACE
    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        _follow(process, target, outcome, log, begin)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        timer.cancel()
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
    outcome.seconds = round(time.monotonic() - begin, 1)
    in_time = stopped.is_set() and target.kind == "reference"
    if code != 0 and not in_time:
        outcome.finding = outcome.finding or f"exit code {code}; {outcome.log} has what it said"
        path = ROOT / outcome.finding
        outcome.again = target.again(path) if path.is_file() else " ".join([*target.command, *command])
    return outcome


def python_path() -> str:
    ours = [str(ROOT / folder) for folder in ("tools", "tests")]  # rowgrad itself is installed
    return os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])


def _follow(process: subprocess.Popen[str], target: Target, outcome: Outcome, log: Path, begin: float) -> None:
    assert process.stdout is not None
    shown, live = begin, sys.stdout.isatty()
    with log.open("w") as file:
        for line in process.stdout:
            if not line.startswith("INFO: Instrumenting"):
                file.write(line)
            _parse_status(line, outcome)
            now = time.monotonic()
            if now - shown >= (1.0 if live else SHOWN_EVERY):
                shown = now
                print(f"\r{progress(target, outcome, now - begin):110}" if live
                      else progress(target, outcome, now - begin), end="" if live else "\n", flush=True)  # fmt: skip
    if live:
        print("\r" + " " * 110 + "\r", end="")


def _parse_status(line: str, outcome: Outcome) -> None:
    if found := _STATUS.match(line):
        outcome.executions, outcome.coverage, _, outcome.corpus = map(int, found.groups())
    elif found := _DONE.match(line):
        outcome.executions = int(next(filter(None, found.groups())))
    elif found := _CALLS.search(line):
        outcome.executions = int(found[1])
    elif found := _KEPT.search(line):
        path = Path(found[1])
        outcome.finding = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def progress(target: Target, outcome: Outcome, seconds: float) -> str:
    rate = outcome.executions / max(seconds, 1e-3)
    covered = f", coverage {outcome.coverage}, corpus {outcome.corpus}" if outcome.coverage else ""
    return f"{target.label}: {outcome.executions} executions, {rate:.0f}/s{covered}, {seconds:.0f} s"
