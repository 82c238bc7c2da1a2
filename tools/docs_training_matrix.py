"""The generated parts of docs/how-to/train_pytorch.md: what works with which gradient mode, and the Lightning module.

tests/torch/training_matrix.py tries the cells on a CPU. The CUDA rows state which steps of bench/gpu/steps.py ran.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/torch/training_matrix.json"
LIGHTNING = ROOT / "examples/lightning_recommender.py"
GPU_RECORD = ROOT / "bench/results/h200-steps.json"
MODES = ("dense", "rows", "fused")
# The steps of bench/gpu/steps.py that each mode runs.
GPU_STEPS = {
    "dense": (),
    "rows": ("step rows, RowWiseAdagrad", "step rows, SGD"),
    "fused": ("step fused, RowWiseAdagrad", "step fused, SGD", "26 tables fused, by feature"),
}


def parts() -> dict[str, str]:
    """Return the generated parts of the page."""
    recorded, gpu = (json.loads(path.read_text(encoding="utf-8")) for path in (RECORD, GPU_RECORD))
    module = LIGHTNING.read_text(encoding="utf-8").partition("\n\n\n")[2]
    return {"lightning module": f"```py\n{module}```\n", "training matrix": table(recorded, gpu)}


def table(recorded: list[dict[str, str]], gpu: dict[str, Any]) -> str:
    """Return the table, and the messages that its cells refer to by number."""
    messages: list[str] = []

    def cell(outcome: str) -> str:
        verdict, _, message = outcome.partition(": ")
        if not message:
            return verdict
        if message not in messages:
            messages.append(message)
        return f"{verdict} ({messages.index(message) + 1})"

    lines = ["| feature | `dense` | `rows` | `fused` | note |", "|---|---|---|---|---|"]
    for row in [*recorded, *gpu_rows(gpu)]:
        cells = [row["feature"], *(cell(row[mode]) for mode in MODES), row["note"]]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join([*lines, "", "Messages:", "", *(f"{n}. {quoted(m)}" for n, m in enumerate(messages, 1))]) + "\n"


def quoted(message: str) -> str:
    by_torch = message.startswith("torch: ")
    return ("torch: " if by_torch else "") + f"`{message.removeprefix('torch: ')}`"


def gpu_rows(gpu: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of steps on a GPU. A record proves that a step ran, not what it computed."""
    found = {row["name"]: row for row in gpu["rows"]}
    eager: dict[str, str] = {}
    graph: dict[str, str] = {}
    for mode, names in GPU_STEPS.items():
        errors = {found[name]["graph_error"] for name in names if "graph_error" in found[name]}
        eager[mode] = "ran" if names else "not tested"
        graph[mode] = "ran" if names else "not tested"
        if errors:
            (error,) = errors  # all steps of a mode fail alike
            graph[mode] = f"rejected: {error.partition('(')[2][1:-2]}"
    device = f"{gpu['device']}, torch {gpu['torch']}"
    return [
        {"feature": "CUDA", "note": f"{device}: `SGD`, `RowWiseAdagrad`; `fused` also 26 tables", **eager},
        {"feature": "CUDA graph of a step", "note": f"{device}: the same steps", **graph},
    ]
