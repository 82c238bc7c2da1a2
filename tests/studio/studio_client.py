"""Call a studio's verbs with JSON arguments and results, as a browser does."""

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


class StudioClient:
    """A studio on a folder, and calls of its verbs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.studio = Studio(root)
        self.studio.runs.close()
        self.studio.runs = Runs(self.studio.hub, root)
        self.listener = self.studio.hub.listen("w")

    def restart(self) -> None:
        """Stop the studio and start another on the same folder."""
        self.studio.close()
        self.studio = Studio(self.root)

    def call(self, verb: str, arguments: dict[str, Any] | None = None, body: bytes = b"", **more: Any) -> Any:
        sent = json.loads(json.dumps({**(arguments or {}), **more}))
        response = verbs.answer(self.studio, verb, sent, body)
        return json.loads(json.dumps(response, allow_nan=False))

    def save_page(self, page: Page) -> str:
        """Create a page or overwrite it; return its revision."""
        name = page.name
        revisions = {p["name"]: p["revision"] for p in self.studio.folder.pages()}
        if name not in revisions:
            return str(self.call("new", {"name": name, "page": self.studio.pool.write_page(page)})["revision"])
        tree = self.studio.pool.write_page(page)
        return str(self.call("save", {"name": name, "base": revisions[name], "page": tree, "window": "w"})["revision"])

    def copy_example(self, name: str) -> str:
        """Copy an example page into the folder; return its name."""
        path = next(PAGES.glob(f"{name}*.json"))
        shutil.copy(path, self.root)
        arrays = path.with_name(path.name + ".arrays")
        if arrays.is_dir():
            shutil.copytree(arrays, self.root / arrays.name)
        return path.stem

    def cells(self, name: str, block: str, pin: str, **more: Any) -> list[list[str]]:
        found = self.call(
            "window", {"name": name, "block": block, "pin": pin, "rows": [0, 99], "columns": [0, 99]}, **more
        )
        return list(found["cells"])

    def wait_for(
        self, name: str, condition: Callable[[dict[str, Any]], bool], seconds: float = 120.0
    ) -> dict[str, Any]:
        """Poll the state until the condition holds, and return it."""
        end = time.monotonic() + seconds
        while True:
            state: dict[str, Any] = self.call("state", name=name)
            if condition(state):
                return state
            assert time.monotonic() < end, state
            time.sleep(0.005)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[StudioClient]:
    client = StudioClient(tmp_path)
    yield client
    client.studio.close()


def ends(*texts: str) -> list[End]:
    return [End.parse(text) for text in texts]


def counter_page(name: str = "counting", by: float = 1.0, first: float = 0.0) -> Page:
    """Return a page whose Variable grows with every run."""
    return Page(
        name,
        [
            Block("count", "Variable", {"initvalues": np.array(first, np.float32)}),
            Block("more", "AssignAdd", {"value": np.array(by, np.float32)}, {"ref": ends("count.ref")}),
            Block("session", "ClientSession", wires={"fetch_outputs": ends("more.output_ref")}),
        ],
    )
