"""What machine this is, and how fast its memory: the ground every ratio stands on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from rowgrad import _core


def facts() -> dict[str, Any]:
    """Processor, cores, memory, instruction-set level, measured bandwidth."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(_core.memory_limit() / 2**30, 1),
        "level": _core.level(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "copy_gb_per_s": round(copy_bandwidth() / 1e9, 1),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def copy_bandwidth(megabytes: int = 256, repeats: int = 5) -> float:
    """Bytes read and written per second by one thread copying."""
    a = np.ones(megabytes * 2**20 // 8)
    b = np.empty_like(a)
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        np.copyto(b, a)
        best = min(best, time.perf_counter() - started)
    return 2 * a.nbytes / best
