"""`bench/run.py --scale`: run worlds, compare the model with them, predict; tables, files and plot."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rowgrad as rg

from .. import machine, output
from ..output import Progress, Row
from .timing import ALPHAS, CLUSTER, FASTER, TERMS, Machine, predict
from .workloads import CHECKS, PREDICTING, WORLDS
from .world import BYTES_BAR, OWN, TIME_BAR, WALL, World, bytes_off, compare, listen, pooled_sends_less, time_off

SECONDS = {1: 6.0, 2: 65.0, 4: 12.0}  # of timed steps; times are compared in the world of two
ROUNDS = {1: 3, 2: 30, 4: 3}
REPEATS = 3
PAGE = Path("docs", "explanation", "scale.md")
VERDICTS = "What came of it"


def run(chosen: argparse.Namespace) -> None:
    """Measure, print, and write with --out."""
    load = os.getloadavg()[0]
    progress = Progress(sum(ROUNDS.values()) + len(WORLDS))
    worlds = {ranks: measure(ranks, progress) for ranks in WORLDS}
    progress.clear()
    laws = {ranks: world.machine() for ranks, world in worlds.items()}
    rows = [row for world in worlds.values() for row in compare(world)]
    predicted = predict(laws[PREDICTING])
    parts = sections(rows, laws[PREDICTING], predicted, load)
    for title, lines in parts.items():
        print("\n".join([f"## {title}", "", *lines, ""]))
    if chosen.out:
        write(chosen, rows, laws, predicted, parts, load)


def measure(ranks: int, progress: Progress) -> World:
    """Measure one world until its rounds are done or its time is over."""
    world, last = World(ranks), progress.done + 1 + ROUNDS[ranks]
    progress.begin(f"ranks: {ranks}; start, bytes")
    for line in listen(ranks, [w.name for w in CHECKS], SECONDS[ranks], ROUNDS[ranks], REPEATS):
        if line["what"] == "round":
            progress.begin(f"ranks: {ranks}; steps in turn")
        world.add(line)
    progress.done = last
    return world


def sections(rows: list[Row], here: Machine, predicted: list[Row], load: float) -> dict[str, list[str]]:
    """Return every table under its title."""
    found = {VERDICTS: verdicts(rows, load)}
    found |= {f"Model and runs, ranks: {n}": checks(rows, n) for n in sorted({r["ranks"] for r in rows})}
    found["Measured numbers, 2 ranks at work"] = parameters(here)
    found["MLPerf tables: bytes of a step and rank, MB, and memory of a rank"] = mlperf_sizes(predicted)
    for alpha in ALPHAS:
        title = f"MLPerf tables: milliseconds of a step, and what takes most of them, {LAWS[alpha]}"
        found[title] = mlperf_times(predicted, alpha)
    return found


def write(
    chosen: argparse.Namespace, rows: list[Row], laws: dict[int, Machine], predicted: list[Row], parts: Any, load: float
) -> None:
    """Write JSON, CSV, Markdown and a drawing; if in bench/results/scale, update docs/explanation/scale.md too."""
    stem = output.place(chosen.out)
    facts: dict[str, Any] = {**machine.facts(1), "load_average": load, "versions": [f"rowgrad {rg.__version__}"]}
    numbers = {
        str(ranks): {
            "work": {f"{mode} {wire}": {p: asdict(w) for p, w in by.items()} for (mode, wire), by in m.work.items()},
            "link": asdict(m.link),
        }
        for ranks, m in laws.items()
    }
    written = output.write(stem, facts, {"checks": rows, "numbers": numbers, "mlperf": predicted}, rows)
    page = stem.with_name(stem.name + ".md")
    summary = f"{facts['processor']}, {facts['cores']} cores, one thread a rank; `bench/run.py --scale`."
    text = [f"# Sharded tables: model and runs\n\n{summary}"]
    text += ["\n".join([f"## {title}", "", *lines]) for title, lines in parts.items()]
    page.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    if stem == Path("bench", "results", "scale") and PAGE.exists():
        two = checks(rows, 2)
        put(PAGE, "runs", [*parts[VERDICTS], "", *two])
        put(PAGE, "numbers", parameters(laws[2]))
        put(PAGE, "sizes", mlperf_sizes(predicted))
        for alpha in ALPHAS:
            put(PAGE, f"times, {LAWS[alpha]}", mlperf_times(predicted, alpha))
        written.append(PAGE)
    output.draw_if_possible(chosen.plot, [*written, page], lambda: draw_scale(stem, predicted))


# -- Tables in Markdown, and the drawing ------------------------------------------------------------------------------

LAWS = {0.0: "uniform", 1.05: "zipf 1.05"}


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def checks(rows: Sequence[Row], ranks: int) -> list[str]:
    """Compare the model with one world."""
    lines = []
    for r in rows:
        if r["ranks"] == ranks:
            cells = [f"{r['model_bytes']:,}", f"{r['bytes']:,}"]
            for name in ("ms", "cpu_ms"):
                model, found = r[f"model_{name}"], r[name]
                cells += [f"{model:.2f}", f"{found:.2f}", f"{model / found:.2f}"]
            lines.append([r["workload"], _way(r), *cells])
    head = ["workload", "mode, wire", "bytes, model", "bytes", "ms, model", "ms", "model / ms"]
    return table([*head, "CPU ms, model", "CPU ms", "model / CPU ms"], lines)


def verdicts(rows: Sequence[Row], load: float) -> list[str]:
    """Return whether each target was met; `load` is the machine's load average before the run."""
    multi_rank = [r for r in rows if r["ranks"] > 1]
    pooled = pooled_sends_less(rows)
    wrong = sum(predicted != measured for _, predicted, measured in pooled)
    lines = [
        f"- Bytes: at most {max(map(bytes_off, multi_rank)):.1%} from the model in {len(multi_rank)} runs (bar:"
        f" {BYTES_BAR:.0%}).",
        f"- Pooled mode sends less exactly where the model says so in {len(pooled) - wrong} of {len(pooled)} runs; it"
        f" does in {sum(measured for *_, measured in pooled)}.",
    ]
    for clock, title in ((WALL, "Step time at 2 ranks"), (OWN, "The same by the time of the processes' own work")):
        off = sorted(time_off(r, clock) for r in rows if r["ranks"] == 2)
        inside = sum(t <= TIME_BAR for t in off)
        lines.append(
            f"- {title}: within {TIME_BAR:.0%} in {inside} of {len(off)} runs; median {off[len(off) // 2]:.0%}, worst"
            f" {off[-1]:.0%}."
        )
    waiting = sorted(r["ms"] / r["cpu_ms"] for r in rows if r["ranks"] == 2)
    return [
        *lines,
        f"- How quiet the machine was: load average {load:.1f} before the run; steps of 2 ranks took"
        f" {waiting[len(waiting) // 2]:.2f} times their processes' own time (median).",
    ]


