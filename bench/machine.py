"""Facts of the machine, and its measured copy bandwidth."""

from __future__ import annotations

import os
import platform
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rowgrad import _core

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHES = {2: 1 << 20, 3: 32 << 20}  # if the system does not report them


def facts(threads: int | None = None) -> dict[str, Any]:
    """Return processor, cores, caches, memory, instruction-set level, threads, measured bandwidth."""
    cores = _core.num_threads() if threads is None else threads
    sizes = cache_sizes()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": cores,
        "l2_kib": sizes[2] >> 10,
        "l3_kib": sizes[3] >> 10,
        "memory_gib": round(_core.memory_limit() / 2**30, 1),
        "level": _core.level(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "copy_gb_per_s": round(copy_bandwidth(cores) / 1e9, 1),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def cache_sizes(folder: Path = CACHES) -> dict[int, int]:
    """Return the bytes of the L2 and L3 cache of the first core."""
    found = dict(USUAL_CACHES)
    for index in folder.glob("index*"):
        level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if level in found and match:
            found[level] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return found


def copy_bandwidth(threads: int, megabytes: int = 256, repeats: int = 5) -> float:
    """Return the bytes read and written per second by threads that each copy their share."""
    source = np.ones(megabytes * 2**20 // 8)
    target = np.empty_like(source)
    shares = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            started = time.perf_counter()
            list(pool.map(lambda share: np.copyto(*share), shares))  # NumPy copies without the GIL
            best = min(best, time.perf_counter() - started)
    return 2 * source.nbytes / best
