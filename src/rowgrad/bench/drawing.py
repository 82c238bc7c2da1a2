"""Results as SVG, the same bytes for the same numbers; matplotlib is loaded only when something is drawn."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .growth import GROWING, KINDS, Measured
from .measure import Results
from .report import geometric_mean, ratios

# Names inside the file come from a fixed salt instead of chance; letters stay letters.
STEADY: Any = {"svg.hashsalt": "rowgrad", "svg.fonttype": "none"}


SCALED = {"here": "this machine", "cluster": "200 Gb/s", "faster": "200 Gb/s, faster"}  # machines of predictions


def draw_if_possible(asked: bool, written: list[Path], draw: Callable[[], list[Path]]) -> None:
    """Draw where matplotlib is installed, hint at it where a drawing was asked for, and say what was written."""
    if importlib.util.find_spec("matplotlib"):
        written = [*written, *draw()]
    elif asked:
        print("no plots: `pip install 'rowgrad[bench]'` brings matplotlib, which draws them", file=sys.stderr)
    print(f"written: {', '.join(map(str, written))}", file=sys.stderr)


def draw_ratios(stem: Path, results: Results) -> list[Path]:
    """Bars of how many times faster than each peer, by kind, a dot for every case."""
    found = ratios(results)
    if not found:
        return []
    kinds = list(dict.fromkeys(kind for by_kind in results.values() for kind in by_kind if _any_peer(found, kind)))
    peers = sorted({peer for _, peer in found})
    figure = _figure(max(6.0, 1.2 * len(kinds)), 4.5)
    axes = figure.subplots()
    width = 0.8 / len(peers)
    for place, peer in enumerate(peers):
        for at, kind in enumerate(kinds):
            if (kind, peer) in found:
                x, values = at + (place - (len(peers) - 1) / 2) * width, found[kind, peer]
                # On a logarithmic axis a bar has no zero to stand on: it begins at 1, where both are equally fast.
                axes.bar(x, geometric_mean(values) - 1, width * 0.9, bottom=1, color=f"C{place}")
                axes.plot([x] * len(values), values, ".", color="black", markersize=3)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right")
    axes.set_ylabel("times faster than the peer")
    _legend(axes, peers)
    return [_save(figure, stem.with_name(f"{stem.name}_ratios.svg"))]


def draw_growth(stem: Path, grown: dict[str, list[Measured]]) -> list[Path]:
    """A curve of time for every kind, a panel for every series."""
    figure = _figure(4.5 * len(grown), 4)
    for axes, (series, measured) in zip(figure.subplots(1, len(grown), squeeze=False)[0], grown.items(), strict=True):
        name = GROWING[series]
        for kind in KINDS:
            points = [(m[name], m["seconds"] * 1e3) for m in measured if m["kind"] == kind]
            axes.plot(*zip(*points, strict=True), ".-", label=kind)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel({"ids": "ids", "rows": "rows of the table", "cols": "columns"}[name])
        axes.set_ylabel("ms")
        axes.grid(alpha=0.3)
        axes.legend()
    return [_save(figure, stem.with_name(f"{stem.name}_growth.svg"))]


def draw_scale(stem: Path, predicted: list[dict[str, Any]]) -> list[Path]:
    """Predicted milliseconds of a step by ranks: a panel for each law of ids, a curve for each mode and machine."""
    figure = _figure(9, 4.5)
    alphas = sorted({p["alpha"] for p in predicted})
    for axes, alpha in zip(figure.subplots(1, len(alphas), squeeze=False, sharey=True)[0], alphas, strict=True):
        for mode, line in (("exact", "-"), ("pooled", "--")):
            for place, (name, title) in enumerate(SCALED.items()):
                wanted = [p for p in predicted if (p["alpha"], p["mode"], p["wire_bytes"]) == (alpha, mode, 4)]
                points = [(p["ranks"], p[f"{name}_ms"]) for p in wanted]
                axes.plot(*zip(*points, strict=True), f".{line}", color=f"C{place}", label=f"{title}, {mode}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"zipf {alpha:g}" if alpha else "uniform")
        axes.set_xlabel("ranks")
        axes.grid(alpha=0.3)
    figure.supylabel("ms")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(SCALED), fontsize="small")
    return [_save(figure, stem.with_name(f"{stem.name}_step.svg"))]


def _any_peer(found: dict[tuple[str, str], list[float]], kind: str) -> bool:
    return any(k == kind for k, _ in found)


def _legend(axes: Any, names: list[str]) -> None:
    from matplotlib.patches import Patch

    axes.legend(handles=[Patch(color=f"C{i}", label=name) for i, name in enumerate(names)])


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    import matplotlib

    with matplotlib.rc_context(STEADY):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path
