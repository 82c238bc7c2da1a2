"""Runs named workloads against whichever peers are installed and writes what it saw.

    python bench/run.py                      the six cases and the sparse ops
    python bench/run.py --cases mid,S9 --kinds dense,rows --peers rowgrad,torch

Every peer works in a process of its own; rounds go round the peers in turn, so that a slow spell of the machine
hits all of them. Times are minima and medians over rounds × repeats; answers are compared before they count.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import cases as workloads  # noqa: E402
import machine  # noqa: E402

PEERS = ("rowgrad", "tensorflow", "torch", "fbgemm")
BAG_KINDS = ("forward", "weighted", "dense", "dense_kept", "rows")
SPARSE_KINDS = ("slice", "slice_grad", "fill", "fill_grad", "add", "add_grad")
SAME = {"dense_kept": "dense"}  # the peers' nearest equivalent


class Peer:
    """A worker process and the talk with it."""

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        command = [python, str(HERE / "worker.py"), name]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env=_environment(), **pipes)
        self.version = self._read()["version"]

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):  # libraries print greetings
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.name} ended ({self.process.wait()})")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


def start_peers(names: list[str], peers_python: str) -> list[Peer]:
    found = []
    for name in names:
        python = sys.executable if name == "rowgrad" else peers_python
        try:
            found.append(Peer(name, python))
        except (RuntimeError, FileNotFoundError) as error:
            print(f"  without {name}: {error}; `make bench-peers` installs it", file=sys.stderr)
    return found


def write_arrays(arrays: dict[str, Any], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts = {k: v for k, v in arrays.items() if not isinstance(v, np.ndarray)}
    (folder / "facts.json").write_text(json.dumps(facts))
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            np.save(folder / f"{name}.npy", array)


def measure(peers: list[Peer], kind: str, rounds: int, repeats: int, scratch: Path) -> dict[str, Any]:
    """Seconds of every peer that has this kind, answers compared with rowgrad's."""
    asked = {p.name: kind if p.name == "rowgrad" else SAME.get(kind, kind) for p in peers}
    having = [p for p in peers if p.ask(make=asked[p.name])["has"]]
    if not having or having[0].name != "rowgrad":
        return {}
    agree = {p.name: True for p in having}
    if kind != "tiny":
        for p in having:
            p.ask(save=asked[p.name], to=str(scratch / f"{p.name}.npz"))
        agree = {p.name: same_answer(scratch, p.name) for p in having}
    seconds: dict[str, list[float]] = {p.name: [] for p in having}
    for _ in range(rounds):
        for p in having:
            seconds[p.name] += p.ask(time=asked[p.name], repeats=repeats)["seconds"]
    for p in having:
        p.ask(drop=asked[p.name])
    return {name: {"min": min(s), "median": float(np.median(s)), "agrees": agree[name]} for name, s in seconds.items()}


def same_answer(scratch: Path, name: str) -> bool:
    with np.load(scratch / "rowgrad.npz") as ours, np.load(scratch / f"{name}.npz") as theirs:
        for key in theirs.files:
            a, b = ours[key].astype(np.float64), theirs[key].astype(np.float64)
            if a.shape != b.shape or not np.allclose(a, b, rtol=3e-2, atol=3e-2):
                return False
    return True


def show(case: str, kind: str, found: dict[str, Any]) -> None:
    ours = found["rowgrad"]["min"]
    cells = [f"rowgrad {ours * 1e3:9.3f} ms"]
    for name, f in found.items():
        if name != "rowgrad":
            mark = "" if f["agrees"] else " (differs!)"
            cells.append(f"{name} {f['min'] * 1e3:9.3f} ms  {f['min'] / ours:6.2f}x{mark}")
    print(f"{case:22} {kind:13} " + "   ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join([*(c.name for c in workloads.SIX), "sparse", "tiny"]))
    parser.add_argument("--kinds", default=",".join((*BAG_KINDS, *SPARSE_KINDS, "tiny")))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--peers-python", default=str(HERE.parent / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default=None, help="write results/<name>.json and .csv")
    chosen = parser.parse_args()
    kinds = chosen.kinds.split(",")
    peers = start_peers(chosen.peers.split(","), chosen.peers_python)
    print("  ".join(p.version for p in peers), flush=True)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        for name in chosen.cases.split(","):
            arrays, wanted = workload(name, kinds)
            write_arrays(arrays, scratch / "arrays")
            for p in peers:
                p.ask(load=str(scratch / "arrays"))
            for kind in wanted:
                found = measure(peers, kind, chosen.rounds, chosen.repeats, scratch)
                if found:
                    results.setdefault(name, {})[kind] = found
                    show(name, kind, found)
    if chosen.out:
        write_results(HERE / "results" / chosen.out, results, peers)
    for p in peers:
        p.close()
    summary(results)


def workload(name: str, kinds: list[str]) -> tuple[dict[str, Any], list[str]]:
    if name == "sparse":
        return workloads.sparse_arrays(), [k for k in SPARSE_KINDS if k in kinds]
    if name == "tiny":
        return {}, [k for k in ("tiny",) if k in kinds]
    return workloads.ALL[name].arrays(), [k for k in BAG_KINDS if k in kinds]


def summary(results: dict[str, Any]) -> None:
    """Geometric mean and worst ratio of every kind against every peer."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for by_kind in results.values():
        for kind, found in by_kind.items():
            for peer, f in found.items():
                if peer != "rowgrad":
                    ratios.setdefault((kind, peer), []).append(f["min"] / found["rowgrad"]["min"])
    print("\nhow many times faster than each peer (by minima): geometric mean, worst case")
    for (kind, peer), r in sorted(ratios.items()):
        print(f"  {kind:13} {peer:11} {np.exp(np.mean(np.log(r))):7.2f} {min(r):7.2f}")


def write_results(stem: Path, results: dict[str, Any], peers: list[Peer]) -> None:
    facts = {**machine.facts(), "versions": [p.version for p in peers], "date": date.today().isoformat()}
    stem.parent.mkdir(exist_ok=True)
    titles = {n: workloads.ALL[n].title for n in results if n in workloads.ALL}
    stem.with_suffix(".json").write_text(json.dumps({"facts": facts, "cases": titles, "results": results}, indent=1))
    with open(stem.with_suffix(".csv"), "w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(["case", "kind", "peer", "min_ms", "median_ms", "times_slower_than_rowgrad", "agrees"])
        for case, by_kind in results.items():
            for kind, found in by_kind.items():
                for peer, x in found.items():
                    ratio = round(x["min"] / found["rowgrad"]["min"], 3)
                    times = [round(x["min"] * 1e3, 4), round(x["median"] * 1e3, 4)]
                    rows.writerow([case, kind, peer, *times, ratio, x["agrees"]])


if __name__ == "__main__":
    if platform.system() not in ("Linux", "Darwin"):
        sys.exit("the benchmarks run on Linux and macOS")
    main()
