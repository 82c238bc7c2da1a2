"""Comparison with other libraries: time each case and kind in every peer, check the results, print and write ratios."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import machine, output
from ..output import Progress, Row
from .cases import ALL, Arrays
from .kinds import KINDS, Kind, least_bytes
from .peer_process import Peer, PeerEndedError, start_peers

Found = dict[str, dict[str, Any]]  # by peer
Results = dict[str, dict[str, Found]]  # by case, then kind
Show = Callable[[str, str, Found], None]
CLOSE = {"float32": 1e-3}  # relative and absolute tolerance of results, by dtype
CLOSE_16_BIT = 3e-2


def run(requested: dict[str, list[str]], names: list[str], peers_python: str, chosen: argparse.Namespace) -> None:
    """Time the requested kinds of each case in these peers."""
    facts = machine.facts(chosen.threads)
    copy = facts["copy_gb_per_s"]
    peers = start_peers(names, peers_python, chosen.threads)
    there = [p.name for p in peers]
    facts["versions"] = [p.version for p in peers]
    print("  ".join(facts["versions"]), f"\ncopying {copy} GB/s on {facts['threads']} threads\n")
    print(header(there), flush=True)

    def show(case: str, kind: str, found: Found) -> None:
        print(line(case, kind, found, there, copy), flush=True)

    try:
        found = measure_all(requested, peers, chosen.rounds, chosen.repeats, show)
    finally:
        for p in peers:
            p.close()
    print(summary(found))
    if chosen.out and found:
        stem = output.place(chosen.out)
        parts = {"cases": titles(found), "results": found}
        written = output.write(stem, facts, parts, list(peer_rows(found, copy)))
        output.draw_if_possible(chosen.plot, written, lambda: draw_ratios(stem, found))


def steps(cases: list[str], kinds: list[str]) -> dict[str, list[str]]:
    """Return the kinds that fit each case."""
    return {case: [k for k in kinds if KINDS[k].group == ALL[case].group] for case in cases}


def measure_all(requested: dict[str, list[str]], peers: list[Peer], rounds: int, repeats: int, show: Show) -> Results:
    """Measure every case and kind in all peers; call `show` with each result."""
    results: Results = {}
    progress = Progress(sum(map(len, requested.values())))
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        for case, kinds in requested.items():
            arrays = ALL[case].arrays()
            write_arrays(arrays, scratch / "arrays")
            moved, close = least_bytes(arrays, kinds), CLOSE.get(arrays.get("dtype", "float32"), CLOSE_16_BIT)
            del arrays
            _each(peers, lambda p: p.send("load", folder=str(scratch / "arrays")))
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
    """Write a workload's arrays to files that every peer can map."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts = {k: v for k, v in arrays.items() if not isinstance(v, np.ndarray)}
    (folder / "facts.json").write_text(json.dumps(facts))
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            np.save(folder / f"{name}.npy", array)


def measure(peers: list[Peer], kind: Kind, rounds: int, repeats: int, scratch: Path, close: float) -> Found:
    """Return the seconds of every peer that has this kind; empty if rowgrad does not have it."""
    prepared = _each(peers, lambda p: p.send("make", kind=kind.for_peer(p.name)))
    for name, answer in prepared.items():
        if "error" in answer:
            print(f"{name} {kind.name}: {answer['error']}", file=sys.stderr)
    having = [p for p in peers if prepared.get(p.name, {}).get("has")]
    if not having or having[0].name != "rowgrad":
        return {}
    seconds: dict[str, list[float]] = {p.name: [] for p in having}
    if len(having) > 1 and kind.group != "tiny":
        _each(having, lambda p: p.send("save", kind=kind.for_peer(p.name), to=str(scratch / f"{p.name}.npz")))
    others = [p.name for p in having[1:] if not p.ended]
    agrees = {name: kind.group == "tiny" or same_result(scratch, name, close) for name in others}
    for _ in range(rounds):  # peers take turns, so a slow phase of the machine affects all of them
        timed = _each(having, lambda p: p.send("time", kind=kind.for_peer(p.name), repeats=repeats))
        for name, answer in timed.items():
            seconds[name] += answer["seconds"]
    _each(having, lambda p: p.send("drop", kind=kind.for_peer(p.name)))
    return {
        name: {"min": min(s), "median": float(np.median(s)), "agrees": agrees.get(name, True)}
        for name, s in seconds.items()
        if s
    }


