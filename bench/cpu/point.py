"""One point of a series, measured in its own process: reads a task as JSON, prints the measurement as JSON."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rowgrad import GradBuffer
from rowgrad.raw_ops import OPS

from .cases import Arrays
from .peers import rowgrad as peer
from .worker import Call, seconds_of

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Point:
    """A batch of uniform ids in bags of equal length, by its sizes."""

    ids: int
    rows: int
    cols: int
    length: int = 20

    @property
    def bags(self) -> int:
        """Return the number of bags."""
        return -(-self.ids // self.length)

    def arrays(self, kind: str) -> Arrays:
        """Return only the arrays that the kind needs: only the forward reads a table."""
        rng = np.random.default_rng(3)
        needed: Arrays = {
            "ids": rng.integers(0, self.rows, self.ids, np.int32),
            "segments": np.repeat(np.arange(self.bags, dtype=np.int32), self.length)[: self.ids],
            "rows": self.rows,
            "bags": self.bags,
            "dtype": "float32",
        }
        # Values do not affect the time, but pages must be real: zeros would all share one page.
        shape = (self.rows if kind == "forward" else self.bags, self.cols)
        needed["table" if kind == "forward" else "grad"] = np.ones(shape, np.float32)
        return needed

    def working_set(self, unique: int) -> int:
        """Return the bytes that a call reuses: the rows of table and bags, ids and segment ids."""
        return (unique + self.bags) * self.cols * 4 + 2 * self.ids * 4


def measure(point: Point, kind: str, repeats: int, seconds: float = 5) -> dict[str, Any]:
    """Return extra memory of the first call, the least time of later ones, and the point's sizes."""
    tiny = Point(40, 10, 2)
    ready(kind, tiny.arrays(kind))()
    arrays = point.arrays(kind)
    unique = int(np.count_nonzero(np.bincount(arrays["ids"], minlength=1)))
    call = ready(kind, arrays)
    extra = extra_memory(call, reused=kind == "dense_kept")
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 3 or (len(times) < repeats and time.perf_counter() - started < seconds):
        times.append(seconds_of(call))
    facts = {"kind": kind, "unique": unique, "working_set": point.working_set(unique)}
    return asdict(point) | facts | {"seconds": min(times), "extra_bytes": extra}


def ready(kind: str, x: Arrays) -> Call:
    """Return the call of a kind; a reused gradient buffer has its pages from the start."""
    if kind == "dense_kept":
        buffer = GradBuffer((x["rows"], x["grad"].shape[1]))
        buffer.array.fill(0)
        return lambda: OPS["SparseSegmentMeanGrad"](x["grad"], x["ids"], x["segments"], x["rows"], out=buffer)
    call = peer.KINDS[kind](x)
    if call is None:
        raise ValueError(f"no call of kind {kind!r}")
    return call


def extra_memory(call: Call, reused: bool) -> int | None:
    """Return the peak of resident bytes during a call beyond those before it and its result; None if not reported.

    The pages of a reused result are resident before the call, so they are not subtracted.
    """
    give_back_memory()
    try:
        CLEAR.write_text("5")  # resets the peak
        before = _status("VmRSS")
        result = call()
        peak = _status("VmHWM")
    except OSError:
        return None
    parts = result if isinstance(result, tuple) else (result,)
    return peak - before - (0 if reused else sum(resident(part.nbytes) for part in parts))


def resident(size: int) -> int:
    """Return the memory of an array of this size: from 4 MiB on, whole pages of 2 MiB."""
    return size if size < 4 << 20 else -(-size >> 21) << 21


def give_back_memory() -> None:
    """Return freed memory to the system, so that a call cannot reuse it uncounted."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has this call
        ctypes.CDLL(None).malloc_trim(0)


def _status(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in {STATUS}")


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    print(json.dumps(measure(Point(**task["point"]), task["kind"], task["repeats"])))
