"""The code of docs/reference/cuda.md runs on the device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpu_calls import need_device

need_device()

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/cuda.md"


def test_the_page_about_cuda() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(block, names)
    bags, table = names["bags"].cpu(), names["table"].cpu()
    assert bags.shape == (3, 64)
    assert bags[0].equal((table[3] + table[1]) / 2)
    assert bags[2].equal(table[900])
    assert not bags[1].any()
    assert names["optimizer"].state[names["bag"].weight]["step"].item() == 2
