"""What was measured, as a table for people and a summary."""

from __future__ import annotations

import math

from .measure import Found, Results


def header(peers: list[str]) -> str:
    """The table's first line; `of copy` is the rate as a fraction of the machine's copying."""
    ours = f"{'case':17} {'kind':14} {'rowgrad ms':>11} {'GB/s':>7} {'of copy':>8}"
    return ours + "".join(f"{name + ' ms':>14} {'ratio':>8}" for name in peers if name != "rowgrad")


def line(case: str, kind: str, found: Found, peers: list[str], copy_gb_per_s: float) -> str:
    """One case and kind: milliseconds, rate, and how many times longer every peer took (* where answers differ)."""
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
    """rowgrad's rate over the least bytes of the call, where there is a formula."""
    ours = found["rowgrad"]
    return None if ours.get("bytes") is None else float(ours["bytes"] / ours["min"] / 1e9)


def summary(results: Results) -> str:
    """Geometric mean and worst ratio of every kind against every peer, and what fresh pages cost."""
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
    """By kind and peer, how many times longer the peer took in each case."""
    found: dict[tuple[str, str], list[float]] = {}
    for by_kind in results.values():
        for kind, by_peer in by_kind.items():
            for peer, f in by_peer.items():
                if peer != "rowgrad":
                    found.setdefault((kind, peer), []).append(f["min"] / by_peer["rowgrad"]["min"])
    return found


def page_ratios(results: Results) -> dict[str, float]:
    """The fresh dense gradient against touching its pages and giving its rows, by case."""
    found = {}
    for case, by_kind in results.items():
        if {"dense", "rows", "page_touch"} <= by_kind.keys():
            dense, rows, touch = (by_kind[k]["rowgrad"]["min"] for k in ("dense", "rows", "page_touch"))
            found[case] = dense / (touch + rows)
    return found


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))
