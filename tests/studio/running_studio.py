"""A studio on a folder of its own, with requests as a browser sends them: everything goes through JSON."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowgrad.graph import Block, End, Page
from rowgrad.studio import verbs
from rowgrad.studio.runs import Runs
from rowgrad.studio.studio import Studio

PAGES = Path(__file__).parents[2] / "examples" / "pages"


class Asking:
    """A studio, and how to ask it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.studio = Studio(root)
        self.studio.runs.close()
        self.studio.runs = Runs(self.studio.hub, root)
        self.listener = self.studio.hub.listen("w")

    def ask(self, verb: str, given: dict[str, Any] | None = None, body: bytes = b"", **more: Any) -> Any:
        sent = json.loads(json.dumps({**(given or {}), **more}))
        made = verbs.answer(self.studio, verb, sent, body)
        return json.loads(json.dumps(made, allow_nan=False))

    def put(self, page: Page) -> str:
        """Save a page, whatever was there before."""
        name = page.name
        there = {p["name"]: p["revision"] for p in self.studio.folder.pages()}
        if name not in there:
            return str(self.ask("new", {"name": name, "page": self.studio.pool.write_page(page)})["revision"])
        tree = self.studio.pool.write_page(page)
        return str(self.ask("save", {"name": name, "base": there[name], "page": tree, "window": "w"})["revision"])

    def example(self, name: str) -> str:
        """Have one of the examples in the folder; its name."""
        path = next(PAGES.glob(f"{name}*.json"))
        shutil.copy(path, self.root)
        arrays = path.with_name(path.name + ".arrays")
        if arrays.is_dir():
            shutil.copytree(arrays, self.root / arrays.name)
        return path.stem

    def cells(self, name: str, block: str, pin: str, **more: Any) -> list[list[str]]:
        found = self.ask(
            "window", {"name": name, "block": block, "pin": pin, "rows": [0, 99], "columns": [0, 99]}, **more
        )
        return list(found["cells"])

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool], seconds: float = 120.0) -> dict[str, Any]:
        """The state, once it is as it should be."""
        end = time.monotonic() + seconds
        while True:
            state: dict[str, Any] = self.ask("state", name=name)
            if holds(state):
                return state
            assert time.monotonic() < end, state
            time.sleep(0.005)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(tmp_path)
    yield made
    made.studio.close()


def ends(*texts: str) -> list[End]:
    return [End.parse(text) for text in texts]


def counting(name: str = "counting", by: float = 1.0, first: float = 0.0) -> Page:
    """A Variable that grows with every run."""
    return Page(
        name,
        [
            Block("count", "Variable", {"initvalues": np.array(first, np.float32)}),
            Block("more", "AssignAdd", {"value": np.array(by, np.float32)}, {"ref": ends("count.ref")}),
            Block("session", "ClientSession", wires={"fetch_outputs": ends("more.output_ref")}),
        ],
    )
