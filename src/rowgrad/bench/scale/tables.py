"""The tables of docs/scale.md and of the results, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .predictions import ALPHAS, CLUSTER, FASTER
from .seen import BYTES_BAR, OWN, TIME_BAR, WALL, Row, bytes_off, pooled_sends_less, time_off
from .timing import TERMS, Machine

LAWS = {0.0: "uniform", 1.05: "zipf 1.05"}


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def checks(rows: Sequence[Row], ranks: int) -> list[str]:
    """The model against one world."""
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
    """What came of the bars; `load` is the machine's load average before anything was run."""
    several = [r for r in rows if r["ranks"] > 1]
    pooled = pooled_sends_less(rows)
    wrong = sum(said != seen for _, said, seen in pooled)
    said = [
        f"- Bytes: at most {max(map(bytes_off, several)):.1%} from the model in {len(several)} runs (bar:"
        f" {BYTES_BAR:.0%}).",
        f"- Pooled mode sends less exactly where the model says so in {len(pooled) - wrong} of {len(pooled)} runs; it"
        f" does in {sum(seen for *_, seen in pooled)}.",
    ]
    for clock, title in ((WALL, "Step time at 2 ranks"), (OWN, "The same by the time of the processes' own work")):
        off = sorted(time_off(r, clock) for r in rows if r["ranks"] == 2)
        inside = sum(t <= TIME_BAR for t in off)
        said.append(
            f"- {title}: within {TIME_BAR:.0%} in {inside} of {len(off)} runs; median {off[len(off) // 2]:.0%}, worst"
            f" {off[-1]:.0%}."
        )
    waiting = sorted(r["ms"] / r["cpu_ms"] for r in rows if r["ranks"] == 2)
    return [
        *said,
        f"- How quiet the machine was: load average {load:.1f} before the run; steps of 2 ranks took"
        f" {waiting[len(waiting) // 2]:.2f} times their processes' own time (median).",
    ]


def parameters(machine: Machine) -> list[str]:
    """The measured numbers, in nanoseconds but for calls and messages."""
    lines = []
    for way, laws in machine.work.items():
        for name, work in laws.items():
            a, b, *per_value = work.seconds
            numbers = [f"{a * 1e6:.0f}", f"{b * 1e9:.1f}", *(f"{t * 1e9:.2f}" for t in per_value)]
            lines.append([f"{way[0]}, {_wire(way[1])}", name, *numbers, f"{work.deviation:.0%}"])
    units = ("µs", *["ns"] * (len(TERMS) - 1))
    head = ["mode, wire", "pass", *(f"{t}, {u}" for t, u in zip(TERMS, units, strict=True)), "largest deviation"]
    link = machine.link
    said = f"An exchange: {link.message * 1e6:.0f} µs a message, {link.byte * 1e9:.2f} ns a byte"
    said += f" ({1e-9 / link.byte:.2f} GB/s), largest deviation {link.deviation:.0%};"
    return [*table(head, lines), "", f"{said} {link.after_work * 1e6:.0f} µs more where it comes after work."]


def mlperf_sizes(predicted: Sequence[Row]) -> list[str]:
    """Memory and bytes of the 26 tables by ranks."""
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
    """Milliseconds of a step, and what takes most of them."""
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
    """Write lines between the page's markers of that name."""
    begin, end = f"<!-- {name}: written by rowgrad bench --scale -->", f"<!-- end of {name} -->"
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