def parameters(machine: Machine) -> list[str]:
    """Return the measured numbers, in nanoseconds except for calls and messages."""
    lines = []
    for way, laws in machine.work.items():
        for name, work in laws.items():
            a, b, *per_value = work.seconds
            numbers = [f"{a * 1e6:.0f}", f"{b * 1e9:.1f}", *(f"{t * 1e9:.2f}" for t in per_value)]
            lines.append([f"{way[0]}, {_wire(way[1])}", name, *numbers, f"{work.deviation:.0%}"])
    units = ("µs", *["ns"] * (len(TERMS) - 1))
    head = ["mode, wire", "pass", *(f"{t}, {u}" for t, u in zip(TERMS, units, strict=True)), "largest deviation"]
    link = machine.link
    exchange = f"An exchange: {link.message * 1e6:.0f} µs a message, {link.byte * 1e9:.2f} ns a byte"
    exchange += f" ({1e-9 / link.byte:.2f} GB/s), largest deviation {link.deviation:.0%};"
    return [*table(head, lines), "", f"{exchange} {link.after_work * 1e6:.0f} µs more where it comes after work."]


def mlperf_sizes(predicted: Sequence[Row]) -> list[str]:
    """Return memory and bytes of the 26 tables by ranks."""
    found = {(r["alpha"], r["mode"], r["wire_bytes"], r["ranks"]): r for r in predicted}
    lines = []
    for ranks in sorted({r["ranks"] for r in predicted}):
        one = found[0.0, "exact", 4, ranks]
        cells = [f"{ranks:,}", _gib(one["memory_table"] + one["memory_state"]), _gib(one["memory_buffers"])]
        for alpha in ALPHAS:
            ways = [found[alpha, mode, wire, ranks] for mode, wire in (("exact", 4), ("pooled", 4), ("pooled", 2))]
            cells += [_mb(w["bytes"]) for w in ways] + [_mb(ways[0]["bytes_busiest"])]
        lines.append([*cells, _mb(one["bytes_link"])])
    laws = [f"{LAWS[a]}: {what}" for a in ALPHAS for what in ("exact", "pooled", "pooled, bfloat16", "exact, busiest")]
    return table(["ranks", "part, GiB", "buffers, GiB", *laws, "uniform: exact, a link"], lines)


