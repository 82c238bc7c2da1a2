"""One peer in a process of its own: reads commands as JSON lines, answers each with a JSON line.

{"load": "folder"}           arrays of a workload, written by the driver
{"make": kind}               get the call ready; answers whether this peer has it
{"time": kind, "repeats": n} run it n times; answers seconds of each run
{"save": kind, "to": path}   write the result, so that the driver can compare
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def main(peer_name: str) -> None:
    peer = importlib.import_module(f"peers.{peer_name}")
    arrays: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    answer({"version": peer.VERSION})
    for line in sys.stdin:
        command = json.loads(line)
        if "load" in command:
            calls.clear()
            arrays.clear()
            gc.collect()
            arrays.update(read(Path(command["load"])))
            answer({"loaded": sorted(arrays)})
        elif "make" in command:
            make = peer.KINDS.get(command["make"])
            call = make(arrays) if make else None
            if call is not None:
                calls[command["make"]] = call
                call()  # warm: allocators, caches, compiled graphs
            answer({"has": call is not None})
        elif "time" in command:
            call, seconds = calls[command["time"]], []
            for _ in range(command["repeats"]):
                started = time.perf_counter()
                result = call()
                seconds.append(time.perf_counter() - started)
                del result
            answer({"seconds": seconds})
        elif "save" in command:
            np.savez(command["to"], *map(sampled, peer.to_numpy(calls[command["save"]]())))
            answer({"saved": command["to"]})
        elif "drop" in command:
            calls.pop(command["drop"], None)
            gc.collect()
            answer({"dropped": command["drop"]})


def read(folder: Path) -> dict[str, Any]:
    # Mapped, not read: a table of gigabytes is then in memory once for all peers.
    arrays: dict[str, Any] = {p.stem: np.asarray(np.load(p, mmap_mode="r")) for p in folder.glob("*.npy")}
    return arrays | json.loads((folder / "facts.json").read_text())


def sampled(array: np.ndarray) -> np.ndarray:
    """All of a result, or of a very large one every 97th element."""
    return array if array.size < 20_000_000 else array.reshape(-1)[::97].copy()


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1])
