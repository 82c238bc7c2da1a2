"""Worlds of ranks on this machine: started, listened to, ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

STARTING = 60.0  # seconds for what comes before and after timed steps


# glibc hands pages back and takes them anew as sizes change, which no law of sizes knows: it is to keep them.
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}


class WorldEndedError(Exception):
    """A rank has ended before its work was done."""


def listen(
    ranks: int, checks: Sequence[str], seconds: float = 0, rounds: int = 1, repeats: int = 1
) -> Iterator[dict[str, Any]]:
    """Start so many ranks, give on what rank 0 tells; WorldEndedError where a rank fails or time is up.

    Timed steps go round until `seconds` are over, or so many rounds are done.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ROWGRAD_NUM_THREADS"), "1")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(ranks):
            task = {"store": f"{folder}/store", "rank": rank, "ranks": ranks, "seconds": seconds, "rounds": rounds,
                    "repeats": repeats, "checks": list(checks)}  # fmt: skip
            said = open(Path(folder, f"said_{rank}"), "w+")  # noqa: SIM115 - closed with its process below
            words = [sys.executable, "-m", "rowgrad.bench.scale.ranks", json.dumps(task)]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            environment = {**os.environ, **threads, **loopback, **KEEP}
            started.append((subprocess.Popen(words, env=environment, stdout=out, stderr=said, text=True), said))
        clock = threading.Timer(seconds + STARTING, _end, [[process for process, _ in started]])
        clock.start()
        try:
            for line in started[0][0].stdout or ():
                yield json.loads(line)
            for rank, (process, said) in enumerate(started):
                if process.wait() != 0:
                    said.seek(0)
                    last = said.read().strip().rpartition("\n")[2]
                    raise WorldEndedError(f"rank {rank} of {ranks}: {last or f'ended with {process.returncode}'}")
        finally:
            clock.cancel()
            for process, said in started:
                process.kill()
                process.wait()
                said.close()
                if process.stdout:
                    process.stdout.close()


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