def mlperf_times(predicted: Sequence[Row], alpha: float) -> list[str]:
    """Return milliseconds of a step and its largest part."""
    found = {(r["mode"], r["wire_bytes"], r["ranks"]): r for r in predicted if r["alpha"] == alpha}
    lines = []
    for ranks in sorted({r["ranks"] for r in predicted}):
        ways = [found[mode, 4, ranks] for mode in ("exact", "pooled")]
        cells = [f"{w[f'{m}_ms']:,.0f} {w[f'{m}_largest']}" for m in ("here", "cluster", "faster") for w in ways]
        lines.append([f"{ranks:,}", *cells])
    gigabits = 8e-9 / CLUSTER.byte
    names = ("this machine", f"{gigabits:.0f} Gb/s", f"{gigabits:.0f} Gb/s, work {FASTER} times faster")
    return table(["ranks", *(f"{n}: {mode}" for n in names for mode in ("exact", "pooled"))], lines)


def put(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace the lines between the page's markers of that name."""
    begin, end = f"<!-- {name}: written by bench/run.py --scale -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no place for {name}")
    page.write_text("\n".join([before + begin, "", *lines, "", end + after]), encoding="utf-8")


def _way(row: Row) -> str:
    return f"{row['mode']}, {_wire(row['wire_bytes'])}"


def _wire(size: int) -> str:
    return "bfloat16" if size == 2 else "float32"


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g}" if size >= 2**20 * 10 else f"{size / 2**30:.2g}"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f}" if size >= 1e7 else f"{size / 1e6:.2g}"


SCALED = {"here": "this machine", "cluster": "200 Gb/s", "faster": "200 Gb/s, faster"}  # machines of predictions


def draw_scale(stem: Path, predicted: list[dict[str, Any]]) -> list[Path]:
    """Draw predicted milliseconds of a step by ranks: a panel per law of ids, a curve per mode and machine."""
    figure = output.new_figure(9, 4.5)
    alphas = sorted({p["alpha"] for p in predicted})
    for axes, alpha in zip(figure.subplots(1, len(alphas), squeeze=False, sharey=True)[0], alphas, strict=True):
        for mode, line in (("exact", "-"), ("pooled", "--")):
            for place, (name, title) in enumerate(SCALED.items()):
                rows = [p for p in predicted if (p["alpha"], p["mode"], p["wire_bytes"]) == (alpha, mode, 4)]
                points = [(p["ranks"], p[f"{name}_ms"]) for p in rows]
                axes.plot(*zip(*points, strict=True), f".{line}", color=f"C{place}", label=f"{title}, {mode}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"zipf {alpha:g}" if alpha else "uniform")
        axes.set_xlabel("ranks")
        axes.grid(alpha=0.3)
    figure.supylabel("ms")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(SCALED), fontsize="small")
    return [output.save_figure(figure, stem.with_name(f"{stem.name}_step.svg"))]
