"""Minimise the corpus that runs have grown into tests/corpus with libFuzzer's -merge."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from run_target import python_path
from targets import ROOT, Target

LARGEST = 1 << 15  # maximal size of a committed input, in bytes


def merge(some: list[Target]) -> int:
    done = set()
    for target in some:
        if target.kind == "reference" or target.name in done:
            continue
        done.add(target.name)
        with tempfile.TemporaryDirectory() as folder:
            sources = [str(f) for f in (target.seeds, target.grown) if f.is_dir()]
            # By coverage, not by counts, and with the smallest set of files: a fifth of them.
            limits = ["-set_cover_merge=1", "-use_counters=0", "-timeout=30", "-rss_limit_mb=3000"]
            command = [*target.command, *limits, folder, *sources]
            environment = {**os.environ, **target.environment, "PYTHONPATH": python_path()}
            ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, errors="replace")
            if ended.returncode:
                print(f"{target.name}: not merged\n{ended.stderr[-2000:]}")
                return 1
            _replace(target.seeds, Path(folder))
        files = list(target.seeds.iterdir())
        print(f"{target.name}: {len(files)} inputs, {sum(f.stat().st_size for f in files)} bytes", flush=True)
    return 0


def _replace(seeds: Path, folder: Path) -> None:
    """Replace the corpus, but keep inputs that were findings, whatever they cover now."""
    seeds.mkdir(parents=True, exist_ok=True)
    for old in seeds.iterdir():
        if not old.name.startswith("found-"):
            old.unlink()
    for new in folder.iterdir():
        if new.stat().st_size <= LARGEST:
            shutil.copy(new, seeds / new.name[:12])
