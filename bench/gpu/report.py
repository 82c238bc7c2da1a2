"""Write the measurements as JSON and as a Markdown table, with a description of the machine."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from cases import ELSEWHERE, Case

HOW = (
    "Milliseconds, medians. `graph`: replays of a CUDA graph of rowgrad's kernels on buffers allocated before; `call`: "
    "the function a user calls, on an idle device, with everything the host does; `queued`: calls queued one behind "
    "the other. `*`: the answer is not the expected one; `?`: it was not compared."
)


def machine(device: torch.device) -> dict[str, Any]:
    """Return the facts of the machine that times depend on."""
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "device": "cpu",
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        facts |= {
            "device": torch.cuda.get_device_name(device),
            "driver": _query_driver("driver_version"),
            "clocks.max.sm": _query_driver("clocks.max.sm"),
            "power.limit": _query_driver("power.limit"),
            "processors": found.multi_processor_count,
            "memory GiB": round(found.total_memory / 2**30, 1),
            "L2 MiB": round(getattr(found, "L2_cache_size", 0) / 2**20, 1),
        }
    return facts


def _query_driver(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return output.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def short_name(facts: dict[str, Any]) -> str:
    """Return the device's name for file names."""
    name_parts = str(facts["device"]).lower().replace("/", " ").split()
    models = [w for w in name_parts if any(c.isdigit() for c in w) and not w.endswith(("gb", "gib"))]
    return models[0] if models else name_parts[-1]


class Report:
    """The results so far; both files are rewritten after every case, so that an interrupted run leaves results."""

    def __init__(self, folder: Path, name: str, facts: dict[str, Any], options: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{short_name(facts)}-{name}.json"
        self.data: dict[str, Any] = {
            "machine": facts, "options": options, "how": HOW, "elsewhere": ELSEWHERE, "bandwidth GB/s": {}, "cases": [],
        }  # fmt: skip

    def add(self, case: Case, dtype: str, found: dict[str, Any]) -> None:
        """Add one case in one dtype."""
        is_same = dtype == "float32" and self.data["options"]["shrink"] == 1
        peers = vars(case.peers) if is_same else {}
        self.data["cases"].append({"case": case.name, "dtype": dtype, "elsewhere ms": peers, **found})
        self.write()

    def write(self) -> None:
        """Write both files."""
        self.path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        self.path.with_suffix(".md").write_text(markdown(self.data), encoding="utf-8")


def markdown(data: dict[str, Any]) -> str:
    """Return three tables: compared with peers, other ways of calling, and relative to the memory bandwidth."""
    facts = ", ".join(f"{k}: {v}" for k, v in data["machine"].items())
    rates = ", ".join(f"{k} {v:.0f}" for k, v in data["bandwidth GB/s"].items())
    options = ", ".join(f"{k}: {v}" for k, v in data["options"].items())
    return "\n".join([
        f"{facts}\n\nMeasured bandwidth, GB/s: {rates}\n\nOptions: {options}\n\n{data['how']} {data['elsewhere']}\n",
        *_against_peers(data["cases"]), "", *_ways_of_calling(data["cases"]), "", *_floors(data["cases"]), "",
    ])  # fmt: skip


def _against_peers(cases: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| case | dtype | kind | graph | cuEmbed elsewhere | ratio | torch queued | torch elsewhere |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        for kind in ("dense", "rows", "forward"):
            if kind not in case["ours"]:
                continue
            ours, elsewhere = case["ours"][kind].get("graph"), case["elsewhere ms"]
            cuembed = elsewhere.get(f"cuembed_{kind}")
            ratio = f"{cuembed / ours['median']:.2f}" if _is_time(ours) and cuembed else ""
            torch_now = case["torch"].get(kind, {}).get("queued")
            mark = _mark(ours, case["ours"][kind].get("answer"))
            lines.append(
                f"| {case['case']} | {case['dtype']} | {kind} | {_cell(ours)}{mark} | {_number(cuembed)} | {ratio} | "
                f"{_cell(torch_now)} | {_number(elsewhere.get(f'torch_{kind}'))} |"
            )
    return lines


def _ways_of_calling(cases: list[dict[str, Any]]) -> list[str]:
    ways = ("queued", "eager", "call", "call queued", "call graph")
    lines = [f"| case | dtype | kind | {' | '.join(ways)} |", "|---|---|---|" + "---:|" * len(ways)]
    for case in cases:
        for kind, by in case["ours"].items():
            accuracy = {way: by.get("call answer" if way.startswith("call") else "answer") for way in ways}
            cells = " | ".join(_cell(by.get(way)) + _mark(by.get(way), accuracy[way]) for way in ways)
            lines.append(f"| {case['case']} | {case['dtype']} | {kind} | {cells} |")
    return lines


def _floors(cases: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| case | dtype | gather ms | GB/s | rows rewritten ms | kind | bytes once | ms at copy speed | bytes named | "
        "ms at copy speed |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for case in cases:
        gather, rewrite = case["floors"]["gather"], case["floors"].get("rewrite")
        rewritten = f"{rewrite['ms']:.3f}" if isinstance(rewrite, dict) else ""
        for kind, by in case["floors"]["bytes"].items():
            lines.append(
                f"| {case['case']} | {case['dtype']} | {gather['ms']:.3f} | {gather['GB/s']:.0f} | {rewritten} | "
                + f"{kind} | "
                + " | ".join(f"{by[k] / 1e6:.1f} MB | {by[f'{k} ms']:.3f}" for k in ("once", "named"))
                + " |"
            )
    return lines


def _is_time(cell: Any) -> bool:
    return isinstance(cell, dict) and "median" in cell


def _cell(cell: Any) -> str:
    return f"{cell['median']:.3f}" if _is_time(cell) else "" if cell is None else str(cell).partition(":")[0]


def _mark(cell: Any, answer: Any) -> str:
    """Return a mark for the accuracy of a timed result."""
    return {"right": "", "wrong": " *"}.get(answer["is"] if answer else "", " ?") if _is_time(cell) else ""


def _number(value: Any) -> str:
    return "" if value is None else f"{value:g}"
