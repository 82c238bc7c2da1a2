"""One peer in its own process: reads commands as JSON lines, responds to each with a JSON line.

Started as a script by an interpreter that may not have rowgrad; only NumPy and the peer's own library are imported.

{"do": "load", "folder": path}              map the arrays of a workload, written by the driver
{"do": "make", "kind": kind}                prepare a call; returns whether this peer has it
{"do": "time", "kind": kind, "repeats": n}  run it n times; returns the seconds of each run
{"do": "save", "kind": kind, "to": path}    write the result, so that the driver can compare
{"do": "drop", "kind": kind}                release the call and its memory
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PEERS = Path(__file__).parent / "peers"
Call = Callable[[], Any]


class Worker:
    """Stores the arrays and the prepared calls, and executes commands."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.arrays: dict[str, Any] = {}
        self.calls: dict[str, Call] = {}

    def handle(self, do: str, **details: Any) -> dict[str, Any]:
        """Run one command."""
        answer: dict[str, Any] = getattr(self, do)(**details)
        return answer

    def load(self, folder: str) -> dict[str, Any]:
        """Replace the arrays by those of a workload."""
        self.calls.clear()
        self.arrays.clear()
        gc.collect()
        self.arrays.update(read(Path(folder)))
        return {"loaded": sorted(self.arrays)}

    def make(self, kind: str) -> dict[str, Any]:
        """Prepare a call and run it once, to warm allocators, caches and compiled graphs."""
        maker = self.peer.KINDS.get(kind)
        try:
            call = maker(self.arrays) if maker else None
            if call is not None:
                call()
        except Exception as error:  # an unsupported call must not end the run
            return {"has": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        if call is not None:
            self.calls[kind] = call
        return {"has": call is not None}

    def time(self, kind: str, repeats: int) -> dict[str, Any]:
        """Return the seconds of each run."""
        return {"seconds": [seconds_of(self.calls[kind]) for _ in range(repeats)]}

    def save(self, kind: str, to: str) -> dict[str, Any]:
        """Write the result of the call."""
        np.savez(to, *map(sampled, self.peer.to_numpy(self.calls[kind]())))
        return {"saved": to}

    def drop(self, kind: str) -> dict[str, Any]:
        """Release a call."""
        self.calls.pop(kind, None)
        gc.collect()
        return {"dropped": kind}


def seconds_of(call: Call) -> float:
    """Return the time of one run, without freeing the result."""
    started = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - started
    del result
    return seconds


def read(folder: Path) -> dict[str, Any]:
    """Return a workload's arrays, memory-mapped: all peers share one copy of a large table."""
    arrays: dict[str, Any] = {p.stem: np.asarray(np.load(p, mmap_mode="r")) for p in folder.glob("*.npy")}
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return arrays | facts


def sampled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a whole result, or every 97th element of a very large one."""
    return array if array.size < 20_000_000 else array.reshape(-1)[::97].copy()


def load_peer(name: str) -> Any:
    """Load the peer's file as a module, by its path."""
    spec = importlib.util.spec_from_file_location(f"peer_{name}", PEERS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"no peer {name!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def limit_cores(n: int) -> None:
    """Limit this process to n cores before its library counts them; only Linux supports this."""
    if n and sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n])


def main(peer_name: str, threads: str) -> None:
    """Execute commands until stdin ends."""
    limit_cores(int(threads))
    peer = load_peer(peer_name)
    print(json.dumps({"version": peer.VERSION}), flush=True)
    worker = Worker(peer)
    for line in sys.stdin:
        print(json.dumps(worker.handle(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