def _each(peers: list[Peer], request: Callable[[Peer], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Send a request to every peer; skip peers whose process has ended, but raise if that is rowgrad's own."""
    answers: dict[str, dict[str, Any]] = {}
    for peer in peers:
        try:
            if not peer.ended:
                answers[peer.name] = request(peer)
        except PeerEndedError as error:
            if peer.name == "rowgrad":
                raise
            print(f"{peer.name} has ended: {error}", file=sys.stderr)
    return answers


def same_result(scratch: Path, name: str, close: float) -> bool:
    """Return whether a peer's results equal rowgrad's within the tolerance."""
    with np.load(scratch / "rowgrad.npz") as ours, np.load(scratch / f"{name}.npz") as theirs:
        for key in theirs.files:
            a, b = ours[key].astype(np.float64), theirs[key].astype(np.float64)
            if a.shape != b.shape or not np.allclose(a, b, rtol=close, atol=close):
                return False
    return True


# -- Report -----------------------------------------------------------------------------------------------------------


def header(peers: list[str]) -> str:
    """Return the table's first line; `of copy` is the rate as a fraction of the machine's copy bandwidth."""
    ours = f"{'case':17} {'kind':14} {'rowgrad ms':>11} {'GB/s':>7} {'of copy':>8}"
    return ours + "".join(f"{name + ' ms':>14} {'ratio':>8}" for name in peers if name != "rowgrad")


def line(case: str, kind: str, found: Found, peers: list[str], copy_gb_per_s: float) -> str:
    """Return one case and kind: milliseconds, rate, and how many times longer every peer took (* if results differ)."""
    ours = found["rowgrad"]["min"]
    rate = gb_per_s(found)
    rates = f"{'':7} {'':8}" if rate is None else f"{rate:7.1f} {rate / copy_gb_per_s:8.2f}"
    cells = []
    for name in peers[1:]:
        if name in found:
            theirs, mark = found[name]["min"], " " if found[name]["agrees"] else "*"
            cells.append(f"{theirs * 1e3:14.3f} {theirs / ours:7.2f}{mark}")
        else:
            cells.append(f"{'':14} {'-':>7} ")
    return f"{case:17} {kind:14} {ours * 1e3:11.3f} {rates}" + "".join(cells).rstrip()


def gb_per_s(found: Found) -> float | None:
    """Return rowgrad's rate over the least bytes of the call; None if there is no formula."""
    ours = found["rowgrad"]
    return None if ours.get("bytes") is None else float(ours["bytes"] / ours["min"] / 1e9)


def summary(results: Results) -> str:
    """Return geometric mean and worst ratio of every kind and peer, and the cost of fresh pages."""
    lines = []
    if faster := ratios(results):
        lines.append("\nhow many times faster than each peer (by minima): geometric mean, worst case")
        for (kind, peer), r in sorted(faster.items()):
            lines.append(f"  {kind:14} {peer:11} {geometric_mean(r):7.2f} {min(r):7.2f}")
    if pages := page_ratios(results):
        lines.append("\ndense by (page_touch + rows): near 1 a fresh table costs its pages and nothing more")
        lines += [f"  {case:26} {ratio:7.2f}" for case, ratio in pages.items()]
    return "\n".join(lines)


def ratios(results: Results) -> dict[tuple[str, str], list[float]]:
    """Return how many times longer the peer took in each case, by kind and peer."""
    found: dict[tuple[str, str], list[float]] = {}
    for by_kind in results.values():
        for kind, by_peer in by_kind.items():
            for peer, f in by_peer.items():
                if peer != "rowgrad":
                    found.setdefault((kind, peer), []).append(f["min"] / by_peer["rowgrad"]["min"])
    return found


def page_ratios(results: Results) -> dict[str, float]:
    """Return the time of the fresh dense gradient divided by that of touching its pages and computing its rows."""
    found = {}
    for case, by_kind in results.items():
        if {"dense", "rows", "page_touch"} <= by_kind.keys():
            dense, rows, touch = (by_kind[k]["rowgrad"]["min"] for k in ("dense", "rows", "page_touch"))
            found[case] = dense / (touch + rows)
    return found


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def titles(results: Results) -> dict[str, str]:
    """Return the cases' sizes as text."""
    return {name: ALL[name].title for name in results}


def peer_rows(results: Results, copy_gb_per_s: float) -> Iterator[Row]:
    """Yield one line per case, kind and peer."""
    for case, by_kind in results.items():
        for kind, found in by_kind.items():
            for peer, x in found.items():
                rate = gb_per_s(found) if peer == "rowgrad" else None
                yield {
                    "case": case,
                    "kind": kind,
                    "peer": peer,
                    "min_ms": round(x["min"] * 1e3, 4),
                    "median_ms": round(x["median"] * 1e3, 4),
                    "times_slower_than_rowgrad": round(x["min"] / found["rowgrad"]["min"], 3),
                    "agrees": x["agrees"],
                    "gb_per_s": "" if rate is None else round(rate, 2),
                    "of_copy_bandwidth": "" if rate is None else round(rate / copy_gb_per_s, 3),
                }


def draw_ratios(stem: Path, results: Results) -> list[Path]:
    """Draw bars of the speed ratio to each peer by kind, and a dot for every case."""
    found = ratios(results)
    if not found:
        return []
    kinds = list(dict.fromkeys(kind for by_kind in results.values() for kind in by_kind if _any_peer(found, kind)))
    peers = sorted({peer for _, peer in found})
    figure = output.new_figure(max(6.0, 1.2 * len(kinds)), 4.5)
    axes = figure.subplots()
    width = 0.8 / len(peers)
    for place, peer in enumerate(peers):
        for at, kind in enumerate(kinds):
            if (kind, peer) in found:
                x, values = at + (place - (len(peers) - 1) / 2) * width, found[kind, peer]
                # A logarithmic axis has no zero: bars start at 1, where both are equally fast.
                axes.bar(x, geometric_mean(values) - 1, width * 0.9, bottom=1, color=f"C{place}")
                axes.plot([x] * len(values), values, ".", color="black", markersize=3)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right")
    axes.set_ylabel("times faster than the peer")
    _legend(axes, peers)
    return [output.save_figure(figure, stem.with_name(f"{stem.name}_ratios.svg"))]


def _any_peer(found: dict[tuple[str, str], list[float]], kind: str) -> bool:
    return any(k == kind for k, _ in found)


def _legend(axes: Any, names: list[str]) -> None:
    from matplotlib.patches import Patch

    axes.legend(handles=[Patch(color=f"C{i}", label=name) for i, name in enumerate(names)])
