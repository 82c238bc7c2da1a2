"""Named workloads timed in every peer, answers compared before they count."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .cases import ALL, Arrays
from .kinds import KINDS, Kind
from .peer_process import Peer, PeerEndedError
from .progress import Progress
from .traffic import least_bytes

Found = dict[str, dict[str, Any]]  # by peer
Results = dict[str, dict[str, Found]]  # by case, then kind
Show = Callable[[str, str, Found], None]
CLOSE = {"float32": 1e-3}  # how near answers must be, both relative and absolute; 16-bit floats get the other
CLOSE_16_BIT = 3e-2


def steps(cases: list[str], kinds: list[str]) -> dict[str, list[str]]:
    """The kinds that fit each case."""
    return {case: [k for k in kinds if KINDS[k].group == ALL[case].group] for case in cases}


def measure_all(wanted: dict[str, list[str]], peers: list[Peer], rounds: int, repeats: int, show: Show) -> Results:
    """Every case and kind in all peers; `show` is told of each as it is done."""
    results: Results = {}
    progress = Progress(sum(map(len, wanted.values())))
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        for case, kinds in wanted.items():
            arrays = ALL[case].arrays()
            write_arrays(arrays, scratch / "arrays")
            moved, close = least_bytes(arrays, kinds), CLOSE.get(arrays.get("dtype", "float32"), CLOSE_16_BIT)
            del arrays
            _each(peers, lambda p: p.ask("load", folder=str(scratch / "arrays")))
            for kind in kinds:
                progress.begin(f"{case} {kind}")
                found = measure(peers, KINDS[kind], rounds, repeats, scratch, close)
                progress.clear()
                if found:
                    found["rowgrad"]["bytes"] = moved.get(kind)
                    results.setdefault(case, {})[kind] = found
                    show(case, kind, found)
    return results


def write_arrays(arrays: Arrays, folder: Path) -> None:
    """Put a workload where every peer can map it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts = {k: v for k, v in arrays.items() if not isinstance(v, np.ndarray)}
    (folder / "facts.json").write_text(json.dumps(facts))
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            np.save(folder / f"{name}.npy", array)


def measure(peers: list[Peer], kind: Kind, rounds: int, repeats: int, scratch: Path, close: float) -> Found:
    """Seconds of every peer that has this kind; nothing where rowgrad itself has it not."""
    made = _each(peers, lambda p: p.ask("make", kind=kind.asked_of(p.name)))
    for name, answer in made.items():
        if "error" in answer:
            print(f"{name} {kind.name}: {answer['error']}", file=sys.stderr)
    having = [p for p in peers if made.get(p.name, {}).get("has")]
    if not having or having[0].name != "rowgrad":
        return {}
    seconds: dict[str, list[float]] = {p.name: [] for p in having}
    if len(having) > 1 and kind.group != "tiny":
        _each(having, lambda p: p.ask("save", kind=kind.asked_of(p.name), to=str(scratch / f"{p.name}.npz")))
    others = [p.name for p in having[1:] if not p.ended]
    agrees = {name: kind.group == "tiny" or same_answer(scratch, name, close) for name in others}
    for _ in range(rounds):  # round the peers in turn: a slow spell of the machine hits all of them
        timed = _each(having, lambda p: p.ask("time", kind=kind.asked_of(p.name), repeats=repeats))
        for name, answer in timed.items():
            seconds[name] += answer["seconds"]
    _each(having, lambda p: p.ask("drop", kind=kind.asked_of(p.name)))
    return {
        name: {"min": min(s), "median": float(np.median(s)), "agrees": agrees.get(name, True)}
        for name, s in seconds.items()
        if s
    }


def _each(peers: list[Peer], talk: Callable[[Peer], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Talk to every peer; one whose process has ended is left out from then on, and without rowgrad nothing goes on."""
    answers: dict[str, dict[str, Any]] = {}
    for peer in peers:
        try:
            if not peer.ended:
                answers[peer.name] = talk(peer)
        except PeerEndedError as error:
            if peer.name == "rowgrad":
                raise
            print(f"{peer.name} has ended: {error}", file=sys.stderr)
    return answers


def same_answer(scratch: Path, name: str, close: float) -> bool:
    """Whether a peer's results are rowgrad's, up to rounding."""
    with np.load(scratch / "rowgrad.npz") as ours, np.load(scratch / f"{name}.npz") as theirs:
        for key in theirs.files:
            a, b = ours[key].astype(np.float64), theirs[key].astype(np.float64)
            if a.shape != b.shape or not np.allclose(a, b, rtol=close, atol=close):
                return False
    return True
