"""The generated parts of docs/how-to/train_pytorch.md: what works with which gradient mode, and the Lightning module.

tests/torch/training_matrix.py tries the cells, on a CPU in every run of the tests, on a GPU where there is one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/torch/training_matrix.json"
LIGHTNING = ROOT / "examples/lightning_recommender.py"
CUDA_RECORD = RECORD.with_stem("training_matrix_cuda")
MODES = ("dense", "rows", "fused")


def parts() -> dict[str, str]:
    """Return the generated parts of the page."""
    module = LIGHTNING.read_text(encoding="utf-8").partition("\n\n\n")[2]
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    cuda = json.loads(CUDA_RECORD.read_text(encoding="utf-8")) if CUDA_RECORD.exists() else None
    return {"lightning module": f"```py\n{module}```\n", "training matrix": table(recorded, cuda)}


def table(recorded: list[dict[str, str]], cuda: dict[str, Any] | None) -> str:
    """Return the table, and the messages that its cells refer to by number."""
    messages: list[str] = []

    def cell(outcome: str) -> str:
        verdict, _, message = outcome.partition(": ")
        if verdict == "failed":  # the message is a traceback
            return "**failed**"
        if not message:
            return verdict
        if message not in messages:
            messages.append(message)
        return f"{verdict} ({messages.index(message) + 1})"

    def on_cuda(here: dict[str, str], there: dict[str, str]) -> str:
        differing = [f"`{mode}`: {cell(there[mode])}" for mode in MODES if here.get(mode) != there[mode]]
        return ", ".join(differing) or "the same"

    intro = "There is no record of CUDA yet."
    rows = {row["feature"]: {"here": row, "note": row["note"]} for row in recorded}
    header = ["feature", *(f"`{mode}`" for mode in MODES), "note"]
    if cuda is not None:
        intro = (
            f"On CUDA: {cuda['device']}, torch {cuda['torch']}; one process and NCCL for DDP and FSDP. Values are "
            "compared up to rounding there, because torch's layers add in another order."
        )
        header.insert(4, "on CUDA")
        for row in cuda["rows"]:
            rows.setdefault(row["feature"], {"here": {}, "note": row["note"]})["there"] = row
    lines = [intro, "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for feature, row in rows.items():
        cells = [feature, *(cell(row["here"][mode]) if row["here"] else "" for mode in MODES)]
        if cuda is not None:
            cells.append(on_cuda(row["here"], row["there"]))
        lines.append(f"| {' | '.join([*cells, row['note']])} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join([*lines, "", "Messages:", "", *(f"{n}. {quoted(m)}" for n, m in enumerate(messages, 1))]) + "\n"


def quoted(message: str) -> str:
    by_torch = message.startswith("torch: ")
    return ("torch: " if by_torch else "") + f"`{message.removeprefix('torch: ')}`"
